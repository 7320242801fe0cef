"""Exception handlers of the user's frames: would an error that a tensor's values cause be caught there?

A capture follows one path. If an operation that may raise on values stands in a `try` whose `except` clause takes
such an error, which way the program goes depends on data.
"""
from __future__ import annotations

import builtins
import dis
import functools
import sys
from types import CodeType, FrameType

import torch

from ..errors import UnsupportedError
from ..ir.trace import SourceLine

_VALUE_ERRORS = (RuntimeError, IndexError, ZeroDivisionError, OverflowError)        # what torch raises for values
_TORCH_PATH = torch.__path__[0] + "/"
OWN_PATH = __file__.rsplit("/", 2)[0] + "/"
_MATCHES = ("CHECK_EXC_MATCH", "JUMP_IF_NOT_EXC_MATCH")
_UNKNOWN = "*"                       # a bare `except:`, or classes that are not plain names


def is_user_file(path: str) -> bool:
    """Neither torch's nor ours."""
    return not path.startswith((_TORCH_PATH, OWN_PATH, "<frozen"))


def refuse_exception_handlers(source: SourceLine) -> None:
    """An op that may raise on values, where that is caught: which way the program goes depends on data."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != __file__.rsplit("/", 1)[0] + "/tracer.py":
        if is_user_file(frame.f_code.co_filename) and catches_value_errors(frame):
            raise UnsupportedError("an operation that may raise stands in a try that catches its error: "
                                   "check the values "
                                   "before, or catch it around the jitted function", where=str(source))
        frame = frame.f_back


def catches_value_errors(frame: FrameType) -> bool:
    """Does a handler that is active in `frame`, where it stands now, take an error of this kind?"""
    return any(start <= frame.f_lasti < stop and any(_takes(frame, name) for name in names)
               for start, stop, names in _handlers(frame.f_code))


def _takes(frame: FrameType, name: str) -> bool:
    kind = frame.f_globals.get(name, getattr(builtins, name, None))
    return not isinstance(kind, type) or any(issubclass(e, kind) for e in _VALUE_ERRORS)


@functools.lru_cache(None)
def _handlers(code: CodeType) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
    """(start, stop, names of the classes caught) of every protected range; `with` and `finally` catch nothing."""
    instructions = list(dis.get_instructions(code))
    at = {i.offset: n for n, i in enumerate(instructions)}
    if sys.version_info >= (3, 11):
        ranges = [(e.start, e.end, e.target) for e in dis.Bytecode(code).exception_entries]
    else:
        ranges = [(i.offset, i.argval, i.argval) for i in instructions if i.opname == "SETUP_FINALLY"]
    found = [(start, stop, _caught(instructions[at[target]:])) for start, stop, target in ranges if target in at]
    return tuple(f for f in found if f[2])


def _caught(handler: list[dis.Instruction]) -> tuple[str, ...]:
    names: list[str] = []
    for n, i in enumerate(handler):
        if i.opname in _MATCHES:
            before = handler[n - 1]
            names.append(before.argval if before.opname in ("LOAD_GLOBAL", "LOAD_NAME") else _UNKNOWN)
        elif i.opname in ("RERAISE", "WITH_EXCEPT_START"):
            break
        elif n == 1 and i.opname == "POP_TOP":                       # a bare `except:` drops the exception at once
            names.append(_UNKNOWN)
    return tuple(names)
