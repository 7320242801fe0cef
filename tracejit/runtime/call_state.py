"""Checks in C of the Python state that entries of one group read.

As `capture.state_checks`, which does in Python whatever has no form here: that every check holds means that all keys are
unchanged; that one fails means nothing.
"""
from __future__ import annotations

import collections
import ctypes
import gc
import sys
import types
import weakref
from dataclasses import dataclass, field
from typing import Any, Hashable, Optional

import torch

from ..capture.cached_results import CacheSlot, Results, cache_of
from ..capture.guards import ARGUMENT, NUMBER, STATE, Group
from ..capture.keys import HEAP_TYPE, MISSING, PLAIN, freeze, freeze_key, instance_dict, is_placed, safe_key
from ..capture.state import CellSlot, ClassSlot, CodeSlot, GetSlot, NameSlot, Namespace, RootSlot, SpaceSlot
from ..capture.state_checks import make_check

_WHAT = {n: i for i, n in enumerate(("owner", "held", "argument as owner", "table", "class table", "space", "name", "absent",
                                     "class", "cell", "code", "attribute", "residue", "results"))}
_HOW = {n: i for i, n in enumerate(("is", "is referent", "has type", "has items"))}
_PARTS = {ClassSlot: "class", CodeSlot: "code", GetSlot: "attribute"}
_IN_C = (types.GetSetDescriptorType, types.MemberDescriptorType)
_OF_CLASSES = ("__name__", "__qualname__")                     # of `type`, read without a look at the names in the class
_KIND = {ARGUMENT: 0, STATE: 1, "grad": 2}
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_CONTAINERS = {dict: 0, list: 1, tuple: 2, collections.defaultdict: 3}
_EMPTY = (collections.OrderedDict, set, frozenset, collections.deque)


class Check(ctypes.Structure):
    """As in call_core.c."""


Check._fields_ = ([(n, ctypes.c_int64) for n in ("what", "how", "how_key", "container")] + [(n, ctypes.c_void_p) for n in ("object", "expected")]
                  + [(n, ctypes.c_int64) for n in ("slot", "item_count")] + [(n, ctypes.c_void_p) for n in ("items", "met")]
                  + [("table", ctypes.c_uint64), ("versions", ctypes.c_uint64 * 2)])


class Source(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int64), ("index", ctypes.c_int64)]


@dataclass(frozen=True)
class Condition:
    """How C tells that a value is one of a key. items: (key in a dict, place, condition) of what a container holds."""

    how: str
    expected: Any
    items: tuple = ()


@dataclass
class State:
    """checks, sources, others: rows of the C structures; keys: of the locations; slots: how many tensors the checks meet;
    slot_of: the tensors of a place, in order; alone: the inputs are the arguments, and no other place holds a tensor."""

    keys: tuple
    alone: bool
    checks: list[Check] = field(default_factory=list)
    sources: list[tuple] = field(default_factory=list)
    others: list[tuple] = field(default_factory=list)
    slots: int = 0
    slots_of: dict[Hashable, list[int]] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)

    def keep(self, value: Any) -> int:
        """The address of an object that lives as long as this state."""
        self.alive.append(value)
        return id(value)

    def check(self, what: str, obj: Any = None, condition: Optional[Condition] = None, place: Hashable = None) -> None:
        row = self._row(condition, place) if condition is not None else Check()
        row.what, row.object = _WHAT[what], self.keep(obj) if obj is not None else 0
        self.checks.append(row)

    def _row(self, condition: Condition, place: Hashable) -> Check:
        row = Check(how=_HOW[condition.how], expected=self.keep(condition.expected), slot=-1,
                    container=_CONTAINERS.get(condition.expected, 0) if condition.how == "has items" else 0)
        found = self.slots_of.setdefault(place, [])
        if condition.how == "has type":
            found.append(self.slots)
            row.slot, self.slots = self.slots, self.slots + 1
        elif condition.items:
            rows = []
            for key, inner, c in condition.items:
                rows.append(self._row(c, ("item", place, inner)))
                rows[-1].object, rows[-1].how_key = self.keep(key), _HOW["is referent" if type(key) is weakref.ref else "is"]
                found += self.slots_of[("item", place, inner)]
            array = (Check * len(rows))(*rows)
            self.alive.append(array)
            row.items, row.item_count = ctypes.addressof(array), len(rows)
        return row


