"""Programs called with many sizes: results as eager's, and machine code that does not depend on the size."""
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracejit
from tests.fuzz import programs, run
from tracejit.capture.opened import MOST_TRIES
from tracejit.codegen.sizes import parted, table
from tracejit.executors import kernel_cache
from tracejit.executors.shared_code import MOST_FORMS, SharedCode, _digest
from tracejit.ir.symbol import Symbol
from tracejit.ir.trace import BoundSymbol

SIZES = (7, 16, 1, 33, 0, 2, 64, 5, 100, 17, 3, 257)


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, explicit: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
        self.taken, self.given = nn.Linear(32, 96), nn.Linear(32, 32)
        self.wide, self.narrow = nn.Linear(32, 128), nn.Linear(128, 32)
        self.explicit = explicit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, 4, 8).transpose(1, 2) for t in self.taken(self.first(x)).chunk(3, -1))
        if self.explicit:
            seen = torch.ones(length, length, dtype=torch.bool).tril()
            mixed = ((q @ k.transpose(-1, -2)) / 8 ** 0.5).masked_fill(~seen, float("-inf")).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.given(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


pytestmark = pytest.mark.filterwarnings("ignore::tracejit.RetraceWarning")


def executor(tmp_path, **options):
    return tracejit.CpuExecutor(kernel_cache=str(tmp_path / "kernels"), allow_single_op_fusion=True, **options)


@pytest.mark.parametrize("explicit,lengths", [(False, range(1, 201)), (True, range(17, 57))], ids=["fused", "explicit"])
def test_a_transformer_block_takes_five_compiles_for_all_lengths(tmp_path, explicit, lengths):
    fuser = tracejit.CpuExecutor(kernel_cache=str(tmp_path))
    block = Block(explicit).eval()
    jitted = tracejit.jit(block, executors=[fuser], fallback="error")
    with torch.no_grad():
        for length in lengths:
            x = torch.randn(2, length, 32)
            torch.testing.assert_close(jitted(x), block(x))
    assert jitted.cache_info().misses == jitted.cache_info().entries <= 5
    assert 2 <= fuser.cache.built <= 5


def pointwise(x, n):
    return torch.relu(x) * 2 + x.sigmoid()


def rows(x, n):
    return torch.softmax(x * 2, -1) + x.mean(-1, keepdim=True) - x.amax(-1, keepdim=True) if n else x + 1


def columns(x, n):
    return (x * x).sum(0) + x.std(0, unbiased=False) if n else x + 1


def broadcast(x, n):
    return (x + x[:, :1]) * torch.arange(n) + x.new_ones(n, 1)


def transposed(x, n):
    return (x.t().contiguous() + 1) * x.t() + x.flip(0).t()


def windows(x, n):
    return torch.cat([x[:, n // 2:] * 2, x[:, :n // 3] + 1], 1) + F.pad(x, (1, 0))[:, :n - n // 2 + n // 3]


def reshaped(x, n):
    return (x.reshape(-1)[: n * n // 2 * 2].view(-1, 2).t() * 2).reshape(-1) + 1


def in_place(x, n):
    x[n // 3: n // 2 + 1] = x[:1] * 2 if n else 0
    x[:, ::2] += 1
    x[-1:].mul_(3)
    return x.sum(1) + 1


def gathered(x, n):
    return x[torch.arange(n - 1, -1, -1)] * 2 + x.gather(0, torch.zeros(n, n, dtype=torch.int64)) if n else x + 1


def branching(x, n):
    if x.shape[0] > 16:
        return x * 2 + 1
    return (x - x.shape[0]) * x.numel()


def halves(x, n):
    return F.gelu(x.bfloat16() * 3) + x.bfloat16()


def whole_numbers(x, n):
    return (x * 100).to(torch.int32) * n + x.to(torch.int32) // 3 + (x > 0).sum(1, dtype=torch.int32)


PROGRAMS = (pointwise, rows, columns, broadcast, transposed, windows, reshaped, in_place, gathered, branching, halves, whole_numbers)
SUMS = (rows, columns, in_place)         # compilers add in another order where they do not know how many


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.one_in(2)
def test_other_sizes_give_what_eager_gives(tmp_path, program):
    shared, alone = executor(tmp_path), executor(tmp_path, share_code=False)
    jitted, special = (tracejit.jit(program, executors=[e], fallback="error") for e in (shared, alone))
    for n in SIZES:
        x = torch.randn(n, n)
        expected, own, mine = x.clone(), x.clone(), x.clone()
        theirs, got = program(expected, n), jitted(mine, n)
        torch.testing.assert_close(got, theirs, equal_nan=True)
        torch.testing.assert_close(mine, expected)
        apart = {"rtol": 0, "atol": 0} if program not in SUMS else {}
        torch.testing.assert_close(got, special(own, n), equal_nan=True, **apart)
        assert torch.equal(mine, own)


def test_rows_of_any_number_and_width_are_few_texts(tmp_path):
    fuser = executor(tmp_path)
    jitted = tracejit.jit(lambda x: torch.softmax(x * 2, -1) + 1, executors=[fuser], fallback="error")
    for n in range(20, 60):
        x = torch.randn(n, 3 * n)
        torch.testing.assert_close(jitted(x), torch.softmax(x * 2, -1) + 1)
    assert fuser.cache.built == 2


def test_regions_of_one_program_are_no_changes_of_each_other(tmp_path):
    def norm(x):
        return (x * 2 + 1).softmax(-1)

    def net(x, w):
        return norm(norm(x) @ w)
    fuser = executor(tmp_path)
    jitted = tracejit.jit(net, executors=[fuser], fallback="error")
    jitted(torch.randn(8, 32), torch.randn(32, 64))
    again = tracejit.jit(net, executors=[fuser], fallback="error")
    built = fuser.cache.built
    again(torch.randn(8, 32), torch.randn(32, 64))             # nothing has changed: the same code
    assert fuser.cache.built == built


def test_code_is_not_shared_where_it_is_not_wanted(tmp_path):
    fuser = executor(tmp_path, share_code=False)
    jitted = tracejit.jit(lambda x: torch.softmax(x * 2, -1) + 1, executors=[fuser])
    for n in (20, 21, 22, 23):
        jitted(torch.randn(n, n))
    assert fuser.cache.built == 4


def test_a_second_process_finds_the_shared_code_on_disk(tmp_path):
    for built in (2, 0):
        fuser = executor(tmp_path)
        jitted = tracejit.jit(pointwise, executors=[fuser])
        for n in range(20, 30):
            jitted(torch.randn(n, n), 0)
        assert fuser.cache.built == built


def test_threads_run_one_code_with_many_sizes(tmp_path):
    jitted = tracejit.jit(rows, executors=[executor(tmp_path)], fallback="error")
    inputs = [torch.randn(n, n + 3) for n in range(20, 28)]
    expected = [jitted(x, 1) for x in inputs]
    wrong = []

    def call(x, want):
        for _ in range(200):
            wrong.extend([x.shape] if not torch.equal(jitted(x, 1), want) else [])
    threads = [threading.Thread(target=call, args=pair) for pair in zip(inputs, expected)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_text_that_wants_constants_is_compiled_with_constants(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEJIT_CHECK", "0")
    fuser = executor(tmp_path)
    begin = kernel_cache.begin

    def particular(path, text, more=()):
        nonlocal refused
        refused += "given0" in text
        return begin(path, text + '\n#error "an array wants a constant"' * ("given0" in text), more)
    monkeypatch.setattr(kernel_cache, "begin", particular)
    jitted = tracejit.jit(pointwise, executors=[fuser], fallback="error")
    refused = 0
    for n in range(20, 28):
        x = torch.randn(n, n)
        torch.testing.assert_close(jitted(x, n), pointwise(x, n))
        assert len(jitted.kernels) == 1
    assert refused == MOST_TRIES + 1                           # with open sizes, and with changed ones: not again at each new shape


TEXT = """static void k0_range0(void *const *p, i64 lo, i64 hi) {
  float row1[20] __attribute__((aligned(64)));
  #pragma omp simd
  for (i64 i1 = 0; i1 < 20; i1++) { a0[i1*3000000000] = (-0x1.8p+1f) + 0x1.999999999999ap-4 + 5l; }
}
static void k0_task0(void *q) {
  k0_range0(a->p, 7l, 20); }"""


def test_numbers_of_a_text_are_told_from_what_is_none():
    text = parted(TEXT)
    assert text.numbers == ("20", "20", "3000000000", "0x1.8p+1f", "0x1.999999999999ap-4", "5l", "7l", "20")
    assert text.reading(()) == TEXT and table(text.values(())) == b""
    other = parted(TEXT.replace("20", "21").replace("7l", "8l"))
    assert other.form == text.form and parted(TEXT.replace("20", "20l")).form != text.form != parted(TEXT.replace("3000000000", "3")).form


@pytest.mark.parametrize("constant", ["1e-5", "1E+20f", "2.5", ".5f", "10.f", "0x1p-20", "0x1.8p-3f", "x20", "0", "0x40"])
def test_a_constant_is_no_size_and_no_two(constant):
    text = parted(f"a[i0*20] = t0 * {constant};")
    given = ["20", constant] if "p" in constant else ["20"]
    assert list(text.numbers) == given and text.reading(()) == f"a[i0*20] = t0 * {constant};"


def test_the_form_of_a_text_that_was_not_used_for_longest_is_forgotten():
    shared, region, texts = SharedCode(), BoundSymbol(Symbol("region", print), (), {}, ()), [f"x = {'-' * k}20;" for k in range(MOST_FORMS + 1)]

    def use(text):
        shared.codes([region], [SimpleNamespace(body=text)])
    for text in texts[1:]:
        use(texts[0])
        use(text)
    (place,) = shared._places.values()
    kept = [text for text in texts if _digest(parted(text).form) in place.forms]
    assert kept == [texts[0], *texts[2:]]


def test_a_text_reads_numbers_from_its_table_in_each_function():
    text = parted(TEXT)
    read = text.reading({0, 1, 3, 4, 6}).split("\n")
    assert read[1:6] == ["  const int given0 = ((const i64 *)p[0])[0];",
                         "  const int given1 = ((const i64 *)p[0])[1];",
                         "  const float given2 = ((const double *)p[0])[2];",
                         "  const double given3 = ((const double *)p[0])[3];",
                         "  float row1[given0] __attribute__((aligned(64)));"]
    assert read[-2:] == ["  const i64 given4 = ((const i64 *)(*(void *const **)q)[0])[4];", "  k0_range0(a->p, given4, 20); }"]
    assert len(table(text.values({0, 1, 3, 4, 6}))) == 40


def test_random_programs_are_called_with_other_sizes():
    options = programs.Options(sizes=True)
    for index in range(12):
        program = run.draw(3, index, options)
        outcome = run.judge(program, run.compiler("tracejit"), tolerant=True)
        assert outcome.kind in ("same", "rounded"), program.source


def sines(x, n):
    return x.sin() * 2 + x.cos()


def totals(x, n):
    return (x * x).sum() + x.amax(), x.var()


def step(parameters, gradients):
    for p, g in zip(parameters, gradients):
        p.mul_(0.9).add_(g * 0.5)


def test_small_kernels_that_threads_share_out_share_other_sizes(tmp_path):
    fuser = executor(tmp_path)
    jitted = tracejit.jit(step, executors=[fuser], fallback="error")
    for n in (2048, 2100, 3001, 3500, 3777):
        parameters, gradients = ([torch.randn(n) for _ in range(200)] for _ in range(2))
        expected = [p.clone() for p in parameters]
        step(expected, gradients)
        jitted(parameters, gradients)
        torch.testing.assert_close(parameters, expected, rtol=0, atol=0)
    (kernel,) = jitted.kernels
    assert "batch0_task" in source_of_kernel(kernel).text
    assert fuser.cache.built <= 3                              # one that knows its sizes, and no more than two for the others


@pytest.mark.parametrize("program", (pointwise, rows, columns, transposed, windows, sines, totals), ids=lambda f: f.__name__)
def test_threads_of_a_kernel_share_other_sizes(tmp_path, program):
    fuser, before = executor(tmp_path), torch.get_num_threads()
    jitted = tracejit.jit(program, executors=[fuser], fallback="error")
    torch.set_num_threads(3)
    try:
        for n in (540, 760, 1010):
            x = torch.randn(n, n)
            mine, theirs = x.clone(), x.clone()
            torch.testing.assert_close(jitted(mine, n), program(theirs, n))
            torch.testing.assert_close(mine, theirs)
    finally:
        torch.set_num_threads(before)
    assert any(k.threads > 1 for k in map(source_of_kernel, jitted.kernels))


def source_of_kernel(kernel):
    return kernel.region.sym.fn.source


def test_gradients_at_all_lengths_are_eagers(tmp_path):
    fuser, block = executor(tmp_path), Block(explicit=True)
    jitted = tracejit.jit(block, executors=[fuser], fallback="error")
    for length in (18, 1, 25, 32, 47):
        x = torch.randn(2, length, 32, requires_grad=True)
        wanted = torch.autograd.grad(block(x).square().sum(), [x, *block.parameters()])
        found = torch.autograd.grad(jitted(x).square().sum(), [x, *block.parameters()])
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert not jitted.replayed_because


def layer(x, w):
    h = F.gelu(F.layer_norm(x * w, x.shape[-1:])) + x
    return (h.softmax(-1) * x).sum(0) + h.amax(-1).mean()


def gradients_of(fn, n):
    """The gradients of large tensors: each kernel of them has work for two threads."""
    generator = torch.Generator().manual_seed(n)
    x, w = (torch.randn(*shape, generator=generator, requires_grad=True) for shape in ((n, 512), (512,)))
    return torch.autograd.grad(fn(x, w).square().sum(), (x, w))


@pytest.fixture(params=[1, 2], ids="{} threads of torch".format)
def torch_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_gradients_of_large_tensors_at_many_sizes(tmp_path, torch_threads):
    fuser = executor(tmp_path)
    jitted = tracejit.jit(layer, executors=[fuser], fallback="error")
    built = []
    for n in (600, 601, 777, 900, 1024):
        torch.testing.assert_close(gradients_of(jitted, n), gradients_of(layer, n), rtol=1e-4, atol=1e-4)
        built.append(fuser.cache.built)
    assert not jitted.replayed_because and jitted.cache_info().entries == 5
    assert any(source_of_kernel(k).threads > 1 for k in jitted.kernels) and built[1] == built[-1]      # one text of known sizes, one of others


def test_threads_take_gradients_at_sizes_that_share_code(tmp_path, torch_threads):
    jitted = tracejit.jit(layer, executors=[executor(tmp_path)], fallback="error")
    sizes = (600, 601, 777, 900)
    expected = {n: (gradients_of(jitted, n), gradients_of(jitted, n))[1] for n in sizes}
    wrong, ready = [], threading.Barrier(8)

    def work(k):
        ready.wait()
        for n in (*sizes[k % 4:], *sizes[:k % 4]) * 3:
            got = gradients_of(jitted, n)
            wrong.extend(n for a, b in zip(got, expected[n]) if not torch.equal(a, b))
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and jitted.cache_info().misses == len(sizes)
