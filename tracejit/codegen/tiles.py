"""Memory that is read at other indices than it is written, by one kernel of blocks that run in any order and at once.

The loops are cut into tiles, one a block. A block reads and writes its own tile; what it reads beyond, other blocks may have
overwritten. So a launch before it saves the halo: along each loop the few neighbours of every border between two tiles. What
no iteration writes is read where it is.

    saved       [border, neighbour, place along the other loops], for each loop that is cut
    in a tile   steps in order; a step's values wait in shared memory until all threads have computed that step and those that
                read what they overwrite
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Iterable, Optional

from .index import Index, Var, disjoint
from .kernel import CannotLower, Expr, Store

THREADS = 512                # of a block
WARP = 32
FEWEST_TILES = 256           # that keep a device busy
SMALLEST, LARGEST = 1 << 13, 1 << 16       # iterations of a tile
SHARED_BYTES = 48 << 10      # for values that wait
PLENTY = 2 * THREADS         # iterations of a tile: of a larger one the halo alone is a reason for a still larger
EACH = (8, 4, 2, 1)          # iterations of a step that are one thread's
WORTH = 3                    # a saved element costs two loads and a store, a temporary one load and one store of every element


@dataclass(frozen=True)
class Axis:
    """A loop in tiles. An iteration reads what up to `behind` iterations before it and `ahead` after it write."""

    loop: Var
    tile: int
    behind: int
    ahead: int

    @property
    def tiles(self) -> int:
        return -(-self.loop.size // self.tile)

    @property
    def halo(self) -> int:
        """Neighbours of a border."""
        return self.behind + self.ahead

    @property
    def saved(self) -> int:
        """Of the loop's iterations."""
        return (self.tiles - 1) * self.halo


@dataclass(frozen=True, eq=False)
class Tiled:
    """A store to memory that the kernel reads at other indices. offsets: how many iterations away, by axis, what such a load reads
    is written. step: iterations of a tile, in order, that are computed at once; their values are stored `delay` steps later."""

    store: Store
    waiting: Store
    axes: tuple[Axis, ...]
    offsets: dict[Expr, tuple[int, ...]]
    step: int
    delay: int

    @property
    def tile(self) -> int:
        return math.prod(a.tile for a in self.axes)

    @property
    def steps(self) -> int:
        return -(-self.tile // self.step)

    def halo(self, a: Axis) -> int:
        """Elements that are saved along this axis."""
        return a.saved * math.prod(b.loop.size for b in self.axes if b is not a)

    @property
    def saved(self) -> int:
        """Bytes."""
        return sum(map(self.halo, self.axes)) * self.store.value.dtype.itemsize


def tiled(store: Store, waiting: Store, loads: Iterable[Expr], loops: list[Var]) -> Tiled:
    """Raises CannotLower if what is read is not written a fixed number of iterations away, or too far."""
    read = [e for e in loads if e.extra[0] == store.buffer and not disjoint(e.index, store.index)]
    offsets = {e: _offset(e.index, store.index, loops) for e in read}
    found = None if None in offsets.values() else _in_tiles(store, waiting, offsets, loops)
    if found is None:
        raise CannotLower("memory is read at another index than it is written, and not near by", store.position)
    return found


def _in_tiles(store: Store, waiting: Store, offsets: dict[Expr, tuple[int, ...]], loops: list[Var]) -> Optional[Tiled]:
    along = list(zip(*offsets.values()))
    reach = [(max(0, -min(steps)), max(0, *steps)) for steps in along]
    if not _apart(store.index, loops, [sum(r) for r in reach]):
        return None
    itemsize, size = store.value.dtype.itemsize, math.prod(v.size for v in loops)

    def fits(tile: list[int]) -> bool:
        most = LARGEST if math.prod(-(-v.size // n) for v, n in zip(loops, tile)) >= FEWEST_TILES else SMALLEST
        return math.prod(tile) <= most and _waits(tile, offsets.values(), itemsize) is not None
    tile = _tile(loops, [sum(r) for r in reach], fits)
    waits = _waits(tile, offsets.values(), itemsize)
    if waits is None:
        return None
    found = Tiled(store, waiting, tuple(Axis(v, n, *r) for v, n, r in zip(loops, tile, reach)), offsets, *waits)
    near = all(a.halo <= a.tile or a.tiles == 1 for a in found.axes)
    return found if near and WORTH * found.saved <= size * itemsize else None


def _offset(index: Index, written: Index, loops: list[Var]) -> Optional[tuple[int, ...]]:
    """How many iterations later, of each loop, what is read here is written, or would be."""
    if index.terms != written.terms or {a for a, _ in written.terms} != set(loops) or any(c < 0 for _, c in written.terms):
        return None
    left, found = index.constant - written.constant, {}
    for v, c in sorted(written.terms, key=lambda term: -term[1]):
        found[v] = (2 * left + c) // (2 * c)                   # the nearest
        left -= found[v] * c
    return None if left else tuple(found[v] for v in loops)


def _apart(written: Index, loops: list[Var], halos: list[int]) -> bool:
    """Has every iteration an element of its own, those beyond the ends of loops too that are read as if they were written?"""
    reach = 0
    for c, last in sorted((written.coefficient(v), v.size - 1 + halo) for v, halo in zip(loops, halos)):
        if c <= reach:
            return False
        reach += c * last
    return True


def _tile(loops: list[Var], halos: list[int], fits: Callable[[list[int]], bool]) -> list[int]:
    """Neighbours for a warp, and from there twice as many along the loop of the largest halo, as long as that fits; along
    others until a block has plenty to do."""
    tile, left = [1] * len(loops), WARP
    for n in reversed(range(len(loops))):
        tile[n] = min(loops[n].size, left)
        left = -(-left // tile[n])
    def longer(n: int) -> list[int]:
        return [*tile[:n], min(2 * tile[n], loops[n].size), *tile[n + 1:]]
    def gains(n: int) -> bool:
        return tile[n] < loops[n].size and (halos[n] > 0 or math.prod(tile) <= PLENTY) and fits(longer(n))
    while cut := [*filter(gains, range(len(loops)))]:
        tile = longer(max(cut, key=lambda n: halos[n] / tile[n]))
    return tile


def _waits(tile: list[int], offsets: Iterable[tuple[int, ...]], itemsize: int) -> Optional[tuple[int, int]]:
    """(iterations of a step, steps that values wait), if there is room for them."""
    behind = max(0, *(-sum(e * math.prod(tile[n + 1:]) for n, e in enumerate(steps)) for steps in offsets))
    whole = math.prod(tile)
    for each in EACH:
        step = THREADS * each
        delay = min(-(-behind // step), -(-whole // step) - 1)
        if (step < 2 * whole or each == 1) and (delay + 1) * step * itemsize <= SHARED_BYTES:
            return step, delay
    return None
