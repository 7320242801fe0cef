"""Python state outside a call's arguments: where it lives, how it is read at every call.

A slot is a place: an attribute, a global, a closure cell, an item of a container. Nothing here keeps the user's
modules, objects or tensors alive, and nothing runs the user's code.
"""
from __future__ import annotations

import collections
import gc
import types
import weakref
from typing import Any, Callable, Hashable

from .identity import identity
from .keys import MISSING, base_of, freeze_key, instance_dict, is_placed, is_tensor


def _itself(names: dict, _name: str) -> dict:
    return names


class Namespace:
    """The dict of names of an object, class, module, tensor or frame: `fetch` gives it, None when its owner
    is gone.

    `table` names an inner dict of the owner's (`_parameters`). An owner that is an argument is found `via` a
    slot, so that it is the one of the present call; every other owner is one object, held weakly. If it takes
    no weak reference it is held, but one that `is_placed` only until `release`: then it is what is `at` a slot.
    """

    __slots__ = ("_ref", "table", "via", "at", "owner_kind", "serial")

    def __init__(self, owner: Any, table: str | None = None, via: Any = None, at: Any = None) -> None:
        self.table, self.via, self.owner_kind = table, via, type(owner)
        placed = via is None and at is not None and is_placed(type(owner)) and root_of(at) is None
        self.at = at if placed else None
        self.serial = None if placed else identity(owner)
        try:  # a dict (the globals of a module) takes no weak reference and is held
            self._ref: Callable[[], Any] = weakref.ref(owner)
        except TypeError:
            self._ref = lambda: owner

    def release(self) -> None:
        """The watched call is over, and what it changed is undone."""
        if self.at is not None:
            self._ref = _find_at(self.at, self.owner_kind)

    def owner(self, roots: Any = None) -> Any:
        if roots is None or self.via is None:
            return self._ref()
        owner = self.via.read(roots)
        return owner if type(owner) is self.owner_kind else None

    def access(self) -> tuple[Callable, Callable]:
        """(gives the owner, gives the `__dict__` of it): `fetch` in two steps, for checks at every call."""
        if self.owner_kind is dict:
            return self._ref, _itself
        return self._ref, base_of(self.owner_kind).__getattribute__

    def fetch(self, roots: Any = None) -> Any:
        owner = self.owner(roots)
        if owner is None:
            return None
        if self.owner_kind is dict:
            return owner
        names = instance_dict(owner)
        return names if self.table is None or names is None else names.get(self.table)


def _find_at(slot: Any, kind: type) -> Callable[[], Any]:
    """What is at `slot`, if it is of this class; that it is the same object is guarded with the way to it."""
    def find() -> Any:
        value = slot.read()
        return value if type(value) is kind else None
    return find


class NameSlot:
    """One name in a namespace: an attribute, a global, a class attribute, a parameter of a module."""

    __slots__ = ("space", "name")

    def __init__(self, space: Namespace, name: str) -> None:
        self.space, self.name = space, name

    def read(self, roots: Any = None) -> Any:
        names = self.space.fetch(roots)
        if names is None:
            return MISSING
        if self.space.table is not None:  # an instance attribute hides a parameter of the same name
            hiding = (instance_dict(self.space.owner(roots)) or {}).get(self.name, MISSING)
            if hiding is not MISSING:
                return hiding
        return names.get(self.name, MISSING)

    def write(self, value: Any, roots: Any = None) -> None:
        names = self.space.fetch(roots)
        if isinstance(names, types.MappingProxyType):
            owner = self.space.owner(roots)
            if value is MISSING:
                type.__delattr__(owner, self.name)
            else:
                type.__setattr__(owner, self.name, value)
        elif value is MISSING:
            names.pop(self.name, None)
        elif names is not None:
            names[self.name] = value


class SpaceSlot:
    """A whole namespace: its names and all their values."""

    __slots__ = ("space",)

    def __init__(self, space: Namespace) -> None:
        self.space = space

    def read(self, roots: Any = None) -> Any:
        names = self.space.fetch(roots)
        return MISSING if names is None else names


