"""Pointwise CUDA kernels: widths of accesses, edges of ranges, transposes."""
import re

import pytest
import torch

import shim
import tracejit
from proof import ARCHITECTURES, assert_facts, exact, needs_nvrtc, prove, thin
from programs import values
from shim import ORDERS
from tracejit.codegen.cuda_source import cuda_source
from tracejit.executors import nvrtc

pytestmark = needs_nvrtc


@pytest.mark.parametrize("dtype", thin([torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.float16, torch.int32,
                                        torch.uint8, torch.int16, torch.int8], 3), ids=str)
def test_aligned_contiguous_operands_move_once_and_in_16_bytes(dtype):
    lowered, counts = prove(lambda x, y: x * y + x, values((32, 64), dtype), values((32, 64), dtype, 1), kernels=1, close=exact)
    (facts,) = lowered.kernels[0].facts.values()
    assert set(facts.loads) == set(facts.stores) == {16}
    elements = 16 // dtype.itemsize
    assert sum(facts.loads) // dtype.itemsize == 2 * elements and sum(facts.stores) // dtype.itemsize == elements
    assert all(int(n) == 1 for c in counts for by in (c.loads, c.stores) for t in by.values() for n in t.unique() if n)


def test_the_tail_of_a_range_is_single_elements():
    lowered, _ = prove(lambda x: x.abs() + 1, torch.randn(1003), close=exact, orders=tuple(ORDERS))
    (facts,) = lowered.kernels[0].facts.values()
    assert (facts.loads, facts.stores) == ((16, 4), (16, 4))


def test_operands_that_are_not_aligned_are_read_one_by_one():
    lowered, _ = prove(lambda x, y: x + y, torch.randn(65)[1:], torch.randn(64), close=exact)
    (facts,) = lowered.kernels[0].facts.values()
    assert sorted(facts.loads) == [4, 4, 4, 4, 16] and facts.stores == (16,)


def test_a_pointer_that_is_not_aligned_takes_the_scalar_text():
    lowered, _ = prove(lambda x: x * 2, torch.randn(64))
    scalar = cuda_source(lowered.kernels[0].region, aligned=False)
    for arch in ARCHITECTURES:
        (facts,) = nvrtc.facts_of(nvrtc.compile_text(scalar.text, arch)).values()
        assert set(facts.loads) == set(facts.stores) == {4}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_many_operands_do_not_spill(dtype):
    def chain(*xs):
        out = xs[0]
        for x in xs[1:]:
            out = out * 1.5 + x.exp()
        return out, out > 0
    lowered = tracejit.lower(chain, *[values((4096,), dtype, n) for n in range(20)])
    for kernel in lowered.kernels:
        for arch in ARCHITECTURES:
            for facts in assert_facts(kernel, arch).values():
                assert facts.spills == facts.stack == 0


def test_windows_at_chunks_keep_their_vectors():
    lowered, _ = prove(lambda x: torch.cat([x[:, 32:], x[:, :32]], 1) * 2, torch.randn(16, 64))
    (facts,) = lowered.kernels[0].facts.values()
    assert set(facts.loads) == set(facts.stores) == {16}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float64], ids=str)
def test_a_transpose_meets_no_bank_twice(dtype):
    """Lanes of a warp write a row of the tile and read a column: 32 words in 32 banks; wider elements take half a warp at a time."""
    source = tracejit.lower(lambda x: x.t().contiguous() + 1, values((64, 64), dtype)).kernels[0].source
    (elements,) = re.findall(r"__shared__ [\w ]+ T\d+\[(\d+)\];", source)
    step = int(re.search(r"T\d+\[m \* (\d+) \+ p\]", source)[1])
    assert int(re.search(r"T\d+\[p \* (\d+) \+ m\]", source)[1]) == step and int(elements) == 32 * step
    lanes = 32 if dtype.itemsize <= 4 else 16
    for at in (lambda lane: lane, lambda lane: lane * step):
        words = {at(lane) * dtype.itemsize // 4 for lane in range(lanes)}
        assert len({w % 32 for w in words}) == len(words)


def test_more_than_32_bits_of_elements_take_64_bit_indices():
    lowered = tracejit.lower(lambda x: x + 1, torch.empty(1 << 32, dtype=torch.int8))      # its pages are never touched
    (kernel,) = lowered.kernels
    assert "for (i64 o" in kernel.source and " int i" not in kernel.source
    kernel.compiled()


def test_an_index_out_of_bounds_traps_and_names_the_line():

    lowered = tracejit.lower(lambda w, i: torch.nn.functional.embedding(i, w) * 2, torch.randn(5, 8), torch.tensor([1, 2]))
    (kernel,) = lowered.kernels
    given = {"w": torch.randn(5, 8), "i": torch.tensor([1, 5])}
    with pytest.raises(shim.ShimError, match=r"index out of range in self \(.*test_pointwise.py:\d+\)"):
        shim.run_region(kernel.code, kernel.region, [given[p.name] for p in kernel.region.args])
    assert "__assertfail" in kernel.compiled("sm_80").ptx


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16, torch.int8], ids=str)
def test_integers_wrap(dtype):
    """NVRTC takes it that signed sums do not overflow; what it may conclude is not so in eager."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([least, most, -1, 0, 1, least + 1, most - 1, 3] * 8).to(dtype)
    prove(lambda x: ((x + 1) > x, (x - 1) < x, (x * 2) // 2 == x, x.abs() < 0, -x == x, (x * x - x).sum(), x.prod(), x // -1),
          x, close=exact)
    for fn in (lambda x: (x + 1) > x, lambda x: x.abs() < 0):
        (kernel,) = tracejit.lower(fn, x).kernels
        (facts,) = kernel.facts.values()
        assert facts.loads, "what is stored does not depend on x"


def test_operands_out_of_their_range_trap():
    def loss(x, y):
        return torch.nn.functional.binary_cross_entropy(x, y)
    (kernel,) = tracejit.lower(loss, torch.rand(64), torch.rand(64)).kernels
    with pytest.raises(shim.ShimError, match="all elements of input and target should be between 0 and 1"):
        shim.run_region(kernel.code, kernel.region, [torch.full((64,), 2.0) for _ in kernel.region.args])
    kernel.compiled()
