"""Calling a region: the launcher in C and the one in Python do the same, own what they must, and pass errors on."""
import gc
import sys
import threading
import weakref

import pytest
import torch

import tracejit
from tracejit.executors import launch
from tracejit.executors.cpu import CpuExecutor

pytestmark = pytest.mark.compiler


def region_of(fn, *args):
    """(the region's launch function, a jitted function) of a program that is one region."""
    jitted = tracejit.jit(fn, executors=[CpuExecutor(allow_single_op_fusion=True)], fallback="error")
    jitted(*args)
    (region,) = jitted.last_traces[-1].regions
    return region.sym.fn.launch, jitted


@pytest.fixture(params=["c", "python"])
def launcher(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(launch, "_launch_in_c", lambda layout, library: None)
    return request.param


def scaled(x, y):
    return x * 2 + y, x - y


def test_results_are_eagers(launcher):
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    call, jitted = region_of(scaled, x, y)
    assert (type(call).__name__ == "builtin_function_or_method") == (launcher == "c")
    for got, expected in zip(jitted(x, y), scaled(x, y)):
        assert torch.equal(got, expected)


def test_arguments_are_views_into_larger_storages(launcher):
    base, y = torch.randn(4, 6), torch.randn(3, 2)
    _, jitted = region_of(scaled, base[1:, 2:4], y)
    for got, expected in zip(jitted(base[1:, 2:4], y), scaled(base[1:, 2:4], y)):
        assert torch.equal(got, expected)


def test_nothing_is_kept_and_nothing_is_lost(launcher):
    x, y = torch.randn(8), torch.randn(8)
    call, _ = region_of(scaled, x, y)
    before = sys.getrefcount(x)
    for _ in range(100):
        results = call(x, y)
    assert sys.getrefcount(x) == before and [sys.getrefcount(r) for r in results] == [3, 3]
    dropped = weakref.ref(results[0])
    del results
    gc.collect()
    assert dropped() is None


def test_an_index_out_of_range_raises_and_frees_the_results(launcher):
    def look_up(table, index):
        return torch.nn.functional.embedding(index, table) * 2
    table, index = torch.randn(10, 4), torch.tensor([1, 2])
    call, _ = region_of(look_up, table, index)
    for _ in range(3):
        with pytest.raises(IndexError, match="index out of range"):
            call(torch.tensor([1, 10]), table)


def test_many_threads_call_one_region():
    x, y = torch.randn(300_000), torch.randn(300_000)
    call, _ = region_of(scaled, x, y)
    expected, wrong = scaled(x, y), []

    def work():
        for _ in range(20):
            wrong.extend(not torch.equal(a, b) for a, b in zip(call(x, y), expected))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(wrong) == 160 and not any(wrong)
