"""The CUDA fuser: a region becomes CUDA kernels, compiled by NVRTC, loaded and launched through CuPy.

Launches go to torch's current stream, asked at each call; memory comes from torch's caching allocator. Once a region has run,
a call of it launches kernels and does nothing else to the device, so that a CUDA graph may capture it.
Without CuPy or NVRTC, regions go to the torch fallback, and one warning says so.
"""
from __future__ import annotations

import importlib
import warnings
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
from torch.autograd.graph import increment_version

from ..codegen.calls import call_of
from ..codegen.cost import length
from ..codegen.kernel import CannotLower
from ..errors import FallbackWarning
from ..ir.proxy import TensorProxy
from ..ir.symbol import Symbol
from ..ir.trace import BoundSymbol
from ..options import check_traces
from . import nvrtc
from .buffers import as_handed_out
from .cubins import CubinCache
from .fusible import MOST_CALLS, can_lower, why_not_lowered
from .launch import CompiledRegion
from .registry import Executor

if TYPE_CHECKING:                                              # opened when there is a CUDA region
    from ..codegen.cuda_source import CudaSource, Launch

_FORMATS = {"float": "f4", "double": "f8"}                     # of Python floats
ALIGNED = 16                 # bytes that every buffer must begin at a multiple of
LONGEST = 400                # instructions of one region: twenty-five sines take NVRTC about two seconds


class CupyExecutor(Executor):
    """Fuses calls on CUDA tensors.

    allow_single_op_fusion: make a kernel of a region of one call too.
    kernel_cache: the directory of compiled kernels; None: the user's cache directory.
    max_region_ops: a region has no more calls, views not counted.

    Without CuPy, NVRTC or a device its calls run as ops of torch, after one `FallbackWarning`.

    >>> import torch, tracejit
    >>> tracejit.jit(lambda x: x.relu() * 2, executors=[tracejit.CupyExecutor(), "cpu"])(torch.ones(2))
    tensor([2., 2.])
    """

    name = "cupy"
    passes_over_long_rows = postpones_copies = True

    def __init__(self, *, allow_single_op_fusion: bool = False, kernel_cache: Optional[str] = None,
                 max_region_ops: int = MOST_CALLS) -> None:
        self.allow_single_op_fusion, self.max_region_ops = allow_single_op_fusion, max_region_ops
        self.cache = CubinCache(kernel_cache)
        self.broken = False                                    # CuPy or NVRTC is missing: said once

    def can_execute(self, bsym: BoundSymbol) -> bool:
        return False

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        return not self.broken and can_lower(bsym, "cuda") and self._is_usable()

    def why_not(self, bsym: BoundSymbol) -> str:
        return f"there are no CUDA kernels: {missing()}" if self.broken else why_not_lowered(bsym, "cuda")

    def _is_usable(self) -> bool:
        why = missing()
        if why:
            self.broken = True
            warnings.warn(f"no CUDA kernels: {why}", FallbackWarning, stacklevel=2)
        return not why

    def fuse(self, region: BoundSymbol) -> Optional[BoundSymbol]:
        """The region with a function that runs it, or None."""
        if self.broken or len(region.subsymbols) == 1 and not self.allow_single_op_fusion:
            return None
        if sum(not call_of(b).is_view for b in region.subsymbols) > self.max_region_ops:
            return None
        try:
            source = kernels_of(region)
            if source is None:
                return None
            run = CudaRegion(region, self.cache, Device(_device_of(region)), source)
        except CannotLower:
            if check_traces():
                raise
            return None
        except nvrtc.NvrtcError as error:
            if check_traces():
                raise
            where = next((str(b.source) for b in region.subsymbols if b.source.file), "")
            warnings.warn(f"no CUDA kernels: {error}{f' (for {where})' if where else ''}", FallbackWarning, stacklevel=2)
            return None
        return replace(region, sym=Symbol(region.sym.name, run), executor=self.name)


def kernels_of(region: BoundSymbol) -> Optional[CudaSource]:
    """None: several would compile sooner. Raises CannotLower when some call has no lowering."""
    from ..codegen.cuda_source import cuda_source
    try:
        source = cuda_source(region)
    except RecursionError:                                     # a value that hangs on hundreds of others, one on the next
        return None
    return None if length(source.kernels) > LONGEST and len(region.subsymbols) > 1 else source


@lru_cache(None)
def missing() -> str:
    """What CUDA kernels lack here, or ""."""
    try:
        importlib.import_module("cupy")
    except ImportError as error:
        return f"CuPy does not import ({error}): pip install cupy-cuda12x"
    if not nvrtc.is_available():
        return "NVRTC or its headers are missing: pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"
    return ""


def _device_of(region: BoundSymbol) -> int:
    device = next(p.device for b in region.subsymbols for p in (*b.tensor_outputs, *b.tensor_args))
    return device.index if device.index is not None else torch.cuda.current_device()


# ------------------------------------------------------------ one device

