"""The private parts of torch that tracejit calls, and the only module that names them.

Each is looked up once. If a release of torch lacks one, `MISSING` names it, and jitted functions run eagerly with a
warning that says so: nothing else depends on them.
"""
from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Optional

import torch
from torch._guards import Source
from torch._subclasses.fake_tensor import (DataDependentOutputException, DynamicOutputShapeException, FakeTensor,
                                           FakeTensorMode, UnsupportedFakeTensorException)

__all__ = ["FakeTensor", "FakeTensorMode", "NEEDS_DATA", "MISSING"]

NEEDS_DATA = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
MISSING: list[str] = []


def _find(path: str) -> Any:
    """The attribute at a dotted path below `torch`, or a stand-in that is noted as missing."""
    found: Any = torch
    for part in path.split("."):
        found = getattr(found, part, None)
        if found is None:
            MISSING.append(f"torch.{path}")
            return lambda *args: None
    return found


unseen_by_function_modes: Callable = _find("_C.DisableTorchFunction")          # a context
function_modes: Callable[[], int] = _find("_C._len_torch_function_stack")
function_modes_see: Callable[[], bool] = _find("_C._is_torch_function_mode_enabled")       # there is one, and it is not disabled
dispatch_modes: Callable[[], int] = _find("_C._len_torch_dispatch_stack")
functorch_level: Callable[[], Any] = _find("_C._functorch.peek_interpreter_stack")
autocast_is_on: Callable[[], bool] = _find("_C._is_any_autocast_enabled")
set_grad_mode: Callable = _find("_C._set_grad_enabled")                        # what torch.no_grad() calls
tensor_set: Callable = _find("_C.TensorBase.set_")
conj_view: Callable = _find("_conj")
neg_view: Callable = _find("_neg_view")
is_zero_tensor: Callable[[torch.Tensor], bool] = _find("_is_zerotensor")
storage_use_count: Callable[[int], int] = _find("_C._storage_Use_Count")       # of a storage's address
below_dispatch_modes: Callable = _find("_C._DisableTorchDispatch")             # a context
run_backward: Callable = _find("autograd.graph._engine_run_backward")          # what torch.autograd.grad calls
_top_hooks: Callable = _find("_C._autograd._top_saved_tensors_default_hooks")
_has_kernel: Callable = _find("_C._dispatch_has_kernel_for_dispatch_key")


# (module, class, method): what wraps a module and runs collectives of its own around it, which no trace shows.
DISTRIBUTED_WRAPPERS = (("torch.nn.parallel.distributed", "DistributedDataParallel", "_pre_forward"),
                        ("torch.distributed.fsdp._fully_shard._fsdp_state", "FSDPState", "_root_pre_forward"))


def saved_tensor_hooks() -> Any:
    """The innermost (pack, unpack) pair of `torch.autograd.graph.saved_tensors_hooks`, or None."""
    return _top_hooks(False)


def _find_optional(path: str) -> Any:
    """The attribute at a dotted path below `torch`, or None: there is a slower public way."""
    found: Any = torch
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


empty_strided: Optional[Callable] = _find_optional("_C._dynamo.guards._empty_strided_cpu")       # (sizes, strides, dtype)
# The address of a C function `void *(PyObject *)` that returns a tensor's data_ptr().
tensor_data_function: Optional[int] = _find_optional("_C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr")


@functools.lru_cache(None)
def is_composite(overload: torch._ops.OpOverload) -> bool:
    """Made of other ops for every backend: in inference mode nobody has decomposed it before we see it."""
    name = overload.name()
    return _has_kernel(name, "CompositeImplicitAutograd") and not _has_kernel(name, "CPU")     # silu_backward has both


# ------------------------------------------------------------ fakes without torch._dynamo

