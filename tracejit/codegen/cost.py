"""What a kernel costs: bytes, operations, and the compiler's time."""
from __future__ import annotations

import math
from typing import Iterable

from .index import Index, Var, atoms, disjoint
from .kernel import HEAVY, Expr, Kernel, below, variables


def count(k: Kernel, size: int) -> None:
    """Bytes that must move, each element once, and operations, into the kernel. size: of its iteration space."""
    read: dict[str, list[tuple[Index, int]]] = {}
    for e in (e for e in k.expressions if e.op == "load"):
        gathered = [a for a in e.args if a is not e.extra[2]]                  # an index of one has variables of its own
        walked = variables(e).union(*(variables(part) for a in gathered for part in below(a)))
        n = math.prod(v.size for v in walked) * e.dtype.itemsize
        known = read.setdefault(e.extra[0], [])
        met = next((m for m, (index, _) in enumerate(known) if not disjoint(index, e.index)), None)
        if met is None:
            known.append((e.index, n))
        elif n > known[met][1]:
            known[met] = (e.index, n)
    k.bytes_read = sum(n for loads in read.values() for _, n in loads)
    for s in k.every_store:
        if k.postponed is None or s is not k.postponed.waiting:
            k.bytes_written += math.prod(a.size for a in atoms(s.index) if isinstance(a, Var)) * s.value.dtype.itemsize
    if k.postponed is not None:
        k.bytes_read, k.bytes_written = k.bytes_read + 2 * k.postponed.saved, k.bytes_written + k.postponed.saved
    k.operations = sum(map(weight, k.expressions)) * max(size, 1)


def weight(e: Expr) -> int:
    """Operations that a value costs beside its arguments."""
    return 16 if e.op in HEAVY else 4 if e.op == "round" else 0 if e.op == "const" else 1


def length(kernels: Iterable[Kernel]) -> int:
    """Instructions of an iteration, roughly, of all functions: what a compiler's time grows with, and faster than it."""
    functions = {id(k.same_as or k): k.same_as or k for k in kernels}
    return sum(weight(e) for k in functions.values() for e in k.expressions)
