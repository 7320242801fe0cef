"""Values that a call stores or returns, as they are kept for later calls: what was there before the call, and what the call made
once and put in several places, is the same object after a replay, too. Placeholders stand for both."""
from __future__ import annotations

import collections
import types
from typing import Any, Callable

from .keys import PLAIN, contents, instance_dict, is_container, is_tensor, items_of
from .lines import StateError

_REBUILT = (dict, list, tuple, set, frozenset, collections.deque, collections.OrderedDict,
            collections.defaultdict)
_FIXED = (tuple, frozenset)


class Existing:
    """Stands in a stored value for a container from before the call: at a replay, what `slot` holds then."""

    __slots__ = ("slot",)

    def __init__(self, slot: Any) -> None:
        self.slot = slot


class Old:
    """Stands among the new items of a container for the item that was at `index` before the write."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Shared:
    """Stands for what an earlier value of the same call holds: `a.x = a.y = []` is one list. steps: from the value on, the
    positions of items and the names of attributes."""

    __slots__ = ("index", "steps")

    def __init__(self, index: int, steps: tuple[int | str, ...]) -> None:
        self.index, self.steps = index, steps


PLACEHOLDERS = (Existing, Old, Shared)


class Encoder:
    """Puts placeholders into values for what must not be made anew at a replay.

    slot_of: where a container, or an object that is an argument, was before the call; has_copy: was this `__dict__` there?
    """

    def __init__(self, slot_of: Callable[[Any], Any], has_copy: Callable[[Any], bool]) -> None:
        self._slot_of, self._has_copy = slot_of, has_copy
        self._made: dict[int, tuple[Any, Any]] = {}            # by the id of a value: the value, and what stands for it
        self._open: set[int] = set()

    def __call__(self, value: Any, path: str) -> Any:
        if type(value) in PLAIN or is_tensor(value):
            return value
        slot = self._slot_of(value)
        if slot is not None:
            return Existing(slot)
        if not is_container(value):
            self._check_object(value, path)
            return value
        if id(value) in self._made:
            return self._made[id(value)][1]
        if id(value) in self._open:
            raise StateError(path, f"{path} is assigned a value that contains itself: store one that does not")
        self._open.add(id(value))
        new = map_items(value, lambda item: self(item, path), path)
        self._open.discard(id(value))
        self._made[id(value)] = value, new
        return new

    def _names(self, value: Any) -> dict:
        """The attributes of an object that the call made."""
        names = instance_dict(value)
        known = type(names) is not dict or self._has_copy(names) or issubclass(type(value), (type, types.ModuleType, types.FunctionType))
        return {} if known else names

    def _check_object(self, value: Any, path: str) -> None:
        """An object of the call is made anew at a replay: it may not hold containers from before the call."""
        for item in self._names(value).values():
            if is_container(item) and self._slot_of(item) is not None:
                kind = type(value).__name__
                raise StateError(path, f"{path} is assigned a new {kind} that shares a container with "
                                       "state from before: give it a copy")

    def shared(self, values: list) -> list:
        """Encoded values, in which what was met before is a placeholder."""
        met: dict[int, Shared] = {}
        return [self._share(value, Shared(index, ()), met) for index, value in enumerate(values)]

    def _share(self, value: Any, here: Shared, met: dict[int, Shared], inside: str = "") -> Any:
        """inside: the class of an object of the call that holds this value."""
        if type(value) in (*PLAIN, *PLACEHOLDERS) or is_tensor(value):
            return value
        if not (issubclass(type(value), _FIXED) and (inside or not value)):    # constants of the code are shared, too
            if id(value) in met and inside:
                raise StateError("", f"a new {inside} shares a {type(value).__name__} with what the call stores or returns: give it a copy")
            if id(value) in met:
                return met[id(value)]
            met[id(value)] = here
        if not is_container(value):
            for name, item in self._names(value).items():
                self._share(item, Shared(here.index, (*here.steps, name)), met, type(value).__name__)
            return value
        if issubclass(type(value), (set, frozenset)):
            return value
        places = iter(range(len(value)))
        return map_items(value, lambda item: self._share(item, Shared(here.index, (*here.steps, next(places))), met, inside))


def map_items(value: Any, function: Callable[[Any], Any], path: str = "") -> Any:
    """The container with each item mapped; the very same object when no item changes."""
    kind = type(value)
    keys = [key for key, _ in items_of(value)] if issubclass(kind, dict) else []
    old = list(contents(value))
    new = [function(item) for item in old]
    if all(a is b for a, b in zip(old, new)):
        return value
    if kind in (dict, collections.OrderedDict):
        return kind(zip(keys, new))
    if kind is collections.defaultdict:
        return kind(value.default_factory, zip(keys, new))
    if kind is collections.deque:
        return kind(new, value.maxlen)
    if kind in _REBUILT:
        return kind(new)
    if issubclass(kind, tuple):
        return tuple.__new__(kind, new)
    raise StateError(path, f"{path} is assigned a new {kind.__name__} that shares a container with other state: "
                           "store a list, tuple or dict")


def resolve(value: Any, old: list, roots: Any) -> Any:
    """A materialized value with what was there before the call. old: the items that were there."""
    kind = type(value)
    if kind is Existing:
        return value.slot.read(roots)
    if kind is Old:
        return old[value.index]
    if kind in _REBUILT or issubclass(kind, tuple):
        return map_items(value, lambda item: resolve(item, old, roots))
    return value


def link(value: Any, stored: list, made: dict[int, tuple]) -> Any:
    """A resolved value with what it shares, which is one of `stored`, or in it. made: the tuples that were made anew."""
    kind = type(value)
    if kind is Shared:
        return link(_at(stored[value.index], value.steps), stored, made)
    if issubclass(kind, tuple):
        if id(value) not in made:
            made[id(value)] = value, map_items(value, lambda item: link(item, stored, made))
        return made[id(value)][1]
    if kind in (list, collections.deque):
        for n, item in enumerate(value):
            value[n] = link(item, stored, made)
    elif kind in (dict, collections.OrderedDict, collections.defaultdict):
        for key, item in value.items():
            value[key] = link(item, stored, made)
    return value


def _at(value: Any, steps: tuple[int | str, ...]) -> Any:
    for step in steps:
        value = instance_dict(value)[step] if type(step) is str else list(contents(value))[step]
    return value
