"""Warnings that a program raises through Python's `warnings`.

During a capture they are kept, not shown: each call of what was compiled raises them anew, as the lines of the user's that they
are about, so that filters, `catch_warnings` and `-W error` around the call work as they do in eager. What the fake
implementations of operations warn of is no part of the program.
"""
from __future__ import annotations

import sys
import threading
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Callable, Iterator, Optional

from ..errors import UnsupportedError
from .frames import where
from .handlers import OWN_PATH, is_user_file
from .recorder import Recorder
from .while_captured import WhileCaptured


@dataclass(frozen=True, eq=False)
class Warned:
    """A warning, and the line that it is about: that of the call, where `file` is "". inside: a recorded call raised it."""

    message: Warning
    file: str
    line: int
    module: dict
    inside: bool

    def raise_anew(self, stack_level: Callable[[], int]) -> None:
        """stack_level: of the line that calls the jitted function, as seen from here."""
        if not self.file:
            return warnings.warn(self.message, stacklevel=stack_level())
        registry = self.module.setdefault("__warningregistry__", {})
        return warnings.warn_explicit(self.message, type(self.message), self.file, self.line, self.module.get("__name__"), registry)

    @property
    def is_error(self) -> bool:
        """May a filter turn it into an exception now? Eager raises that in the midst of the program."""
        return warnings.defaultaction == "error" or any(f[0] == "error" and isinstance(self.message, f[2]) for f in warnings.filters)


class Hearing:
    """What one capture hears. level: its function level; once: is this frame run once only, as under lru_cache?"""

    def __init__(self, level: Any, once: Callable[[FrameType], bool]) -> None:
        self.level, self.once = level, once
        self.filters, self.thread = warnings.filters, threading.get_ident()
        self.found: list[Warned] = []

    def hear(self, message: Any, category: Any, stacklevel: int, more: dict) -> None:
        frame = sys._getframe(2)
        if _in_dispatch(frame):
            return None
        if self.once(frame):
            return _warn(message, category, stacklevel + 2, **more)
        if self.level.in_backward:
            raise self.refused("the backward pass warns: warn outside of the jitted function", frame)
        if warnings.filters is not self.filters:               # those of a catch_warnings within the program
            return self.refuse_if_shown(message, category, stacklevel, more, frame)
        made = message if isinstance(message, Warning) else (category or UserWarning)(message)
        about = _frame_at(frame, max(stacklevel, 2) if more.get("skip_file_prefixes") else stacklevel, more.get("skip_file_prefixes", ()))
        inside = self.level.inside > 0
        if about is None:
            return self.found.append(Warned(made, "", 0, {}, inside))
        return self.found.append(Warned(made, about.f_code.co_filename, about.f_lineno, about.f_globals, inside))

    def refuse_if_shown(self, message: Any, category: Any, stacklevel: int, more: dict, frame: FrameType) -> None:
        """UnsupportedError, unless filters that the program sets ignore the warning, or make an error of it."""
        before = warnings.showwarning

        def refuse(*args: Any, **kwargs: Any) -> None:
            if threading.get_ident() != self.thread:
                return before(*args, **kwargs)
            raise self.refused("a warning is raised under filters that the function sets: set them around the call", frame)
        warnings.showwarning = refuse
        try:
            _warn(message, category, stacklevel + 3, **more)
        finally:
            warnings.showwarning = before

    def refused(self, why: str, frame: FrameType) -> UnsupportedError:
        """The error, which the program does not catch."""
        self.level.recorder.refused = self.level.recorder.refused or UnsupportedError(why, where=where(frame))
        return self.level.recorder.refused


_local = threading.local()
_warn = warnings.warn


def _heard_warn(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **more: Any) -> None:
    """`warnings.warn` while a capture runs."""
    hearing = getattr(_local, "hearing", None)
    if hearing is None:
        return _warn(message, category, stacklevel + 1, source, **more)
    return hearing.hear(message, category, stacklevel, {**more, **({} if source is None else {"source": source})})


def without_hearing(value: Any) -> Any:
    """What is there when no capture runs."""
    return _warn if value is _heard_warn else value


@contextmanager
def hearing(heard: Hearing) -> Iterator[None]:
    """`warnings.warn` of this thread goes to `heard`, where WARN is on."""
    _local.hearing, before = heard, getattr(_local, "hearing", None)
    try:
        yield
    finally:
        _local.hearing = before


def _listen() -> None:
    warnings.warn = _heard_warn if warnings.warn is _warn else warnings.warn       # not what somebody put there


def _listen_no_more() -> None:
    warnings.warn = _warn if warnings.warn is _heard_warn else warnings.warn


WARN = WhileCaptured(_listen, _listen_no_more)


def _in_dispatch(frame: Optional[FrameType]) -> bool:
    while frame is not None:
        if frame.f_code is Recorder.__torch_dispatch__.__code__:
            return True
        frame = frame.f_back
    return False


def _frame_at(frame: Optional[FrameType], stacklevel: int, skipped: tuple[str, ...]) -> Optional[FrameType]:
    """The frame that a warning is about, as it is without a capture: frames of its own are left out, with those of torch that lead
    to them. None beyond the jitted function."""
    while frame is not None and (stacklevel > 1 or skipped and frame.f_code.co_filename.startswith(skipped)):
        frame, stacklevel = frame.f_back, stacklevel - 1
        if frame is not None and frame.f_code.co_filename.startswith(OWN_PATH):
            while frame is not None and not is_user_file(frame.f_code.co_filename):
                if frame.f_code.co_filename.endswith("/capture/tracer.py"):
                    return None
                frame = frame.f_back
    return frame
