"""Trace -> callable: the text that is printed is the text that runs, compiled once."""
from __future__ import annotations

import itertools
import linecache
import types
import weakref
from typing import Callable, Optional

from ..ir.printer import trace_source
from ..ir.trace import SourceLine, Trace

_numbers = itertools.count()
_programs: "weakref.WeakValueDictionary[str, Program]" = weakref.WeakValueDictionary()
_OWN_PATH = __file__.rsplit("/", 2)[0] + "/"


class Program:
    """`run(*inputs)` returns the flat outputs; `direct()` gives the same without a frame between it and its regions,
    for after a first run, which verifies how their arguments are laid out. Frames are found again by `filename`."""

    def __init__(self, trace: Trace) -> None:
        text, scope, calls = trace_source(trace, annotate=False)
        self.filename = f"<tracejit {trace.name} {next(_numbers)}>"
        self.sources: dict[int, SourceLine] = {line: b.source for line, b in calls.items()}
        linecache.cache[self.filename] = (len(text), None, text.splitlines(True), self.filename)
        self._code, self._scope, self._name = compile(text, self.filename, "exec"), dict(scope), trace.name
        self.has_regions = any(hasattr(value, "launch") for value in scope.values())
        exec(self._code, scope)
        self.run: Callable = scope[trace.name]
        _programs[self.filename] = self
        weakref.finalize(self, linecache.cache.pop, self.filename, None)

    def direct(self) -> Callable:
        scope = {name: getattr(value, "launch", value) for name, value in self._scope.items()}
        exec(self._code, scope)
        return scope[self._name]


def user_traceback(error: BaseException) -> Optional[types.TracebackType]:
    """The traceback of `error` without tracejit's frames; a line of a program becomes the user's line it came from."""
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
    shown = None
    for tb in reversed(frames):
        shown = types.TracebackType(shown, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    return shown


def _frame_at(source: SourceLine) -> Optional[types.TracebackType]:
    """A traceback entry at a line of the user's file."""
    code = compile("\n" * (source.line - 1) + "raise KeyError", source.file, "exec").replace(co_name=source.function or "<module>")
    try:
        exec(code, {})
    except KeyError as raised:
        return raised.__traceback__.tb_next
    return None
