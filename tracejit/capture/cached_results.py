"""Functions under `functools.lru_cache`: what their caches keep is state of the program, as what a global holds is.

A call that finds its result in the cache runs no Python, so nothing tells which result it was: all that a cache keeps are
watched. Nothing of the user's code runs by looking, no hash and no `==`.
"""
from __future__ import annotations

import functools
import gc
import inspect
import types
from dataclasses import dataclass
from typing import Any, Callable, Hashable

from ..errors import UnsupportedError
from .fakes import is_fake
from .frames import is_library_file
from .lines import StateError
from .keys import MISSING, PLAIN, contents, freeze, freeze_key, instance_dict, is_container
from .numbers import Number
from .state import ItemSlot, Namespace

Adopt = Callable[[Any, str, Any], None]          # says of a value that it is state: at a path, and a slot
CACHED_FUNCTION = type(functools.lru_cache(lambda: None))


class Results(dict):
    """Results of one cache, by number."""


def cache_of(function: Any, held: list | None = None) -> dict:
    """The dictionary in which a function keeps its results, one for all its life; held: what the function holds."""
    names, held = instance_dict(function), gc.get_referents(function) if held is None else held
    return [h for h in held if type(h) is dict and h is not names][-1]        # results may be among those before it


def _link() -> type:
    """The class of what the dictionary of a bounded cache holds: each leads to its key, its result and this class, in this order."""
    bounded = functools.lru_cache(1)(lambda: None)
    bounded()
    return type(next(iter(cache_of(bounded).values())))


_LINK = _link()


def kept_results(function: Any) -> tuple[list, list]:
    """The keys and the results of all that the cache keeps."""
    held = gc.get_referents(function)
    cache = cache_of(function, held)
    if type(next(iter(cache.values()), None)) is not _LINK:
        return list(cache), list(cache.values())
    first, end = (1, 1 + 3 * len(cache)) if held[3] is _LINK else (0, 3 * len(cache))
    return held[first:end:3], held[first + 1:end:3]


def _frozen(key: Any) -> Hashable:
    """Equal for keys that are one key of a cache."""
    if issubclass(type(key), tuple):
        return (type(key), *map(_frozen, tuple.__iter__(key)))
    return freeze_key(key)


def _is_plain(key: Any) -> bool:
    return type(key) in PLAIN or type(key) is tuple and all(map(_is_plain, key))


class CacheSlot:
    """What the cache of a function keeps under `keys`, as `Results`.

    A plain result that gave way to others in a full cache is taken for the same: the function would give it again.
    """

    __slots__ = ("space", "keys", "plain", "_held")

    def __init__(self, space: Namespace) -> None:
        self.space = space
        self.keys: dict[Hashable, int] = {}                    # their numbers
        self.plain: dict[int, Any] = {}                        # results by number
        self._held: dict[int, Any] = {}                        # the keys by their ids, in the order of numbers; none but plain ones

    @property
    def name(self) -> Hashable:
        return tuple(self.keys)

    def add(self, key: Any, result: Any) -> int:
        """Gives the key a number."""
        number = self.keys[_frozen(key)] = len(self.keys)
        if _is_plain(key):
            self._held[id(key)] = key
        if type(result) in PLAIN:
            self.plain[number] = result
        return number

    def read(self, roots: Any = None) -> Any:
        function = self.space.owner()
        if function is None:
            return MISSING
        keys, results = kept_results(function)
        if len(self._held) == len(self.keys):
            by_id = dict(zip(map(id, keys), results))
            if self._held.keys() <= by_id.keys():              # else some gave way, and may have come back
                return Results(zip(self.keys.values(), [by_id[number] for number in self._held]))
        kept = dict(zip(map(_frozen, keys), results))
        others = self.plain if len(keys) == function.cache_info().maxsize else {}
        found = ((n, kept.get(key, others.get(n, MISSING))) for key, n in self.keys.items())
        return Results((n, result) for n, result in found if result is not MISSING)


