"""Checks in C of the Python state that entries of one group read.

As `capture.state_checks`, which does in Python whatever has no form here: that every check holds means that all keys are
unchanged; that one fails means nothing.
"""
from __future__ import annotations

import ctypes
import sys
import types
import weakref
from dataclasses import dataclass, field
from typing import Any, Hashable, Optional

import torch

from ..capture.guards import ARGUMENT, STATE, Group
from ..capture.locations import Location
from ..capture.state import MISSING, PLAIN, CellSlot, ClassSlot, CodeSlot, NameSlot, Namespace, instance_dict, is_placed, safe_key
from ..capture.state_checks import make_check

_WHAT = {n: i for i, n in enumerate(("owner", "held", "table", "name", "absent", "class", "cell", "code", "residue"))}
_HOW = {n: i for i, n in enumerate(("is", "is referent", "has type"))}
_KIND = {ARGUMENT: 0, STATE: 1, "grad": 2}
_TENSORS = (torch.Tensor, torch.nn.Parameter)
Condition = tuple[str, Any]


class Check(ctypes.Structure):
    _fields_ = [("what", ctypes.c_int64), ("how", ctypes.c_int64), ("object", ctypes.c_void_p), ("expected", ctypes.c_void_p),
                ("slot", ctypes.c_int64)]


class Source(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int64), ("index", ctypes.c_int64)]


@dataclass
class State:
    """checks, sources, others: rows of the C structures; slots: how many tensors the checks meet; keys: of the locations;
    alone: the inputs are the arguments, and no other place holds a tensor."""

    keys: tuple
    alone: bool
    checks: list[tuple] = field(default_factory=list)
    sources: list[tuple] = field(default_factory=list)
    others: list[tuple] = field(default_factory=list)
    slots: int = 0
    slot_of: dict[Hashable, int] = field(default_factory=dict)     # by place
    alive: list[Any] = field(default_factory=list)

    def keep(self, value: Any) -> int:
        """The address of an object that lives as long as this state."""
        self.alive.append(value)
        return id(value)

    def check(self, what: str, obj: Any = None, condition: Optional[Condition] = None, place: Hashable = None) -> None:
        how, expected = condition or ("is", None)
        slot = -1
        if how == "has type":
            slot = self.slot_of[place] = self.slots
            self.slots += 1
        self.checks.append((_WHAT[what], _HOW[how], self.keep(obj) if obj is not None else 0,
                            self.keep(expected) if condition else 0, slot))


def state_of(group: Group) -> Optional[State]:
    """What the entries of a group assume, as it is now; None where C cannot check it."""
    guards = group.guards
    if guards.host_reads:
        return None
    known = {location.ident for location in guards.locations}
    found = [s.location for s in guards.sources if s.kind == STATE and s.location.ident not in known]
    locations = [*guards.locations, *found]
    values = [location.slot.read(None) for location in locations]
    keys = [safe_key(value) for value in values]
    state = State(tuple(keys[:len(guards.locations)]), guards.arguments_alone and not guards.other_places)
    _write_checks(state, list(zip(locations, values, keys)))
    for s in guards.sources:
        index = state.slot_of.get(s.location.ident) if s.kind == STATE else s.index
        if index is None:
            return None
        state.sources.append((_KIND[s.kind], index))
    for location in guards.other_places:
        if location.ident not in state.slot_of:
            return None
        state.others.append((_KIND[STATE], state.slot_of[location.ident]))
    return state


def _write_checks(state: State, found: list[tuple]) -> None:
    """The residue comes first: it runs Python, after which a tensor that was met may be gone."""
    owners: dict[int, list[tuple]] = {}
    cells: list[tuple] = []
    residue: list[tuple] = []
    for location, value, key in found:
        condition = _condition(value, key)
        if condition is None or not _has_form(location.slot, value):
            residue.append((location, value, key))
        elif type(location.slot) is CellSlot:
            cells.append((location, condition))
        else:
            owners.setdefault(id(location.slot.space.owner()), []).append((location, condition))
    if residue:
        state.check("residue", make_check(*zip(*residue)))
    for location, condition in cells:
        state.check("cell", location.slot.cell, condition, location.ident)
    for rows in owners.values():
        _write_owner(state, rows)


def _write_owner(state: State, rows: list[tuple]) -> None:
    space = rows[0][0].slot.space
    owner = space.owner()
    state.check("held", owner) if space.owner_kind is dict else state.check("owner", weakref.ref(owner))
    tables: dict[Optional[str], list[tuple]] = {}
    for location, condition in rows:
        if type(location.slot) is NameSlot:
            tables.setdefault(location.slot.space.table, []).append((location, condition))
        else:
            state.check("class" if type(location.slot) is ClassSlot else "code", None, condition)
    for table in sorted(tables, key=lambda name: name or ""):
        state.check("table", sys.intern(table) if table else None)
        for location, condition in tables[table]:
            name = location.slot.name
            if condition[1] is MISSING:
                state.check("absent", name)
            else:
                state.check("name", name, condition, location.ident)


def _condition(value: Any, key: Hashable) -> Optional[Condition]:
    """How C tells that a value is this one, or another with the same key; None: it does not."""
    kind = type(value)
    if value is MISSING or kind in PLAIN or kind is tuple and all(type(item) in PLAIN for item in value):
        return "is", value
    if kind in _TENSORS:
        return "has type", kind
    if type(key) is tuple and key[0] == "object" and not is_placed(kind):
        return ("is referent", weakref.ref(value)) if kind.__weakrefoffset__ > 0 else ("is", value)
    return None


def _has_form(slot: Any, value: Any) -> bool:
    """Is this a place that C reads, and does it hold `value` now?"""
    kind = type(slot)
    if kind is CellSlot:
        return value is not MISSING
    if kind not in (NameSlot, ClassSlot, CodeSlot) or slot.space.via is not None or slot.space.at is not None:
        return False
    owner = slot.space.owner()
    if owner is None or value is MISSING and kind is not NameSlot:
        return False
    if kind is not NameSlot:
        return type(owner).__weakrefoffset__ > 0 and (kind is ClassSlot or type(owner) is types.FunctionType)
    return type(slot.name) is str and _has_table(slot.space, owner) and (slot.space.fetch().get(slot.name, MISSING) is value)


def _has_table(space: Namespace, owner: Any) -> bool:
    """A plain dictionary that `object.__getattribute__` finds, held by an owner that can be referred to weakly."""
    if space.owner_kind is dict:
        return space.table is None
    if type(owner).__weakrefoffset__ <= 0 or isinstance(owner, type) or type(space.fetch()) is not dict:
        return False
    descriptor = next((vars(cls)["__dict__"] for cls in type(owner).__mro__ if "__dict__" in vars(cls)), None)
    return type(descriptor) in (types.GetSetDescriptorType, types.MemberDescriptorType) and type(instance_dict(owner)) is dict
