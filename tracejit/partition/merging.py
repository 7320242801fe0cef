"""Merging groups after the walk: a group joins the one that makes what it needs, or the first one that needs what it makes.

In: groups in an order that keeps every edge. Out: fewer groups, in such an order. Guaranteed: memory does not grow: what a
move keeps alive longer is no larger than the values that it no longer makes.
"""
from __future__ import annotations

from typing import Any, Iterable

from ..ir.proxy import TensorProxy
from .groups import Group, Membership


def merge(groups: list[Group], known: Any, member: Membership, at: dict[int, int]) -> list[Group]:
    """`known`: what is known of the calls (`regions.Calls`); `at`: the position of each call's group."""
    merging = _Merging(groups, known, member, at)
    for k in range(len(groups)):
        merging.lift(k)
    for k in range(len(groups) - 2, -1, -1):
        merging.sink(k)
    return [g for g in merging.groups if g.calls]


def most_calls(executor: Any) -> int:
    return getattr(executor, "max_region_ops", 400)


class _Merging:
    def __init__(self, groups: list[Group], known: Any, member: Membership, at: dict[int, int]) -> None:
        self.groups, self.known, self.member, self.at = groups, known, member, dict(at)
        self.after: dict[int, list[tuple[int, bool]]] = {}
        for n in at:
            for m, apart in known.before[n]:
                self.after.setdefault(m, []).append((n, apart))

    def lift(self, k: int) -> None:
        """Group k moves to the last group that it comes after, if that one makes what it needs."""
        g = self.groups[k]
        edges = [(self.at[m], apart) for n in g.calls for m, apart in self.known.before[n] if self.at[m] != k]
        if g.executor is None or not edges:
            return
        last = max(p for p, _ in edges)
        if any(apart and p == last for p, apart in edges):
            return
        target = self.groups[last]
        if target.executor is not g.executor or target.made.isdisjoint(g.touched):
            return
        saved = self.bytes(o for o in target.made if o not in self.known.returned and self.used_in(o) <= {last, k})
        early = any(h.calls for h in self.groups[last + 1:k])
        made = self.bytes(o for o in g.made if o in self.known.returned or not self.used_in(o) <= {k})
        if saved and (made <= saved or not early):
            self.put(g, k, target, last)

    def sink(self, k: int) -> None:
        """Group k moves into the first group that comes after it, if that one needs what it makes."""
        g = self.groups[k]
        if g.executor is None or not g.calls or g.space.reduced is not None:
            return
        edges = [(self.at[u], apart) for n in g.calls for u, apart in self.after.get(n, ()) if self.at[u] != k]
        if not edges:
            return
        first = min(p for p, _ in edges)
        target = self.groups[first]
        if target.executor is not g.executor or any(apart and p == first for p, apart in edges):
            return
        if g.made.isdisjoint(target.touched) or target.space.numel != g.space.numel:
            return
        held = self.bytes(r for r in g.touched - g.made if r in self.known.maker and r not in self.known.returned
                          and all(p < first for p in self.used_in(r)))
        saved = self.bytes(o for o in g.made if o not in self.known.returned and first in self.used_in(o))
        if held <= saved:
            self.put(g, k, target, first)

    def put(self, g: Group, k: int, target: Group, place: int) -> None:
        """g's calls into the group at `place`, joined again call by call in program order, if they go together."""
        if len(g.calls) + len(target.calls) > most_calls(g.executor):
            return
        made = Group(g.executor)
        both = {*g.calls, *target.calls}
        for n in sorted(both):
            if not self.member.join(made, n, together=both):
                return
        self.at.update((n, place) for n in g.calls)
        self.groups[place], self.groups[k] = made, Group()

    def used_in(self, r: TensorProxy) -> set[int]:
        return {self.at[u] for u in self.known.users.get(r, ())}

    @staticmethod
    def bytes(proxies: Iterable[TensorProxy]) -> int:
        return sum(p.numel * p.dtype.itemsize for p in proxies)