def state_of(group: Group, roots: Any) -> Optional[State]:
    """What the entries of a group assume, as it is now for a call with the arguments `roots`; None where C cannot check it."""
    guards = group.guards
    if guards.host_reads or any(s.kind == NUMBER for s in guards.sources):
        return None
    known = {location.ident for location in guards.locations}
    found = [s.location for s in guards.sources if s.kind == STATE and s.location.ident not in known
             and type(s.location.slot) in (NameSlot, CellSlot)]
    locations = [*guards.locations, *found]
    if any(location.root is not None and not _is_of_a_tensor(location.slot) for location in locations):
        return None
    values = [location.slot.read(roots) for location in locations]
    keys = [safe_key(value) for value in values]
    state = State(tuple(keys[:len(guards.locations)]), guards.arguments_alone and not guards.other_places)
    if not _write_checks(state, list(zip(locations, values, keys)), roots):
        return None
    for s in guards.sources:
        slots = state.slots_of.get(s.location.ident) if s.kind == STATE else [s.index]
        if not slots or len(slots) != 1:
            return None
        state.sources.append((_KIND[s.kind], slots[0]))
    for location in guards.other_places:
        if location.ident not in state.slots_of:
            return None
        state.others += [(_KIND[STATE], slot) for slot in state.slots_of[location.ident]]
    return state


def _is_of_a_tensor(slot: Any) -> bool:
    """Is this an attribute of a tensor among the arguments?"""
    return type(slot) in (NameSlot, ClassSlot) and type(slot.space.via) is RootSlot and slot.space.owner_kind in _TENSORS


def _write_checks(state: State, found: list[tuple], roots: Any) -> bool:
    """The residue and caches come first: they run Python, after which a tensor that was met may be gone. False: C cannot check all."""
    owners: dict[tuple, list[tuple]] = {}
    cells: list[tuple] = []
    residue: list[tuple] = []
    caches: list[tuple] = []
    tables: dict[int, Any] = {}
    for location, value, key in found:
        condition = _condition(value, key)
        if type(location.slot) is CacheSlot and type(value) is Results and all(map(_is_told, value.values())):
            caches.append((location, value, key))
        elif condition is None or not _has_form(location.slot, value, tables, roots):
            residue.append((location, value, key))
        elif type(location.slot) is CellSlot:
            cells.append((location, condition))
        else:
            owners.setdefault((location.root, id(location.slot.space.owner(roots))), []).append((location, condition))
    if any(location.root is not None for location, _, _ in residue):
        return False
    if residue:
        state.check("residue", make_check(*zip(*residue)))
    for row in caches:
        _write_results(state, *row)
    for location, condition in cells:
        state.check("cell", location.slot.cell, condition, location.ident)
    for rows in owners.values():
        _write_owner(state, rows, rows[0][0].slot.space.owner(roots))
    return True


def _write_results(state: State, location: Any, value: Any, key: Hashable) -> None:
    """What a cache keeps: the function is not held, and holds the dictionary."""
    function = location.slot.space.owner()
    state.check("owner", weakref.ref(function))
    state.check("results", make_check((location,), [value], (key,)))
    state.checks[-1].expected = id(cache_of(function))


def _is_told(result: Any) -> bool:
    """Is it the same for a program as long as it is this object?"""
    key = safe_key(result)
    condition = _condition(result, key)
    return type(key) is tuple and key[0] == "object" or condition is not None and condition.how == "is"


def _write_owner(state: State, rows: list[tuple], owner: Any) -> None:
    if rows[0][0].root is not None:
        state.checks.append(Check(what=_WHAT["argument as owner"], slot=rows[0][0].root))
    elif type(owner).__weakrefoffset__ == 0:                   # the locations hold it, too
        state.check("held", owner)
    else:
        state.check("owner", weakref.ref(owner))
    tables: dict[Optional[str], list[tuple]] = {}
    for location, condition in rows:
        if type(location.slot) in (NameSlot, SpaceSlot):
            tables.setdefault(location.slot.space.table, []).append((location, condition))
        else:
            what = _PARTS[type(location.slot)]
            state.check(what, location.slot.getter if what == "attribute" else None, condition, location.ident)
    for table in sorted(tables, key=lambda name: name or ""):
        if isinstance(owner, type):                            # not held: it would keep the class's functions
            state.checks.append(Check(what=_WHAT["class table"], object=id(_class_table(owner))))
        else:
            state.check("table", sys.intern(table) if table else None)
        for location, condition in tables[table]:
            if type(location.slot) is SpaceSlot:
                state.check("space", None, condition, location.ident)
            elif condition.expected is MISSING:
                state.check("absent", location.slot.name)
            else:
                state.check("name", location.slot.name, condition, location.ident)


