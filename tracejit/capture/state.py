"""Python state outside a call's arguments: where it lives, how it is read and compared at every call.

A slot is a place: an attribute, a global, a closure cell, an item of a container. `freeze` gives the key of a
value. Nothing here keeps the user's modules, objects or tensors alive, and nothing runs the user's code: no
`==`, no hash, no property, no `__getattr__`.
"""
from __future__ import annotations

import array
import collections
import functools
import gc
import itertools
import sys
import types
import weakref
from typing import Any, Callable, Hashable, Iterable

import torch

from ..errors import UnsupportedError


class _Marker:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


MISSING = _Marker("MISSING")
TENSOR = _Marker("TENSOR")

PLAIN = frozenset({
    int, bool, str, bytes, type(None), type(...), type(NotImplemented), range, torch.dtype, torch.device,
    torch.Size, torch.layout, torch.memory_format, float, complex,
})
CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_VIEWS = (types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items()))
_BUFFERS = (bytearray, array.array, memoryview)
_DEEPEST = 40
_LARGEST_ARRAY = 1 << 16


def is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor; asks the type alone, which no mode and no proxy class can see."""
    return issubclass(type(value), torch.Tensor)


def is_container(value: Any) -> bool:
    return issubclass(type(value), CONTAINERS) and type(value) is not torch.Size


def is_numpy(value: Any) -> bool:
    """A numpy array or scalar: memory or a number, not an object with attributes."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(type(value), (numpy.ndarray, numpy.generic))


def instance_dict(obj: Any) -> Any:
    """`obj.__dict__` past any override of attribute access; None where there is none."""
    try:
        if issubclass(type(obj), type):
            return type.__getattribute__(obj, "__dict__")
        return object.__getattribute__(obj, "__dict__")
    except (AttributeError, TypeError):
        return None


# ---------------------------------------------------------------- keys

class _Identities:
    """A number for each object. Unlike an `id` it is never used again; it does not keep the object alive."""

    def __init__(self) -> None:
        self._next = itertools.count()
        self._weak: dict[int, tuple[weakref.ref, int]] = {}
        self._strong: dict[int, tuple[Any, int]] = {}

    def __call__(self, obj: Any) -> int:
        number = id(obj)
        found = self._weak.get(number)
        if found is not None and found[0]() is obj:
            return found[1]
        held = self._strong.get(number)
        if held is not None:
            return held[1]
        serial = next(self._next)
        try:
            self._weak[number] = (weakref.ref(obj, functools.partial(self._forget, number, serial)), serial)
        except TypeError:
            if len(self._strong) > 4096:  # objects that take no weak reference: better a retrace than a leak
                self._strong.clear()
            self._strong[number] = (obj, serial)
        return serial

    def _forget(self, number: int, serial: int, _ref: weakref.ref) -> None:
        if self._weak.get(number, (None, None))[1] == serial:
            del self._weak[number]


identity = _Identities()


def freeze(value: Any, depth: int = 0) -> Hashable:
    """A hashable stand-in for `value`: equal for values that a trace cannot tell apart, and for no others."""
    kind = type(value)
    if kind in PLAIN:
        return (kind, repr(value)) if kind is float or kind is complex else (kind, value)
    if issubclass(kind, torch.Tensor):
        return TENSOR
    if issubclass(kind, CONTAINERS):
        return _freeze_container(value, kind, depth)
    return _freeze_other(value, kind, depth)


def _freeze_container(value: Any, kind: type, depth: int) -> Hashable:
    if depth > _DEEPEST:
        raise UnsupportedError(f"a {kind.__name__} that is read contains itself, or is nested too deep")
    if issubclass(kind, dict):
        items = tuple((freeze_key(k), freeze(v, depth + 1)) for k, v in items_of(value))
        if issubclass(kind, collections.defaultdict):
            return (kind, items, freeze(value.default_factory))
        return (kind, items)
    items = tuple(freeze(v, depth + 1) for v in contents(value))
    return (kind, items, value.maxlen) if issubclass(kind, collections.deque) else (kind, items)


def freeze_key(key: Any) -> Hashable:
    return identity(key) if is_tensor(key) else freeze(key)


def _freeze_other(value: Any, kind: type, depth: int) -> Hashable:
    if kind is types.MethodType:
        return (kind, identity(value.__self__), identity(value.__func__))
    if kind is slice:
        return (kind, freeze(value.start), freeze(value.stop), freeze(value.step))
    if kind in _VIEWS:
        return (kind, *(freeze(inner, depth + 1) for inner in gc.get_referents(value)))
    if issubclass(kind, _BUFFERS):
        return (kind, bytes(value))
    if is_numpy(value):
        if value.nbytes > _LARGEST_ARRAY:
            raise UnsupportedError(f"a numpy array of {value.nbytes} bytes is read from outside the call")
        return (kind, str(value.dtype), value.shape, value.tobytes())
    return ("object", identity(value))


def contents(value: Any) -> Iterable[Any]:
    """The items of a container as the base class iterates them: for a dict its values."""
    for base in CONTAINERS:
        if issubclass(type(value), base):
            return [item for _, item in items_of(value)] if base is dict else base.__iter__(value)
    return ()


def items_of(value: dict) -> Any:
    """The items of any dict, from the class that keeps their order: an OrderedDict has one of its own."""
    kind = collections.OrderedDict if issubclass(type(value), collections.OrderedDict) else dict
    return kind.items(value)


def safe_key(value: Any) -> Hashable:
    """`freeze` for a check at a call: what cannot be frozen equals nothing."""
    try:
        return MISSING if value is MISSING else freeze(value)
    except UnsupportedError:
        return object()


# ---------------------------------------------------------------- slots

def _itself(names: dict, _name: str) -> dict:
    return names


class Namespace:
    """The dict of names of an object, class, module, tensor or frame: `fetch` gives it, None when its owner
    is gone.

    `table` names an inner dict of the owner's (`_parameters`). An owner that is an argument is found `via` a
    slot, so that it is the one of the present call; every other owner is one object, held weakly.
    """

    __slots__ = ("_ref", "table", "via", "owner_kind", "serial")

    def __init__(self, owner: Any, table: str | None = None, via: Any = None) -> None:
        self.table, self.via, self.owner_kind = table, via, type(owner)
        self.serial = identity(owner)
        try:  # a dict (the globals of a module) takes no weak reference and is held
            self._ref: Callable[[], Any] = weakref.ref(owner)
        except TypeError:
            self._ref = lambda: owner

    def owner(self, roots: Any = None) -> Any:
        if roots is None or self.via is None:
            return self._ref()
        owner = self.via.read(roots)
        return owner if type(owner) is self.owner_kind else None

    def access(self) -> tuple[Callable, Callable]:
        """(gives the owner, gives the `__dict__` of it): `fetch` in two steps, for checks at every call."""
        if self.owner_kind is dict:
            return self._ref, _itself
        base = type if issubclass(self.owner_kind, type) else object
        return self._ref, base.__getattribute__

    def fetch(self, roots: Any = None) -> Any:
        owner = self.owner(roots)
        if owner is None:
            return None
        if self.owner_kind is dict:
            return owner
        names = instance_dict(owner)
        return names if self.table is None or names is None else names.get(self.table)


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
                 setter: Callable | None = None) -> None:
        self.space, self.name, self.getter, self.setter = Namespace(owner), name, getter, setter

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
