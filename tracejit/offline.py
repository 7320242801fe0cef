"""`lower`: the CUDA kernels of a call, for a device that need not be here. Nothing runs.

The call is captured as it would be for its arguments on the CPU; then every tensor of its traces is put on the device.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

import torch
from torch.utils._pytree import tree_map

from .capture.fakes import is_fake
from .capture.inputs import CallInputs
from .capture.lines import placing
from .capture.tracer import Capture, capture
from .capture.variables import variables
from .codegen.cuda_source import CudaSource
from .codegen.kernel import CannotLower
from .codegen.readable import readable
from .errors import TraceError, UnsupportedError
from .executors import nvrtc
from .executors.cupy import kernels_of
from .executors.fusible import MOST_CALLS, can_lower
from .executors.registry import Executor
from .ir.cached import cached_property
from .ir.proxy import TensorProxy
from .ir.symbol import Symbol
from .ir.trace import BoundSymbol, Trace
from .options import Options
from .pipeline import lower as lower_traces
from .runtime.program import stack_level


@dataclass(frozen=True, eq=False)
class LoweredKernel:
    """One fusion region as CUDA C++. `launches`: its functions with grid and block, in order."""

    region: BoundSymbol
    code: CudaSource
    arch: str
    program: Trace                       # as recorded: the statements that its results have their names from

    @property
    def name(self) -> str:
        return self.region.sym.name

    @cached_property
    def source(self) -> str:
        """Its text, with the names and lines of the program; `code.text` is the one that is compiled."""
        return readable(self.region, self.code, variables(self.program))

    @property
    def launches(self) -> tuple:
        return self.code.launches

    @property
    def bytes_read(self) -> int:
        return sum(k.bytes_read for k in self.code.kernels)

    @property
    def bytes_written(self) -> int:
        return sum(k.bytes_written for k in self.code.kernels)

    def compiled(self, arch: Optional[str] = None) -> nvrtc.Compiled:
        """Cubin, PTX and ptxas' log; `tracejit.executors.nvrtc.NvrtcError` where NVRTC is missing or refuses."""
        return nvrtc.compile_text(self.code.text, arch or self.arch)

    @cached_property
    def facts(self) -> dict[str, nvrtc.Facts]:
        """By function: registers, shared memory, spills, and the width of every access to global memory."""
        return nvrtc.facts_of(self.compiled())

    def __repr__(self) -> str:
        moved = f"{self.bytes_read} bytes read, {self.bytes_written} written"
        return f"<CUDA kernel {self.name}: {len(self.launches)} launches, {moved}>"


@dataclass(frozen=True, eq=False)
class Lowered:
    """traces: one a stage, the last with its fusion regions; kernels: those regions, in order, each with `source`,
    `launches` (functions with grid and block), `bytes_read` and `bytes_written` of one launch, and `facts` of ptxas.

    >>> import torch, tracejit
    >>> [kernel] = tracejit.lower(lambda x: x.sigmoid() * x, torch.empty(1024)).kernels
    >>> kernel.bytes_read, kernel.bytes_written, kernel.source.count("__global__")
    (4096, 4096, 1)
    """

    traces: tuple[Trace, ...]
    kernels: tuple[LoweredKernel, ...]

    def __str__(self) -> str:
        return "\n\n".join([str(self.traces[-1]), *(k.source for k in self.kernels)])


class _Offline(Executor):
    """Makes sources of regions, and does not run them."""

    name = "cupy"
    max_region_ops = MOST_CALLS
    passes_over_long_rows = postpones_copies = True

    def __init__(self, allow_single_op_fusion: bool) -> None:
        self.allow_single_op_fusion = allow_single_op_fusion

    def can_execute(self, bsym: BoundSymbol) -> bool:
        return False

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        return can_lower(bsym, "cuda")

    def fuse(self, region: BoundSymbol) -> Optional[BoundSymbol]:
        try:
            code = kernels_of(region)
        except CannotLower:
            return None
        return code and replace(region, sym=Symbol(region.sym.name, _NotHere(code)), executor=self.name)


