"""Reductions of rows on CUDA: a group of lanes, or a whole block, takes one row.

What several stages load stays in registers when it fits; a row too long for that is read again by each stage. Results of a
stage are r0, r1, ...; they are the same in every thread that goes on with the row.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Container, Mapping, Sequence

import torch

from .c import Block, Writer
from .chunks import Chunk, chunked, width_of
from .cuda import Function, dialect_of
from .cuda_online import Online, Pass, online
from .cuda_schedules import Lanes, function, heavy_operations, place
from .index import Var
from .kernel import Expr, Kernel, Reduction, Stage, Store, below, variables

WARP = 32
KEPT_BYTES = 128             # of a row, that each thread of a block keeps in registers
MOST_THREADS = 1024


def accumulator(w: Writer, r: Reduction) -> str:
    """Shuffles exchange words: what is smaller is folded as int."""
    kind = w.d.register[r.dtype]
    return kind if kind in ("float", "double", "i64") else "int"


def first(w: Writer, r: Reduction) -> str:
    if r.kind in ("sum", "any"):
        return "0"
    if r.kind in ("prod", "all"):
        return "1"
    if r.dtype.is_floating_point:
        return w.d.literal(float("-inf" if r.kind == "max" else "inf"), r.dtype)
    if r.dtype is torch.bool:
        return "0" if r.kind == "max" else "1"
    info = torch.iinfo(r.dtype)
    return w.d.literal(info.min if r.kind == "max" else info.max, r.dtype)


def folded(w: Writer, r: Reduction, into: str, value: str) -> str:
    return f"{into} = tj_{r.kind}::fold<{accumulator(w, r)}>({into}, {value});"


def finished(w: Writer, r: Reduction, value: str) -> str:
    return f"const {w.d.register[r.dtype]} r{r.number} = {value};"


def reload_hazard(k: Kernel, stage: Stage) -> bool:
    """Does what is stored once a row overwrite what the kernel loads?"""
    loaded = {e.extra[0] for e in k.expressions if e.op == "load"}
    return any(s.buffer in loaded for s in stage.after)


# ------------------------------------------------------------ rows

@dataclass
class Team:
    """The threads of one row: `lanes` neighbours of a warp, or a block. chunks: of the row; each: what a thread takes."""

    lanes: int
    chunks: int

    @property
    def each(self) -> int:
        return -(-self.chunks // self.lanes)

    @property
    def rows(self) -> int:
        """Of a block."""
        return max(128 // self.lanes, 1) if self.lanes <= WARP else 1

    @property
    def threads(self) -> int:
        return self.lanes * self.rows


def row(k: Kernel, vector: bool) -> list[Function]:
    w = Writer(k, dialect_of(k))
    chunk, loops = row_chunk(k, vector)
    chunks = math.prod(v.size for v in loops)
    kept = _kept(k, chunk, loops)
    bytes_of_chunk = chunk.width * sum(e.dtype.itemsize for e in kept)
    team = _team(chunks, bytes_of_chunk or chunk.width * 4)
    pair = None
    if team.each * bytes_of_chunk > KEPT_BYTES:
        kept, pair = {}, online(k) if team.lanes > WARP else None
    k.bytes_again = read_again(k, {*loops, *chunk.moving}, kept, 2 if pair is not None else 1)
    body = Block()
    t = w.d.index_type
    if team.lanes <= WARP:
        body.append(f"const {t} row = ({t})blockIdx.x * {team.rows} + threadIdx.x / {team.lanes}, t = threadIdx.x % {team.lanes};")
        body.append(f"if (row >= {k.outer_size}) return;")
        body.append(f"const u32 mask = {_mask(team.lanes)};")
    else:
        body.append(f"const {t} row = blockIdx.x, t = threadIdx.x;")
    place(w, body, "row", k.outer)
    lanes = Lanes(w, chunk)
    body += [f"tj_vec<{lanes.memory(e)}, {chunk.width}> k{e.number}[{team.each}];" for e in kept]
    if pair is not None:
        _row_pair(pass_of(w, k, pair, lanes), body, team, loops)
    for n, stage in enumerate(k.stages[2:] if pair is not None else k.stages, 2 if pair is not None else 0):
        _row_stage(w, k, n, stage, body, lanes, team, loops, kept)
    grid = -(-k.outer_size // team.rows)
    return [function(k, w, body, grid, team.threads)]


def row_chunk(k: Kernel, vector: bool) -> tuple[Chunk, list[Var]]:
    """Chunks of the innermost reduced loop, and the loops over all chunks of a row."""
    if not k.inner:
        one = Var(3_000_000, 1)
        return Chunk(one, None, 1), [one]
    v = k.inner[-1]
    chunk = chunked(k, v, width_of(k, v, heavy_operations(k), ragged=False) if vector else 1)
    return chunk, [*k.inner[:-1], chunk.u]


def _kept(k: Kernel, chunk: Chunk, loops: list[Var]) -> dict[Expr, int]:
    """Loads that vary along the row and that several stages need, by the stage that comes first."""
    return {e: stages[0] for e, stages in several(k, {*loops, *chunk.moving}).items() if not e.args}


def several(k: Kernel, walked: set[Var]) -> dict[Expr, list[int]]:
    """Loads that change as `walked` do and that several stages need, with those stages."""
    used: dict[Expr, list[int]] = {}
    for n, stage in enumerate(k.stages):
        for e in _loads(stage.roots):
            used.setdefault(e, []).append(n)
    return {e: stages for e, stages in sorted(used.items(), key=lambda item: item[0].number)
            if len(stages) > 1 and variables(e) & walked}


def read_again(k: Kernel, walked: set[Var], kept: Container[Expr] = (), together: int = 1) -> int:
    """Bytes that later stages read anew. walked: variables of a row; kept: in registers; together: first stages that are one pass."""
    found = 0
    for e, stages in several(k, walked).items():
        passes = len({max(n, together - 1) for n in stages})
        found += (passes - 1) * math.prod(v.size for v in variables(e)) * e.dtype.itemsize if e not in kept else 0
    return found


def _loads(roots: list[Expr]) -> set[Expr]:
    return {e for r in roots for e in below(r) if e.op == "load"}


def _team(chunks: int, nbytes: int) -> Team:
    """nbytes: what a chunk occupies in registers."""
    if chunks * nbytes <= WARP * KEPT_BYTES or chunks <= WARP:
        lanes = 1
        while lanes < min(chunks, WARP) and (lanes < WARP):
            lanes *= 2
        return Team(lanes, chunks)
    threads = 64
    while threads < MOST_THREADS and -(-chunks // threads) * nbytes > KEPT_BYTES // 2:
        threads *= 2
    return Team(threads, chunks)


def _mask(lanes: int) -> str:
    return "0xffffffffu" if lanes == WARP else f"0x{(1 << lanes) - 1:x}u << (threadIdx.x % 32 / {lanes} * {lanes})"


def _row_stage(w: Writer, k: Kernel, n: int, stage: Stage, body: Block, lanes: Lanes, team: Team, loops: list[Var],
               kept: dict[Expr, int]) -> None:
    body += [f"{accumulator(w, r)} w{r.number} = {first(w, r)};" for r in stage.reductions]
    if stage.roots:
        lanes.kept = {e: f"k{e.number}[c]" for e, s in kept.items() if s < n}
        lanes.filled = {e: f"k{e.number}[c]" for e, s in kept.items() if s == n}
        inside = Block()
        if team.each * team.lanes != team.chunks:
            inside.append(f"if (c * {team.lanes} + t >= {team.chunks}) continue;")
        place(w, inside, f"c * {team.lanes} + t", loops)
        lanes.write(inside, stage.roots, stage.stores, lambda: fold_all(w, stage.reductions))
        walk = f"for ({w.d.index_type} c = 0; c < {team.each}; c++) {{"
        body += ["#pragma unroll" if kept else "#pragma unroll 4", walk, inside, "}"]
    for r in stage.reductions:
        if team.lanes <= WARP:
            body.append(finished(w, r, f"tj_across<tj_{r.kind}, {team.lanes}>(w{r.number}, mask)"))
        else:
            body.append(finished(w, r, _of_block(w, r, body, team)))
    _row_after(w, k, stage, body, team)


def _row_after(w: Writer, k: Kernel, stage: Stage, body: Block, team: Team) -> None:
    if stage.after:
        if reload_hazard(k, stage):
            body.append("__syncwarp(mask);" if team.lanes <= WARP else "__syncthreads();")
        once(w, body, stage.after, "t == 0")


def _of_block(w: Writer, r: Reduction, body: Block, team: Team) -> str:
    body.append(f"__shared__ {accumulator(w, r)} s{r.number}[{team.threads // WARP}];")
    return f"tj_block<tj_{r.kind}, {team.threads}>(w{r.number}, s{r.number})"


def pass_of(w: Writer, k: Kernel, pair: Online, lanes: Lanes) -> Pass:
    shared = _loads(k.stages[0].roots) & _loads(k.stages[1].roots)
    return Pass(w, k, pair, lanes, sorted(shared, key=lambda e: e.number))


def walk_pair(p: Pass, body: Block, loop: str, at: str, loops: list[Var], skip: Sequence[str] = ()) -> None:
    """What a thread folds of the first two stages of a row, in one pass: chunks `at`, in a C loop with that head."""
    w = p.w
    body += [f"{accumulator(w, r)} w{r.number} = {first(w, r)};" for stage in p.k.stages[:2] for r in stage.reductions]
    body += p.before()
    inside = Block(skip)
    place(w, inside, at, loops)
    p.chunk(inside, lambda reductions, where: lambda: fold_all(w, reductions, where=where))
    body += ["#pragma unroll 2", f"{loop} {{", inside, "}"]


def _row_pair(p: Pass, body: Block, team: Team, loops: list[Var]) -> None:
    """The first two stages of a row that a block reads, in one pass."""
    w, stages = p.w, p.k.stages[:2]
    skip = [f"if (c * {team.lanes} + t >= {team.chunks}) continue;"] if team.each * team.lanes != team.chunks else []
    walk_pair(p, body, f"for ({w.d.index_type} c = 0; c < {team.each}; c++)", f"c * {team.lanes} + t", loops, skip)
    body += [finished(w, r, _of_block(w, r, body, team)) for r in stages[0].reductions]
    body += p.between(p.row_size)
    second = _of_block(w, p.pair.second, body, team)
    body.append(f"const {accumulator(w, p.pair.second)} p{p.b} = {second};")
    body.append(finished(w, p.pair.second, p.after(f"p{p.b}")))
    for stage in stages:
        _row_after(w, p.k, stage, body, team)


def fold_all(w: Writer, reductions: list[Reduction], lane: str = "", where: Mapping[int, str] = MappingProxyType({})) -> None:
    """Into w0, w1, ..., or where `where` says."""
    for r in reductions:
        value = w.name(r.value)
        w.scopes[-1][1].append(folded(w, r, where.get(r.number, f"w{r.number}{lane}"), value))


def once(w: Writer, body: Block, stores: list[Store], when: str) -> None:
    after = Block()
    w.straight(after, lambda: w.stores(stores))
    body += [f"if ({when}) {{", after, "}"]
