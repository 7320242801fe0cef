"""Partition: which calls run as one kernel, in which order.

In: a functional trace, and executors in order. Out: the same program, every call with the executor that runs it, and
fusion regions: one bound symbol whose subsymbols are the calls that the kernel runs, in order.
Guaranteed: the order keeps every edge of the dependence graph, inside regions too; `inplace_check` proves it again.

What a region is, for whoever generates code for it:
  - `args`: tensors from outside. A view is never an argument when the executor can fuse the view call: the call
    stands in the region as a subsymbol (views cost nothing, so each region that uses one has it), and the argument is
    the tensor at the bottom of the chain of views. This holds for views of memory too: `copy_(view, v)` writes
    through the view's offset and strides, relative to the argument's.
    Factories (calls without tensor arguments that the executor fuses) are repeated in each region likewise.
  - `output`: the values that later calls or the results need, never memory. They are tensors of their own with the recorded sizes
    and strides. One of which others take nothing but a view of all its bytes in order is handed out as that view, alone.
  - One iteration space: every call that is no view and no factory has `full` size (as many elements as the region's
    largest), or, when the region reduces, all reductions reduce the same dims of the full shape and a call may have
    the `outer` size, one element a row. Shapes of one size may differ: their elements correspond in logical order.
    Smaller cheap work is recomputed per element of a larger region: then it has no store, no use outside, nothing costly.
  - A row never needs what another row computed: a value that depends on a reduction is read at its own row
    (aligned; proved on strides), and a large whole-tensor reduction is not followed by full-size work on its result.
  - Memory: no call of a region reads or overwrites bytes that an earlier call of the same region wrote. Bytes that a
    later call writes may be read before when read and written views are the same and all that is computed from
    them in the region is pointwise at the same shape, or a reduction's, used in the rows that it reduces: then each element is
    read at the index, or in the row, where it is written.
    A kernel loads all that an element needs before it stores any of it (`a[0], a[-1] = a[-1].clone(), a[0].clone()`), and, where
    it reduces what it stores to, all that a row needs before it stores any of that row.
  - Calls that may raise stand before the writes of later regions and after those of earlier ones: a kernel holds either
    calls that may raise or `copy_`, never both. Several may share a kernel: it must report the first in program order.
  - Where the executor says `postpones_copies`, the last call may be `POSTPONED_COPY`, whatever bytes of its destination the region reads:
    it takes effect when all that the region reads has been read. The region then writes nothing else.
"""
from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import replace
from typing import Any, Collection, Iterable, Optional, Sequence

from ..errors import TraceError
from ..ir.cached import cached_property
from ..ir.prims import POSTPONED_COPY
from ..ir.printer import bound_symbol_text
from ..ir.proxy import TensorProxy, contiguous_stride
from ..ir.symbol import Symbol
from ..ir.trace import BoundSymbol, Trace
from ..options import fuel
from .dependence import Dependence, dependence
from .groups import ROW_GATHERS, SMALL, Group, Membership
from .merging import merge, most_calls
from .postponing import postpone
from .spaces import Space, space_of

LOOK = 6                     # how many groups beyond the first possible one are tried


def partition(trace: Trace, executors: Sequence[Any]) -> Trace:
    """The pass. Executors answer `can_fuse(bsym)`, `fuse(region)`, `can_execute(bsym)` and `execute(bsym)`."""
    known = Calls(trace, executors)
    return trace.replace(stage="partition", bound_symbols=tuple(Emission(known, Walk(known).run()).run()))


