/* Functions of doubles, each in a form that vectorizes. */

EW double tj_lerp_d(double s, double e, double w) { int near = __builtin_fabs(w) < 0.5; return __builtin_fma(near ? w : w - 1, e - s, near ? s : e); }

EW double tj_two_to(double n) { return tj_double_of((tj_bits_of_double(n + 0x1.8p52) + 1023) << 52); }       /* whole, -1022 <= n <= 1023 */

EW double tj_exp_tail_d(double r) {                                  /* exp(r) - 1 - r, |r| <= 0.347 */
  double p = 1. / 6227020800;
  p = __builtin_fma(p, r, 1. / 479001600); p = __builtin_fma(p, r, 1. / 39916800); p = __builtin_fma(p, r, 1. / 3628800);
  p = __builtin_fma(p, r, 1. / 362880); p = __builtin_fma(p, r, 1. / 40320); p = __builtin_fma(p, r, 1. / 5040);
  p = __builtin_fma(p, r, 1. / 720); p = __builtin_fma(p, r, 1. / 120); p = __builtin_fma(p, r, 1. / 24);
  p = __builtin_fma(p, r, 1. / 6); p = __builtin_fma(p, r, 0.5);
  return p * (r * r);
}

EW double tj_exp_d(double x) {
  double y = x > 710. ? 710. : x; y = y < -746. ? -746. : y;
  double n = __builtin_fma(y, 1.4426950408889634, 0x1.8p52) - 0x1.8p52, h = (n * 0.5 + 0x1.8p52) - 0x1.8p52;
  double r = __builtin_fma(n, -0x1.abc9e3b39803fp-56, __builtin_fma(n, -0x1.62e42fefa39efp-1, y));
  return (1. + (r + tj_exp_tail_d(r))) * tj_two_to(h) * tj_two_to(n - h);
}

EW double tj_exp2_d(double x) {                                      /* as exp, and x less a whole number is exact */
  double y = x > 1025. ? 1025. : x; y = y < -1080. ? -1080. : y;
  double n = (y + 0x1.8p52) - 0x1.8p52, h = (n * 0.5 + 0x1.8p52) - 0x1.8p52, d = y - n, r = d * 0x1.62e42fefa39efp-1;
  double low = __builtin_fma(d, 0x1.abc9e3b39803fp-56, __builtin_fma(d, 0x1.62e42fefa39efp-1, -r));
  return (1. + (r + (tj_exp_tail_d(r) + low))) * tj_two_to(h) * tj_two_to(n - h);
}

EW double tj_expm1_d(double x) {
  double y = x > 710. ? 710. : x; y = y < -50. ? -50. : y;
  double n = __builtin_fma(y, 1.4426950408889634, 0x1.8p52) - 0x1.8p52, half = tj_two_to(n - 1.);
  double q = __builtin_fma(n, -0x1.62e42fefa39efp-1, y), r = __builtin_fma(n, -0x1.abc9e3b39803fp-56, q);
  double low = __builtin_fma(n, -0x1.abc9e3b39803fp-56, q - r), e = tj_exp_tail_d(r);         /* of r, and of the result */
  double sum = half - 0.5, a = __builtin_fma(half, r, sum), lost = __builtin_fma(half, r, sum - a);
  double v = 2. * (a + __builtin_fma(half, e + low, lost));
  return __builtin_fabs(x) < 0x1p-54 ? x : v;
}

EW double tj_hypot_d(double x, double y) {                           /* scaled by a power of two where squares would not be normal */
  double a = __builtin_fabs(x), b = __builtin_fabs(y), most = a > b ? a : b;
  double scale = most > 0x1p500 ? 0x1p-600 : most < 0x1p-400 ? 0x1p600 : 1., back = most > 0x1p500 ? 0x1p600 : most < 0x1p-400 ? 0x1p-600 : 1.;
  double s = a * scale, t = b * scale, v = __builtin_sqrt(__builtin_fma(s, s, t * t)) * back;
  return (a == __builtin_inf()) | (b == __builtin_inf()) ? __builtin_inf() : v;
}

