/* Functions of floats, each in a form that vectorizes (in double where that is exact enough), and remainders. */

/* Remainders, and again for quotients below 2^52, which are exact but for one too many. tj_fmod_f( tj_fmod_d( tj_mod_f( tj_mod_d( tj_div_floor_f( tj_div_floor_d( tj_fmod_near_f( tj_fmod_near_d( tj_mod_near_f( tj_mod_near_d( tj_div_floor_near_f( tj_div_floor_near_d( */
#define REMAINDERS(t, s, f) \
  EW t tj_fmod_##s(t a, t b) { return __builtin_fmod##f(a, b); } \
  EW t tj_fmod_near_##s(u32 *far, t a, t b) { \
    double x = __builtin_fabs(a), y = __builtin_fabs(b), q = __builtin_floor(x / y), r = __builtin_fma(-q, y, x); \
    *far |= (q >= 0x1p52) & (x < __builtin_inf()) & (y > 0); \
    r = r < 0 ? r + y : r; r = (y == __builtin_inf()) & (x < __builtin_inf()) ? x : r; \
    return __builtin_copysign##f((t)r, a); } \
  EW t tj_mod_of_##s(t m, t b) { return (m != 0) & ((b < 0) != (m < 0)) ? m + b : m; } \
  EW t tj_mod_##s(t a, t b) { return tj_mod_of_##s(tj_fmod_##s(a, b), b); } \
  EW t tj_mod_near_##s(u32 *far, t a, t b) { return tj_mod_of_##s(tj_fmod_near_##s(far, a, b), b); } \
  EW t tj_div_floor_of_##s(t a, t b, t m) { \
    t exact = a / b, d = (a - m) / b; d = (m != 0) & ((b < 0) != (m < 0)) ? d - 1 : d; \
    t q = __builtin_floor##f(d); q = d - q > (t)0.5 ? q + 1 : q; q = d == 0 ? __builtin_copysign##f((t)0, exact) : q; \
    return b == 0 ? exact : q; } \
  EW t tj_div_floor_##s(t a, t b) { return tj_div_floor_of_##s(a, b, tj_fmod_##s(a, b)); } \
  EW t tj_div_floor_near_##s(u32 *far, t a, t b) { return tj_div_floor_of_##s(a, b, tj_fmod_near_##s(far, a, b)); }
REMAINDERS(float, f, f) REMAINDERS(double, d, )

EW float tj_lerp_f(float s, float e, float w) { int near = __builtin_fabsf(w) < 0.5f; return __builtin_fmaf(near ? w : w - 1, e - s, near ? s : e); }

EW float tj_exp_poly(float r) {                                      /* exp(r), |r| <= 0.347 */
  float p = __builtin_fmaf(__builtin_fmaf(0x1.a1b5460000000p-13f, r, 0x1.6d96ce0000000p-10f), r, 0x1.1110800000000p-7f);
  p = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(p, r, 0x1.5554800000000p-5f), r, 0x1.5555560000000p-3f), r, 0.5f);
  return __builtin_fmaf(__builtin_fmaf(p, r, 1.f), r, 1.f);
}

EW float tj_exp_f(float x) {                                         /* 2^n exp(r): the sum leaves n in the low bits of z */
  float z = __builtin_fmaf(x, 0x1.715476p+0f, 0x1.8p23f), n = z - 0x1.8p23f;
  float r = __builtin_fmaf(n, 0x1.e8082e0000000p-16f, __builtin_fmaf(n, -0x1.62e8000000000p-1f, x));
  int i = tj_bits_of(z), h = i >> 1;                                 /* 2^n in two factors: it may be denormal or too large */
  float v = tj_exp_poly(r) * tj_float_of((u32)(h + (127 - 0x25a00000)) << 23) * tj_float_of((u32)(i - h + (127 - 0x25a00000)) << 23);
  v = x < -104.f ? 0.f : v;
  return x > 89.f ? __builtin_inff() : v;
}

