"""Reductions on CUDA that several threads or blocks share.

    column   a block takes neighbouring columns and walks down the rows with several workers a column, which meet in
             shared memory; too few columns for the device share their rows among blocks, as below
    whole    few and long rows: each stage is one launch whose blocks leave partial results, and one that combines them
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Iterable

from .c import Block, Writer
from .chunks import Chunk, chunked, width_of
from .cuda import Function, Parameter, dialect_of
from .cuda_online import online
from .cuda_rows import (
    KEPT_BYTES, MOST_THREADS, WARP, accumulator, finished, first, fold_all, folded, once, pass_of, read_again, reload_hazard, row_chunk,
    several, walk_pair)
from .cuda_schedules import THREADS, Lanes, function, heavy_operations, nothing, place
from .index import Var
from .kernel import Expr, Kernel, Reduction, Stage, below

MOST_SPLITS = 1024           # blocks that share a row
FILLED = 256                 # blocks that keep a device busy
HELD_BYTES = 64 << 10        # of columns, that a block keeps in registers
SHARED_BYTES = 32 << 10      # for what workers of a column exchange


# ------------------------------------------------------------ columns

@dataclass
class Columns:
    """across: chunks of columns of a block, one a thread; workers: threads of one chunk; splits: blocks of one chunk.
    kept: loads that stay in registers, by the stage that comes first."""

    lane: Var
    chunk: Chunk
    rest: list[Var]
    across: int
    workers: int
    splits: int
    kept: dict[Expr, int]

    @property
    def loops(self) -> list[Var]:
        return [*self.rest, self.chunk.u]

    @property
    def units(self) -> int:
        return math.prod(v.size for v in self.loops)

    @property
    def blocks(self) -> int:
        return -(-self.units // self.across)


def column(k: Kernel, vector: bool) -> list[Function]:
    w = Writer(k, dialect_of(k))
    c = _columns(k, vector)
    k.bytes_again = read_again(k, set(k.inner), c.kept)
    if c.splits > 1:
        return _split(w, k, _ColumnParts(w, k, c))
    body = _column_head(w, c)
    body += [f"tj_vec<{w.d.memory[e.dtype]}, {c.chunk.width}> k{e.number}[{-(-k.inner_size // c.workers)}];" for e in c.kept]
    for n, stage in enumerate(k.stages):
        _column_stage(w, k, n, stage, body, c)
        for r in stage.reductions:
            body.append(f"{w.d.register[r.dtype]} r{r.number}[{c.chunk.width}];")
            body += _across_workers(w, r, c, f"r{r.number}[q] = v;")
        if stage.after:
            if reload_hazard(k, stage):
                body.append("__syncthreads();")
            after, lanes = Block(), Lanes(w, c.chunk)
            lanes.columns = True
            lanes.write(after, [s.value for s in stage.after], stage.after, nothing)
            body += ["if (live && y == 0) {", after, "}"]
    return [function(k, w, body, c.blocks, c.across * c.workers)]


def _columns(k: Kernel, vector: bool) -> Columns:
    def stride(v: Var) -> int:
        strides = (abs(e.index.coefficient(v)) for e in k.expressions if e.op == "load")
        return min((s for s in strides if s), default=1 << 62)
    lane = min(k.outer, key=stride)
    rest = [v for v in k.outer if v != lane]
    width = width_of(k, lane, heavy_operations(k), ragged=False) if vector else 1
    words = sum(max(r.dtype.itemsize, 4) for stage in k.stages for r in stage.reductions)
    while width > 1 and width * words * THREADS > SHARED_BYTES:
        width //= 2
    chunk = chunked(k, lane, width)
    units = math.prod(v.size for v in rest) * chunk.u.size
    across = 1
    while across < min(WARP, units):
        across *= 2
    workers = 1
    while workers * across < THREADS and workers * 2 <= k.inner_size:
        workers *= 2
    blocks = -(-units // across)
    splits = max(1, min(FILLED // blocks, k.inner_size // (8 * workers)))
    kept = {e: stages[0] for e, stages in several(k, set(k.inner)).items() if not e.args}
    held = workers
    while held * across < MOST_THREADS and not _held(k, kept, width, held, across) and 2 * held * across * width * words <= SHARED_BYTES:
        held *= 2
    if kept and _held(k, kept, width, held, across):
        return Columns(lane, chunk, rest, across, held, 1, kept)
    return Columns(lane, chunk, rest, across, workers, splits, {})


def _held(k: Kernel, kept: Iterable[Expr], width: int, workers: int, across: int) -> bool:
    """Can the workers of a column keep its chunks? Halves are floats in registers."""
    each = -(-k.inner_size // workers) * width * sum(max(e.dtype.itemsize, 4) for e in kept)
    return each <= min(KEPT_BYTES, HELD_BYTES // (workers * across))


def _column_head(w: Writer, c: Columns, block: str = "blockIdx.x", split: str = "") -> Block:
    t = w.d.index_type
    body = Block([f"const {t} x = threadIdx.x % {c.across}, y = threadIdx.x / {c.across};",
                  f"const {t} unit = ({t})({block}) * {c.across} + x;", f"const bool live = unit < {c.units};"])
    if split:
        body.append(f"const {t} s = {split};")
    place(w, body, "(live ? unit : 0)", c.loops)
    return body


def _column_stage(w: Writer, k: Kernel, n: int, stage: Stage, body: Block, c: Columns) -> None:
    """w0, w1, ...: what this thread's rows fold to, by lane."""
    width, t, total = c.chunk.width, w.d.index_type, c.workers * c.splits
    for r in stage.reductions:
        body.append(f"{accumulator(w, r)} w{r.number}[{width}];")
        body += ["#pragma unroll", f"for (int q = 0; q < {width}; q++) w{r.number}[q] = {first(w, r)};"]
    if stage.roots:
        inside, lanes = Block(), Lanes(w, c.chunk)
        lanes.columns = True
        place(w, inside, "e", k.inner)
        lanes.kept = {e: f"k{e.number}[c]" for e, s in c.kept.items() if s < n}
        lanes.filled = {e: f"k{e.number}[c]" for e, s in c.kept.items() if s == n}
        lanes.write(inside, stage.roots, stage.stores, lambda: fold_all(w, stage.reductions, "[q]"))
        start = f"s * {c.workers} + y" if c.splits > 1 else "y"
        walk = ["#pragma unroll 4", f"for ({t} e = {start}; e < {k.inner_size}; e += {total}) {{"]
        if c.kept:
            walk = ["#pragma unroll", f"for (int c = 0; c < {-(-k.inner_size // c.workers)}; c++) {{"]
            inside[:0] = [f"const {t} e = c * {c.workers} + y;", f"if (e >= {k.inner_size}) continue;"]
        body += ["if (live) {", Block([*walk, inside, "}"]), "}"]


