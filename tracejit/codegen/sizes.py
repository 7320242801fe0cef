"""Texts that differ in numbers alone: one text, which reads those numbers from a table when it runs.

Sizes, strides and offsets are numbers in the text of a kernel, which is written anew for each shape. Whatever made them, a
text that is equal up to numbers does the same with those in the table: nothing need be known of where they come from.
The table is the first of the pointers that every function of a region is given.
"""
from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Collection, Iterable, Optional, Sequence, Union

from ..ir.cached import cached_property
from ..ir.polynomial import LARGEST

# What stays as it is, or a number as C's lexer takes one, all of `1e-5` and of `0x1.8p+3f`; and those of them that a table can hold:
# zeros may be null pointers.
_TOKEN = re.compile(r'^\s*(?:#|//).*$|aligned\(\d+\)|"[^"\n]*"|(@\d+@l?|(?<![\w.])\.?\d(?:[eEpP][-+]|[\w.])*)', re.M)
_NUMBER = re.compile(r"@\d+@l?|0x[0-9a-f.]+p[-+]\d+f?|[1-9]\d*l?")
_HEAD = re.compile(r"^(?:static )?(?:void|int) \w+\((.*)\) \{$")
_TYPES = {"f": "float", "d": "double", "l": "i64", "i": "int"}


@dataclass(frozen=True)
class Parted:
    """A text in parts: `between` the numbers, one more than there are of these."""

    between: tuple[str, ...]
    numbers: tuple[str, ...]

    @cached_property
    def form(self) -> str:
        """Equal for texts that differ in the values of numbers, not in their types."""
        return "".join(f"{text}\0{_kind(n)}" for text, n in zip(self.between, self.numbers)) + self.between[-1]

    @cached_property
    def open(self) -> frozenset[int]:
        """The positions of extents (`ir.extents`), whose values are known when a call's sizes are."""
        return frozenset(k for k, n in enumerate(self.numbers) if n.startswith("@"))

    @cached_property
    def counts(self) -> frozenset[int]:
        """The positions of numbers of threads and of their shares, which follow from the sizes and which no inner loop depends on."""
        threads = {k for k, before in enumerate(self.between[:-1]) if before.endswith("nt = nt > ")}
        shares = {k for k, before in enumerate(self.between[:-1]) if before.endswith("(p, 0, ")}
        return frozenset(threads | {k + 1 for k in threads} | shares)

    def reading(self, given: Collection[int], told: Optional[Sequence[Union[int, float]]] = None) -> str:
        """The text that reads the numbers at these positions from the table; `values` are what belongs into it.

        told: the values, which comments tell.
        """
        names = {k: f"given{n}" for n, k in enumerate(sorted(given))}
        text = "".join(part + names.get(k, number) for k, (part, number) in enumerate(zip(self.between, self.numbers)))
        declared = {name: f"  const {_TYPES[_kind(self.numbers[k])]} {name} = {_read(_kind(self.numbers[k]), n)};"
                          + (f"    // {_short(told[n])} in this call" if told is not None else "")
                    for n, (k, name) in enumerate(names.items())}
        return "\n".join(_with_declarations((text + self.between[-1]).split("\n"), declared))

    def values(self, given: Collection[int], extents: Sequence[int] = ()) -> tuple[Union[int, float], ...]:
        """The numbers at these positions. extents: the values of those, by number."""
        return tuple(extents[int(n[1:n.rindex("@")])] if n[0] == "@" else float.fromhex(n.removesuffix("f")) if "p" in n
                     else int(n.rstrip("l")) for n in map(self.numbers.__getitem__, sorted(given)))


def table(values: Iterable[Union[int, float]]) -> bytes:
    """Eight bytes a number: a long, or a double."""
    return b"".join(struct.pack("d" if isinstance(n, float) else "q", n) for n in values)


@lru_cache(256)
def parted(text: str) -> Parted:
    between, numbers, end = [], [], 0
    for m in _TOKEN.finditer(text):
        if m[1] and _NUMBER.fullmatch(m[1]):
            between.append(text[end:m.start()])
            numbers.append(intern(m[1]))
            end = m.end()
    return Parted((*between, text[end:]), tuple(numbers))


def _short(number: Union[int, float]) -> str:
    return number.hex() if isinstance(number, float) else str(number)


def _kind(number: str) -> str:
    if "p" in number:
        return "f" if number.endswith("f") else "d"
    return "l" if number.endswith("l") or number[0] != "@" and int(number) > LARGEST else "i"


def _read(kind: str, n: int) -> str:
    return f"((const {'double' if kind in 'fd' else 'i64'} *)TABLE)[{n}]"


def _with_declarations(lines: list[str], declared: dict[str, str]) -> list[str]:
    """Each function begins with those of the numbers that it uses."""
    made: list[str] = []
    head, body = "", []

    def close() -> None:
        used = dict.fromkeys(re.findall(r"\bgiven\d+\b", "\n".join(body)))
        made.extend([*([head] if head else []), *(declared[name].replace("TABLE", _table(head)) for name in used), *body])
    for line in lines:
        if _HEAD.match(line):
            close()
            head, body = line, []
        else:
            body.append(line)
    close()
    return made


def _table(head: str) -> str:
    """Where a function finds the table: the first pointer, that of the arguments' first member in a thread's task."""
    parameters = _HEAD.match(head)[1]
    if "void *const *p" in parameters:
        return "p[0]"
    return "(*(void *const **)q)[0]" if parameters == "void *q" else "((void *const *)p)[0]"
