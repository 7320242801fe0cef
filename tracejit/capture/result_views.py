"""Results that are views: of arguments, or of other results.

Autograd knows them as views. They are made again under autograd, from what they view, once the program has run.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from ..ir.proxy import TensorProxy
from ..ir.symbol import aten_symbol
from ..ir.trace import BoundSymbol, Trace
from .histories import computed_from


@dataclass(frozen=True, eq=False)
class ResultView:
    """`positions`: the outputs that are this view; of input `source`, or of output -1 - `source`; `steps`: from there on, with
    the number of the view among those that a call makes, None for a call that makes one."""

    positions: tuple[int, ...]
    source: int
    steps: tuple[tuple[BoundSymbol, Optional[int]], ...]

    def maker(self) -> Callable[[torch.Tensor, dict], torch.Tensor]:
        """Makes the view of a tensor. The dict has what the calls gave, so that views of one call have one node of the graph."""
        calls = [(b, _call(b), number) for b, number in self.steps]

        def make(t: torch.Tensor, made: dict[BoundSymbol, Any]) -> torch.Tensor:
            for b, call, number in calls:
                if b not in made:
                    made[b] = call(t)
                t = made[b] if number is None else made[b][number]
            return t
        return make


def _call(b: BoundSymbol) -> Callable[[torch.Tensor], Any]:
    at = next(k for k, a in enumerate(b.args) if isinstance(a, TensorProxy))
    before, after = b.args[:at], b.args[at + 1:]
    return lambda t: b.sym.fn(*before, t, *after, **b.kwargs)


def result_views(forward: Trace, outputs: tuple, differentiable: tuple[int, ...]) -> tuple[ResultView, ...]:
    """Of the results that carry gradients, those that are views of inputs, or of others among them.

    outputs: those of `forward`, as fakes and plain values.
    """
    makers = {o: b for b in forward.bound_symbols for o in b.tensor_outputs if o not in b.tensor_args}
    ends: dict[TensorProxy, int] = {p: k for k, p in enumerate(forward.inputs)}
    roots = dict.fromkeys((p.storage for p in forward.inputs), None)
    told = {w.storage: n for n, b in enumerate(forward.bound_symbols) for w in b.told}
    found = []
    for k in sorted(differentiable, key=lambda k: outputs[k]._is_view()):       # what is viewed comes first
        p = forward.output[k]
        if p.storage not in roots:
            roots[p.storage] = None if outputs[k]._is_view() else p
            ends.setdefault(p, -1 - k)
            continue
        way = _way(p, makers, ends)
        if way is not None and told.get(p.storage, -1) > forward.bound_symbols.index(way[1][-1][0]):
            root = roots[p.storage]
            way = _by_strides(p, root) or (way if way[0] is root or way[0] in forward.inputs else None)
        if way is not None:
            positions = tuple(n for n, o in enumerate(outputs) if o is outputs[k])
            found.append(ResultView(positions, ends[way[0]], way[1]))
            ends.setdefault(p, -1 - k)                         # later results may be views of this one
    return tuple(found)


def led_through(outputs: tuple, every: tuple[int, ...], views: dict[int, ResultView]) -> set[int]:
    """The views, by their first position, through which the history of a result that is no view leads; and those made with them."""
    before = computed_from([outputs[k] for k in every]) if views else []
    inner = {every[m] for k, found in zip(every, before) if k not in views for m in found if every[m] in views}
    calls = {b for k in inner for b, number in views[k].steps if number is not None}
    return inner | {k for k, v in views.items() if any(b in calls for b, _ in v.steps)}


def _by_strides(p: TensorProxy, base: Optional[TensorProxy]) -> Optional[tuple[TensorProxy, tuple]]:
    """The way to a view whose base was written since: autograd makes its history anew, as that of `as_strided`."""
    if base is None or base.offset or p.reading != base.reading:
        return None
    call = BoundSymbol(aten_symbol(torch.ops.aten.as_strided.default), (base, list(p.shape), list(p.stride), p.offset), {}, p)
    return base, ((call, None),)


def _way(p: TensorProxy, makers: dict[TensorProxy, BoundSymbol], ends: dict) -> Optional[tuple[TensorProxy, tuple]]:
    """(the end that is viewed, the calls from there to p); None where other calls than plain views lie between."""
    steps: list[Any] = []
    while p not in ends:
        b = makers.get(p)
        if b is None or b.written or not b.modes.grad or len(b.tensor_args) != 1 or (
                b.args.count(b.tensor_args[0]) != 1 or b.tensor_args[0].storage != p.storage):
            return None
        steps.append((b, None if b.output is p else b.output.index(p)))
        p = b.tensor_args[0]
    return (p, tuple(steps[::-1])) if steps else None
