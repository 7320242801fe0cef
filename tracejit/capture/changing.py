"""Floats and integers that change from call to call: a learning rate, a scale, a running total, a count of steps.

A float of Python state, or an argument, that was seen with two values is no constant of the next entry: the capture finds a
`Number` in its place, and the program takes it as an input. The entry's guards leave its value out. In the place of an integer of
Python state the capture finds an extent (`counts`); for those among the arguments see `opened`.
"""
from __future__ import annotations

import operator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Callable, Hashable, Iterator, Optional

from .counts import may_be_open
from .guards import Guards
from .inputs import CallInputs
from .locations import Location, place
from .keys import items_of, safe_key
from .state import CellSlot, ItemSlot, NameSlot, RootSlot

ANY_FLOAT = type("AnyFloat", (), {"__repr__": lambda self: "a float"})()
ANY_INTEGER = type("AnyInteger", (), {"__repr__": lambda self: "an integer"})()
_OPENED = (dict, list, tuple)        # containers in which an item can be replaced, in a tuple by another tuple


class MaskedSlot:
    """What another slot holds; in the place of a float at one of `paths` (steps into containers) how it compares: the outcome
    of each (operator, constant); in that of an integer, with None for these, that it is one."""

    __slots__ = ("slot", "paths")

    def __init__(self, slot: Any, paths: tuple[tuple[tuple, Optional[tuple]], ...]) -> None:
        self.slot, self.paths = slot, paths

    def read(self, roots: Any = None) -> Any:
        value = self.slot.read(roots)
        for path, asked in self.paths:
            value = _masked(value, path, asked)
        return value


def _masked(value: Any, path: tuple, asked: Optional[tuple]) -> Any:
    """The value, or a copy of its containers along the path; as it is where the path does not lead to a float, or to an integer."""
    if not path and asked is None:
        return ANY_INTEGER if type(value) is int else value
    if not path:
        return tuple(getattr(operator, name)(value, other) for name, other in asked) if type(value) is float else value
    step, kind = path[0], type(value)
    if kind not in _OPENED or not (step in value if kind is dict else step < len(value)):
        return value
    return _replaced(value, step, _masked(value[step], path[1:], asked))


def _replaced(container: Any, step: Any, item: Any) -> Any:
    """A copy of the container with another item."""
    made = list(container) if type(container) is tuple else container.copy()
    made[step] = item
    return tuple(made) if type(container) is tuple else made


# ---------------------------------------------------------------- which have changed

def changed_numbers(groups: Any, call: CallInputs) -> tuple[Location, ...]:
    """The places of floats and integers that are not what they were for the latest entry of a group (`expected`), in containers otherwise
    equal."""
    found: dict[Hashable, Location] = {}
    for group in groups:
        locations = group.reader.locations
        for location, before in zip(locations, group.reader.latest) if locations else ():
            value = location.read(call.roots)
            here: list[Location] = []
            if location.root is None and _differ(location.slot, location.path, value, before, safe_key(value), here):
                found.update((p.ident, p) for p in here)
    return tuple(found.values())


def _differ(slot: Any, path: str, value: Any, before: Hashable, now: Hashable, found: list[Location]) -> bool:
    """Do two keys of a value differ in floats and integers alone, at places that can be assigned? Adds these to `found`."""
    if before == now:
        return True
    if isinstance(slot, MaskedSlot):
        slot = slot.slot
    if type(before) is not tuple or type(now) is not tuple or before[0] is not now[0]:
        return False
    if now[0] is float or now[0] is int:
        if type(slot) not in (NameSlot, CellSlot, ItemSlot):
            return False
        found.append(Location(path, slot, before))
        return True
    if now[0] not in _OPENED or len(before) != 2:
        return False
    if all(type(key) is tuple and key[0] is bool for key in (*before[1], *now[1])):
        return True                                            # how a float compares whose value is left open already
    if type(value) is not now[0] or len(before[1]) != len(now[1]):
        return False
    mapping = type(value) is dict
    for (step, item), a, b in zip(items_of(value) if mapping else enumerate(value), before[1], now[1]):
        if mapping and a[0] != b[0]:
            return False
        keys = (a[1], b[1]) if mapping else (a, b)
        if not _differ(ItemSlot(slot, step, mapping), f"{path}[{step!r}]", item, *keys, found):
            return False
    return True


