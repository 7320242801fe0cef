"""Slots for what objects consist of where that is no attribute in a dictionary. `record`: the `Known` of an object."""
from __future__ import annotations

import contextvars
import gc
import operator
import types
from typing import Any, Hashable, Iterable

from .keys import HEAP_TYPE, MISSING, VIEWS
from .state import CellSlot, GetSlot

_GETTERS = (types.GetSetDescriptorType, types.MemberDescriptorType)
# Read in other ways, or by nobody's program: what led to an exception holds frames.
_WATCHED = frozenset({"__dict__", "__class__", "__code__", "__defaults__", "__kwdefaults__", "__closure__", "__globals__", "__builtins__",
                      "__annotations__", "__traceback__", "__context__", "__cause__", "__weakref__"})


def slot_key(slot: Any) -> Hashable:
    """The key under which a cell or a getter's slot is registered and journaled."""
    return ("cell", id(slot.cell)) if isinstance(slot, CellSlot) else (id(slot.space.owner()), slot.name)


def default_slots(function: types.FunctionType) -> list[GetSlot]:
    """The defaults of its arguments."""
    return [GetSlot(function, name, operator.attrgetter(name), lambda f, value, name=name: setattr(f, name, value))
            for name in ("__defaults__", "__kwdefaults__")]


def behind(value: Any) -> Any:
    """What a view of a dictionary shows, or a method in C belongs to."""
    return gc.get_referents(value)[0] if type(value) in VIEWS else value.__self__


def member_slots(record: Any) -> dict[str, GetSlot]:
    """The `__slots__` members of an object, as slots."""
    kind = type(record.obj)
    members: dict[str, Any] = {}
    for cls in reversed(kind.__mro__) if kind.__flags__ & HEAP_TYPE else ():
        if "__slots__" in vars(cls):
            members |= {n: m for n, m in vars(cls).items() if type(m) is types.MemberDescriptorType}
    return {name: _member_slot(record, name, member) for name, member in members.items()}


def _member_slot(record: Any, name: str, member: Any) -> GetSlot:
    def write(owner: Any, value: Any) -> None:
        member.__delete__(owner) if value is MISSING else member.__set__(owner, value)
    space = record.space if record.space.at is not None else None
    return GetSlot(record.obj, name, member.__get__, write, space)


def getter_slots(record: Any, names: Iterable[str]) -> dict[str, GetSlot]:
    """Those of `names` that the class of an object computes in C: the name of a function, the arguments of an exception."""
    kind, found = type(record.obj), {}
    for name in names:
        base = next((base for base in kind.__mro__ if name in vars(base)), object)
        if type(vars(base).get(name)) in _GETTERS and name not in _WATCHED:
            found[name] = _member_slot(record, name, vars(base)[name])
    return found


def context_slot(variable: contextvars.ContextVar) -> GetSlot:
    """The value of a context variable; one that has none cannot be told to have none again."""
    def write(owner: contextvars.ContextVar, value: Any) -> None:
        if value is not MISSING:
            owner.set(value)
    return GetSlot(variable, "()", lambda v: v.get(MISSING), write)
