"""Copies: the fewest `copy_` and clones that leave the same memory.

In: a functionalized trace. Out: without
  - a clone whose source is memory that nothing writes while the clone is used (use the memory itself),
  - a `copy_` of a view onto itself with the value it holds,
  - a `copy_` that later ones overwrite whole before anybody reads (dead store).
Guaranteed: every read of memory sees the bytes that it saw before.
"""
from __future__ import annotations

from dataclasses import replace

import torch

from ..ir import prims
from ..ir.memory import covers, overlaps
from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol, Trace

_CLONE, _AS_STRIDED = torch.ops.aten.clone.default, torch.ops.aten.as_strided.default       # as_strided: absolute offsets


def copies(trace: Trace) -> Trace:
    bound_symbols = drop_dead_stores(list(trace.bound_symbols))
    bound_symbols = drop_clones(bound_symbols, trace)
    return trace.replace(stage="copies", bound_symbols=tuple(bound_symbols))


def drop_dead_stores(bound_symbols: list[BoundSymbol]) -> list[BoundSymbol]:
    """Backwards: the regions that will be overwritten before they are read."""
    doomed: dict[int, list[TensorProxy]] = {}                  # by storage
    kept = []
    for b in reversed(bound_symbols):
        if b.sym.opaque or b.sym.may_raise([a.dtype for a in b.tensor_args]):
            doomed.clear()                                     # an error would show what had been written by then
        elif b.sym.is_copy and any(covers(w.bytes, b.args[0].bytes) for w in doomed.get(b.args[0].storage, ())):
            continue
        if b.sym.is_copy:
            doomed.setdefault(b.args[0].storage, []).append(b.args[0])
        for a in b.reads:                            # what it reads, it reads before it writes
            if a.storage in doomed:
                doomed[a.storage] = [w for w in doomed[a.storage] if not overlaps(w.bytes, a.bytes)]
        kept.append(b)
    return kept[::-1]


def drop_clones(bound_symbols: list[BoundSymbol], trace: Trace) -> list[BoundSymbol]:
    """A clone that is only read, while its source keeps its value, is its source."""
    last_use: dict[int, int] = {}                              # by storage
    written_at: dict[int, list[tuple[int, TensorProxy, bool]]] = {}
    kept_apart = {o.storage for o in trace.tensor_results}    # storages that a clone must keep for itself
    memory = {p.storage for p in trace.inputs}
    barriers: list[int] = []                                   # calls that may have changed any memory
    for n, b in enumerate(bound_symbols):
        if b.sym.opaque:
            barriers.append(n)
        for a in b.tensor_args:
            last_use[a.storage] = n
        for w in b.written:
            written_at.setdefault(w.storage, []).append((n, w, b.sym.is_copy))
            kept_apart.add(w.storage)
        if b.sym.opaque or b.sym.overload is _AS_STRIDED or b.sym in (prims.REGION_VIEW, prims.WRITE_REGION):
            kept_apart.update(a.storage for a in b.tensor_args)
    same: dict[TensorProxy, TensorProxy] = {}
    kept = []
    for n, b in enumerate(bound_symbols):
        b = _rehomed(b, same)
        if _is_clone(b) and b.output.storage not in kept_apart and b.args[0].same_layout(b.output) and b.args[0].stride == b.output.stride:
            source, end = b.args[0], last_use.get(b.output.storage, n)
            changed = (source.storage in memory or source.storage in written_at) and any(n < m <= end for m in barriers)
            if not changed and not any(
                    n < m <= end and (overlaps(w.bytes, source.bytes) or not is_copy)
                    for m, w, is_copy in written_at.get(source.storage, ())):
                same[b.output] = source
                last_use[source.storage] = max(last_use.get(source.storage, 0), end)
                continue
        kept.append(b)
    return kept


def _is_clone(b: BoundSymbol) -> bool:
    return (b.sym.overload is _CLONE and not b.kwargs or b.sym is prims.RESTRIDE) and isinstance(b.args[0], TensorProxy)


def _rehomed(b: BoundSymbol, same: dict[TensorProxy, TensorProxy]) -> BoundSymbol:
    """`b` with replaced names; its results that view a replaced name lie in the new one's storage."""
    replaced = [a for a in b.tensor_args if a in same]
    if not replaced:
        return b
    for o in b.tensor_outputs:
        old = next((a for a in replaced if a.storage == o.storage), None)
        if old is not None and o not in same:
            shift = (same[old].bytes.offset - old.bytes.offset) // o.dtype.itemsize
            same[o] = replace(o, storage=same[old].storage, offset=o.offset + shift)
    return b.renamed(lambda x: same.get(x, x) if isinstance(x, TensorProxy) else x)
