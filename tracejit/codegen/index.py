"""Affine index maps: which element of memory an iteration touches.

    index ::= constant + sum(coefficient * atom)
    atom  ::= loop variable | index // n | index % n | a loaded value (a gather)

Views compose into such maps. Division and remainder simplify whenever the bounds of their parts allow it, so what remains
after `transpose`, `reshape`, `slice` of each other is usually a plain stride; what cannot be simplified stays a division.
"""
from __future__ import annotations

from math import gcd
from typing import Iterator, NamedTuple, Optional, Union

from ..ir.extents import is_extent
from ..ir.memory import apart_modulo


class Var(NamedTuple):
    """A loop variable: 0 <= value < size."""

    number: int
    size: int


class Quotient(NamedTuple):
    """index // divisor, rounded down."""

    index: "Index"
    divisor: int


class Remainder(NamedTuple):
    """index % divisor, never negative."""

    index: "Index"
    divisor: int
    kind: str = "%"


class Gathered(NamedTuple):
    """A value loaded from memory and checked to be in [0, size); `expression` is the number of the expression."""

    expression: int
    size: int
    kind: str = "gathered"


Atom = Union[Var, Quotient, Remainder, Gathered]
Bounds = tuple[int, int]


class Index(NamedTuple):
    constant: int
    terms: tuple[tuple[Atom, int], ...] = ()

    def __add__(self, other: Union["Index", int]) -> "Index":      # type: ignore[override]
        if isinstance(other, int):
            return Index(self.constant + other, self.terms)
        return combine(self.constant + other.constant, (*self.terms, *other.terms))

    def __mul__(self, factor: int) -> "Index":                     # type: ignore[override]
        if not factor:
            return ZERO
        return Index(self.constant * factor, tuple((a, c * factor) for a, c in self.terms))

    def coefficient(self, var: Var) -> int:
        """Of `var` itself; what hides in divisions is not counted."""
        return next((c for a, c in self.terms if a == var), 0)

    def varies_with(self, var: Var) -> bool:
        return any(a == var for a in atoms(self))

    def affine_in(self, var: Var) -> bool:
        return not any(isinstance(a, (Quotient, Remainder)) and a.index.varies_with(var) for a, _ in self.terms)


ZERO = Index(0)


def variable(var: Var) -> Index:
    return Index(0, ((var, 1),)) if var.size != 1 else ZERO


def atoms(index: Index) -> Iterator[Atom]:
    """Every atom, those inside divisions too."""
    for a, _ in index.terms:
        yield a
        if isinstance(a, (Quotient, Remainder)):
            yield from atoms(a.index)


def combine(constant: int, terms: tuple) -> Index:
    """The sum of terms in a fixed order; `n*k*(e // k) + n*(e % k)` becomes `n*e`."""
    sums: dict[Atom, int] = {}
    for a, c in terms:
        sums[a] = sums.get(a, 0) + c
    for a in [a for a in sums if isinstance(a, Quotient)]:
        rest, c = Remainder(a.index, a.divisor), sums.get(a, 0)
        if c and c % a.divisor == 0 and sums.get(rest) == c // a.divisor:
            n = c // a.divisor
            del sums[a], sums[rest]
            whole = a.index * n
            return combine(constant + whole.constant, (*sums.items(), *whole.terms))
    return Index(constant, tuple(sorted(((a, c) for a, c in sums.items() if c), key=lambda term: _order(term[0]))))


def _order(atom: Atom) -> tuple:
    if isinstance(atom, Var):
        return (0, atom.number)
    if isinstance(atom, Gathered):
        return (1, atom.expression)
    kind = 2 if isinstance(atom, Quotient) else 3
    return (kind, atom.divisor, atom.index.constant, tuple((_order(a), c) for a, c in atom.index.terms))


