#!/usr/bin/env python
"""Kernels of the CPU fuser beside eager and torch.compile, in one process: milliseconds, GB/s, and the time to compile.

    python scripts/bench_kernels.py [--no-inductor] [--only NAME] [--threads N]

Regions are made by hand from neighbouring calls, so this shows the kernels alone: no guards, no partition.
"""
import argparse
import os
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [ROOT, os.path.join(ROOT, "tests")]

import torch

import tracejit
from regions import FuseRuns
from tracejit.executors.cpu import CpuExecutor

ROWS, COLUMNS = 4096, 1024


def softmax(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def layer_norm(x, w, b):
    mean = x.mean(-1, keepdim=True)
    d = x - mean
    return d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-5) * w + b


def rms_norm(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def chain(x):
    return ((((x * 1.1 + 0.5).relu() - 0.25).abs() * 0.75).clamp(max=3.0) + x) * 0.5 * x


def adam(p, g, m, v):
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)
    return p


def rotary(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def normalize_image(x, mean, std):
    return ((x.permute(0, 3, 1, 2).float() / 255 - mean) / std).contiguous()


def workloads():
    def r(*s, dtype=torch.float32):
        return torch.randn(*s).to(dtype)
    big = 16 << 20
    return {
        "pointwise chain, 64 MB": (chain, (r(big),)), "add, 64 MB": (lambda a, b: a + b, (r(big), r(big))),
        "in-place chain, 64 MB": (lambda a: a.mul_(1.5).add_(1), (r(big),)),
        "bias+gelu(tanh)": (lambda a, b: torch.nn.functional.gelu(a + b, approximate="tanh"), (r(ROWS, COLUMNS), r(COLUMNS))),
        "bias+gelu(erf)": (lambda a, b: torch.nn.functional.gelu(a + b), (r(ROWS, COLUMNS), r(COLUMNS))),
        "bias+gelu(tanh) bf16": (lambda a, b: torch.nn.functional.gelu(a + b, approximate="tanh"),
                                 (r(ROWS, COLUMNS, dtype=torch.bfloat16), r(COLUMNS, dtype=torch.bfloat16))),
        "swiglu": (lambda a, b: torch.nn.functional.silu(a) * b, (r(ROWS, COLUMNS), r(ROWS, COLUMNS))),
        "sin+cos+log1p": (lambda a: a.sin() + a.cos() + a.abs().log1p(), (r(ROWS, COLUMNS),)),
        "softmax rows": (softmax, (r(ROWS, COLUMNS),)), "layer_norm rows": (layer_norm, (r(ROWS, COLUMNS), r(COLUMNS), r(COLUMNS))),
        "rms_norm rows": (rms_norm, (r(ROWS, COLUMNS), r(COLUMNS))), "softmax bf16": (softmax, (r(ROWS, COLUMNS, dtype=torch.bfloat16),)),
        "sum rows": (lambda a: (a * 2).sum(1), (r(ROWS, 4 * COLUMNS),)), "sum columns": (lambda a: (a * 2).sum(0), (r(ROWS, 4 * COLUMNS),)),
        "sum all": (lambda a: (a * 2).sum(), (r(ROWS, 4 * COLUMNS),)), "var rows": (lambda a: (a * 2).var(1), (r(ROWS, 4 * COLUMNS),)),
        "argmax rows": (lambda a: (a * 2).argmax(1), (r(ROWS, COLUMNS),)), "sum of few columns": (lambda a: (a * 2).sum(0), (r(1 << 20, 4),)),
        "transpose+add": (lambda a, b: (a.t() + b) * 2, (r(2048, 2048), r(2048, 2048))),
        "transpose+add bf16": (lambda a, b: (a.t() + b) * 2, (r(2048, 2048, dtype=torch.bfloat16), r(2048, 2048, dtype=torch.bfloat16))),
        "adam": (adam, (r(1 << 20), r(1 << 20) * 0.1, r(1 << 20) * 0.1, r(1 << 20).abs() * 0.1)),
        "rotary": (rotary, (r(8, 16, 512, 64), r(512, 64), r(512, 64))),
        "image u8 NHWC -> f32 NCHW": (normalize_image, (torch.randint(0, 255, (16, 224, 224, 3), dtype=torch.uint8), r(3, 1, 1), r(3, 1, 1).abs() + 1)),
        "gather rows": (lambda t, i: torch.nn.functional.embedding(i, t) * 2, (r(50000, 256), torch.randint(0, 50000, (8192,)))),
        "one row of 32768x1024": (lambda a: a[0].add_(1), (r(32768, 1024),)), "tiny": (lambda a, b: (a + b).relu() * 2, (r(64), r(64))),
    }


def seconds(fn, repeats):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        fn()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def kernels_of(fn, args, executor):
    """(compiled callable, its regions)"""
    jitted = tracejit.jit(fn, fallback="error", transforms=(FuseRuns(executor),))
    jitted(*args)
    return jitted, jitted.last_traces[-1].regions


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    executor = CpuExecutor(allow_single_op_fusion=True)
    source, target = torch.randn(16 << 20), torch.empty(16 << 20)
    copy = 2 * source.nbytes / seconds(lambda: target.copy_(source), 15) / 1e9
    print(f"threads {options.threads}; copy_ of 64 MB: {copy:.1f} GB/s")
    print(f"{'workload':28s} {'eager':>9s} {'inductor':>9s} {'tracejit':>9s} {'/eager':>7s} {'/ind.':>6s} {'GB/s':>6s} {'of copy_':>8s} {'first':>7s}")
    ratios = []
    for name, (fn, args) in workloads().items():
        if options.only in name:
            ratios.append(measure(name, fn, args, executor, options, copy))
    known = [r for r in ratios if r]
    if known:
        print(f"geometric mean over inductor: {statistics.geometric_mean(known):.2f}")


def measure(name, fn, args, executor, options, copy):
    start = time.perf_counter()
    jitted, regions = kernels_of(fn, args, executor)
    first = time.perf_counter() - start
    moved = sum(k.bytes_read + k.bytes_written for r in regions for k in r.sym.fn.source.kernels)
    columns = {"eager": lambda: fn(*args), "tracejit": lambda: jitted(*args)}
    if not options.no_inductor:
        torch._dynamo.reset()
        compiled = torch.compile(fn, dynamic=False)
        compiled(*args)
        columns["inductor"] = lambda: compiled(*args)
    rounds = {k: [] for k in columns}
    with torch.no_grad():
        for _ in range(7):
            for k, f in columns.items():
                f()
                rounds[k].append(seconds(f, 3 if moved > 1 << 22 else 200))
    t = {k: min(v) for k, v in rounds.items()}                 # the least disturbed round
    ours, inductor = t["tracejit"], t.get("inductor")
    rate = moved / ours / 1e9
    print(f"{name:28s} {t['eager']*1e3:9.3f} {inductor*1e3 if inductor else 0:9.3f} {ours*1e3:9.3f} {t['eager']/ours:7.2f} "
          f"{inductor/ours if inductor else 0:6.2f} {rate:6.1f} {rate/copy:8.2f} {first*1e3:6.0f}ms", flush=True)
    return inductor / ours if inductor else None


if __name__ == "__main__":
    main()