EW double tj_tanh_d(double x) {                                      /* e / (e + 2), and what the sum and the quotient lost */
  double a = __builtin_fabs(x), e = tj_expm1_d(2. * (a > 22. ? 22. : a)), d = e + 2., q = 1. / d, t = e * q;
  t = __builtin_fma(__builtin_fma(-t, (2. - d) + e, __builtin_fma(-t, d, e)), q, t);
  return x != x ? x : __builtin_copysign(t, x);
}

EW double tj_log_core_d(double f, double n, double low) {            /* log(1 + f) + n log 2 + low, -0.293 <= f < 0.4143 */
  double s = f / (2. + f), z = s * s, half = 0.5 * f * f, p = 2. / 23;
  p = __builtin_fma(p, z, 2. / 21); p = __builtin_fma(p, z, 2. / 19); p = __builtin_fma(p, z, 2. / 17); p = __builtin_fma(p, z, 2. / 15);
  p = __builtin_fma(p, z, 2. / 13); p = __builtin_fma(p, z, 2. / 11); p = __builtin_fma(p, z, 2. / 9); p = __builtin_fma(p, z, 2. / 7);
  p = __builtin_fma(p, z, 2. / 5); p = __builtin_fma(p, z, 2. / 3);
  double t = __builtin_fma(s, __builtin_fma(p, z, half), __builtin_fma(n, 0x1.abc9e3b39803fp-56, low)) - half;
  return __builtin_fma(n, 0x1.62e42fefa39efp-1, f + t);
}

EW double tj_log_d(double x) {
  double y = x < 0x1p-1022 ? x * 0x1p54 : x;                         /* denormals */
  u64 u = tj_bits_of_double(y), t = u - 0x3fe6a09e00000000ul;
  double n = tj_exponent(t) - (x < 0x1p-1022 ? 54. : 0.), f = tj_double_of(u - (t & 0xfff0000000000000ul)) - 1.;
  double v = tj_log_core_d(f, n, 0.);
  v = x == 0 ? -__builtin_inf() : v; v = x < 0 ? __builtin_nan("") : v;
  return (x == __builtin_inf()) | (x != x) ? x : v;
}

EW double tj_log1p_d(double x) {
  double y = 1. + x, c = x < 1. ? x - (y - 1.) : 1. - (y - x);       /* what the sum lost */
  u64 u = tj_bits_of_double(y), t = u - 0x3fe6a09e00000000ul;
  double n = tj_exponent(t), f = n == 0 ? x : tj_double_of(u - (t & 0xfff0000000000000ul)) - 1.;
  double v = tj_log_core_d(f, n, n == 0 ? 0. : c / y);
  v = y == 0 ? -__builtin_inf() : v; v = y < 0 ? __builtin_nan("") : v; v = x == 0 ? x : v;
  return (y == __builtin_inf()) | (y != y) ? y : v;
}

EW double tj_atanh_d(double x) {
  double a = __builtin_fabs(x), w = 0.5 * tj_log1p_d(2. * a / (1. - a));
  return __builtin_fabs(x) < 0x1p-54 ? x : __builtin_copysign(w, x);
}

EW double tj_times_two_to(double v, double n) {                      /* v 2^n in two factors: it may be denormal or too large */
  double h = (n * 0.5 + 0x1.8p52) - 0x1.8p52;
  return v * tj_two_to(h) * tj_two_to(n - h);
}

typedef struct { double high, low; } tj_pair; /* tj_pair( */

EW tj_pair tj_exp_pair(double x, double low, double *n) {            /* exp(x + low) / 2^n, low far below x, -746 <= x <= 711 */
  *n = __builtin_fma(x, 1.4426950408889634, 0x1.8p52) - 0x1.8p52;
  double r = __builtin_fma(*n, -0x1.abc9e3b39803fp-56, __builtin_fma(*n, -0x1.62e42fefa39efp-1, x)), t = tj_exp_tail_d(r);
  double w = r + (t + __builtin_fma(low, r + t, low));
  tj_pair out = {1. + w, (1. - (1. + w)) + w};
  return out;
}

