"""Regions by hand: every run of neighbouring calls that can be fused becomes one region, as a transform for `jit`."""
from __future__ import annotations

from dataclasses import dataclass, field

import torch

import tracejit
from tracejit.executors.cpu import CpuExecutor
from tracejit.ir.memory import overlaps
from tracejit.ir.symbol import Symbol
from tracejit.ir.trace import BoundSymbol, Trace


@dataclass
class FuseRuns:
    """Counts what it fused: `fused` calls in `regions`, and the names of calls it `left` alone."""

    executor: CpuExecutor = field(default_factory=lambda: CpuExecutor(allow_single_op_fusion=True))
    regions: int = 0
    fused: int = 0
    left: list = field(default_factory=list)

    __name__ = "fuse_runs"

    def __call__(self, trace: Trace) -> Trace:
        out, run = [], []
        for n, b in enumerate(trace.bound_symbols):
            if self.executor.can_fuse(b):
                if any(w.storage == a.storage and overlaps(w.bytes, a.bytes)
                       and not (w.same_view(a) and (b.sym.pointwise or b.sym.is_copy))
                       for m in run for w in m.written for a in b.tensor_args):
                    out, run = out + self._close(run, trace), []
                run.append(b)
            else:
                self.left.append(b.sym.name)
                out += [*self._close(run, trace), b]
                run = []
        return trace.replace(bound_symbols=tuple(out + self._close(run, trace)))

    def _close(self, run: list, trace: Trace) -> list:
        if not run or all(not b.written and all(o.storage in {a.storage for a in b.tensor_args} for o in b.tensor_outputs) for b in run):
            return list(run)
        region = region_of(run, trace)
        fused = self.executor.fuse(region)
        done = None
        if fused:
            with self.executor.finishing([fused]) as finished:
                done = finished()
        if not done:
            self.left += [b.sym.name for b in run]
            return list(run)
        self.regions += 1
        self.fused += len(run)
        return done


def region_of(run: list, trace: Trace) -> BoundSymbol:
    made = {o for b in run for o in b.tensor_outputs if o not in b.tensor_args}
    inside = set(map(id, run))
    args = list(dict.fromkeys(a for b in run for a in b.tensor_args if a not in made))
    wanted = {a for b in trace.bound_symbols if id(b) not in inside for a in b.tensor_args} | set(trace.tensor_results)
    outputs = [o for o in dict.fromkeys(o for b in run for o in b.tensor_outputs) if o in made and o in wanted]
    return BoundSymbol(Symbol("cpu_region", lambda *a: None), tuple(args), {}, outputs, run[0].source, tuple(run), run[0].modes, "cpu")


def fused(fn, *args, executor=None, fully=True, check=True):
    """`fn(*args)` through fused kernels; `fully`: nothing but kernels ran (no kernel is made for no elements)."""
    fuse = FuseRuns(executor) if executor is not None else FuseRuns()
    got = tracejit.jit(fn, executors=["torch"], fallback="error", transforms=(fuse,), disable_inplace_copy_check=not check)(*args)
    if fully and all(a.numel() for a in args if isinstance(a, torch.Tensor)):
        assert fuse.regions and not fuse.left, f"not fused: {fuse.left}"
    return got


def random(shape, dtype, *, seed=0):
    """Values of a dtype that exercise its special ones."""
    g = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    if not dtype.is_floating_point:
        return torch.randint(-9 if dtype.is_signed else 0, 10, shape, generator=g).to(dtype)
    return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)