def _condition(value: Any, key: Hashable) -> Optional[Condition]:
    """How C tells that a value is this one, or another with the same key; None: it does not."""
    kind = type(value)
    if value is MISSING or kind in PLAIN or kind is tuple and value and all(type(item) in PLAIN for item in value):
        return Condition("is", value)
    if kind in _TENSORS:
        return Condition("has type", kind)
    if kind in _EMPTY and not len(value):
        return Condition("has items", kind)
    if kind in _CONTAINERS and type(key) is tuple:
        return _opened(value, kind)
    if type(key) is tuple and key[0] == "object" and not is_placed(kind):
        return Condition("is referent", weakref.ref(value)) if kind.__weakrefoffset__ != 0 else Condition("is", value)
    return None


def _opened(value: Any, kind: type) -> Optional[Condition]:
    """Item for item: keys by identity, tensors among them without keeping them alive."""
    items = [(None, None, value.default_factory)] if kind is collections.defaultdict else []
    items += [(key, freeze_key(key), item) for key, item in value.items()] if issubclass(kind, dict) else [
        (None, freeze(step), item) for step, item in enumerate(value)]
    conditions = []
    for key, step, item in items:
        condition = _condition(item, safe_key(item))
        if condition is None or type(key) not in PLAIN and type(key) not in _TENSORS:
            return None
        conditions.append((weakref.ref(key) if type(key) in _TENSORS else key, step, condition))
    return Condition("has items", kind, tuple(conditions))


def _has_form(slot: Any, value: Any, tables: dict[int, Any], roots: Any) -> bool:
    """Is this a place that C reads, and does it hold `value` now? tables: by id of a namespace, its dictionary, None where C reads none."""
    kind = type(slot)
    if kind is CellSlot:
        return value is not MISSING
    if kind not in (NameSlot, SpaceSlot, ClassSlot, CodeSlot, GetSlot) or slot.space.at is not None:
        return False
    owner = slot.space.owner(roots)
    if owner is None or value is MISSING and kind is not NameSlot:
        return False
    if kind is ClassSlot:
        return True
    if kind is CodeSlot:
        return type(owner) is types.FunctionType
    if kind is GetSlot:
        return _runs_no_python(slot, owner) and slot.getter(owner) is value
    if id(slot.space) not in tables:
        tables[id(slot.space)] = slot.space.fetch(roots) if _has_table(slot.space, owner) else None
    names = tables[id(slot.space)]
    return names is not None and (value is names if kind is SpaceSlot else type(slot.name) is str and names.get(slot.name, MISSING) is value)


def _runs_no_python(slot: GetSlot, owner: Any) -> bool:
    """Does the getter give what is in the owner, and do nothing else?"""
    if type(owner) is types.FunctionType:
        return type(vars(types.FunctionType).get(slot.name)) in _IN_C
    member = slot.getter.__self__ if type(slot.getter) is types.MethodWrapperType else None
    return type(member) is types.MemberDescriptorType or slot.name in _OF_CLASSES and member is vars(type)[slot.name]


def _has_table(space: Namespace, owner: Any) -> bool:
    """A plain dictionary that `object.__getattribute__` finds, held by an owner that can be referred to weakly."""
    if space.owner_kind is dict:
        return space.table is None
    if isinstance(owner, type):
        return space.table is None and bool(owner.__flags__ & HEAP_TYPE) and type(_class_table(owner)) is dict
    names = instance_dict(owner)
    if type(owner).__weakrefoffset__ == 0 or type(names) is not dict or space.table and type(names.get(space.table)) is not dict:
        return False
    descriptor = next((vars(cls)["__dict__"] for cls in type(owner).__mro__ if "__dict__" in vars(cls)), None)
    return type(descriptor) in _IN_C


def _class_table(cls: type) -> Any:
    """The dictionary behind `cls.__dict__`."""
    return gc.get_referents(type.__dict__["__dict__"].__get__(cls))[0]
