"""tracejit: a tracing JIT for PyTorch programs that mutate tensors. See `tracejit.jit`."""
import importlib as _importlib

from .capture.collector import collector_paused as _collector_paused

with _collector_paused():                                      # what is imported stays
    from .api import CacheInfo, CompiledFunction, CompiledModule, bisect, explain, jit, last_traces
    from .capture.opened import mark_dynamic
    from .errors import FallbackWarning, InplaceCopyError, RetraceWarning, TraceError, UnsupportedError
    from .executors.cpu import CpuExecutor
    from .executors.cupy import CupyExecutor
    from .executors.disk_cache import cache_dir
    from .executors.registry import Executor, default_executors, get_executor, register_executor
    from .executors.torch_fallback import TORCH as _TORCH
    from .ir.trace import BoundSymbol, Trace

_LATER = {"Fusion": "interfaces.fusion", "FusionValue": "interfaces.fusion", "Lowered": "offline",
          "functionalize": "interfaces.export", "lower": "offline"}                # imported when they are first named


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(_importlib.import_module(f".{_LATER[name]}", __name__), name)
    return globals()[name]



register_executor(_TORCH)
register_executor(CpuExecutor(), default=True)
register_executor(CupyExecutor())         # asked where `executors=["cupy"]` names it
__version__ = "0.1.0"
__all__ = ["BoundSymbol", "CacheInfo", "CompiledFunction", "CompiledModule", "CpuExecutor", "CupyExecutor", "Executor",
           "FallbackWarning", "Fusion", "FusionValue", "InplaceCopyError", "Lowered", "RetraceWarning", "Trace", "TraceError", "UnsupportedError",
           "bisect", "cache_dir", "default_executors", "explain", "functionalize", "get_executor", "jit", "last_traces", "lower",
           "mark_dynamic", "register_executor"]
