typedef unsigned int u32; typedef unsigned short u16; typedef long i64; typedef unsigned long u64; typedef unsigned char u8;
#define EW static inline __attribute__((always_inline))
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned);
extern int omp_get_thread_num(void), omp_get_num_threads(void);

EW float tj_float_of(u32 u) { float f; __builtin_memcpy(&f, &u, 4); return f; }

EW u32 tj_bits_of(float f) { u32 u; __builtin_memcpy(&u, &f, 4); return u; }

EW double tj_double_of(u64 u) { double f; __builtin_memcpy(&f, &u, 8); return f; }

EW u64 tj_bits_of_double(double f) { u64 u; __builtin_memcpy(&u, &f, 8); return u; }

EW int tj_signbit_f(float f) { return tj_bits_of(f) >> 31; }

EW int tj_signbit_d(double f) { return tj_bits_of_double(f) >> 63; }

EW float tj_from_bf16(u16 h) { return tj_float_of((u32)h << 16); }

EW u16 tj_to_bf16(float f) { u32 u = tj_bits_of(f); u32 r = (u + 0x7fffu + ((u >> 16) & 1)) >> 16; return f != f ? 0x7fc0 : r; }

EW u16 tj_to_bf16_quiet(float f) { u32 u = tj_bits_of(f); return (u + 0x7fffu + ((u >> 16) & 1)) >> 16; }  /* NaNs end in 16 zeros */

EW float tj_round_bf16_quiet(float f) { u32 u = tj_bits_of(f); return tj_float_of((u + 0x7fffu + ((u >> 16) & 1)) & 0xffff0000u); }

EW float tj_round_bf16(float f) { return tj_from_bf16(tj_to_bf16(f)); }

EW float tj_from_f16(u16 h) {
  u32 m = (u32)(h & 0x7fff) << 13, s = (u32)(h & 0x8000) << 16;
  float finite = tj_float_of(m) * 0x1p112f;                        /* denormals too: an exact product */
  return tj_float_of((m >= (31u << 23) ? m + (224u << 23) : tj_bits_of(finite)) | s);
}

EW u16 tj_to_f16(float f) {
  u32 u = tj_bits_of(f), s = (u >> 16) & 0x8000, a = u & 0x7fffffff;
  u32 normal = (a + 0xfffu + ((a >> 13) & 1) - (112u << 23)) >> 13;  /* ties to even */
  u32 small = tj_bits_of(tj_float_of(a) + 0.5f) - 0x3f000000u;      /* below 2^-14: the sum rounds at the right place */
  u32 r = a > 0x7f800000u ? 0x7e00 : a >= 0x477ff000u ? 0x7c00 : a < 0x38800000u ? small : normal;
  return r | s;
}

EW float tj_round_f16(float f) { return tj_from_f16(tj_to_f16(f)); }

EW i64 tj_checked(i64 i, i64 n, int wraps, int error, int valid, int *err) {
  if (wraps && i < 0) i += n;
  int bad = (i < 0) | (i >= n);
  if (bad & valid) *err = error;
  return bad ? 0 : i;
}

/* Python's `**`: never x * x for an exponent of 2, which rounds otherwise. */
EW double tj_number_pow(double x, double exponent) { volatile double y = exponent; return __builtin_pow(x, y); }

#define NONZERO(t, s) EW t tj_nonzero_##s(t d, int valid, int *err) { if (d == 0) { if (valid) *err = 3; return 1; } return d; }
NONZERO(i64, l) NONZERO(int, i) NONZERO(short, h) NONZERO(signed char, b) NONZERO(u8, u) /* tj_nonzero_l( tj_nonzero_i( tj_nonzero_h( tj_nonzero_b( tj_nonzero_u( */

EW i64 tj_floor_quotient(i64 a, i64 k) { return a >= 0 ? a / k : -((k - 1 - a) / k); }

EW i64 tj_floor_remainder(i64 a, i64 k) { i64 m = a % k; return m < 0 ? m + k : m; }

#define TO_INT(t, s) EW t tj_to_##s##_f(float x) { return (t)(i64)x; } EW t tj_to_##s##_d(double x) { return (t)(i64)x; }
#define TO_SMALL(t, s) EW t tj_to_##s##_f(float x) { return (t)(int)x; } EW t tj_to_##s##_d(double x) { return (t)(int)x; }
TO_INT(i64, l) TO_SMALL(int, i) TO_SMALL(short, h) TO_SMALL(signed char, b) TO_INT(u8, u) /* tj_to_l_f( tj_to_l_d( tj_to_i_f( tj_to_i_d( tj_to_h_f( tj_to_h_d( tj_to_b_f( tj_to_b_d( tj_to_u_f( tj_to_u_d( */