EW double tj_sinh_d(double x) {
  double a = __builtin_fabs(x), s = a * a, n, p = 1. / 121645100408832000;
  p = __builtin_fma(p, s, 1. / 355687428096000); p = __builtin_fma(p, s, 1. / 1307674368000); p = __builtin_fma(p, s, 1. / 6227020800);
  p = __builtin_fma(p, s, 1. / 39916800); p = __builtin_fma(p, s, 1. / 362880); p = __builtin_fma(p, s, 1. / 5040);
  p = __builtin_fma(p, s, 1. / 120); p = __builtin_fma(p, s, 1. / 6);
  double v = tj_exp_pair(a > 711. ? 711. : a, 0., &n).high, e = tj_times_two_to(v, n - 1.);
  return x != x ? x : __builtin_copysign(a < 1. ? __builtin_fma(p * s, a, a) : e - 0.25 / e, x);
}

EW double tj_cosh_d(double x) {
  double a = __builtin_fabs(x), n, v = tj_exp_pair(a > 711. ? 711. : a, 0., &n).high, e = tj_times_two_to(v, n - 1.);
  return x != x ? x : e + 0.25 / e;
}

EW tj_pair tj_log_pair(double x) {                                   /* log x, relative error 2^-64 */
  double y = x < 0x1p-1022 ? x * 0x1p54 : x;
  u64 u = tj_bits_of_double(y), t = u - 0x3fe6a09e00000000ul;
  double n = tj_exponent(t) - (x < 0x1p-1022 ? 54. : 0.), m = tj_double_of(u - (t & 0xfff0000000000000ul));
  double f = m - 1., d = m + 1., in = d - 1., lost = (1. - (d - in)) + (m - in);                          /* log m = 2 atanh(f / d) */
  double back = 1. / d, s = f * back, sl = (__builtin_fma(-s, d, f) - s * lost) * back;
  double z = s * s, zl = __builtin_fma(s, s, -z) + 2. * s * sl, p = 2. / 25;
  p = __builtin_fma(p, z, 2. / 23); p = __builtin_fma(p, z, 2. / 21); p = __builtin_fma(p, z, 2. / 19); p = __builtin_fma(p, z, 2. / 17);
  p = __builtin_fma(p, z, 2. / 15); p = __builtin_fma(p, z, 2. / 13); p = __builtin_fma(p, z, 2. / 11); p = __builtin_fma(p, z, 2. / 9);
  p = __builtin_fma(p, z, 2. / 7); p = __builtin_fma(p, z, 2. / 5);
  double c = s * z, cl = __builtin_fma(s, z, -c) + __builtin_fma(s, zl, sl * z);                         /* s^3 */
  double a = c * 0x1.5555555555555p-1, al = __builtin_fma(c, 0x1.5555555555555p-1, -a) + __builtin_fma(c, 0x1.5555555555555p-55, cl * (2. / 3));
  double tail = c * z * p, b = a + tail, bl = ((a - b) + tail) + al;
  double h = 2. * s + b, hl = ((2. * s - h) + b) + (bl + 2. * sl);
  double k = n * 0x1.62e42fefa39efp-1, kl = __builtin_fma(n, 0x1.62e42fefa39efp-1, -k) + n * 0x1.abc9e3b39803fp-56;
  double v = k + h, vl = ((k - v) + h) + (kl + hl);
  tj_pair out = {v + vl, (v - (v + vl)) + vl};
  out.high = x == 0 ? -__builtin_inf() : x < 0 ? __builtin_nan("") : (x == __builtin_inf()) | (x != x) ? x : out.high;
  return out;
}

