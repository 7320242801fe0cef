"""Exceptions and warnings: each names the user's source line and the way out."""
from __future__ import annotations


class TraceError(Exception):
    """Base of all errors that tracejit itself raises. `where` is the user's `file:line` when one is known."""

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{message}\n  at {where}" if where else message)
        self.where = where

    def place(self, where: str) -> None:
        """Name this line, where no other is known."""
        if where and not self.where:
            self.where, self.args = where, (f"{self}\n  at {where}",)


class UnsupportedError(TraceError):
    """The call cannot be captured: tracejit runs it eagerly, or raises this with `fallback="error"`."""


class InplaceCopyError(TraceError):
    """The in-place checker found memory that is read and written in an order that nothing guarantees."""


class FallbackWarning(UserWarning):
    """A call runs eagerly; the message says why and names the user's line."""


class RetraceWarning(UserWarning):
    """A function was compiled many times; the message names what keeps changing, and the way out."""


class EagerRefuses(Exception):
    """Internal: a pass found a call that eager refuses. The program runs eagerly, which raises its own error."""
