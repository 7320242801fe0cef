"""Claim: every call goes to the first executor that takes it.

In: a functional trace, and executors in order. Out: the same calls, each with the executor that runs it.
Guaranteed: names are bound as before; TraceError names the executor that broke this.
"""
from __future__ import annotations

from typing import Sequence

from ..errors import TraceError
from ..ir.printer import bound_symbol_text
from ..ir.trace import BoundSymbol, Trace
from .registry import Executor


def claim(trace: Trace, executors: Sequence[Executor]) -> Trace:
    return trace.replace(stage="claim", bound_symbols=tuple(_claimed(b, executors) for b in trace.bound_symbols))


def _claimed(b: BoundSymbol, executors: Sequence[Executor]) -> BoundSymbol:
    executor = next(e for e in executors if e.can_execute(b))
    taken = executor.execute(b)
    if not isinstance(taken, BoundSymbol) or [*map(id, taken.flat_outputs)] != [*map(id, b.flat_outputs)]:
        raise TraceError(f"executor {executor.name!r} must return a BoundSymbol with the outputs of the call that it took:\n"
                         f"  {bound_symbol_text(b)}\nreturned {taken}", where=str(b.source))
    return taken
