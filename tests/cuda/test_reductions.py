"""Rows, columns and whole tensors: which threads take what, in every order of threads."""
import pytest
import torch
from torch.nn import functional as F

from proof import exact, needs_nvrtc, prove, summed, thin
from shim import ORDERS

pytestmark = needs_nvrtc


def softmax(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@pytest.mark.parametrize("rows,n", thin([(7, 96), (3, 1), (5, 3), (4, 64), (2, 1024), (3, 1000), (2, 4096), (2, 5001), (4, 12000)], 4))
@pytest.mark.parametrize("fn", [lambda x: torch.softmax(x, -1), lambda x: F.layer_norm(x, x.shape[-1:])], ids=["softmax", "layer_norm"])
def test_rows_of_every_length(fn, rows, n):
    prove(fn, torch.randn(rows, n), kernels=1, orders=tuple(ORDERS) if n == 96 else ("random",), close=summed)


@pytest.mark.parametrize("fn", thin([
    lambda x: x.sum(-1), lambda x: x.mean((0, 2)), lambda x: x.amax(1), lambda x: x.argmax(-1), lambda x: torch.var_mean(x, -1),
    lambda x: torch.linalg.vector_norm(x, dim=-1), lambda x: torch.logsumexp(x, -1), lambda x: x.prod(-1), lambda x: (x > 0).any(-1), lambda x: (x > -9).all(1),
    lambda x: x.sum(0), lambda x: torch.softmax(x, 0), lambda x: x.std(1), lambda x: x.max(-1), lambda x: x.amin((0, 1)),
    lambda x: F.log_softmax(x, 1), lambda x: x.sum(), lambda x: x.to(torch.float64).sum(0)], 5))
def test_reductions(fn):
    prove(fn, torch.randn(6, 40, 36), close=summed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rows_of_halves_are_read_once_in_16_bytes(dtype):
    lowered, (counts,) = prove(lambda x, w: softmax(x) * w, torch.randn(6, 512).to(dtype), torch.randn(512).to(dtype), whole=False)
    for facts in lowered.kernels[0].facts.values():
        assert set(facts.loads) == set(facts.stores) == {16}
    (x, *_) = counts.loads.values()
    assert {int(n) for t in counts.loads.values() for n in t.unique()} <= {0, 1, 6}


@pytest.mark.parametrize("dtype", thin([torch.int64, torch.int8, torch.bool, torch.uint8, torch.int16, torch.int32], 3), ids=str)
def test_integers(dtype):
    x = torch.randint(0, 100, (9, 70)).to(dtype)
    prove(lambda x: (x.sum(-1), x.amax(0), x.amin(-1)), x, close=exact)


def test_max_keeps_nan():
    x = torch.randn(8, 100)
    x[2, 50], x[3, 0] = float("nan"), float("inf")
    prove(lambda x: (x.amax(-1), x.amin(-1)), x)
    prove(lambda x: x.amax(0), x)


@pytest.mark.parametrize("shape,dim", thin([((1, 70000), -1), ((200000,), 0), ((4096, 8), 0), ((3000, 40), 0), ((2, 30000), 1)], 3))
def test_rows_that_blocks_share(shape, dim):
    lowered, _ = prove(lambda x: (x * 2).sum(dim), torch.randn(shape), close=summed)
    assert len(lowered.kernels[0].launches) == 2


def test_few_columns_of_many_rows_in_several_stages():
    lowered, _ = prove(lambda x: torch.softmax(x, 0), torch.randn(2048, 12))
    assert len(lowered.kernels[0].launches) == 5


def test_batch_norm_writes_its_statistics():
    def step(x, mean, var, weight, bias):
        return F.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5)
    prove(step, torch.randn(4, 5, 6, 8), torch.zeros(5), torch.ones(5), torch.randn(5), torch.randn(5), whole=False, close=summed)


def test_a_row_that_is_overwritten_by_what_it_reduces_to():
    def step(x, scale):
        y = x * scale[:, None]
        scale.copy_(y.sum(-1))
        return y
    prove(step, torch.randn(6, 200), torch.randn(6), orders=tuple(ORDERS), close=summed)
