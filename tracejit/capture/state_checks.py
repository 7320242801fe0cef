"""A generated function that tells at each call whether the values at given locations are what they were.

It is exact in one direction: True means that every key is unchanged. False means nothing, and keys are
computed. Values are compared by identity; only plain values are held, objects are referred to weakly.
"""
from __future__ import annotations

import collections
import sys
import weakref
from typing import Any, Callable, Hashable

import torch

from .cached_results import Results
from .keys import MISSING, PLAIN, is_placed, safe_key
from .state import CellSlot, ClassSlot, CodeSlot, NameSlot, Namespace

_MAPPINGS = (dict, collections.OrderedDict, Results)
_LASTING = frozenset(name for name in sys.modules if name.startswith("torch."))    # classes that nobody frees
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_FAILURES = "(KeyError, AttributeError, TypeError, ValueError)"     # a name, owner or cell that is gone


class _Writer:
    """Collects conditions that mean "changed" and the constants that they use."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {"safe_key": safe_key, "same_items": _same_items}
        self.alive: list[bool] = [True]

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def reference(self, value: Any) -> str:
        """A weak reference; when its object dies, the whole check fails from then on."""
        alive = self.alive
        return self.constant(weakref.ref(value, lambda _ref: alive.clear()))

    def hold(self, value: Any) -> bool:
        """May `id(value)` stand for the value while the check is alive? One tensor may replace another."""
        kind = type(value)
        if kind in PLAIN:
            self.constant(value)
        elif type(safe_key(value)) is not tuple or safe_key(value)[0] != "object" or is_placed(kind):
            return False
        else:
            self.reference(value) if kind.__weakrefoffset__ != 0 else self.constant(value)
        return True

    def condition(self, code: str, value: Any, key: Hashable) -> str:
        """Is what `code` gives something else than `value`, whose key is `key`?"""
        kind = type(value)
        if kind in PLAIN or kind is tuple and all(type(item) in PLAIN for item in value):
            return f"{code} is not {self.constant(value)}"
        if issubclass(kind, torch.Tensor):
            return f"type({code}) is not {self.constant(kind)}"
        if kind in _MAPPINGS or kind in _SEQUENCES:
            if not value:
                return f"type(v := {code}) is not {self.constant(kind)} or v"
            items = list(value.values()) if kind in _MAPPINGS else list(value)
            names = list(value) if kind in _MAPPINGS else []
            if all(map(self.hold, items + names)):
                ids = (list(map(id, names)), list(map(id, items)))
                return f"not same_items({code}, {self.constant(kind)}, *{self.constant(ids)})"
        elif type(key) is tuple and key[0] == "object":
            if is_placed(kind):
                return f"id(v := {code}) != {id(value)} or type(v) is not {self.reference(kind)}()"
            if kind.__weakrefoffset__ != 0:
                return f"{code} is not {self.reference(value)}()"
            return f"{code} is not {self.constant(value)}"
        return f"safe_key({code}) != {self.constant(key)}"


def make_check(locations: tuple, values: list, keys: tuple) -> Callable[[Any], bool]:
    """The check of `locations`, whose present values and keys are given."""
    write = _Writer()
    owners: dict[int, list[tuple]] = {}
    for location, value, key in zip(locations, values, keys):
        slot = location.slot
        if type(slot) in (NameSlot, ClassSlot) and slot.space.via is None:
            owners.setdefault(id(slot.space.access()[0]), []).append((slot, value, key))
        elif type(slot) is CodeSlot:
            function = write.constant(slot.space.access()[0])
            write.lines.append(write.condition(f"{function}().__code__", value, key))
        elif type(slot) is CellSlot:
            write.lines.append(write.condition(f"{write.constant(slot.cell)}.cell_contents", value, key))
        else:
            write.lines.append(write.condition(f"{write.constant(slot.read)}(roots)", value, key))
    body = [f"  if {line}: return False" for line in write.lines]
    for found in owners.values():
        body += _owner_lines(write, found)
    source = "\n".join(["def check(roots):", " if not alive: return False", " try:", *body,
                        f" except {_FAILURES}: return False", " return True"])
    scope = {**write.constants, "alive": write.alive}
    exec(compile(source, "<state check>", "exec"), scope)
    return scope["check"]


def _owner_lines(write: _Writer, found: list[tuple]) -> list[str]:
    """Conditions on one object: its class, the names in its instance dictionary, then the tables of a module."""
    spaces: dict[str | None, tuple[Namespace, list]] = {}
    owner, dict_of = found[0][0].space.access()
    lines = [f"  o = {write.constant(owner)}()"]
    for slot, value, key in found:
        if type(slot) is ClassSlot and str(value.__module__) in _LASTING:
            lines.append(f"  if type(o) is not {write.constant(value)}: return False")
        elif type(slot) is ClassSlot:
            lines.append(f"  if {write.condition('type(o)', value, key)}: return False")
        else:
            spaces.setdefault(slot.space.table, (slot.space, []))[1].append((slot.name, value, key))
    lines += [f"  d = {write.constant(dict_of)}(o, '__dict__')"] if spaces else []
    for table, (space, items) in sorted(spaces.items(), key=lambda item: item[0] or ""):
        names = "d" if table is None else "t"
        if table is not None:      # an instance attribute hides a parameter of the same name
            hidden = write.constant(frozenset(name for name, _, _ in items))
            lines += [f"  if not d.keys().isdisjoint({hidden}): return False", f"  t = d[{table!r}]"]
        present = space.fetch() or {}
        parts = []
        for name, value, key in items:
            if value is MISSING:
                parts.append(f"{name!r} in {names}")
            elif present.get(name, MISSING) is value:
                parts.append(write.condition(f"{names}[{name!r}]", value, key))
            else:                  # seen past this table: an instance attribute hides it
                return ["  return False"]
        lines += [f"  if {' or '.join(parts[at:at + 20])}: return False" for at in range(0, len(parts), 20)]
    return lines


def _same_items(now: Any, kind: type, names: list[int], values: list[int]) -> bool:
    """Is `now` a container of this class with the very same items?"""
    if type(now) is not kind or len(now) != len(values):
        return False
    if kind in _MAPPINGS:
        return list(map(id, now)) == names and list(map(id, now.values())) == values
    return list(map(id, now)) == values
