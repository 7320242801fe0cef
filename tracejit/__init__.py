"""tracejit: a tracing JIT for PyTorch programs that mutate tensors. See `tracejit.jit`."""
from .api import CacheInfo, CompiledFunction, CompiledModule, bisect, explain, jit, last_traces
from .errors import FallbackWarning, InplaceCopyError, RetraceWarning, TraceError, UnsupportedError
from .executors.cpu import CpuExecutor
from .executors.cupy import CupyExecutor
from .executors.disk_cache import cache_dir
from .executors.registry import Executor, default_executors, get_executor, register_executor
from .executors.torch_fallback import TORCH as _TORCH
from .interfaces.export import functionalize
from .interfaces.fusion import Fusion, FusionValue
from .ir.trace import BoundSymbol, Trace
from .offline import Lowered, lower

register_executor(_TORCH)
register_executor(CpuExecutor(), default=True)
register_executor(CupyExecutor())         # asked where `executors=["cupy"]` names it
__version__ = "0.1.0"
__all__ = ["BoundSymbol", "CacheInfo", "CompiledFunction", "CompiledModule", "CpuExecutor", "CupyExecutor", "Executor",
           "FallbackWarning", "Fusion", "FusionValue", "InplaceCopyError", "Lowered", "RetraceWarning", "Trace", "TraceError", "UnsupportedError",
           "bisect", "cache_dir", "default_executors", "explain", "functionalize", "get_executor", "jit", "last_traces", "lower",
           "register_executor"]
