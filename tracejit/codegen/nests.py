"""A region as a sequence of nests, each of which is one kernel.

One walk in program order: a call joins the first nest at or after those that it needs whose iteration space it shares
and with which it has to do, else opens one at the end. Since it never joins a nest before one it needs, the sequence is
an order. What does not lower together after all loses its last call to a nest of its own, until it does.
Calls that share no memory and no values (steps of an optimizer on many parameters) are nests of their own: equal
ones become one function.

Small and cheap values that only larger ones read belong to no nest: they are computed wherever they are read.
"""
from __future__ import annotations

import math
from bisect import bisect_left
from typing import Optional

from ..ir.memory import overlaps
from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol
from .calls import Call, Region, call_of, reads
from .kernel import CannotLower, Kernel
from .lower import Nest, Note, Sharing, lower
from .ops import row_of
from .reductions import reduced_dims
from .repeats import Repeats, Signature

LOOK = 8                     # how many nests beyond the first possible one are tried


class Nests:
    """`kernels`: (nest, kernel) in order. `temporaries`: roots of values that only later nests of the region read."""

    def __init__(self, region_symbol: BoundSymbol, sharing: Sharing = Sharing(), fast: bool = False,
                 note: Optional[Note] = None) -> None:
        calls = [call_of(b, n) for n, b in enumerate(region_symbol.subsymbols)]
        self.region, self.sharing, self.note = Region(calls, fast), sharing, note
        self.outputs = {o.storage for o in region_symbol.tensor_outputs}
        self.nests: list[Nest] = []
        self.nest_of: dict[Call, Nest] = {}
        self.kernels: list[tuple[Nest, Kernel]] = []
        self.number: dict[Nest, int] = {}
        self.of_part: dict[int, list[Nest]] = {}
        self.part = parts(self.region)
        self.written: dict[int, list[Call]] = {}               # placed stores, and placed readers of what is stored to
        self.read: dict[int, list[tuple[Call, TensorProxy]]] = {}
        self.after_raising = 0
        self.repeats = Repeats()
        self._consumers()
        for c in calls:
            if not c.is_view and not self._floats(c):
                self._place(c)
        self._lower_all()

    # ------------------------------------------------------------ who needs what

    def _consumers(self) -> None:
        self.consumers: dict[int, list[Call]] = {}
        for c in self.region.calls:
            for p in reads(c):
                self.consumers.setdefault(p.storage, []).append(c)

    def _floats(self, c: Call) -> bool:
        """Is it computed wherever it is read?"""
        if c.is_store or c.out.storage in self.outputs:
            return False
        row = row_of(c)
        if row.kind == "factory":
            return True
        if row.kind not in ("elementwise", "relayout") or row.heavy or any(p.storage in self.region.stores for p in c.tensors):
            return False
        if c.bsym.sym.may_raise([a.dtype for a in c.tensors]):
            return False
        users = self.consumers.get(c.out.storage, ())
        return all(self._space(u)[2] > c.out.numel for u in users)

    def _space(self, c: Call) -> tuple[tuple[int, ...], Optional[tuple[int, ...]], int]:
        """(shape, reduced dims, size) of the iterations of a call."""
        if c.is_store:
            return c.tensors[1].shape, None, c.tensors[1].numel
        if row_of(c).kind in ("reduction", "scan"):
            return c.tensors[0].shape, reduced_dims(c)[0], c.tensors[0].numel
        return c.out.shape, None, c.out.numel

    def _makers(self, p: TensorProxy) -> list[Call]:
        """The placed calls behind a value, through those that float."""
        maker = self.region.made(p.storage)
        if maker is None:
            return []
        if maker in self.nest_of:
            return [maker]
        return [m for q in reads(maker) for m in self._makers(q)]

    # ------------------------------------------------------------ placing

    def _place(self, c: Call) -> None:
        first = self._first_possible(c)
        own = self.of_part.setdefault(self.part[c], [])
        possible = own[bisect_left(own, first, key=self.number.__getitem__):]
        nest = next((n for n in possible[:LOOK] if self._joins(n, c)), None)
        if nest is None:
            shape, reduced, _ = self._space(c)
            nest = Nest(shape, reduced, [], sharing=self.sharing)
            self.number[nest] = len(self.nests)
            self.nests.append(nest)
            own.append(nest)
        nest.calls.append(c)
        self.nest_of[c] = nest
        self._note(c, self.number[nest])

    def _note(self, c: Call, number: int) -> None:
        """What later calls must know of a placed one."""
        for p in reads(c):
            if p.storage in self.region.stores:
                self.read.setdefault(p.storage, []).append((c, p))
        if c.is_store:
            self.written.setdefault(c.tensors[0].storage, []).append(c)
        elif c.bsym.sym.may_raise([a.dtype for a in c.tensors]):
            self.after_raising = max(self.after_raising, number + 1)

    def _number(self, c: Call) -> int:
        return self.number[self.nest_of[c]]

    def _first_possible(self, c: Call) -> int:
        """After everything that it needs, by data and by memory. Calls that float read nothing that is stored to."""
        first = self.after_raising if c.is_store else 0
        for p in reads(c):
            for m in self._makers(p):
                apart = not c.is_store and row_of(c).kind == "gather" and not self._picks_from_rows(c, p, self.nest_of[m])
                first = max(first, self._number(m) + apart)
        for p in (*reads(c), *(c.tensors[:1] if c.is_store else ())):
            for d in self.written.get(p.storage, ()):
                w = d.tensors[0]
                if overlaps(p.bytes, w.bytes):
                    first = max(first, self._number(d) + (0 if w.same_view(p) and not c.is_store else 1))
        if c.is_store:
            w = c.tensors[0]
            for d, p in self.read.get(w.storage, ()):
                if overlaps(p.bytes, w.bytes):
                    first = max(first, self._number(d))
        return first

    def _picks_from_rows(self, c: Call, p: TensorProxy, nest: Nest) -> bool:
        """`gather(rows, 1, index)`: each row of the nest picks one of its own elements, which is computed again."""
        if nest.reduced is None or len(nest.reduced) != 1 or c.name not in ("gather", "nll_loss_gather"):
            return False
        source, index, d = c.tensors[0], c.tensors[1], nest.reduced[0]
        return (source.shape == nest.shape and c.args["dim"] % len(nest.shape) == d and index.shape[d] == 1
                and index.shape == tuple(1 if k == d else n for k, n in enumerate(nest.shape)))

    def _joins(self, nest: Nest, c: Call) -> bool:
        shape, reduced, size = self._space(c)
        if reduced is not None:
            return self._joins_reduction(nest, c, shape, reduced)
        if nest.reduced is None:
            return size == nest.size and size > 0
        if size == nest.rows and size != nest.size:
            return True
        return size == nest.size and size > 0 and (not nest.ends_with_its_reductions or not self._needs_reduction(nest, c))

    def _joins_reduction(self, nest: Nest, c: Call, shape: tuple[int, ...], reduced: tuple[int, ...]) -> bool:
        if math.prod(shape) != nest.size or not nest.size:
            return False
        if nest.reduced is not None:
            ends = nest.ends_with_its_reductions and self._needs_reduction(nest, c)
            return nest.shape == shape and nest.reduced == reduced and not ends
        nest.shape, nest.reduced = shape, reduced
        return True

    def _needs_reduction(self, nest: Nest, c: Call) -> bool:
        stack, seen = [m for p in reads(c) for m in self._makers(p)], set()
        while stack:
            m = stack.pop()
            if m in seen or self.nest_of.get(m) is not nest:
                continue
            seen.add(m)
            if row_of(m) is not None and row_of(m).kind == "reduction":
                return True
            stack += [k for p in reads(m) for k in self._makers(p)]
        return False

    # ------------------------------------------------------------ lowering

    def _lower_all(self) -> None:
        k = 0
        while k < len(self.nests):
            nest = self.nests[k]
            try:
                self.kernels.append((nest, self._lower(nest)))
                k += 1
            except CannotLower:
                if len(nest.calls) == 1:
                    raise
                self._split(nest, k)
                k, self.kernels = 0, []                        # what is wanted outside an earlier nest may have changed

    def _lower(self, nest: Nest) -> Kernel:
        def here(c: Call) -> bool:
            return self.nest_of.get(c, nest) is nest
        def wanted(p: TensorProxy) -> bool:
            return p.storage in self.outputs or any(self._reads_elsewhere(u, nest) for u in self.consumers.get(p.storage, ()))
        signature = Signature(nest, self.region, lambda c: c not in self.nest_of, wanted)
        return self.repeats.kernel(signature, lambda: lower(nest, self.region, here, wanted, self.note))

    def _reads_elsewhere(self, user: Call, nest: Nest) -> bool:
        """Does `user`, or whoever computes it in place, run in another nest?"""
        if user in self.nest_of:
            return self.nest_of[user] is not nest
        return any(self._reads_elsewhere(u, nest) for u in self.consumers.get(user.out.storage, ()))

    def _split(self, nest: Nest, k: int) -> None:
        c = nest.calls.pop()
        following = self.nests[k + 1] if k + 1 < len(self.nests) else None
        shape, reduced, _ = self._space(c)
        if following is not None and following.calls[0].position > c.position and following.split and (
                following.size == math.prod(shape) and reduced is None):
            following.calls.insert(0, c)
            self.nest_of[c] = following
        else:
            fresh = Nest(shape, reduced, [c], split=True, sharing=self.sharing)
            self.nests.insert(k + 1, fresh)
            self.nest_of[c] = fresh
        if all(row_of(m) is None or row_of(m).kind not in ("reduction", "scan") for m in nest.calls):
            nest.shape, nest.reduced = self._space(nest.calls[-1])[0], None

    @property
    def made_storages(self) -> dict[int, TensorProxy]:
        """Roots of the values that kernels store: results and temporaries."""
        stored = {b.storage for _, k in self.kernels for b in k.buffers.values() if b.written}
        return {s: r for s, r in self.region.roots.items() if s in stored}


def parts(region: Region) -> dict[Call, int]:
    """Calls by the part of the region that they belong to: parts share no memory and no values.

    One element that several read, like the rate of an optimizer step, does not make them one part. What is computed of one
    element, such as a row's deviation of its variance, belongs to the part that made it.
    """
    largest = max((o.numel for c in region.calls for o in c.bsym.tensor_outputs), default=1)
    leader: dict[int, int] = {}

    def find(s: int) -> int:
        leader.setdefault(s, s)
        while leader[s] != s:
            leader[s] = s = leader[leader[s]]
        return s

    def joined(c: Call) -> list[int]:
        every = [*c.tensors, *c.bsym.tensor_outputs]
        large = [p.storage for p in every if p.numel > 1 or largest == 1]
        made = [p.storage for p in c.tensors if region.made(p.storage) is not None]
        return [*(large or made[:1]), *(o.storage for o in c.bsym.tensor_outputs or every[-1:])]
    for c in region.calls:
        first, *others = map(find, joined(c))
        leader.update((find(s), first) for s in others)
    return {c: find(joined(c)[0]) for c in region.calls}
