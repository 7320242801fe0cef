"""Write-backs last: what a program writes to its inputs' memory is a value until the very end.

In: the ATen calls as recorded. Out: the same calls on copies of the inputs that are written, then one `copy_` per such
input; functionalization leaves no other writes.
Guaranteed: the same results and the same memory afterwards. A result that is a written input, or a view of it, becomes a
tensor of its own.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..errors import UnsupportedError
from ..ir import prims
from ..ir.proxy import TensorProxy
from ..ir.symbol import aten_symbol
from ..ir.trace import BoundSymbol, Trace

_COPY = aten_symbol(torch.ops.aten.copy_.default)
_AS_STRIDED = torch.ops.aten.as_strided.default


def write_backs_last(trace: Trace) -> Trace:
    """The pass. UnsupportedError where inputs share the memory that is written, or change their own metadata."""
    written = {w.storage: b for b in trace.bound_symbols for w in b.written}
    inputs = [p for p in trace.inputs if p.storage in written]
    _refuse(trace, inputs, written)
    storage = 1 + max((p.storage for p in _names(trace)), default=0)
    taken, copied = {p.name for p in _names(trace)}, {}
    for n, p in enumerate(inputs):
        name = next(c for c in (p.name + "_" * k + "now" for k in range(1, len(taken) + 2)) if c not in taken)
        taken.add(name)
        copied[p.storage] = (p, replace(p, name=name, storage=storage + n, offset=0))
    moved: dict[TensorProxy, TensorProxy] = {p: copy for p, copy in copied.values()}

    def on_copy(x: Any) -> Any:
        if not isinstance(x, TensorProxy) or x.storage not in copied:
            return x
        if x not in moved:
            p, copy = copied[x.storage]
            moved[x] = replace(x, storage=copy.storage, offset=x.offset - p.offset)
        return moved[x]

    calls = [b.renamed(on_copy)
             for b in trace.bound_symbols]
    first = [BoundSymbol(prims.RESTRIDE, (p, list(p.shape), list(p.stride)), {}, copy) for p, copy in copied.values()]
    last = [BoundSymbol(_COPY, (p, copy), {}, p, written[p.storage].source, comment=written[p.storage].comment)
            for p, copy in copied.values()]
    return trace.replace(stage="write_backs_last", bound_symbols=(*first, *calls, *last), output=tree_map(on_copy, trace.output))


def _names(trace: Trace) -> list[TensorProxy]:
    return [*trace.inputs, *(p for b in trace.bound_symbols for p in b.tensor_outputs)]


def _refuse(trace: Trace, inputs: list[TensorProxy], written: dict[int, BoundSymbol]) -> None:
    for p in inputs:
        others = [q.name for q in trace.inputs if q.storage == p.storage and q is not p]
        if others:
            raise UnsupportedError(f"{p.name} and {', '.join(others)} share memory that is written: pass one of them, and view "
                                   "it inside the function", where=str(written[p.storage].source))
    storages = {p.storage: p for p in inputs}
    for b in trace.bound_symbols:
        absolute = b.sym.overload is _AS_STRIDED and any(a.storage in storages and storages[a.storage].offset for a in b.tensor_args)
        if absolute or any(w.storage in storages and (b.sym.moves_metadata or b.sym.opaque) for w in b.written):
            raise UnsupportedError(f"{b.sym.name} on an argument has no functional form: "
                                   "do it on a copy, as .clone() makes one", where=str(b.source))