EW float tj_exp_low_f(float x) {                                     /* x <= 0: 2^(n + 24) is a normal number */
  float z = __builtin_fmaf(x, 0x1.715476p+0f, 0x1.8p23f + 151.f), n = z - (0x1.8p23f + 151.f);
  float r = __builtin_fmaf(n, 0x1.e8082e0000000p-16f, __builtin_fmaf(n, -0x1.62e8000000000p-1f, x));
  float v = tj_exp_poly(r) * tj_float_of(tj_bits_of(z) << 23) * 0x1p-24f;
  return x < -104.f ? 0.f : v;
}

EW float tj_exp_near_f(float x) {                                    /* -80 < x < 80: no overflow, no denormals */
  float z = __builtin_fmaf(x, 0x1.715476p+0f, 0x1.8p23f), n = z - 0x1.8p23f;
  float r = __builtin_fmaf(n, 0x1.e8082e0000000p-16f, __builtin_fmaf(n, -0x1.62e8000000000p-1f, x));
  return tj_float_of(tj_bits_of(tj_exp_poly(r)) + (tj_bits_of(z) << 23));
}

EW double tj_exponent(u64 t) { return tj_double_of((t ^ 0x8000000000000000ul) >> 52 | 0x4330000000000000ul) - (0x1p52 + 2048.); }   /* (i64)t >> 52 */

EW double tj_power_of_two(double n) { return tj_double_of(tj_bits_of_double(n + (0x1.8p52 + 1023.)) << 52); }     /* whole, -1023 < n < 1024 */


EW double tj_expm1_core(double r) {
  double p = 1. / 39916800;
  p = __builtin_fma(p, r, 1. / 3628800); p = __builtin_fma(p, r, 1. / 362880); p = __builtin_fma(p, r, 1. / 40320);
  p = __builtin_fma(p, r, 1. / 5040); p = __builtin_fma(p, r, 1. / 720); p = __builtin_fma(p, r, 1. / 120);
  p = __builtin_fma(p, r, 1. / 24); p = __builtin_fma(p, r, 1. / 6); p = __builtin_fma(p, r, 0.5);
  return __builtin_fma(p, r * r, r);
}

EW double tj_expm1_wide(double x) {                                  /* of float arguments: x is cut where floats overflow */
  double y = x > 200. ? 200. : x; y = y < -200. ? -200. : y;
  double n = __builtin_rint(y * 1.4426950408889634);
  double r = __builtin_fma(n, -0x1.62e42fefa39efp-1, y); r = __builtin_fma(n, -0x1.abc9e3b39803fp-56, r);
  double s = tj_power_of_two(n);
  return __builtin_fma(s, tj_expm1_core(r), s - 1.);
}

EW double tj_exp_wide(double x) {
  double y = x > 200. ? 200. : x; y = y < -200. ? -200. : y;
  double n = __builtin_rint(y * 1.4426950408889634);
  double r = __builtin_fma(n, -0x1.62e42fefa39efp-1, y); r = __builtin_fma(n, -0x1.abc9e3b39803fp-56, r);
  return (1. + tj_expm1_core(r)) * tj_power_of_two(n);
}

EW double tj_atanh_series(double s) {                                /* 2 atanh(s), |s| <= 0.172 */
  double z = s * s, p = 2. / 19;
  p = __builtin_fma(p, z, 2. / 17); p = __builtin_fma(p, z, 2. / 15); p = __builtin_fma(p, z, 2. / 13); p = __builtin_fma(p, z, 2. / 11);
  p = __builtin_fma(p, z, 2. / 9); p = __builtin_fma(p, z, 2. / 7); p = __builtin_fma(p, z, 2. / 5); p = __builtin_fma(p, z, 2. / 3);
  return __builtin_fma(p * z, s, 2. * s);
}

