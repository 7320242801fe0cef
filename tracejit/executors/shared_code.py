"""Which numbers of a region's text change from compile to compile.

The first text at a place of the user's program is compiled as it is, its sizes known to the compiler. When one that differs
in numbers alone comes from the same place, those numbers are read from a table, and one compiled text is for all that differ
in no others. Which numbers are chosen decides how often the compiler runs and, as it may unroll loops of known
length, in which order sums are added up: nothing else.
"""
from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from typing import Optional, Sequence

from ..codegen.sizes import Parted, parted, table
from ..codegen.source import Source
from ..ir.trace import BoundSymbol
from .compile_lock import compile_lock

Positions = frozenset[int]
MOST_PLACES, MOST_FORMS = 1024, 16       # that are remembered: what is forgotten costs a run of the compiler
_lock = compile_lock()


@dataclass(frozen=True)
class Code:
    """body: a text to be compiled; sizes: the table that it reads, b"" if it reads none; given: which numbers of the text that
    has no table are in it; of: its place and form; open: it is for open sizes, and the table comes with them."""

    body: str
    sizes: bytes = b""
    given: Positions = frozenset()
    of: tuple[bytes, bytes] = (b"", b"")
    open: bool = False


@dataclass(frozen=True)
class _Form:
    """Texts alike up to numbers. numbers: those of the first; plain: it was compiled as it is; given: the positions of those that
    others read from a table; constant: the compiler wants constants there."""

    numbers: tuple[str, ...]
    given: Positions
    plain: bool
    constant: bool = False


@dataclass
class _Place:
    forms: OrderedDict[bytes, _Form] = field(default_factory=OrderedDict)
    kept: set[str] = field(default_factory=set)                # numbers of the first text that have not changed since


class SharedCode:
    """What was compiled at which place. The regions of one program do not count as changes of each other."""

    def __init__(self) -> None:
        self._places: OrderedDict[bytes, _Place] = OrderedDict()

    def codes(self, regions: Sequence[BoundSymbol], sources: Sequence[Source]) -> list[Code]:
        """The text to compile for each region."""
        met: Counter[bytes] = Counter()
        with _lock:
            return [self._code(_place(r, met), parted(s.body), s.body) for r, s in zip(regions, sources)]

    def refuse(self, code: Code) -> None:
        """The compiler failed on a text that reads a table: others of its form are compiled as they are."""
        at, form = code.of
        with _lock:
            if at in self._places and form in self._places[at].forms:
                forms = self._places[at].forms
                forms[form] = replace(forms[form], constant=True)

    def _code(self, at: bytes, text: Parted, body: str) -> Code:
        place = self._places.get(at)
        form = _digest(text.form)
        if place is None:
            self._places[at] = _Place(OrderedDict({form: _Form(text.numbers, frozenset(), True)}), set(text.numbers))
            while len(self._places) > MOST_PLACES:
                self._places.popitem(last=False)
            return Code(body)
        self._places.move_to_end(at)
        known = place.forms.get(form)
        if known is not None:
            place.forms.move_to_end(form)
            if known.constant:
                return Code(body)
        given = _changed(text, known, place.kept)
        given = given | text.counts if given else given
        if known is not None and known.plain and text.numbers == known.numbers:
            return Code(body)
        place.kept -= {numbers[k] for k in given - text.counts for numbers in (text.numbers, known.numbers if known else text.numbers)}
        place.forms[form] = _Form(text.numbers, given, not given) if known is None else replace(known, given=given)
        while len(place.forms) > MOST_FORMS:
            place.forms.popitem(last=False)
        return Code(text.reading(given), table(text.values(given)), given, (at, form)) if given else Code(body)


def _changed(text: Parted, known: Optional[_Form], kept: set[str]) -> Positions:
    """Of a form not met before: those numbers that the first text at this place did not have."""
    if known is None:
        return frozenset(k for k, n in enumerate(text.numbers) if n not in kept)
    return known.given | {k for k, (a, b) in enumerate(zip(known.numbers, text.numbers)) if a != b}


def _place(region: BoundSymbol, met: Counter[bytes]) -> bytes:
    """The lines of a region, the ops there and the dtypes, and how many such regions came before in the same program."""
    own = _digest(" ".join([*(f"{b.source} {b.sym.name}" for b in region.subsymbols), *(str(p.dtype) for p in region.args)]))
    met[own] += 1
    return own + met[own].to_bytes(4, "little")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]