#define DIVISIONS(t, s) \
  EW t tj_mod_##s(t a, t b) { if (b == -1) return 0; t m = a % b; return m != 0 && (b < 0) != (m < 0) ? m + b : m; } \
  EW t tj_fmod_##s(t a, t b) { return b == -1 ? 0 : a % b; } \
  EW t tj_div_trunc_##s(t a, t b) { return b == -1 ? -a : a / b; } \
  EW t tj_div_floor_##s(t a, t b) { if (b == -1) return -a; t q = a / b; return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q; }
DIVISIONS(i64, l) DIVISIONS(int, i) DIVISIONS(short, h) DIVISIONS(signed char, b) /* tj_mod_l( tj_mod_i( tj_mod_h( tj_mod_b( tj_fmod_l( tj_fmod_i( tj_fmod_h( tj_fmod_b( tj_div_trunc_l( tj_div_trunc_i( tj_div_trunc_h( tj_div_trunc_b( tj_div_floor_l( tj_div_floor_i( tj_div_floor_h( tj_div_floor_b( */

EW u8 tj_mod_u(u8 a, u8 b) { return a % b; }

EW u8 tj_fmod_u(u8 a, u8 b) { return a % b; }

EW u8 tj_div_trunc_u(u8 a, u8 b) { return a / b; }

EW u8 tj_div_floor_u(u8 a, u8 b) { return a / b; }

EW float tj_mod_f(float a, float b) { float m = __builtin_fmodf(a, b); return m != 0 && (b < 0) != (m < 0) ? m + b : m; }

EW double tj_mod_d(double a, double b) { double m = __builtin_fmod(a, b); return m != 0 && (b < 0) != (m < 0) ? m + b : m; }

EW float tj_div_floor_f(float a, float b) {
  if (b == 0) return a / b;
  float m = __builtin_fmodf(a, b), d = (a - m) / b;
  if (m != 0 && (b < 0) != (m < 0)) d -= 1;
  if (d == 0) return __builtin_copysignf(0.f, a / b);
  float q = __builtin_floorf(d);
  return d - q > 0.5f ? q + 1 : q;
}

EW double tj_div_floor_d(double a, double b) {
  if (b == 0) return a / b;
  double m = __builtin_fmod(a, b), d = (a - m) / b;
  if (m != 0 && (b < 0) != (m < 0)) d -= 1;
  if (d == 0) return __builtin_copysign(0., a / b);
  double q = __builtin_floor(d);
  return d - q > 0.5 ? q + 1 : q;
}

EW float tj_lerp_f(float s, float e, float w) { int near = __builtin_fabsf(w) < 0.5f; return __builtin_fmaf(near ? w : w - 1, e - s, near ? s : e); }

EW double tj_lerp_d(double s, double e, double w) { int near = __builtin_fabs(w) < 0.5; return __builtin_fma(near ? w : w - 1, e - s, near ? s : e); }

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

EW double tj_scale(double p, double n) { return p * tj_double_of((u64)((i64)n + 1023) << 52); }

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
  double s = tj_double_of((u64)((i64)(n != n ? 0. : n) + 1023) << 52);
  return __builtin_fma(s, tj_expm1_core(r), s - 1.);
}

EW double tj_exp_wide(double x) {
  double y = x > 200. ? 200. : x; y = y < -200. ? -200. : y;
  double n = __builtin_rint(y * 1.4426950408889634);
  double r = __builtin_fma(n, -0x1.62e42fefa39efp-1, y); r = __builtin_fma(n, -0x1.abc9e3b39803fp-56, r);
  return tj_scale(1. + tj_expm1_core(r), n != n ? 0. : n);
}

EW double tj_atanh_series(double s) {                                /* 2 atanh(s), |s| <= 0.172 */
  double z = s * s, p = 2. / 19;
  p = __builtin_fma(p, z, 2. / 17); p = __builtin_fma(p, z, 2. / 15); p = __builtin_fma(p, z, 2. / 13); p = __builtin_fma(p, z, 2. / 11);
  p = __builtin_fma(p, z, 2. / 9); p = __builtin_fma(p, z, 2. / 7); p = __builtin_fma(p, z, 2. / 5); p = __builtin_fma(p, z, 2. / 3);
  return __builtin_fma(p * z, s, 2. * s);
}

EW double tj_log_wide(double x) {                                    /* of floats and sums of two: no double denormals */
  u64 u = tj_bits_of_double(x), t = u - 0x3fe6a09e00000000ul;
  double n = (double)((i64)t >> 52), m = tj_double_of(u - (t & 0xfff0000000000000ul)), f = m - 1.;
  double v = __builtin_fma(n, 0.6931471805599453, tj_atanh_series(f / (2. + f)));
  v = x == 0 ? -__builtin_inf() : v; v = x < 0 ? __builtin_nan("") : v;
  return x == __builtin_inf() || x != x ? x : v;
}