EW double tj_log_wide(double x) {                                    /* of floats and sums of two: no double denormals */
  u64 u = tj_bits_of_double(x), t = u - 0x3fe6a09e00000000ul;
  double n = tj_exponent(t), m = tj_double_of(u - (t & 0xfff0000000000000ul)), f = m - 1.;
  double v = __builtin_fma(n, 0.6931471805599453, tj_atanh_series(f / (2. + f)));
  v = x == 0 ? -__builtin_inf() : v; v = x < 0 ? __builtin_nan("") : v;
  return x == __builtin_inf() || x != x ? x : v;
}

EW float tj_log_core(float f, float n, float low) {                  /* log(1 + f) + n log 2 + low, -0.293 <= f < 0.4143 */
  float s = f * f, p = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(0x1.24eb74p-4f, f, -0x1.da07c8p-4f), f, 0x1.ddaa6cp-4f), f, -0x1.fc58fap-4f);
  p = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(p, f, 0x1.23d67ap-3f), f, -0x1.555ee2p-3f), f, 0x1.999d52p-3f), f, -0x1.fffff2p-3f), f, 0x1.555554p-2f);
  float t = __builtin_fmaf(f * s, p, __builtin_fmaf(-0.5f, s, __builtin_fmaf(n, -0x1.05c610p-29f, low)));
  return __builtin_fmaf(n, 0x1.62e430p-1f, f + t);
}

EW float tj_log_f(float x) {
  float y = x < 0x1p-126f ? x * 0x1p23f : x;                         /* denormals */
  u32 u = tj_bits_of(y), t = u - 0x3f3504f3u;
  float n = (float)((int)t >> 23) - (x < 0x1p-126f ? 23.f : 0.f), f = tj_float_of(u - (t & 0xff800000u)) - 1.f;
  float v = tj_log_core(f, n, 0.f);
  v = x == 0 ? -__builtin_inff() : v; v = x < 0 ? __builtin_nanf("") : v;
  return (x == __builtin_inff()) | (x != x) ? x : v;
}

EW float tj_log1p_f(float x) {
  float y = 1.f + x, c = x < 1.f ? x - (y - 1.f) : 1.f - (y - x);    /* what the sum lost */
  u32 u = tj_bits_of(y), t = u - 0x3f3504f3u;
  float n = (float)((int)t >> 23), f = n == 0 ? x : tj_float_of(u - (t & 0xff800000u)) - 1.f;
  float v = tj_log_core(f, n, n == 0 ? 0.f : c / y);
  v = y == 0 ? -__builtin_inff() : v; v = y < 0 ? __builtin_nanf("") : v;
  v = x == 0 ? x : v;
  return (y == __builtin_inff()) | (y != y) ? y : v;
}

EW float tj_log_to_f(float x, float k, float kl, float two, float twol) {      /* log x times k + kl; two + twol: of 2 */
  float y = x < 0x1p-126f ? x * 0x1p23f : x;
  u32 u = tj_bits_of(y), t = u - 0x3f3504f3u;
  float n = (float)((int)t >> 23) - (x < 0x1p-126f ? 23.f : 0.f), f = tj_float_of(u - (t & 0xff800000u)) - 1.f, l = tj_log_core(f, 0.f, 0.f);
  float h = n * two, v = h + __builtin_fmaf(l, k, __builtin_fmaf(l, kl, __builtin_fmaf(n, two, -h) + n * twol));
  v = x == 0 ? -__builtin_inff() : v; v = x < 0 ? __builtin_nanf("") : v;
  return (x == __builtin_inff()) | (x != x) ? x : v;
}

EW float tj_log2_f(float x) { return tj_log_to_f(x, 0x1.715476p+0f, 0x1.4ae0c0p-26f, 1.f, 0.f); }

EW float tj_log10_f(float x) { return tj_log_to_f(x, 0x1.bcb7b2p-2f, -0x1.5b235ep-27f, 0x1.344136p-2f, -0x1.ec10c0p-27f); }

