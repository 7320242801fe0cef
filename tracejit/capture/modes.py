"""Thread-wide state that a compiled entry depends on, and what around a call forbids a capture."""
from __future__ import annotations

from typing import Hashable

import torch

from ..torch_private import MISSING, autocast_is_on, dispatch_modes, function_modes, functorch_level, saved_tensor_hooks


def mode_key() -> Hashable:
    """The modes under which an entry was captured: part of the key of every call."""
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(), _autocast_key() if autocast_is_on() else None)


def _autocast_key() -> Hashable:
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda"))


def capture_is_hindered() -> bool:
    """Is there anything around the call that would see, or be hidden by, a capture? (`hindrance` says what.)"""
    return bool(function_modes() or dispatch_modes() or functorch_level() is not None or torch.jit.is_tracing()
                or saved_tensor_hooks() is not None or MISSING)


def hindrance() -> str:
    """Why a call cannot be captured where it is made, or ""."""
    if MISSING:
        return f"this release of torch ({torch.__version__}) lacks {', '.join(MISSING)}"
    if functorch_level() is not None:
        return "a functorch transform (vmap, grad, ...) is active"
    if dispatch_modes():
        return "a TorchDispatchMode is active around the call"
    if function_modes():
        return "a TorchFunctionMode is active around the call"
    if torch.jit.is_tracing():
        return "torch.jit.trace is active"
    if saved_tensor_hooks() is not None:
        return "saved_tensors_hooks are active around the call"
    return ""
