"""The persistent state that a capture has met: objects, containers and tensors, how each was reached, what
was read.

`adopt` says that a value was there before the call, at a slot; `register` that the call reads a slot, which
makes a `Location` of it; `locate` finds the slot of a tensor. Ids are safe as keys: what is known is held
until the end.
"""
from __future__ import annotations

import contextvars
import dataclasses
import functools
import operator
import sys
import types
import weakref
from typing import Any, Hashable

import torch

from ..errors import UnsupportedError
from .cached_results import CACHED_FUNCTION, Caches, CacheSlot
from .frames import is_library_file, is_torch_file
from .journal import Journal
from .keys import (BUFFERS, HEAP_TYPE, MISSING, PLAIN, VIEWS, bound_to, contents,
                   freeze, instance_dict, is_container, is_iterator, is_numpy, items_of)
from .lines import StateError
from .locations import Location
from .parts import behind, context_slot, default_slots, member_slots, slot_key
from .state import CellSlot, ClassSlot, CodeSlot, GetSlot, ItemSlot, NameSlot, Namespace, RootSlot, SpaceSlot

_TABLES = ("_modules", "_parameters", "_buffers")
DESCRIPTORS = {property: ("fget", "fset"), staticmethod: ("__func__",), classmethod: ("__func__",), functools.cached_property: ("func",)}
# Operators and their namespaces: torch fills in what they look up, when it is first asked for.
OPERATORS = (torch._ops.OperatorBase, torch._ops.OpOverloadPacket, type(torch.ops), type(torch.ops.aten),
             torch.library.CustomOpDef)


class Known:
    """A persistent object: where it was reached, and its namespaces."""

    __slots__ = ("obj", "path", "slot", "space", "names", "tables", "chained", "classed")

    def __init__(self, obj: Any, path: str, slot: Any, via: Any = None) -> None:
        self.obj, self.path, self.slot, self.chained, self.classed = obj, path, slot, False, False
        self.names = instance_dict(obj)
        self.space = Namespace(obj, via=via, at=slot)
        self.tables: dict[str, Namespace] = {}


