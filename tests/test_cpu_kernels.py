"""How kernels are built, kept and called: the disk cache, compilers that fail, memory for results, what one region becomes."""
import math
import os
import re
import stat
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import test_codegen
import tracejit
from regions import FuseRuns, fused
from tracejit.codegen.schedules import COLUMN_UNIT
from tracejit.errors import FallbackWarning
from tracejit.executors.cpu import CpuExecutor
from tracejit.executors import compiler, kernel_cache
from tracejit.executors.buffers import allocator
from tracejit.executors.kernel_cache import CompilerError, NoCompiler

pytestmark = pytest.mark.compiler


def compiled(fn, *args, executor=None):
    """(result, the regions' sources)"""
    fuse = FuseRuns(executor or CpuExecutor(allow_single_op_fusion=True))
    jitted = tracejit.jit(fn, executors=["torch"], fallback="error", transforms=(fuse,))
    out = jitted(*args)
    return out, [r.sym.fn.source for r in jitted.last_traces[-1].regions]


def softmax(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def layer_norm(x, w):
    d = x - x.mean(-1, keepdim=True)
    return d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-5) * w


@pytest.mark.parametrize("fn,args,schedule", [
    (softmax, (64, 256), "row"), (lambda x: x.sum(0), (64, 256), "column"), (lambda x: (x * 2).sum(), (1 << 17,), "whole"),
    (lambda x: (x + 1).relu() * x, (64, 256), "pointwise"), (lambda x: layer_norm(x, x[0]), (64, 256), "row"),
    (lambda x: torch.cat([x, x * 2], 1).abs(), (64, 256), "pointwise")])
def test_one_kernel_of_the_schedule_that_fits(fn, args, schedule):
    _, sources = compiled(fn, torch.randn(args))
    assert [k.schedule for s in sources for k in s.kernels] == [schedule]


def test_bytes_are_counted_once():
    _, (source,) = compiled(softmax, torch.randn(64, 256))
    (kernel,) = source.kernels
    assert (kernel.bytes_read, kernel.bytes_written) == (64 * 256 * 4, 64 * 256 * 4)


def test_rows_that_are_gathered_are_counted_each():
    def fn(table, index, x):
        return table[index] * 2 + x
    _, (source,) = compiled(fn, torch.randn(500, 32), torch.randint(500, (64,)), torch.randn(64, 32))
    (kernel,) = source.kernels
    assert (kernel.bytes_read, kernel.bytes_written) == (64 * 8 + 2 * 64 * 32 * 4, 64 * 32 * 4)


def test_windows_cut_the_loop_instead_of_masking_it():
    _, (source,) = compiled(lambda x: torch.cat([x[:, 32:], x[:, :32]], 1) * 2, torch.randn(16, 64))
    assert source.text.count("for (i64 i1") == 2 and " ? " not in source.text.split("k0_range0")[1].split("typedef")[0]


def test_equal_kernels_are_one_function():
    def step(a, b, c, d):
        a.mul_(2).add_(1)
        b.mul_(2).add_(1)
        return c.exp(), d.exp()
    _, (source,) = compiled(step, *(torch.randn(8) for _ in range(4)))
    assert len(source.kernels) == 4 and source.text.count("static int k") == 2 and source.text.count("static void batch") == 2


def test_steps_on_many_tensors_are_shared_among_threads():
    def step(ps, gs, rate):
        for p, g in zip(ps, gs):
            p.mul_(0.9).add_(g * rate)
    many = [[torch.randn(16384) for _ in range(40)] for _ in range(3)]
    expected = [p.clone() for p in many[0]]
    step(expected, many[1], torch.tensor(0.5))
    _, (source,) = compiled(step, many[0], many[1], torch.tensor(0.5))
    assert source.threads > 1 and source.text.count("static int k") == 1
    torch.testing.assert_close(many[0], expected, rtol=0, atol=0)
    _, (source,) = compiled(step, *([p[:1024] for p in ps] for ps in many[:2]), torch.tensor(0.5))
    assert source.threads == 1                                 # a fork would cost more than it brings


