"""The arguments of a call: flat leaves, the tensors among them, and the key under which compiled entries are found.

The key holds everything a trace assumes of the arguments: structure, plain values, each tensor's metadata, which
arguments are one object and which share a storage.
"""
from __future__ import annotations

from typing import Any, Hashable, Optional

import torch

from ..errors import UnsupportedError
from .structure import PLAIN, Structure, flatten, is_dataclass_value

_SCALARS = (int, bool, str, type(None))
_TENSORS = (torch.Tensor, torch.nn.Parameter)


class CallInputs:
    """leaves: every argument leaf; tensors: the distinct tensor objects, in order; objects: leaves held by identity."""

    __slots__ = ("args", "kwargs", "leaves", "structure", "tensors", "objects", "key")

    def __init__(self, args: tuple, kwargs: dict) -> None:
        self.args, self.kwargs = args, kwargs
        self.structure: Optional[Structure] = None
        spec: Hashable = len(args)
        if kwargs or not all(type(a) in _TENSORS or type(a) in _SCALARS for a in args):
            self.leaves, self.structure = flatten((args, kwargs), is_dataclass_value)
            spec = _spec_key(self.structure)
        else:
            self.leaves = list(args)
        self.tensors: list[torch.Tensor] = []
        self.objects: list[Any] = []
        self.key = (spec, *self._leaf_keys())

    def _leaf_keys(self) -> list:
        seen: dict[int, int] = {}
        storages: dict[int, int] = {}
        keys: list = []
        for leaf in self.leaves:
            kind = type(leaf)
            if kind in _TENSORS or isinstance(leaf, torch.Tensor):
                at = seen.setdefault(id(leaf), len(self.tensors))
                if at == len(self.tensors):
                    self.tensors.append(leaf)
                    keys.append(tensor_key(leaf, storages))
                else:
                    keys.append(at)
            elif kind in _SCALARS:
                keys += (kind, leaf)
            elif isinstance(leaf, PLAIN):
                keys += (kind, repr(leaf))
            else:
                self.objects.append(leaf)
                keys += (kind, id(leaf))
        if len(storages) > 1 and any_overlap(self.tensors):
            keys.append("overlapping storages")
        return keys


def _spec_key(structure: Structure) -> Hashable:
    return (repr(structure.spec), tuple((n.type, n.names, tuple(map(_spec_key, n.children)))
                                        for n in structure.nodes if n is not None))


def tensor_key(t: torch.Tensor, storages: dict[int, int]) -> tuple:
    """What a trace assumes of one tensor. `storages` numbers the storages of one call in order of appearance."""
    if t.layout is not torch.strided or type(t) not in _TENSORS:
        return (type(t), t.layout, "eager")
    storage = t.untyped_storage()
    return (t.shape, t.stride(), t.dtype, t.storage_offset(), t.requires_grad, t.is_leaf, t.device, type(t),
            t.is_conj(), t.is_neg(), t.is_inference(), storage.nbytes(),
            storages.setdefault(storage._cdata, len(storages)))


def any_overlap(tensors: list[torch.Tensor]) -> bool:
    """Do two different storages lie over the same bytes (from numpy, shared memory)?"""
    spans = []
    seen = set()
    for t in tensors:
        if t.layout is not torch.strided:
            continue
        s = t.untyped_storage()
        if s._cdata in seen:
            continue
        seen.add(s._cdata)
        first = s.data_ptr()
        if first:
            spans.append((first, first + s.nbytes()))
    spans.sort()
    return any(a[1] > b[0] for a, b in zip(spans, spans[1:]))


def refuse_overlapping_storages(tensors: list[torch.Tensor]) -> None:
    if any_overlap(tensors):
        raise UnsupportedError("two tensors lie over the same memory without sharing a storage (from numpy?)")