class CachedResults:
    """Those of one function, as one capture meets them. `function`: its `Known`."""

    def __init__(self, function: Any, made: dict[int, Made]) -> None:
        self.function, self.made, self.looked = function, made, False
        code = code_of(function.obj)
        self.watched = code is None or not is_library_file(code.co_filename)
        self.slot = CacheSlot(function.space)
        self._expected: list[Hashable] = []

    def look(self, adopt: Adopt) -> list[Any]:
        """All that the cache keeps; what is new is adopted."""
        self.looked = True
        for key, result in self._new():
            self._add(key, result, adopt)
        return kept_results(self.function.obj)[1] if self.watched else []

    def _new(self) -> list[tuple[Any, Any]]:
        kept = zip(*kept_results(self.function.obj)) if self.watched else ()
        return [(key, result) for key, result in kept if _frozen(key) not in self.slot.keys]

    def _add(self, key: Any, result: Any, adopt: Adopt) -> None:
        number = self.slot.add(key, result)
        made = self.made.pop(id(result), None)
        if made is not None:
            made.slot.__init__(self.slot, number, True)
        else:
            adopt(result, f"{self.function.path}()", ItemSlot(self.slot, number, True))
        self._expected.append((freeze(number), freeze(result) if made is None else made.key))

    def settle(self, adopt: Adopt) -> Hashable:
        """The key of what the cache kept when it was met. UnsupportedError for results that nothing led to before."""
        unseen = [r for _, r in self._new() if id(r) not in self.made and (type(r) not in PLAIN or holds_fake(r))]
        if unseen:
            if not self._expected or any(map(holds_fake, unseen)):
                self.function.obj.cache_clear()
            path = self.function.path
            raise StateError(path, f"the call fills the cache of {path} in a way that cannot be watched: call it once before, outside")
        self.look(adopt)
        return (Results, tuple(self._expected))


def code_of(function: Any) -> Any:
    """The code that runs when the cache has no result; None where it is no Python function."""
    return getattr(getattr(function, "__wrapped__", None), "__code__", None)


@dataclass(frozen=True, eq=False)
class Made:
    """A result of this capture that no cache keeps yet, its key when it was returned, and the slot that it will have."""

    result: Any
    key: Hashable
    slot: ItemSlot


class Caches:
    """Of all functions under lru_cache that a capture meets."""

    def __init__(self) -> None:
        self.codes: dict[int, str] = {}                        # path by id of the code that they run
        self.made: dict[int, Made] = {}
        self._found: dict[int, CachedResults] = {}

    def add(self, function: Any) -> None:
        self._found[id(function.obj)] = CachedResults(function, self.made)
        self.codes[id(code_of(function.obj))] = f"{function.path}()"

    def look(self, function: Any, adopt: Adopt) -> list[Any]:
        return self._found[id(function.obj)].look(adopt)

    def note_made(self, code: Any, result: Any, adopt: Adopt) -> None:
        """This code, of a function under lru_cache, has returned the result."""
        if holds_fake(result):
            raise UnsupportedError("a function under lru_cache would keep a tensor of the capture: "
                                   "call it once before, outside")
        if id(result) not in self.made and not code.co_flags & inspect.CO_GENERATOR:
            slot = ItemSlot(None, 0, True)
            self.made[id(result)] = Made(result, freeze(result), slot)
            adopt(result, self.codes[id(code)], slot)

    def settle(self, known: dict[int, Any], adopt: Adopt) -> list[tuple[str, CacheSlot, Hashable]]:
        """(path, slot, key before the call) of the caches whose functions are known still. What is left in `made` then is no state."""
        looked = [c for number, c in self._found.items() if c.looked and known.get(number) is c.function]
        return [(f"cache of {c.function.path}", c.slot, key) for c in looked if (key := c.settle(adopt))[1]]


def holds_fake(value: Any, seen: set[int] | None = None) -> bool:
    """Is this a tensor or a number of the capture, or does it hold one in an item or an attribute?"""
    seen = set() if seen is None else seen
    if type(value) is Number or is_fake(value):
        return True
    if type(value) in PLAIN or id(value) in seen or isinstance(value, (type, types.ModuleType, types.FunctionType)):
        return False
    seen.add(id(value))
    names = instance_dict(value)
    parts = [*(contents(value) if is_container(value) else ()), *(names.values() if type(names) is dict else ())]
    return any(holds_fake(part, seen) for part in parts)
