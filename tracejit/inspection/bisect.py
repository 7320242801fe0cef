"""Which kernel is wrong: one run in which every fused region is compared with the ops that it replaces."""
from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Callable, Iterator, Optional

import torch

from ..executors.registry import Executor
from ..ir.trace import BoundSymbol
from ..runtime.program import Program
from .kernels import Kernel
from .samples import copies_sharing_memory, region_trace


@dataclass(frozen=True, eq=False)
class Difference:
    """kernel: the first that differs; position: which region it is, from 0; what: the value that differs, and how."""

    kernel: Kernel
    position: int
    what: str

    def __str__(self) -> str:
        return f"region {self.position}, {self.kernel}\n{self.what}"


class ComparingExecutor(Executor):
    """Fuses as `inner` does, and compares each region's results and writes with those of its calls, run one by one.

    `found`: the first difference of the last run.
    """

    def __init__(self, inner: Executor) -> None:
        self.inner, self.name = inner, inner.name
        self.allow_single_op_fusion, self.max_region_ops = inner.allow_single_op_fusion, inner.max_region_ops
        self.passes_over_long_rows, self.postpones_copies = inner.passes_over_long_rows, inner.postpones_copies
        self.regions = 0
        self.found: Optional[Difference] = None

    def can_execute(self, bsym: BoundSymbol) -> bool:
        return self.inner.can_execute(bsym)

    def execute(self, bsym: BoundSymbol) -> BoundSymbol:
        return self.inner.execute(bsym)

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        return self.inner.can_fuse(bsym)

    def fuse(self, region: BoundSymbol) -> Optional[BoundSymbol]:
        return self.inner.fuse(region)

    @contextmanager
    def finishing(self, regions: list[BoundSymbol]) -> Iterator[Callable[[], Optional[list[BoundSymbol]]]]:
        with self.inner.finishing(regions) as inner:
            yield lambda: self._watched(inner())

    def _watched(self, ready: Optional[list[BoundSymbol]]) -> Optional[list[BoundSymbol]]:
        if ready is None:
            return None
        self.regions = len(ready)
        return [replace(r, sym=replace(r.sym, fn=self._comparing(r, position))) for position, r in enumerate(ready)]

    def _comparing(self, fused: BoundSymbol, position: int) -> Callable[..., list]:
        reference = Program(region_trace(fused)).run

        def run(*tensors: torch.Tensor) -> list:
            copied = copies_sharing_memory(tensors)
            expected = reference(*copied)
            got = fused.sym.fn(*tensors)
            if self.found is None:
                what = _difference(fused, (*got, *tensors), (*expected, *copied))
                self.found = Difference(Kernel(fused), position, what) if what else None
            return got
        return run


def _difference(region: BoundSymbol, got: tuple, expected: tuple) -> str:
    for p, a, b in zip((*region.flat_outputs, *region.args), got, expected):
        try:
            torch.testing.assert_close(a, b, equal_nan=True)
        except AssertionError as error:
            return f"{p!r} differs: {error}"
    return ""