EW double tj_log1p_wide(double x) {                                  /* of floats, and what else is -1 or larger by more than 2^-53 */
  double y = 1. + x;
  u64 u = tj_bits_of_double(y), t = u - 0x3fe6a09e00000000ul;
  double n = tj_exponent(t), m = tj_double_of(u - (t & 0xfff0000000000000ul)), f = n == 0 ? x : m - 1.;
  double v = __builtin_fma(n, 0.6931471805599453, tj_atanh_series(f / (2. + f)));
  v = y == 0 ? -__builtin_inf() : v; v = y < 0 ? __builtin_nan("") : v;
  return (y == __builtin_inf()) | (y != y) ? y : v;
}

EW float tj_asinh_f(float x) {
  double a = __builtin_fabs((double)x), s = a * a, w = a + s / (1. + __builtin_sqrt(1. + s));
  return (x == 0) | (a == __builtin_inf()) ? x : __builtin_copysignf((float)tj_log1p_wide(w), x);
}

EW float tj_acosh_f(float x) {
  double d = x, w = (d - 1.) + __builtin_sqrt((d - 1.) * (d + 1.));
  return (float)tj_log1p_wide(x < 1 ? __builtin_nan("") : w);
}

EW float tj_atanh_f(float x) {
  double a = __builtin_fabs((double)x), w = 0.5 * tj_log1p_wide(2. * a / (1. - a));
  return x == 0 ? x : __builtin_copysignf((float)w, x);
}

EW float tj_exp2_f(float x) {                                        /* as exp, and x less a whole number is exact */
  float z = x + 0x1.8p23f, r = x - (z - 0x1.8p23f);
  int i = tj_bits_of(z), h = i >> 1;
  float v = tj_exp_poly(r * 0x1.62e43p-1f) * tj_float_of((u32)(h + (127 - 0x25a00000)) << 23) * tj_float_of((u32)(i - h + (127 - 0x25a00000)) << 23);
  v = x < -151.f ? 0.f : v;
  return x >= 128.f ? __builtin_inff() : v;
}

EW float tj_atan2_f(float y, float x) {                              /* above tan(pi / 8) the angle less pi / 4; -0.0 counts */
  float a = __builtin_fabsf(y), b = __builtin_fabsf(x), most = a < b ? b : a, scale = most > 0x1p125f ? 0x1p-4f : most < 0x1p-100f ? 0x1p30f : 1.f;
  int steep = a > b, back = tj_bits_of(x) >> 31;
  float low = (steep ? b : a) * scale, high = most * scale;
  int wide = (low > 0.41421356f * high) | ((low == high) & (high > 0)), flat = (low == high) | (low == 0) | (high == __builtin_inff());
  float t = (wide ? low - high : low) / (wide ? low + high : high);
  t = flat ? 0.f : t;
  float s = t * t, p = __builtin_fmaf(__builtin_fmaf(-0x1.08455ep-4f, s, 0x1.b81030p-4f), s, -0x1.242036p-3f);
  p = __builtin_fmaf(__builtin_fmaf(p, s, 0x1.999730p-3f), s, -0x1.555554p-2f);
  float sign = steep != back ? -1.f : 1.f, k = (back ? 4.f : 0.f) + (steep ? back ? -2.f : 2.f : 0.f) + (wide ? sign : 0.f);     /* times pi / 4 */
  float base = k * 0x1.921fb6p-1f, rest = __builtin_fmaf(k, 0x1.921fb6p-1f, -base) + k * -0x1.777a5cp-26f;
  t *= sign;
  float v = base + t;
  v += (base - v) + t + __builtin_fmaf(p * s, t, rest);
  return __builtin_copysignf((x != x) | (y != y) ? x + y : v, y);
}

EW float tj_atan_f(float x) { return tj_atan2_f(x, 1.f); }

