"""Functions of torch by the names that the user knows them by."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch.overrides import resolve_name

# As `torch.overrides` goes through them: a function that several have is named after the last.
_NAMESPACES = {"torch": torch, "torch.functional": torch.functional, "torch.nn.functional": torch.nn.functional,
               "torch.nn.init": torch.nn.init, "torch.Tensor": torch.Tensor, "torch.linalg": torch.linalg, "torch.fft": torch.fft,
               "torch.special": torch.special}
_OTHER_NAMES = ("__idiv__", "__rdiv__")                          # of __itruediv__ and __rtruediv__


def torch_name(func: Any) -> Optional[str]:
    """What `resolve_name` answers, in most cases without the table that takes it longer to make than a capture: `torch.nn.functional.gelu`,
    `torch.Tensor.shape.__get__`; None for what is not torch's."""
    module = getattr(func, "__module__", None) or "torch"      # functions in C have none
    if module.partition(".")[0] not in ("torch", "builtins"):
        return None
    return _plain_name(func) or resolve_name(func)


def _plain_name(func: Any) -> Optional[str]:
    """The name where it is what the function itself says."""
    name = getattr(func, "__name__", "_")
    if name in ("__get__", "__set__"):                         # of a property: func is bound to its descriptor
        prop = getattr(func.__self__, "__name__", "_")
        found = not prop.startswith("_") and getattr(torch.Tensor, prop, None) is func.__self__
        return f"torch.Tensor.{prop}.{name}" if found else None
    if name.startswith("__") and name not in _OTHER_NAMES and getattr(torch.Tensor, name, None) is func:
        return f"torch.Tensor.{name}"
    for space in reversed(_NAMESPACES) if not name.startswith("_") else ():
        if getattr(_NAMESPACES[space], name, None) is func and (space != "torch" or name in torch.__all__):
            return f"{space}.{name}"
    return None
