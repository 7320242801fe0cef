// What runs the threads of a kernel: compiled once, and shared by all kernels.
#include "shim.h"
#include <map>

namespace shim {

Id thread, block, blocks, threads;
unsigned epoch;
std::vector<Fiber> all;
std::vector<uint64_t> slots[2];
static char *message;
static sigjmp_buf out;
static ucontext_t scheduler;
static uint64_t state_of_random;
static const char *kernel = "";

static std::map<std::pair<char *, int64_t>, std::vector<Shadow>> shadows;

Shadow *shadows_of(const Buffer &b, int64_t size) {
  std::vector<Shadow> &known = shadows[{b.start, size}];
  if (known.empty()) known.resize(b.bytes / size + 1);         // they stay where they are until the launch is over
  return known.data();
}

static uint64_t random_number() {
  state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
  return state_of_random >> 33;
}

[[noreturn]] void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int n = snprintf(message, 400, "%s, block %u, thread %u: ", kernel, block.x, thread.x);
  vsnprintf(message + n, 400 - n, format, arguments);
  va_end(arguments);
  siglongjmp(out, 1);
}

void wait_as(State state) {
  Fiber &f = all[thread.x];
  f.state = state;
  unsigned me = thread.x;
  swapcontext(&f.context, &scheduler);
  thread.x = me;
}

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

int launch(const char *name, bool synchronizes, void (*body)(void **), void **arguments, Id grid, unsigned width,
                  const Options &o, char *text, const SharedArrays &shared) {
  message = text, kernel = name, entry = {body, arguments};
  blocks = grid, threads.x = width, state_of_random = o.seed;
  unsigned count = grid.x * grid.y;
  if (!count || !width || width > 1024) { shadows.clear(), snprintf(text, 400, "%s: a grid of %u blocks of %u threads", name, count, width); return 1; }
  struct sigaction ours = {}, before[3];
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_NODEFER;
  int signals[3] = {SIGILL, SIGFPE, SIGSEGV};
  for (int i = 0; i < 3; i++) sigaction(signals[i], &ours, &before[i]);
  int failed = sigsetjmp(out, 1);
  if (!failed) {
    std::vector<unsigned> order(count);
    order_of(order, o);
    for (unsigned b : order) {
      block.x = b % grid.x, block.y = b / grid.x, epoch = 1;
      for (SharedBase *s : shared) s->reset();
      synchronizes ? run_fibers(o) : run_plain(o);
    }
  }
  for (int i = 0; i < 3; i++) sigaction(signals[i], &before[i], nullptr);
  shadows.clear();
  return failed;
}

}  // namespace shim

extern "C" void __assertfail(const char *message, const char *file, unsigned line, const char *, size_t) {
  shim::fail("%s (%s:%u)", message, file, line);
}