EW float tj_asin_part(float a, float *root) {                        /* asin(root) - root; root: a, from a half on sqrt((1 - a) / 2) */
  float z = a < 0.5f ? a * a : __builtin_fmaf(-0.5f, a, 0.5f);
  *root = a < 0.5f ? a : __builtin_sqrtf(z);
  float p = __builtin_fmaf(__builtin_fmaf(0x1.13fed4p-5f, z, 0x1.18f91ep-6f), z, 0x1.fd8da2p-6f);
  p = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(p, z, 0x1.6d5bbap-5f), z, 0x1.333430p-4f), z, 0x1.555554p-3f);
  return p * z * *root;
}

EW float tj_asin_f(float x) {
  float a = __builtin_fabsf(x), s, p = tj_asin_part(a, &s), v = a < 0.5f ? s + p : 0x1.921fb6p+0f - 2.f * (s + (p + 0x1.777a5cp-27f));
  return __builtin_copysignf(v, x);
}

EW float tj_acos_f(float x) {
  float a = __builtin_fabsf(x), s, p = tj_asin_part(a, &s);
  float near = 0x1.921fb6p+0f - (__builtin_copysignf(s, x) + (__builtin_copysignf(p, x) + 0x1.777a5cp-25f)), far = 2.f * (s + p);
  return a < 0.5f ? near : x < 0 ? 0x1.921fb6p+1f - (far + 0x1.777a5cp-24f) : far;
}

EW float tj_hypot_f(float x, float y) {
  float v = (float)__builtin_sqrt((double)x * x + (double)y * y);
  return (__builtin_fabsf(x) == __builtin_inff()) | (__builtin_fabsf(y) == __builtin_inff()) ? __builtin_inff() : v;
}

EW float tj_erfc_f(float x) {                                        /* exp(-x^2) / (1 + 2x) times a polynomial in (x - 2.5) / (x + 2.5) */
  double a = __builtin_fabs((double)x), y = a > 10.2 ? 10.2 : a, u = (y - 2.5) / (y + 2.5);
  double p = -6.0061759327725134e-05;
  p = __builtin_fma(p, u, -4.836825865649568e-05); p = __builtin_fma(p, u, 0.0005975605918670184); p = __builtin_fma(p, u, 0.00045708216793910195);
  p = __builtin_fma(p, u, -0.004373534522704049); p = __builtin_fma(p, u, 0.0009435094097544409); p = __builtin_fma(p, u, 0.032760100536174994);
  p = __builtin_fma(p, u, -0.10296871092845848); p = __builtin_fma(p, u, 0.1576299390535168); p = __builtin_fma(p, u, -0.09902445460620644);
  p = __builtin_fma(p, u, -0.12235676322138933); p = __builtin_fma(p, u, 1.2648381836592821);
  double v = tj_exp_wide(-y * y) * p / (1. + 2. * y);
  v = x < 0 ? 2. - v : v;
  return x != x ? x : (float)v;
}

EW float tj_expm1_f(float x) { return x == 0 ? x : (float)tj_expm1_wide(x); }

EW float tj_sinh_f(float x) { double e = tj_expm1_wide(__builtin_fabs((double)x)); return x == 0 ? x : __builtin_copysignf((float)(0.5 * (e + e / (e + 1.))), x); }

EW float tj_cosh_f(float x) { double e = tj_exp_wide(__builtin_fabs((double)x)); return (float)(0.5 * (e + 1. / e)); }

EW float tj_tanh_f(float x) {
  float a = __builtin_fabsf(x), y = a > 10.f ? 10.f : a, s = x * x;
  float e = tj_exp_near_f(2.f * y), far = 1.f - 2.f / (e + 1.f);
  float p = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(0x1.18c8e40000000p-9f, s, -0x1.0bf22e0000000p-7f), s, 0x1.638bb00000000p-6f), s, -0x1.b9eeb00000000p-5f), s, 0x1.1110680000000p-3f), s, -0x1.5555540000000p-2f);
  float near = __builtin_fmaf(p * s, x, x);
  return a < 0.625f ? near : x != x ? x : __builtin_copysignf(far, x);
}

EW float tj_sigmoid_f(float x) { float e = tj_exp_low_f(-__builtin_fabsf(x)); return (x < 0 ? e : 1.f) / (1.f + e); }