class TypeSlot:
    """The type of what another slot holds."""

    __slots__ = ("slot",)

    def __init__(self, slot: Any) -> None:
        self.slot = slot

    @property
    def space(self) -> Namespace:
        return self.slot.space

    @property
    def name(self) -> str:
        return self.slot.name

    def read(self, roots: Any = None) -> Any:
        value = self.slot.read(roots)
        return MISSING if value is MISSING else type(value)


class ClassSlot:
    """The class of an object, which an assignment to `__class__` changes."""

    __slots__ = ("space",)

    def __init__(self, space: Namespace) -> None:
        self.space = space

    def read(self, roots: Any = None) -> Any:
        owner = self.space.owner(roots)
        return MISSING if owner is None else type(owner)

    def write(self, value: Any, roots: Any = None) -> None:
        object.__dict__["__class__"].__set__(self.space.owner(roots), value)


class CodeSlot:
    """The code of a function, which an assignment to `__code__` changes."""

    __slots__ = ("space",)
    name = "__code__"

    def __init__(self, space: Namespace) -> None:
        self.space = space

    def read(self, roots: Any = None) -> Any:
        function = self.space.owner(roots)
        return MISSING if function is None else function.__code__

    def write(self, value: Any, roots: Any = None) -> None:
        self.space.owner(roots).__code__ = value


class CellSlot:
    """The contents of a closure cell; the cell itself is held, what it holds is the user's."""

    __slots__ = ("cell",)

    def __init__(self, cell: types.CellType) -> None:
        self.cell = cell

    def read(self, roots: Any = None) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return MISSING

    def write(self, value: Any, roots: Any = None) -> None:
        if value is MISSING:
            del self.cell.cell_contents
        else:
            self.cell.cell_contents = value


class GetSlot:
    """A value behind a C getter: a `__slots__` member, a function's defaults, a context variable."""

    __slots__ = ("space", "name", "getter", "setter")

    def __init__(self, owner: Any, name: str, getter: Callable[[Any], Any],
                 setter: Callable | None = None, space: Namespace | None = None) -> None:
        self.space = Namespace(owner) if space is None else space
        self.name, self.getter, self.setter = name, getter, setter

    def read(self, roots: Any = None) -> Any:
        owner = self.space.owner(roots)
        try:
            return MISSING if owner is None else self.getter(owner)
        except AttributeError:
            return MISSING

    def write(self, value: Any, roots: Any = None) -> None:
        self.setter(self.space.owner(roots), value)


class RootSlot:
    """An argument: `roots[label]`, where `roots` is a mapping, or the list that integer labels index."""

    __slots__ = ("label",)

    def __init__(self, label: Hashable) -> None:
        self.label = label

    def read(self, roots: Any = None) -> Any:
        try:
            return MISSING if roots is None else roots[self.label]
        except (KeyError, IndexError, TypeError):
            return MISSING


class ItemSlot:
    """An item of a container that another slot holds: `step` is an index or a key."""

    __slots__ = ("parent", "_step", "mapping", "key")

    def __init__(self, parent: Any, step: Any, mapping: bool) -> None:
        self.parent, self.mapping = parent, mapping
        self._step = weakref.ref(step) if is_tensor(step) else lambda: step
        self.key = freeze_key(step)

    def read(self, roots: Any = None) -> Any:
        holder, step = self.parent.read(roots), self._step()
        if self.mapping:
            if type(holder) is types.MappingProxyType:
                holder = gc.get_referents(holder)[0]
            return dict.get(holder, step, MISSING) if issubclass(type(holder), dict) else MISSING
        for base in (list, tuple, collections.deque):
            if issubclass(type(holder), base):
                return base.__getitem__(holder, step) if step < base.__len__(holder) else MISSING
        return MISSING


def root_of(slot: Any) -> Hashable | None:
    """The label of the argument that a slot is in; None for a place that is the same at every call."""
    while slot is not None and not isinstance(slot, RootSlot):
        space = getattr(slot, "space", None)
        slot = slot.parent if isinstance(slot, ItemSlot) else getattr(space, "via", None)
    return slot.label if slot is not None else None
