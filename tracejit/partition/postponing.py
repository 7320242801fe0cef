"""A `copy_` to memory that a region reads through other views (`u[1:-1] = (u[:-2] + u[2:]) / 2`) as the last call of that region.

In: groups in order. Out: the same, a lone `copy_` in the group that makes its value where nothing in between needs it elsewhere.
Guaranteed: the region writes nothing else, reduces nothing and raises nothing, and nobody else needs the value: what runs
the region need not keep it whole.
"""
from __future__ import annotations

from typing import Any

from .groups import Group


def postpone(groups: list[Group], known: Any) -> list[Group]:
    """`known`: what is known of the calls (`regions.Calls`)."""
    at = {n: k for k, g in enumerate(groups) for n in g.calls}
    for k, g in enumerate(groups):
        if len(g.calls) != 1 or not known.calls[g.calls[0]].sym.is_copy:
            continue
        n = g.calls[0]
        maker = at.get(known.maker.get(known.root(known.calls[n].args[1]), -1), -1)
        if maker >= 0 and _may_end(groups[maker], n, known) and all(at[m] <= maker for m, _ in known.before[n]):
            groups[maker].calls.append(n)
            groups[maker].postponed, groups[k] = n, Group()
    return [g for g in groups if g.calls]


def _may_end(g: Group, n: int, known: Any) -> bool:
    copy, calls = known.calls[n], [known.calls[m] for m in g.calls]
    if not getattr(g.executor, "postpones_copies", False) or known.taker[n] is not g.executor or copy.modes != calls[0].modes:
        return False
    value = known.root(copy.args[1])
    pure = g.space.reduced is None and not any(b.written or b.sym.may_raise([a.dtype for a in b.tensor_args]) for b in calls)
    alone = value not in known.returned and known.users[value] == [n]
    return pure and alone and value in g.made and g.space.numel == copy.args[0].numel and len(calls) < g.executor.max_region_ops
