typedef unsigned int u32; typedef unsigned short u16; typedef long long i64; typedef unsigned long long u64; typedef unsigned char u8;
#define EW __device__ __forceinline__

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) tj_vec { T e[N]; };  /* tj_vec( */

template <int N, class T> EW tj_vec<T, N> tj_read(const T *p) { return *(const tj_vec<T, N> *)p; }  /* tj_read( */

template <int N, class T> EW void tj_write(T *p, const tj_vec<T, N> &v) { *(tj_vec<T, N> *)p = v; }  /* tj_write( */

#include <cuda_bf16.h>
EW float tj_from_bf16(u16 h) { return __bfloat162float(__ushort_as_bfloat16(h)); }
EW u16 tj_to_bf16(float f) { return __bfloat16_as_ushort(__float2bfloat16_rn(f)); }
EW float tj_round_bf16(float f) { return tj_from_bf16(tj_to_bf16(f)); }

#include <cuda_fp16.h>
EW float tj_from_f16(u16 h) { return __half2float(__ushort_as_half(h)); }
EW u16 tj_to_f16(float f) { return __half_as_ushort(__float2half_rn(f)); }
EW float tj_round_f16(float f) { return tj_from_f16(tj_to_f16(f)); }

EW int tj_signbit_f(float f) { return __float_as_uint(f) >> 31; }

EW int tj_signbit_d(double f) { return __double_as_longlong(f) < 0; }

extern "C" __device__ void __assertfail(const char *, const char *, unsigned, const char *, size_t);
EW i64 tj_checked(i64 i, i64 n, int wraps, int valid, const char *message) {
  if (wraps && i < 0) i += n;
  if (i >= 0 && i < n) return i;
  if (valid) __assertfail(message, TJ_FILE, TJ_LINE, TJ_FUNCTION, 1);
  return 0;
}

EW i64 tj_floor_quotient(i64 a, i64 k) { return a >= 0 ? a / k : -((k - 1 - a) / k); }

EW i64 tj_floor_remainder(i64 a, i64 k) { i64 m = a % k; return m < 0 ? m + k : m; }

#define TO_INT(t, s) EW t tj_to_##s##_f(float x) { return (t)(i64)x; } EW t tj_to_##s##_d(double x) { return (t)(i64)x; }
#define TO_SMALL(t, s) EW t tj_to_##s##_f(float x) { return (t)(int)x; } EW t tj_to_##s##_d(double x) { return (t)(int)x; }
TO_INT(i64, l) TO_SMALL(int, i) TO_SMALL(short, h) TO_SMALL(signed char, b) TO_INT(u8, u) /* tj_to_l_f( tj_to_l_d( tj_to_i_f( tj_to_i_d( tj_to_h_f( tj_to_h_d( tj_to_b_f( tj_to_b_d( tj_to_u_f( tj_to_u_d( */

#define DIVISIONS(t, s) \
  EW t tj_mod_##s(t a, t b) { if (b == -1) return 0; t m = a % b; return m != 0 && (b < 0) != (m < 0) ? m + b : m; } \
  EW t tj_fmod_##s(t a, t b) { return b == -1 ? 0 : a % b; } \
  EW t tj_div_trunc_##s(t a, t b) { return b == -1 ? (t)(0 - (u64)a) : a / b; } \
  EW t tj_div_floor_##s(t a, t b) { if (b == -1) return (t)(0 - (u64)a); t q = a / b; return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q; }
DIVISIONS(i64, l) DIVISIONS(int, i) DIVISIONS(short, h) DIVISIONS(signed char, b) /* tj_mod_l( tj_mod_i( tj_mod_h( tj_mod_b( tj_fmod_l( tj_fmod_i( tj_fmod_h( tj_fmod_b( tj_div_trunc_l( tj_div_trunc_i( tj_div_trunc_h( tj_div_trunc_b( tj_div_floor_l( tj_div_floor_i( tj_div_floor_h( tj_div_floor_b( */

EW u8 tj_mod_u(u8 a, u8 b) { return a % b; }

EW u8 tj_fmod_u(u8 a, u8 b) { return a % b; }

EW u8 tj_div_trunc_u(u8 a, u8 b) { return a / b; }

EW u8 tj_div_floor_u(u8 a, u8 b) { return a / b; }

#define REAL(t, s, f) \
  EW t tj_fmod_##s(t a, t b) { return fmod##f(a, b); } \
  EW t tj_mod_##s(t a, t b) { t m = fmod##f(a, b); return m != 0 && (b < 0) != (m < 0) ? m + b : m; } \
  EW t tj_div_floor_##s(t a, t b) { \
    if (b == 0) return a / b; \
    t m = fmod##f(a, b), d = (a - m) / b; \
    if (m != 0 && (b < 0) != (m < 0)) d -= 1; \
    if (d == 0) return copysign##f((t)0, a / b); \
    t q = floor##f(d); \
    return d - q > (t)0.5 ? q + 1 : q; }
