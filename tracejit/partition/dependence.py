"""The dependence graph: what must stay before what.

In: a functional trace. Out: a graph over the positions of its calls, every edge from an earlier call to a later one:
    kind    data | raw | war | waw (memory) | random | raises | opaque | fence
    apart   the two calls may not share a kernel: the later one runs in a strictly later region
Any order of the calls that respects the edges means the same. Memory edges join accesses whose bytes overlap; a write
after a read of the very same view may share a kernel, all other memory edges are apart. Views access nothing:
what is read through one is read where it is used.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from ..ir.memory import covers, overlaps
from ..ir.proxy import TensorProxy
from ..ir.trace import Trace

MOST_LIVE = 32               # accesses of one storage that are told apart; beyond it a write becomes a fence


@dataclass(frozen=True)
class Edge:
    kind: str
    apart: bool


class Dependence:
    """`before[n]`: the calls that call n comes after, each with its edge.

    No DiGraph of networkx, which takes longer to import than a first call may.
    """

    def __init__(self, size: int) -> None:
        self.before: list[dict[int, Edge]] = [{} for _ in range(size)]

    def add(self, before: int, after: int, kind: str, *, apart: bool) -> None:
        """Two edges between the same calls are one: apart if either is."""
        known = self.before[after].get(before)
        if before != after and (known is None or apart and not known.apart):
            self.before[after][before] = Edge(kind, apart)


@dataclass
class _Storage:
    """The accesses of one memory storage that a later access must still be compared with."""

    writes: list[tuple[int, TensorProxy]] = field(default_factory=list)
    reads: list[tuple[int, TensorProxy]] = field(default_factory=list)
    fence: int = -1          # a write that stands for every access before it


def dependence(trace: Trace) -> Dependence:
    graph = Dependence(len(trace.bound_symbols))
    producer: dict[TensorProxy, int] = {}
    for n, b in enumerate(trace.bound_symbols):
        for a in b.tensor_args:
            if a in producer:
                graph.add(producer[a], n, "data", apart=False)
        for o in b.tensor_outputs:
            if o not in producer and o not in b.tensor_args:
                producer[o] = n
    _memory_edges(graph, trace)
    _effect_edges(graph, trace)
    return graph


# ---------------------------------------------------------------- memory

def _memory_edges(graph: Dependence, trace: Trace) -> None:
    storages = {s: _Storage() for s in trace.written_storages}
    if not storages:
        return
    born = {p.storage for p in trace.inputs}
    for n, b in enumerate(trace.bound_symbols):
        if b.is_view:
            continue
        for a in dict.fromkeys(b.reads):
            if a.storage in storages:
                _read(graph, storages[a.storage], n, a)
        for w in dict.fromkeys(b.written):
            _write(graph, storages[w.storage], n, w)
        for o in b.tensor_outputs:
            if o.storage in storages and o.storage not in born:
                born.add(o.storage)
                _write(graph, storages[o.storage], n, o)       # a value that is written later: its birth is its first write


def _read(graph: Dependence, s: _Storage, n: int, a: TensorProxy) -> None:
    if s.fence >= 0:
        graph.add(s.fence, n, "fence", apart=True)
    for m, w in s.writes:
        if m != n and overlaps(w.bytes, a.bytes):
            graph.add(m, n, "raw", apart=True)
    s.reads.append((n, a))


def _write(graph: Dependence, s: _Storage, n: int, w: TensorProxy) -> None:
    if s.fence >= 0:
        graph.add(s.fence, n, "fence", apart=True)
    crowded = len(s.reads) + len(s.writes) > MOST_LIVE
    for accesses, kind in ((s.reads, "war"), (s.writes, "waw")):
        for m, a in accesses:
            if m != n and overlaps(a.bytes, w.bytes):
                graph.add(m, n, kind, apart=kind == "waw" or not a.same_view(w))
            elif m != n and crowded:
                graph.add(m, n, "fence", apart=False)
    if crowded:
        s.writes, s.reads, s.fence = [], [], n
        return
    # What a write covers is ordered before whatever meets those bytes later.
    s.reads = [(m, a) for m, a in s.reads if not covers(w.bytes, a.bytes)]
    s.writes = [(m, a) for m, a in s.writes if not covers(w.bytes, a.bytes)] + [(n, w)]


# ---------------------------------------------------------------- other effects

def _effect_edges(graph: Dependence, trace: Trace) -> None:
    """Random draws keep their order; what may raise stands after the effects before it and before those after it;
    an opaque call is a wall."""
    random = raising = opaque = -1
    effects: list[int] = []                                    # visible effects since the last call that may raise
    since_opaque: list[int] = []
    for n, b in enumerate(trace.bound_symbols):
        if opaque >= 0:
            graph.add(opaque, n, "opaque", apart=True)
        if b.sym.random:
            if random >= 0:
                graph.add(random, n, "random", apart=True)
            random = n
        if b.sym.opaque:
            for m in since_opaque:
                graph.add(m, n, "opaque", apart=True)
            opaque, since_opaque = n, []
        since_opaque.append(n)
        writes = bool(b.sym.random or b.written)
        raises = b.sym.may_raise([a.dtype for a in b.tensor_args])
        if raising >= 0 and (writes or raises):
            graph.add(raising, n, "raises", apart=writes)
        if raises:
            for m in effects:
                graph.add(m, n, "raises", apart=True)
            raising, effects = n, []
        if writes:
            effects.append(n)
