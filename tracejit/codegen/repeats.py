"""Nests, and regions, that are the same up to the storages that they work on: lowered once, and one function for all.

Two nests with equal signatures have equal kernels; `Repeats` renames the buffers of the first one's.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Hashable, Mapping

from ..ir.alike import structure_key
from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol
from .calls import Call, Region, reads
from .kernel import Buffer, Kernel
from .lower import Nest

Wanted = Callable[[TensorProxy], bool]


class Signature:
    """`key`: what a nest computes, its storages numbered as they appear; `storages`: those numbers."""

    def __init__(self, nest: Nest, region: Region, floats: Callable[[Call], bool], wanted: Wanted) -> None:
        self.region, self.storages = region, {}
        own = set(nest.calls)
        self.here = own | self._floating(nest.calls, floats)
        calls = sorted(self.here, key=lambda c: c.position)
        made = tuple(self._call(c, c in own, wanted) for c in calls)
        self.key: Hashable = (nest.shape, nest.reduced, nest.split, made)

    def _floating(self, calls: list[Call], floats: Callable[[Call], bool]) -> set[Call]:
        found: set[Call] = set()
        left = [p for c in calls for p in reads(c)]
        while left:
            maker = self.region.made(left.pop().storage)
            if maker is not None and maker not in found and floats(maker):
                found.add(maker)
                left += reads(maker)
        return found

    def _call(self, c: Call, own: bool, wanted: Wanted) -> Hashable:
        shape = structure_key(c.bsym.args, c.bsym.kwargs)
        made = tuple((self._tensor(o), own and not c.is_store and wanted(o)) for o in c.bsym.tensor_outputs)
        return c.name, c.overload, own, shape, tuple(map(self._argument, c.bsym.flat_args)), made

    def _argument(self, a: Any) -> Hashable:
        return self._tensor(a) if isinstance(a, TensorProxy) else _constant(a)

    def _tensor(self, p: TensorProxy) -> Hashable:
        number = self.storages.setdefault(p.storage, len(self.storages))
        root = self.region.roots.get(p.storage) if self.region.made(p.storage) in self.here else None
        return number, _layout(p), root and _layout(root)


def _layout(p: TensorProxy) -> Hashable:
    return p.shape, p.stride, p.offset, p.dtype, p.number


def _constant(a: Any) -> Hashable:
    return (type(a), repr(a)) if isinstance(a, (int, float, bool, str, type(None))) else (type(a), id(a))


def region_key(region: BoundSymbol) -> tuple[Hashable, list[int]]:
    """What a region computes, its storages numbered as they appear; and these. Its constants are told by identity."""
    storages: dict[int, int] = {}

    def leaf(a: Any) -> Hashable:
        return (storages.setdefault(a.storage, len(storages)), _layout(a)) if isinstance(a, TensorProxy) else _constant(a)
    calls = tuple([(b.sym, structure_key(b.args, b.kwargs), tuple(map(leaf, b.flat_args)), tuple(map(leaf, b.flat_outputs)))
                   for b in region.subsymbols])
    return (calls, tuple(map(leaf, region.tensor_outputs))), list(storages)


def renamed(kernel: Kernel, storages: Mapping[int, int]) -> Kernel:
    """A kernel that is the same but for the storages."""
    buffers = {}
    for b in kernel.buffers.values():
        name = f"b{storages[b.storage]}_{b.name.split('_')[1]}"
        buffers[name] = Buffer(name, storages[b.storage], b.dtype, b.written)
    return replace(kernel, buffers=buffers, same_as=kernel.same_as or kernel)


class Repeats:
    """Kernels by signature."""

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[Kernel, dict[int, int]]] = {}

    def kernel(self, signature: Signature, lower: Callable[[], Kernel]) -> Kernel:
        if signature.key not in self.known:
            self.known[signature.key] = lower(), signature.storages
            return self.known[signature.key][0]
        kernel, storages = self.known[signature.key]
        return renamed(kernel, dict(zip(storages, signature.storages)))        # both in order of their numbers
