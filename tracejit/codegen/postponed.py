"""Memory that is read at other indices than it is written, by one kernel: `u[1:-1] = (u[:-2] + u[2:]) / 2`.

A row is written when no row that is still to be computed reads it. Until then its values wait in a few rows of the
memory that the whole value would have had, which stay in a cache. A row is one step of a loop with others inside, or some
neighbours of the innermost. Threads share the rows:

    first    each computes the rows of its share that read rows of another share; none writes yet
    then     each computes its other rows, and writes every row as soon as that may be; the first ones at the end

Loops around the rows are gone through in both: what is read in one of their steps is written in no other.
"""
from __future__ import annotations

import math
from typing import Callable, Iterable, Optional

from .c import Block, Writer
from .index import Index, Var, bounds
from .kernel import CannotLower, Expr, Kernel, Postponed, Store

FEWEST_ROWS = 64             # that threads share without some having much more to do
NEIGHBOURS = 2048            # that are a row of the innermost loop
LONG = 1 << 17               # elements of a row, of which no cache holds several


def postponed(store: Store, waiting: Store, loads: Iterable[Expr], loops: list[Var]) -> Postponed:
    """By which rows it is done. waiting: stores the same values to memory that is not read.

    Raises CannotLower if what is read is not told in rows, or far away.
    """
    reads = [e.index for e in loads if e.extra[0] == store.buffer]
    found = [p for n in range(len(loops)) if (p := _by_rows(store, waiting, reads, loops, n)) is not None]
    if not found:
        raise CannotLower("memory is read at another index than it is written, and not in rows near by", store.position)
    short = (p for p in found if p.length > 1 or math.prod(v.size for v in loops[loops.index(p.row) + 1:]) <= LONG)
    return next(short, found[-1])


def _by_rows(store: Store, waiting: Store, reads: list[Index], loops: list[Var], n: int) -> Optional[Postponed]:
    """Rows of loop n; None if that does not do."""
    row, length = loops[n], 1 if n + 1 < len(loops) else NEIGHBOURS
    most = row.size // length
    if most < FEWEST_ROWS or not all(_steps_alike(store, waiting, reads, v) for v in loops[:n + 1]):
        return None
    around = [_reach(store, reads, v, 1, loops[:k]) for k, v in enumerate(loops[:n])]
    behind, ahead = _reach(store, reads, row, length, loops[:n])
    return None if any(map(any, around)) or behind + ahead > most // 8 else Postponed(store, waiting, row, length, behind, ahead)


def _steps_alike(store: Store, waiting: Store, reads: list[Index], v: Var) -> bool:
    """Does each step of a loop move what is read and what is written by the same, forwards?"""
    step = store.index.coefficient(v)
    return step > 0 and waiting.index.coefficient(v) > 0 and all(i.coefficient(v) == step for i in reads) and all(
        i.affine_in(v) for i in (store.index, waiting.index, *reads))


def _reach(store: Store, reads: list[Index], v: Var, length: int, around: list[Var]) -> tuple[int, int]:
    """How many rows before one, and after it, it may read what they write."""
    within = {v: (0, length - 1), **{u: (0, 0) for u in around}}
    low, high = bounds(store.index, within)
    extents, step = [bounds(i, within) for i in reads], store.index.coefficient(v) * length
    return max(0, *((high - first) // step for first, _ in extents)), max(0, *((last - low) // step for _, last in extents))


# ------------------------------------------------------------ C

def postponed_blocks(w: Writer, k: Kernel) -> tuple[list[Block], int]:
    """(what each thread runs first and then, the number of rows)"""
    p = k.postponed
    parts = [f"const i64 first = lo + {p.behind} < hi ? lo + {p.behind} : hi, last = hi - {p.ahead} > first ? hi - {p.ahead} : first;"]
    at_ends = "for (i64 o = lo; o < hi - last + first; o++) {"
    end = "o < first ? o : o + last - first"
    begin = [at_ends, _row(w, k, end, "0", _compute), "}"]
    # As many places as rows that wait, and one more; as many as rows where these are not enough for that.
    place = "(R - first) % places + first - R"
    middle = Block(["if (o < last) {", _row(w, k, "o", place, _compute), "}",
                    f"if (o - {p.behind} >= first) {{", _row(w, k, f"o - {p.behind}", place, _write), "}"])
    then = [f"const i64 places = last - first > {p.behind} ? {p.behind + 1} : last - first + 1;",
            f"for (i64 o = first; o < last + {p.behind}; o++) {{", middle, "}", at_ends, _row(w, k, end, "0", _write), "}"]
    blocks = [Block(parts), Block(parts)]
    for block, lines in zip(blocks, (begin, then)):
        w.nested(block, _loops(k)[0], lambda inside, lines=lines: inside.extend(lines))
    return blocks, -(-p.row.size // p.length)


def _loops(k: Kernel) -> tuple[list[Var], list[Var]]:
    """Those around the rows, and those inside, but for the innermost of all."""
    n = (k.outer + k.inner).index(k.postponed.row)
    return k.outer[:n], k.outer[n + 1:]


def _row(w: Writer, k: Kernel, number: str, place: str, body: Callable[[Writer, Kernel, Block, str, str], None]) -> Block:
    """`body` for the row R of this number, of which the values wait in another row, P rows on."""
    block = Block([f"const i64 R = {number}, P = {place};"])
    p, v = k.postponed, k.inner[0]
    low, high = "0", str(v.size)
    if p.row == v:
        low, high = "B", "E"
        block.append(f"const i64 B = R*{p.length}, E = B + {p.length} < {v.size} ? B + {p.length} : {v.size};")
    else:
        block.append(f"const i64 i{p.row.number} = R;")
    w.nested(block, _loops(k)[1], lambda inside: body(w, k, inside, low, high))
    return block


def _place(w: Writer, k: Kernel) -> str:
    """Where the value of the iteration waits."""
    s, p = k.postponed.waiting, k.postponed
    return f"{w.pointers[s.buffer]}[{w.index(s.index)} + P*{s.index.coefficient(p.row) * p.length}]"


def _compute(w: Writer, k: Kernel, block: Block, low: str, high: str) -> None:
    p = k.postponed
    stores = [s for s in k.stages[0].stores if s is not p.store]
    w.places[p.waiting] = _place(w, k)
    w.vector_loop(block, k.inner[0], [s.value for s in stores], lambda: w.stores(stores),
                  shared=(low, high) if p.row == k.inner[0] else None)
    del w.places[p.waiting]


def _write(w: Writer, k: Kernel, block: Block, low: str, high: str) -> None:
    s, i = k.postponed.store, f"i{k.inner[0].number}"
    block += [w.d.vector_pragma, f"for (i64 {i} = {low}; {i} < {high}; {i}++)",
              Block([f"{w.pointers[s.buffer]}[{w.index(s.index)}] = {_place(w, k)};"])]