class Calls:
    """What is known about the calls of a trace before any of them is placed."""

    def __init__(self, trace: Trace, executors: Sequence[Any]) -> None:
        self.trace, self.executors, self.calls = trace, executors, trace.bound_symbols
        self.memory = trace.written_storages
        self.taker = [self._taker(b) for b in self.calls]
        self.free = [t is not None and _costs_nothing(b) for t, b in zip(self.taker, self.calls)]
        self.maker: dict[TensorProxy, int] = {}
        self._root: dict[TensorProxy, TensorProxy] = {}
        self._spaces: dict[int, Space] = {}
        for n, b in enumerate(self.calls):
            for o in b.tensor_outputs:
                if o in self.maker or o in b.tensor_args:
                    continue
                self.maker[o] = n
                if self.free[n] and b.tensor_args:
                    self._root[o] = self.root(next(a for a in b.tensor_args if a.storage == o.storage))
        self.returned = {self.root(o) for o in trace.tensor_results}
        self.users: dict[TensorProxy, list[int]] = {}
        for n, b in enumerate(self.calls):
            if not self.free[n]:
                for r in {self.root(a) for a in b.tensor_args}:
                    self.users.setdefault(r, []).append(n)

    def _taker(self, b: BoundSymbol) -> Optional[Any]:
        """The executor that may fuse a call: the first that takes it at all."""
        if b.sym.opaque or b.sym.random:
            return None
        for e in self.executors:
            if e.can_fuse(b):
                return e
            if e.can_execute(b):
                return None
        return None

    def root(self, p: TensorProxy) -> TensorProxy:
        """What lies under the views that cost nothing."""
        return self._root.get(p, p)

    @cached_property
    def graph(self) -> Dependence:
        return dependence(self.trace)

    @cached_property
    def before(self) -> list[list[tuple[int, bool]]]:
        """For each call: the placed calls that it comes after, and whether they must be apart; seen through free calls."""
        found: list[list[tuple[int, bool]]] = []
        for n in range(len(self.calls)):
            direct: dict[int, bool] = {}
            for m, edge in self.graph.before[n].items():
                for k, apart in found[m] if self.free[m] else ((m, edge.apart),):
                    direct[k] = direct.get(k, False) or apart
            found.append(list(direct.items()))
        return found

    @cached_property
    def depth(self) -> list[int]:
        """How many calls that run alone stand on the longest way to each call."""
        depth: list[int] = []
        for n in range(len(self.calls)):
            depth.append(max((depth[m] + (self.taker[m] is None) for m, _ in self.before[n]), default=0))
        return depth

    def space(self, n: int) -> Space:
        """What call n, which is no view, iterates over."""
        found = self._spaces.get(n)
        if found is None:
            found = self._spaces[n] = space_of(self.calls[n])
        return found

    def outputs(self, n: int) -> list[TensorProxy]:
        b = self.calls[n]
        return [o for o in b.tensor_outputs if self.maker.get(o) == n]


def _costs_nothing(b: BoundSymbol) -> bool:
    """A view, or a factory: a kernel makes its elements from their index."""
    return b.is_view or not b.tensor_args and not b.has_effect


# ---------------------------------------------------------------- placing

class Walk:
    """One walk in program order. A call never joins a group before what it needs, so no cycle can arise."""

    def __init__(self, known: Calls) -> None:
        self.known = known
        self.groups: list[Group] = []
        self.fused: list[int] = []                             # positions of the groups that are regions to be
        self.at: dict[int, int] = {}                           # call -> position of its group
        self.alike: dict[tuple, int] = {}                      # (executor, space) -> position of the last group that has it
        self.member = Membership(known.calls, known.root, known.memory, known.space, self.needed_by)

    def run(self) -> list[Group]:
        for n in range(len(self.known.calls)):
            if not self.known.free[n]:
                self.at[n] = self.place(n)
        return postpone(merge(self.groups, self.known, self.member, self.at), self.known)

    def place(self, n: int) -> int:
        taker = self.known.taker[n]
        if taker is not None:
            self.gather_indices(n)
            for k in self.candidates(n, self.earliest(n, taker)):
                if self.member.join(self.groups[k], n):
                    self.alike[self.likeness(n)] = k
                    return k
        group = Group(taker)
        self.groups.append(group)
        if taker is None or not self.member.join(group, n):
            group.executor, group.calls = None, [n]
        else:
            self.fused.append(len(self.groups) - 1)
            self.alike[self.likeness(n)] = len(self.groups) - 1
        return len(self.groups) - 1

    def likeness(self, n: int) -> tuple:
        space = self.known.space(n)
        return self.known.taker[n], space.shape, space.reduced

    def gather_indices(self, n: int) -> None:
        """What makes the indices of a gather from rows moves to the group that makes the rows, so that the gather can."""
        known, b = self.known, self.known.calls[n]
        if b.sym.packet not in ROW_GATHERS:
            return
        rows, k = self.at.get(known.maker.get(known.root(b.args[0]), -1), -1), self.earliest(n, known.taker[n])
        if not 0 <= rows < k < len(self.groups) or any(self.groups[m].executor is not known.taker[n] for m in (rows, k)):
            return
        moved = self.groups[k].calls
        if any(self.at[m] > rows or apart and self.at[m] == rows for c in moved for m, apart in known.before[c] if self.at[m] != k):
            return
        made = Group(known.taker[n])
        before = sorted(self.groups[rows].calls + moved)
        if all(self.member.join(made, m, together=[*before, n]) for m in [*before, n]):
            made = Group(known.taker[n])                       # n itself joins when its turn comes
            for m in before:
                self.member.join(made, m, together=[*before, n])
            self.at.update((m, rows) for m in moved)
            self.groups[rows], self.groups[k] = made, Group()

    def earliest(self, n: int, taker: Any) -> int:
        """The first group that n may stand in."""
        found = 0
        for m, apart in self.known.before[n]:
            k = self.at[m]
            found = max(found, k + (apart or self.groups[k].executor is not taker))
        return found

    def candidates(self, n: int, first: int) -> Iterable[int]:
        """Where n may go, best first: the group that makes what it needs is at `first`; then its neighbours, and for a
        small call the last group over the same space, whatever its calls."""
        taker = self.known.taker[n]
        start = bisect_left(self.fused, first)
        limit = most_calls(taker)
        near = self.fused[start:start + LOOK]
        last = self.alike.get(self.likeness(n), -1)
        for k in [*near, last] if near and last > near[-1] and self.known.space(n).numel <= SMALL else near:
            g = self.groups[k]
            if g.executor is taker and len(g.calls) < limit and not self.better_later(g, n):
                yield k

    def better_later(self, g: Group, n: int) -> bool:
        """Will n's users be in later kernels, while all that n needs of g will be in memory anyway?"""
        known, depth = self.known, self.known.depth
        if known.calls[n].written or any(o in known.returned for o in known.outputs(n)):
            return False
        users = [u for o in known.outputs(n) for u in known.users.get(o, ())]
        if not users or any(depth[u] == depth[n] or known.taker[u] is None for u in users):
            return False
        inside = {known.root(a) for a in known.calls[n].tensor_args} & g.made
        return all(r in known.returned or any(u != n and (known.taker[u] is None or depth[u] > depth[n])
                                              for u in known.users[r]) for r in inside)

    def needed_by(self, values: Iterable[TensorProxy], calls: Collection[int]) -> bool:
        """Does nobody but these calls need the values?"""
        users = self.known.users
        return not any(o in self.known.returned or any(u not in calls for u in users.get(o, ())) for o in values)


