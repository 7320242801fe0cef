"""Regions that tell what they do as they run: for `TRACEJIT_LOG=kernels,bandwidth,profiler`."""
from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import AbstractSet, Any

import torch

from ..ir.trace import BoundSymbol, Trace

TOPICS = frozenset(("kernels", "bandwidth", "profiler"))


class Instrumented:
    """A region's function that reports each launch. bandwidth: time and GB/s on stderr; profiler: a range of
    `torch.profiler` named after the region and the user's lines."""

    def __init__(self, region: BoundSymbol, topics: AbstractSet[str]) -> None:
        self.run = region.sym.fn
        self.source = getattr(self.run, "source", None)
        lines = ", ".join(dict.fromkeys(b.source.short for b in region.subsymbols if b.source.file))
        self.label = f"{region.sym.name} ({lines})" if lines else region.sym.name
        self.nbytes = sum(k.bytes_read + k.bytes_written for k in self.source.kernels) if self.source is not None else 0
        self.timed, self.ranged = "bandwidth" in topics, "profiler" in topics

    def __call__(self, *tensors: torch.Tensor) -> Any:
        if self.ranged:
            with torch.profiler.record_function(self.label):
                return self._launched(tensors)
        return self._launched(tensors)

    def _launched(self, tensors: tuple) -> Any:
        start = time.perf_counter()
        results = self.run(*tensors)
        if self.timed:
            took = time.perf_counter() - start
            print(f"tracejit: {self.label}: {took * 1e6:.1f} us, {self.nbytes / took / 1e9:.2f} GB/s", file=sys.stderr)
        return results


def instrument(trace: Trace, topics: AbstractSet[str]) -> Trace:
    """The trace with its regions instrumented. kernels: also say on stderr which ones there are."""
    made = []
    for b in trace.bound_symbols:
        if b.is_region:
            b = replace(b, sym=replace(b.sym, fn=Instrumented(b, topics)))
            if "kernels" in topics:
                print(f"tracejit: {trace.name}: {b.sym.fn.label} fuses {len(b.subsymbols)} calls and moves "
                      f"{b.sym.fn.nbytes} bytes", file=sys.stderr)
        made.append(b)
    return trace.replace(bound_symbols=tuple(made))
