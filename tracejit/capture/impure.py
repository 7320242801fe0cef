"""Calls of C functions that depend on the world outside, or act upon it: a trace cannot stand for them."""
from __future__ import annotations

import io
import random
import warnings
from typing import Any

import torch

from ..errors import UnsupportedError
from .cached_results import CACHED_FUNCTION

_IMPURE_IDS = frozenset(map(id, (
    print, input, open, exec, eval, globals, breakpoint, warnings.warn, warnings.warn_explicit)))
_IMPURE_MODULES = frozenset({
    "time", "posix", "nt", "_io", "_socket", "_posixsubprocess", "select", "_random", "fcntl", "secrets"})
_HARMLESS = frozenset({"fspath", "getpid", "sched_getaffinity", "cpu_count"})


def is_impure(function: Any) -> bool:
    """Clocks, files, processes and random numbers: what it returns or does is not a function of the state."""
    if id(function) in _IMPURE_IDS:
        return True
    if function.__name__ in _HARMLESS or function.__name__.startswith("_path_"):
        return False
    owner = getattr(function, "__self__", None)
    if function.__module__ in _IMPURE_MODULES:
        return True
    kind = type(owner)
    if issubclass(kind, torch.Generator):
        return function.__name__ in ("manual_seed", "seed", "set_state")
    if kind is CACHED_FUNCTION:
        return function.__name__ in ("cache_info", "cache_clear")
    if issubclass(kind, io.IOBase):
        return kind not in (io.StringIO, io.BytesIO)
    if issubclass(kind, type):
        return owner.__module__ == "datetime" and function.__name__ in ("now", "utcnow", "today")
    return issubclass(kind, random.Random)


def refused(function: Any) -> UnsupportedError:
    """Of an impure function that the program calls."""
    if function.__module__ == "_warnings":                     # which a capture does not hear
        return UnsupportedError(f"the call warns by {function.__name__}() itself: call it as an attribute of its module, warnings.warn(...)")
    return UnsupportedError(f"the call depends on or acts upon the world outside: {function.__name__}(). Call it outside of the jitted function, "
                            "and pass what it gives")
