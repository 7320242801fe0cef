"""Groups of calls on their way to become regions: what may join one, and what it then holds."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Iterable, Optional

from ..ir.memory import overlaps
from ..ir.proxy import TensorProxy, contiguous_stride
from ..ir.trace import BoundSymbol
from .spaces import (RowMap, Space, broadcast_stride, collapse, is_costly, is_elementwise, is_reduction, is_scan, row_strides)

WHOLE = 1 << 15              # elements: a reduction of more to a few rows is parallel inside a row
FEW_ROWS = 4
ROW_GATHERS = ("gather", "nll_loss_gather")
SMALL = 1 << 12              # elements: below this a launch costs more than the work, so strangers share a kernel


@dataclass(frozen=True)
class Rows:
    """Where a value with one element a row lies: its row map over the full shape, over the rows, and its start."""

    full: RowMap
    outer: RowMap
    offset: int


@dataclass(eq=False)
class Group:
    """Calls that run together. `executor` is None for a call that runs alone."""

    executor: Any = None
    calls: list[int] = field(default_factory=list)
    space: Optional[Space] = None
    made: set[TensorProxy] = field(default_factory=set)
    touched: set[TensorProxy] = field(default_factory=set)     # roots of what is read or made
    rows: dict[TensorProxy, Rows] = field(default_factory=dict)
    late: set[TensorProxy] = field(default_factory=set)        # full-size values that depend on a reduction
    costly: bool = False
    written: dict[int, list[TensorProxy]] = field(default_factory=dict)          # by storage
    reads: dict[int, set[TensorProxy]] = field(default_factory=dict)             # memory read, by storage
    origins: dict[TensorProxy, frozenset[TensorProxy]] = field(default_factory=dict)   # value -> memory it is made from
    postponed: Optional[int] = None      # a copy_ that takes effect when all else has been read
    spread: set[TensorProxy] = field(default_factory=set)      # memory that is read neither index for index nor row by row

    @property
    def whole(self) -> bool:
        s = self.space
        few_and_long = s.reduced is not None and s.numel > WHOLE and s.rows < FEW_ROWS
        return few_and_long and not getattr(self.executor, "passes_over_long_rows", False)


class Membership:
    """Decides who may join a group, from what is known about the whole trace."""

    def __init__(self, calls: tuple[BoundSymbol, ...], root: Callable[[TensorProxy], TensorProxy], memory: frozenset[int],
                 space: Callable[[int], Space],
                 needed_by: Callable[[Iterable[TensorProxy], Collection[int]], bool]) -> None:
        """needed_by(values, calls): does nobody but these calls need the values?"""
        self.calls, self.root, self.memory, self.space, self.needed_by = calls, root, memory, space, needed_by

    def join(self, g: Group, n: int, *, together: Collection[int] = ()) -> bool:
        """Put call n into g if it may; False, and g unchanged, if not. together: calls that all go into g, whether or not
        they share bytes."""
        b = self.calls[n]
        space = self.space(n)
        if not g.calls:
            wanted: Optional[Space] = space
        else:
            first = self.calls[g.calls[0]]
            if b.modes != first.modes or _device(b) != _device(first):
                return False
            wanted = self._space_with(g, n, space, together)
        if wanted is None:
            return False
        placed = self._place(g, b, space, wanted)
        spread = self._memory_with(g, b)
        if placed is None or spread is None:
            return False
        rows, late = placed
        g.space = wanted
        g.rows.update(rows)
        g.late.update(late)
        self._add(g, n, b, spread)
        return True

    def _add(self, g: Group, n: int, b: BoundSymbol, spread: set[TensorProxy]) -> None:
        g.calls.append(n)
        made = [o for o in b.tensor_outputs if o not in b.tensor_args]
        g.made.update(made)
        g.touched.update(self.root(a) for a in b.tensor_args)
        g.touched.update(made)
        g.costly |= is_costly(b)
        g.spread |= spread
        origins: frozenset[TensorProxy] = frozenset()
        for a in b.reads:
            if a.storage in self.memory:
                g.reads.setdefault(a.storage, set()).add(a)
            origins |= self._origins(g, a)
        if origins:
            g.origins.update((o, origins) for o in made)
        for w in b.written:
            g.written.setdefault(w.storage, []).append(w)

    # ------------------------------------------------------------ space

    def _space_with(self, g: Group, n: int, s: Space, together: Collection[int]) -> Optional[Space]:
        """The space of g once a call over s has joined; None when they do not go together."""
        b, have = self.calls[n], g.space
        if not together and not self._shares(g, b, s):
            return None
        if have.reduced is None:
            if s.numel == have.numel:
                return s if s.reduced is not None else have
            if s.numel < have.numel:
                again = s.reduced is None and not (is_costly(b) and s.numel > 1) and not b.written and self.needed_by(b.tensor_outputs, together)
                return have if again else None
            grows = not b.written and not g.written and not (g.costly and have.numel > 1)
            return s if grows and self.needed_by(g.made, {*g.calls, n}) else None
        if s.reduced is not None:
            return have if s.runs == have.runs else None
        return have if s.numel in (have.numel, have.rows) else None

    def _shares(self, g: Group, b: BoundSymbol, s: Space) -> bool:
        small = s.numel <= SMALL and s.shape == g.space.shape and s.reduced == g.space.reduced
        return small or any(self.root(a) in g.touched for a in b.tensor_args)

    # ------------------------------------------------------------ rows

    def _place(self, g: Group, b: BoundSymbol, s: Space, wanted: Space) -> Optional[tuple[dict, set]]:
        """What becomes of b's results: (values with one element a row, full-size values that depend on one);
        None when b reads what another row computes."""
        made = [o for o in b.tensor_outputs if o not in b.tensor_args]
        depends = [a for a in b.reads if self.root(a) in g.rows or self.root(a) in g.late]
        full = s.reduced is not None or s.numel == wanted.numel
        if depends and not (is_reduction(b) or is_scan(b) or is_elementwise(b) or _picks_from_row(b, wanted)):
            return None
        if not all(self._aligned(g, b, a, s, full) for a in depends):
            return None
        if wanted.reduced is None:
            return {}, set()
        if is_scan(b):
            return {}, set(made)
        if s.reduced is None and full:
            return {}, set(made) if depends else set()
        rows = {o: _rows_of(wanted, s, o) for o in made}
        return None if None in rows.values() else (rows, set())

    def _aligned(self, g: Group, b: BoundSymbol, a: TensorProxy, s: Space, full: bool) -> bool:
        """Does b read the value under `a` at its own row?"""
        value = self.root(a)
        if a.dtype != value.dtype or a.offset != value.offset:
            return False
        if value in g.late:
            shape = a.shape if _picks_from_row(b, g.space) else s.shape
            stride = broadcast_stride(a, shape)
            return (full or _picks_from_row(b, g.space)) and stride is not None and (
                a.numel == value.numel and collapse(shape, stride) == collapse(value.shape, value.stride))
        stride = broadcast_stride(a, s.shape)
        if stride is None or s.reduced is not None and a.numel != s.numel or full and g.whole:
            return False
        rows = g.rows[value]
        return collapse(s.shape, stride) == (rows.full if full else rows.outer)

    # ------------------------------------------------------------ memory

    def _origins(self, g: Group, a: TensorProxy) -> frozenset[TensorProxy]:
        """The memory that the value `a` was read from, in g."""
        return frozenset((a,)) if a.storage in self.memory else g.origins.get(self.root(a), frozenset())

    def _memory_with(self, g: Group, b: BoundSymbol) -> Optional[set[TensorProxy]]:
        """Memory that b makes be read in other rows than those that read it; None when that memory, or what b writes, forbids it."""
        spread: set[TensorProxy] = set()
        read = {r for r in b.reads if r.storage in self.memory}
        for a in b.reads:
            if not self._stays_in_row(g, b, a):
                spread |= self._origins(g, a)
        for r in spread | read:
            for w in g.written.get(r.storage, ()):
                if overlaps(r.bytes, w.bytes) and (r in spread or not r.same_view(w)):
                    return None
        for w in b.written:
            if w.bytes.overlaps_itself:
                return None
            for r in (*g.reads.get(w.storage, ()), *(r for r in read if r.storage == w.storage)):
                if overlaps(r.bytes, w.bytes) and (not r.same_view(w) or r in g.spread or r in spread):
                    return None
        return spread


    def _stays_in_row(self, g: Group, b: BoundSymbol, a: TensorProxy) -> bool:
        """Does each iteration need `a` at its own index or, made by or for a reduction, in its own row?

        `_place` has seen to it that rows meet rows."""
        reduced = is_reduction(b) and a is b.tensor_args[0]
        if (a.storage in self.memory or self.root(a) is a) and (reduced or _index_for_index(b, a)):
            return True
        if self.root(a) not in g.rows or not is_elementwise(b):
            return False
        shape, rows = (b.written or b.tensor_outputs)[0].shape, g.rows[self.root(a)]
        return all(shape == r.shape or shape == a.shape and _lies_in(r.shape, a) == rows.full for r in self._origins(g, a))


def _lies_in(shape: tuple[int, ...], a: TensorProxy) -> Optional[RowMap]:
    stride = broadcast_stride(a, shape)
    return None if stride is None else collapse(shape, stride)


def _index_for_index(b: BoundSymbol, a: TensorProxy) -> bool:
    """Each element of what b makes needs the element of `a` at its index alone, without broadcasting."""
    target = b.written[0] if b.written else b.tensor_outputs[0] if b.tensor_outputs else None
    return target is not None and target.shape == a.shape and is_elementwise(b)


def _picks_from_row(b: BoundSymbol, space: Space) -> bool:
    """A gather of one element out of each row: `gather(logits, 1, target)`."""
    if b.sym.packet not in ROW_GATHERS or space.reduced is None or len(space.reduced) != 1:
        return False
    source, dim, index = b.args[:3]
    rank, reduced = len(space.shape), next(iter(space.reduced))
    return (source.shape == space.shape and rank and dim % rank == reduced
            and index.shape == tuple(1 if d == reduced else n for d, n in enumerate(space.shape)))


def _rows_of(space: Space, s: Space, value: TensorProxy) -> Optional[Rows]:
    """The row maps of a value with one element a row; None when its logical order is not told by its strides."""
    outer = [d for d in range(len(space.shape)) if d not in space.reduced]
    sizes = tuple(space.shape[d] for d in outer)
    if s.reduced is not None:
        over = row_strides(s, value)
        here = collapse(tuple(n for d, n in enumerate(s.shape) if d not in s.reduced),
                        tuple(t for d, t in enumerate(over) if d not in s.reduced))
        return Rows(collapse(s.shape, over), here, value.offset)
    here = collapse(value.shape, value.stride)
    kept = [(n, t) for n, t in zip(value.shape, value.stride) if n != 1]
    if tuple(n for n, _ in kept) == tuple(n for n in sizes if n != 1):
        steps = iter([t for _, t in kept])
        strides = tuple(0 if n == 1 else next(steps) for n in sizes)
    elif here in ((), ((math.prod(sizes), 1),)):
        strides = contiguous_stride(sizes)
    else:
        return None
    over = dict(zip(outer, strides))
    return Rows(collapse(space.shape, tuple(over.get(d, 0) for d in range(len(space.shape)))), here, value.offset)


def _device(b: BoundSymbol) -> Any:
    return next((p.device for p in (*b.tensor_outputs, *b.tensor_args)), None)
