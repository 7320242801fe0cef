"""Dead code elimination.

In: a trace. Out: without calls whose results nothing reads and that write, draw and raise nothing.
Guaranteed: what is visible, the random draws and the errors stay the same.
"""
from __future__ import annotations

from ..ir.trace import BoundSymbol, Trace


def dce(trace: Trace) -> Trace:
    live = set(trace.tensor_results)
    kept: list[BoundSymbol] = []
    for b in reversed(trace.bound_symbols):
        if has_effect(b) or any(o in live for o in b.tensor_outputs):
            live.update(b.tensor_args)
            kept.append(b)
    return trace.replace(stage="dce", bound_symbols=tuple(reversed(kept)))


def has_effect(b: BoundSymbol) -> bool:
    """Writes memory, advances a generator, may raise on values, or may do anything."""
    return bool(b.written) or b.sym.random or b.sym.opaque or b.sym.may_raise([a.dtype for a in b.tensor_args])
