// CUDA C++ on the CPU: included before the text of a kernel, which is compiled as it stands, but for the types of its
// pointers and shared arrays, whose every access is checked: bounds, alignment, races, memory that nobody wrote.
// One block at a time. The threads of a kernel that synchronizes are fibers; others are plain calls.
#pragma once
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
#define __launch_bounds__(...)

namespace shim {

enum State { RUN, WARP, BARRIER, DONE };
struct Id { unsigned x; };
struct Fiber { ucontext_t context; std::vector<char> stack; State state; unsigned mask, rounds; int line; };
struct Options { int order; uint64_t seed; };                  // order: 0 as numbered, 1 reversed, 2 random
struct Buffer { char *start; int64_t bytes; uint16_t *loads, *stores; };

static Id thread, block, blocks, threads;
static unsigned epoch;                                         // barriers that the block has passed
static bool fibers;
static char *message;
static sigjmp_buf out;
static std::vector<Fiber> all;
static ucontext_t scheduler;
static std::vector<uint64_t> slots[2];                         // what lanes exchange
static uint64_t state_of_random;
static const char *kernel = "";

static uint64_t random_number() {
  state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
  return state_of_random >> 33;
}

[[noreturn]] static void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int n = snprintf(message, 400, "%s, block %u, thread %u: ", kernel, block.x, thread.x);
  vsnprintf(message + n, 400 - n, format, arguments);
  va_end(arguments);
  siglongjmp(out, 1);
}

static void wait_as(State state) {
  Fiber &f = all[thread.x];
  f.state = state;
  unsigned me = thread.x;
  swapcontext(&f.context, &scheduler);
  thread.x = me;
}

// ---- memory

struct Shadow {                                                // who wrote and who read last, and when
  uint32_t writer = 0, reader = 0, written = 0, read = 0;
  bool several = false;                                        // several threads read since the last barrier

  static bool ordered(uint32_t who, uint32_t when) {           // before what the current thread does now?
    uint32_t me = block.x * threads.x + thread.x + 1;
    return !who || who == me || ((who - 1) / threads.x == block.x && when < epoch);
  }
  void note(bool write, const char *what, int64_t at) {
    uint32_t me = block.x * threads.x + thread.x + 1;
    if (!ordered(writer, written)) fail("a race on %s[%lld] with thread %u of block %u, which wrote it", what, (long long)at,
                                        (writer - 1) % threads.x, (writer - 1) / threads.x);
    if (write && (!ordered(reader, read) || (several && read == epoch)))
      fail("a race on %s[%lld] with thread %u of block %u, which read it", what, (long long)at, (reader - 1) % threads.x,
           (reader - 1) / threads.x);
    if (write) { writer = me; written = epoch; several = false; reader = 0; }
    else { several = several && read == epoch ? true : reader && reader != me && read == epoch; reader = me; read = epoch; }
  }
};

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

struct SharedBase { static std::vector<SharedBase *> &list() { static std::vector<SharedBase *> all; return all; } virtual void reset() = 0; };

