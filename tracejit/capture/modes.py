"""Thread-wide state that a compiled entry depends on."""
from __future__ import annotations

from typing import Hashable

import torch


def mode_key() -> Hashable:
    """The modes under which an entry was captured: part of the key of every call."""
    autocast = torch._C._is_any_autocast_enabled()
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(), _autocast_key() if autocast else None)


def _autocast_key() -> Hashable:
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda"))


def outer_modes_active() -> bool:
    """Is there anything around the call that would see, or be hidden by, a capture? (`outer_modes` says what.)"""
    return (torch._C._len_torch_function_stack() > 0 or torch._C._len_torch_dispatch_stack() > 0
            or torch._C._functorch.peek_interpreter_stack() is not None or torch.jit.is_tracing()
            or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None)


def outer_modes() -> str:
    """Why a call cannot be captured under the modes that are active, or ""."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a functorch transform (vmap, grad, ...) is active"
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode is active around the call"
    if torch._C._len_torch_function_stack():
        return "a TorchFunctionMode is active around the call"
    if torch.jit.is_tracing():
        return "torch.jit.trace is active"
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return "saved_tensors_hooks are active around the call"
    return ""