# ---------------------------------------------------------------- emission

class Emission:
    """Groups, in order, as bound symbols; views and factories beside the calls that need them outside regions."""

    def __init__(self, known: Calls, groups: list[Group]) -> None:
        self.known, self.calls = known, known.calls
        self.pending = deque(groups)
        self.out: list[BoundSymbol] = []
        self.emitted: set[int] = set()                         # free calls that stand outside regions
        self.regions, self.fuel = 0, fuel()
        self.wanted: dict[TensorProxy, set[TensorProxy]] = {}  # by what lies under the views that cost nothing
        self.note(known.trace.tensor_results)
        for g in groups:
            self.want(g.executor, g.calls)

    def run(self) -> list[BoundSymbol]:
        while self.pending:
            g = self.pending.popleft()
            if g.executor is None:
                self.alone(g.calls[0])
            elif not self.fuse(g):
                self.split(g)
        self.bind_outside(self.known.trace.tensor_results)
        return self.out

    # ------------------------------------------------------------ what a group takes

    def inside(self, executor: Any, calls: list[int]) -> list[int]:
        """The calls of a region with the free calls that they use, in program order."""
        found, left = set(calls), [a for n in calls for a in self.calls[n].tensor_args]
        while left:
            n = self.known.maker.get(left.pop())
            if n is not None and n not in found and self.known.free[n] and self.known.taker[n] is executor:
                found.add(n)
                left += self.calls[n].tensor_args
        return sorted(found)

    def arguments(self, inside: list[int]) -> list[TensorProxy]:
        made = {o for n in inside for o in self.known.outputs(n)}
        return [*dict.fromkeys(a for n in inside for a in self.calls[n].tensor_args if a not in made)]

    def want(self, executor: Any, calls: list[int]) -> None:
        """Note what a group takes: whoever makes it must hand it out."""
        self.note(self.arguments(self.inside(executor, calls)))

    def note(self, wanted: Iterable[TensorProxy]) -> None:
        for a in wanted:
            self.wanted.setdefault(self.known.root(a), set()).add(a)

    def is_wanted(self, p: TensorProxy) -> bool:
        return p in self.wanted or p in self.wanted.get(self.known.root(p), ())

    def handed_out(self, o: TensorProxy, executor: Any) -> tuple[TensorProxy, list[int]]:
        """What a region hands out of its value o, and the calls that make that of it: o itself, or the one view that all others take,
        if it is of the same bytes in the same order and no result. Then it need not be viewed at every call."""
        (v, *more), known, way = self.wanted[o], self.known, []
        if more or o in known.returned or o.storage in known.memory or not _are_alike(v, o):
            return o, []
        p = v
        while p is not o:
            n = known.maker[p]
            if known.taker[n] is not executor or len(known.calls[n].tensor_outputs) != 1:
                return o, []
            way.append(n)
            p = next(a for a in known.calls[n].tensor_args if a.storage == p.storage)
        return v, way

    # ------------------------------------------------------------ calls

    def fuse(self, g: Group) -> bool:
        """Emit g as a region; False when its executor does not make a kernel of it."""
        if self.regions >= self.fuel or len(g.calls) == 1 and getattr(g.executor, "allow_single_op_fusion", False) is False:
            return False
        writes = any(self.calls[n].written for n in g.calls)   # then a view of a value may be made from memory that is written
        given = [(o, []) if writes else self.handed_out(o, g.executor) for n in sorted(g.calls) for o in self.known.outputs(n) if o in self.wanted]
        viewed = [n for _, way in given for n in way]
        inside = self.inside(g.executor, [n for n in [*g.calls, *viewed] if n != g.postponed])
        if g.postponed is not None:                            # the last, whatever stood between in the program
            inside += [n for n in self.inside(g.executor, [g.postponed]) if n not in inside]
        subsymbols = tuple(self.calls[n] if n != g.postponed else replace(self.calls[n], sym=POSTPONED_COPY) for n in inside)
        arguments = self.arguments(inside)
        first = self.calls[min(g.calls)]
        region = BoundSymbol(Symbol(f"{g.executor.name}_region{self.regions}", _not_compiled), tuple(arguments), {}, [o for o, _ in given],
                             first.source, subsymbols, first.modes, g.executor.name)
        fused = g.executor.fuse(region)
        if fused is None:
            return False
        _check_outputs(fused, region, g.executor)
        self.bind_outside(arguments)
        self.emitted.update(viewed)
        self.regions += 1
        self.out.append(fused)
        return True

    def split(self, g: Group) -> None:
        """What is not one kernel may be two; a call that is none runs alone."""
        calls = sorted(n for n in g.calls if n != g.postponed)
        cut = len(calls) // 2
        if g.postponed is not None:
            parts = [Group(g.executor, calls), Group(None, [g.postponed])]
        else:
            parts = [Group(g.executor, part) for part in (calls[:cut], calls[cut:])] if cut else [Group(None, calls)]
        for part in parts:
            self.want(part.executor, part.calls)
        self.pending.extendleft(reversed(parts))

    def alone(self, n: int) -> None:
        b = self.calls[n]
        if b.sym.opaque:                                       # it may move what a view that is used later lies on
            self.bind_outside(o for m in range(n) if self.known.free[m] for o in self.known.outputs(m) if self.is_wanted(o))
        self.bind_outside(b.tensor_args)
        self.out.append(self.claimed(b))

    def bind_outside(self, proxies: Iterable[TensorProxy]) -> None:
        """Emit the views and factories that make these, as calls of their own."""
        for p in proxies:
            n = self.known.maker.get(p)
            if n is not None and self.known.free[n] and n not in self.emitted:
                self.emitted.add(n)
                self.bind_outside(self.calls[n].tensor_args)
                self.out.append(self.claimed(self.calls[n]))

    def claimed(self, b: BoundSymbol) -> BoundSymbol:
        executor = next(e for e in self.known.executors if e.can_execute(b))
        taken = executor.execute(b)
        _check_outputs(taken, b, executor)
        return taken


def _are_alike(a: TensorProxy, b: TensorProxy) -> bool:
    """Are these the same elements in the same order, without gaps?"""
    return (a.reading == b.reading and a.offset == b.offset and a.numel == b.numel
            and all(p.stride == contiguous_stride(p.shape) and not p.conj and not p.neg for p in (a, b)))


def _check_outputs(taken: Any, b: BoundSymbol, executor: Any) -> None:
    if not isinstance(taken, BoundSymbol) or [*map(id, taken.flat_outputs)] != [*map(id, b.flat_outputs)]:
        raise TraceError(f"executor {executor.name!r} must return a BoundSymbol with the outputs of what it took:\n"
                         f"  {bound_symbol_text(b)}\nreturned {taken}", where=str(b.source))


def _not_compiled(*args: Any) -> None:
    raise TraceError("a fusion region that no executor has compiled cannot run")
