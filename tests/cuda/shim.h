// CUDA C++ on the CPU: included before the text of a kernel, which is compiled as it stands, but for the types of its
// pointers and shared arrays, whose every access is checked: bounds, alignment, races, memory that nobody wrote.
// One block at a time. The threads of a kernel that synchronizes are fibers; others are plain calls.
#pragma once
#include <alloca.h>
#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <ucontext.h>
#include <vector>
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)

namespace shim {

enum State { RUN, WARP, BARRIER, DONE };
struct Id { unsigned x, y; };
struct Fiber { ucontext_t context; std::vector<char> stack; State state; unsigned mask, rounds; int line; };
struct Options { int order; uint64_t seed; };                  // order: 0 as numbered, 1 reversed, 2 random
struct Buffer { char *start; int64_t bytes; uint16_t *loads, *stores; };

struct SharedBase { virtual void reset() = 0; };
typedef std::vector<SharedBase *> SharedArrays;

extern Id thread, block, blocks, threads;
extern unsigned epoch;                                         // barriers that the block has passed
extern std::vector<Fiber> all;
extern std::vector<uint64_t> slots[2];                         // what lanes exchange

// In the runtime, which is compiled once.
[[noreturn]] void fail(const char *format, ...);
void wait_as(State state);
int launch(const char *name, bool synchronizes, void (*body)(void **), void **arguments, Id grid, unsigned width,
           const Options &o, char *text, const SharedArrays &shared);

// ---- memory

struct Shadow {                                                // who wrote and who read last, and when
  uint32_t writer = 0, reader = 0, written = 0, read = 0;
  bool several = false;                                        // several threads read since the last barrier
  bool apart = false;                                          // several blocks read

