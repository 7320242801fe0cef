"""Loops in chunks: a variable becomes chunks of `width` neighbours, which one thread loads and stores as a vector.

`v = width * u + q`. Divisions and windows that do not tell neighbours of a chunk apart lose their `q`.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import torch

from .index import Index, Quotient, Remainder, Var, atoms, combine, floordiv, mod
from .kernel import Expr, Kernel, Store

VECTOR_BYTES = 16            # of the widest access of a thread
HELD_DOUBLES = 24            # of a chunk's operands and results, that one thread has room for in registers
HEAVY_LANES = 64             # costly operations, times lanes, that one thread takes without running out of registers


@dataclass(frozen=True)
class Chunk:
    """u: counts chunks; q: the place in a chunk, None when chunks are single elements (then u is the variable itself)."""

    u: Var
    q: Optional[Var]
    width: int

    @property
    def moving(self) -> set[Var]:
        return {self.u if self.q is None else self.q}

    def starts(self, index: Index) -> Optional[Index]:
        """Where the chunk begins, if its elements are neighbours and it is aligned to its width; else None."""
        if self.q is None or index.coefficient(self.q) != 1 or not index.affine_in(self.q):
            return None
        start = Index(index.constant, tuple((a, c) for a, c in index.terms if a != self.q))
        if any(a == self.q for a in atoms(start)) or start.constant % self.width:
            return None
        return start if all(c % self.width == 0 for _, c in start.terms) else None


def width_of(k: Kernel, v: Var, heavy: int, ragged: bool) -> int:
    """The largest power of two of elements that some access can move at once. ragged: the last chunk need not be whole."""
    loaded = {(e.extra[0], e.index): e for e in k.expressions if e.op == "load"}
    every = [*((s.index, s.value.dtype) for s in k.stores_full), *((e.index, e.dtype) for e in loaded.values())]
    accesses = [(i, dtype.itemsize) for i, dtype in every if i.coefficient(v) == 1 and i.affine_in(v)]
    doubles = sum(dtype is torch.float64 for _, dtype in every)
    width = VECTOR_BYTES // min((n for _, n in accesses), default=VECTOR_BYTES)
    while width > 4 and heavy * width > HEAVY_LANES:
        width //= 2
    while width > 1 and doubles * width > HELD_DOUBLES:
        width //= 2
    while width > 1:
        whole = v.size % width == 0 or ragged and v.size > width
        if whole and any(_aligned(i, v, width) for i, _ in accesses):
            return width
        width //= 2
    return 1


def _aligned(index: Index, v: Var, width: int) -> bool:
    return index.constant % width == 0 and all(c % width == 0 for a, c in index.terms if a != v)


def chunked(k: Kernel, v: Var, width: int) -> Chunk:
    """Rewrites every index of the kernel that walks v."""
    if width == 1:
        return Chunk(v, None, 1)
    u, q = Var(2_000_000 + 2 * v.number, -(-v.size // width)), Var(2_000_001 + 2 * v.number, width)
    for e in k.expressions:
        if e.op == "load":
            e.extra = (e.extra[0], _in_chunks(e.extra[1], v, u, q), *e.extra[2:])
        elif e.op == "index":
            e.extra = _in_chunks(e.extra, v, u, q)
        elif e.op == "inside":
            e.extra = _window(_in_chunks(e.extra[0], v, u, q), *e.extra[1:], q)
    for s in k.every_store:
        s.index = _in_chunks(s.index, v, u, q)
    return Chunk(u, q, width)


def _in_chunks(index: Index, v: Var, u: Var, q: Var) -> Index:
    constant, terms = index.constant, []
    for a, c in index.terms:
        if a == v:
            terms += [(u, c * q.size), (q, c)]
        elif isinstance(a, (Quotient, Remainder)) and a.index.varies_with(v):
            part = _division(a, _in_chunks(a.index, v, u, q), q) * c
            constant += part.constant
            terms += part.terms
        else:
            terms.append((a, c))
    return combine(constant, tuple(terms))


def _division(a: Quotient | Remainder, index: Index, q: Var) -> Index:
    """One that all neighbours share, where the divisor and all other strides are multiples of the width."""
    n = q.size
    rest = [(b, c) for b, c in index.terms if b != q]
    if index.coefficient(q) != 1 or a.divisor % n or index.constant % n or any(
            c % n or any(x == q for x in atoms(Index(0, ((b, 1),)))) for b, c in rest):
        return Index(0, ((a._replace(index=index), 1),))
    chunks = Index(index.constant // n, tuple((b, c // n) for b, c in rest))
    if isinstance(a, Quotient):
        return floordiv(chunks, a.divisor // n)
    return mod(chunks, a.divisor // n) * n + Index(0, ((q, 1),))


def _window(index: Index, low: int, high: int, q: Var) -> tuple[Index, int, int]:
    n = q.size
    rest = tuple((b, c) for b, c in index.terms if b != q)
    shared = (index.coefficient(q) == 1 and (low - index.constant) % n == 0 and (high - index.constant) % n == 0
              and all(c % n == 0 and not any(x == q for x in atoms(Index(0, ((b, 1),)))) for b, c in rest))
    return (Index(index.constant, rest) if shared else index), low, high


def is_vector(chunk: Chunk, e: Expr, moves: bool) -> bool:
    """Can a load be one vector? moves: does its guard change within the chunk?"""
    return not moves and chunk.starts(e.index) is not None


def stores_as_vector(chunk: Chunk, s: Store) -> bool:
    return chunk.starts(s.index) is not None
