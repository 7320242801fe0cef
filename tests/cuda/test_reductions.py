"""Rows, columns and whole tensors: which threads take what."""
import pytest
import torch
from torch.nn import functional as F

import tracejit
from proof import ARCHITECTURES, assert_facts, needs_nvrtc, prove, summed
from programs import scaled_by_its_rows, softmax, values
from shim import ORDERS

pytestmark = needs_nvrtc


@pytest.mark.parametrize("n,threads", [(64, 128), (1024, 128), (4096, 256), (16384, 1024)])
def test_a_row_is_one_kernel_and_read_once(n, threads):
    lowered, (counts,) = prove(lambda x: torch.softmax(x, -1), torch.randn(8 if n > 10000 else 3, n), kernels=1, close=summed)
    assert lowered.kernels[0].launches[0].block == threads
    assert {int(c) for t in counts.loads.values() for c in t.unique()} == {0, 1}
    for facts in lowered.kernels[0].facts.values():
        assert set(facts.loads) == set(facts.stores) == {16}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rows_of_halves_are_read_once_in_16_bytes(dtype):
    lowered, (counts,) = prove(lambda x, w: softmax(x) * w, values((6, 512), dtype), values((512,), dtype), close=summed)
    for facts in lowered.kernels[0].facts.values():
        assert set(facts.loads) == set(facts.stores) == {16}
    assert {int(n) for t in counts.loads.values() for n in t.unique()} <= {0, 1, 6}


def test_max_keeps_nan():
    x = torch.randn(8, 100)
    x[2, 50], x[3, 0] = float("nan"), float("inf")
    prove(lambda x: (x.amax(-1), x.amin(-1), x.amax(0)), x)


@pytest.mark.parametrize("shape,dim", [((1, 70000), -1), ((4096, 8), 0)])
def test_rows_that_blocks_share_are_combined_by_a_second_launch(shape, dim):
    prove(lambda x: (x * 2).sum(dim), torch.rand(shape), kernels=2, close=summed, orders=tuple(ORDERS))


@pytest.mark.parametrize("rows,n,launches,reads", [(4, 32768, 1, 1), (4, 65536, 1, 2), (31, 70_000, 3, 2), (32, 70_000, 1, 2)])
def test_blocks_share_rows_that_are_read_again_only_where_they_are_few_and_long(rows, n, launches, reads):
    x = torch.empty(rows, n)
    (kernel,) = tracejit.lower(lambda x: F.layer_norm(x, (n,)), x).kernels
    assert (len(kernel.launches), kernel.bytes_read, kernel.bytes_written) == (launches, reads * x.nbytes, x.nbytes)


@pytest.mark.parametrize("shape", [(1, 1024), (1024,)])
def test_a_single_row_is_one_kernel_with_what_is_computed_of_its_results(shape):
    prove(lambda x: F.layer_norm(x, (1024,)), torch.randn(shape), kernels=1, close=summed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 21, 260), (2, 100, 68), (1, 5, 3)])
def test_short_columns_are_read_once(shape, dtype):
    x = values(shape, dtype)
    for fn in (lambda x: torch.softmax(x, 1), lambda x: torch.std(x, 1)):
        lowered, (counts,) = prove(fn, x, kernels=1, close=summed, orders=tuple(ORDERS))
        assert {int(n) for key, t in counts.loads.items() if not isinstance(key, str) for n in t.unique()} <= {0, 1}
        assert lowered.kernels[0].bytes_read == x.nbytes


def test_columns_that_are_read_again_are_counted():
    x = torch.empty(2000, 1024)
    (kernel,) = tracejit.lower(lambda x: torch.softmax(x, 0), x).kernels
    assert kernel.bytes_read == 3 * x.nbytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("n", [64, 256, 3000])
def test_workers_of_a_column_have_registers_enough(n, dtype):
    (kernel,) = tracejit.lower(lambda x: torch.std(x, 1), torch.empty(2, n, 64, dtype=dtype)).kernels
    for arch in ARCHITECTURES:
        assert_facts(kernel, arch)


def test_a_column_is_walked_by_neighbouring_threads():
    lowered, (counts,) = prove(lambda x: (x + 1).sum(0), torch.randn(300, 1024), close=summed)
    loads = {w for f in lowered.kernels[0].facts.values() for w in f.loads if w > 4}
    assert loads == {16} and {int(c) for key, t in counts.loads.items() if not isinstance(key, str) for c in t.unique()} <= {0, 1}


def test_a_row_that_is_overwritten_by_what_it_reduces_to():
    prove(scaled_by_its_rows, torch.randn(6, 200), torch.randn(6), orders=tuple(ORDERS), close=summed)


def test_the_headline_layer_norm_moves_the_least():

    x, w, b = torch.empty(10, 512, 1024, dtype=torch.float16), *(torch.empty(1024, dtype=torch.float16) for _ in range(2))
    lowered = tracejit.lower(lambda x, w, b: F.layer_norm(x, (1024,), w, b), x, w, b)
    moved = sum(k.bytes_read + k.bytes_written for k in lowered.kernels)
    assert moved <= 1.05 * (2 * x.nbytes + w.nbytes + b.nbytes)