  static uint32_t number() { return (block.y * blocks.x + block.x) * threads.x + thread.x + 1; }
  static bool ordered(uint32_t who, uint32_t when) {           // before what the current thread does now?
    uint32_t me = number();
    return !who || who == me || ((who - 1) / threads.x == (me - 1) / threads.x && when < epoch);
  }
  void note(bool write, const char *what, int64_t at) {
    uint32_t me = number();
    if (!ordered(writer, written)) fail("a race on %s[%lld] with thread %u of block %u, which wrote it", what, (long long)at,
                                        (writer - 1) % threads.x, (writer - 1) / threads.x);
    if (write && (apart || !ordered(reader, read) || (several && read == epoch)))
      fail("a race on %s[%lld] with thread %u of block %u, which read it", what, (long long)at, (reader - 1) % threads.x,
           (reader - 1) / threads.x);
    if (write) { writer = me; written = epoch; several = apart = false; reader = 0; }
    else {
      apart = apart || reader && (reader - 1) / threads.x != (me - 1) / threads.x;
      several = several && read == epoch ? true : reader && reader != me && read == epoch;
      reader = me; read = epoch;
    }
  }
};

Shadow *shadows_of(const Buffer &b, int64_t size);               // one for all pointers to the same memory

template <class T> struct Memory {                             // one parameter: T may be const
  typedef typename std::remove_const<T>::type Element;
  T *start;
  int64_t count;
  Buffer *buffer;
  Shadow *shadows;
  const char *name;

  void check(int64_t i, int n, bool write) const {
    if (i < 0 || i + n > count) fail("%s of %s[%lld], which has %lld elements", write ? "store" : "load", name, (long long)i, (long long)count);
    if ((uint64_t)(start + i) % (sizeof(T) * n < 16 ? sizeof(T) * n : 16)) fail("misaligned access to %d elements at %s[%lld]", n, name, (long long)i);
    for (int64_t k = i; k < i + n; k++) {
      shadows[k].note(write, name, k);
      (write ? buffer->stores : buffer->loads)[k]++;
    }
  }
};

template <class T> struct Element {                            // what stands at an index
  const Memory<T> *m;
  int64_t at;
  typedef typename Memory<T>::Element V;
  operator V() const { m->check(at, 1, false); return m->start[at]; }
  V operator+() const { return *this; }
  V operator=(V v) const { m->check(at, 1, true); m->start[at] = v; return v; }
  V operator=(const Element &e) const { return *this = (V)e; }
};

template <class T> struct Pointer {
  const Memory<T> *m;
  int64_t at;
  Pointer operator+(int64_t n) const { return {m, at + n}; }
  Element<T> operator[](int64_t n) const { return {m, at + n}; }
};

static SharedArrays shared_arrays;                             // of this text

template <class T, int N> struct Shared : SharedBase {
  T values[N];
  Shadow shadows[N];
  bool known[N];
  const char *name;
  explicit Shared(const char *name) : name(name) { shared_arrays.push_back(this); reset(); }
  void reset() override { memset((void *)values, 0xff, sizeof values); for (int i = 0; i < N; i++) { shadows[i] = Shadow(); known[i] = false; } }
  struct Place {
    Shared *s;
    int64_t at;
    void check(bool write) const {
      if (at < 0 || at >= N) fail("%s[%lld], which has %d elements", s->name, (long long)at, N);
      if (!write && !s->known[at]) fail("%s[%lld] is read, and nobody wrote it", s->name, (long long)at);
      s->shadows[at].note(write, s->name, at);
    }
    operator T() const { check(false); return s->values[at]; }
    T operator=(T v) const { check(true); s->known[at] = true; return s->values[at] = v; }
  };
  Place operator[](int64_t at) { return {this, at}; }
};

template <class T> T exchanged(unsigned mask, T v, unsigned other) {
  static_assert(sizeof(T) <= 8, "");
  unsigned lane = thread.x % 32, me = thread.x;
  if (!(mask >> lane & 1)) fail("calls a warp intrinsic, and is not in its mask");
  if (!(mask >> other & 1)) fail("takes the value of lane %u, which is not in the mask", other);
  Fiber &f = all[me];
  unsigned parity = f.rounds & 1;
  memcpy(&slots[parity][me], &v, sizeof v);
  f.mask = mask;
  wait_as(WARP);
  f.rounds++;
  T r;
  memcpy(&r, &slots[parity][me / 32 * 32 + other], sizeof r);
  return r;
}

}  // namespace shim

using std::isfinite, std::isinf, std::isnan, std::signbit;
#define threadIdx (shim::thread)
#define blockIdx (shim::block)
#define gridDim (shim::blocks)
#define __syncthreads() (shim::all[shim::thread.x].line = __LINE__, shim::wait_as(shim::BARRIER))
#define __shfl_xor_sync(mask, v, o) shim::exchanged(mask, v, (shim::thread.x % 32) ^ (o))
#define __syncwarp(mask) ((void)shim::exchanged(mask, 0, shim::thread.x % 32))
static inline float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned i; memcpy(&i, &f, 4); return i; }
static inline double __longlong_as_double(long long i) { double f; memcpy(&f, &i, 8); return f; }
static inline long long __double_as_longlong(double f) { long long i; memcpy(&i, &f, 8); return i; }
struct __nv_bfloat16 { unsigned short bits; };                 // what the kernels use of cuda_bf16.h and cuda_fp16.h
struct __half { unsigned short bits; };
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { return {u}; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
static inline float __bfloat162float(__nv_bfloat16 b) { return __int_as_float(b.bits << 16); }
static inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  unsigned u = __float_as_uint(f);
  return {(unsigned short)(f != f ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
static inline __half __ushort_as_half(unsigned short u) { return {u}; }
static inline unsigned short __half_as_ushort(__half h) { return h.bits; }
static inline float __half2float(__half h) { _Float16 f; memcpy(&f, &h.bits, 2); return (float)f; }
static inline __half __float2half_rn(float x) {
  _Float16 f = (_Float16)x;
  __half h = {0x7fff};
  if (x == x) memcpy(&h.bits, &f, 2);
  return h;
}
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
