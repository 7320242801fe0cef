"""Kernels that are one function and do not depend on each other: called in a loop, or in one launch."""
from __future__ import annotations

from typing import Callable, Hashable

from .kernel import Kernel


def batches(kernels: list[Kernel], function_of: Callable[[Kernel], Hashable]) -> list[list[Kernel]]:
    """Kernels of one function together, in an order that keeps what depends on each other apart.

    Those that may report an error stay where they are.
    """
    found: list[list[Kernel]] = []
    of_function: dict[Hashable, list[int]] = {}
    read: dict[int, int] = {}                                  # storage -> the last batch that reads or writes it
    written: dict[int, int] = {}
    fixed = 0
    for k in kernels:
        own = of_function.setdefault(function_of(k), [])
        first = fixed
        for b in k.buffers.values():
            first = max(first, written.get(b.storage, -1) + 1, read.get(b.storage, -1) + 1 if b.written else 0)
        at = next((n for n in own if n >= first), None) if not k.checks else None
        if at is None:
            at = len(found)
            found.append([])
            own.append(at)
        found[at].append(k)
        fixed = at + 1 if k.checks else fixed
        for b in k.buffers.values():
            noted = written if b.written else read
            noted[b.storage] = max(noted.get(b.storage, -1), at)
    return found