@pytest.mark.parametrize("fn,size,threads", [(lambda x: x * 2 + 1, 1 << 15, 1), (lambda x: x * 2 + 1, 1 << 17, 2),
                                             (lambda x: (x + 1).tanh() * 2, 1 << 15, 2)])
def test_threads_are_as_many_as_the_work_is_worth(fn, size, threads):
    _, (source,) = compiled(fn, torch.randn(size))
    assert source.threads == threads


def test_cross_entropy_reads_the_logits_once_and_stores_no_row():
    logits, target = torch.randn(2048, 64), torch.randint(64, (2048,))
    jitted = tracejit.jit(lambda x, t: torch.nn.functional.cross_entropy(x, t), executors=["cpu"], fallback="error")
    torch.testing.assert_close(jitted(logits, target), torch.nn.functional.cross_entropy(logits, target))
    rows = jitted.last_traces[-1].regions[0].sym.fn.source
    assert len(rows.kernels) == 1 and rows.kernels[0].bytes_written == 2 * 4 * 2048
    with pytest.raises(IndexError, match="out of bounds"):
        jitted(logits, torch.full_like(target, 64))


def test_a_half_softmax_converts_once_and_takes_the_exponential_of_what_is_never_positive():
    def fn(x):
        return torch.softmax(x * 0.125, -1)
    x = (torch.randn(6, 3000) * 100).bfloat16()
    x[1, 5], x[2], x[3, 7], x[4, 9] = math.nan, -math.inf, math.inf, -math.inf
    jitted = tracejit.jit(fn, executors=["cpu"], fallback="error")
    got, exact = jitted(x), torch.softmax((x * 0.125).double(), -1)
    body = jitted.last_traces[-1].regions[0].sym.fn.source.text.split("k0_range0")[1]
    assert body.count("tj_from_bf16(") == 1 and "tj_exp_low_f" in body and "float p1 = 0;" in body
    assert torch.equal(got.isnan(), exact.isnan())
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-38, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fn", [lambda x, y: (x * 2 + y, x > y), lambda x, y: layer_norm(x + y, y[0]), lambda x, y: x.add_(y).neg()])
def test_results_beyond_the_caches_are_streamed(fn, threads):
    x, y = torch.randn(2100, 2001), torch.randn(2100, 2001)
    wanted, before = fn(x.clone(), y), torch.get_num_threads()
    jitted = tracejit.jit(fn, executors=["cpu"], fallback="error")
    torch.set_num_threads(threads)
    try:
        for _ in range(3):                                     # into fresh memory, and into what was dropped
            torch.testing.assert_close(jitted(x.clone(), y), wanted, rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(before)
    text = jitted.last_traces[-1].regions[0].sym.fn.source.text
    assert text.count("  tj_stream_end();") == 1 and "tj_stream(&a" in text


def test_results_that_a_cache_holds_are_stored_plainly():
    _, (source,) = compiled(lambda x, y: x * 2 + y, torch.randn(1000, 2000), torch.randn(1000, 2000))
    assert "tj_stream" not in source.text


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(200, 1024), (200, 2500), (5, 90, 70), (3, 70, 1100), (300, 17)])
def test_columns_are_walked_together_and_shared_among_threads(shape, threads):
    x, before = torch.randn(shape), torch.get_num_threads()
    jitted = tracejit.jit(lambda x: ((x * 2).sum(-2), x.abs().amax(-2)), executors=["cpu"], fallback="error")
    torch.set_num_threads(threads)
    try:
        total, most = jitted(x)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(total.double(), (x.double() * 2).sum(-2), rtol=1e-6, atol=5e-5)
    assert torch.equal(most, x.abs().amax(-2))


def test_a_thread_takes_its_columns_at_once():
    _, (source,) = compiled(lambda x: (x * 2).sum(0), torch.randn(2000, 1024))
    assert source.threads == 1024 // COLUMN_UNIT and "float p0[1024]" in source.text


