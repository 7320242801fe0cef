"""Python floats that are known at run time alone are parameters of kernels, in the type that they compute in."""
import re

import numpy
import pytest
import torch

import shim
import tracejit
from on_shim import ShimExecutor
from proof import exact, needs_nvrtc, prove
from shim import ORDERS
from test_executor import Here
from tracejit.executors import nvrtc
from tracejit.executors.cubins import CubinCache
from tracejit.executors.cupy import CudaRegion, packed

pytestmark = needs_nvrtc


def scaled(x, scale):
    return torch.add(x, x * scale, alpha=scale).relu() < scale


def rates(*values):
    return [torch.tensor(v, dtype=torch.float64) for v in values]


@pytest.mark.parametrize("dtype,told", [(torch.float32, "const float"), (torch.float64, "const double"), (torch.int32, "const float")], ids=str)
def test_a_float_that_changes_from_call_to_call_is_a_parameter(dtype, told):
    executor = ShimExecutor()
    fn = tracejit.jit(scaled, executors=[executor, "cpu"], fallback="error")
    x = (torch.randn(1003) * 8).to(dtype)
    for scale in (0.1, 0.7, 1e-3, -3.3):
        assert torch.equal(fn(x, scale), scaled(x, scale))
    assert (fn.cache_info().misses, fn.cache_info().hits) == (2, 2)
    (region,) = fn.last_traces[-1].regions
    (number,) = [p for launch in executor.sources[-1].launches for p in launch.parameters if p.number]
    assert region.executor == "shim" and number.text.startswith(told)


def test_arithmetic_on_floats_is_the_hosts_and_its_result_a_parameter():
    def fn(x, count):
        return x * (1 - 0.9 ** count.item()) + 1
    lowered, _ = prove(fn, torch.randn(64), torch.tensor(3.0), whole=False, close=exact, orders=tuple(ORDERS))
    (kernel,) = lowered.kernels
    assert [b.sym.name for b in kernel.region.subsymbols] == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert [b.executor for b in lowered.traces[-1].bound_symbols if b.sym.numbers] == ["torch"] * 3


def test_each_of_equal_kernels_has_its_float_in_the_table():
    def scale(xs, a, b):
        for n, x in enumerate(xs):
            x.mul_(a if n % 2 else b)
    executor = ShimExecutor(allow_single_op_fusion=True)
    fn = tracejit.jit(scale, executors=[executor], fallback="error")
    for a, b in ((0.5, 3.0), (0.25, 5.0), (0.75, 7.0)):
        xs, eager = ([torch.arange(64.0) for _ in range(5)] for _ in range(2))
        fn(xs, a, b), scale(eager, a, b)
        assert all(map(torch.equal, xs, eager))
    (launch,) = executor.sources[-1].launches
    assert (launch.copies, launch.table) == (5, 5) and sum(p.number for p in launch.parameters) == 1
    (parameter,) = re.findall(r"\.b8 k0_param_0\[(\d+)\]", nvrtc.compile_text(executor.sources[-1].text, "sm_90").ptx)
    values = [float(n) if p.number else n for p in launch.parameters for n in range(5)]
    assert packed(values, launch).nbytes == int(parameter)


def test_a_launch_passes_a_float_of_four_bytes_and_reads_it_at_each_call(tmp_path):
    device, x = Here(), torch.randn(64)
    (kernel,) = tracejit.lower(lambda x, s: x * s.item() + 1, x, *rates(0.1)).kernels
    region = CudaRegion(kernel.region, CubinCache(tmp_path), device, kernel.code)
    for rate in rates(0.1, 0.3):
        (out,) = region(*[rate if p.number else x for p in kernel.region.args])
    for (_, _, _, arguments, _, _), wanted in zip(device.modules[0].calls, (0.1, 0.3)):
        (number,) = [a for a in arguments if type(a) is not int]
        assert type(number) is numpy.float32 and number == numpy.float32(wanted)
    assert len(device.modules) == 1                            # a float is no address: it says nothing about alignment


def test_a_float_passed_as_double_is_found():
    x = torch.randn(64)
    (kernel,) = tracejit.lower(lambda x, s: x * s.item() + 1, x, *rates(0.1)).kernels
    given = [*rates(0.1), x] if kernel.region.args[0].number else [x, *rates(0.1)]
    (out,), _ = shim.run_region(kernel.code, kernel.region, given)
    assert torch.equal(out, x * 0.1 + 1)
    text = re.sub(r"const float (a\d)([,)])", r"const double \1\2", kernel.code.text)
    with pytest.raises(shim.ShimError, match="takes 8 bytes, and 4 are passed"):
        shim.run_region(kernel.code, kernel.region, given, text=text)
