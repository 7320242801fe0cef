"""Polynomials over sizes: `2*s0 + 1`, with quotients and remainders as atoms of their own.

Equal polynomials have equal terms, so most questions about sizes (is this the same shape? is that contiguous?) are answered for all
sizes at once. `sign` answers more: every size is at least `SMALLEST`. Integers that are no sizes may be negative. None is larger than
`LARGEST`.
"""
from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Callable, Iterator, Mapping, Optional, Union

from .cached import cached_property

SMALLEST = 2                 # 0 and 1 are sizes of their own kind: such a dim is never open
LARGEST = (1 << 31) - 1      # of C's int: what is larger is never open
_numbers = itertools.count()


class Size:
    """A size that is left open, in one capture; with `least` None an integer from -LARGEST on."""

    __slots__ = ("name", "least", "order")

    def __init__(self, name: str, least: Optional[int] = SMALLEST) -> None:
        self.name, self.least, self.order = name, least, (0, next(_numbers), "")

    def __repr__(self) -> str:
        return self.name


class Rest:
    """`dividend // divisor` or `dividend % divisor` where no polynomial says it."""

    __slots__ = ("op", "dividend", "divisor", "order")

    def __init__(self, op: str, dividend: "Polynomial", divisor: "Polynomial") -> None:
        self.op, self.dividend, self.divisor = op, dividend, divisor
        self.order = 1, 0, f"{op} {dividend.key} {divisor.key}"

    def __eq__(self, other: object) -> bool:
        return type(other) is Rest and self.order == other.order

    def __hash__(self) -> int:
        return hash(self.order)

    def __repr__(self) -> str:
        return f"({_operand(self.dividend)} {self.op} {_operand(self.divisor)})"


def _operand(p: "Polynomial") -> str:
    text = repr(p)
    return text if text.isalnum() else f"({text})"


Atom = Union[Size, Rest]
Term = tuple[Atom, ...]      # the atoms of a product, in order; () of a constant


class Polynomial:
    """A sum of products, each with a factor: `terms`."""

    def __init__(self, terms: Mapping[Term, int]) -> None:
        self.terms = {t: c for t, c in terms.items() if c}

    @classmethod
    def of(cls, n: Union[int, Atom]) -> "Polynomial":
        return cls({(): n} if isinstance(n, int) else {(n,): 1})

    @cached_property
    def key(self) -> tuple:
        return tuple(sorted((tuple(a.order for a in t), c) for t, c in self.terms.items()))

    @cached_property
    def _hash(self) -> int:
        return hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return type(other) is Polynomial and self.terms == other.terms

    @property
    def constant(self) -> Optional[int]:
        """The number that it is for all sizes, or None."""
        return self.terms.get((), 0) if self.terms.keys() <= {()} else None

    def __add__(self, other: "Polynomial") -> "Polynomial":
        made = dict(self.terms)
        for t, c in other.terms.items():
            made[t] = made.get(t, 0) + c
        return Polynomial(made)

    def __neg__(self) -> "Polynomial":
        return Polynomial({t: -c for t, c in self.terms.items()})

    def __sub__(self, other: "Polynomial") -> "Polynomial":
        return self + -other

    def __mul__(self, other: "Polynomial") -> "Polynomial":
        made: dict[Term, int] = {}
        for (t, c), (u, d) in itertools.product(self.terms.items(), other.terms.items()):
            product = tuple(sorted(t + u, key=lambda a: a.order)) if t and u else t or u
            made[product] = made.get(product, 0) + c * d
        return Polynomial(made)

    def __floordiv__(self, other: "Polynomial") -> "Polynomial":
        """Rounded down, as Python's."""
        whole, rest, done = self._divided(other)
        return whole if done else whole + Polynomial.of(Rest("//", rest, other))

    def __mod__(self, other: "Polynomial") -> "Polynomial":
        """With the sign of the divisor, as Python's."""
        _, rest, done = self._divided(other)
        return rest if done else Polynomial.of(Rest("%", rest, other))

    def _divided(self, other: "Polynomial") -> tuple["Polynomial", "Polynomial", bool]:
        """(p, r, done) such that self is p * other + r; done: 0 <= r < other for all sizes."""
        whole, rest = self._taken_out(other)
        if sign(-rest) > 0 and sign(rest + other) >= 0:
            whole, rest = whole - Polynomial.of(1), rest + other
        return whole, rest, not rest.terms or sign(rest) >= 0 and sign(other - rest) > 0

    def _taken_out(self, other: "Polynomial") -> tuple["Polynomial", "Polynomial"]:
        """(p, r) such that self is p * other + r: what a divisor of one term takes out."""
        if len(other.terms) != 1:
            return (Polynomial.of(1), Polynomial({})) if self == other else (Polynomial({}), self)
        (atoms, factor), = other.terms.items()
        whole, rest = {}, {}
        for t, c in self.terms.items():
            left = _without(t, atoms)
            if left is None:
                rest[t] = c
            else:
                whole[left], rest[t] = c // factor, c % factor
        return Polynomial(whole), Polynomial(rest)

    def at(self, sizes: Mapping[Size, int]) -> int:
        """Its value. ZeroDivisionError where a quotient has none."""
        return sum(c * math.prod(_value(a, sizes) for a in t) for t, c in self.terms.items())

    @cached_property
    def most(self) -> int:
        """Neither it nor its negative is larger, for all sizes."""
        return sum(abs(c) * math.prod(map(_most, t)) for t, c in self.terms.items())

    @cached_property
    def sizes(self) -> frozenset[Size]:
        """Those that it depends on."""
        return frozenset(_sizes(self))

    @property
    def remainders(self) -> bool:
        """Does it depend on sizes by their remainders alone?"""
        return bool(self.sizes) and all(isinstance(a, Rest) and a.op == "%" for a in itertools.chain.from_iterable(self.terms))

    def __repr__(self) -> str:
        ordered = sorted(self.terms.items(), key=lambda item: (not item[0], [a.order for a in item[0]]))
        texts = ["*".join([*([str(c)] if abs(c) != 1 or not t else []), *map(repr, t)]) for t, c in ordered]
        signed = ["-" * (c == -1 and bool(t)) + text for text, (t, c) in zip(texts, ordered)]
        return " + ".join(signed).replace("+ -", "- ") or "0"