REAL(float, f, f) REAL(double, d, ) /* tj_fmod_f( tj_fmod_d( tj_mod_f( tj_mod_d( tj_div_floor_f( tj_div_floor_d( */

#define ACTIVATIONS(t, s, f) \
  EW t tj_lerp_##s(t a, t b, t w) { int near = fabs##f(w) < (t)0.5; return fma##f(near ? w : w - 1, b - a, near ? a : b); } \
  EW t tj_sigmoid_##s(t x) { t e = exp##f(-fabs##f(x)); return (x < 0 ? e : 1) / (1 + e); } \
  EW t tj_softplus_##s(t x, t b, t h) { return x * b > h ? x : log1p##f(exp##f(x * b)) / b; } \
  EW t tj_elu_##s(t x, t n, t p, t i) { return x < 0 ? expm1##f(x * i) * n : x * p; } \
  EW t tj_cdf_##s(t v) { t x = v * (t)0.70710678118654752440; return (t)0.5 * (x < 0 ? erfc##f(-x) : 1 + erf##f(x)); } \
  EW t tj_gelu_##s(t v) { return v * tj_cdf_##s(v); } \
  EW t tj_gelu_backward_##s(t g, t v) { return g * (tj_cdf_##s(v) + v * ((t)0.39894228040143267794 * exp##f(v * v * (t)-0.5))); } \
  EW t tj_gelu_tanh_##s(t v) { t in = (t)0.79788456080286535588 * (v + (t)0.044715 * (v * v * v)); return (t)0.5 * v * (1 + tanh##f(in)); } \
  EW t tj_gelu_tanh_backward_##s(t g, t v) { \
    t z = v * v, h = tanh##f((t)0.79788456080286535588 * (v + (t)0.044715 * (z * v))), left = (t)0.5 * v, right = 1 + h; \
    return g * ((t)0.5 * right + left * (1 - h * h) * ((t)0.79788456080286535588 * (1 + 3 * (t)0.044715 * z))); } \
  EW t tj_silu_backward_##s(t g, t v) { t z = tj_sigmoid_##s(v); return g * z * (1 + v * (1 - z)); }
ACTIVATIONS(float, f, f) ACTIVATIONS(double, d, ) /* tj_lerp_f( tj_lerp_d( tj_sigmoid_f( tj_sigmoid_d( tj_softplus_f( tj_softplus_d( tj_elu_f( tj_elu_d( tj_gelu_f( tj_gelu_d( tj_gelu_backward_f( tj_gelu_backward_d( tj_gelu_tanh_f( tj_gelu_tanh_d( tj_gelu_tanh_backward_f( tj_gelu_tanh_backward_d( tj_silu_backward_f( tj_silu_backward_d( */

EW float tj_neg_f(float x) { return __int_as_float(__float_as_uint(x) ^ 0x80000000u); }
EW double tj_neg_d(double x) { return __longlong_as_double(__double_as_longlong(x) ^ 0x8000000000000000ll); } /* tj_neg_f( tj_neg_d( */

EW float tj_gelu_bf16(float v) { return tj_gelu_f(v); }

template <class T> struct tj_wrapping { typedef T type; };  /* tj_wrapping( */
template <> struct tj_wrapping<int> { typedef u32 type; };
template <> struct tj_wrapping<i64> { typedef u64 type; };

struct tj_sum { /* tj_sum( */ template <class T> static EW T fold(T a, T b) { typedef typename tj_wrapping<T>::type W; return (W)a + (W)b; } };

struct tj_prod { /* tj_prod( */ template <class T> static EW T fold(T a, T b) { typedef typename tj_wrapping<T>::type W; return (W)a * (W)b; } };

struct tj_any { /* tj_any( */ template <class T> static EW T fold(T a, T b) { return a | b; } };

struct tj_all { /* tj_all( */ template <class T> static EW T fold(T a, T b) { return a & b; } };

struct tj_max { template <class T> static EW T fold(T a, T b) { return b > a || b != b ? b : a; } };  /* NaN stays: tj_max( */

struct tj_min { template <class T> static EW T fold(T a, T b) { return b < a || b != b ? b : a; } };  /* NaN stays: tj_min( */

template <class F, int LANES, class T> EW T tj_across(T v, u32 mask) {  /* tj_across( of LANES neighbours, all of which are in the mask */
  for (int o = LANES / 2; o; o >>= 1) v = F::fold(v, __shfl_xor_sync(mask, v, o));
  return v;
}

template <class F, int THREADS, class T, class S> EW T tj_block(T v, S &s) {  /* tj_block( s: one element a warp, used once */
  v = tj_across<F, 32>(v, 0xffffffffu);
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  v = s[threadIdx.x % (THREADS / 32)];
  return tj_across<F, THREADS / 32>(v, 0xffffffffu);
}
