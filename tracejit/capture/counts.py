"""Integers of Python state that change from call to call: a step counter, a position in a cache.

One that was seen with two values is open in the next compile, as a size of an argument is: the capture finds an extent in its place. What
is compiled holds for all values of which the relations of the compile hold.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional

from ..ir.polynomial import LARGEST, Polynomial, Size
from .keys import MISSING
from .locations import Location


@dataclass(frozen=True, eq=False)
class Counts:
    """Those of one compile: `places` by size; `holds`: does it hold for such values of all sizes? known: sizes of arguments."""

    places: Mapping[Size, Location]
    holds: Callable[[Mapping[Size, int]], bool]
    known: Mapping[Size, int]

    def now(self) -> Optional[dict[Size, int]]:
        """All sizes as they are now; None where there is another thing at a place."""
        values = _values(self.places)
        return {**self.known, **values} if values is not None else None

    def hold(self) -> bool:
        """Does what was compiled hold now?"""
        sizes = self.now()
        return sizes is not None and self.holds(sizes)


class FloatOf:
    """Where an input of the program is found that is the float of an integer: read as a `Location`."""

    __slots__ = ("path", "p", "places", "ident")
    root = None

    def __init__(self, p: Polynomial, places: Mapping[Size, Location]) -> None:
        self.p, self.places = p, {size: place for size, place in places.items() if size in p.sizes}
        self.path = "_".join(place.path for place in self.places.values())
        self.ident = "float", p

    def read(self, roots: Any = None) -> Any:
        values = _values(self.places)
        try:
            return float(self.p.at(values)) if values is not None else MISSING
        except (ZeroDivisionError, OverflowError):             # the program was compiled for other values
            return MISSING


def _values(places: Mapping[Size, Location]) -> Optional[dict[Size, int]]:
    found = {size: place.read() for size, place in places.items()}
    return found if all(map(may_be_open, found.values())) else None


def may_be_open(n: Any) -> bool:
    return type(n) is int and -LARGEST <= n <= LARGEST
