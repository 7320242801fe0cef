"""Trace -> callable: the text that is printed is the text that runs, compiled once."""
from __future__ import annotations

import itertools
import linecache
import sys
import types
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Optional

from ..ir.printer import trace_source
from ..ir.proxy import TensorProxy
from ..ir.trace import SourceLine, Trace

_numbers = itertools.count()
_programs: "weakref.WeakValueDictionary[str, Program]" = weakref.WeakValueDictionary()
_OWN_PATH = __file__.rsplit("/", 2)[0] + "/"


OF_REGION, OF_INPUTS, CONSTANT = range(3)


@dataclass(frozen=True)
class OneRegion:
    """A program that is one region. arguments: which inputs it takes; outputs: (where from, which, a constant's value)."""

    launch: Callable[..., list]
    arguments: tuple[int, ...]
    outputs: tuple[tuple[int, int, Any], ...]
    source: SourceLine


class Program:
    """`run(*inputs)` returns the flat outputs; `direct()` gives the same without a frame between it and its regions,
    for after a first run, which verifies how their arguments are laid out. Frames are found again by `filename`."""

    def __init__(self, trace: Trace, handed_over: bool = False) -> None:
        """handed_over: `run(inputs)` takes a list, and empties it."""
        text, scope, calls = trace_source(trace, annotate=False, handed_over=handed_over)
        self.filename = f"<tracejit {trace.name} {next(_numbers)}>"
        self.sources: dict[int, SourceLine] = {line: b.source for line, b in calls.items()}
        linecache.cache[self.filename] = (len(text), None, text.splitlines(True), self.filename)
        self._code, self._scope, self._name = compile(text, self.filename, "exec"), dict(scope), trace.name
        self.inputs, self.outputs, self._trace = tuple(trace.inputs), tuple(trace.output), trace
        self.has_regions = any(hasattr(value, "launch") for value in scope.values())
        exec(self._code, scope)
        self.run: Callable = scope[trace.name]
        _programs[self.filename] = self
        weakref.finalize(self, linecache.cache.pop, self.filename, None)

    def direct(self) -> Callable:
        scope = {name: getattr(value, "launch", value) for name, value in self._scope.items()}
        exec(self._code, scope)
        return scope[self._name]


    def one_region(self) -> Optional[OneRegion]:
        """The program, if it is one call of a region on inputs."""
        if len(self._trace.bound_symbols) != 1:
            return None
        (b,), inputs = self._trace.bound_symbols, self._trace.inputs
        if any(o.number for o in self._trace.tensor_results):
            return None
        if not hasattr(b.sym.fn, "launch") or b.kwargs or not all(a in inputs for a in b.args):
            return None
        made, outputs = list(b.output), []
        for o in self.outputs:
            if not isinstance(o, TensorProxy):
                outputs.append((CONSTANT, 0, o))
            else:
                outputs.append((OF_REGION, made.index(o), None) if o in made else (OF_INPUTS, inputs.index(o), None))
        return OneRegion(b.sym.fn.launch, tuple(inputs.index(a) for a in b.args), tuple(outputs), b.source)


def user_traceback(error: BaseException, last: Optional[SourceLine] = None) -> Optional[types.TracebackType]:
    """The traceback of `error` without tracejit's frames; a line of a program becomes the user's line it came from.

    last: a line of the user's that was called from without a frame.
    """
    frames = []
    tb = error.__traceback__
    while tb is not None:
        filename = tb.tb_frame.f_code.co_filename
        program = _programs.get(filename)
        source = program.sources.get(tb.tb_lineno) if program is not None else None
        if source is not None and source.file:
            made = _frame_at(source)
            if made is not None:
                frames.append(made)
        elif program is None and not filename.startswith(_OWN_PATH):
            frames.append(tb)
        tb = tb.tb_next
    if last is not None and last.file:
        frames += filter(None, [_frame_at(last)])
    shown = None
    for tb in reversed(frames):
        shown = types.TracebackType(shown, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    return shown


def stack_level() -> int:
    """`stacklevel` of a warning by our caller that is to point at the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_PATH):
        frame, level = frame.f_back, level + 1
    return level


def _frame_at(source: SourceLine) -> Optional[types.TracebackType]:
    """A traceback entry at a line of the user's file."""
    code = compile("\n" * (source.line - 1) + "raise KeyError", source.file, "exec").replace(co_name=source.function or "<module>")
    try:
        exec(code, {})
    except KeyError as raised:
        return raised.__traceback__.tb_next
    return None
