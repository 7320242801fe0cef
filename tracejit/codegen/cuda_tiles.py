"""Memory that a CUDA kernel reads at other indices than it writes: see `tiles`.

    first    saves what blocks read of other blocks' tiles
    then     each block computes its tile step by step, and writes a step as soon as no later one reads what it overwrites
"""
from __future__ import annotations

import math

from .c import Block, Writer
from .cuda import Function, Parameter, dialect_of
from .cuda_schedules import THREADS as FIRST_THREADS
from .cuda_schedules import function, heavy_operations, place
from .index import Index, Var, flatten, variable
from .kernel import Expr, Kernel
from .tiles import THREADS, Axis, Tiled

RESIDENT = 2                 # blocks that registers must leave room for: half of what a multiprocessor holds


class _Loop:
    """An axis in C: tile `block`, place `local` in it. border, neighbour: of the place in the halo. halo: what it is saved in."""

    def __init__(self, n: int, axis: Axis) -> None:
        self.axis, self.loop, self.halo = axis, axis.loop, f"halo{n}"
        self.block, self.local = Var(4_000_000 + 4 * n, axis.tiles), Var(4_000_001 + 4 * n, axis.tile)
        self.border, self.neighbour = Var(4_000_002 + 4 * n, axis.tiles - 1), Var(4_000_003 + 4 * n, axis.halo)


def in_tiles(k: Kernel, _: bool) -> list[Function]:
    w, p = Writer(k, dialect_of(k)), k.postponed
    loops = [_Loop(n, a) for n, a in enumerate(p.axes)]
    element = w.d.memory[p.store.value.dtype]
    scratch = [Parameter(element, v.halo, False, None, p.halo(v.axis)) for v in loops if v.axis.saved]
    return [*([_first(w, k, loops, scratch)] if scratch else []), _then(w, k, loops, scratch)]


# ------------------------------------------------------------ the halo

def _first(w: Writer, k: Kernel, loops: list[_Loop], scratch: list[Parameter]) -> Function:
    p, body, first, t = k.postponed, Block(), 0, w.d.index_type
    for v in (v for v in loops if v.axis.saved):
        end = first + -(-p.halo(v.axis) // FIRST_THREADS)
        inside = Block()
        place(w, inside, "o", [v.border, v.neighbour, *(u.loop for u in loops if u is not v)])
        at = variable(v.border) * v.axis.tile + variable(v.neighbour) + (v.axis.tile - v.axis.behind)
        inside += [f"const {t} i{v.loop.number} = {w.index(at)};",
                   f"if (i{v.loop.number} < {v.loop.size}) {v.halo}[o] = {w.pointers[p.store.buffer]}[{w.index(p.store.index)}];"]
        body += [f"{'else ' if first else ''}if (blockIdx.x < {end}) {{",
                 Block([f"const {t} o = ({t}){f'(blockIdx.x - {first})' if first else 'blockIdx.x'} * {FIRST_THREADS} + threadIdx.x;",
                        f"if (o < {p.halo(v.axis)}) {{", inside, "}"]), "}"]
        first = end
    return function(k, w, body, first, FIRST_THREADS, scratch=scratch)


def _source(w: Writer, p: Tiled, loops: list[_Loop], e: Expr) -> str:
    """The element that a load reads: in the halo if another block writes it."""
    text = f"{w.pointers[e.extra[0]]} + ({w.index(e.index)})"
    steps = p.offsets[e]
    written = " && ".join(f"i{v.loop.number} {_beyond(n, v.loop.size, inside=True)}" for v, n in zip(loops, steps) if n)
    for k, (v, n) in enumerate(zip(loops, steps)):
        if n and v.axis.saved:
            beyond = f"i{v.local.number} {_beyond(n, v.axis.tile)}"
            text = f"({beyond} && {written} ? {v.halo} + ({w.index(_saved(loops, steps, k))}) : {text})"
    return f"{text}[0]"


def _beyond(n: int, size: int, inside: bool = False) -> str:
    """Of an iteration: is the one n later beyond this many?"""
    if n < 0:
        return f"{'>=' if inside else '<'} {-n}"
    return f"{'<' if inside else '>='} {size - n}"


def _saved(loops: list[_Loop], steps: tuple[int, ...], k: int) -> Index:
    """Where the halo of axis k has what an iteration reads so many steps on."""
    v, n = loops[k], steps[k]
    border = variable(v.block) * v.axis.halo + (v.axis.behind + n - (v.axis.halo if n < 0 else v.axis.tile)) + variable(v.local)
    others = [(variable(u.loop) + m, u.loop.size) for j, (u, m) in enumerate(zip(loops, steps)) if j != k]
    along = flatten(tuple(i for i, _ in others), tuple(size for _, size in others))
    return border * math.prod(size for _, size in others) + along


# ------------------------------------------------------------ the tiles

def _then(w: Writer, k: Kernel, loops: list[_Loop], scratch: list[Parameter]) -> Function:
    p = k.postponed
    body = Block([f"__shared__ {w.d.memory[p.store.value.dtype]} waiting[{(p.delay + 1) * p.step}];"])
    place(w, body, "blockIdx.x", [v.block for v in loops if v.axis.tiles > 1])
    compute, write = (_iterations(w, p, loops, step) for step in ("s", f"(s - {p.delay})"))
    slot = f"waiting[{{}} % {p.delay + 1} * {p.step} + n]" if p.delay else "waiting[n]"
    w.sources = {e: _source(w, p, loops, e) for e, steps in p.offsets.items()
                 if any(n and v.axis.saved for n, v in zip(steps, loops))}
    w.places = {p.waiting: slot.format("s")}
    w.straight(compute, lambda: w.stores([s for s in k.stages[0].stores if s is not p.store]))
    write.append(f"{w.pointers[p.store.buffer]}[{w.index(p.store.index)}] = {slot.format(f'(s - {p.delay})')};")
    unroll = f"#pragma unroll {1 if heavy_operations(k) else 4}"
    each = [unroll, f"for (int m = 0; m < {p.step // THREADS}; m++) {{"]
    inside = Block([f"if (s < {p.steps}) {{", Block([*each, compute, "}"]), "}", "__syncthreads();",
                    f"if (s >= {p.delay}) {{", Block([*each, write, "}"]), "}"])
    body += ["#pragma unroll 1", f"for (int s = 0; s < {p.steps + p.delay}; s++) {{", inside, "}"]
    tiles = math.prod(v.axis.tiles for v in loops)
    return function(k, w, body, tiles, THREADS, RESIDENT, scratch)


def _iterations(w: Writer, p: Tiled, loops: list[_Loop], step: str) -> Block:
    """The loop variables at iteration n of a step; nothing more if there is none."""
    t, block = w.d.index_type, Block([f"const int n = m * {THREADS} + threadIdx.x;"])
    place(w, block, f"{step} * {p.step} + n", [v.local for v in loops])
    for v in loops:
        start = f"i{v.block.number}*{v.axis.tile} + " if v.axis.tiles > 1 else ""
        block.append(f"const {t} i{v.loop.number} = {start}i{v.local.number};")
    ends = [f"i{v.loop.number} >= {v.loop.size}" for v in loops if v.loop.size % v.axis.tile]
    if p.tile % p.step:
        ends.append(f"i{loops[0].local.number} >= {loops[0].axis.tile}")
    return Block([*block, f"if ({' || '.join(ends)}) continue;"]) if ends else block