EW double tj_log_to(double x, double k, double kl, double two, double twol) {   /* log x times k + kl; two + twol: of 2 */
  double y = x < 0x1p-1022 ? x * 0x1p54 : x;
  u64 u = tj_bits_of_double(y), t = u - 0x3fe6a09e00000000ul;
  double n = tj_exponent(t) - (x < 0x1p-1022 ? 54. : 0.), f = tj_double_of(u - (t & 0xfff0000000000000ul)) - 1.;
  double l = tj_log_core_d(f, 0., 0.), h = n * two, v = h + __builtin_fma(l, k, __builtin_fma(l, kl, __builtin_fma(n, two, -h) + n * twol));
  v = x == 0 ? -__builtin_inf() : v; v = x < 0 ? __builtin_nan("") : v;
  return (x == __builtin_inf()) | (x != x) ? x : v;
}

EW double tj_log2_d(double x) { return tj_log_to(x, 0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56, 1., 0.); }

EW double tj_log10_d(double x) { return tj_log_to(x, 0x1.bcb7b1526e50ep-2, 0x1.95355baaafad3p-57, 0x1.34413509f79ffp-2, -0x1.9dc1da994fd21p-59); }

EW double tj_pow_d(double x, double y) {
  tj_pair l = tj_log_pair(__builtin_fabs(x));
  double e = y * l.high, low = __builtin_fma(y, l.high, -e) + y * l.low;
  e = y == 0 ? 0. : e;
  low = __builtin_fabs(e) < 1000. ? low : 0.; e = e > 711. ? 711. : e; e = e < -746. ? -746. : e;
  double n, v = tj_exp_pair(e, low, &n).high;
  v = tj_times_two_to(v, n);
  int whole = __builtin_rint(y) == y, odd = whole & (__builtin_fabs(y) < 0x1p53) & (__builtin_rint(y * 0.5) != y * 0.5);
  int negative = (int)(tj_bits_of_double(x) >> 63);
  v = negative & odd ? -v : v;
  v = (x < 0) & !whole & (x != -__builtin_inf()) ? __builtin_nan("") : v;
  v = (x == -1.) & (__builtin_fabs(y) == __builtin_inf()) ? 1. : v;
  v = (x != x) | (y != y) ? x + y : v;
  return (x == 1.) | (y == 0) ? 1. : v;
}

EW double tj_asinh_d(double x) {
  double a = __builtin_fabs(x), w = a + a * a / (1. + __builtin_sqrt(1. + a * a));
  double v = tj_log1p_d(a > 0x1p54 ? a : w) + (a > 0x1p54 ? 0.6931471805599453 : 0.);
  return a < 0x1p-54 ? x : __builtin_copysign(v, x);
}

EW double tj_acosh_d(double x) {
  double w = (x - 1.) + __builtin_sqrt((x - 1.) * (x + 1.));
  return tj_log1p_d(x < 1. ? __builtin_nan("") : x > 0x1p54 ? x : w) + (x > 0x1p54 ? 0.6931471805599453 : 0.);
}

EW double tj_angle_of(double y, double yl, double x, double xl) {    /* of (x + xl, y + yl); above tan(pi / 8) the angle less pi / 4 */
  double a = __builtin_fabs(y), b = __builtin_fabs(x), al = y < 0 ? -yl : yl, bl = x < 0 ? -xl : xl;
  int steep = a > b, back = tj_bits_of_double(x) >> 63;
  double low = steep ? b : a, high = steep ? a : b, ll = steep ? bl : al, hl = steep ? al : bl;
  int wide = (low > 0.41421356237309503 * high) | ((low == high) & (high > 0));
  double num = wide ? low - high : low, den = wide ? low + high : high;
  double numl = wide ? (low - (num + high)) + (ll - hl) : ll, denl = wide ? (high - den) + low + (hl + ll) : hl;
  double over = 1. / den, t = num * over, tl = (__builtin_fma(-t, den, num) + numl - t * denl) * over;
  int flat = (low == high) | (low == 0) | (high == __builtin_inf());  /* also of zeros and infinities */
  t = flat ? 0. : t; tl = flat ? 0. : tl;
  double s = t * t, p = -0.01917688711906226;
  p = __builtin_fma(p, s, 0.03923165829558719); p = __builtin_fma(p, s, -0.0508544973794026); p = __builtin_fma(p, s, 0.0585814891280221);
  p = __builtin_fma(p, s, -0.06664511447381948); p = __builtin_fma(p, s, 0.07692183190826087); p = __builtin_fma(p, s, -0.09090904578123903);
  p = __builtin_fma(p, s, 0.11111111015256361); p = __builtin_fma(p, s, -0.14285714284666542); p = __builtin_fma(p, s, 0.1999999999999552);
  p = __builtin_fma(p, s, -0.3333333333333333);
  double turn = wide ? 1. : 0., sign = steep != back ? -1. : 1., k = (back ? 4. : 0.) + (steep ? back ? -2. : 2. : 0.) + sign * turn;       /* times pi / 4 */
  double base = k * 0x1.921fb54442d18p-1, rest = __builtin_fma(k, 0x1.921fb54442d18p-1, -base) + k * 0x1.1a62633145c07p-55;
  t *= sign;
  double v = base + t;
  v += (base - v) + t + (rest + __builtin_fma(p * s, t, sign * tl));
  return __builtin_copysign((x != x) | (y != y) ? x + y : v, y);
}

