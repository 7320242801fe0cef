"""What a thread does in a CUDA kernel: chunks of neighbours, pointwise kernels and transposes. Reductions are in `cuda_rows`.

    pointwise   a grid-stride loop over chunks: vector loads, one value a lane, vector stores
    tiled       loads that walk another dim than the stores go through a padded square in shared memory
"""
from __future__ import annotations

import math
import re
from typing import Callable, Iterable

import torch

from .c import Block, Writer
from .chunks import Chunk, chunked, is_vector, stores_as_vector, width_of
from .cuda import Function, Parameter, dialect_of, parameters_of
from .index import Var
from .kernel import HEAVY, Expr, Kernel, Store, below

THREADS = 256
RESIDENT = 4                 # blocks of 256 threads that registers must leave room for: half of what a multiprocessor holds
FEW_THREADS, MANY_THREADS = 512, 768       # of a multiprocessor: 128 registers for each, or 80
MOST_BLOCKS = 1 << 16
TILE, TILE_ROWS = 32, 8


def function(k: Kernel, w: Writer, body: Block, grid: int, block: int, resident: int = 0,
             scratch: Iterable[Parameter] = ()) -> Function:
    """`body` as a `__global__` function. resident: blocks that a multiprocessor must be able to hold. Of 0 as many as leave
    each thread the registers that reductions need: ptxas spills some for still more blocks where it is not told."""
    wide = any(e.dtype is torch.float64 for e in k.expressions)
    resident = resident or max((FEW_THREADS if wide else MANY_THREADS) // block, 1)
    text = _short("\n".join(Block([body]).text()))
    return Function(f"{block}, {resident}", text, (*parameters_of(k, w.pointers, w.d), *scratch), grid, block)


def _short(text: str) -> str:
    """Loop variables that passes made have long numbers: they get the next short ones."""
    taken = {32, 64} | {int(n) for n in re.findall(r"\bi(\d{1,3})\b", text)}
    free = (n for n in range(1000) if n not in taken)
    names = {long: f"i{next(free)}" for long in dict.fromkeys(re.findall(r"\bi\d{4,}\b", text))}
    return re.sub(r"\bi\d{4,}\b", lambda m: names[m[0]], text)


def place(w: Writer, block: Block, at: str, loops: list[Var]) -> None:
    """The loop variables at a linear position, the last fastest."""
    t = w.d.index_type
    if not loops:
        return
    if len(loops) == 1:
        block.append(f"const {t} i{loops[0].number} = {at};")
        return
    block.append(f"{'u32' if t == 'int' else 'u64'} at = {at};")
    for v in reversed(loops[1:]):
        block.append(f"const {t} i{v.number} = at % {v.size}; at /= {v.size};")
    block.append(f"const {t} i{loops[0].number} = at;")


def heavy_operations(k: Kernel) -> int:
    return sum(e.op in HEAVY for e in k.expressions)


# ------------------------------------------------------------ chunks

class Lanes:
    """Writes what a thread does with one chunk: vector loads, a loop over lanes, vector stores.

    kept: what is in registers already, by the C text of its vector; filled: where loads of this chunk are to be kept.
    """

    def __init__(self, w: Writer, chunk: Chunk) -> None:
        self.w, self.chunk = w, chunk
        self.kept: dict[Expr, str] = {}
        self.filled: dict[Expr, str] = {}
        self.bound: dict[Expr, str] = {}                       # values that have a C name already
        self.columns = False                                   # reductions are arrays over lanes

    def write(self, block: Block, roots: list[Expr], stores: list[Store], fold: Callable[[], None]) -> None:
        """`fold` writes what else happens at each lane."""
        w, names = self.w, {}
        w.at_loop(self.chunk.moving, self.columns)
        w.special, w.places = dict(self.bound), {}
        w.scopes = [(names, block)]
        for e in sorted({e for r in roots for e in below(r) if e.op == "load"}, key=lambda e: e.number):
            self._load(block, e)
        vectors = [s for s in stores if stores_as_vector(self.chunk, s)]
        for n, s in enumerate(vectors):
            w.places[s] = f"y{n}.e[q]"
            block.append(f"tj_vec<{self.memory(s.value)}, {self.chunk.width}> y{n};")
        lane = Block()
        w.scopes = [(names, block), ({}, lane)]
        fold()
        w.stores(stores)
        self.loop(block, lane)
        for n, s in enumerate(vectors):
            at = w.index(self.chunk.starts(s.index))
            block.append(f"tj_write<{self.chunk.width}>({w.pointers[s.buffer]} + ({at}), y{n});")
        w.scopes, w.special, w.places = [], {}, {}

    def loop(self, block: Block, lane: Block) -> None:
        if not lane:
            return
        if self.chunk.q is not None:
            lane.insert(0, f"const {self.w.d.index_type} i{self.chunk.q.number} = q;")
            block += ["#pragma unroll", f"for (int q = 0; q < {self.chunk.width}; q++) {{", lane, "}"]
        else:
            block += ["{", Block(["const int q = 0;", *lane]), "}"]

    def memory(self, e: Expr) -> str:
        return self.w.d.memory[e.dtype]

    def _load(self, block: Block, e: Expr) -> None:
        w, width = self.w, self.chunk.width
        known = self.kept.get(e)
        if known is None:
            guard = e.extra[2]
            vector = is_vector(self.chunk, e, guard is not None and w.moves(guard))
            if not vector and e not in self.filled:
                return
            known = self.filled.get(e, f"x{e.number}")
            if e not in self.filled:
                block.append(f"tj_vec<{self.memory(e)}, {width}> {known}{' = {}' if guard is not None else ''};")
            if vector:
                at = w.index(self.chunk.starts(e.index))
                when = f"if ({w.name(guard)}) " if guard is not None else ""
                block.append(f"{when}{known} = tj_read<{width}>({w.pointers[e.extra[0]]} + ({at}));")
            else:
                self._fill(block, e, known)
        w.special[e] = w.d.load(e.dtype, f"{known}.e[q]")

    def _fill(self, block: Block, e: Expr, into: str) -> None:
        w, lane = self.w, Block()
        scopes, special = w.scopes, w.special
        w.scopes = [*scopes[-1:], ({}, lane)]
        at = f"{w.pointers[e.extra[0]]}[{w.index(e.index)}]"
        at = f"{w.name(e.extra[2])} ? {at} : 0" if e.extra[2] is not None else at
        lane.append(f"{into}.e[q] = {at};")
        w.scopes, w.special = scopes, special
        self.loop(block, lane)


def nothing() -> None:
    """Nothing more happens at a lane."""


# ------------------------------------------------------------ pointwise

def pointwise(k: Kernel, vector: bool) -> list[Function]:
    """vector: the buffers are aligned to 16 bytes."""
    w = Writer(k, dialect_of(k))
    if k.tile:
        return [_tiled(w, k)]
    stores = k.every_store
    roots = [s.value for s in stores]
    body = Block()
    if not k.inner:
        w.straight(body, lambda: w.stores(stores))
        return [function(k, w, Block(["if (blockIdx.x + threadIdx.x) return;", *body]), 1, 1)]
    v = k.inner[0]
    width = width_of(k, v, heavy_operations(k), not k.outer) if vector else 1
    rest = v.size % width
    chunk = chunked(k, v, width)
    lanes = Lanes(w, chunk)
    loops = [*k.outer, chunk.u]
    units = k.outer_size * (v.size // width)
    grid = min(-(-units // THREADS), MOST_BLOCKS)
    t = w.d.index_type
    place(w, body, "o", loops)
    lanes.write(body, roots, stores, nothing)
    start = f"({t})blockIdx.x * {THREADS} + threadIdx.x"
    if grid * THREADS >= units:
        out = Block([f"const {t} o = {start};", f"if (o < {units}) {{", body, "}"])
    else:
        out = Block(["#pragma unroll 1", f"for ({t} o = {start}; o < {units}; o += ({t})gridDim.x * {THREADS}) {{", body, "}"])
    if rest:                                                   # of a contiguous range: single elements of the last chunk
        tail = Block([f"const {t} i{chunk.u.number} = {units}, i{chunk.q.number} = threadIdx.x;"])
        w.at_loop(chunk.moving)
        w.scopes = [({}, tail)]
        w.stores(stores)
        w.scopes = []
        out += [f"if (blockIdx.x == 0 && threadIdx.x < {rest}) {{", tail, "}"]
    return [function(k, w, out, grid, THREADS, RESIDENT)]


# ------------------------------------------------------------ transposes

def _tiled(w: Writer, k: Kernel) -> Function:
    """a: the variable that the loads walk; j: the one that the stores walk. 32 x 8 threads turn 32 x 32 elements."""
    a, j = k.tile
    stores = k.stages[0].stores
    roots = [s.value for s in stores]
    rest = [v for v in k.outer if v != a]
    turned = [e for e in k.expressions if e.op == "load" and e.index.coefficient(a) == 1 and abs(e.index.coefficient(j)) > 1
              and not e.args and any(e in below(r) for r in roots)]
    across, down = Var(1_000_000, -(-j.size // TILE)), Var(1_000_001, -(-a.size // TILE))
    t, body = w.d.index_type, Block()
    body += [f"__shared__ {w.d.memory[e.dtype]} T{e.number}[{TILE * (TILE + 1)}];" for e in turned]
    body.append(f"const int p = threadIdx.x % {TILE}, r = threadIdx.x / {TILE};")
    place(w, body, "blockIdx.x", [*rest, down, across])
    load = Block([f"const {t} i{a.number} = i{down.number} * {TILE} + p, i{j.number} = i{across.number} * {TILE} + m;"])
    inside = f"if (i{a.number} < {a.size} && i{j.number} < {j.size})"
    for e in turned:
        load.append(f"{inside} T{e.number}[m * {TILE + 1} + p] = {w.pointers[e.extra[0]]}[{w.index(e.index)}];")
    each = f"for (int m = r; m < {TILE}; m += {TILE_ROWS}) {{"
    body += ["#pragma unroll", each, load, "}", "__syncthreads();"]
    for e in turned:
        w.special[e] = w.d.load(e.dtype, f"T{e.number}[p * {TILE + 1} + m]")
    store = Block([f"const {t} i{a.number} = i{down.number} * {TILE} + m, i{j.number} = i{across.number} * {TILE} + p;",
                   f"if (i{a.number} >= {a.size} || i{j.number} >= {j.size}) continue;"])
    w.at_loop({a, j})
    w.scopes = [({}, store)]
    w.stores(stores)
    w.scopes, w.special = [], {}
    body += ["#pragma unroll", each, store, "}"]
    grid = across.size * down.size * math.prod(v.size for v in rest)
    return function(k, w, body, grid, TILE * TILE_ROWS, RESIDENT)
