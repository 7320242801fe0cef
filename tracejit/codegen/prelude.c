typedef unsigned int u32; typedef unsigned short u16; typedef long i64; typedef unsigned long u64; typedef unsigned char u8;
#define EW static inline __attribute__((always_inline))
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned);
extern int omp_get_thread_num(void), omp_get_num_threads(void);

EW float tj_float_of(u32 u) { float f; __builtin_memcpy(&f, &u, 4); return f; }

EW u32 tj_bits_of(float f) { u32 u; __builtin_memcpy(&u, &f, 4); return u; }

EW double tj_double_of(u64 u) { double f; __builtin_memcpy(&f, &u, 8); return f; }

EW u64 tj_bits_of_double(double f) { u64 u; __builtin_memcpy(&u, &f, 8); return u; }

EW float tj_neg_f(float x) { return tj_float_of(tj_bits_of(x) ^ 0x80000000u); }

EW double tj_neg_d(double x) { return tj_double_of(tj_bits_of_double(x) ^ 0x8000000000000000ul); }

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
EW void tj_prefetch(const void *at) { __builtin_prefetch(at, 0, 2); }    /* to be read, into the second-level cache */
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