class KnownState:
    """What one capture knows; see the module."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.locations: list[Location] = []
        self.objects: dict[int, Known] = {}
        self.containers: dict[int, Any] = {}
        self.functions: dict[int, list[types.FunctionType]] = {}   # by id of the code
        self.caches = Caches()                                     # of functions under lru_cache
        self.arguments: set[int] = set()                           # of objects that the caller takes apart
        self.counted: dict[tuple[int, str], Known] = {}            # attributes that code counts in
        self._tensors: dict[int, tuple[Any, Any, str]] = {}        # tensor, slot, path
        self._registered: dict[Hashable, Location | None] = {}
        self._paths: dict[str, int] = {}
        self._spaces: dict[int, Namespace] = {}

    # ------------------------------------------------------------ adopting values

    def adopt(self, value: Any, path: str, slot: Any) -> None:
        """`value` was there before the call, at `slot` (None: in no place to name). This guards nothing."""
        kind = type(value)
        if kind in PLAIN or value is MISSING or issubclass(kind, OPERATORS):
            return
        if issubclass(kind, torch.Tensor):
            if id(value) not in self._tensors:
                self._tensors[id(value)] = (value, slot, path)
                if id(value) not in self.objects:
                    self._watch(value, Known(value, path, slot))
        elif id(value) not in self.objects and id(value) not in self.containers:
            if is_numpy(value) or issubclass(kind, BUFFERS):
                self._adopt_buffer(value, path)
                return
            if is_container(value):
                self._adopt_container(value, path, slot)
                if instance_dict(value) is None:
                    return
            self.adopt_object(value, path, slot)

    def _adopt_buffer(self, value: Any, path: str) -> None:
        if type(value) is memoryview:
            self.adopt(value.obj, path, None)
        elif not is_numpy(value) or isinstance(value, sys.modules["numpy"].ndarray):
            self.journal.add_buffer(value, path)

    def _adopt_container(self, value: Any, path: str, slot: Any) -> None:
        self.containers[id(value)] = value
        self.journal.add_container(value, slot, path)
        mapping = issubclass(type(value), dict)
        placed = slot is not None and not issubclass(type(value), (set, frozenset))
        for step, item in items_of(value) if mapping else enumerate(contents(value)):
            if mapping and type(step) not in PLAIN:
                self.adopt(step, f"{path} key", None)
            if type(item) not in PLAIN:
                inner = f"{path}[{step!r}]" if type(step) in PLAIN else f"{path}[...]"
                self.adopt(item, inner, ItemSlot(slot, step, mapping) if placed else None)

    def adopt_object(self, value: Any, path: str, slot: Any) -> None:
        """As `adopt`, for a value that is an object with attributes, a function or a class."""
        kind = type(value)
        record = self.objects[id(value)] = Known(value, path, slot)
        if kind is types.FunctionType:
            self.functions.setdefault(id(value.__code__), []).append(value)
            if not is_torch_file(value.__code__.co_filename):  # which keep what they made at their first call
                self.journal.add_names(record.space, record.names, path)
            self.journal.add_slot((id(value), CodeSlot.name), CodeSlot(record.space), f"code of {path}")
            for slot in default_slots(value):
                self.journal.add_slot(slot_key(slot), slot, f"default of {path}")
            self.adopt(record.names.get("__wrapped__"), path, None)
        elif kind is types.MethodType:
            self.adopt(value.__self__, path, slot)
            self.adopt(value.__func__, path, slot)
        elif kind is functools.partial:
            for name in ("func", "args", "keywords"):
                part = GetSlot(value, name, operator.attrgetter(name))
                self.adopt(getattr(value, name), f"{path}.{name}", part)
        elif kind is contextvars.ContextVar:
            slot = context_slot(value)
            self.journal.add_slot(slot_key(slot), slot, f"{path}.get()")
        elif kind is types.CellType:
            self.journal.add_slot(("cell", id(value)), CellSlot(value), path)
        elif kind in VIEWS or bound_to(value) is not MISSING:
            part = GetSlot(value, "", behind)
            self.adopt(part.read(), path, part)
        elif kind in DESCRIPTORS:
            for name in DESCRIPTORS[kind]:
                self.adopt(getattr(value, name), path, None)
        elif kind is CACHED_FUNCTION:
            self.caches.add(record)
            self.adopt(value.__wrapped__, path, None)
        elif not issubclass(kind, (type, types.ModuleType)):
            self._adopt_instance(record)

    def _adopt_instance(self, record: Known) -> None:
        if type(record.names) is dict:
            self.journal.add_names(record.space, record.names, record.path)
        if type(record.obj).__flags__ & HEAP_TYPE:
            slot = ClassSlot(record.space)
            self.journal.add_slot((id(record.obj), "__class__"), slot, f"{record.path}.__class__")
        for name, slot in member_slots(record).items():
            self.journal.add_slot((id(record.obj), name), slot, f"{record.path}.{name}")
        if not issubclass(type(record.obj), torch.nn.Module) or type(record.names) is not dict:
            return
        for table in _TABLES:
            names = record.names.get(table)
            if issubclass(type(names), dict):
                space = record.tables[table] = Namespace(record.obj, table)
                self.journal.add_names(space, names, record.path)
                for name, value in names.items():
                    if value is not None:
                        self.adopt(value, f"{record.path}.{name}", NameSlot(space, name))

    def argument_at(self, value: Any) -> Any:
        """The slot of an object that the caller takes apart; None for all else."""
        return self.objects[id(value)].space.via if id(value) in self.arguments else None

    def adopt_argument(self, value: Any, path: str, slot: Any) -> None:
        """An argument that the caller takes apart and guards: writes are journaled, reads not registered.

        `slot` finds it in the arguments of a call; without one, a write to it cannot be replayed.
        """
        if type(value) in PLAIN or id(value) in self.objects or id(value) in self.containers:
            return
        if is_container(value):
            self.containers[id(value)] = value
            self.journal.add_container(value, slot, path)
            mapping = issubclass(type(value), dict)
            for step, item in items_of(value) if mapping else enumerate(contents(value)):
                self.adopt_argument(item, f"{path}[{step!r}]", slot and ItemSlot(slot, step, mapping))
        elif dataclasses.is_dataclass(type(value)) and not issubclass(type(value), torch.nn.Module):
            record = self.objects[id(value)] = Known(value, path, None, slot)
            self.arguments.add(id(value))
            if type(record.names) is dict:
                self.journal.add_names(record.space, record.names, path)
                for name, item in record.names.items():
                    self.adopt_argument(item, f"{path}.{name}", slot and NameSlot(record.space, name))

    def space_of(self, owner: Any) -> Namespace:
        """The one Namespace of a class, or of the globals of a module."""
        space = self._spaces.get(id(owner))
        if space is None:
            space = self._spaces[id(owner)] = Namespace(owner)
        return space

    def settle_caches(self) -> None:
        """What caches kept is guarded at the end, when all that the call met is known."""
        found = [Location(*kept) for kept in self.caches.settle(self.objects, self.adopt)]
        self.locations[:] = [*(l for l in self.locations if not isinstance(l.slot, CacheSlot)), *found]
        for made in self.caches.made.values():                 # no cache keeps them: they are the call's own
            self._disown(made.result, made.slot)

    def _disown(self, value: Any, slot: Any) -> None:
        """The value was adopted with this slot, and is the call's own."""
        record = self.objects.get(id(value))
        if record is not None and record.slot is slot:
            del self.objects[id(value)]
            self.forget(record)
        if self.journal.drop_container(value, slot):
            del self.containers[id(value)]

    def forget(self, record: Known) -> None:
        """The object was the call's own: drop what was read of it."""
        self.journal.drop_names(record.names)
        for name in ("__class__", *member_slots(record)):
            self.journal.drop_slot((id(record.obj), name))
        self.locations[:] = [l for l in self.locations if getattr(l.slot, "space", None) is not record.space]

    def watch_tensor(self, tensor: torch.Tensor, path: str, label: Hashable) -> None:
        """Attributes of an argument tensor are state, too: found at later calls through `label`."""
        self._watch(tensor, Known(tensor, path, None, RootSlot(label)))

    def _watch(self, tensor: torch.Tensor, record: Known) -> None:
        self.objects[id(tensor)] = record
        if record.names is not None:
            self.journal.add_names(record.space, record.names, record.path)

    # ------------------------------------------------------------ registering reads

    def registered(self, key: Hashable) -> bool:
        return key in self._registered

    def register(self, key: Hashable, slot: Any, path: str, value: Any, before: Any,
                 owner: Known | None = None) -> None:
        """The call reads `value` at `slot`, which held `before` when the call began: guard and adopt it."""
        if key in self._registered:
            return
        self._registered[key] = None
        if before is not value and (type(value) not in PLAIN or type(before) not in PLAIN
                                    or freeze(before) != freeze(value)):
            if key not in self.counted:
                return  # the call itself wrote it before it read it
            value = before
        if owner is not None and id(owner.obj) in self.arguments:
            return
        inner = value if bound_to(value) is MISSING else bound_to(value)
        if is_iterator(inner):
            raise StateError(path, f"the call uses {path}, a {type(inner).__name__} that was made before it: "
                                   "make it inside, or pass its items")
        if is_numpy_random(value):
            raise StateError(path, f"the call draws random numbers from numpy ({path}): draw with torch, or outside")
        if owner is not None:
            self.chain(owner)
        try:
            expected = MISSING if value is MISSING else freeze(value)
        except UnsupportedError as e:
            raise StateError(path, str(e)) from None
        location = self._registered[key] = Location(self._unique(path), slot, expected)
        self.locations.append(location)
        if not isinstance(slot, (SpaceSlot, ClassSlot, CodeSlot)):
            self.adopt(value, path, slot)

    def _unique(self, path: str) -> str:
        count = self._paths[path] = self._paths.get(path, 0) + 1
        return path if count == 1 else f"{path} ({count})"

    def register_name(self, record: Known, space: Namespace, names: Any, name: str, value: Any) -> None:
        """Attribute `name` of a known object, looked up in `names`; MISSING when it is not there."""
        key = (id(names), name)
        if key not in self._registered:
            before = self.journal.before(names, name, value)
            self.register(key, NameSlot(space, name), f"{record.path}.{name}", value, before, record)

    def register_slot(self, slot: Any, path: str) -> Any:
        """A cell, a `__slots__` member or the like; its present value."""
        key = slot_key(slot)
        value = slot.read()
        self.register(key, slot, path, value, self.journal.slot_before(key, value))
        return value

    def register_class(self, record: Known) -> None:
        """The class of an object, which says what its methods are."""
        kind = type(record.obj)
        fixed = not kind.__flags__ & HEAP_TYPE or issubclass(kind, (type, types.ModuleType, torch.Tensor))
        if record.classed or fixed:
            return
        record.classed = True
        key = (id(record.obj), "__class__")
        before = self.journal.slot_before(key, kind)
        self.register(key, ClassSlot(record.space), f"class of {record.path}", kind, before, record)

    def chain(self, record: Known) -> None:
        """Guards the way to an object, so that its attributes are those of the right object."""
        if not record.chained:
            record.chained = True
            self._guard(record.slot, record.path)

    def _guard(self, slot: Any, path: str) -> Location | None:
        while isinstance(slot, ItemSlot):
            slot = slot.parent
        if isinstance(slot, NameSlot):
            owner, names = slot.space.owner(), slot.space.fetch()
            if issubclass(type(owner), type):
                return self._registered.get((id(owner), "class", slot.name))
            key = (id(names), slot.name)
            if key not in self._registered and names is not None:
                value = names.get(slot.name, MISSING)
                before = self.journal.before(names, slot.name, value)
                self.register(key, slot, path, before, before, self.objects.get(id(owner)))
            return self._registered.get(key)
        if isinstance(slot, (CellSlot, GetSlot)):
            self.register_slot(slot, path)
            return self._registered.get(slot_key(slot))
        return None

    # ------------------------------------------------------------ tensors

    def locate(self, tensor: torch.Tensor) -> Location | None:
        """Where a tensor that is no argument was found; guards the way to it."""
        found = self._tensors.get(id(tensor)) or self._search(tensor)
        if found is None or found[0] is not tensor or found[1] is None:
            return None
        _, slot, path = found
        location = self._guard(slot, path)
        if location is not None and location.slot is slot:
            return location
        return Location(path, slot, freeze(tensor))

    def _search(self, tensor: torch.Tensor) -> tuple | None:
        """A tensor in an attribute of a known object that no code spelled."""
        for space, copy, path in self.journal.copies():
            for name, value in copy.items():
                if value is tensor:
                    return (tensor, NameSlot(space, name), f"{path}.{name}")
                if is_container(value) and id(value) not in self.containers and len(value) < 4096:
                    self.adopt(value, f"{path}.{name}", NameSlot(space, name))
                    if id(tensor) in self._tensors:
                        return self._tensors[id(tensor)]
        return None