def _without(term: Term, atoms: Term) -> Optional[Term]:
    """The term divided by these atoms, or None."""
    left = list(term)
    for a in atoms:
        if a not in left:
            return None
        left.remove(a)
    return tuple(left)


def _value(a: Atom, sizes: Mapping[Size, int]) -> int:
    if isinstance(a, Size):
        return sizes[a]
    dividend, divisor = a.dividend.at(sizes), a.divisor.at(sizes)
    return dividend // divisor if a.op == "//" else dividend % divisor


def _most(a: Atom) -> int:
    return LARGEST if isinstance(a, Size) else a.dividend.most if a.op == "//" else a.divisor.most


def _sizes(p: Polynomial) -> Iterator[Size]:
    for a in itertools.chain.from_iterable(p.terms):
        if isinstance(a, Size):
            yield a
        else:
            yield from _sizes(a.dividend)
            yield from _sizes(a.divisor)


@lru_cache(1 << 12)
def sign(p: Polynomial) -> float:
    """1: positive for all sizes; 0: never negative, and not always positive as far as one sees; -1: neither is known; always 0 is 0."""
    low = _least(p)
    return -1 if low is None or low < 0 else 1 if low > 0 else 0


def _least(p: Polynomial) -> Optional[int]:
    """A bound from below; None where a term may fall without end.

    In atoms less what they are at least, a polynomial without negative factors grows.
    """
    total: dict[Term, int] = {}
    for t, c in p.terms.items():
        made = Polynomial.of(c)
        for a in t:
            low = _lowest(a)
            if low is None:
                return None
            made = made * Polynomial({(a,): 1, (): low})
        for u, d in made.terms.items():
            total[u] = total.get(u, 0) + d
    if any(c < 0 for t, c in total.items() if t):
        return None
    return total.get((), 0)


def _lowest(a: Atom) -> Optional[int]:
    """A bound that is not negative, from below; None where there is none."""
    if isinstance(a, Size):
        return a.least
    low = _least(a.dividend)
    if sign(a.divisor) <= 0 or a.op == "//" and (low is None or low < 0):
        return None
    return low // a.divisor.constant if a.op == "//" and a.divisor.constant else 0


def decided(p: Polynomial, zero: bool) -> Optional[bool]:
    """Is p 0 (zero), or is it positive? None: that depends on the sizes."""
    if p.constant is not None:
        return p.constant == 0 if zero else p.constant > 0
    if sign(p) > 0:
        return not zero
    if sign(-p) > 0 or not zero and sign(-p) == 0:
        return False
    if zero and (constant := p.terms.get((), 0)):
        factors = math.gcd(*(c for t, c in p.terms.items() if t))
        return False if constant % factors else None
    return None


def pinned(p: Polynomial) -> Optional[Size]:
    """The size that has one value, or few, where p is 0; None where many will do."""
    atoms = set(itertools.chain.from_iterable(p.terms))
    return next(iter(p.sizes)) if len(atoms) == len(p.sizes) == 1 and p.sizes == atoms else None


def condition(relations: Mapping[tuple[Polynomial, bool], bool]) -> Callable[[Mapping[Size, int]], bool]:
    """Do all these hold? relations: as asked of `decided`, with the outcome. Its names tell sizes apart."""
    signs = {(True, True): "==", (True, False): "!=", (False, True): ">", (False, False): "<="}
    told = [f"{p!r} {signs[zero, outcome]} 0" for (p, zero), outcome in relations.items()]
    sizes = list(dict.fromkeys(size for p, _ in relations for size in p.sizes))
    check = eval(f"lambda {', '.join(map(repr, sizes))}: {' and '.join(told) or True}")

    def holds(values: Mapping[Size, int]) -> bool:
        try:
            return check(*[values[size] for size in sizes])
        except ZeroDivisionError:                              # a quotient that the program did not form for such sizes
            return False
    return holds