class FloatArguments:
    """Which float arguments of a function change, told by calls that differ in nothing else."""

    def __init__(self) -> None:
        self._first: dict[Hashable, dict[Any, str]] = {}       # by the key without values: the first values seen, by step
        self._changed: dict[Hashable, set[Any]] = {}

    def opened(self, call: CallInputs, modes: Hashable, closed: set) -> CallInputs:
        """The call, the values of arguments that change left out of its key; itself where there are none."""
        floats = float_arguments(call)
        if not floats:
            return call
        key = (without_values(call, floats).key, modes)
        first = self._first.setdefault(key, floats)
        changed = self._changed.setdefault(key, set())
        changed.update(step for step, text in floats.items() if first[step] != text)
        steps = [step for step in floats if step in changed and place(argument_slot(step)) not in closed]
        return without_values(call, steps) if steps else call


def argument_slot(step: Any) -> ItemSlot:
    return ItemSlot(RootSlot("kwargs" if isinstance(step, str) else "args"), step, isinstance(step, str))


def float_arguments(call: CallInputs) -> dict[Any, str]:
    """By position or name: the text of each."""
    return {step: repr(a) for step, a in (*enumerate(call.args), *call.kwargs.items()) if type(a) is float}


def without_values(call: CallInputs, steps: Any) -> CallInputs:
    """The call, whose key tells of these arguments that they are floats."""
    args, kwargs = replaced_arguments(call, dict.fromkeys(steps, ANY_FLOAT))
    made = CallInputs(args, kwargs)
    made.args, made.kwargs = call.args, call.kwargs
    made.objects = [o for o in made.objects if o is not ANY_FLOAT]
    made.open, made.plain = tuple(steps), call
    return made


def replaced_arguments(call: CallInputs, by: dict[Any, Any]) -> tuple[tuple, dict]:
    return tuple(by.get(k, a) for k, a in enumerate(call.args)), {k: by.get(k, a) for k, a in call.kwargs.items()}


# ---------------------------------------------------------------- a capture with numbers in their places