class Stream:
    """What CuPy takes for a stream."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class Device:
    """What launching needs of a CUDA device: its architecture, the current stream, memory, and kernels loaded onto it."""

    def __init__(self, index: int) -> None:
        self.index = index

    @property
    def arch(self) -> str:
        major, minor = torch.cuda.get_device_capability(self.index)
        return f"sm_{major}{minor}"

    def stream(self) -> Stream:
        return Stream(torch.cuda.current_stream(self.index).cuda_stream)

    def empty_strided(self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype, device=torch.device("cuda", self.index))

    def load(self, cubin: bytes) -> Any:
        """A `cupy.cuda.Module`, which has to be kept as long as its functions."""
        import cupy
        with torch.cuda.device(self.index):
            module = cupy.cuda.Module()
            module.load(cubin)
        return module

    def run(self, launch: Callable[[], list]) -> list:
        """`launch` with this device the current one."""
        if torch.cuda.current_device() == self.index:
            return launch()
        with torch.cuda.device(self.index):
            return launch()


# ------------------------------------------------------------ one region

class CudaRegion:
    """Calling it verifies first that the arguments are laid out as the kernels take them; `launch` does not."""

    def __init__(self, region: BoundSymbol, cache: CubinCache, device: Device, source: CudaSource) -> None:
        self.region, self.cache, self.device, self.source = region, cache, device, source
        self._program = _Program(self.source, cache, device)
        self._scalar: Optional[_Program] = None                # for memory that is not aligned
        self._plan = _Plan(region, self.source)
        self._verified = CompiledRegion(self.source, self._launch, region)

    def __call__(self, *given: torch.Tensor) -> list:
        return self._verified(*given)

    @property
    def launch(self) -> Callable[..., list]:
        return self._verified.launch

    def raw_kernels(self) -> list:
        """A `cupy.RawKernel` for each launch, in order; `source.launches` say with which grid, copies, block and buffers."""
        import cupy
        module = cupy.RawModule(path=str(self.cache.plain_file(self.source.text, self.device.arch)))
        return [module.get_function(launch.name) for launch in self.source.launches]

    def _launch(self, *given: torch.Tensor) -> list:
        return self.device.run(lambda: self._on_device(given))

    def _on_device(self, given: tuple) -> list:
        plan, device = self._plan, self.device
        tensors = [*given, *(device.empty_strided(*layout) for layout in plan.made)]
        scratch = device.empty_strided((self.source.scratch,), (1,), torch.uint8).data_ptr() if self.source.scratch else 0
        starts = [tensors[n].data_ptr() - before for n, before in plan.starts]
        numbers = {s: given[n].item() for s, n in plan.numbers.items()}
        program, stream = self._program_for(starts), device.stream()
        for launch, function in zip(program.source.launches, program.functions):
            values = [scratch + offset if b is None else numbers[b.storage] if b.number else starts[plan.number[b.storage]]
                      for b, offset in zip(launch.buffers, launch.offsets)]
            arguments = (packed(values, launch),) if launch.table else passed(values, launch)
            function((launch.grid, launch.copies, 1), (launch.block, 1, 1), arguments, 0, stream)
        if plan.written:
            increment_version([tensors[n] for n in plan.written])
        return [plan.result(o, tensors) for o in plan.outputs]

    def _program_for(self, starts: list[int]) -> "_Program":
        if not any(start % ALIGNED for start in starts):
            return self._program
        if self._scalar is None:
            from ..codegen.cuda_source import cuda_source
            self._scalar = _Program(cuda_source(self.region, aligned=False), self.cache, self.device)
        return self._scalar


def passed(values: list, launch: Launch) -> tuple:
    """Arguments as CuPy passes them: addresses as they are, Python floats in the type that the kernel takes."""
    if not any(p.number for p in launch.parameters):
        return tuple(values)
    import numpy
    return tuple(numpy.dtype(_FORMATS[p.ctype]).type(v) if p.number else v for p, v in zip(launch.parameters, values))


def packed(values: list, launch: Launch) -> Any:
    """The table of a launch as CuPy passes structures by value: a NumPy array of one element, laid out as in C."""
    import numpy
    fields = [(p.name, _FORMATS[p.ctype] if p.number else "u8", (launch.table,)) for p in launch.parameters]
    table = numpy.zeros(1, numpy.dtype(fields, align=True))
    for n, p in enumerate(launch.parameters):
        table[p.name][0, :launch.copies] = values[n * launch.copies:(n + 1) * launch.copies]
    return table.view(numpy.dtype((numpy.void, table.nbytes)))


class _Program:
    """The functions of a source's launches, loaded."""

    def __init__(self, source: CudaSource, cache: CubinCache, device: Device) -> None:
        self.source = source
        self.module = device.load(cache.load(source.text, device.arch))
        self.functions = [self.module.get_function(launch.name) for launch in source.launches]


class _Plan:
    """Which tensor holds which storage. starts: (tensor, bytes before its data) of each; made: layouts of what is allocated;
    written: arguments whose versions go up, so that autograd sees the write; numbers: Python floats, by storage."""

    def __init__(self, region: BoundSymbol, source: CudaSource) -> None:
        self.outputs = region.tensor_outputs
        roots = as_handed_out(source.made, self.outputs)
        self.made = [(p.shape, p.stride, p.dtype) for p in roots]
        self.proxies: list[TensorProxy] = [*region.args, *roots]
        self.number: dict[int, int] = {}
        self.starts: list[tuple[int, int]] = []
        written = {w.storage for w in region.written}
        self.written = [n for n, p in enumerate(region.args) if p.storage in written]
        self.numbers = {p.storage: n for n, p in enumerate(region.args) if p.number}
        for n, p in enumerate(self.proxies):
            if p.storage not in self.number and not p.number:
                self.number[p.storage] = len(self.starts)
                self.starts.append((n, p.bytes.offset if p.numel else 0))

    def result(self, o: TensorProxy, tensors: list[torch.Tensor]) -> torch.Tensor:
        n = self.starts[self.number[o.storage]][0]
        p, t = self.proxies[n], tensors[n]
        if (o.shape, o.stride, o.offset) == (p.shape, p.stride, p.offset):
            return t
        return t.as_strided(o.shape, o.stride, t.storage_offset() + o.offset - p.offset)

