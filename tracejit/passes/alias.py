"""Alias analysis of a recorded trace.

In: a trace of ATen calls over proxies with storage ids. Out: `Aliases`, which answers for every proxy how it is a view:
of which proxy, by which call, down from which root of its storage. Taken from storage ids, never from schemas.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import torch

from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol, Trace

_AS_STRIDED = torch.ops.aten.as_strided.default
WITHOUT_HISTORY = (torch.ops.aten.detach.default, torch.ops.aten.view.dtype)        # views that lead no gradients on


@dataclass(frozen=True, eq=False)
class ViewStep:
    """`proxy` is result `out_index` of `call` with `parent` at flat position `hole`.

    Without a call it is an as_strided view of a parentless proxy: that is how metadata moves and odd views are told; detached: it
    leads no gradients on, whatever its parent does.
    """

    proxy: TensorProxy
    parent: TensorProxy
    call: Optional[BoundSymbol] = None
    hole: int = 0
    out_index: int = 0
    detached: bool = False


class Aliases:
    """step: view steps by proxy; roots: first proxy of each storage; objects: the last proxy of an input whose
    metadata moved, by input."""

    def __init__(self, trace: Trace) -> None:
        self.step: dict[TensorProxy, ViewStep] = {}
        self.roots: dict[int, TensorProxy] = {}
        self.inputs = frozenset(trace.inputs)
        self._object: dict[TensorProxy, TensorProxy] = {}
        for p in trace.inputs:
            self.roots.setdefault(p.storage, p)
        for b in trace.bound_symbols:
            self._add(b)
        self.moved = {self._object[p]: p for p in self._object if self._object[p] in self.inputs}

    def object_of(self, p: TensorProxy) -> TensorProxy:
        """The first proxy of the tensor object that `p` stands for."""
        return self._object.get(p, p)

    def _add(self, b: BoundSymbol) -> None:
        flat = b.flat_args
        for index, out in enumerate(b.flat_outputs):
            if not isinstance(out, TensorProxy) or out in self.inputs or out in self.step or any(out is a for a in flat):
                continue
            if out.storage not in self.roots:
                self.roots[out.storage] = out
            elif self.roots[out.storage] is not out:
                self.step[out] = self._view(b, flat, out, index)
            if b.sym.moves_metadata and b.written:
                self._object[out] = self.object_of(b.written[0])

    def _view(self, b: BoundSymbol, flat: list, out: TensorProxy, index: int) -> ViewStep:
        holes = [i for i, a in enumerate(flat) if isinstance(a, TensorProxy)]
        over = next((flat[i] for i in holes if flat[i].storage == out.storage), self.roots[out.storage])
        plain = len(holes) == 1 and flat[holes[0]].storage == out.storage and not b.written
        if not plain or b.sym.overload is _AS_STRIDED:          # as_strided addresses the storage, whatever the view
            return ViewStep(out, self.top(over), detached=b.sym.overload is not _AS_STRIDED or self._without_history(over))
        return ViewStep(out, flat[holes[0]], b, holes[0], index)

    def _without_history(self, p: TensorProxy) -> bool:
        return any(s.detached or s.call is not None and s.call.sym.overload in WITHOUT_HISTORY for s in self.chain(p))

    def chain(self, p: TensorProxy) -> list[ViewStep]:
        """View steps from the parentless proxy (a root or an input) down to `p`."""
        steps = []
        while p in self.step:
            steps.append(self.step[p])
            p = self.step[p].parent
        return steps[::-1]

    def top(self, p: TensorProxy) -> TensorProxy:
        """The parentless proxy that `p` is a view of."""
        while p in self.step:
            p = self.step[p].parent
        return p


def view_arguments(step: ViewStep, parent: TensorProxy) -> tuple[tuple, dict]:
    """(args, kwargs) of the step's call on another parent."""
    flat = list(step.call.flat_args)
    flat[step.hole] = parent
    return step.call.arguments(flat)
