"""Trace -> callable: the text that is printed is the text that runs, compiled once."""
from __future__ import annotations

import itertools
import linecache
import sys
import types
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from ..ir.printer import mode_contexts, trace_source
from ..ir.proxy import TensorConstant, TensorProxy
from ..ir.trace import BoundSymbol, Modes, SourceLine, Trace
from ..ir.trees import flat_leaves
from ..torch_private import without_frame

_numbers = itertools.count()
_programs: "weakref.WeakValueDictionary[str, Program]" = weakref.WeakValueDictionary()
_OWN_PATH = __file__.rsplit("/", 2)[0] + "/"


OF_CALL, OF_INPUTS, CONSTANT = range(3)


@dataclass(frozen=True)
class OneCall:
    """A program that is one call, of a region or of one operation. names: of its last arguments; single: it makes one tensor, not a
    list of its results; arguments, outputs: (where from, which, a constant's value)."""

    run: Callable
    arguments: tuple[tuple[int, int, Any], ...]
    names: tuple[str, ...]
    single: bool
    outputs: tuple[tuple[int, int, Any], ...]
    source: SourceLine


class Replayed(tuple):
    """Results of a call that was replayed under autograd: views among them have their histories."""


class Program:
    """`run(*inputs)` returns the flat outputs; `direct()` gives the same without a frame between it and what it calls,
    for after a first run, which verifies how the arguments of regions are laid out. Frames are found again by `filename`."""

    def __init__(self, trace: Trace, handed_over: bool = False) -> None:
        """handed_over: `run(inputs)` takes a list, and empties it."""
        text, scope, calls = trace_source(trace, annotate=False, handed_over=handed_over)
        self.filename = f"<tracejit {trace.name} {next(_numbers)}>"
        self.sources: dict[int, SourceLine] = {line: b.source for line, b in calls.items()}
        linecache.cache[self.filename] = (len(text), None, text.splitlines(True), self.filename)
        self.inputs, self.outputs, self._trace, self._handed_over = tuple(trace.inputs), tuple(trace.output), trace, handed_over
        self.has_regions = any(hasattr(value, "launch") for value in scope.values())
        self.run: Callable = self._function(text, scope) if self.has_regions else self.direct()
        _programs[self.filename] = self
        weakref.finalize(self, linecache.cache.pop, self.filename, None)

    def direct(self) -> Callable:
        text, scope, _ = trace_source(self._trace, annotate=False, handed_over=self._handed_over, called=_called)
        return self._function(text, scope)

    def _function(self, text: str, scope: dict[str, Any]) -> Callable:
        exec(compile(text, self.filename, "exec"), scope)
        return scope[self._trace.name]

    def one_call(self, plain: bool) -> Optional[OneCall]:
        """The program, if it is one call on inputs and constants. plain: an operation may be called in the modes of the user's call;
        a region may in any."""
        if len(self._trace.bound_symbols) != 1:
            return None
        (b,), inputs = self._trace.bound_symbols, self._trace.inputs
        single, given = not hasattr(b.sym.fn, "launch"), (*b.args, *b.kwargs.values())
        if any(o.number for o in self._trace.tensor_results) or not all(a in inputs or _is_constant(a) for a in given):
            return None
        if single and not (plain and isinstance(b.output, TensorProxy) and self._in_its_modes(b)):
            return None
        made = [b.output] if single else list(b.output)

        def place(value: Any) -> tuple[int, int, Any]:
            if not isinstance(value, TensorProxy):
                return CONSTANT, 0, value
            return (OF_INPUTS, inputs.index(value), None) if value in inputs else (OF_CALL, made.index(value), None)
        return OneCall(_called(b.sym.fn), tuple(map(place, given)), tuple(b.kwargs), single,
                       tuple(map(place, self.outputs)), b.source)

    def _in_its_modes(self, b: BoundSymbol) -> bool:
        return not mode_contexts(b.modes, self._trace.notes.get("modes", Modes())) and not any(a.number for a in b.tensor_args)


def _called(fn: Callable) -> Callable:
    """What runs a region or an operation with no frame between."""
    return without_frame(fn) if isinstance(fn, torch._ops.OpOverload) else getattr(fn, "launch", fn)


def _is_constant(argument: Any) -> bool:
    return not any(isinstance(leaf, (TensorProxy, TensorConstant)) for leaf in flat_leaves((argument,)))


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