template <class T, int N> struct Shared : SharedBase {
  T values[N];
  Shadow shadows[N];
  bool known[N];
  const char *name;
  explicit Shared(const char *name) : name(name) { list().push_back(this); reset(); }
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

// ---- scheduling

static void run_block(void (*body)(void **), void **arguments, const Options &o);

struct Entry { void (*body)(void **); void **arguments; };
static Entry entry;

static void begin() {
  entry.body(entry.arguments);
  all[thread.x].state = DONE;
  swapcontext(&all[thread.x].context, &scheduler);
}

static void order_of(std::vector<unsigned> &found, const Options &o) {
  unsigned n = found.size();
  for (unsigned i = 0; i < n; i++) found[i] = o.order == 1 ? n - 1 - i : i;
  if (o.order == 2) for (unsigned i = n; i > 1; i--) std::swap(found[i - 1], found[random_number() % i]);
}

static bool release_warps() {                                  // lanes whose whole mask has arrived go on
  bool any = false;
  for (unsigned i = 0; i < threads.x; i++) {
    if (all[i].state != WARP) continue;
    unsigned first = i / 32 * 32, arrived = 0;
    for (unsigned l = 0; l < 32; l++) {
      if (!(all[i].mask >> l & 1)) continue;
      if (first + l >= threads.x || all[first + l].state == DONE) { thread.x = i; fail("a mask names lane %u, which has exited", l); }
      const Fiber &f = all[first + l];
      if (f.state == WARP && f.mask != all[i].mask) { thread.x = i; fail("lanes of a warp meet with different masks"); }
      arrived += f.state == WARP && f.rounds == all[i].rounds;
    }
    if (arrived != (unsigned)__builtin_popcount(all[i].mask)) continue;
    unsigned mask = all[i].mask;
    for (unsigned l = 0; l < 32; l++) if (mask >> l & 1) all[first + l].state = RUN;
    any = true;
  }
  return any;
}

static bool pass_barrier() {
  unsigned waiting = 0, line = 0;
  for (unsigned i = 0; i < threads.x; i++) if (all[i].state == BARRIER) { waiting++; line = all[i].line; }
  if (!waiting) return false;
  for (unsigned i = 0; i < threads.x; i++) {
    thread.x = i;
    if (all[i].state == DONE) fail("a barrier that this thread, which has exited, does not reach");
    if (all[i].state == WARP) fail("waits for lanes that do not come");
    if ((unsigned)all[i].line != line) fail("threads of a block meet at different barriers");
  }
  for (unsigned i = 0; i < threads.x; i++) all[i].state = RUN;
  epoch++;
  return true;
}

static void run_fibers(const Options &o) {
  std::vector<unsigned> order(threads.x);
  all.resize(threads.x);
  slots[0].assign(threads.x, 0), slots[1].assign(threads.x, 0);
  for (unsigned i = 0; i < threads.x; i++) {
    Fiber &f = all[i];
    f.stack.resize(64 << 10);
    f.state = RUN, f.rounds = 0;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size(), f.context.uc_link = nullptr;
    makecontext(&f.context, begin, 0);
  }
  for (;;) {
    order_of(order, o);
    unsigned done = 0;
    for (unsigned i : order) {
      if (all[i].state == RUN) { thread.x = i; swapcontext(&scheduler, &all[i].context); }
      done += all[i].state == DONE;
    }
    if (done == threads.x) return;
    bool runnable = false;
    for (unsigned i = 0; i < threads.x; i++) runnable = runnable || all[i].state == RUN;
    if (!runnable && !release_warps() && !pass_barrier()) fail("threads wait for each other");
  }
}

static void run_plain(const Options &o) {
  std::vector<unsigned> order(threads.x);
  order_of(order, o);
  for (unsigned i : order) { thread.x = i; entry.body(entry.arguments); }
}

static void on_signal(int number) { fail(number == SIGILL ? "undefined behaviour" : number == SIGFPE ? "integer division by zero" : "memory fault"); }

static int launch(const char *name, bool synchronizes, void (*body)(void **), void **arguments, unsigned grid, unsigned width,
                  const Options &o, char *text) {
  message = text, kernel = name, fibers = synchronizes, entry = {body, arguments};
  blocks.x = grid, threads.x = width, state_of_random = o.seed;
  if (!grid || !width || width > 1024) { snprintf(text, 400, "%s: a grid of %u blocks of %u threads", name, grid, width); return 1; }
  struct sigaction ours = {}, before[3];
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_NODEFER;
  int signals[3] = {SIGILL, SIGFPE, SIGSEGV};
  for (int i = 0; i < 3; i++) sigaction(signals[i], &ours, &before[i]);
  int failed = sigsetjmp(out, 1);
  if (!failed) {
    std::vector<unsigned> order(grid);
    order_of(order, o);
    for (unsigned b : order) {
      block.x = b, epoch = 1;
      for (SharedBase *s : SharedBase::list()) s->reset();
      fibers ? run_fibers(o) : run_plain(o);
    }
  }
  for (int i = 0; i < 3; i++) sigaction(signals[i], &before[i], nullptr);
  return failed;
}

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

#define threadIdx (shim::thread)
#define blockIdx (shim::block)
#define gridDim (shim::blocks)
#define __syncthreads() (shim::all[shim::thread.x].line = __LINE__, shim::wait_as(shim::BARRIER))
#define __shfl_xor_sync(mask, v, o) shim::exchanged(mask, v, (shim::thread.x % 32) ^ (o))
#define __syncwarp(mask) ((void)shim::exchanged(mask, 0, shim::thread.x % 32))
#define __assertfail(message, file, line, function, size) shim::fail("%s (%s:%d)", message, file, (int)(line))
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
