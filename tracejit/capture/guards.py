"""What a compiled entry assumes beyond the arguments' key, and the tables in which entries are found.

Entries of one arguments' key are grouped by which state they read; within a group the values read are looked up in a
dictionary, so the cost of a call does not grow with the number of entries.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Hashable, Optional

import torch

from .inputs import any_overlap, tensor_key

ARGUMENT, STATE, GRAD = "argument", "state", "grad"


@dataclass(frozen=True, eq=False)
class InputSource:
    """Where a program input is found at a call: argument `index`, `location` in Python state, or `.grad` of input `index`."""

    kind: str
    index: int = 0
    location: Any = None

    @property
    def path(self) -> Hashable:
        return (self.kind, self.index, self.location.path if self.location is not None else "")

    def fetch(self, arguments: list, inputs: list) -> Any:
        if self.kind == ARGUMENT:
            return arguments[self.index]
        if self.kind == STATE:
            return self.location.read()
        parent = inputs[self.index]
        return parent.grad if isinstance(parent, torch.Tensor) else None


def host_value(what: str, tensor: torch.Tensor) -> Any:
    """The value that a program read of a tensor outside of torch's operations."""
    if what == "version":
        return tensor._version
    if what == "data_ptr":
        return tensor.untyped_storage().data_ptr()
    return tensor.grad


@dataclass(frozen=True, eq=False)
class Guards:
    """sources: one per program input; locations: the state that was read; host_reads: (what, input index)."""

    sources: tuple[InputSource, ...]
    locations: tuple[Any, ...]
    host_reads: tuple[tuple[str, int], ...]

    @property
    def shape(self) -> Hashable:
        """Entries with equal shapes read the same places: they share one table."""
        return (tuple(s.path for s in self.sources), tuple(loc.path for loc in self.locations), self.host_reads)

    @property
    def plain(self) -> bool:
        """Nothing but the arguments is assumed."""
        return not (self.locations or self.host_reads) and all(
            s.kind == ARGUMENT and s.index == i for i, s in enumerate(self.sources))

    def read(self, arguments: list) -> Optional[tuple[Hashable, list]]:
        """(values that the entry is keyed by, program inputs) for a call, or None when an input is no tensor any more."""
        inputs: list = []
        for s in self.sources:
            t = s.fetch(arguments, inputs)
            if not isinstance(t, torch.Tensor):
                return None
            inputs.append(t)
        values: list = [loc.key() for loc in self.locations]
        if len(inputs) > len(arguments):
            storages: dict[int, int] = {}
            values += [tensor_key(t, storages) for t in inputs]
            values.append(tuple(map(_numbered(inputs), inputs)))
            values.append(any_overlap(inputs))
        values += [host_value(what, inputs[i]) for what, i in self.host_reads]
        return tuple(values), inputs


def _numbered(inputs: list) -> Any:
    first: dict[int, int] = {}
    return lambda t: first.setdefault(id(t), len(first))


@dataclass
class EntryTable:
    """The entries of one arguments' key. `add` under the values at capture, `find` under those of a call."""

    groups: dict[Hashable, tuple[Guards, dict]] = field(default_factory=dict)

    def find(self, arguments: list) -> tuple[Any, list]:
        """(entry, program inputs), or (None, [])."""
        for guards, entries in self.groups.values():
            if guards.plain:
                return entries[()], arguments
            found = guards.read(arguments)
            if found is not None and found[0] in entries:
                return entries[found[0]], found[1]
        return None, []

    def add(self, guards: Guards, values: Hashable, entry: Any) -> None:
        self.groups.setdefault(guards.shape, (guards, {}))[1][() if guards.plain else values] = entry

    def __len__(self) -> int:
        return sum(len(entries) for _, entries in self.groups.values())
