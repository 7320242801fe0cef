"""Full disks, compilers that die, interrupts, forks, and processes that race for one cache: nothing wrong, nothing lost."""
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import tracejit
from tracejit.capture.reads import StateReads
from tracejit.errors import FallbackWarning
from tracejit.executors import compiler
from tracejit.executors.cpu import CpuExecutor
from tracejit.executors.kernel_cache import KernelCache, PartInC
from tracejit.runtime import gradients

pytestmark = [pytest.mark.compiler, pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")]


def program(x, w):
    h = torch.tanh(x @ w) * 2 + x
    h[0] = 1
    return torch.relu(h @ w).sum(-1) * h.mean()


def arguments(n=6):
    torch.manual_seed(n)
    return torch.randn(n, 6), torch.randn(6, 6)


def jitted(where, fn=program):
    return tracejit.jit(fn, executors=[CpuExecutor(kernel_cache=where)], fallback="error")


def is_right(jfn, n=6):
    torch.testing.assert_close(jfn(*arguments(n)), program(*arguments(n)))
    return True


def in_child(work, *args):
    """Start a forked process that ends with status 0 when `work(*args)` returns; its process id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(*args)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def ended_well(child, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


# ------------------------------------------------------------ where kernels cannot be written

def with_files_of(size, where):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    jfn = jitted(where)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert is_right(jfn) and is_right(jfn, 9) and is_right(jfn)
    assert len([w for w in caught if issubclass(w.category, FallbackWarning)]) == 1
    assert not jfn.last_traces[-1].regions and jfn.cache_info().fallbacks == 0


@pytest.mark.parametrize("size", [0, 1000, 8000])
def test_where_no_more_can_be_written_calls_run_unfused(tmp_path, monkeypatch, size):
    monkeypatch.setenv("TRACEJIT_CHECK", "0")
    where = tmp_path / "cache"
    assert ended_well(in_child(with_files_of, size, where))
    assert not list(where.glob("*.tmp")) and not list(where.glob("*.so"))
    assert is_right(jfn := jitted(where)) and jfn.last_traces[-1].regions


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_directory_of_others_is_not_used(tmp_path):
    where = tmp_path / "theirs"
    assert is_right(jitted(where))
    before = {path.name for path in where.iterdir()}
    os.chown(where, 12345, 12345)
    executor = CpuExecutor(kernel_cache=where)
    assert is_right(tracejit.jit(program, executors=[executor], fallback="error"))
    assert executor.cache.built and executor.cache.disk.directory != where and {path.name for path in where.iterdir()} == before
    assert stat.S_IMODE(executor.cache.disk.directory.stat().st_mode) == 0o700


# ------------------------------------------------------------ compilers that die, and interrupts

@pytest.mark.parametrize("times", [1, 2, 1000])
def test_a_compiler_that_is_killed(tmp_path, compiler_from_environment, monkeypatch, times):
    """It leaves half a file behind; the first `times` runs die."""
    monkeypatch.setenv("TRACEJIT_CHECK", "0")
    script, count = tmp_path / "cc", tmp_path / "runs"
    script.write_text(f"""#!/bin/sh
[ "$1" = --version ] && exec cc --version
echo run >> {count}
[ $(wc -l < {count}) -gt {times} ] && exec cc "$@"
while [ "$1" != -o ]; do shift; done
printf '\\177ELF' > "$2"
kill -9 $$
""")
    script.chmod(0o755)
    compiler_from_environment(script)
    where = tmp_path / "cache"
    jfn = jitted(where)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert is_right(jfn) and is_right(jfn, 8) and is_right(jfn)
    assert len([w for w in caught if issubclass(w.category, FallbackWarning)]) <= 1 and not list(where.glob("*.tmp"))
    if times == 1000:
        assert not list(where.glob("*.so"))
    else:
        assert is_right(again := jitted(where)) and again.last_traces[-1].regions


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")      # one may come in a `__del__`
def test_an_interrupt_leaves_a_usable_jit(tmp_path, full):
    """At twenty moments of a first call (two hundred in the full run)."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    started = time.perf_counter()
    jitted(tmp_path / "first")(*arguments())
    taken, moments, stopped = time.perf_counter() - started, 200 if full else 20, 0
    try:
        for n in range(moments):
            jfn = jitted(tmp_path / str(n))
            try:
                signal.setitimer(signal.ITIMER_REAL, taken * (n + 0.5) / moments)
                jfn(*arguments())
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                stopped += 1
            assert is_right(jfn) and is_right(jfn) and jfn.last_traces[-1].regions
            assert not list((tmp_path / str(n)).glob("*.tmp"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stopped > moments // 4


def test_an_interrupt_between_hook_and_capture_leaves_no_hook(tmp_path, monkeypatch):
    jfn, enter = jitted(tmp_path), StateReads.__enter__

    def interrupted(reads):
        enter(reads)
        raise KeyboardInterrupt
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(StateReads, "__enter__", interrupted)
        jfn(*arguments())
    assert sys.getprofile() is None and is_right(jfn) and jfn.last_traces[-1].regions


# ------------------------------------------------------------ parts in C, compiled beside Python

@pytest.fixture
def part(tmp_path, monkeypatch, compiler_from_environment):
    """`part(delay)`: one that is begun, by a compiler that waits that long."""
    def begun(delay):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        (tmp_path / "part.c").write_text("int answer(void) { return 42; }")
        script = tmp_path / "cc"
        script.write_text(f'#!/bin/sh\n[ "$1" = --version ] || sleep {delay}\nexec cc "$@"\n')
        script.chmod(0o755)
        compiler_from_environment(script)
        made = PartInC(tmp_path / "part.c")
        made.begin()
        return made
    yield begun
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name.count(".") > 1]


def test_a_part_in_c_is_waited_for(part):
    begun = part(0.2)
    begun.begin()
    assert not begun.ready() and begun.load().answer() == 42 and begun.ready()
    assert begun._cache.built == 1 and begun.load().answer() == 42


def test_a_part_in_c_is_not_ready_while_another_thread_waits_for_it(part):
    begun = part(0.5)
    waiting = threading.Thread(target=begun.load)
    waiting.start()
    time.sleep(0.1)
    assert not begun.ready()
    waiting.join()
    assert begun.ready()


def test_a_part_in_c_whose_compiler_was_killed_is_compiled_again(part):
    begun = part(0.2)
    begun._building.process.kill()
    assert begun.load().answer() == 42


def test_a_fork_of_a_process_that_compiles_a_part_in_c_compiles_its_own(part):
    begun = part(0.3)

    def child():
        assert begun.ready() and begun.load().answer() == 42
    forked = in_child(child)
    assert begun.load().answer() == 42 and ended_well(forked)


def test_a_process_that_ends_leaves_no_half_of_a_part_in_c(tmp_path):
    program = "import tracejit, torch; tracejit.jit(torch.relu)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True).stderr == ""
    assert [path.suffix for path in sorted((tmp_path / "tracejit" / "kernels").glob("*.*"))] == [".c", ".so"] * 2


# ------------------------------------------------------------ processes

def race(where, go, results):
    os.read(go, 1)
    jfn = jitted(where)
    assert is_right(jfn) and jfn.last_traces[-1].regions


def test_processes_that_race_for_a_cold_cache(tmp_path, full):
    for n in range(100 if full else 3):
        where = tmp_path / str(n)
        ready, go = os.pipe()
        children = [in_child(race, where, ready, n) for _ in range(2)]
        os.write(go, b"go")
        assert all([ended_well(child) for child in children])
        os.close(ready), os.close(go)
        assert not list(where.glob("*.tmp")) and not list(where.glob("*.*.c"))
        executor = CpuExecutor(kernel_cache=where)
        assert is_right(tracejit.jit(program, executors=[executor], fallback="error")) and executor.cache.built == 0


shared = tracejit.jit(program, executors=["cpu"], fallback="error")


def shared_call(n):
    return shared(*arguments(n))


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_a_pool_of_processes_shares_one_cache(start):
    with ProcessPoolExecutor(2, mp_context=get_context(start)) as pool:
        sizes = [2, 3, 2, 4, 3, 2]
        for n, result in zip(sizes, pool.map(shared_call, sizes)):
            torch.testing.assert_close(result, program(*arguments(n)))


class Rows:
    def __len__(self):
        return 8

    def __getitem__(self, n):
        return shared(*arguments(2 + n % 3))[:2]


def test_workers_of_a_data_loader_call_it():
    shared(*arguments(2))
    rows = torch.cat(list(DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork")))
    torch.testing.assert_close(rows, torch.stack([program(*arguments(2 + n % 3))[:2] for n in range(8)]))


@pytest.mark.parametrize("moment", ["capture", "compile"])
def test_a_fork_while_another_thread_compiles(tmp_path, monkeypatch, moment):
    started, other, x = threading.Event(), jitted(tmp_path / "other"), torch.ones(3)
    assert is_right(other)
    state = {"rate": 1.0}

    def slow(x):
        if moment == "capture":
            started.set()
            threading.Event().wait(0.3)
        return x * state["rate"] + 1
    if moment == "compile":
        keep = KernelCache._keep
        monkeypatch.setattr(KernelCache, "_keep", lambda *args: (started.set(), time.sleep(0.3), keep(*args)))
    jfn = jitted(tmp_path / "slow", slow)
    compiling = threading.Thread(target=lambda: jfn(x))
    compiling.start()
    assert started.wait(20)

    def child():
        assert is_right(other) and is_right(other, 5) and torch.equal(jfn(x), x + 1)
    start = time.monotonic()
    assert ended_well(in_child(child), 20)
    assert time.monotonic() - start < 30                       # the compile and the fork did not wait for each other
    compiling.join()
    assert torch.equal(jfn(x), x + 1)


def test_a_fork_while_another_thread_loads(tmp_path):
    cache, started, text = KernelCache(tmp_path), threading.Event(), "int answer(void) { return 42; }"
    build = cache._build
    cache._build = lambda *args: (started.set(), time.sleep(0.3), build(*args))
    loading = threading.Thread(target=cache.load, args=(text,))
    loading.start()
    assert started.wait(20)

    def child():
        assert cache.load(text).answer() == 42
    assert ended_well(in_child(child), 20)
    loading.join()


def test_a_fork_while_another_thread_compiles_a_backward_pass(tmp_path):
    jfn, x = jitted(tmp_path, lambda x: torch.tanh(x) * x + 1), torch.randn(4, 3, requires_grad=True)
    result, started = jfn(x), threading.Event()

    def compile_slowly():
        with gradients._lock:
            started.set()
            time.sleep(0.3)
    compiling = threading.Thread(target=compile_slowly)
    compiling.start()
    assert started.wait(20)

    def child():
        tangent = torch.ones(3, 4).t()                         # laid out as no program is for yet
        wanted = torch.autograd.grad(torch.tanh(x) * x + 1, x, tangent)
        torch.testing.assert_close(torch.autograd.grad(result, x, tangent), wanted)
    assert ended_well(in_child(child), 20)
    compiling.join()


# ------------------------------------------------------------ threads

def test_threads_make_their_first_calls_at_once(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    whole = jitted(tmp_path, model)
    alone = [jitted(tmp_path, lambda x, n=n: torch.relu(x + n) * x) for n in range(4)]
    barrier, wrong = threading.Barrier(8), []

    def work(k):
        barrier.wait()
        try:
            for n in range(6):
                x = torch.randn(1 + (n + k) % 3, 4)
                torch.testing.assert_close(whole(x), model(x))
                torch.testing.assert_close(alone[(k + n) % 4](x), torch.relu(x + (k + n) % 4) * x)
        except BaseException as error:
            wrong.append(error)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_compiler_that_is_interrupted_while_it_starts_is_stopped(tmp_path, monkeypatch):
    start, started = subprocess.Popen.__init__, []

    def interrupted(process, *args, **kwargs):
        start(process, *args, **kwargs)
        started.append(process)
        raise KeyboardInterrupt

    compiler.compile_command()                                 # asks the compiler what it is
    monkeypatch.setattr(subprocess.Popen, "__init__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiler.begin(tmp_path / "kernel.so", "int f(void) { return 1; }")
    assert started[0].returncode == -signal.SIGKILL and not list(tmp_path.glob("*.tmp"))