# ---------------------------------------------------------------- classes and descriptors

_LIBRARY: dict[int, tuple[weakref.ref, bool]] = {}


def is_library_class(cls: type) -> bool:
    """A class of torch, the standard library or C: its attributes are not guarded."""
    found = _LIBRARY.get(id(cls))
    if found is None or found[0]() is not cls:
        module = sys.modules.get(cls.__module__) if isinstance(cls.__module__, str) else None
        library = not cls.__flags__ & HEAP_TYPE or (module is not None and is_library_module(module))
        found = _LIBRARY[id(cls)] = (weakref.ref(cls), library)
    return found[1]


def is_torch_class(cls: type) -> bool:
    """A class of torch's own, whose instances torch fills in as it goes."""
    return is_library_class(cls) and str(cls.__module__).partition(".")[0] == "torch"


def is_library_module(module: types.ModuleType) -> bool:
    """Not the user's: a module of torch, the standard library or C. A module made by hand is the user's."""
    names = instance_dict(module)
    if names.get("__name__") == "__main__":
        return False
    file = names.get("__file__")
    return is_library_file(file) if isinstance(file, str) else names.get("__spec__") is not None


def class_attributes(kind: type, names: tuple[str, ...], supers: bool) -> list[tuple[type, str, Any, bool]]:
    """(class, name, value, library) for each of `names` that a class has; with `supers` in all its bases."""
    found = []
    for name in names:
        for cls in kind.__mro__:
            value = vars(cls).get(name, MISSING)
            if value is not MISSING and type(value) is not types.MemberDescriptorType:
                found.append((cls, name, value, is_library_class(cls)))
                if not supers:
                    break
    return found


def is_numpy_random(value: Any) -> bool:
    """numpy.random, one of its generators, or a method of one: in Cython, their calls raise no event."""
    if type(value) is types.ModuleType:
        return instance_dict(value).get("__name__") == "numpy.random"
    kind = type(value.__self__) if type(value) is types.MethodType else type(value)
    return str(kind.__module__).startswith("numpy.random")


def is_reader(value: Any) -> bool:
    """An object whose call reads attributes by name."""
    return type(value) in (operator.attrgetter, operator.methodcaller)


def names_of_reader(value: Any) -> tuple[str, ...]:
    """The attribute names that an attrgetter or methodcaller was made with."""
    texts = value.__reduce__()[1] if type(value) is operator.attrgetter else value.__reduce__()[1][:1]
    return tuple(name for text in texts if type(text) is str for name in text.split("."))
