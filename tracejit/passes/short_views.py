"""Short views: a view that torch makes is one step away from the tensor at its bottom.

In: the trace that runs. Out: the same, where
  - a chain of views between torch's calls is one `as_strided` of the tensor that they all view,
  - the parts of a split are such views, unless one is a result,
  - a view that is its parent over again is its parent, unless it is a result, goes to a region, or has to do with writes,
  - views that nothing uses are gone.
A detached view of an argument that requires gradients stays one: under `no_grad`, too, views require what they view requires.
Guaranteed: every other call reads and writes the same bytes, under names of the same layout.

`whole_values` comes before that: a value that is put at indices is broadcast there, so that it need not be stripped of its leading
sizes of 1, as `x[:, i] = value` does.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Optional, Sequence

import torch

from ..ir.proxy import TensorProxy
from ..ir.symbol import aten_symbol
from ..ir.trace import BoundSymbol, Trace
from ..ir.trees import map_leaves
from .alias import WITHOUT_HISTORY

_PUTS = (torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default)
# By its public name, which is the cheapest to call.
AS_STRIDED = replace(aten_symbol(torch.ops.aten.as_strided.default), fn=torch.as_strided)


def short_views(trace: Trace) -> Trace:
    results = set(trace.tensor_results)
    fixed = {*results, *(a for b in trace.bound_symbols if b.is_region or b.has_effect for a in b.tensor_args)}
    historic = {p.storage for p in trace.inputs if p.requires_grad}
    bottom: dict[TensorProxy, TensorProxy] = {}
    same: dict[TensorProxy, TensorProxy] = {}
    calls = []
    for b in trace.bound_symbols:
        if same and not b.is_region:
            args, kwargs = map_leaves(lambda x: same.get(x, x) if isinstance(x, TensorProxy) else x, (b.args, b.kwargs))
            b = replace(b, args=args, kwargs=kwargs)
        if b.sym.opaque:                                       # an input may lie elsewhere after it, its old views do not
            bottom.clear()
        parts = _parts(b)
        if parts and parts[0].storage not in historic and results.isdisjoint(parts):
            root = bottom.get(b.tensor_args[0], b.tensor_args[0])
            bottom.update((part, root) for part in parts)
            calls += [_strided(b, root, part) for part in parts]
            continue
        parent = _viewed(b)
        if parent is not None:
            root, view = bottom.get(parent, parent), b.output
            if root.storage in historic and b.sym.overload in WITHOUT_HISTORY:
                calls.append(b)                                # it is a bottom of its own
                continue
            if view.same_view(parent) and view.stride == parent.stride and view not in fixed and (
                    view.storage not in trace.written_storages):
                same[view] = parent
                continue
            bottom[view] = root
            if root is not parent:
                b = _strided(b, root, view)
        calls.append(b)
    return trace.replace(bound_symbols=tuple(_used(calls, trace)))


def _strided(b: BoundSymbol, root: TensorProxy, view: TensorProxy) -> BoundSymbol:
    return replace(b, sym=AS_STRIDED, args=(root, list(view.shape), list(view.stride), view.offset), kwargs={}, output=view)


def whole_values(trace: Trace) -> Trace:
    viewed: dict[TensorProxy, TensorProxy] = {}
    calls = []
    for b in trace.bound_symbols:
        parent = _viewed(b)
        if parent is not None:
            viewed[b.output] = parent
        if b.sym.opaque:
            viewed.clear()
        calls.append(_with_whole_value(b, viewed) if b.sym.overload in _PUTS else b)
    return trace.replace(bound_symbols=tuple(calls))


def _with_whole_value(put: BoundSymbol, viewed: dict[TensorProxy, TensorProxy]) -> BoundSymbol:
    x, indices, value, *more = put.args
    whole = viewed.get(value, value)
    front = len(whole.shape) - len(value.shape)
    if front <= 0 or tuple(whole.shape) != (1,) * front + tuple(value.shape) or len(whole.shape) > _rank_of_place(x, indices):
        return put
    return replace(put, args=(x, indices, whole, *more)) if tuple(whole.stride[front:]) == tuple(value.stride) else put


def _rank_of_place(x: TensorProxy, indices: list[Optional[TensorProxy]]) -> int:
    """The dims of `x[indices]`. A mask takes as many of x as it has, and is one of indices."""
    given = [(len(i.shape), 1) if i.dtype in (torch.bool, torch.uint8) else (1, len(i.shape)) for i in indices if i is not None]
    return len(x.shape) - sum(taken for taken, _ in given) + max(made for _, made in given)


def _used(calls: list[BoundSymbol], trace: Trace) -> list[BoundSymbol]:
    """Without the views that nothing uses."""
    live, kept = set(trace.tensor_results), []
    for b in reversed(calls):
        if _viewed(b) is None or b.output in live:
            live.update(b.tensor_args)
            kept.append(b)
    return kept[::-1]


def _viewed(b: BoundSymbol) -> Optional[TensorProxy]:
    """What a call views, when its one result is nothing but other strides over the same elements."""
    return b.tensor_args[0] if isinstance(b.output, TensorProxy) and _shows(b, [b.output]) else None


def _parts(b: BoundSymbol) -> list[TensorProxy]:
    """The results of a call that makes several such views of one tensor."""
    return b.tensor_outputs if isinstance(b.output, (list, tuple)) and b.tensor_outputs and _shows(b, b.tensor_outputs) else []


def _shows(b: BoundSymbol, views: Sequence[TensorProxy]) -> bool:
    if b.is_region or b.has_effect or len(b.tensor_args) != 1:
        return False
    a = b.tensor_args[0]
    return not a.conj and not a.neg and all(a.storage == o.storage and a.reading == o.reading for o in views)
