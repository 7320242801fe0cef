"""Calls of C functions that depend on the world outside, or act upon it: a trace cannot stand for them."""
from __future__ import annotations

import _thread
import contextvars
import io
import random
import sys
import types
import warnings
from typing import Any

import torch

from ..errors import UnsupportedError
from .cached_results import CACHED_FUNCTION

_IMPURE_IDS = frozenset(map(id, (print, input, open, exec, eval, globals, breakpoint, warnings.warn, warnings.warn_explicit, *(
    start for name, start in vars(_thread).items() if name.startswith("start_")))))
_IMPURE_MODULES = frozenset({
    "time", "posix", "nt", "_io", "_socket", "_posixsubprocess", "select", "_random", "fcntl", "secrets"})
_HARMLESS = frozenset({"fspath", "getpid", "sched_getaffinity", "cpu_count"})


# Modules in C of which the objects are values, are watched, or (locks) are left as they were; torch's and numpy's have rules of their own.
_SEEN_MODULES = frozenset({"builtins", "collections", "array", "functools", "_operator", "_struct", "types", "_thread", "weakref", "torch", "numpy"})
_SEEN = (contextvars.ContextVar, contextvars.Token, torch.Tensor)


def has_hidden_state(function: Any) -> bool:
    """Is this a method in C of an object that is no value, as its class compares by identity: a queue, a hash, a parser?"""
    bases = type(function.__self__).__mro__
    kind = next((base for base in bases if type(vars(base).get(function.__name__)) is types.MethodDescriptorType), object)
    return (kind.__hash__ in (None, object.__hash__) and kind is not object and not issubclass(kind, _SEEN)
            and kind.__module__.partition(".")[0] not in _SEEN_MODULES)


def is_impure(function: Any, by_user: bool) -> bool:
    """Clocks, files, processes and random numbers: what it returns or does is not a function of the state. by_user: code of the user's
    calls it; libraries ask for limits to bound their loops."""
    if id(function) in _IMPURE_IDS or function is sys.getrecursionlimit and by_user:
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