def bounds(index: Index, within: Optional[dict[Var, Bounds]] = None) -> Bounds:
    """Least and greatest value; `within` narrows variables."""
    low = high = index.constant
    for a, c in index.terms:
        first, last = _atom_bounds(a, within)
        low, high = low + min(first * c, last * c), high + max(first * c, last * c)
    return low, high


def _atom_bounds(a: Atom, within: Optional[dict[Var, Bounds]]) -> Bounds:
    if within and isinstance(a, Var) and a in within:
        return within[a]
    if isinstance(a, (Var, Gathered)):
        return 0, max(a.size - 1, 0)
    low, high = bounds(a.index, within)
    if isinstance(a, Quotient):
        return low // a.divisor, high // a.divisor
    return (low, high) if 0 <= low and high < a.divisor else (0, a.divisor - 1)


def _split(index: Index, n: int) -> tuple[Index, Index]:
    """index = n * whole + rest."""
    whole = Index(index.constant // n, tuple((a, c // n) for a, c in index.terms if c % n == 0))
    return whole, Index(index.constant % n, tuple((a, c) for a, c in index.terms if c % n))


def _common(rest: Index, n: int) -> tuple[int, Index]:
    """The greatest common divisor g of n and the coefficients, and rest // g."""
    g = 1 if any(map(is_extent, (n, *(c for _, c in rest.terms)))) else gcd(n, *(c for _, c in rest.terms))
    return g, Index(rest.constant // g, tuple((a, c // g) for a, c in rest.terms))


def floordiv(index: Index, n: int) -> Index:
    whole, rest = _split(index, n)
    low, high = bounds(rest)
    if low // n == high // n:
        return whole + low // n
    g, reduced = _common(rest, n)
    if g > 1:
        return whole + floordiv(reduced, n // g)
    return whole + Index(0, ((Quotient(rest, n), 1),))


def mod(index: Index, n: int) -> Index:
    _, rest = _split(index, n)
    low, high = bounds(rest)
    if low // n == high // n:
        return rest + -(low // n) * n
    g, reduced = _common(rest, n)
    if g > 1:
        return mod(reduced, n // g) * g + rest.constant % g
    return Index(0, ((Remainder(rest, n), 1),))


def flatten(indices: tuple[Index, ...], shape: tuple[int, ...]) -> Index:
    """Row-major position of an element."""
    total, step = ZERO, 1
    for i, n in zip(reversed(indices), reversed(shape)):
        total, step = total + i * step, step * max(n, 1)
    return total


def unflatten(position: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """Row-major indices of a position."""
    found, step = [], 1
    for n in reversed(shape):
        found.append(mod(floordiv(position, step), n) if n > 1 else ZERO)
        step *= max(n, 1)
    return tuple(reversed(found))


def through_memory(offset: Index, shape: tuple[int, ...], stride: tuple[int, ...]) -> Optional[tuple[Index, ...]]:
    """The indices of the element that lies at `offset` of a tensor; None when its strides do not say which."""
    found = [ZERO] * len(shape)
    reach = 1
    for s, n in sorted((s, n) for s, n in zip(stride, shape) if n > 1 and s):
        if s < reach:
            return None
        reach = s * (n - 1) + reach
    for d in sorted((d for d, n in enumerate(shape) if n > 1 and stride[d]), key=lambda d: -stride[d]):
        found[d] = floordiv(offset, stride[d])
        offset = mod(offset, stride[d])
    return tuple(found)


def disjoint(a: Index, b: Index) -> bool:
    """Can the two never be equal, in whatever iterations?"""
    (a_low, a_high), (b_low, b_high) = bounds(a), bounds(b)
    if a_high < b_low or b_high < a_low:
        return True
    def within(index: Index, m: int) -> Bounds:
        low, high = bounds(Index(index.constant, tuple((atom, c) for atom, c in index.terms if c % m)))
        return low, high + 1
    return any(apart_modulo(m, within(a, m), within(b, m)) for m in {abs(c) for _, c in (*a.terms, *b.terms)})
