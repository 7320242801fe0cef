"""Locations: the places of Python state that a captured call read, and their values as keys at every call.

A `KeyReader` evaluates many locations at once and is fast while nothing changes.
"""
from __future__ import annotations

from typing import Any, Callable, Hashable, Iterable

from .identity import identity
from .keys import safe_key
from .state import CellSlot, ItemSlot, RootSlot, root_of
from .state_checks import make_check

_MOST_CHECKS = 8

class Location:
    """A slot that a captured call read: its path in the user's terms, and the key its value had before the
    call.

    `ident` is equal for two locations only if they are the same place; paths may coincide. With a `root`, the
    place is in an argument of the call, and `roots` must be given: a mapping from roots, or the list that
    they index.
    """

    __slots__ = ("path", "slot", "expected", "ident", "root")

    def __init__(self, path: str, slot: Any, expected: Hashable) -> None:
        self.path, self.slot, self.expected = path, slot, expected
        self.ident, self.root = place(slot), root_of(slot)

    def read(self, roots: Any = None) -> Any:
        """The present value, or MISSING."""
        return self.slot.read(roots)

    def key(self, roots: Any = None) -> Hashable:
        """A hashable stand-in for the present value; equal to nothing when it cannot be told."""
        if self.root is not None and roots is None:
            return object()
        return safe_key(self.slot.read(roots))

    def __repr__(self) -> str:
        return f"Location({self.path} = {self.expected!r})"


def place(slot: Any) -> Hashable:
    """What identifies a slot's place among all slots ever made."""
    if isinstance(slot, ItemSlot) and slot.parent is None:     # a result that no cache keeps yet
        return ("made", identity(slot))
    if isinstance(slot, ItemSlot):
        return ("item", place(slot.parent), slot.key)
    if isinstance(slot, CellSlot):
        return ("cell", identity(slot.cell))
    if isinstance(slot, RootSlot):
        return ("root", slot.label)
    space = slot.space
    way = space.via if space.via is not None else space.at
    owner = place(way) if way is not None else space.serial
    return (owner, space.table, type(slot), getattr(slot, "name", None))


# ---------------------------------------------------------------- many locations at once

class KeyReader:
    """The state of a fixed list of locations, as one small token.

    `register(keys)` gives a token for one combination of keys; calling the reader gives the token of the
    present state, or None when that combination is not registered. While a state stays the same, a generated
    check of one dictionary look-up and one identity test per location tells so.
    """

    def __init__(self, locations: Iterable[Location]) -> None:
        self.locations = tuple(locations)
        self._tokens: dict[tuple, int] = {}
        self._checks: list[tuple[Callable[[Any], bool], int]] = []    # the last one to succeed comes first
        self._seen: dict[int, int] = {}

    def register(self, keys: tuple | None = None) -> int:
        """The token of `keys`; by default of what the locations held before the captured call."""
        keys = tuple(location.expected for location in self.locations) if keys is None else keys
        return self._tokens.setdefault(keys, len(self._tokens))

    @property
    def latest(self) -> tuple:
        """The keys that were registered last."""
        return next(reversed(self._tokens))

    def token(self, keys: tuple) -> int | None:
        """The token of `keys`, if they are registered."""
        return self._tokens.get(keys)

    def keys(self, roots: Any = None) -> tuple:
        return tuple([location.key(roots) for location in self.locations])

    def __call__(self, roots: Any = None) -> int | None:
        checks = self._checks
        for at, (check, token) in enumerate(checks):
            if check(roots):
                if at:
                    self._checks = [checks[at], *checks[:at], *checks[at + 1:]]
                return token
        return self._read(roots)

    def _read(self, roots: Any) -> int | None:
        values = [location.slot.read(roots) for location in self.locations]
        keys = tuple([safe_key(value) for value in values])
        if any(location.root is not None for location in self.locations) and roots is None:
            return None
        token = self._tokens.get(keys)
        if token is not None:
            seen = self._seen[token] = self._seen.get(token, 0) + 1
            if seen == 2 or seen % 16 == 0:     # a check is worth its time; again when values came anew
                check = make_check(self.locations, values, keys)
                kept = [(c, t) for c, t in self._checks if t != token]
                self._checks = [(check, token), *kept[:_MOST_CHECKS - 1]]
        return token
