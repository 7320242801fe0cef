"""Exceptions and warnings: each names the user's source line and the way out."""
from __future__ import annotations


def located(message: str, where: str) -> str:
    """A message, and the line `where` that it is about, if one is known."""
    return f"{message}\n  at {where}" if where else message


class TraceError(Exception):
    """Base of all errors that tracejit itself raises. `where` is the user's `file:line` when one is known, else "".

    >>> import tracejit
    >>> try:
    ...     tracejit.get_executor("none")
    ... except tracejit.TraceError as error:
    ...     print(str(error).split(";")[0])
    no executor is named 'none'
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(located(message, where))
        self.where = where

    def place(self, where: str) -> None:
        """Name this line, where no other is known."""
        if where and "\n  at " not in str(self):
            self.where, self.args = where, (located(str(self), where),)


class UnsupportedError(TraceError):
    """The call cannot be captured: tracejit runs it eagerly, or raises this with `fallback="error"`.

    >>> import torch, tracejit
    >>> try:
    ...     tracejit.jit(lambda x: x.tolist(), fallback="error")(torch.ones(2))
    ... except tracejit.UnsupportedError as error:
    ...     print(str(error).split(":")[0])
    Tensor.tolist needs real memory or leaves torch's operations
    """


class InplaceCopyError(TraceError):
    """The in-place checker found memory that is read and written in an order that nothing guarantees.

    >>> import torch, tracejit
    >>> def drop_writes(trace):
    ...     return trace.replace(bound_symbols=tuple(b for b in trace.bound_symbols if not b.written))
    >>> try:
    ...     tracejit.jit(lambda x: x.add_(1), transforms=[drop_writes])(torch.ones(2))
    ... except tracejit.InplaceCopyError as error:
    ...     print(str(error).split(":")[0])
    a write is lost
    """


class FallbackWarning(UserWarning):
    """A call runs eagerly; the message says why and names the user's line.

    >>> import torch, tracejit, warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", tracejit.FallbackWarning)
    ...     tracejit.jit(lambda x: x.tolist())(torch.ones(2))
    [1.0, 1.0]
    """


class RetraceWarning(UserWarning):
    """A function was compiled many times; the message names what keeps changing, and the way out.

    >>> import torch, tracejit, warnings
    >>> f = tracejit.jit(lambda x, n: x * n, dynamic=False)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = [f(torch.ones(2), n) for n in range(12)]
    >>> [w.category.__name__ for w in caught]
    ['RetraceWarning']
    """


class EagerRefuses(Exception):
    """Internal: a pass found a call that eager refuses. The program runs eagerly, which raises its own error."""
