"""Equal kernels on many tensors: one launch takes the pointers of as many as its parameters hold."""
from dataclasses import replace

import pytest
import torch

import shim
import tracejit
from on_shim import ShimExecutor
from proof import exact, needs_nvrtc, prove, summed
from regions import fused
from shim import ORDERS
from test_executor import Here, region_of
from tracejit.executors.cubins import CubinCache
from workloads import adam_many

pytestmark = needs_nvrtc


def lists(tensors, count, n):
    return [[torch.rand(n) + 0.5 for _ in range(tensors)] for _ in range(count)]


def test_an_optimizer_over_a_list_is_one_launch_that_reads_and_writes_each_element_once():
    lowered, (counts,) = prove(adam_many, *lists(5, 4, 96), kernels=1, close=exact, orders=tuple(ORDERS))
    (launch,) = lowered.kernels[0].launches
    assert (launch.copies, launch.table) == (5, 5)
    assert {int(n) for by in (counts.loads, counts.stores) for t in by.values() for n in t.unique()} <= {0, 1}
    (facts,) = lowered.kernels[0].facts.values()
    assert (facts.loads, facts.stores) == ((16,) * 4, (16,) * 3)


def test_a_launch_takes_no_more_pointers_than_its_parameters_hold():
    def step(xs, ys):
        for x, y in zip(xs, ys):
            x.add_(y)
    lowered, _ = prove(step, *lists(260, 2, 4), kernels=2, close=exact)
    assert [(launch.name, launch.copies, launch.table) for launch in lowered.kernels[0].launches] == [("k0", 256, 256), ("k0", 4, 256)]
    assert lowered.kernels[0].source.count("__global__") == 1


def test_each_shape_of_a_list_is_one_launch():
    def step(xs):
        for x in xs:
            x.mul_(2).add_(1)
    lowered, _ = prove(step, [torch.rand(8 + n % 9) for n in range(27)], kernels=9, close=exact)
    assert all(launch.copies == 3 for kernel in lowered.kernels for launch in kernel.launches)


def test_blocks_that_share_a_row_have_scratch_memory_of_their_own():
    x, y = torch.rand(70_000), torch.rand(70_000)
    executor = ShimExecutor(allow_single_op_fusion=True)
    got = fused(lambda x, y: (x.sum(), y.sum()), x, y, executor=executor)
    for g, want in zip(got, (x.sum(), y.sum())):
        summed(g, want)
    first, second = executor.sources[0].launches
    assert first.copies == second.copies == 2 and first.offsets[4:] == second.offsets[4:] == (0, 256, 512, 768)


def test_two_sets_of_the_same_tensors_in_one_launch_are_found():
    args = lists(3, 4, 96)
    (kernel,) = tracejit.lower(adam_many, *args).kernels
    (launch,) = kernel.launches
    twice = tuple(b for p in range(4) for b in [launch.buffers[3 * p]] * 2 + [launch.buffers[3 * p + 2]])
    with pytest.raises(shim.ShimError, match="a race"):
        shim.run_region(replace(kernel.code, launches=(replace(launch, buffers=twice),)), kernel.region, sum(args, []))


def test_a_table_goes_as_one_structure_by_value(tmp_path):
    device, args = Here(), lists(3, 2, 64)
    def step(xs, ys):
        for x, y in zip(xs, ys):
            x.add_(y)
    region = region_of(step, *args, cache=CubinCache(tmp_path), device=device)
    given = {p.name: t for p, t in zip(tracejit.lower(step, *args).traces[-1].inputs, sum(args, []))}
    region(*[given[p.name] for p in region.region.args])
    ((_, grid, _, (table,), _, _),) = device.modules[0].calls
    assert grid == (1, 3, 1) and table.size == 1 and table.nbytes == 48
    addresses = table.view("u8").tolist()
    assert {frozenset(addresses[:3]), frozenset(addresses[3:])} == {frozenset(t.data_ptr() for t in ts) for ts in args}
