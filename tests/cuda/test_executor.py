"""How kernels are launched: against a CuPy that records what it is given, and runs it on the shim."""
import sys
import types
import warnings
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tracejit
from proof import needs_nvrtc
from tracejit.errors import FallbackWarning
from tracejit.executors import cupy as executor
from tracejit.executors.cubins import CubinCache
from tracejit.executors.cupy import CudaRegion, CupyExecutor, Device
from tracejit.inspection.kernels import Kernel
from tracejit.ir.symbol import Symbol

pytestmark = needs_nvrtc


class Recorded:
    """A `cupy.cuda.Module`: `calls` holds (name, grid, block, arguments, shared memory, stream) of each launch."""

    def __init__(self):
        self.calls = []

    def load(self, cubin):
        self.cubin = bytes(cubin)

    def get_function(self, name):
        def function(grid, block, arguments, shared_memory, stream):
            self.calls.append((name, grid, block, arguments, shared_memory, stream.ptr))
        return function


class Here(Device):
    """A device whose memory is the CPU's."""

    arch = "sm_90"

    def __init__(self):
        super().__init__(0)
        self.streams = iter(range(100, 1000))
        self.modules = []

    def stream(self):
        return executor.Stream(next(self.streams))

    def empty_strided(self, shape, stride, dtype):
        return torch.empty_strided(shape, stride, dtype=dtype)

    def load(self, cubin):
        self.modules.append(Recorded())
        self.modules[-1].load(cubin)
        return self.modules[-1]

    def run(self, launch):
        return launch()


@pytest.fixture
def device():
    return Here()


def region_of(fn, *args, cache, device):
    (kernel,) = tracejit.lower(fn, *args).kernels
    return CudaRegion(kernel.region, cache, device, kernel.code)


def test_pointers_grid_and_stream_of_a_launch(tmp_path, device):
    x, y = torch.randn(64, 64), torch.randn(64)
    region = region_of(lambda x, y: x * y + 1, x, y, cache=CubinCache(tmp_path), device=device)
    (out,) = region(x, y)
    ((name, grid, block, arguments, shared, stream),) = device.modules[0].calls
    assert (name, grid, block, shared) == ("k0", (4, 1, 1), (256, 1, 1), 0)
    assert set(arguments) == {x.data_ptr(), y.data_ptr(), out.data_ptr()} and all(type(a) is int for a in arguments)
    assert out.shape == x.shape and device.modules[0].cubin[:4] == b"\x7fELF"


def test_the_stream_is_asked_at_every_launch(tmp_path, device):
    x = torch.randn(64)
    region = region_of(lambda x: x * 2, x, cache=CubinCache(tmp_path), device=device)
    region(x), region.launch(x)
    assert [c[-1] for c in device.modules[0].calls] == [100, 101]


def test_kernels_take_nothing_but_pointers():
    """Numbers that are known when they are made are part of the text."""
    lowered = tracejit.lower(lambda x: (x * 0.5).sum() + 3, torch.randn(200_000))
    assert all(" *" in p.text and (p.buffer is not None or p.count) for k in lowered.kernels for launch in k.launches for p in launch.parameters)


def test_memory_that_is_not_aligned_takes_the_scalar_kernels(tmp_path, device):
    x = torch.randn(65)
    region = region_of(lambda x: x * 2, torch.randn(64), cache=CubinCache(tmp_path), device=device)
    region(x[1:])
    assert len(device.modules) == 2 and not device.modules[0].calls and device.modules[1].calls[0][3][0] == x[1:].data_ptr()


def test_results_that_view_what_is_made_and_what_is_written_in_place(tmp_path, device):
    def step(x, scale):
        scale.copy_(x.sum(-1))
        return x * 2
    x, scale = torch.randn(4, 64), torch.zeros(4)
    lowered = tracejit.lower(step, x, scale)
    for kernel in lowered.kernels:
        CudaRegion(kernel.region, CubinCache(tmp_path), device, kernel.code)(*[{"x": x, "scale": scale}[p.name] for p in kernel.region.args])
    written = {p for module in device.modules for call in module.calls for p in call[3]}
    assert {x.data_ptr(), scale.data_ptr()} <= written


def test_scratch_memory_is_shared_by_the_launches_of_a_call(tmp_path, device):
    x = torch.randn(200_000)
    region = region_of(lambda x: x.sum(), x, cache=CubinCache(tmp_path), device=device)
    region(x)
    (first, second) = device.modules[0].calls
    assert first[3][2:] == second[3][2:] and len(set(first[3])) == len(first[3])