def _across_workers(w: Writer, r: Reduction, c: Columns, use: str) -> Block:
    """`use` v, what all workers of a column have: shared memory is laid out so that neighbours write to neighbouring banks."""
    kind, width, n = accumulator(w, r), c.chunk.width, r.number
    step = c.across
    each = ["#pragma unroll", f"for (int q = 0; q < {width}; q++)"]
    next_worker = folded(w, r, "v", f"({kind})s{n}[(m * {width} + q) * {step} + x]")
    return Block([
        f"__shared__ {kind} s{n}[{c.across * c.workers * width}];",
        *each, Block([f"s{n}[(y * {width} + q) * {step} + x] = w{n}[q];"]), "__syncthreads();",
        each[0], each[1] + " {",
        Block([f"{kind} v = s{n}[q * {step} + x];", "#pragma unroll 4", f"for (int m = 1; m < {c.workers}; m++) {next_worker}", use]), "}"])


# ------------------------------------------------------------ rows that blocks share

class _RowParts:
    """Blocks of THREADS threads take chunks of one row in turns."""

    def __init__(self, w: Writer, k: Kernel, vector: bool) -> None:
        self.w, self.k = w, k
        self.chunk, self.loops = row_chunk(k, vector)
        self.chunks = math.prod(v.size for v in self.loops)
        self.splits = max(1, min(-(-self.chunks // (4 * THREADS)), MOST_SPLITS, max(4 * FILLED // max(k.outer_size, 1), 1)))
        self.order = k.outer
        self.blocks, self.threads = self.splits * k.outer_size, THREADS
        pair = online(k)
        self.pair = pass_of(w, k, pair, Lanes(w, self.chunk)) if pair is not None else None

    def head(self) -> Block:
        t = self.w.d.index_type
        body = Block([f"const {t} row = blockIdx.x / {self.splits}, s = blockIdx.x % {self.splits}, t = threadIdx.x;"])
        place(self.w, body, "row", self.k.outer)
        return body

    def known(self, r: Reduction) -> list[str]:
        return [finished(self.w, r, f"done{r.number}[row]")]

    @property
    def walk(self) -> str:
        return f"for ({self.w.d.index_type} e = s * {THREADS} + t; e < {self.chunks}; e += {THREADS * self.splits})"

    def count(self) -> list[str]:
        """n: elements of a row that block s reads."""
        step, width, t = THREADS * self.splits, self.chunk.width, self.w.d.index_type
        left = f"const {t} left = {self.chunks % step} - s * {THREADS};"
        more = f"(left < 0 ? 0 : left < {THREADS} ? left : {THREADS})"
        return [left, f"const {self.pair.type} n = ({self.chunks // step * THREADS} + {more}) * {width};"]

    def first_two(self, body: Block) -> None:
        """Both stages of the pair, of this block's part of a row by itself."""
        w, p = self.w, self.pair
        walk_pair(p, body, self.walk, "e", self.loops)
        for r in self.k.stages[0].reductions:
            body.append(finished(w, r, self._of_block(r, body)))
            self._part(r, f"r{r.number}", body)
        body += [*self.count(), *p.between("n")]
        self._part(p.pair.second, self._of_block(p.pair.second, body), body)

    def _of_block(self, r: Reduction, body: Block) -> str:
        body.append(f"__shared__ {accumulator(self.w, r)} s{r.number}[{THREADS // WARP}];")
        return f"tj_block<tj_{r.kind}, {THREADS}>(w{r.number}, s{r.number})"

    def _part(self, r: Reduction, value: str, body: Block) -> None:
        n = r.number
        body.append(f"const {accumulator(self.w, r)} v{n} = {value};")
        body.append(f"if (t == 0) part{n}[s * {self.k.outer_size} + row] = v{n};")

    def stage(self, stage: Stage, body: Block) -> None:
        w = self.w
        body += [f"{accumulator(w, r)} w{r.number} = {first(w, r)};" for r in stage.reductions]
        inside, lanes = Block(), Lanes(w, self.chunk)
        place(w, inside, "e", self.loops)
        lanes.write(inside, stage.roots, stage.stores, lambda: fold_all(w, stage.reductions))
        body += ["#pragma unroll 4", f"{self.walk} {{", inside, "}"]
        for r in stage.reductions:
            self._part(r, self._of_block(r, body), body)


class _ColumnParts:
    """Blocks take rows of their columns in turns."""

    pair = None

    def __init__(self, w: Writer, k: Kernel, c: Columns) -> None:
        self.w, self.k, self.c = w, k, c
        self.splits = c.splits
        self.order = [*c.loops, *([c.chunk.q] if c.chunk.q is not None else [])]
        self.blocks, self.threads = c.blocks * c.splits, c.across * c.workers

    def head(self) -> Block:
        return _column_head(self.w, self.c, f"blockIdx.x % {self.c.blocks}", f"blockIdx.x / {self.c.blocks}")

    def known(self, r: Reduction) -> list[str]:
        n, width = r.number, self.c.chunk.width
        return [f"{self.w.d.register[r.dtype]} r{n}[{width}];", "#pragma unroll",
                f"for (int q = 0; q < {width}; q++) r{n}[q] = done{n}[(live ? unit : 0) * {width} + q];"]

    def stage(self, stage: Stage, body: Block) -> None:
        _column_stage(self.w, self.k, 0, stage, body, self.c)
        for r in stage.reductions:
            n, width = r.number, self.c.chunk.width
            place_of_part = f"part{n}[s * {self.k.outer_size} + unit * {width} + q]"
            body += _across_workers(self.w, r, self.c, f"if (live && y == 0) {place_of_part} = v;")


def whole(k: Kernel, vector: bool) -> list[Function]:
    w = Writer(k, dialect_of(k))
    parts = _RowParts(w, k, vector)
    k.bytes_again = read_again(k, {*parts.loops, *parts.chunk.moving}, together=1 if parts.pair is None else 2)
    return _split(w, k, parts)


def _split(w: Writer, k: Kernel, parts: _RowParts | _ColumnParts) -> list[Function]:
    """Two launches a stage; partial results lie in part[split][row], results in done[row]."""
    made = []
    scratch = {r.number: (Parameter(accumulator(w, r), f"part{r.number}", False, None, parts.splits * k.outer_size),
                          Parameter(accumulator(w, r), f"done{r.number}", False, None, k.outer_size))
               for stage in k.stages for r in stage.reductions}
    every = [p for pair in scratch.values() for p in pair]
    def launch(body: Block) -> Function:
        return function(k, w, body, parts.blocks, parts.threads, scratch=every)
    if parts.pair is not None:
        body = parts.head()
        parts.first_two(body)
        made += [launch(body), _combined(w, k, k.stages[:2], parts, every)]
    for stage in k.stages[2 if parts.pair is not None else 0:]:
        if stage.roots:
            body = parts.head()
            for line in _known(parts.known, stage.roots):
                body.append(line)
            parts.stage(stage, body)
            made.append(launch(body))
        if stage.reductions or stage.after:
            made.append(_combined(w, k, [stage], parts, every))
    return made


def _known(lines: Callable[[Reduction], list[str]], roots: list[Expr]) -> list[str]:
    """What earlier stages reduced to, by name."""
    needed = {e.extra.number: e.extra for root in roots for e in below(root) if e.op == "reduced"}
    return [line for _, r in sorted(needed.items()) for line in lines(r)]


def _combined(w: Writer, k: Kernel, stages: list[Stage], parts: _RowParts | _ColumnParts, scratch: list[Parameter]) -> Function:
    """A warp for each row, or a thread where rows are many."""
    t, rows = w.d.index_type, k.outer_size
    lanes = WARP if rows < THREADS else 1
    body = Block([f"const {t} row = ({t})blockIdx.x * {THREADS // lanes} + threadIdx.x / {lanes}, t = threadIdx.x % {lanes};",
                  f"if (row >= {rows}) return;"])
    place(w, body, "row", parts.order)
    reductions = [r for stage in stages for r in stage.reductions]
    for r in reductions:
        n = r.number
        body.append(f"{accumulator(w, r)} w{n} = {first(w, r)};")
        body += [f"for ({t} s = t; s < {parts.splits}; s += {lanes}) {{", Block(_with_part(w, r, parts, rows)), "}"]
        whole_row = f"tj_across<tj_{r.kind}, {lanes}>(w{n}, 0xffffffffu)"
        if parts.pair is not None and r is parts.pair.pair.second:
            body.append(f"const {accumulator(w, r)} v{n} = {whole_row};")
            whole_row = parts.pair.after(f"v{n}")
        body.append(finished(w, r, whole_row))
        body.append(f"if (t == 0) done{n}[row] = r{n};")
    after = [s for stage in stages for s in stage.after]
    if after:
        def earlier(r: Reduction) -> list[str]:
            return [] if r in reductions else [finished(w, r, f"done{r.number}[row]")]
        body += _known(earlier, [s.value for s in after])
        once(w, body, after, "t == 0")
    return function(k, w, body, -(-rows * lanes // THREADS), THREADS, scratch=scratch)


def _with_part(w: Writer, r: Reduction, parts: _RowParts | _ColumnParts, rows: int) -> list[str]:
    """Adds what block s found of a row."""
    def partial(r: Reduction) -> str:
        return f"({accumulator(w, r)})part{r.number}[s * {rows} + row]"
    p = parts.pair
    if p is None or r is not p.pair.second:
        return [folded(w, r, f"w{r.number}", partial(r))]
    count = parts.count() if p.pair.mean is not None else []
    lines = [f"const {p.type} first = {partial(p.pair.first)}, second = {partial(r)};"]
    return [*count, *lines, *p.of_part("first", "second", "n")]
