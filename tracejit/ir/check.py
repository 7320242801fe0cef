"""Well-formedness of a trace: scope, single binding, effects and metadata. Errors print the call and its neighbours."""
from __future__ import annotations

import torch

from ..errors import TraceError
from .printer import bound_symbol_text
from .extents import is_extent
from .proxy import TensorProxy
from .symbol import Symbol
from .trace import BoundSymbol, Trace


def check_trace(trace: Trace) -> Trace:
    """The trace itself, or TraceError naming the first call that is wrong."""
    names: dict[str, TensorProxy] = {}
    for p in trace.inputs:
        if p.name in names:
            raise TraceError(f"stage {trace.stage}: two inputs are named {p.name}: give one another name")
        names[p.name] = p
    for n, b in enumerate(trace.bound_symbols):
        wrong = _wrong(b, names)
        if wrong:
            raise TraceError(f"stage {trace.stage}: {wrong}\n{neighbours(trace, n)}", where=str(getattr(b, "source", "")))
        names.update((o.name, o) for o in b.tensor_outputs)
    for o in trace.output:
        if isinstance(o, TensorProxy) and names.get(o.name) is not o:
            raise TraceError(f"stage {trace.stage}: the result {o.name} is bound nowhere: return what an input or a call binds")
    return trace


def _wrong(b: BoundSymbol, names: dict[str, TensorProxy]) -> str:
    if not isinstance(b, BoundSymbol):
        return f"{b!r} is not a BoundSymbol: make one of a call that is there, by dataclasses.replace"
    if not isinstance(b.sym, Symbol) or not callable(b.sym.fn):
        return f"{b.sym!r} is not a Symbol that can be called: take that of a call, or tracejit.ir.symbol.aten_symbol(overload)"
    for a in b.tensor_args:
        if names.get(a.name) is not a:
            if a.name not in names:
                return f"{a.name} is used before it is bound: keep the call that makes it, and before this one"
            return f"{a.name} is another {a.name} than the one bound: pass the proxy that a call before this one binds"
    for o in b.tensor_outputs:
        if o not in b.tensor_args and o.name in names:
            return f"{o.name} is bound twice: give what a new call makes a name of its own"
        if len(o.shape) != len(o.stride) or any(type(n) is not int and not is_extent(n) or n < 0 for n in o.shape):
            return f"{o.name} has shape {o.shape} and stride {o.stride}: both are whole numbers, one for each dim"
        if not isinstance(o.dtype, torch.dtype):
            return f"{o.name} has no dtype: give its proxy a torch.dtype"
    return _wrong_inside(b, names) if b.is_region else ""


def _wrong_inside(region: BoundSymbol, names: dict[str, TensorProxy]) -> str:
    """A region sees its arguments, and binds its outputs and names of its own."""
    inside = {a.name: a for a in region.tensor_args}
    for sub in region.subsymbols:
        wrong = _wrong(sub, inside)
        if wrong:
            return f"in region {region.sym.name}: {wrong}"
        inside.update((o.name, o) for o in sub.tensor_outputs)
    missing = [o.name for o in region.tensor_outputs if inside.get(o.name) is not o]
    return f"region {region.sym.name} does not bind {missing[0]}: an executor keeps the calls that make its outputs" if missing else ""


def neighbours(trace: Trace, n: int, around: int = 2) -> str:
    """The calls around call n, n itself marked."""
    first = max(0, n - around)
    return "\n".join(f"{'>' if first + k == n else ' '} {bound_symbol_text(b)}"
                     for k, b in enumerate(trace.bound_symbols[first:n + around + 1]))