EW float tj_log_f(float x) { return (float)tj_log_wide(x); }

EW float tj_log2_f(float x) { return (float)(tj_log_wide(x) * 1.4426950408889634); }

EW float tj_log10_f(float x) { return (float)(tj_log_wide(x) * 0.4342944819032518); }

EW float tj_log1p_f(float x) {
  double d = x, near = tj_atanh_series(d / (2. + d)), far = tj_log_wide(1. + d);
  return x > -0.25f && x < 0.375f ? (x == 0 ? x : (float)near) : (float)far;
}

EW float tj_exp2_f(float x) { return (float)tj_exp_wide((double)x * 0.6931471805599453); }

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

EW double tj_sigmoid_d(double x) { double e = __builtin_exp(-__builtin_fabs(x)); return (x < 0 ? e : 1.) / (1. + e); }

typedef struct { double r; i64 q; } angle_t;
EW angle_t tj_reduce_near(float x) {                   /* x less whole quarter turns, in [-pi/4, pi/4]; |x| < 2^39, or not finite */
  double d = x, whole = d * 0x1.45f306dc9c883p-1 + 0x1.8p52, k = whole - 0x1.8p52;     /* whole's last bits count */
  double r = __builtin_fma(k, -0x1.921fb54442d18p+0, d); r = __builtin_fma(k, -0x1.1a62633145c07p-54, r);
  angle_t out = {r, (i64)tj_bits_of_double(whole) & 3};
  return out;
}

