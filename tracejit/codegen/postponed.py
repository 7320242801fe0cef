"""Memory that is read at other indices than it is written, by one kernel: `u[1:-1] = (u[:-2] + u[2:]) / 2`.

A row is written when no row that is still to be computed reads it. Until then its values wait in a few rows of the
memory that the whole value would have had, which stay in a cache. A row is one step of the outermost of several loops, or some
neighbours of the only one. Threads share the rows:

    first    each computes the rows of its share that read rows of another share; none writes yet
    then     each computes its other rows, and writes every row as soon as that may be; the first ones at the end
"""
from __future__ import annotations

from typing import Callable, Iterable

from .c import Block, Writer
from .index import Index, Var, bounds
from .kernel import CannotLower, Expr, Kernel, Postponed, Store

FEWEST_ROWS = 64             # that threads share without some having much more to do
NEIGHBOURS = 2048            # that are a row where there is one loop


def postponed(store: Store, waiting: Store, loads: Iterable[Expr], loops: list[Var]) -> Postponed:
    """How far rows of `store` reach into those before and after. waiting: stores the same values to memory that is not read.

    Raises CannotLower if what it reads is not told in rows, or far away.
    """
    v, length = loops[0], 1 if len(loops) > 1 else NEIGHBOURS
    reads = [e.index for e in loads if e.extra[0] == store.buffer]
    if v.size < FEWEST_ROWS * length or not all(i.affine_in(v) for i in (store.index, waiting.index, *reads)):
        raise CannotLower("memory is read at another index than it is written, and not in rows", store.position)
    step = store.index.coefficient(v)
    if step <= 0 or waiting.index.coefficient(v) <= 0 or any(i.coefficient(v) != step for i in reads):
        raise CannotLower("memory is read in rows other than those that are written", store.position)

    def extent(index: Index) -> tuple[int, int]:
        return bounds(index, {v: (0, length - 1)})             # of the row with number 0
    low, high = extent(store.index)
    behind = max(0, *((high - extent(i)[0]) // (step * length) for i in reads))
    ahead = max(0, *((extent(i)[1] - low) // (step * length) for i in reads))
    if behind + ahead > v.size // length // 8:
        raise CannotLower("memory is read too far from where it is written", store.position)
    return Postponed(store, waiting, behind, ahead, length)


def postponed_blocks(w: Writer, k: Kernel) -> tuple[list[Block], int]:
    """(what each thread runs first and then, the number of rows)"""
    p = k.postponed
    rows = -(-(k.outer + k.inner)[0].size // p.length)
    parts = [f"const i64 first = lo + {p.behind} < hi ? lo + {p.behind} : hi, last = hi - {p.ahead} > first ? hi - {p.ahead} : first;"]
    at_ends = "for (i64 o = lo; o < hi - last + first; o++) {"
    end = "o < first ? o : o + last - first"
    begin = Block([*parts, at_ends, _row(w, k, end, "0", _compute), "}"])
    # As many places as rows that wait, and one more; as many as rows where these are not enough for that.
    place = "(R - first) % places + first - R"
    middle = Block(["if (o < last) {", _row(w, k, "o", place, _compute), "}",
                    f"if (o - {p.behind} >= first) {{", _row(w, k, f"o - {p.behind}", place, _write), "}"])
    then = Block([*parts, f"const i64 places = last - first > {p.behind} ? {p.behind + 1} : last - first + 1;",
                  f"for (i64 o = first; o < last + {p.behind}; o++) {{", middle, "}",
                  at_ends, _row(w, k, end, "0", _write), "}"])
    return [begin, then], rows


def _row(w: Writer, k: Kernel, number: str, place: str, body: Callable[[Writer, Kernel, Block, str, str], None]) -> Block:
    """`body` for the row R of this number, of which the values wait in another row, P rows on."""
    block = Block([f"const i64 R = {number}, P = {place};"])
    v, n = k.inner[0], k.postponed.length
    if k.outer:
        block.append(f"const i64 i{k.outer[0].number} = R;")
        low, high = "0", str(v.size)
    else:
        low, high = "B", "E"
        block.append(f"const i64 B = R*{n}, E = B + {n} < {v.size} ? B + {n} : {v.size};")
    w.nested(block, k.outer[1:], lambda inside: body(w, k, inside, low, high))
    return block


def _place(w: Writer, k: Kernel) -> str:
    """Where the value of the iteration waits."""
    s, p = k.postponed.waiting, k.postponed
    return f"{w.pointers[s.buffer]}[{w.index(s.index)} + P*{s.index.coefficient((k.outer + k.inner)[0]) * p.length}]"


def _compute(w: Writer, k: Kernel, block: Block, low: str, high: str) -> None:
    stores = [s for s in k.stages[0].stores if s is not k.postponed.store]
    w.places[k.postponed.waiting] = _place(w, k)
    w.vector_loop(block, k.inner[0], [s.value for s in stores], lambda: w.stores(stores), shared=None if k.outer else (low, high))
    del w.places[k.postponed.waiting]


def _write(w: Writer, k: Kernel, block: Block, low: str, high: str) -> None:
    s, i = k.postponed.store, f"i{k.inner[0].number}"
    block += [w.d.vector_pragma, f"for (i64 {i} = {low}; {i} < {high}; {i}++)",
              Block([f"{w.pointers[s.buffer]}[{w.index(s.index)}] = {_place(w, k)};"])]
