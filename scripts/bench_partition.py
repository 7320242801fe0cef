"""How long partitioning takes: seconds for synthetic traces of 1k, 3k and 10k calls, and what became of them.

    python scripts/bench_partition.py [--sizes 1000 3000 10000] [--repeat 3] [--first-calls]

"blocks": transformer-like layers (matmuls, norms, softmax, rotary halves, cache writes); "chain": one long pointwise chain;
"foreach": optimizer steps over many parameters; "slices": reads and writes of disjoint slices of one buffer.
--first-calls: instead, whole first calls of a program of so many calls (matmuls, pointwise work, slice writes, means), with nothing
on disk: seconds of this process, of its compilers, and on the clock.
"""
from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace

import torch

import tracejit
from tracejit.executors.cpu import CpuExecutor
from tracejit.executors.registry import Executor
from tracejit.executors.torch_fallback import TORCH
from tracejit.ir.proxy import TensorProxy, contiguous_stride
from tracejit.ir.symbol import aten_symbol
from tracejit.ir.trace import BoundSymbol, Modes, Trace
from tracejit.partition.regions import partition
from tracejit.passes.builder import Builder
from tracejit.passes.inplace_check import inplace_check

aten = torch.ops.aten


class Pretend(Executor):
    """Fuses what a kernel could hold and compiles nothing."""

    name = "pretend"

    def can_execute(self, bsym: BoundSymbol) -> bool:
        return False

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        s = bsym.sym
        return s.is_copy or not bsym.written and (
            bsym.is_view or s.pointwise or torch.Tag.reduction in s.overload.tags or s.packet in ("cat", "gather"))

    def fuse(self, region: BoundSymbol) -> BoundSymbol:
        return region


class Program:
    """A trace in the making: `p(op, ...)` appends a call."""

    def __init__(self) -> None:
        self.inputs: list[TensorProxy] = []
        self.builder = Builder(1 << 20, Modes(grad=False))

    def input(self, *shape: int) -> TensorProxy:
        n = len(self.inputs)
        self.inputs.append(TensorProxy(f"a{n}", shape, contiguous_stride(shape), torch.float32, torch.device("cpu"), n))
        return self.inputs[-1]

    def __call__(self, op, *args, **kwargs):
        return self.builder.call(aten_symbol(op), *args, **kwargs)

    def copy_(self, target: TensorProxy, value: TensorProxy) -> None:
        self.builder.bind(aten_symbol(aten.copy_.default), (target, value), {}, target)

    def __len__(self) -> int:
        return len(self.builder.bound_symbols)

    def trace(self, *results: TensorProxy) -> Trace:
        return Trace("bench", tuple(self.inputs), tuple(self.builder.bound_symbols), results, notes={"modes": Modes(grad=False)})


def norm(p: Program, x: TensorProxy, w: TensorProxy) -> TensorProxy:
    mean = p(aten.mean.dim, p(aten.mul.Tensor, x, x), [-1], True)
    return p(aten.mul.Tensor, p(aten.mul.Tensor, x, p(aten.rsqrt.default, mean)), w)


def blocks(size: int) -> Trace:
    p = Program()
    x, w, m = p.input(16, 128), p.input(128), p.input(128, 128)
    while len(p) < size:
        cache = p.input(64, 128)
        h = norm(p, x, w)
        q, k = p(aten.mm.default, h, m), p(aten.mm.default, h, m)
        low, high = p(aten.slice.Tensor, q, 1, 0, 64), p(aten.slice.Tensor, q, 1, 64, 128)
        q = p(aten.cat.default, [p(aten.neg.default, high), low], 1)
        p.copy_(p(aten.slice.Tensor, cache, 0, 3, 19), k)
        s = p(aten.mm.default, q, p(aten.t.default, cache))
        e = p(aten.exp.default, p(aten.sub.Tensor, s, p(aten.amax.default, s, [-1], True)))
        s = p(aten.div.Tensor, e, p(aten.sum.dim_IntList, e, [-1], True))
        x = p(aten.add.Tensor, x, p(aten.mm.default, s, cache))
        g = p(aten.mm.default, norm(p, x, w), m)
        x = p(aten.add.Tensor, x, p(aten.mm.default, p(aten.mul.Tensor, g, p(aten.sigmoid.default, g)), m))
    return p.trace(x)


