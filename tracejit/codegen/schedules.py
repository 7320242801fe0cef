"""The four loop structures of a kernel. Each writes a function over a range [lo, hi) of units that threads share.

    pointwise   rows of a vector loop (or one shared vector loop); a transpose goes by tiles
    row         one unit is a row: a stage is one pass over it, what passes share is kept in a buffer
    column      one unit is a block of columns: vectors of columns walk down the reduced rows
    whole       few rows, each shared: every stage writes partial results per thread, then combines them
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable

from .c import Block, Writer
from .dialect import CLAUSE, FIRST, FOLD, Dialect, finished, first_value, loses_nan
from .index import Var
from .kernel import HEAVY, Expr, Kernel, Reduction, Stage, below
from .postponed import postponed_blocks
from .streaming import Range, by_chunks, fetch_next_row

COLUMNS, ROW_BLOCK = 1024, 16  # columns walked at once; rows summed in the element type before they are added in double
COLUMN_UNIT = 64              # columns that one thread takes at least
SQUARE, TILES = (128, 128), {4: (512, 16)}     # of transposes, by an element's bytes: (read in a row, written in a row)
RUN = 256                    # elements folded in the element type, lane by lane, before they are added in double
SHARED_ROW = 16384


@dataclass
class Body:
    """The written function: `units` of work, and stages that run one after another (whole) with their combination."""

    blocks: list[Block]
    units: int
    combine: list[Block]
    slots: int = 0                       # partial results per thread


def accumulator_type(w: Writer, r: Reduction) -> str:
    return "int" if r.kind in ("any", "all") else w.d.register[r.dtype]


def wide_type(w: Writer, r: Reduction) -> str:
    return "double" if r.kind in ("sum", "prod") and r.dtype.is_floating_point else accumulator_type(w, r)


def partial_type(w: Writer, r: Reduction) -> str:
    costly = any(e.op in HEAVY for e in below(r.value))
    return accumulator_type(w, r) if costly else wide_type(w, r)


def write(kernel: Kernel, dialect: Dialect) -> tuple[Writer, Body]:
    w = Writer(kernel, dialect)
    return w, _SCHEDULES[kernel.schedule](w, kernel)


# ------------------------------------------------------------ pointwise

def _pointwise(w: Writer, k: Kernel) -> Body:
    stage, block = k.stages[0], Block()
    stores = stage.stores + stage.after
    roots = [s.value for s in stores]
    if k.postponed:
        return Body(*postponed_blocks(w, k), [])
    if k.tile:
        return _tiled(w, k)
    if not k.inner:
        w.rows(block, [], lambda inside: w.straight(inside, lambda: w.stores(stores)))
        return Body([block], 1, [])
    v, n = k.inner[0], k.outer_size

    def loop(inside: Block, shared: Range) -> None:
        w.vector_loop(inside, v, roots, lambda: w.stores(stores), shared=shared)
    if n < 8 and v.size > SHARED_ROW or not k.outer:
        w.nested(block, k.outer, lambda inside: by_chunks(w, k, inside, v, stores, ("lo", "hi"), loop))
        return Body([block], v.size, [])
    w.rows(block, k.outer, lambda inside: by_chunks(w, k, inside, v, stores, None, loop))
    return Body([block], n, [])


def _tiled(w: Writer, k: Kernel) -> Body:
    """a: the variable that the loads walk; j: the one that the stores walk."""
    a, j = k.tile
    stores = k.stages[0].stores
    roots = [s.value for s in stores]
    rest = [v for v in k.outer if v != a]
    turned = [e for e in k.expressions if e.op == "load" and e.index.coefficient(a) == 1
              and abs(e.index.coefficient(j)) > 1 and not e.args and any(e in below(r) for r in roots)]
    length, width = TILES.get(max(e.dtype.itemsize for e in turned), SQUARE)
    length, width = min(length, -(-a.size // 16) * 16), min(width, -(-j.size // 16) * 16)
    tiles = [Var(1_000_000, -(-a.size // length)), Var(1_000_001, -(-j.size // width))]

    def tile(inside: Block) -> None:
        for letter, v, t, n in (("A", a, tiles[0], length), ("J", j, tiles[1], width)):
            most = str(n) if v.size % n == 0 else f"{v.size} - {letter} < {n} ? {v.size} - {letter} : {n}"
            inside.append(f"const i64 {letter} = i{t.number}*{n}, n{letter} = {most};")
        for e in turned:
            w.special[e] = w.d.load(e.dtype, f"T{e.number}[p][q]")
            inside += _turned(w, e, a, j, length, width)
        body = Block([f"const i64 i{a.number} = A + p;"])
        w.at_loop({j})
        inner = Block([f"const i64 i{j.number} = J + q;"])
        w.scopes = [({}, body), ({}, inner)]
        w.stores(stores)
        w.scopes = []
        body += [w.d.vector_pragma, "for (i64 q = 0; q < nJ; q++) {", inner, "}"]
        inside += ["for (i64 p = 0; p < nA; p++) {", body, "}"]
    block = Block()
    w.rows(block, [*rest, *tiles], tile)
    return Body([block], math.prod(v.size for v in [*rest, *tiles]), [])


def _turned(w: Writer, e: Expr, a: Var, j: Var, length: int, width: int) -> list[str]:
    """T[p][q]: the tile of a load as it lies in memory, transposed. Blocks of 16 x 16 go by shuffles."""
    at = f"{w.pointers[e.extra[0]]}[{w.index(e.extra[1])}]"
    lines = [f"{w.d.memory[e.dtype]} T{e.number}[{length}][{width}] __attribute__((aligned(64)));",
             "for (int Q = 0; Q < nJ; Q += 16) for (int P = 0; P < nA; P += 16) {"]
    where = "const i64 p = {}, q = {}, " + f"i{a.number} = A + p, i{j.number} = J + q;"
    each = Block(["for (int y = Q; y < Q + 16 && y < nJ; y++) for (int x = P; x < P + 16 && x < nA; x++) {",
                  Block([where.format("x", "y"), f"T{e.number}[p][q] = {at};"]), "}"])
    turn = w.d.transposes.get(e.dtype.itemsize)
    if turn is not None:
        whole = f"{turn}(&{at}, {e.extra[1].coefficient(j)}, &T{e.number}[p][q], {width});"
        each = Block(["if (Q + 16 <= nJ && P + 16 <= nA) {", Block([where.format("P", "Q"), whole]), "} else", each])
    return [*lines, each, "}"]


# ------------------------------------------------------------ reductions of a row

def _declare_wide(w: Writer, block: Block, reductions: list[Reduction]) -> None:
    for r in reductions:
        block.append(f"{wide_type(w, r)} w{r.number} = {first_value(r, w.d.register[r.dtype])};"
                     + (f" int f{r.number} = 0;" if loses_nan(r) else ""))


def _fold(w: Writer, r: Reduction, into: str, flag: str) -> None:
    value = w.name(r.value)
    block = w.scopes[-1][1]
    block.append(FOLD[r.kind].format(into, value))
    if loses_nan(r):
        block.append(f"{flag} |= {value} != {value};")


def _pass(w: Writer, block: Block, stage: Stage, v: Var, extra: Callable[[], None], shared: Range = None,
          ahead: Callable[[Block, Range], None] = lambda block, part: None) -> None:
    """A vector loop that folds into the accumulators w. Costly floats are summed as floats for a run of elements, and
    from run to run in double; where an addition's latency is all that a loop costs, conversions are free.
    `ahead` writes what precedes each part of the loop."""
    if v.size > RUN and any(partial_type(w, r) != wide_type(w, r) for r in stage.reductions):
        low, high = shared or ("0", str(v.size))
        whole = shared is None and v.size % RUN == 0
        end = f"B + {RUN}" if whole else f"B + {RUN} < {high} ? B + {RUN} : {high}"
        run = Block([f"const i64 E = {end};"])
        ahead(run, ("B", "E"))
        _run(w, run, stage, v, extra, ("B", "E"))
        block += [f"for (i64 B = {low}; B < {high}; B += {RUN}) {{", run, "}"]
    else:
        ahead(block, shared)
        _run(w, block, stage, v, extra, shared)


def _run(w: Writer, block: Block, stage: Stage, v: Var, extra: Callable[[], None], shared: Range) -> None:
    """One vector loop that folds into partials p, which are then folded into the accumulators."""
    reductions = stage.reductions
    clause = ""
    for r in reductions:
        block.append(f"{partial_type(w, r)} p{r.number} = {first_value(r, w.d.register[r.dtype])};"
                     + (f" int n{r.number} = 0;" if loses_nan(r) else ""))
        clause += f" reduction({CLAUSE[r.kind]}:p{r.number})" + (f" reduction(|:n{r.number})" if loses_nan(r) else "")

    def body() -> None:
        for r in reductions:
            _fold(w, r, f"p{r.number}", f"n{r.number}")
        extra()
        w.stores(stage.stores)
    w.vector_loop(block, v, stage.roots, body, clause, shared)
    for r in reductions:
        flag = f" f{r.number} |= n{r.number};" if loses_nan(r) else ""
        block.append(FOLD[r.kind].format(f"w{r.number}", f"p{r.number}") + flag)


def _running(stage: Stage) -> list[Expr]:
    """What a stage adds up, or multiplies, element by element."""
    return sorted({e for r in stage.roots for e in below(r) if e.op == "running"}, key=lambda e: e.number)


def _row_stage(w: Writer, k: Kernel, n: int, block: Block) -> None:
    stage = k.stages[n]
    filled = [e for e, s in k.kept.items() if s == n]
    _declare_wide(w, block, stage.reductions)
    declared = {e for earlier in k.stages[:n] for e in _running(earlier)}
    for e in _running(stage):
        block.append(f"{'' if e in declared else w.d.register[e.dtype] + ' '}run{e.number} = {FIRST[e.extra]};")
    if not k.inner:
        def once() -> None:
            for r in stage.reductions:
                _fold(w, r, f"w{r.number}", f"f{r.number}")
            w.stores(stage.stores)
        inside = Block()
        w.straight(inside, once)
        block += ["{", inside, "}"]
    elif stage.roots:
        v = k.inner[-1]
        w.special = {e: f"row{e.number}[i{v.number}]" for e, s in k.kept.items() if s < n}

        def keep() -> None:
            for e in filled:
                w.scopes[-1][1].append(f"row{e.number}[i{v.number}] = {w.name(e)};")

        def passes(inside: Block) -> None:
            inside += ["{", Block(), "}"]
            by_chunks(w, k, inside[-2], v, stage.stores, None,
                      lambda deep, shared: _pass(w, deep, stage, v, keep, shared,
                                                 lambda inside, part: fetch_next_row(w, k, n, inside, part)))
        w.nested(block, k.inner[:-1], passes)
        w.special = {}
    for r in stage.reductions:
        block.append(f"const {w.d.register[r.dtype]} r{r.number} = {finished(r, f'w{r.number}', f'f{r.number}')};")


def _row(w: Writer, k: Kernel) -> Body:
    block = Block()

    def row(inside: Block) -> None:
        for e in k.kept:
            inside.append(f"{w.d.register[e.dtype]} row{e.number}[{k.inner_size}] __attribute__((aligned(64)));")
        for n, stage in enumerate(k.stages):
            _row_stage(w, k, n, inside)
            if stage.after:
                after = Block()
                w.straight(after, lambda: w.stores(stage.after))
                inside += ["{", after, "}"]
    w.rows(block, k.outer, row)
    return Body([block], k.outer_size, [])


# ------------------------------------------------------------ columns

def _column_lane(k: Kernel) -> Var:
    def stride(v: Var) -> int:
        loads = [abs(e.index.coefficient(v)) for e in k.expressions if e.op == "load" and e.index.coefficient(v)]
        return min(loads, default=1 << 62)
    return min(k.outer, key=stride)


def _column(w: Writer, k: Kernel) -> Body:
    """Threads share units of columns. One walks neighbouring units together: long rows are read fastest."""
    lane = _column_lane(k)
    rest = [v for v in k.outer if v != lane]
    unit = min(COLUMN_UNIT, -(-lane.size // 32) * 16)
    units, block, inside = -(-lane.size // unit), Block(), Block()
    together = max(1, min(COLUMNS // max(1, *(len(s.reductions) for s in k.stages)) // unit, units))
    step = units
    for v in reversed(rest):
        inside.append(f"const i64 i{v.number} = o/{step}" + (f" % {v.size};" if v is not rest[0] else ";"))
        step *= v.size
    inside += [f"const i64 u = o % {units}, left = hi - o < {units} - u ? hi - o : {units} - u, Q = u*{unit};",
               f"const i64 taken = left < {together} ? left : {together};",
               f"const i64 nq = {lane.size} - Q < taken*{unit} ? {lane.size} - Q : taken*{unit};"]
    for stage in k.stages:
        _column_stage(w, k, stage, inside, lane, together * unit)
    block += ["for (i64 o = lo; o < hi;) {", inside, Block(["o += taken;"]), "}"]
    return Body([block], step, [])


def _lanes(w: Writer, block: Block, lane: Var, body: Callable[[], None]) -> None:
    loop = Block([f"const i64 i{lane.number} = Q + q;"])
    w.at_loop({lane}, lanes=True)
    w.scopes = [({}, block), ({}, loop)]
    body()
    w.scopes = []
    block += [w.d.vector_pragma, "for (i64 q = 0; q < nq; q++) {", loop, "}"]


def _column_stage(w: Writer, k: Kernel, stage: Stage, block: Block, lane: Var, wide: int) -> None:
    each = "for (i64 q = 0; q < nq; q++)"
    for r in stage.reductions:
        first = first_value(r, w.d.register[r.dtype])
        flag = f" int f{r.number}[{wide}];" if loses_nan(r) else ""
        block.append(f"{wide_type(w, r)} w{r.number}[{wide}]; {accumulator_type(w, r)} p{r.number}[{wide}]; "
                     f"{w.d.register[r.dtype]} r{r.number}[{wide}];{flag}")
        block.append(f"{each} {{ w{r.number}[q] = {first};{f' f{r.number}[q] = 0;' if loses_nan(r) else ''} }}")
    if stage.roots:
        v = k.inner[0]
        block.append(f"for (i64 G = 0; G < {v.size}; G += {ROW_BLOCK}) {{")
        group = Block([f"const i64 H = G + {ROW_BLOCK} < {v.size} ? G + {ROW_BLOCK} : {v.size};"])
        group += [f"{each} p{r.number}[q] = {first_value(r, w.d.register[r.dtype])};" for r in stage.reductions]
        down = Block()

        def body() -> None:
            for r in stage.reductions:
                _fold(w, r, f"p{r.number}[q]", f"f{r.number}[q]")
            w.stores(stage.stores)
        w.nested(down, k.inner[1:], lambda inside: _lanes(w, inside, lane, body))
        group += [f"for (i64 i{v.number} = G; i{v.number} < H; i{v.number}++) {{", down, "}"]
        group += [f"{each} {FOLD[r.kind].format(f'w{r.number}[q]', f'p{r.number}[q]')}" for r in stage.reductions]
        block += [group, "}"]
    for r in stage.reductions:
        block.append(f"{each} r{r.number}[q] = {finished(r, f'w{r.number}[q]', f'f{r.number}[q]')};")
    if stage.after:
        after = Block()
        _lanes(w, after, lane, lambda: w.stores(stage.after))
        block += ["{", after, "}"]


# ------------------------------------------------------------ rows that threads share

def _slot_type(w: Writer, r: Reduction) -> str:
    return "double" if r.dtype.is_floating_point else "i64"


def _whole(w: Writer, k: Kernel) -> Body:
    """Partial results lie in part[thread][row][reduction], results in done[row][reduction], as doubles or i64."""
    count = max(1, sum(len(s.reductions) for s in k.stages))
    v, above = k.inner[-1], k.inner[:-1]
    bodies, combines = [], []
    for stage in k.stages:
        block = Block()

        def row(inside: Block, stage: Stage = stage) -> None:
            _results(w, k, stage, inside, count)
            _declare_wide(w, inside, stage.reductions)
            if above:
                def deepest(deep: Block) -> None:
                    deep += ["{", Block(), "}"]
                    _pass(w, deep[-2], stage, v, _nothing)
                w.rows(inside, above, deepest)
            else:
                _pass(w, inside, stage, v, _nothing, ("lo", "hi"))
            for r in stage.reductions:
                slot = f"(({_slot_type(w, r)}*)part)[R*{count} + {r.number}]"
                inside.append(f"{slot} = {finished(r, f'w{r.number}', f'f{r.number}')};")
        if stage.roots:
            _whole_rows(w, k, block, row)
        bodies.append(block)
        combines.append(_combine(w, k, stage, count))
    return Body(bodies, math.prod(x.size for x in above) if above else v.size, combines, count * max(k.outer_size, 1))


def _nothing() -> None:
    """Nothing more happens in the loop."""


def _whole_rows(w: Writer, k: Kernel, block: Block, body: Callable[[Block], None]) -> None:
    block.append("i64 R = 0;")

    def row(inside: Block) -> None:
        inside += ["{", Block(), "}", "R++;"]
        body(inside[-3])
    w.nested(block, k.outer, row)


def _results(w: Writer, k: Kernel, stage: Stage, block: Block, count: int, after: bool = False) -> None:
    """What earlier stages reduced to, by name."""
    roots = [s.value for s in stage.after] if after else stage.roots
    needed = {e.extra.number: e.extra for root in roots for e in below(root) if e.op == "reduced"}
    for n, r in sorted(needed.items()):
        block.append(f"const {w.d.register[r.dtype]} r{n} = (({_slot_type(w, r)}*)done)[R*{count} + {n}];")


def _combine(w: Writer, k: Kernel, stage: Stage, count: int) -> Block:
    block, slots = Block(), count * max(k.outer_size, 1)

    def row(inside: Block) -> None:
        for r in stage.reductions:
            t, n = _slot_type(w, r), r.number
            inside.append(f"{t} w{n} = {first_value(r, w.d.register[r.dtype])}; int f{n} = 0;")
            check = f" f{n} |= x != x;" if loses_nan(r) else ""
            inside.append(f"for (int t = 0; t < nt; t++) {{ const {t} x = (({t}*)part)[t*{slots} + R*{count} + {n}]; "
                          f"{FOLD[r.kind].format(f'w{n}', 'x')}{check} }}")
            inside.append(f"(({t}*)done)[R*{count} + {n}] = {finished(r, f'w{n}', f'f{n}')};")
        if stage.after:
            after = Block()
            _results(w, k, stage, after, count, after=True)
            w.straight(after, lambda: w.stores(stage.after))
            inside += ["{", after, "}"]
    if stage.reductions or stage.after:
        _whole_rows(w, k, block, row)
    return block


_SCHEDULES = {"pointwise": _pointwise, "row": _row, "column": _column, "whole": _whole, "scan": _row}