EW double tj_atan2_d(double y, double x) {
  double most = __builtin_fabs(x) > __builtin_fabs(y) ? __builtin_fabs(x) : __builtin_fabs(y), scale = most > 0x1p900 ? 0x1p-200 : most < 0x1p-700 ? 0x1p300 : 1.;
  return tj_angle_of(y * scale, 0., x * scale, 0.);
}

EW double tj_atan_d(double x) { return tj_atan2_d(x, 1.); }

EW tj_pair tj_other_side(double x) {                                 /* sqrt(1 - x^2) */
  double s = x * x, v = 1. - s, vl = ((1. - v) - s) - __builtin_fma(x, x, -s), c = __builtin_sqrt(v);
  tj_pair out = {c, c == 0 ? 0. : 0.5 * (__builtin_fma(-c, c, v) + vl) / c};
  return out;
}

EW double tj_asin_d(double x) { tj_pair c = tj_other_side(x); return tj_angle_of(x, 0., c.high, c.low); }

EW double tj_acos_d(double x) { tj_pair c = tj_other_side(x); return tj_angle_of(c.high, c.low, x, 0.); }

EW double tj_erfc_rest_d(double y) {                                 /* erfc(y) exp(y^2) (1 + 2y) less 1.23..., 0.5 < y < 28 */
  double u = (y - 3.75) / (y + 3.75);
  double p = 2.5265557531642926e-08;
  p = __builtin_fma(p, u, 1.350875974161026e-08); p = __builtin_fma(p, u, -2.4233140808399475e-07);
  p = __builtin_fma(p, u, -4.5210823716014646e-08); p = __builtin_fma(p, u, 1.740269903212129e-06);
  p = __builtin_fma(p, u, -9.82051742210998e-07); p = __builtin_fma(p, u, -1.1439294277760925e-05);
  p = __builtin_fma(p, u, 2.238795673013135e-05); p = __builtin_fma(p, u, 5.164780741855856e-05);
  p = __builtin_fma(p, u, -0.00029015511154243344); p = __builtin_fma(p, u, 0.00029371387469142674);
  p = __builtin_fma(p, u, 0.0017556260320963533); p = __builtin_fma(p, u, -0.009746579577035586);
  p = __builtin_fma(p, u, 0.028362277400278118); p = __builtin_fma(p, u, -0.05869339858885731);
  p = __builtin_fma(p, u, 0.09230432116144294); p = __builtin_fma(p, u, -0.10880393014175117);
  p = __builtin_fma(p, u, 0.08227673849011752); p = __builtin_fma(p, u, 0.0035854154854639947);
  p = __builtin_fma(p, u, -0.14024059858554674);
  return p * u;
}