typedef struct { double r; i64 q; } tj_angle; /* tj_angle( */

EW tj_angle tj_reduce_near(float x) {                   /* x less whole quarter turns, in [-pi/4, pi/4]; |x| < 2^39, or not finite */
  double d = x, whole = d * 0x1.45f306dc9c883p-1 + 0x1.8p52, k = whole - 0x1.8p52;     /* whole's last bits count */
  double r = __builtin_fma(k, -0x1.921fb54442d18p+0, d); r = __builtin_fma(k, -0x1.1a62633145c07p-54, r);
  tj_angle out = {r, (i64)tj_bits_of_double(whole) & 3};
  return out;
}

#define TJ_WORD(a, b, c, d) (i & 2 ? (i & 1 ? (d) : (c)) : (i & 1 ? (b) : (a)))    /* a table's loads would be gathered one by one */
EW tj_angle tj_reduce(float x) {
  tj_angle out = tj_reduce_near(x);
  u32 u = tj_bits_of(x), m = (u & 0x7fffff) | 0x800000; int e = (int)((u >> 23) & 255) - 150;
  /* Beyond 2^39: x is m * 2^e; a window of 96 bits of 2/pi, of which the first weighs two quarter turns for m's last bit */
  u32 j = (u32)(e - 2), i = (j >> 5) & 3, n = j & 31;
  u32 a = TJ_WORD(0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u), b = TJ_WORD(0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u);
  u32 c = TJ_WORD(0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u), f = TJ_WORD(0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu);
  a = a << n | b >> 1 >> (31 - n); b = b << n | c >> 1 >> (31 - n); c = c << n | f >> 1 >> (31 - n);
  u64 turns = ((u64)(m * a) << 32) + (u64)m * b + ((u64)m * c >> 32);      /* in quarters, times 2^62 */
  i64 q = (i64)((turns + (1ull << 61)) >> 62), rest = (i64)(turns - ((u64)q << 62));
  double far = (double)rest * 0x1.921fb54442d18p-62;
  far = (u >> 31) ? -far : far; q = (u >> 31) ? -q : q;
  out.r = e >= 105 ? __builtin_nan("") : e >= 16 ? far : out.r; out.q = (e >= 16 ? q : out.q) & 3;
  return out;
}

EW u32 tj_is_far(float x) { return ((tj_bits_of(x) >> 23) & 255) - 166 < 89u; }

EW double tj_sin_core(double r) {
  double z = r * r, p = 1.6059043836821613e-10;
  p = __builtin_fma(p, z, -2.505210838544172e-08); p = __builtin_fma(p, z, 2.7557319223985893e-06);
  p = __builtin_fma(p, z, -0.0001984126984126984); p = __builtin_fma(p, z, 0.008333333333333333); p = __builtin_fma(p, z, -0.16666666666666666);
  return __builtin_fma(p * z, r, r);
}

EW double tj_cos_core(double r) {
  double z = r * r, p = 2.08767569878681e-09;
  p = __builtin_fma(p, z, -2.755731922398589e-07); p = __builtin_fma(p, z, 2.48015873015873e-05); p = __builtin_fma(p, z, -0.001388888888888889);
  p = __builtin_fma(p, z, 0.041666666666666664); p = __builtin_fma(p, z, -0.5);
  return __builtin_fma(p, z, 1.);
}

EW float tj_sin_of(float x, tj_angle a) { i64 q = a.q; double r = a.r, v = q & 1 ? tj_cos_core(r) : tj_sin_core(r); return x == 0 ? x : (float)(q & 2 ? -v : v); }

EW float tj_sin_f(float x) { return tj_sin_of(x, tj_reduce(x)); }

EW float tj_cos_of(float x, tj_angle a) { i64 q = a.q; double r = a.r, v = q & 1 ? tj_sin_core(r) : tj_cos_core(r); return (float)((q + 1) & 2 ? -v : v); }

