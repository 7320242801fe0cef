"""Pointwise CUDA kernels: widths of accesses, edges of ranges, layouts, dtypes."""
import pytest
import torch
from torch.nn import functional as F

import tracejit
from proof import ARCHITECTURES, exact, needs_nvrtc, prove, thin
from shim import ORDERS
from tracejit.codegen.cuda_source import cuda_source
from tracejit.executors import nvrtc

pytestmark = needs_nvrtc


@pytest.mark.parametrize("dtype", thin([torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.float16, torch.int32,
                                        torch.uint8, torch.int16, torch.int8], 3), ids=str)
def test_aligned_contiguous_operands_move_in_16_bytes(dtype):
    x, y = (torch.randint(-20 if dtype.is_signed else 0, 20, (32, 64)).to(dtype) for _ in range(2))
    lowered, counts = prove(lambda x, y: x * y + x, x, y, kernels=1, close=exact)
    (facts,) = lowered.kernels[0].facts.values()
    assert set(facts.loads) == set(facts.stores) == {16}
    elements = 16 // dtype.itemsize
    assert sum(facts.loads) // dtype.itemsize == 2 * elements and sum(facts.stores) // dtype.itemsize == elements
    assert all(int(n) == 1 for c in counts for by in (c.loads, c.stores) for t in by.values() for n in t.unique() if n)


@pytest.mark.parametrize("n", thin([1003, 1, 3, 4, 5, 255, 4097], 7))
def test_the_tail_of_a_range_is_single_elements(n):
    prove(lambda x: x.abs() + 1, torch.randn(n), close=exact, orders=tuple(ORDERS))


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


@pytest.mark.parametrize("fn,args", thin([
    (lambda x, b: x + b, ((16, 64), (64,))), (lambda x, b: x * b, ((16, 64), (16, 1))), (lambda x, b: x - b, ((5, 7, 9), (7, 1))),
    (lambda x: x[:, 1::2] + 1, ((8, 64),)), (lambda x: x.flip(1) * 2, ((8, 64),)), (lambda x: x.expand(4, 8, 64) + 1, ((8, 64),)),
    (lambda x: torch.cat([x[:, 32:], x[:, :32]], 1) * 2, ((8, 64),)), (lambda x: torch.cat([x[:, 33:], x[:, :33]], 1) * 2, ((8, 64),)),
    (lambda x: F.pad(x, (1, 3, 2, 0)) + 1, ((8, 60),)), (lambda x: x.tril() + 1, ((24, 24),)),
    (lambda x: x.view(4, 2, 64).transpose(0, 1).reshape(8, 64) + 1, ((8, 64),)), (lambda x: x.roll(3, 1) - x, ((8, 64),)),
    (lambda x: torch.stack([x, x * 2], 1).view(16, 64) + 1, ((8, 64),))], 4))
def test_views_and_windows(fn, args):
    prove(fn, *(torch.randn(s) for s in args), close=exact)


def test_windows_at_chunks_keep_their_vectors():
    lowered, _ = prove(lambda x: torch.cat([x[:, 32:], x[:, :32]], 1) * 2, torch.randn(16, 64))
    (facts,) = lowered.kernels[0].facts.values()
    assert set(facts.loads) == set(facts.stores) == {16}


@pytest.mark.parametrize("fn", thin([
    torch.exp, torch.tanh, torch.sigmoid, F.silu, F.gelu, lambda x: F.gelu(x, approximate="tanh"), torch.erf, torch.sin, torch.log1p,
    torch.expm1, torch.rsqrt, torch.floor, torch.round, torch.sign, torch.relu, F.softplus, F.elu, lambda x: x ** 3, lambda x: x ** 2.5,
    lambda x: torch.fmod(x, 0.3), lambda x: torch.remainder(x, -0.3), lambda x: torch.atan2(x, x + 1), lambda x: x.clamp(-0.5, 0.5),
    lambda x: torch.where(x > 0, x, -x * 2), lambda x: torch.lerp(x, x * 2, 0.3), lambda x: torch.addcmul(x, x, x, value=0.3),
    lambda x: torch.isnan(x), lambda x: (x > 0) & (x < 1), lambda x: x.to(torch.int32), lambda x: x.to(torch.bfloat16).float()], 6))
def test_operations(fn):
    prove(fn, torch.cat([torch.randn(120), torch.tensor([0.0, -0.0, float("nan"), 1e-40, -1.0, 20.0, -20.0, 0.5])]),
          orders=("numbered",))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_rounded_at_every_operation(dtype):
    prove(lambda x, y: (x + y) * 1.1 - y / 3, torch.randn(64, 64).to(dtype), torch.randn(64).to(dtype), close=exact)


def test_in_place_writes_go_where_they_belong():
    def step(cache, k):
        cache[3].mul_(0.9).add_(k)
        k.relu_()
        return cache[3:5] * 2
    prove(step, torch.randn(8, 64), torch.randn(64), close=exact)


def test_more_than_32_bits_of_elements_take_64_bit_indices():
    lowered = tracejit.lower(lambda x: x + 1, torch.empty(1 << 32, dtype=torch.int8))      # its pages are never touched
    (kernel,) = lowered.kernels
    assert "for (i64 o" in kernel.source and " int i" not in kernel.source
    kernel.compiled()