EW double tj_erfc_far_d(double y) {                                  /* erfc, 0.5 < y < 28 */
  double s = y * y, p = tj_erfc_rest_d(y), n;
  double c = p + 1.2375126308378275, cl = (1.2375126308378275 - c) + p, d = __builtin_fma(2., y, 1.), dl = __builtin_fma(2., y, 1. - d);
  double q = c / d, ql = (__builtin_fma(-q, d, c) + cl - q * dl) / d;
  tj_pair e = tj_exp_pair(-s, -__builtin_fma(y, y, -s), &n);
  return tj_times_two_to(__builtin_fma(e.high, q, __builtin_fma(e.high, ql, e.low * q)), n);
}

EW double tj_erf_near_d(double x) {                                  /* erf(x), |x| < 0.9 */
  double s = x * x;
  double p = -8.493998797080943e-10;
  p = __builtin_fma(p, s, 1.4051482766989913e-08); p = __builtin_fma(p, s, -1.6276526722586205e-07);
  p = __builtin_fma(p, s, 1.6455328747938096e-06); p = __builtin_fma(p, s, -1.492530753550859e-05);
  p = __builtin_fma(p, s, 0.00012055321382481122); p = __builtin_fma(p, s, -0.0008548326764466543);
  p = __builtin_fma(p, s, 0.0052239776217703725); p = __builtin_fma(p, s, -0.02686617064482373);
  p = __builtin_fma(p, s, 0.11283791670953794); p = __builtin_fma(p, s, -0.3761263890318373);
  p = __builtin_fma(p, s, 0.1283791670955126);
  return __builtin_fma(p, x, x);
}

EW double tj_erf_d(double x) {
  double a = __builtin_fabs(x), y = a > 6. ? 6. : a, far = 1. - tj_exp_d(-y * y) * ((tj_erfc_rest_d(y) + 1.2375126308378275) / (1. + 2. * y));
  return a < 0.9 ? tj_erf_near_d(x) : x != x ? x : __builtin_copysign(far, x);
}

EW double tj_erfc_d(double x) {
  double a = __builtin_fabs(x), far = tj_erfc_far_d(a > 27.5 ? 27.5 : a);
  far = x < 0 ? 2. - far : far;
  return a < 0.5 ? 1. - tj_erf_near_d(x) : x != x ? x : far;
}

EW double tj_sigmoid_d(double x) { double e = tj_exp_d(-__builtin_fabs(x)); return (x < 0 ? e : 1.) / (1. + e); }

EW tj_angle tj_reduce_near_d(double x) {                /* as of floats; |x| < 2^26 */
  double whole = x * 0x1.45f306dc9c883p-1 + 0x1.8p52, k = whole - 0x1.8p52;
  double r = __builtin_fma(k, -0x1.921fb54442d18p+0, x); r = __builtin_fma(k, -0x1.1a62633145c07p-54, r);
  tj_angle out = {r, (i64)tj_bits_of_double(whole) & 3};
  return out;
}

EW double tj_sin_tail_d(double z) {                                  /* (sin r / r - 1) / z, z = r^2 */
  double p = 1. / 355687428096000;
  p = __builtin_fma(p, z, -1. / 1307674368000); p = __builtin_fma(p, z, 1. / 6227020800); p = __builtin_fma(p, z, -1. / 39916800);
  p = __builtin_fma(p, z, 1. / 362880); p = __builtin_fma(p, z, -1. / 5040); p = __builtin_fma(p, z, 1. / 120);
  return __builtin_fma(p, z, -1. / 6);
}

EW double tj_sin_core_d(double r) { double z = r * r; return __builtin_fma(tj_sin_tail_d(z) * z, r, r); }

EW double tj_cos_tail_d(double z) {                                  /* (cos r - 1 + z / 2) / z^2, z = r^2 */
  double p = -1. / 6402373705728000;
  p = __builtin_fma(p, z, 1. / 20922789888000); p = __builtin_fma(p, z, -1. / 87178291200); p = __builtin_fma(p, z, 1. / 479001600);
  p = __builtin_fma(p, z, -1. / 3628800); p = __builtin_fma(p, z, 1. / 40320); p = __builtin_fma(p, z, -1. / 720);
  return __builtin_fma(p, z, 1. / 24);
}

