"""Floats that change from call to call: a learning rate, a scale, a running total.

A float of Python state, or an argument, that was seen with two values is no constant of the next entry: the capture finds
a `Number` in its place, and the program takes it as an input. The entry's guards leave its value out.
"""
from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Callable, Hashable, Iterator, Optional

from .guards import NUMBER, Group, Guards
from .inputs import CallInputs
from .locations import Location, place
from .state import CellSlot, ItemSlot, NameSlot, RootSlot, freeze, items_of, safe_key

ANY_FLOAT = type("AnyFloat", (), {"__repr__": lambda self: "a float"})()
_ASSIGNED = (dict, list)     # containers in which an item can be replaced


class MaskedSlot:
    """What another slot holds, with `ANY_FLOAT` for the floats at `paths` (steps into containers)."""

    __slots__ = ("slot", "paths")

    def __init__(self, slot: Any, paths: tuple[tuple, ...]) -> None:
        self.slot, self.paths = slot, paths

    def read(self, roots: Any = None) -> Any:
        value = self.slot.read(roots)
        for path in self.paths:
            value = _masked(value, path)
        return value


def _masked(value: Any, path: tuple) -> Any:
    """The value, or a copy of its containers along the path; as it is where the path does not lead to a float."""
    if not path:
        return ANY_FLOAT if type(value) is float else value
    step, kind = path[0], type(value)
    if kind not in _ASSIGNED or not (step in value if kind is dict else step < len(value)):
        return value
    made = value.copy()
    made[step] = _masked(value[step], path[1:])
    return made


# ---------------------------------------------------------------- which floats have changed

def changed_floats(groups: Any, call: CallInputs) -> tuple[tuple[Location, ...], tuple[Location, ...]]:
    """(the places of floats that are all that keeps this call from an entry there is, those whose values that leaves open)."""
    for group in groups:
        found = _changed_in(group, call) if group.guards.locations else None
        if found:
            return found, tuple(s.location for s in group.guards.sources if s.kind == NUMBER and s.location.root is None)
    return (), ()


def _changed_in(group: Group, call: CallInputs) -> Optional[tuple[Location, ...]]:
    values = [location.read(call.roots) for location in group.reader.locations]
    now = [safe_key(v) for v in values]
    for known in group.reader.known:
        found: list[Location] = []
        if all(location.root is None and _differ(location.slot, location.path, value, a, b, found)
               for location, value, a, b in zip(group.reader.locations, values, known, now) if a != b):
            return tuple({p.ident: p for p in found}.values())
    return None


def _differ(slot: Any, path: str, value: Any, before: Hashable, now: Hashable, found: list[Location]) -> bool:
    """Do two keys of a value differ in floats alone, at places that can be assigned? Adds these to `found`."""
    if before == now:
        return True
    if isinstance(slot, MaskedSlot) or type(before) is not tuple or type(now) is not tuple or before[0] is not now[0]:
        return False
    if now[0] is float:
        if type(slot) not in (NameSlot, CellSlot, ItemSlot):
            return False
        found.append(Location(path, slot, freeze(value)))
        return True
    if type(value) not in _ASSIGNED or len(before) != 2 or len(before[1]) != len(now[1]):
        return False
    mapping = type(value) is dict
    for (step, item), a, b in zip(items_of(value) if mapping else enumerate(value), before[1], now[1]):
        if mapping and a[0] != b[0] or not _differ(ItemSlot(slot, step, mapping), f"{path}[{step!r}]", item, *((a[1], b[1]) if mapping else (a, b)),
                                                   found):
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
    """Where the numbers of one capture stand: `state` (assigned meanwhile), and `arguments` by step. fresh: those for the first time."""

    state: tuple[Location, ...] = ()
    arguments: tuple[Location, ...] = ()
    fresh: tuple[Location, ...] = ()

    @property
    def all(self) -> tuple[Location, ...]:
        return (*self.state, *self.arguments)

    @classmethod
    def of(cls, groups: Any, call: CallInputs, closed: set) -> "Places":
        """closed: idents of places where the value itself is needed."""
        changed, open_before = changed_floats(groups, call)
        fresh = tuple(p for p in changed if p.ident not in closed)
        before = tuple(p for p in open_before if p.ident not in closed)
        arguments = tuple(Location(f"argument_{step}", argument_slot(step), None) for step in call.open)
        return cls((*before, *fresh), arguments, (*fresh, *arguments))

    @property
    def suspects(self) -> set[Hashable]:
        """Whose values the program may need, when it cannot be captured."""
        return {p.ident for p in self.fresh or self.all}

    @contextmanager
    def hold(self, numbers: list[Any], call: CallInputs) -> Iterator[tuple[tuple, dict]]:
        """Inside, a number stands at each place of state; gives the arguments with those that stand among them."""
        put = [(_holder(location.slot), location.slot, location.read(call.roots), n) for location, n in zip(self.state, numbers)]
        steps = [location.slot._step() for location in self.arguments]
        try:
            for holder, slot, _, n in put:
                _assign(holder, slot, n)
            yield replaced_arguments(call, dict(zip(steps, numbers[len(self.state):])))
        finally:
            for holder, slot, value, _ in put:
                _assign(holder, slot, value)

    def left_out(self, guards: Guards) -> Guards:
        """The guards of the entry: the values at the places of state are no part of them."""
        holders = [(_holder(p.slot), p.slot) for p in self.state]
        return replace(guards, locations=tuple(_without(location, holders) for location in guards.locations))


def _holder(slot: Any) -> Any:
    """The dictionary, list or cell in which a value stands."""
    return slot.cell if type(slot) is CellSlot else slot.space.fetch() if type(slot) is NameSlot else slot.parent.read()


def _key(slot: Any) -> Any:
    return slot.name if type(slot) is NameSlot else slot._step()


def _assign(holder: Any, slot: Any, value: Any) -> None:
    if type(slot) is CellSlot:
        holder.cell_contents = value
    else:
        holder[_key(slot)] = value


def _without(location: Location, holders: list[tuple[Any, Any]]) -> Location:
    value = location.read()
    paths = [path for holder, slot in holders for path in _paths(location.slot, value, holder, slot)]
    if not paths:
        return location
    made = object.__new__(Location)
    made.path, made.root, made.slot = location.path, location.root, MaskedSlot(location.slot, tuple(paths))
    made.ident, made.expected = ("masked", location.ident, made.slot.paths), safe_key(made.slot.read())
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
    elif type(value) in _ASSIGNED and len(path) < 8:
        for step, item in items_of(value) if type(value) is dict else enumerate(value):
            if type(item) in _ASSIGNED:
                yield from _inside(item, holder, key, (*path, step))