#define TJ_WORD(a, b, c, d) (i & 2 ? (i & 1 ? (d) : (c)) : (i & 1 ? (b) : (a)))    /* a table's loads would be gathered one by one */
EW angle_t tj_reduce(float x) {
  angle_t out = tj_reduce_near(x);
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

EW float tj_sin_of(float x, angle_t a) { i64 q = a.q; double r = a.r, v = q & 1 ? tj_cos_core(r) : tj_sin_core(r); return x == 0 ? x : (float)(q & 2 ? -v : v); }

EW float tj_sin_f(float x) { return tj_sin_of(x, tj_reduce(x)); }

EW float tj_sin_near_f(u32 *far, float x) { *far |= tj_is_far(x); return tj_sin_of(x, tj_reduce_near(x)); }

EW float tj_cos_of(float x, angle_t a) { i64 q = a.q; double r = a.r, v = q & 1 ? tj_sin_core(r) : tj_cos_core(r); return (float)((q + 1) & 2 ? -v : v); }

EW float tj_cos_f(float x) { return tj_cos_of(x, tj_reduce(x)); }

EW float tj_cos_near_f(u32 *far, float x) { *far |= tj_is_far(x); return tj_cos_of(x, tj_reduce_near(x)); }

EW float tj_tan_of(float x, angle_t a) { i64 q = a.q; double r = a.r, s = tj_sin_core(r), c = tj_cos_core(r); return x == 0 ? x : (float)(q & 1 ? -c / s : s / c); }

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

EW double tj_gelu_d(double v) { return v * 0.5 * (1. + __builtin_erf(v * 0.70710678118654752440)); }

EW float tj_gelu_tanh_f(float v) { float c = v * v * v, in = 0.7978845608028654f * (v + 0.044715f * c); return 0.5f * v * (1.f + tj_tanh_f(in)); }

EW double tj_gelu_tanh_d(double v) { double c = v * v * v, in = 0.7978845608028654 * (v + 0.044715 * c); return 0.5 * v * (1. + __builtin_tanh(in)); }

EW float tj_gelu_backward_f(float g, float v) {
  float cdf = tj_normal_cdf_f(v), pdf = 0.3989422804014327f * tj_exp_f(v * v * -0.5f);
  return g * (cdf + v * pdf);
}

EW double tj_gelu_backward_d(double g, double v) {
  double cdf = 0.5 * (1. + __builtin_erf(v * 0.70710678118654752440)), pdf = 0.3989422804014327 * __builtin_exp(v * v * -0.5);
  return g * (cdf + v * pdf);
}

EW float tj_gelu_tanh_backward_f(float g, float v) {
  float s = v * v, t = tj_tanh_f(0.7978845608028654f * (v + 0.044715f * (s * v))), left = 0.5f * v, right = 1.f + t;
  return g * (0.5f * right + left * (1.f - t * t) * (0.7978845608028654f * (1.f + 3.f * 0.044715f * s)));
}

EW double tj_gelu_tanh_backward_d(double g, double v) {
  double s = v * v, t = __builtin_tanh(0.7978845608028654 * (v + 0.044715 * (s * v))), left = 0.5 * v, right = 1. + t;
  return g * (0.5 * right + left * (1. - t * t) * (0.7978845608028654 * (1. + 3. * 0.044715 * s)));
}

EW float tj_silu_backward_f(float g, float v) { float s = tj_sigmoid_f(v); return g * s * (1.f + v * (1.f - s)); }

EW double tj_silu_backward_d(double g, double v) { double s = tj_sigmoid_d(v); return g * s * (1. + v * (1. - s)); }

EW float tj_softplus_f(float x, float b, float t) { return x * b > t ? x : tj_log1p_f(tj_exp_f(x * b)) / b; }

EW double tj_softplus_d(double x, double b, double t) { return x * b > t ? x : __builtin_log1p(__builtin_exp(x * b)) / b; }

EW float tj_elu_f(float x, float n, float p, float i) { return x < 0 ? tj_expm1_f(x * i) * n : x * p; }

EW double tj_elu_d(double x, double n, double p, double i) { return x < 0 ? __builtin_expm1(x * i) * n : x * p; }

typedef u32 v16_t __attribute__((vector_size(64), aligned(4), may_alias));
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (v16_t){__VA_ARGS__})
#endif
EW void tj_turn16(v16_t *r) {                                        /* 16 x 16 words: pairs, quadruples, then lanes of 128 bits */
  v16_t s[16];
  #pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    s[i] = SHUFFLE(r[i], r[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    s[i + 1] = SHUFFLE(r[i], r[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  #pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = SHUFFLE(s[i], s[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    r[i + 1] = SHUFFLE(s[i], s[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    r[i + 2] = SHUFFLE(s[i + 1], s[i + 3], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    r[i + 3] = SHUFFLE(s[i + 1], s[i + 3], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  #pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
    v16_t a = SHUFFLE(r[c], r[c + 4], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    v16_t b = SHUFFLE(r[c], r[c + 4], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    v16_t d = SHUFFLE(r[c + 8], r[c + 12], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    v16_t e = SHUFFLE(r[c + 8], r[c + 12], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    r[c] = SHUFFLE(a, d, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    r[c + 4] = SHUFFLE(b, e, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    r[c + 8] = SHUFFLE(a, d, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    r[c + 12] = SHUFFLE(b, e, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
}

typedef u16 v16_half_t __attribute__((vector_size(32), aligned(2), may_alias));
typedef u8 v16_byte_t __attribute__((vector_size(16), aligned(1), may_alias));
#define TRANSPOSE(name, element, vector) \
  EW void name(const void *from, i64 step, void *to, i64 width) { \
    v16_t r[16]; \
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) r[i] = __builtin_convertvector(*(const vector *)((const element *)from + i * step), v16_t); \
    tj_turn16(r); \
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) *(vector *)((element *)to + i * width) = __builtin_convertvector(r[i], vector); }
TRANSPOSE(tj_transpose_words, u32, v16_t) TRANSPOSE(tj_transpose_halves, u16, v16_half_t) TRANSPOSE(tj_transpose_bytes, u8, v16_byte_t) /* tj_transpose_words( tj_transpose_halves( tj_transpose_bytes( */

#ifdef __AVX512F__
#define LINE_PART 64
#elif defined(__AVX__)
#define LINE_PART 32
#else
#define LINE_PART 16
#endif
typedef float line_t __attribute__((vector_size(LINE_PART), aligned(4), may_alias));
typedef float aligned_line_t __attribute__((vector_size(LINE_PART), may_alias));
#ifdef __clang__
#define STREAM(to, x) __builtin_nontemporal_store(x, (aligned_line_t *)(to))
#elif defined(__AVX512F__)
#define STREAM(to, x) __builtin_ia32_movntps512((float *)(to), x)
#elif defined(__AVX__)
#define STREAM(to, x) __builtin_ia32_movntps256((float *)(to), x)
#elif defined(__SSE__)
#define STREAM(to, x) __builtin_ia32_movntps((float *)(to), x)
#else
#define STREAM(to, x) (*(aligned_line_t *)(to) = x)
#endif
EW void tj_stream(void *to, const void *from, i64 n) {               /* past the caches, in whole lines */
  char *t = to; const char *f = from; i64 i = -(i64)t & 63;
  i = i < n ? i : n;
  if (i) __builtin_memcpy(t, f, i);
  for (; i + 64 <= n; i += 64)
    for (int k = 0; k < 64; k += LINE_PART) STREAM(t + i + k, *(const line_t *)(f + i + k));
  if (i < n) __builtin_memcpy(t + i, f + i, n - i);
}

#ifdef __SSE__
EW void tj_stream_end(void) { __builtin_ia32_sfence(); }
#else
EW void tj_stream_end(void) { }
#endif