EW float tj_cos_f(float x) { return tj_cos_of(x, tj_reduce(x)); }

EW float tj_wave_near(float r, u32 q) {                      /* sin(r), of odd q cos(r), less than 0 for half of all q */
  float z = r * r, s = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(-0x1.9a83fep-13f, z, 0x1.110ba4p-7f), z, -0x1.555552p-3f) * z, r, r);
  float c = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(0x1.9ba0bap-16f, z, -0x1.6c1268p-10f), z, 0x1.555554p-5f), z, -0.5f);
  return tj_float_of(tj_bits_of(q & 1 ? __builtin_fmaf(c, z, 1.f) : s) ^ (q << 30 & 0x80000000u));
}

EW float tj_turned_near(u32 *far, float x, float *whole) {            /* x less whole quarter turns, |x| < 2^18; whole's last bits count */
  *far |= ((tj_bits_of(x) >> 23) & 255) - 145 < 110u;
  float w = __builtin_fmaf(x, 0x1.45f306p-1f, 0x1.8p23f), k = w - 0x1.8p23f;
  *whole = w;
  return __builtin_fmaf(k, 0x1.ee59dap-50f, __builtin_fmaf(k, 0x1.777a5cp-25f, __builtin_fmaf(k, -0x1.921fb6p+0f, x)));     /* the last is exact */
}

EW float tj_sin_near_f(u32 *far, float x) { float w, r = tj_turned_near(far, x, &w); return x == 0 ? x : tj_wave_near(r, tj_bits_of(w)); }

EW float tj_cos_near_f(u32 *far, float x) { float w, r = tj_turned_near(far, x, &w); return tj_wave_near(r, tj_bits_of(w) + 1); }

EW float tj_tan_of(float x, tj_angle a) { i64 q = a.q; double r = a.r, s = tj_sin_core(r), c = tj_cos_core(r); return x == 0 ? x : (float)(q & 1 ? -c / s : s / c); }

EW float tj_tan_f(float x) { return tj_tan_of(x, tj_reduce(x)); }

EW float tj_tan_near_f(u32 *far, float x) { *far |= tj_is_far(x); return tj_tan_of(x, tj_reduce_near(x)); }

EW float tj_pow_f(float x, float y) {
  double l = tj_log_wide(__builtin_fabs((double)x)), e = (double)y * l;
  e = y == 0 ? 0. : e;
  float v = (float)tj_exp_wide(e);
  int whole = __builtin_rintf(y) == y, odd = whole & (__builtin_fabsf(y) < 16777216.f) & (__builtin_rintf(y * 0.5f) != y * 0.5f);
  int negative = (int)(tj_bits_of(x) >> 31);
  v = negative & odd ? -v : v;
  v = (x < 0) & !whole & (x != -__builtin_inff()) ? __builtin_nanf("") : v;
  v = (x == -1.f) & (__builtin_fabsf(y) == __builtin_inff()) ? 1.f : v;
  v = (x != x) | (y != y) ? x + y : v;
  return (x == 1.f) | (y == 0) ? 1.f : v;
}

EW float tj_erf_f(float x) {
  float t = __builtin_fabsf(x), s = x * x, y = t > 4.f ? 4.f : t;
  float q = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(0x1.3413ae0000000p-20f, y, -0x1.35b7920000000p-16f), y, 0x1.c366f60000000p-14f), y, -0x1.40ce680000000p-14f), y, -0x1.7bce6e0000000p-9f), y, 0x1.79ae220000000p-6f), y, -0x1.b28c620000000p-4f), y, -0x1.4505380000000p-1f), y, -0x1.21037e0000000p+0f), y, 0x1.5a2afa0000000p-14f);
  float far = __builtin_copysignf(1.f - tj_exp_near_f(q), x);
  float p = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(-0x1.5febec0000000p-17f, s, 0x1.e2aab40000000p-14f), s, -0x1.be45de0000000p-11f), s, 0x1.5645180000000p-8f), s, -0x1.b82bbc0000000p-6f), s, 0x1.ce2f1a0000000p-4f), s, -0x1.8127460000000p-2f), s, 0x1.06eba80000000p-3f);
  return t < 0.9f ? __builtin_fmaf(p, x, x) : x != x ? x : far;
}

