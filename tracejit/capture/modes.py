"""Thread-wide state that a compiled entry depends on, and what around a call forbids a capture."""
from __future__ import annotations

from typing import Callable, Hashable

import torch

from ..errors import UnsupportedError
from ..torch_private import MISSING, autocast_is_on, dispatch_modes, function_modes, functorch_level, saved_tensor_hooks


MODES = ("grad mode", "inference mode", "the default dtype", "deterministic algorithms", "autocast")       # as `mode_key` has them


def mode_key() -> Hashable:
    """The modes under which an entry was captured: part of the key of every call."""
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(), _autocast_key() if autocast_is_on() else None)


def _autocast_key() -> Hashable:
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda"))


# Process-wide or thread-wide settings that a program may change and leave changed: (name, read, write).
_SETTINGS: tuple[tuple[str, Callable, Callable], ...] = (
    ("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("deterministic algorithms", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    ("anomaly detection", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    ("the number of threads", torch.get_num_threads, torch.set_num_threads),
    ("matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    ("warn_always", torch.is_warn_always_enabled, torch.set_warn_always),
    ("cudnn.benchmark", lambda: torch.backends.cudnn.benchmark, lambda on: setattr(torch.backends.cudnn, "benchmark", on)),
    ("autocast on cpu", lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    ("autocast on cuda", lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on)),
)


def operation_settings() -> tuple:
    """Settings that no call of a trace tells, and that are those of the entry's key from its first call to its last."""
    return torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()


def global_settings() -> tuple:
    return tuple(read() for _, read, _ in _SETTINGS)


def refuse_changed_settings(before: tuple) -> None:
    """UnsupportedError when the program left a setting changed: a later call would not change it."""
    for (name, read, _), value in zip(_SETTINGS, before):
        if read() != value:
            raise UnsupportedError(f"the function changes {name} and leaves it changed: change it around the call")


def restore_settings(before: tuple) -> None:
    for (_, read, write), value in zip(_SETTINGS, before):
        if read() != value:
            write(value)


def capture_is_hindered() -> bool:
    """Is there anything around the call that would see, or be hidden by, a capture? (`hindrance` says what.)"""
    return bool(function_modes() or dispatch_modes() or functorch_level() is not None or torch.jit.is_tracing()
                or saved_tensor_hooks() is not None or MISSING)


def hindrance() -> str:
    """Why a call cannot be captured where it is made, or ""."""
    if MISSING:
        return f"this release of torch ({torch.__version__}) lacks {', '.join(MISSING)}: install another"
    if functorch_level() is not None:
        return "a functorch transform (vmap, grad, ...) is active: transform the function that was jitted (__wrapped__)"
    if dispatch_modes():
        return "a TorchDispatchMode is active around the call: call the jitted function outside of it"
    if function_modes():
        return "a TorchFunctionMode, such as a device context, is active around the call: make the call outside of it"
    if torch.jit.is_tracing():
        return "torch.jit.trace is active: trace the function that was jitted (__wrapped__)"
    if saved_tensor_hooks() is not None:
        return "saved_tensors_hooks are active around the call: call the jitted function outside of them"
    return ""
