"""Rows too long to be kept: softmax and layer norm read them twice, by one block or several, and treat special values as eager does."""
import pytest
import torch
from torch.nn import functional as F

import tracejit
from proof import ARCHITECTURES, assert_facts, needs_nvrtc, prove, summed
from shim import ORDERS
from tracejit.codegen import cuda_rows, cuda_source
from tracejit.codegen.lower import Sharing

pytestmark = needs_nvrtc
PROGRAMS = {"softmax": lambda x: torch.softmax(x, -1), "log_softmax": lambda x: F.log_softmax(x, -1),
            "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]), "var_mean": lambda x: torch.var_mean(x, -1)}
each_program = pytest.mark.parametrize("name", PROGRAMS)


@pytest.fixture(params=["of a block", "shared"])
def short(request, monkeypatch):
    """Rows of this many elements are too long already: for the registers of a block, or for one block."""
    if request.param == "shared":
        monkeypatch.setattr(cuda_source, "SHARING", Sharing(8, 4096, again=(8, 4096)))
    else:
        monkeypatch.setattr(cuda_rows, "KEPT_BYTES", 8)
    return 9000


@each_program
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_long_row_has_no_local_memory_and_one_pass_for_both_reductions(name, dtype):
    (kernel,) = tracejit.lower(PROGRAMS[name], torch.empty(200, 70_000, dtype=dtype)).kernels
    passes = kernel.source.count("for (int c = 0;")
    assert passes == (1 if name == "var_mean" else 2) and len(kernel.launches) == 1
    for arch in ARCHITECTURES:
        for facts in assert_facts(kernel, arch).values():
            assert set(facts.loads) == {16}


@each_program
@pytest.mark.parametrize("rows", [1, 2])
def test_a_long_row_is_read_twice_and_is_as_in_eager(name, rows, short):
    x = torch.randn(rows, short) * 3
    lowered, (counts,) = prove(PROGRAMS[name], x, close=summed, orders=tuple(ORDERS))
    times = 1 if name == "var_mean" else 2
    assert {int(n) for key, t in counts.loads.items() if not isinstance(key, str) for n in t.unique()} == {0, times}
    assert lowered.kernels[0].bytes_read == times * x.nbytes
    assert len(lowered.kernels[0].launches) in (1, times + 1)      # of shared rows one a pass, and one that combines their parts


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_infinities_and_nan_in_a_long_row(name, short):
    inf = float("inf")
    x = torch.randn(6, short)
    x[0, :5000] = x[1] = -inf
    x[2, 4000], x[3, 17], x[4, 8999] = inf, float("nan"), 80
    x[5, :100] = torch.tensor(-inf)
    prove(PROGRAMS[name], x, close=summed)


@pytest.mark.parametrize("offset,tolerance", [(0, 3e-6), (1000, 3e-6), (-3e4, 1e-4)])
def test_the_variance_of_a_long_row_keeps_its_digits_beside_a_large_mean(offset, tolerance, short):
    """The mean of floats near 30,000 is known to one part in 2^24 of it, two thousandths of their deviation, a part's and the row's alike."""
    x = torch.randn(2, short) + offset
    x[1, 0] = 1e6 + offset
    exact = torch.var(x.double(), -1)

    def close(got, want):
        assert got.dim() > 1 or bool(((got - exact).abs() <= tolerance * exact).all()), (got, exact)
    prove(lambda x: torch.var(x, -1), x, close=close)
