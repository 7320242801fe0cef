"""Memory that is read at other indices than it is written, by one kernel: `u[1:-1] = (u[:-2] + u[2:]) / 2`.

A row is written when no row that is still to be computed reads it. Until then its values wait in a few rows of the
memory that the whole value would have had, which stay in a cache. Threads share the rows:

    first    each computes the rows of its share that read rows of another share; none writes yet
    then     each computes its other rows, and writes every row as soon as that may be; the first ones at the end
"""
from __future__ import annotations

from typing import Callable, Iterable, Optional

from .c import Block, Writer
from .index import Index, Var, bounds
from .kernel import CannotLower, Expr, Kernel, Postponed, Store

FEWEST_ROWS = 64             # that threads share without some having much more to do


def postponed(store: Store, waiting: Store, loads: Iterable[Expr], outer: list[Var]) -> Postponed:
    """How far rows of `store` reach into those before and after. waiting: stores the same values to memory that is not read.

    A row is one step of the outermost loop. Raises CannotLower if what it reads is not told in rows.
    """
    row = outer[0] if len(outer) > 1 and outer[0].size >= FEWEST_ROWS else None
    indices = [store.index, waiting.index, *(e.index for e in loads if e.extra[0] == store.buffer)]
    if row is None or not all(i.affine_in(row) for i in indices) or waiting.index.coefficient(row) <= 0:
        raise CannotLower("memory is read at another index than it is written, and not in rows", store.position)
    step = store.index.coefficient(row)
    if step <= 0 or any(i.coefficient(row) != step for i in indices[2:]):
        raise CannotLower("memory is read in rows other than those that are written", store.position)
    low, high = _within_row(store.index, row)
    reads = [_within_row(i, row) for i in indices[2:]]
    behind = max(0, *((high - first) // step for first, _ in reads))
    ahead = max(0, *((last - low) // step for _, last in reads))
    if behind + ahead > row.size // 8:
        raise CannotLower("memory is read too far from where it is written", store.position)
    return Postponed(store, waiting, behind, ahead)


def _within_row(index: Index, row: Var) -> tuple[int, int]:
    """The first and the last element that the row with number 0 touches."""
    return bounds(Index(index.constant, tuple((a, c) for a, c in index.terms if a != row)))


def postponed_blocks(w: Writer, k: Kernel) -> tuple[list[Block], int]:
    """(what each thread runs first and then, the number of rows)"""
    p, row = k.postponed, k.outer[0]
    i = f"i{row.number}"
    parts = [f"const i64 first = lo + {p.behind} < hi ? lo + {p.behind} : hi, last = hi - {p.ahead} > first ? hi - {p.ahead} : first;"]
    at_ends = f"for (i64 o = lo; o < hi - last + first; o++) {{ const i64 {i} = o < first ? o : o + last - first;"

    computed = _row(w, k, lambda inside: _compute(w, k, inside, "0"))
    begin = Block([*parts, at_ends, computed, "}"])
    waiting = _row(w, k, lambda inside: _compute(w, k, inside, "place"))
    written = _row(w, k, lambda inside: _write(w, k, inside, "place"))
    at_end = _row(w, k, lambda inside: _write(w, k, inside, "0"))
    # As many places as rows that wait, and one more; as many as rows where these are not enough for that.
    place = Block([f"const i64 place = ({i} - first) % places + first - {i};"])
    middle = Block([f"if (o < last) {{ const i64 {i} = o;", place, waiting, "}",
                    f"if (o - {p.behind} >= first) {{ const i64 {i} = o - {p.behind};", place, written, "}"])
    then = Block([*parts, f"const i64 places = last - first > {p.behind} ? {p.behind + 1} : last - first + 1;",
                  f"for (i64 o = first; o < last + {p.behind}; o++) {{", middle, "}", at_ends, at_end, "}"])
    return [begin, then], row.size


def _row(w: Writer, k: Kernel, body: Callable[[Block], None]) -> Block:
    block = Block()
    w.nested(block, k.outer[1:], body)
    return block


def _place(w: Writer, k: Kernel, place: str) -> str:
    """Where the value of the iteration waits, `place` rows from its own."""
    s = k.postponed.waiting
    moved = "" if place == "0" else f" + {place}*{s.index.coefficient(k.outer[0])}"
    return f"{w.pointers[s.buffer]}[{w.index(s.index)}{moved}]"


def _compute(w: Writer, k: Kernel, block: Block, place: str) -> None:
    stores = [s for s in k.stages[0].stores if s is not k.postponed.store]
    w.places[k.postponed.waiting] = _place(w, k, place)
    w.vector_loop(block, k.inner[0], [s.value for s in stores], lambda: w.stores(stores))
    del w.places[k.postponed.waiting]


def _write(w: Writer, k: Kernel, block: Block, place: str) -> None:
    s, v = k.postponed.store, k.inner[0]
    block += [w.d.vector_pragma, f"for (i64 i{v.number} = 0; i{v.number} < {v.size}; i{v.number}++)",
              Block([f"{w.pointers[s.buffer]}[{w.index(s.index)}] = {_place(w, k, place)};"])]
