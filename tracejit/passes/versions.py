"""Versions: autograd is told of every write that eager would tell it of.

In: the trace that runs, and the ATen calls as recorded. Out: the trace, with a call at its end that raises the versions of
those inputs that the recorded calls write and the final ones do not: a write of no elements, of values that are there
already, a `t_()` of an argument. Regions and torch's own calls raise the versions of what they write, but for what eager
does not tell autograd of either: the running statistics of a batch norm.
"""
from __future__ import annotations

from torch.autograd.graph import increment_version

from ..ir.symbol import Symbol
from ..ir.trace import BoundSymbol, Trace

TOLD = Symbol("increment_version", increment_version)


def versions(trace: Trace, recorded: Trace) -> Trace:
    missing = recorded.told_storages - trace.told_storages
    inputs = [p for p in {p.storage: p for p in trace.inputs}.values() if p.storage in missing]
    if not inputs:
        return trace
    return trace.replace(bound_symbols=(*trace.bound_symbols, BoundSymbol(TOLD, (inputs,), {}, None)))
