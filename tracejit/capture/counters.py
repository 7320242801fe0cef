"""Counters: `self.calls += 1` reads a number only to write it; a guard on its value would retrace at every call.

Such an attribute is guarded by its type alone, and its write is replayed as an addition, unless anything else
in the call reads or assigns it: then it is an attribute like any other.
"""
from __future__ import annotations

from typing import Any

from .known import KnownState
from .keys import MISSING
from .state import NameSlot, TypeSlot

class Counters:
    """The counters that a call has met, by (id of the namespace, name)."""

    def __init__(self, state: KnownState) -> None:
        self.state = state
        self._assigned: set[str | None] = set()      # names assigned otherwise; None: any name

    def assign(self, names: Any) -> None:
        """Code that assigns these names, by more than counting, takes part in the call."""
        self._assigned.update(names)

    def count(self, obj: Any, name: str) -> bool:
        """Takes note of a counter; False when the attribute is none, and must be read as usual."""
        record = self.state.objects.get(id(obj))
        names = record.names if record is not None else None
        if type(names) is not dict or type(names.get(name)) is not int:
            return False
        self.state.counted.setdefault((id(names), name), record)
        return True

    def settle(self) -> dict[tuple[int, str], int]:
        """What each counter was moved by. Those that turn out to be none are guarded by value."""
        moved = {}
        for key, record in self.state.counted.items():
            (_, name), names = key, record.names
            before, now = self.state.journal.before(names, name, MISSING), names.get(name, MISSING)
            slot, path = NameSlot(record.space, name), f"{record.path}.{name}"
            if self.state.registered(key):
                continue
            if type(before) is not int or type(now) is not int or self._assigned & {name, None}:
                self.state.register(key, slot, path, before, before, record)
            else:
                self.state.register((*key, "type"), TypeSlot(slot), f"type of {path}", int, int, record)
                moved[key] = now - before
        return moved
