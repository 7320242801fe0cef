"""Which forward values the backward pass keeps, and which it computes again: a minimum cut over the bytes kept.

Every value is an edge whose capacity is the price of keeping it. Values that cannot be computed again hang on the source;
the others on the values that they are computed from; what backward reads hangs on the sink. The edges of a minimum cut are
kept (the cut nearest to the sink, so that as little as possible is computed twice).
"""
from __future__ import annotations

from typing import Callable, Hashable, Iterable

from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol

FREELY = 1 << 62            # the capacity of what cannot be cut: more than all bytes there are


class Network:
    """A flow network with integer capacities. Nodes are hashable; maximum flow by Dinic's algorithm."""

    def __init__(self) -> None:
        self.number: dict[Hashable, int] = {}
        self.edges: list[list[int]] = []                       # by node: edge numbers; edge e and e ^ 1 are a pair
        self.head: list[int] = []
        self.room: list[int] = []

    def node(self, name: Hashable) -> int:
        n = self.number.setdefault(name, len(self.number))
        if n == len(self.edges):
            self.edges.append([])
        return n

    def edge(self, tail: Hashable, head: Hashable, capacity: int) -> None:
        a, b = self.node(tail), self.node(head)
        self.edges[a].append(len(self.head))
        self.edges[b].append(len(self.head) + 1)
        self.head += (b, a)
        self.room += (capacity, 0)

    def maximum_flow(self, source: Hashable, sink: Hashable) -> int:
        s, t = self.node(source), self.node(sink)
        total = 0
        while True:
            level = self._levels(s)
            if level[t] < 0:
                return total
            total += self._blocking_flow(s, t, level)

    def _levels(self, s: int) -> list[int]:
        level = [-1] * len(self.edges)
        level[s], queue = 0, [s]
        for u in queue:
            for e in self.edges[u]:
                v = self.head[e]
                if self.room[e] and level[v] < 0:
                    level[v] = level[u] + 1
                    queue.append(v)
        return level

    def _blocking_flow(self, s: int, t: int, level: list[int]) -> int:
        """Walk down the levels, one edge at a time, without recursion: traces are deep."""
        following, path, u, total = [0] * len(self.edges), [], s, 0
        head, room = self.head, self.room
        while True:
            if u == t:
                pushed = min(room[e] for e in path)
                total += pushed
                for e in path:
                    room[e] -= pushed
                    room[e ^ 1] += pushed
                full = next(k for k, e in enumerate(path) if not room[e])
                u = head[path[full] ^ 1]
                del path[full:]
            elif following[u] < len(self.edges[u]):
                e = self.edges[u][following[u]]
                if room[e] and level[head[e]] == level[u] + 1:
                    path.append(e)
                    u = head[e]
                else:
                    following[u] += 1
            elif u == s:
                return total
            else:
                u = head[path.pop() ^ 1]
                following[u] += 1

    def reaches(self, sink: Hashable) -> set[int]:
        """The nodes from which the sink is reached in the residual network, after `maximum_flow`."""
        t = self.node(sink)
        found, queue = {t}, [t]
        for v in queue:
            for e in self.edges[v]:
                u = self.head[e]
                if self.room[e ^ 1] and u not in found:
                    found.add(u)
                    queue.append(u)
        return found


def minimum_cut(needed: Iterable[TensorProxy], makers: dict[TensorProxy, BoundSymbol], price: Callable[[TensorProxy], int],
                again: Callable[[BoundSymbol], bool]) -> tuple[set[TensorProxy], int]:
    """(the values to keep, their price in bytes). A price of FREELY or more means that there is no such set.

    makers: the forward call that makes a value (inputs have none); again: may a call be made once more in backward?
    """
    network, source, sink = Network(), "source", "sink"
    seen: set[TensorProxy] = set()
    todo = list(dict.fromkeys(needed))
    for p in todo:
        network.edge((p, "out"), sink, FREELY)
    while todo:
        p = todo.pop()
        if p in seen:
            continue
        seen.add(p)
        network.edge((p, "in"), (p, "out"), price(p))
        made_by = makers.get(p)
        if made_by is None or not again(made_by):
            network.edge(source, (p, "in"), FREELY)
            continue
        for a in made_by.tensor_args:
            network.edge((a, "out"), (p, "in"), FREELY)
            todo.append(a)
    flow = network.maximum_flow(source, sink)
    near = network.reaches(sink)
    kept = {p for p in seen if network.number[p, "out"] in near and network.number[p, "in"] not in near}
    return kept, flow


def may_run_again(b: BoundSymbol, recompute: str) -> bool:
    """May a forward call be made once more in backward? Never one that draws, writes, raises or may do anything.

    recompute: "never" allows views alone; "fused" also what costs nothing inside a kernel; "always" everything.
    """
    if b.has_effect or b.sym.opaque:
        return False
    if is_view(b) or recompute == "always":
        return True
    return recompute == "fused" and (b.sym.pointwise or b.sym.packet in _MOVES_OR_FILLS)


# What costs nothing inside a kernel beside the pointwise: no tag of torch tells what only moves or fills from what computes.
_MOVES_OR_FILLS = frozenset("""restride exact_copy constant expand zeros_like ones_like full_like full zeros ones arange
    new_zeros new_ones new_full slice_scatter select_scatter diagonal_scatter constant_pad_nd tril triu where
    masked_fill cat stack""".split())


def is_view(b: BoundSymbol) -> bool:
    """Does a call only look at the memory of its arguments in another way?"""
    storages = {a.storage for a in b.tensor_args}
    return bool(b.tensor_outputs) and all(o.storage in storages for o in b.tensor_outputs)