def chain(size: int) -> Trace:
    p = Program()
    x, y = p.input(64, 128), p.input(64, 128)
    while len(p) < size:
        x = p(aten.tanh.default, p(aten.add.Tensor, x, y))
    return p.trace(x)


def foreach(size: int) -> Trace:
    p = Program()
    while len(p) < size:
        w, g, m = p.input(300 + len(p), 7), p.input(300 + len(p), 7), p.input(300 + len(p), 7)
        new = p(aten.add.Tensor, p(aten.mul.Tensor, m, 0.9), g)
        p.copy_(m, new)
        p.copy_(w, p(aten.sub.Tensor, w, p(aten.mul.Tensor, new, 0.1)))
    return p.trace()


def slices(size: int) -> Trace:
    p = Program()
    buffer = p.input(size, 16)
    row = 0
    while len(p) < size:
        here = p(aten.slice.Tensor, buffer, 0, row, row + 1)
        p.copy_(here, p(aten.mul.Tensor, p(aten.sin.default, here), 2))
        row += 1
    return p.trace()


def layers(x: torch.Tensor, w: torch.Tensor, size: int) -> torch.Tensor:
    """About `size` calls."""
    for _ in range(size // 11):
        h = torch.tanh((x @ w) * 0.1 + x)
        h[:, 0] = 0
        x = (h - h.mean(-1, keepdim=True)) * 0.5 + x
    return x


def first_calls(sizes: list[int]) -> None:
    x, w = torch.randn(16, 16), torch.randn(16, 16)
    tracejit.jit(torch.exp, executors=["cpu"])(x)              # imports
    print(f"{'calls':>6} {'regions':>8} {'seconds':>8} {'compilers':>10} {'clock':>8} {'us/call':>8}")
    for size in sizes:
        with torch.no_grad(), tempfile.TemporaryDirectory() as kernels:
            jitted = tracejit.jit(layers, executors=[CpuExecutor(kernel_cache=kernels)], fallback="error")
            clock, own, children = time.perf_counter(), time.process_time(), os.times().children_user
            jitted(x, w, size)
            own = time.process_time() - own
            calls = len(jitted.last_traces[1].bound_symbols)
            print(f"{calls:6} {len(jitted.last_traces[-1].regions):8} {own:8.2f} {os.times().children_user - children:10.2f} "
                  f"{time.perf_counter() - clock:8.2f} {1e6 * own / calls:8.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="run the in-place checker on each result")
    parser.add_argument("--first-calls", action="store_true", help="whole first calls instead")
    options = parser.parse_args()
    if options.first_calls:
        return first_calls(options.sizes)
    print(f"{'trace':10} {'calls':>6} {'seconds':>8} {'us/call':>8} {'regions':>8} {'alone':>6}")
    for make in (blocks, chain, foreach, slices):
        for size in options.sizes:
            trace = make(size)
            seconds = []
            for _ in range(options.repeat):
                fresh = trace.replace(bound_symbols=tuple(replace(b) for b in trace.bound_symbols))
                start = time.perf_counter()
                made = partition(fresh, [Pretend(), TORCH])
                seconds.append(time.perf_counter() - start)
            if options.check:
                inplace_check(made, trace)
            calls, regions = len(trace.bound_symbols), len(made.regions)
            print(f"{make.__name__:10} {calls:6} {min(seconds):8.3f} {1e6 * min(seconds) / calls:8.1f} {regions:8} "
                  f"{len(made.bound_symbols) - regions:6}", flush=True)


if __name__ == "__main__":
    main()