def test_logsumexp_fetches_the_next_row_and_takes_the_exponential_of_what_is_never_positive():
    inf, x = math.inf, torch.randn(600, 1000) * 20
    x[0], x[1, 5], x[2, 5], x[3, 7], x[4], x[5, :2] = -inf, inf, math.nan, -inf, inf, torch.tensor([-inf, inf])
    x[6, :2], x[7], x[8] = torch.tensor([math.nan, inf]), 3e38, -3e38
    for rows, fetches in ((600, 1), (20, 0)):
        jitted = tracejit.jit(lambda x: torch.logsumexp(x, 1) * 1, executors=["cpu"], fallback="error")
        torch.testing.assert_close(jitted(x[:rows]), torch.logsumexp(x[:rows], 1), equal_nan=True)
        text = jitted.last_traces[-1].regions[0].sym.fn.source.text
        assert text.count("tj_prefetch(&") == fetches and text.count("tj_exp_low_f(t") == 1


def written_in_place(x):
    return x.mul_(1.5).sin_() + 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fn,watched", [
    (lambda x: torch.sin(x * 1.5) + 1, True), (lambda x: (torch.cos(x), torch.tan(x)), True), (written_in_place, True),
    (lambda x: torch.sin(x).sum(1), True), (lambda x: torch.cos(x.amax(1, keepdim=True)) + x, True)],
    ids="sin cos+tan in-place row broadcast".split())
def test_one_angle_far_away_among_many(fn, watched, threads):
    """Kernels with sines run as if all angles were small, and once more where one is not."""
    far = torch.randn(300, 1001)
    far[::7, 5], far[250, 1000], far[3, 3], far[4, 4] = 2.0 ** 41, -3e38, math.inf, math.nan
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for x in (torch.randn(300, 1001), far):
            out, (source,) = compiled(fn, x.clone())
            torch.testing.assert_close(out, fn(x.clone()), equal_nan=True, rtol=1e-5, atol=1e-4)      # sums of a thousand
    finally:
        torch.set_num_threads(before)
    assert ("_near_f(" in source.text) == watched


@pytest.mark.parametrize("rare", [1.0, 1e30])
def test_one_remainder_in_place_is_exact(rare):
    x = torch.randn(3001) * 100
    x[7] = rare
    mine, theirs = x.clone(), torch.tensor([math.fmod(v, 2.5) for v in x.tolist()])
    compiled(lambda x: x.fmod_(2.5), mine)
    assert torch.equal(mine, theirs)


def test_nans_stay_nans_in_halves():
    bits = torch.tensor([0x7FFFFFFF, -1, 0x7F800001, 0x7FC00000, -0x7FFFFF, 0x7FFF8000] * 8, dtype=torch.int32)
    x, h = bits.view(torch.float32), (bits >> 16).to(torch.int16).view(torch.bfloat16)
    _, (source,) = compiled(lambda h: (h * 2).neg(), h)
    assert "tj_to_bf16_quiet(" in source.text.split("k0_range0")[1]
    for fn, arg in ((lambda a: (a * 2).bfloat16(), x), (lambda a: (a * 2).half(), x), (lambda a: (a * 2).neg(), h)):
        assert torch.equal(fused(fn, arg).isnan(), fn(arg).isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(64, 64), (100, 200), (257, 129), (16, 128), (70, 600)])
def test_transposes_by_tiles(dtype, shape):
    x, y = (torch.randn(shape) * 50).to(dtype), (torch.randn(shape[::-1]) * 50).to(dtype)
    assert torch.equal(fused(lambda x, y: (x.t() + y) * 2, x, y), (x.t() + y) * 2)


