"""The arguments of a call: flat leaves, the tensors among them, and the key under which compiled entries are found.

The key holds everything a trace assumes of the arguments: structure, plain values, each tensor's metadata, which
arguments are one object and which share a storage.
"""
from __future__ import annotations

import inspect
from typing import Any, Callable, Hashable, Optional

import torch

from ..ir.cached import cached_property
from .identity import identity
from .structure import PLAIN, Structure, flatten, is_dataclass_value

_SCALARS = frozenset((int, bool, str, type(None)))
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_LEAVES = _SCALARS | _TENSORS
_STRIDED = torch.strided


class CallInputs:
    """leaves: every argument leaf; tensors: the distinct tensor objects, in order; objects: leaves held by identity.

    open: the float arguments of which the key does not tell the value, in a call made of the call `plain` whose key does.
    """

    open: tuple = ()
    plain: Optional["CallInputs"] = None

    def __init__(self, args: tuple, kwargs: dict) -> None:
        self.args, self.kwargs = args, kwargs
        self.structure: Optional[Structure] = None
        self.leaves: Any = args
        spec: Hashable = len(args)
        for a in args:
            if type(a) not in _LEAVES:
                spec = None
        if kwargs or spec is None:
            self.leaves, self.structure = flatten((args, kwargs), is_dataclass_value)
            spec = _spec_key(self.structure)
        self.tensors: list[torch.Tensor] = []
        self.objects: list[Any] = []
        self.key = self._key(spec)

    @property
    def held(self) -> tuple:
        """Which objects are given: what is in one is no state of a call with another."""
        return tuple(map(identity, self.objects))

    @cached_property
    def roots(self) -> dict:
        """The arguments as `StateReads` labels them: for state that is found through them."""
        objects = {f"argument {k}": o for k, o in enumerate(self.objects)}
        return {"args": self.args, "kwargs": self.kwargs, **dict(enumerate(self.tensors)), **objects}

    def _key(self, spec: Hashable) -> Hashable:
        seen: dict[int, int] = {}
        tensors, keys, storages = self.tensors, [spec], StorageKeys()
        tensor_key = storages.tensor_key
        for leaf in self.leaves:
            kind = type(leaf)
            if kind in _TENSORS or isinstance(leaf, torch.Tensor):
                at = seen.setdefault(id(leaf), len(tensors))
                if at == len(tensors):
                    tensors.append(leaf)
                    keys.append(tensor_key(leaf))
                else:
                    keys.append(at)
            elif kind in _SCALARS:
                keys += (kind, leaf)
            elif isinstance(leaf, PLAIN):
                keys += (kind, repr(leaf))
            else:
                self.objects.append(leaf)
                keys += (kind, identity(leaf))
        if len(storages.spans) > 1 and storages.overlap():
            keys.append("overlapping storages")
        return tuple(keys)


class StorageKeys:
    """Keys of the tensors of one call: metadata, and which share a storage (numbered in order of appearance)."""

    __slots__ = ("numbers", "spans")

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.spans: list[tuple[int, int]] = []

    def tensor_key(self, t: torch.Tensor) -> tuple:
        """What a trace assumes of one tensor."""
        if t.layout is not _STRIDED or type(t) not in _TENSORS:
            return (type(t), t.layout, "eager")
        try:
            storage = t.untyped_storage()
            nbytes, address = storage.nbytes(), storage._cdata
            number = self.numbers.get(address)
            if number is None:
                number = self.numbers[address] = len(self.numbers)
                self.spans.append((storage.data_ptr(), nbytes))
            return (t.shape, t.stride(), t.dtype, t.storage_offset(), t.requires_grad, t.requires_grad and t.is_leaf, t.device, type(t),
                    t.is_conj(), t.is_neg(), t.is_inference(), nbytes, number)
        except RuntimeError:                                   # a nested tensor has no shape
            return (type(t), "nested", "eager")

    def overlap(self) -> bool:
        """Do two different storages lie over the same bytes (from numpy, shared memory)?"""
        spans = self.spans
        if len(spans) == 2:
            (first, nbytes), (other, more) = spans
            return first < other + more and other < first + nbytes
        spans = sorted(span for span in spans if span[1])
        return any(first + nbytes > following for (first, nbytes), (following, _) in zip(spans, spans[1:]))


def _spec_key(structure: Structure) -> Hashable:
    return (repr(structure.spec), tuple((n.type, n.names, tuple(map(_spec_key, n.children)))
                                        for n in structure.nodes if n is not None))


def any_overlap(tensors: list[torch.Tensor]) -> bool:
    """Do two of these tensors lie over the same bytes without sharing a storage?"""
    storages = StorageKeys()
    for t in tensors:
        storages.tensor_key(t)
    return storages.overlap()


def argument_names(fn: Callable, call: CallInputs) -> list[str]:
    """A name for each distinct argument tensor, after the parameter that brings it."""
    try:
        parameters = [p.name for p in inspect.signature(fn).parameters.values()
                      if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    except (TypeError, ValueError):
        parameters = []
    names: dict[int, str] = {}
    opened: set[int] = set()

    def opens(x: Any) -> bool:
        if id(x) in opened or not hasattr(x, "__dict__") or isinstance(x, (torch.nn.Module, type)):
            return False
        opened.add(id(x))
        return True
    for k, (label, value) in enumerate([*enumerate(call.args), *call.kwargs.items()]):
        label = label if isinstance(label, str) else parameters[k] if k < len(parameters) else f"arg{k}"
        for leaf in flatten(value, opens)[0]:
            if isinstance(leaf, torch.Tensor):
                names.setdefault(id(leaf), label)
    return [names.get(id(t), "arg") for t in call.tensors]