@dataclass(frozen=True, eq=False)
class _NotHere:
    source: CudaSource

    def __call__(self, *args: Any) -> Any:
        raise TraceError("a program that was lowered for another device does not run: jit and call it there")


def lower(fn: Callable, *args: Any, device: str = "cuda", arch: str = "sm_90", single_ops: bool = True,
          **kwargs: Any) -> Lowered:
    """The traces and CUDA kernels of `fn(*args, **kwargs)` on a device that need not be here. Nothing runs.

    Args:
        fn: a function or module; it is captured under `torch.no_grad()`.
        args, kwargs: as for a call; tensors may be on the CPU, fake ones of any device, or meta tensors. No values are read.
        device: "cuda", or one device such as "cuda:1".
        arch: the architecture that `facts` and `compiled` are for.
        single_ops: make a kernel of a single call too.

    Returns:
        Lowered: `traces`, and `kernels` with `source`, `launches`, `bytes_read`, `bytes_written`, `facts`, `compiled()`.

    Raises:
        ValueError: another kind of device, or an arch that is none.
        UnsupportedError: a call that cannot be captured.

    >>> import torch, tracejit
    >>> lowered = tracejit.lower(lambda x: x.sigmoid() * x, torch.empty(1024))
    >>> [launch.grid for launch in lowered.kernels[0].launches]
    [1]
    """
    where = torch.device(device)
    if where.type != "cuda":
        raise ValueError(f"lower() makes CUDA kernels; device={device!r} is none of CUDA's. "
                         "jit makes those of the CPU: jfn.kernels")
    nvrtc.options_for(arch)
    fn = getattr(fn, "__wrapped__", fn)
    with torch.no_grad(), placing(fn):
        captured = capture(fn, CallInputs(*_without_data((args, kwargs))), getattr(fn, "__name__", "program"))
        for warned in captured.warned:
            warned.raise_anew(stack_level)
        if captured.replay_because:
            raise UnsupportedError(f"lower() needs a program that its ATen calls tell in full: {captured.replay_because}")
        if captured.joint is not None:
            raise UnsupportedError("lower() makes the kernels of programs without gradients: call it under torch.no_grad()")
        traces = lower_traces(_moved(captured, where), Options(executors=(_Offline(single_ops),))).traces
    kernels = tuple(LoweredKernel(r, r.sym.fn.source, arch, traces[0]) for r in traces[-1].regions)
    return Lowered(tuple(traces), kernels)


# ------------------------------------------------------------ on another device

def _without_data(arguments: tuple) -> tuple:
    """Tensors on the CPU, whose memory nobody touches, laid out and sharing memory as fake and meta ones do."""
    memory: dict[int, torch.UntypedStorage] = {}

    def real(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or not (is_fake(t) or t.is_meta):
            return t
        theirs = t.untyped_storage()
        own = memory.setdefault(theirs._cdata, torch.UntypedStorage(theirs.nbytes()))
        return torch.empty(0, dtype=t.dtype).set_(own, t.storage_offset(), t.shape, t.stride())
    return tree_map(real, arguments)



def _moved(captured: Capture, device: torch.device) -> Capture:
    """All tensors of the traces on `device`."""
    proxies: dict[TensorProxy, TensorProxy] = {}

    def moved(x: Any) -> Any:
        if isinstance(x, TensorProxy):
            if x not in proxies:
                proxies[x] = x if x.number else replace(x, device=device)
            return proxies[x]
        return device if isinstance(x, torch.device) and x.type == "cpu" else x

    def call(b: BoundSymbol) -> BoundSymbol:
        return replace(b.renamed(moved), subsymbols=tuple(map(call, b.subsymbols)))

    def trace(t: Trace) -> Trace:
        return t.replace(inputs=tuple(map(moved, t.inputs)), bound_symbols=tuple(map(call, t.bound_symbols)),
                         output=tuple(map(moved, t.output)))
    return replace(captured, calls=trace(captured.calls), ops=trace(captured.ops))
