"""Calls that share an iteration space -> Kernel.

1. evaluate the stores and reductions over the variables of the domain,
2. split variables where divisions remain, and evaluate again,
3. order loops by the strides of the stores, then of the loads, and merge neighbours that every access walks as one,
4. put reductions and stores into stages, and choose schedule, row buffers and tile.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Iterator, Optional

from ..ir.proxy import TensorProxy
from .calls import Call, Region
from .cost import count, weight
from .index import ZERO, Index, Quotient, Remainder, Var, atoms, combine, disjoint, flatten, unflatten, variable
from .kernel import Buffer, CannotLower, Expr, Kernel, Reduction, Stage, Store, below, closure, variables
from .ops import row_of
from .postponed import postponed
from .reductions import reduced_dims
from .tiles import tiled
from .values import Values, buffer_name

KEPT_BYTES = 256 << 10       # of row buffers: a share of the second-level cache
MOST_SPLITS = 4
RECURSION = 25               # calls whose expressions are made in one recursion
CHECKS = ("checked", "nonzero")
WORTH_KEEPING = 6            # operations; fewer are done again


@dataclass(frozen=True)
class Sharing:
    """With fewer rows than `few_rows` for its threads, a device shares rows of more than `long_row` elements among them.

    again: as few and long where a row is read once more when it is reduced: all of that is one kernel then, and its passes are
    launches. None: a second pass over a shared row is another kernel's.
    tiles: what is written and read at other indices is written tile by tile, each by threads that meet, else row by row.
    """

    few_rows: int = 8
    long_row: int = 1 << 15
    again: Optional[tuple[int, int]] = None
    tiles: bool = False


@dataclass(eq=False)
class Nest:
    """Calls that run in one kernel: the iteration space, and which of its dims are reduced."""

    shape: tuple[int, ...]
    reduced: Optional[tuple[int, ...]]
    calls: list[Call]
    split: bool = False                  # holds calls that did not lower with those before them
    sharing: Sharing = Sharing()

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        return math.prod(n for d, n in enumerate(self.shape) if d not in (self.reduced or ()))

    @property
    def ends_with_its_reductions(self) -> bool:
        """Its rows are so few and long that a second pass over them is another kernel's."""
        return self.sharing.again is None and self.shares_rows(True)

    def shares_rows(self, once: bool) -> bool:
        """once: are they read in one pass?"""
        few, long = (self.sharing.few_rows, self.sharing.long_row) if once or self.sharing.again is None else self.sharing.again
        return self.reduced is not None and self.rows < few and self.size // max(self.rows, 1) > long


Note = Callable[[Kernel, Values], None]


def lower(nest: Nest, region: Region, here: Callable[[Call], bool], wanted: Callable[[TensorProxy], bool],
          note: Optional[Note] = None) -> Kernel:
    """The kernel of a nest. `here`: is a call computed in this kernel? `wanted`: is a value needed outside it?

    note: told of the kernel and of the values that it was made from.
    """
    dims = [(Var(d, n), d in (nest.reduced or ())) for d, n in enumerate(nest.shape) if n != 1 or d in (nest.reduced or ())]
    for k in range(MOST_SPLITS):
        evaluation = _Evaluation(nest, region, here, wanted, dims, split=k > 0)
        cuts = evaluation.cuts()
        if not cuts:
            break
        dims = [part for v, r in dims for part in _cut(v, r, cuts, 100 * (1 + max(v.number for v, _ in dims)))]
    kernel = _Scheduler(evaluation).kernel()
    if note is not None:
        note(kernel, evaluation.values)
    return kernel