EW float tj_normal_cdf_f(float x) {                                  /* (1 + erf(x / sqrt 2)) / 2; the left tail does not cancel */
  float t = __builtin_fabsf(x), y = t > 5.8f ? 5.8f : t;
  float q = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(-0x1.a6f88a0000000p-26f, y, 0x1.72b4860000000p-21f), y, -0x1.1957bc0000000p-17f), y, 0x1.d80bbe0000000p-15f), y, -0x1.a5cadc0000000p-13f), y, 0x1.06925e0000000p-17f), y, 0x1.3b6e3a0000000p-8f), y, -0x1.29cbc20000000p-5f), y, -0x1.45f1f80000000p-2f), y, -0x1.98845e0000000p-1f) * y;
  float z = __builtin_fmaf(q, 0x1.715476p+0f, 0x1.8p23f + 126.f), n = z - (0x1.8p23f + 126.f);
  float e = tj_exp_poly(__builtin_fmaf(n, -0x1.62e43p-1f, q)) * tj_float_of(tj_bits_of(z) << 23);
  e = t > 5.8f ? 0.f : e;
  return x < 0 ? e : 1.f - e;
}

EW float tj_gelu_f(float v) { return v * tj_normal_cdf_f(v); }

EW float tj_gelu_bf16(float v) {                                     /* of bfloat16, relative error 2^-17: log2 of the left tail, and 2^that */
  float t = __builtin_fabsf(v), y = t > 5.8f ? 5.8f : t;
  float q = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(-0x1.ead3bcp-20f, y, 0x1.01e7e2p-14f), y, -0x1.e77c24p-11f), y, 0x1.16b5d8p-7f);
  q = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(__builtin_fmaf(q, y, -0x1.ba028ap-5f), y, -0x1.d57872p-2f), y, -0x1.26b856p+0f), y, -0x1.ffff64p-1f);
  float z = q + (0x1.8p23f + 127.f), r = q - (z - (0x1.8p23f + 127.f));
  float p = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(0x1.39979ep-7f, r, 0x1.ca1452p-5f), r, 0x1.ec06dcp-3f), r, 0x1.62e0dcp-1f);
  float e = __builtin_fmaf(p, r, 0x1.ffffe8p-1f) * tj_float_of(tj_bits_of(z) << 23);
  e = t > 5.8f ? 0.f : e;
  return v * (v < 0 ? e : 1.f - e);
}

EW float tj_gelu_tanh_f(float v) { float c = v * v * v, in = 0.7978845608028654f * (v + 0.044715f * c); return 0.5f * v * (1.f + tj_tanh_f(in)); }

EW float tj_gelu_backward_f(float g, float v) {
  float cdf = tj_normal_cdf_f(v), pdf = 0.3989422804014327f * tj_exp_f(v * v * -0.5f);
  return g * (cdf + v * pdf);
}

EW float tj_gelu_tanh_backward_f(float g, float v) {
  float s = v * v, t = tj_tanh_f(0.7978845608028654f * (v + 0.044715f * (s * v))), left = 0.5f * v, right = 1.f + t;
  return g * (0.5f * right + left * (1.f - t * t) * (0.7978845608028654f * (1.f + 3.f * 0.044715f * s)));
}

EW float tj_silu_backward_f(float g, float v) { float s = tj_sigmoid_f(v); return g * s * (1.f + v * (1.f - s)); }

EW float tj_softplus_f(float x, float b, float t) { return x * b > t ? x : tj_log1p_f(tj_exp_f(x * b)) / b; }

EW float tj_elu_f(float x, float n, float p, float i) { return x < 0 ? tj_expm1_f(x * i) * n : x * p; }