def test_a_cubin_is_built_once_and_again_when_it_is_damaged(tmp_path):
    text = tracejit.lower(lambda x: x + 1, torch.randn(8)).kernels[0].source
    cache = CubinCache(tmp_path)
    cubin = cache.load(text, "sm_90")
    assert CubinCache(tmp_path).load(text, "sm_90") == cubin and cache.built == 1
    (path,) = tmp_path.glob("*.cubin")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    again = CubinCache(tmp_path)
    assert again.load(text, "sm_90") == cubin and again.built == 1


def test_a_text_that_nvrtc_refuses_is_kept_and_named(tmp_path):
    with pytest.raises(executor.nvrtc.NvrtcError, match=r"the source is .*\.cu"):
        CubinCache(tmp_path).load("void f( {", "sm_90")


def test_autograd_is_told_of_a_write(tmp_path, device):
    x, y = torch.randn(64), torch.randn(64)
    region = region_of(lambda x, y: x.mul_(2).add_(y), x, y, cache=CubinCache(tmp_path), device=device)
    given = {"x": x, "y": y}
    region(*[given[p.name] for p in region.region.args])
    assert (x._version, y._version) == (1, 0)


def test_without_cupy_one_warning_and_no_regions(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    executor.missing.cache_clear()
    try:
        lowered = tracejit.lower(lambda x: x * 2 + 1, torch.randn(8))
        calls = lowered.kernels[0].region.subsymbols
        e = CupyExecutor()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert not any(e.can_fuse(b) for b in calls)
        assert [w.category for w in said] == [FallbackWarning] and "CuPy" in str(said[0].message)
    finally:
        executor.missing.cache_clear()


def test_raw_kernels_are_loaded_from_the_cubin(tmp_path, device, monkeypatch):
    made = []
    class RawModule:
        def __init__(self, path):
            made.append(open(path, "rb").read())
        def get_function(self, name):
            return ("raw", name)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(RawModule=RawModule))
    region = region_of(lambda x: x.sum(), torch.randn(200_000), cache=CubinCache(tmp_path), device=device)
    assert region.raw_kernels() == [("raw", "k0"), ("raw", "k1")] and made[0] == device.modules[0].cubin
    shown = Kernel(replace(region.region, sym=Symbol("cupy_region0", region)))
    assert shown.raw_kernel() == [("raw", "k0"), ("raw", "k1")]
    assert shown.source.count("__global__") == region.source.text.count("__global__") == 2
    f = tracejit.jit(lambda x: torch.relu(x) * 2 + 1, executors=["cpu"])
    f(torch.randn(64))
    with pytest.raises(tracejit.TraceError, match="cpu"):
        f.kernels[0].raw_kernel()


def test_lower_runs_nothing_and_says_so():
    lowered = tracejit.lower(lambda x: x * 2, torch.randn(8))
    with pytest.raises(tracejit.TraceError, match="does not run"):
        lowered.kernels[0].region.sym.fn(torch.randn(8))
    with pytest.raises(ValueError, match="sm_90"):
        tracejit.lower(lambda x: x, torch.randn(8), arch="90")
    with pytest.raises(ValueError, match="CUDA"):
        tracejit.lower(lambda x: x, torch.randn(8), device="cpu")


@pytest.mark.parametrize("calls", [300, 1500])
def test_a_chain_that_takes_the_compiler_long_is_several_kernels(calls):
    def fn(x):
        for _ in range(calls):
            x = x.sin() + 1
        return x
    assert 10 < len(tracejit.lower(fn, torch.randn(8)).kernels) < calls // 5


@pytest.mark.parametrize("device", ["cpu", "cuda", "meta"])
@pytest.mark.parametrize("fake", [True, False])
def test_fake_and_meta_tensors_lower_as_real_ones(device, fake):
    def step(x, row, bias):
        x.mul_(2)
        return torch.softmax(x + bias, -1) + row

    def make(device):
        x = torch.empty(8, 64, device=device)
        row = torch.empty(64, device=device) if alone else x[3]
        return x, row, torch.empty(64, device=device, dtype=torch.bfloat16)
    alone = device == "cuda"                                   # a CPU-only torch makes no views on CUDA
    if fake:
        with FakeTensorMode():
            args = make(device)
    else:
        args = make("meta" if device == "cuda" else device)
    lowered, real = tracejit.lower(step, *args), tracejit.lower(step, *make("cpu"))
    assert [k.source for k in lowered.kernels] == [k.source for k in real.kernels] and lowered.kernels
    assert {p.device.type for p in lowered.traces[-1].inputs} == {"cuda"}