@pytest.mark.parametrize("shape,dims", [((1 << 15, 4), 0), ((1 << 15, 3), 0), ((256, 128, 2, 3), (0, 1)), ((1 << 14, 31), 0)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_sums_of_few_columns(shape, dims, keepdim):
    x = torch.randn(shape)
    jitted = tracejit.jit(lambda x: (x * 2).sum(dims, keepdim), executors=["cpu"], fallback="error")
    exact = (x.double() * 2).sum(dims, keepdim)
    got, eager = jitted(x), (x * 2).sum(dims, keepdim)
    assert got.shape == eager.shape and got.stride() == eager.stride()
    assert (got - exact).abs().max() <= max((eager - exact).abs().max(), 1e-3)


def test_the_disk_cache_is_the_users_alone_and_is_found_again(tmp_path):
    where = tmp_path / "cache"
    first = CpuExecutor(allow_single_op_fusion=True, kernel_cache=where)
    compiled(softmax, torch.randn(8, 16), executor=first)
    assert stat.S_IMODE(where.stat().st_mode) == 0o700 and first.cache.built == 1
    second = CpuExecutor(allow_single_op_fusion=True, kernel_cache=where)
    compiled(softmax, torch.randn(8, 16), executor=second)
    assert second.cache.built == 0


@pytest.mark.parametrize("damage", [b"", b"not an object", None], ids=["empty", "text", "cut"])
def test_a_broken_file_is_built_again(tmp_path, damage):
    executor = CpuExecutor(allow_single_op_fusion=True, kernel_cache=tmp_path / "c")
    compiled(softmax, torch.randn(8, 16), executor=executor)
    (path,) = (tmp_path / "c").glob("*.so")
    content = path.read_bytes()
    path.unlink()                                              # not in place: the loaded object maps it
    path.write_bytes(content[:len(content) // 2] if damage is None else damage)
    again = CpuExecutor(allow_single_op_fusion=True, kernel_cache=tmp_path / "c")
    x = torch.randn(8, 16)
    torch.testing.assert_close(compiled(softmax, x, executor=again)[0], softmax(x))
    assert again.cache.built == 1


def test_a_directory_that_others_may_write_is_not_used(tmp_path):
    where = tmp_path / "open"
    where.mkdir()
    where.chmod(0o777)
    executor = CpuExecutor(allow_single_op_fusion=True, kernel_cache=where)
    compiled(softmax, torch.randn(8, 16), executor=executor)
    assert not list(where.iterdir()) and executor.cache.disk.directory != where


def test_a_failing_compiler_is_loud_under_checks_and_names_the_kept_source(tmp_path, compiler_from_environment, monkeypatch):
    script = tmp_path / "cc"
    script.write_text('#!/bin/sh\n[ "$1" = --version ] && echo broken && exit 0\necho "no way" >&2\nexit 1\n')
    script.chmod(0o755)
    compiler_from_environment(script)
    executor = CpuExecutor(allow_single_op_fusion=True, kernel_cache=tmp_path / "c")
    with pytest.raises(CompilerError, match="no way") as raised:
        compiled(softmax, torch.randn(8, 16), executor=executor)
    kept = str(raised.value).split("the source is ")[1].split(":")[0]
    assert "k0" in open(kept).read()


def two_regions(x):
    return torch.digamma(x.softmax(-1) * 2) * 3 + x


@pytest.mark.parametrize("kind, message", [
    ("missing", "no C compiler: .*/cc not found"), ("failing", "no way"), ("mute", "--version failed"), ("hanging", "timed out")])
def test_with_a_broken_compiler_calls_fall_back_with_one_warning(kind, message, tmp_path, compiler_from_environment, monkeypatch):
    monkeypatch.setenv("TRACEJIT_CHECK", "0")
    monkeypatch.setattr(compiler, "TIMEOUT", 0.5)
    script = tmp_path / "cc"
    if kind != "missing":
        version, rest = ("exit 1", "") if kind == "mute" else ("exit 0", "exec sleep 60" if kind == "hanging" else "echo no way >&2; exit 1")
        script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {version}\n{rest}\n')
        script.chmod(0o755)
    compiler_from_environment(script)
    jitted = tracejit.jit(two_regions, fallback="error", executors=["cpu"], executor_options={"cpu": {"kernel_cache": tmp_path / "c"}})
    x = torch.randn(8, 16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for given in (x, x, x[:4]):
            assert torch.equal(jitted(given), two_regions(given))
    (text,) = [str(w.message) for w in caught if issubclass(w.category, FallbackWarning)]
    assert re.search(message, text) and jitted.last_traces[-1].stage == "claim"
    if kind in ("failing", "hanging"):
        assert re.search(r"\(for .*test_cpu_kernels\.py:\d+\)", text)
        kept = re.search(r"the source is (\S+\.c)", text)[1]
        assert "k0" in open(kept).read()


def test_a_kernel_that_does_not_compile_leaves_the_others_fused(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEJIT_CHECK", "0")
    from tracejit.codegen import source as sources
    source_of = sources.source_of

    def careless(region, *more):
        source = source_of(region, *more)
        return replace(source, text="no C", body="no C") if any(b.sym.packet == "exp" for b in region.subsymbols) else source
    monkeypatch.setattr(sources, "source_of", careless)
    jitted = tracejit.jit(two_regions, fallback="error", executors=["cpu"], executor_options={"cpu": {"kernel_cache": tmp_path / "c"}})
    x = torch.randn(8, 16)
    with pytest.warns(FallbackWarning, match=r"the source is \S+\.c"):
        got = jitted(x)
    assert torch.allclose(got, two_regions(x))
    assert any(b.sym.packet == "mul" for r in jitted.last_traces[-1].regions for b in r.subsymbols)


def test_regions_of_a_program_share_as_many_compiler_runs_as_there_are_processors(tmp_path):
    def fn(x, w):
        for n in range(6):
            x = torch.tanh(x @ w) * n + x
        return x
    executor = CpuExecutor(kernel_cache=tmp_path)
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    assert torch.allclose(tracejit.jit(fn, executors=[executor], fallback="error")(x, w), fn(x, w), rtol=1e-3, atol=1e-3)
    assert len(list(tmp_path.glob("*.so"))) >= 5 and executor.cache.built <= kernel_cache._processors()
    again = CpuExecutor(kernel_cache=tmp_path)
    tracejit.jit(fn, executors=[again], fallback="error")(x, w)
    assert again.cache.built == 0


def test_a_chain_of_any_length_is_compiled():
    def fn(x, y):
        for _ in range(300):
            x = (x + y).sin()
        return x
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    jitted = tracejit.jit(fn, executors=["cpu"], fallback="error")
    torch.testing.assert_close(jitted(x, y), fn(x, y), rtol=1e-3, atol=1e-3)
    assert 1 < len(jitted.last_traces[-1].regions) == len(jitted.last_traces[-1].bound_symbols)


def test_one_region_that_does_not_compile_leaves_the_others_fused(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEJIT_CHECK", "0")
    begin = kernel_cache.begin
    monkeypatch.setattr(kernel_cache, "begin", lambda path, text, *more: begin(path, text.replace("tj_exp_f(t", "tj_exp_f(] t"), *more))

    def fn(x, w):
        return (((x @ w) * 2 + 1) @ w).exp().abs() @ w
    executor = CpuExecutor(kernel_cache=tmp_path)
    x, w = torch.randn(8, 16) / 16, torch.randn(16, 16) / 16
    jitted = tracejit.jit(fn, executors=[executor], fallback="error")
    with pytest.warns(FallbackWarning, match="(?s)the source is .*test_cpu_kernels.py"):
        torch.testing.assert_close(jitted(x, w), fn(x, w), rtol=1e-3, atol=1e-3)
    assert len(jitted.last_traces[-1].regions) == 1 and not executor.broken


def test_no_compiler_is_a_compiler_error():
    assert issubclass(NoCompiler, CompilerError)


def test_many_processes_share_a_directory(tmp_path):
    program = ("import sys; sys.path.insert(0, sys.argv[1])\n"
               "from tracejit.executors.kernel_cache import KernelCache\n"
               "assert KernelCache(sys.argv[2]).load('int f(void) { return 41; }').f() == 41\n")
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    runs = [subprocess.Popen([sys.executable, "-c", program, root, str(tmp_path / "c")]) for _ in range(3)]
    assert [r.wait(timeout=120) for r in runs] == [0, 0, 0]
    assert len(list((tmp_path / "c").glob("*.so"))) == 1


def test_a_dropped_large_result_lends_its_memory_to_the_next():
    take = allocator((3 << 20,), (1,), torch.float32)
    a = take()
    where = a.data_ptr()
    b = take()
    assert b.data_ptr() != where                               # a is still held
    kept = b.data_ptr()
    view = b[5:]
    del b
    assert take().data_ptr() != kept                           # a view holds the storage too
    del a, view
    c = take()
    again = c.data_ptr()
    del c
    assert take().data_ptr() == again


def test_options_of_the_executor():
    x = torch.randn(8)
    fuse = FuseRuns(CpuExecutor(allow_single_op_fusion=False))
    tracejit.jit(lambda t: t * 2, fallback="error", transforms=(fuse,))(x)
    assert fuse.regions == 0
    jitted = tracejit.jit(lambda t: (t * 2 + 1 - t) / 3, fallback="error", executors=["cpu"],
                          executor_options={"cpu": {"max_region_ops": 2}})
    assert torch.allclose(jitted(x), (x * 2 + 1 - x) / 3)
    assert [len(r.subsymbols) for r in jitted.last_traces[-1].regions] == [2, 2]


def test_what_is_not_fused_is_refused():
    executor = CpuExecutor()
    def refused(fn, *args):
        jitted = tracejit.jit(fn, fallback="error")
        jitted(*args)
        return [b.sym.name for b in jitted.last_traces[-1].bound_symbols if not executor.can_fuse(b)]
    x = torch.randn(4, 4)
    assert refused(lambda t: t @ t, x) == ["aten.mm.default"]
    assert refused(lambda t: torch.rand_like(t) + 1, x) and refused(lambda t: t.to(torch.complex64) + 1, x)
    assert refused(lambda t: torch.div(t, 3, rounding_mode="floor"), x.bfloat16())


VECTORS = {
    **test_codegen.TRANSCENDENTAL, **test_codegen.ACTIVATIONS, "remainder": lambda a: a % 0.7, "fmod": lambda a: torch.fmod(a, 0.7),
    "floor_divide": lambda a: a // 0.7, "atan2": lambda a: torch.atan2(a, a + 1), "hypot": lambda a: torch.hypot(a, a + 1),
    "copysign": lambda a: torch.copysign(a, a + 1), "mish": F.mish, "logsigmoid": F.logsigmoid,
    "logaddexp": lambda a: torch.logaddexp(a, a * 2), "in place": lambda a: a.mul_(2).remainder_(0.7),
}

@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.one_in(2)
def test_every_function_is_computed_in_vectors(name, dtype, tmp_path):
    """A loop with one call of the C library, or with a jump, takes up to twenty times as long."""
    if "clang" in compiler.machine():
        pytest.skip("gcc says which loops it turned into vectors")
    jitted = tracejit.jit(VECTORS[name], executors=["cpu"], fallback="error", executor_options={"cpu": {"allow_single_op_fusion": True}})
    jitted(torch.rand(64, 64, dtype=dtype))
    (region,) = (b for b in jitted.last_traces[-1].bound_symbols if b.executor == "cpu")
    source = tmp_path / "kernel.c"
    source.write_text(region.sym.fn.source.text)
    command = [*compiler.compiler(), *compiler.FLAGS, *compiler.machine_flags(), "-fopt-info-vec-optimized", str(source),
               "-o", str(tmp_path / "kernel.so")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    loops, full = [], False
    for n, line in enumerate(source.read_text().splitlines(), 1):
        full = "_full_range" in line if line.startswith("static void k0") else full      # it calls the C library for rare arguments
        if "#pragma omp simd" in line and not full:
            loops.append(n)
    assert loops and all(any(f"kernel.c:{n + k}:" in told for k in range(3)) for n in loops), told     # pragma, `for`, first statement