class _Deferred(ModuleType):
    """Stands for a module whose body has not run: it does when something is asked of it that the body defines."""

    def __getattr__(self, name: str) -> Any:
        if name in _STAND_INS and _making.fakes:
            return _STAND_INS[name]
        if name.startswith("__") and not (name == "__path__" and self.__spec__):    # asked of all modules
            raise AttributeError(name)
        return getattr(_imported_in_place_of(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "config":                                   # from its import
            return vars(self).update(config=value)
        setattr(_imported_in_place_of(self), name, value)


def _imported_in_place_of(module: ModuleType) -> ModuleType:
    """All of torch._dynamo, as if nobody had deferred it."""
    for name in ("torch._dynamo", "torch._dynamo.source"):
        if isinstance(sys.modules.get(name), _Deferred):
            del sys.modules[name]
    if isinstance(vars(torch).get("_dynamo"), _Deferred):
        del torch._dynamo
    return importlib.import_module(module.__name__)


def _disable(fn: Any = None, recursive: bool = True, *, wrapping: bool = True, **options: Any) -> Any:
    """`torch._dynamo.disable` as torch asks for it, for functions of its own: nothing to switch off as long as the package's
    body has not run. A decorator of the user's is the real one."""
    shell = sys.modules["torch._dynamo"]
    if wrapping or not isinstance(shell, _Deferred):
        return _imported_in_place_of(shell).disable(fn, recursive, wrapping=wrapping, **options)
    chosen = fn

    def disabled(*args: Any, **kwargs: Any) -> Any:
        nonlocal chosen
        if chosen is fn and sys.modules["torch._dynamo"] is not shell:
            chosen = torch._dynamo.disable(fn, recursive, wrapping=False, **options)
        return chosen(*args, **kwargs)
    return disabled


def defer_dynamo() -> None:
    """Put off the import of `torch._dynamo`, which takes longer than most captures, until somebody uses it.

    Fakes read settings of `torch._dynamo.config`; their kernels switch the package off around themselves; and they are told
    where they come from, in its terms.
    """
    if "torch._dynamo" in sys.modules:
        return
    spec = importlib.util.find_spec("torch._dynamo")
    package, source = _Deferred("torch._dynamo"), _Deferred("torch._dynamo.source")
    vars(package).update(__spec__=spec, __file__=spec.origin, __package__="torch._dynamo", __path__=spec.submodule_search_locations)
    sys.modules["torch._dynamo"] = package
    try:
        importlib.import_module("torch._dynamo.config")
    finally:
        del vars(package)["__path__"]                          # other submodules need the body
    vars(package).update(disable=_disable, source=source)
    sys.modules["torch._dynamo.source"], torch._dynamo = source, package


class _Origin(Source):
    """Where a tensor comes from that is made a fake: nothing asks, where shapes are constants."""

    _name_template = "input"


class _Making(threading.local):
    fakes = False


_making = _Making()
_STAND_INS = {"AttrSource": lambda base, name: base, "RandomValueSource": type("RandomValueSource", (Source,), {})}


def fake_mode() -> FakeTensorMode:
    defer_dynamo()
    return FakeTensorMode(allow_non_fake_inputs=False)


def fake_of(mode: FakeTensorMode, real: torch.Tensor) -> torch.Tensor:
    """The fake for a tensor, under the memo of its mode."""
    _making.fakes = True
    try:
        return mode.from_tensor(real, source=_Origin(), trace=False)
    finally:
        _making.fakes = False
# ------------------------------------------------------------ for calls in C; None: calls stay in Python

keyset_of: Optional[Callable] = _find_optional("_C._dispatch_keys")            # of a tensor; `.raw_repr()` is its bits
LIBRARIES = Path(torch.__file__).parent / "lib"
DISPATCH_KEYS = "_ZN3c104impl26raw_local_dispatch_key_setE"                    # of this thread: included, excluded
FUNCTIONS = {                                                                  # C++ functions that take and return plain words
    "grad_mode": "_ZN3c108GradMode10is_enabledEv",
    "inference_mode": "_ZN3c1013InferenceMode10is_enabledEv",
    "requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv",
    "is_leaf": "_ZNK2at10TensorBase7is_leafEv",
    "context": "_ZN2at13globalContextEv",
    "deterministic": "_ZNK2at7Context23deterministicAlgorithmsEv",
    "default_dtype": "_ZN3c1031get_default_dtype_as_scalartypeEv",
    "autocast_dtype": "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE",
    "function_modes": "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "saved_hooks": "_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv",
}


@functools.lru_cache(None)
def exported(symbol: str) -> Optional[int]:
    """The address of a C++ name in torch's libraries, or None."""
    for name in ("libtorch_cpu.so", "libc10.so"):
        try:
            return ctypes.cast(ctypes.CDLL(str(LIBRARIES / name))[symbol], ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None
