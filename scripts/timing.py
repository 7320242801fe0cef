"""What the benchmarks share: interleaved medians, and the ways to run a function."""
import random
import time
from dataclasses import dataclass
from typing import Optional

import torch

import tracejit
from tracejit.executors.cpu import CpuExecutor


@dataclass(frozen=True)
class Row:
    """One line of a table: seconds of each way to run the same thing."""
    name: str
    eager: float
    tracejit: float
    inductor: Optional[float] = None


executor = "cpu"             # or "torch": what `tracejit.jit` does when it is told nothing


def compile_with_tracejit(fn, kernels=None):
    """kernels: a directory of compiled kernels of its own; None: the user's cache."""
    if executor == "torch":
        return tracejit.jit(fn, fallback="error")
    return tracejit.jit(fn, executors=[CpuExecutor(kernel_cache=kernels)], fallback="error")


def compile_with_inductor(fn):
    """A fresh compile: nothing remembered from an earlier one in this process."""
    torch.compiler.reset()
    return torch.compile(fn)


def seconds(fn, args, calls=1):
    start = time.perf_counter()
    for _ in range(calls):
        fn(*args)
    return (time.perf_counter() - start) / calls


def take_turns(runs, samples, calls, quantile=0.5):
    """Medians (or another quantile) of the time of one call of each (fn, args), taking turns so that all see the same machine.

    In random order: what a call leaves in the caches, lines to write back above all, is paid for by the next."""
    taken, order = [[] for _ in runs], random.Random(0)
    for _ in range(samples):
        for k in order.sample(range(len(runs)), len(runs)):
            taken[k].append(seconds(*runs[k], calls))
    return [sorted(t)[int(quantile * len(t))] for t in taken]


def interleaved(ways, make_args, samples, calls, quantile=0.5):
    runs = [(fn, make_args()) for fn in ways]
    for fn, args in runs:
        seconds(fn, args, 3)
    return take_turns(runs, samples, calls, quantile)


def steady(name, fn, make_args, opts, calls):
    ways = [fn, compile_with_tracejit(fn)] + ([compile_with_inductor(fn)] if opts.inductor else [])
    return Row(name, *interleaved(ways, make_args, opts.samples, calls, opts.quantile))


def in_units(value):
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if abs(value) * scale >= 1:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e6:.2f} us"