@dataclass(frozen=True, eq=False)
class Places:
    """Where the numbers of one capture stand: floats in `state` (assigned meanwhile), and in `arguments` by step; `integers` of state.

    fresh: those that no entry has yet.
    """

    state: tuple[Location, ...] = ()
    arguments: tuple[Location, ...] = ()
    integers: tuple[Location, ...] = ()
    fresh: tuple[Location, ...] = ()

    @property
    def floats(self) -> tuple[Location, ...]:
        return (*self.state, *self.arguments)

    @property
    def all(self) -> tuple[Location, ...]:
        return (*self.floats, *self.integers)

    @classmethod
    def of(cls, groups: Any, call: CallInputs, opened: dict[Hashable, Location], closed: set) -> "Places":
        """opened: places by ident of which entries leave the value open; closed: those where the value itself is needed."""
        changed = {**opened, **{p.ident: p for p in changed_numbers(groups, call) if p.ident not in opened}}
        now = [(p, p.read()) for ident, p in changed.items() if ident not in closed]
        floats, integers = tuple(p for p, n in now if type(n) is float), tuple(p for p, n in now if may_be_open(n))
        arguments = tuple(Location(f"argument_{step}", argument_slot(step), None) for step in call.open)
        return cls(floats, arguments, integers, (*(p for p in (*floats, *integers) if p.ident not in opened), *arguments))

    def without(self, closed: set) -> "Places":
        """These, but for integers at such places."""
        integers, fresh = (tuple(p for p in places if p.ident not in closed) for places in (self.integers, self.fresh))
        return replace(self, integers=integers, fresh=fresh)

    @property
    def suspects(self) -> set[Hashable]:
        """Whose values the program may need, when it cannot be captured."""
        return {p.ident for p in self.fresh or self.all}

    @contextmanager
    def hold(self, numbers: list[Any], extents: list[Any], call: CallInputs) -> Iterator[tuple[tuple, dict]]:
        """Inside, a number or an extent stands at each place of state; gives the arguments with those that stand among them."""
        before = [(slot, slot.read()) for slot in (_assignable(location.slot) for location in (*self.state, *self.integers))]
        steps = [location.slot._step() for location in self.arguments]
        try:
            for location, number in (*zip(self.state, numbers), *zip(self.integers, extents)):
                _assign(location.slot, number)
            yield replaced_arguments(call, dict(zip(steps, numbers[len(self.state):])))
        finally:
            for slot, value in before:
                _assign(slot, value)

    def left_out(self, guards: Guards, numbers: list[Any], call: CallInputs) -> Guards:
        """The guards of the entry: of the values at these places, they tell how those compare with what the program asked."""
        asked = [tuple(n.node.asked) for n in numbers]
        holders = [(_holder(p.slot), p.slot, a) for p, a in (*zip(self.state, asked), *((p, None) for p in self.integers))]
        compared = [_masking(p, (((), a),), call.roots) for p, a in zip(self.arguments, asked[len(self.state):]) if a]
        return replace(guards, locations=(*(_without(location, holders) for location in guards.locations), *compared))


def _holder(slot: Any) -> Any:
    """The dictionary, list, tuple or cell in which a value stands."""
    return slot.cell if type(slot) is CellSlot else slot.space.fetch() if type(slot) is NameSlot else slot.parent.read()


def _key(slot: Any) -> Any:
    return slot.name if type(slot) is NameSlot else slot._step()


def _assignable(slot: Any) -> Any:
    """The place itself, or that of the tuple in which it is."""
    return _assignable(slot.parent) if type(slot) is ItemSlot and type(_holder(slot)) is tuple else slot


def _assign(slot: Any, value: Any) -> None:
    holder = _holder(slot)
    if type(slot) is CellSlot:
        holder.cell_contents = value
    elif type(holder) is tuple:
        _assign(slot.parent, _replaced(holder, _key(slot), value))
    else:
        holder[_key(slot)] = value


def _without(location: Location, holders: list[tuple[Any, Any, Optional[tuple]]]) -> Location:
    value = location.read()
    paths = tuple((path, asked) for holder, slot, asked in holders for path in _paths(location.slot, value, holder, slot))
    return _masking(location, paths, None) if paths else location


def _masking(location: Location, paths: tuple, roots: Any) -> Location:
    made = object.__new__(Location)
    made.path, made.root, made.slot = location.path, location.root, MaskedSlot(location.slot, paths)
    made.ident, made.expected = ("masked", location.ident, repr(paths)), safe_key(made.slot.read(roots))
    return made


def _paths(own: Any, value: Any, holder: Any, slot: Any) -> Iterator[tuple]:
    """The ways from the value at `own` to what `slot` names in `holder`."""
    if type(own) is type(slot) is CellSlot:
        found: Callable[[], bool] = lambda: own.cell is holder
    elif type(own) is type(slot) is NameSlot:
        found = lambda: own.name == slot.name and own.space.fetch() is holder
    else:
        found = lambda: False
    if found():
        yield ()
    elif type(slot) is not CellSlot:
        yield from _inside(value, holder, _key(slot), ())


def _inside(value: Any, holder: Any, key: Any, path: tuple) -> Iterator[tuple]:
    if value is holder:
        yield (*path, key)
    elif type(value) in _OPENED and len(path) < 8:
        for step, item in items_of(value) if type(value) is dict else enumerate(value):
            if type(item) in _OPENED:
                yield from _inside(item, holder, key, (*path, step))