def _cut(v: Var, reduced: bool, cuts: dict[Var, int], first: int) -> list[tuple[Var, bool]]:
    if v not in cuts:
        return [(v, reduced)]
    n = cuts[v]
    return [(Var(first + 2 * v.number, v.size // n), reduced), (Var(first + 2 * v.number + 1, n), reduced)]


class _Evaluation:
    """Stores and reductions of a nest as expressions over its variables."""

    def __init__(self, nest: Nest, region: Region, here: Callable, wanted: Callable, dims: list[tuple[Var, bool]],
                 split: bool) -> None:
        self.nest, self.region, self.dims = nest, region, dims
        self.values = Values(region, here)
        self.stores: list[Store] = []
        self.waiting: Optional[Store] = None                   # of what a postponed copy_ writes
        self.reductions: list[Reduction] = []
        self.inner = {v for v, r in dims if r}
        self.row = flatten(tuple(variable(v) for v, r in dims if not r), tuple(v.size for v, r in dims if not r))
        self.full = flatten(tuple(variable(v) for v, _ in dims), tuple(v.size for v, _ in dims))
        whole = {v.number: v for v, _ in dims}
        self.direct = tuple(variable(whole[d]) if d in whole else ZERO for d in range(len(nest.shape))) if not split else None
        for k, call in enumerate(nest.calls):
            if k % RECURSION == 0 and not call.is_store and row_of(call).kind == "elementwise":
                self.values.read(call.out, self._index_of(call.out)[0], call)
            self._call(call, wanted)
        self._keep_checks()
        self.all = self._needed()

    def _needed(self) -> list[Expr]:
        return closure([s.value for s in self.stores] + [r.value for r in self.reductions])

    def _keep_checks(self) -> None:
        """What may raise is computed for every element, also where nobody reads it, or not all of it."""
        for call in self.nest.calls:
            if call.is_store or not call.bsym.sym.may_raise([a.dtype for a in call.tensors]):
                continue
            needed = set(self._needed())
            checks = [e for e in closure([self.values.read(call.out, self._index_of(call.out)[0], call)]) if e.op in CHECKS]
            if not needed.issuperset(checks):
                self._store(call.out, call.out, call)

    def _call(self, call: Call, wanted: Callable) -> None:
        if call.is_store:
            target, value = call.tensors
            maker = self.region.made(value.storage)
            if call.bsym.sym.postponed and maker is not None and self.values.here(maker):
                self._store(value, value, call)
                self.waiting = self.stores[-1]
            return self._store(target, value, call)
        if row_of(call).kind == "reduction":
            self._reduce(call)
        elif row_of(call).kind == "scan":
            self._scan(call)
        for o in call.bsym.tensor_outputs:
            if wanted(o):
                self._store(o, o, call)

    def _store(self, target: TensorProxy, value: TensorProxy, call: Call) -> None:
        x = self.values.x
        index, full = self._index_of(value)
        e = x.cast(self.values.read(value, index, call), target.dtype)
        self.stores.append(Store(buffer_name(target), self.values.address(target, index), e, full, call.position))

    def _index_of(self, value: TensorProxy) -> tuple[tuple[Index, ...], bool]:
        """The element of `value` at an iteration, or (False) at a row."""
        full = value.numel == self.nest.size and not self._is_row_value(value)
        if not full and value.numel != self.nest.rows:
            raise CannotLower(f"{value.name} lives on another iteration space", self.position)
        return (self._full_index(value.shape) if full else unflatten(self.row, value.shape)), full

    def _full_index(self, shape: tuple[int, ...]) -> tuple[Index, ...]:
        return self.direct if self.direct is not None and shape == self.nest.shape else unflatten(self.full, shape)

    def _is_row_value(self, value: TensorProxy) -> bool:
        maker = self.region.made(value.storage)
        return (self.nest.size == self.nest.rows and self.nest.reduced is not None and maker is not None
                and any(c is maker for c, _ in self.values.reductions))

    def _reduce(self, call: Call) -> None:
        p = call.tensors[0]
        dims, keepdim = reduced_dims(call)
        index = self._full_index(p.shape)
        row = tuple(i for d, i in enumerate(index) if d not in dims)
        mixed = any(i.varies_with(v) for i in row for v in self.inner) or any(
            isinstance(a, Var) and a not in self.inner for d in dims for a in atoms(index[d]))
        if mixed or p.numel != self.nest.size:
            raise CannotLower("a reduction over other dims than the kernel's", call.position)
        value = self.values.read(p, index, call)
        count = math.prod(p.shape[d] for d in dims)
        along = flatten(tuple(index[d] for d in dims), tuple(p.shape[d] for d in dims))
        x = self.values.x
        made = row_of(call).build(x, value, self._reduction, call, count, x.position(along))
        tensors = [k for k, o in enumerate(call.outputs) if isinstance(o, TensorProxy)]
        for k in tensors:
            e = x.rounded(x.cast(made[k], call.outputs[k].dtype))
            self.values.reductions[call, k] = (e, row, dims, keepdim)

    def _scan(self, call: Call) -> None:
        p, (dims, _) = call.tensors[0], reduced_dims(call)
        index = self._full_index(p.shape)
        along = {a for d in dims for a in atoms(index[d]) if isinstance(a, Var)}
        if along != {v for v in self.inner if v.size != 1} or len(along) > 1 or p.numel != self.nest.size:
            raise CannotLower("a scan along another dim than the kernel's", call.position)
        self.values.scans[call] = row_of(call).build(self.values.x, self.values.read(p, index, call), call), index

    def _reduction(self, kind: str, value: Expr) -> Expr:
        known = next((r for r in self.reductions if r.kind == kind and r.value is value), None)
        if known is None:
            known = Reduction(len(self.reductions), kind, value, value.dtype)
            self.reductions.append(known)
        return self.values.x.node("reduced", (), known.dtype, known)

    def indices(self) -> Iterator[Index]:
        yield from (s.index for s in self.stores)
        yield from (e.index for e in self.all if e.index is not None)

    def cuts(self) -> dict[Var, int]:
        """Variables that divisions cut into whole parts."""
        found: dict[Var, int] = {}
        for index in self.indices():
            for a in atoms(index):
                if isinstance(a, (Quotient, Remainder)) and not a.index.constant and len(a.index.terms) == 1:
                    (v, c), n = a.index.terms[0], a.divisor
                    if isinstance(v, Var) and c == 1 and 1 < n < v.size and v.size % n == 0:
                        found[v] = min(found.get(v, n), n)
        return found


class _Scheduler:
    def __init__(self, evaluation: _Evaluation) -> None:
        self.stores, self.reductions, self.nest = evaluation.stores, evaluation.reductions, evaluation.nest
        self.all, self.evaluation = evaluation.all, evaluation
        self.waiting = evaluation.waiting
        self.outer = self._merged([v for v, r in evaluation.dims if not r and v.size != 1])
        self.inner = self._merged([v for v, r in evaluation.dims if r and v.size != 1])
        self.loads = [e for e in self.all if e.op == "load"]
        self.depth: dict[Expr, int] = {}
        self.postponed: Optional[Store] = None

    # ------------------------------------------------------------ loops

    def _weight(self, v: Var) -> tuple[int, int]:
        """Large strides go outside: of the stores first, then of the loads."""
        stores = [abs(s.index.coefficient(v)) for s in self.stores if s.full]
        loads = max((abs(e.index.coefficient(v)) for e in self.all if e.op == "load"), default=0)
        return (max(stores) if stores else loads, loads)

    def _merged(self, loops: list[Var]) -> list[Var]:
        loops = sorted(loops, key=self._weight, reverse=True)
        first = 0 if self.waiting is None else len(loops) if self.nest.sharing.tiles else 1        # a postponed store is by rows
        k = first
        while k + 1 < len(loops):
            a, b = loops[k], loops[k + 1]
            if all(i.affine_in(a) and i.affine_in(b) and i.coefficient(a) == i.coefficient(b) * b.size
                   for i in self.evaluation.indices()):
                m = Var(10_000 + 100 * a.number + b.number, a.size * b.size)
                self._substitute(a, b, m)
                loops[k:k + 2] = [m]
                k = max(k - 1, first)
            else:
                k += 1
        return loops

    def _substitute(self, a: Var, b: Var, m: Var) -> None:
        def changed(index: Index) -> Index:
            return combine(index.constant, tuple((m if t == b else t, c) for t, c in index.terms if t != a))
        for s in self.stores:
            s.index = changed(s.index)
        for e in self.all:
            if e.op == "index":
                e.extra = changed(e.extra)
            elif e.op == "inside":
                e.extra = (changed(e.extra[0]), *e.extra[1:])
            elif e.op == "load":
                e.extra = (e.extra[0], changed(e.extra[1]), *e.extra[2:])

    # ------------------------------------------------------------ stages

    def kernel(self) -> Kernel:
        self._depths()
        for s in self.stores:
            s.stage = self.depth[s.value]
        before, used = None, {}
        while before != [s.stage for s in self.stores]:        # a store that is moved to a later stage loads memory there
            before, used = [s.stage for s in self.stores], self._uses()
            for s in self.stores:
                s.stage = self._hazards(s, used)
        if self.postponed is None and self.waiting is not None:
            self.stores.remove(self.waiting)                   # nothing waits
        schedule, outer, inner = self._schedule()
        stages = self._stages()

        k = Kernel(self._buffers(), outer, inner, schedule, stages, self.all)
        k.kept = self._kept(used) if schedule in ("row", "scan") and len(inner) == 1 else {}
        if self.postponed is not None:
            by = tiled if self.nest.sharing.tiles else postponed
            k.postponed = by(self.postponed, self.waiting, self.loads, outer + inner)
        k.tile = self._tile(k) if schedule == "pointwise" else None
        k.checks = any(e.op in CHECKS for e in self.all)
        count(k, self.nest.size)
        return k

    def _last_position(self) -> Optional[int]:
        return self.nest.calls[-1].position if len(self.nest.calls) > 1 else None

    def _depths(self) -> None:
        for e in self.all:
            if e.op == "reduced":
                e.extra.stage = self.depth[e.extra.value]
                self.depth[e] = e.extra.stage + 1
            else:
                self.depth[e] = max((self.depth[a] for a in e.args), default=0)
        for r in self.reductions:
            r.stage = self.depth[r.value]

    def _uses(self) -> dict[Expr, set[int]]:
        """When an expression is computed: at 2 n in the pass of stage n over the row, at 2 n + 1 after it."""
        used: dict[Expr, set[int]] = {}
        roots = [(r.value, 2 * r.stage) for r in self.reductions]
        for root, time in roots + [(s.value, 2 * s.stage if s.full else 2 * max(s.stage, 1) - 1) for s in self.stores]:
            for e in below(root):
                used.setdefault(e, set()).add(time)
        return used

    def _hazards(self, s: Store, used: dict[Expr, set[int]]) -> int:
        """Memory that is loaded and stored needs equal indices, or places that never meet; the store comes last."""
        stage = s.stage
        for e in self.loads:
            if e.extra[0] == s.buffer:
                if e.index == s.index:
                    last = max(used.get(e, ()), default=-1)
                    stage = max(stage, (last + 1) // 2 if s.full else last // 2 + 1)
                elif not disjoint(e.index, s.index):
                    self.postponed = self._postponable(s)
                    if self.postponed is not None:
                        continue
                    raise CannotLower("memory is read at another index than it is written", s.position)
            elif e.extra[0].split("_")[0] == s.buffer.split("_")[0]:
                raise CannotLower("memory is read and written under two dtypes", s.position)
        for other in self.stores:
            if other is not s and other.buffer == s.buffer and not disjoint(other.index, s.index):
                raise CannotLower("memory is written twice", max(s.position, other.position))
        if any(isinstance(a, (Quotient, Remainder)) for a, _ in s.index.terms):
            raise CannotLower("a store through a division", s.position)
        return stage

    def _postponable(self, s: Store) -> Optional[Store]:
        """The store itself, if it may be later than what reads its memory: in a kernel that only computes element by element."""
        waits = self.waiting is not None and s is not self.waiting and s.value is self.waiting.value and s.position == self.waiting.position
        checks = any(e.op in CHECKS for e in self.all)
        return s if waits and not checks and not self.reductions and self.nest.reduced is None else None

    def _stages(self) -> list[Stage]:
        last = max([1] + [r.stage + 1 for r in self.reductions] + [s.stage + (1 if s.full else 0) for s in self.stores])
        return [Stage([r for r in self.reductions if r.stage == k], [s for s in self.stores if s.full and s.stage == k],
                      [s for s in self.stores if not s.full and max(s.stage - 1, 0) == k]) for k in range(last)]

    def _schedule(self) -> tuple[str, list[Var], list[Var]]:
        if not self.reductions and self.nest.reduced is None:
            return "pointwise", self.outer[:-1], self.outer[-1:]
        if any(e.op == "running" for e in self.all):
            return "scan", self.outer, self.inner
        once = all(r.stage == 0 for r in self.reductions) and all(s.stage == 0 for s in self.stores if s.full)
        if self.nest.shares_rows(once):
            return "whole", self.outer, self.inner
        columns = self.inner and self.outer and self._unit(self.outer) and not self._unit(self.inner)
        return ("column" if columns else "row"), self.outer, self.inner

    def _unit(self, loops: list[Var]) -> bool:
        """Does the innermost of these loops walk the big loads one by one?"""
        big = [e for e in self.loads if any(e.index.varies_with(v) for v in self.inner)]
        return any(abs(e.index.coefficient(v)) == 1 for e in big for v in loops)

    # ------------------------------------------------------------ buffers

    def _buffers(self) -> dict[str, Buffer]:
        numbers = self.evaluation.region.numbers
        found = {e.extra[0]: Buffer(e.extra[0], _storage(e.extra[0]), e.dtype, number=_storage(e.extra[0]) in numbers) for e in self.loads}
        for s in self.stores:
            if s is self.waiting and self.nest.sharing.tiles:
                continue                                       # in shared memory
            found[s.buffer] = Buffer(s.buffer, _storage(s.buffer), s.value.dtype, True)
        return found

    def _kept(self, used: dict[Expr, set[int]]) -> dict[Expr, int]:
        """Costly values that several passes need, as far as row buffers go."""
        inner = set(self.inner)
        used = {e: {time // 2 for time in times if time % 2 == 0} for e, times in used.items()}
        costly = [e for e in self.all if len(used.get(e, ())) > 1 and sum(map(weight, below(e))) >= WORTH_KEEPING
                  and any(variables(b) & inner for b in below(e))]
        top = [e for e in costly if not any(e is not o and e in below(o) and used[o] >= used[e] for o in costly)]
        room = KEPT_BYTES // (8 * max(math.prod(v.size for v in self.inner), 1))
        return {e: min(used[e]) for n, e in enumerate(top) if n < room}

    def _tile(self, k: Kernel) -> Optional[tuple[Var, Var]]:
        if not k.inner or any(s.index.coefficient(k.inner[0]) != 1 for s in self.stores):
            return None
        j = k.inner[0]
        for e in self.loads:
            if abs(e.index.coefficient(j)) > 1 and len(e.args) == 0 and e.index.affine_in(j):
                for w in k.outer:
                    if e.index.coefficient(w) == 1 and min(w.size, j.size) >= 16:
                        return w, j
        return None


def _storage(buffer: str) -> int:
    return int(buffer[1:].split("_")[0])
