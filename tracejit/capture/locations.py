"""Locations: the places of Python state that a captured call read, and their values as keys at every call.

A `KeyReader` evaluates many locations at once and is fast while nothing changes.
"""
from __future__ import annotations

import collections
import weakref
from typing import Any, Hashable, Iterable

import torch

from .state import (MISSING, PLAIN, CellSlot, ItemSlot, NameSlot, RootSlot, identity, instance_dict, safe_key)


class Location:
    """A slot that a captured call read: its path in the user's terms, and the key its value had before the call.

    `ident` is equal for two locations only if they are the same place; paths may coincide. With a `root`, the place
    is in an argument of the call, and `roots` must be given: a mapping from roots, or the list that they index.
    """

    __slots__ = ("path", "slot", "expected", "ident", "root")

    def __init__(self, path: str, slot: Any, expected: Hashable) -> None:
        self.path, self.slot, self.expected = path, slot, expected
        self.ident, self.root = place(slot), slot.space.label if isinstance(slot, NameSlot) else None

    def read(self, roots: Any = None) -> Any:
        """The present value, or MISSING."""
        return self.slot.read(roots)

    def key(self, roots: Any = None) -> Hashable:
        """A hashable stand-in for the present value; equal to nothing when it cannot be told."""
        if self.root is not None and roots is None:
            return object()
        return safe_key(self.slot.read(roots))

    def __repr__(self) -> str:
        return f"Location({self.path} = {self.expected!r})"


def place(slot: Any) -> Hashable:
    """What identifies a slot's place among all slots ever made."""
    if isinstance(slot, ItemSlot):
        return ("item", place(slot.parent), slot.key)
    if isinstance(slot, CellSlot):
        return ("cell", identity(slot.cell))
    if isinstance(slot, RootSlot):
        return ("root", slot.label)
    space = slot.space
    owner = ("root", space.label) if space.label is not None else space.serial
    return (owner, space.table, type(slot), getattr(slot, "name", None))


# ---------------------------------------------------------------- many locations at once

class KeyReader:
    """The state of a fixed list of locations, as one small token.

    `register(keys)` gives a token for one combination of keys; calling the reader gives the token of the present
    state, or None when that combination is not registered. While nothing has changed since the last call, each
    location costs one dict look-up and one identity test.
    """

    def __init__(self, locations: Iterable[Location]) -> None:
        self.locations = tuple(locations)
        self._tokens: dict[tuple, int] = {}
        self._plan: tuple[list, list, int] | None = None

    def register(self, keys: tuple | None = None) -> int:
        """The token of `keys`; by default of what the locations held when they were first read."""
        keys = tuple(location.expected for location in self.locations) if keys is None else keys
        return self._tokens.setdefault(keys, len(self._tokens))

    def keys(self, roots: Any = None) -> tuple:
        return tuple([location.key(roots) for location in self.locations])

    def __call__(self, roots: Any = None) -> int | None:
        plan = self._plan
        if plan is not None and _unchanged(plan[0], plan[1], roots):
            return plan[2]
        values = [location.slot.read(roots) for location in self.locations]
        keys = tuple([safe_key(value) for value in values])
        token = self._tokens.get(keys)
        self._plan = None if token is None else (*_plan_checks(self.locations, values, keys), token)
        return token

    def changed(self, roots: Any = None) -> list[Location]:
        """The locations whose present key is not the one first seen: why a call retraces."""
        return [location for location in self.locations if location.key(roots) != location.expected]


def _unchanged(groups: list, others: list, roots: Any) -> bool:
    for space, hidden, same, weak, tensors, empty in groups:
        names = space.fetch()
        if names is None:
            return False
        if hidden and not instance_dict(space.owner()).keys().isdisjoint(hidden):
            return False
        for name, value in same:
            if names.get(name, MISSING) is not value:
                return False
        for name, ref in weak:
            value = ref()
            if value is None or names.get(name) is not value:
                return False
        for name in tensors:
            if not issubclass(type(names.get(name)), torch.Tensor):
                return False
        for name, kind in empty:
            value = names.get(name)
            if type(value) is not kind or value:
                return False
    for location, key in others:
        if location.key(roots) != key:
            return False
    return True


_EXACT_CONTAINERS = frozenset({dict, list, tuple, set, frozenset, collections.deque, collections.OrderedDict})


def _plan_checks(locations: tuple[Location, ...], values: list, keys: tuple) -> tuple[list, list]:
    """The checks of `_unchanged` for these values: by namespace, and the rest by key."""
    groups: dict[int, tuple] = {}
    others: list[tuple[Location, Hashable]] = []
    for location, value, key in zip(locations, values, keys):
        slot = location.slot
        if type(slot) is not NameSlot or slot.space.label is not None or not _plan_name(groups, slot, value, key):
            others.append((location, key))
    return list(groups.values()), others


def _plan_name(groups: dict[int, tuple], slot: NameSlot, value: Any, key: Hashable) -> bool:
    """Adds the check of one name whose value is `value`; False when its key must be computed at each call."""
    kind = type(value)
    group = groups.setdefault(id(slot.space), (slot.space, [], [], [], [], []))
    if slot.space.table is not None:
        if slot.space.fetch().get(slot.name, MISSING) is not value:
            return False
        group[1].append(slot.name)
    if kind in PLAIN or value is MISSING:
        group[2].append((slot.name, value))
    elif issubclass(kind, torch.Tensor):
        group[4].append(slot.name)
    elif kind in _EXACT_CONTAINERS and not value:
        group[5].append((slot.name, kind))
    elif type(key) is tuple and key[0] == "object" and kind.__weakrefoffset__ > 0:
        group[3].append((slot.name, weakref.ref(value)))
    else:
        return False
    return True
