"""Slots for what objects consist of where that is no attribute in a dictionary. `record`: the `Known` of an object."""
from __future__ import annotations

import contextvars
import gc
import operator
import types
from typing import Any, Hashable

from .keys import HEAP_TYPE, MISSING, VIEWS
from .state import CellSlot, GetSlot


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


def context_slot(variable: contextvars.ContextVar) -> GetSlot:
    """The value of a context variable; one that has none cannot be told to have none again."""
    def write(owner: contextvars.ContextVar, value: Any) -> None:
        if value is not MISSING:
            owner.set(value)
    return GetSlot(variable, "()", lambda v: v.get(MISSING), write)
