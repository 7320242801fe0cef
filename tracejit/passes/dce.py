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
        if b.has_effect or any(o in live for o in b.tensor_outputs):
            live.update(b.tensor_args)
            kept.append(b)
    return trace.replace(stage="dce", bound_symbols=tuple(reversed(kept)))