EW double tj_cos_core_d(double r) {
  double z = r * r, h = 0.5 * z, one = 1. - h;
  return one + __builtin_fma(tj_cos_tail_d(z), z * z, (1. - one) - h);
}

EW double tj_sin_of_d(double x, tj_angle a) { double r = a.r, v = a.q & 1 ? tj_cos_core_d(r) : tj_sin_core_d(r); return x == 0 ? x : a.q & 2 ? -v : v; }

EW double tj_cos_of_d(tj_angle a) { double r = a.r, v = a.q & 1 ? tj_sin_core_d(r) : tj_cos_core_d(r); return (a.q + 1) & 2 ? -v : v; }

EW int tj_is_far_d(double x) { return (__builtin_fabs(x) >= 0x1p26) & (__builtin_fabs(x) < __builtin_inf()); }

/* tj_sin_d( tj_sin_near_d( tj_cos_d( tj_cos_near_d( */
EW double tj_sin_d(double x) { return __builtin_sin(x); }
EW double tj_cos_d(double x) { return __builtin_cos(x); }
EW double tj_sin_near_d(u32 *far, double x) { *far |= tj_is_far_d(x); return tj_sin_of_d(x, tj_reduce_near_d(x)); }
EW double tj_cos_near_d(u32 *far, double x) { *far |= tj_is_far_d(x); return tj_cos_of_d(tj_reduce_near_d(x)); }

EW double tj_tan_d(double x) { return __builtin_tan(x); }

EW double tj_tan_near_d(u32 *far, double x) {                        /* sine over cosine, and what each step lost */
  *far |= tj_is_far_d(x);
  double turn = x * 0x1.45f306dc9c883p-1 + 0x1.8p52, k = turn - 0x1.8p52, a = __builtin_fma(k, -0x1.921fb54442d18p+0, x);     /* a is exact */
  double r = __builtin_fma(k, -0x1.1a62633145c07p-54, a), rest = __builtin_fma(k, -0x1.1a62633145c07p-54, a - r);
  double z = r * r, half = 0.5 * z, one = 1. - half;
  double p = tj_sin_tail_d(z) * z * r, q = tj_cos_tail_d(z) * (z * z) + ((1. - one) - half);
  double s = r + p, c = one + q, sl = (r - s) + p + rest * c, cl = (one - c) + q - rest * s + 0.5 * __builtin_fma(-r, r, z);
  int odd = (int)tj_bits_of_double(turn) & 1;
  double num = odd ? -c : s, den = odd ? s : c, numl = odd ? -cl : sl, denl = odd ? sl : cl;
  double t = num / den;
  t += (__builtin_fma(-t, den, num) + numl - t * denl) / den;
  return x == 0 ? x : t;
}

EW double tj_gelu_d(double v) { return v * 0.5 * (1. + tj_erf_d(v * 0.70710678118654752440)); }

EW double tj_gelu_tanh_d(double v) { double c = v * v * v, in = 0.7978845608028654 * (v + 0.044715 * c); return 0.5 * v * (1. + tj_tanh_d(in)); }

EW double tj_gelu_backward_d(double g, double v) {
  double cdf = 0.5 * (1. + tj_erf_d(v * 0.70710678118654752440)), pdf = 0.3989422804014327 * tj_exp_d(v * v * -0.5);
  return g * (cdf + v * pdf);
}

EW double tj_gelu_tanh_backward_d(double g, double v) {
  double s = v * v, t = tj_tanh_d(0.7978845608028654 * (v + 0.044715 * (s * v))), left = 0.5 * v, right = 1. + t;
  return g * (0.5 * right + left * (1. - t * t) * (0.7978845608028654 * (1. + 3. * 0.044715 * s)));
}

EW double tj_silu_backward_d(double g, double v) { double s = tj_sigmoid_d(v); return g * s * (1. + v * (1. - s)); }

EW double tj_softplus_d(double x, double b, double t) { return x * b > t ? x : tj_log1p_d(tj_exp_d(x * b)) / b; }

EW double tj_elu_d(double x, double n, double p, double i) { return x < 0 ? tj_expm1_d(x * i) * n : x * p; }
