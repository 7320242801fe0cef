"""The private parts of torch that tracejit calls, and the only module that names them.

Each is looked up once. If a release of torch lacks one, `MISSING` names it, and jitted functions run eagerly with a
warning that says so: nothing else depends on them.
"""
from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import torch
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
_top_hooks: Callable = _find("_C._autograd._top_saved_tensors_default_hooks")
_has_kernel: Callable = _find("_C._dispatch_has_kernel_for_dispatch_key")


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
    return _has_kernel(overload.name(), "CompositeImplicitAutograd")
