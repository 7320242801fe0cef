"""Lines that messages name: where a function is, which call of a recording makes or writes a tensor, and where code that ran
reads or writes a place of Python state, as far as instructions tell."""
from __future__ import annotations

import collections
import dis
import functools
import re
import sys
import traceback
import types
from contextlib import contextmanager
from typing import Callable, Iterable, Iterator, Optional

import torch

from ..errors import UnsupportedError
from ..ir.proxy import TensorProxy
from ..ir.trace import NOWHERE, BoundSymbol, SourceLine
from .handlers import is_user_file
from .sites import Argument, pushed

# Methods that a container has and its immutable counterpart has not.
_CHANGING = frozenset().union(*(set(dir(kind)) - set(dir(constant)) for kind, constant in (
    (list, tuple), (dict, types.MappingProxyType), (set, frozenset), (collections.deque, tuple), (bytearray, bytes))))
_STORES = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "STORE_DEREF"})
_ATTRIBUTES = frozenset({"STORE_ATTR", "DELETE_ATTR", "LOAD_ATTR", "LOAD_METHOD"})
_LOADS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"})


def defined_at(fn: Callable) -> str:
    """Where a function of the user's is, for messages that have no line of its own; "" for others."""
    if isinstance(fn, torch.nn.Module):
        fn = getattr(type(fn), "forward", fn)
    elif isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(fn, "__code__", None) or getattr(type(fn).__call__, "__code__", None)
    if code is None or not is_user_file(code.co_filename):
        return ""
    return f"{SourceLine(code.co_filename, code.co_firstlineno)}, where {code.co_name} is defined"


def user_line() -> SourceLine:
    """The innermost frame that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if is_user_file(code.co_filename):
            return SourceLine(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return NOWHERE


def user_frame(error: BaseException) -> str:
    """`file:line` of the innermost user frame of a traceback, or ""."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_file(f.filename)]
    return str(SourceLine(frames[-1].filename, frames[-1].lineno)) if frames else ""


def made_at(calls: Iterable[BoundSymbol], proxy: TensorProxy) -> str:
    """`file:line` of the call that makes this tensor, or "" for an argument."""
    return next((str(b.source) for b in calls if proxy in b.tensor_outputs and proxy not in b.tensor_args), "")


def stored_at(calls: Iterable[BoundSymbol], storage: int, last: bool = False) -> str:
    """`file:line` of the first call, or of the last, that writes this memory, or ""."""
    found = [str(b.source) for b in calls if any(w.storage == storage for w in b.written)]
    return found[-1 if last else 0] if found else ""


@contextmanager
def placing(fn: Callable) -> Iterator[None]:
    """Where an UnsupportedError names no line, it names that of the function."""
    try:
        yield
    except UnsupportedError as error:
        error.place(defined_at(fn))
        raise


class StateError(UnsupportedError):
    """The state at `path` cannot be guarded or restored; whoever knows the code that ran names the line."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


def written_at(path: str, codes: Iterable[types.CodeType]) -> str:
    """`file:line` of the first write to the place of this path, or ""."""
    return _first(path, codes, _written)


def read_at(path: str, codes: Iterable[types.CodeType]) -> str:
    """`file:line` of the first read of it, or ""."""
    return _first(path, codes, _read)


Name = tuple[Optional[str], bool]        # the last of a path; is it an attribute?


def _first(path: str, codes: Iterable[types.CodeType], named: Callable[[list, int], Name]) -> str:
    names = re.findall(r"\.?[A-Za-z_]\w*", re.sub(r"\[[^]]*\]", "", path))
    if not names:
        return ""
    wanted = names[-1].lstrip("."), names[-1].startswith(".")
    for code in codes:
        lines, line = dict(dis.findlinestarts(code)), code.co_firstlineno
        steps = list(dis.get_instructions(code))
        for at, step in enumerate(steps):
            line = lines.get(step.offset) or line
            if named(steps, at) == wanted:
                return str(SourceLine(code.co_filename, line))
    return ""


def _read(steps: list[dis.Instruction], at: int) -> Name:
    return (steps[at].argval, steps[at].opname in _ATTRIBUTES) if steps[at].opname in _LOADS else (None, False)


def _written(steps: list[dis.Instruction], at: int) -> Name:
    """What this instruction writes or changes."""
    step = steps[at]
    if step.opname in _STORES:
        return step.argval, step.opname in _ATTRIBUTES
    if step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
        return _last_name(pushed(steps[:at], 2)[1])
    if step.opname in ("LOAD_METHOD", "LOAD_ATTR") and step.argval in _CHANGING:
        return _last_name(pushed(steps[:at], 1)[0])
    return None, False


def _last_name(argument: Argument) -> Name:
    kind, name, attributes = argument
    if attributes:
        return attributes[-1], True
    return (name if kind in ("local", "global") else None), False
