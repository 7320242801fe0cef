"""CUDA kernels on a device: are they right, and how fast. One command, under four minutes.

    python scripts/gpu_check.py [--json gpu_check.json] [--quick]

It needs torch with CUDA, cupy and networkx, and starts from a checkout. It prints a table, writes JSON, and exits with 1 when
a result is wrong, with 2 when there is nothing to run on.

correct   every program that the shim's tests prove (`tests/cuda/programs.py`), against eager on the device
checks    what needs more than a call (`CHECKS`): a CUDA graph that replays a call on new values, a float that changes from call to
          call, memory that is not aligned, steps of training, kernels that somebody else launches, an index out of bounds
workloads GB/s of the benchmark's workloads beside a device copy of the same bytes, eager and torch.compile; peak memory
launch    what a cached call of one kernel costs, in microseconds
"""
from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests" / "cuda")]

import torch
from torch.utils._pytree import tree_leaves, tree_map

import tracejit
from programs import PROGRAMS
from tracejit.executors import nvrtc
from tracejit.executors.cupy import CupyExecutor, missing
from workloads import WORKLOADS, least_bytes

TIME_LEFT = 150              # seconds after which workloads are no longer compiled by inductor
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def on(device, args):
    return tree_map(lambda a: a.to(device, copy=True) if isinstance(a, torch.Tensor) else a, args)


def jitted(fn):
    return tracejit.jit(fn, executors=[CupyExecutor(allow_single_op_fusion=True)], fallback="error")


def current_device():
    return torch.device("cuda", torch.cuda.current_device())


def tensors(x):
    return [t.detach() for t in tree_leaves(x) if isinstance(t, torch.Tensor)]


def differences(got, wanted, exact):
    """What is wrong, in words, or ""."""
    for a, b in zip(tensors(got), tensors(wanted), strict=True):
        if a.dtype is not b.dtype or a.shape != b.shape or a.stride() != b.stride():
            return f"{a.dtype} {tuple(a.shape)} {a.stride()} for {b.dtype} {tuple(b.shape)} {b.stride()}"
        rtol = 0 if exact or not a.dtype.is_floating_point else TOLERANCE[a.dtype]
        scale = float(b.double().nan_to_num(0, 0, 0).abs().max()) if b.numel() and rtol else 0
        if not torch.allclose(a.double(), b.double(), rtol=rtol, atol=rtol * max(scale, 1) if rtol else 0, equal_nan=True):
            return f"off by {(a.double() - b.double()).abs().nan_to_num(0).max().item():.3g}"
    return ""


def check(program, device):
    args = program.make()
    eager_args, own_args = on(device, args), on(device, args)
    fn = jitted(program.fn)
    with torch.no_grad():
        wanted, got = program.fn(*eager_args), fn(*own_args)
        wrong = differences((got, own_args), (wanted, eager_args), program.exact)
        again = on(device, args)
        wrong = wrong or differences((fn(*again), again), (wanted, eager_args), program.exact)      # the cached call
    if not wrong and not fn.last_traces[-1].regions:
        wrong = "no kernel was made"
    torch.cuda.synchronize(device)
    return wrong


def seconds(fn, args, budget=0.15):
    """Median time of a call on the device, by events."""
    for _ in range(3):
        fn(*args)
    torch.cuda.synchronize()
    times, end = [], time.perf_counter() + budget
    while len(times) < 5 or time.perf_counter() < end and len(times) < 100:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        fn(*args)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return median(times)


def moved_bytes(workload, args, device):
    copies = on(device, args)
    return least_bytes(workload, args, copies, workload.fn(*copies))


def copy_rate(nbytes, device):
    """GB/s of a device copy that moves this many bytes."""
    source = torch.empty(max(nbytes // 2, 1), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), (), 0.05) / 1e9


def measure(workload, device, with_inductor):
    args = on(device, workload.make())
    fn = jitted(workload.fn)
    with torch.no_grad():
        start = time.perf_counter()
        fn(*on(device, args))
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        nbytes = moved_bytes(workload, args, device)
        row = {"workload": workload.name, "MB": nbytes / 1e6, "first_ms": first * 1e3, "copy_GBs": copy_rate(nbytes, device)}
        for name, run in [("tracejit", fn), ("eager", workload.fn), *([("inductor", torch.compile(workload.fn))] if with_inductor else [])]:
            own = on(device, args)
            torch.cuda.reset_peak_memory_stats()
            taken = seconds(run, own)
            row |= {f"{name}_us": taken * 1e6, f"{name}_GBs": nbytes / taken / 1e9, f"{name}_peak_MB": torch.cuda.max_memory_allocated() / 1e6}
    return row


def launch_cost(device):
    """Microseconds that the host needs for a cached call of one kernel, and eager for its three ops."""
    x, y = (torch.randn(64, device=device) for _ in range(2))
    def step(x, y):
        return (x + y).relu() * 2
    fn, found = jitted(step), {}
    for name, run in (("tracejit", fn), ("eager", step)):
        for _ in range(100):
            run(x, y)
        torch.cuda.synchronize()
        samples = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(50):
                run(x, y)
            samples.append((time.perf_counter() - start) / 50)
            torch.cuda.synchronize()
        found[f"{name}_us"] = median(samples) * 1e6
    return found


def graph_capture(device):
    """A captured call, replayed on new values; what is wrong, or ""."""
    fn = jitted(lambda x: torch.softmax(x * 2, -1))
    x = torch.randn(64, 1000, device=device)
    with torch.no_grad():
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            fn(x), fn(x)
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = fn(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize(device)
        return differences(out, torch.softmax(x * 2, -1), exact=False)


def changing_float(device):
    """A learning rate that changes: one entry for all but its first value."""
    def step(p, g, rate):
        p.add_(g, alpha=-rate)
        return p * rate
    fn, g = jitted(step), torch.randn(1003, device=device)
    own, eager = torch.ones(1003, device=device), torch.ones(1003, device=device)
    for rate in (0.1, 0.03, 0.01, 0.7):
        with torch.no_grad():
            wrong = differences((fn(own, g, rate), own), (step(eager, g, rate), eager), exact=False)
        if wrong:
            return wrong
    return "" if fn.cache_info().misses == 2 else f"{fn.cache_info().misses} entries"


def not_aligned(device):
    """The same entry on memory that begins at 16 bytes, and on memory that does not."""
    fn, x = jitted(lambda x: x * 2 + 1), torch.randn(1025, device=device)
    with torch.no_grad():
        return differences([fn(x[:1024]), fn(x[1:])], [x[:1024] * 2 + 1, x[1:] * 2 + 1], exact=False)


def training(device):
    """Losses and weights of three steps beside eager's."""
    torch.manual_seed(0)
    own = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(device)
    eager, losses = copy.deepcopy(own), ([], [])
    x, target = torch.randn(32, 64, device=device), torch.randint(8, (32,), device=device)

    def loss_of(model):
        return torch.nn.functional.cross_entropy(model(x), target)
    for model, run, found in ((own, jitted(loss_of), losses[0]), (eager, loss_of, losses[1])):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = run(model)
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
    return differences((losses[0], list(own.parameters())), (losses[1], list(eager.parameters())), exact=False)


def raw_kernel(device):
    """A kernel that is taken away and launched by hand."""
    fn, x = jitted(lambda x: x.relu() * 2), torch.randn(4096, device=device)
    with torch.no_grad():
        wanted = fn(x)
    (kernel,), out = fn.kernels, torch.empty_like(x)
    ((launch,), (raw,)) = fn.last_traces[-1].regions[0].sym.fn.source.launches, kernel.raw_kernel()
    given = tuple(x.data_ptr() if p.constant else out.data_ptr() for p in launch.parameters)
    raw((launch.grid, launch.copies, 1), (launch.block, 1, 1), given)
    torch.cuda.synchronize(device)
    return differences(out, wanted, exact=True)


def out_of_bounds(device):
    """In a process of its own, which cannot use the device afterwards."""
    done = subprocess.run([sys.executable, __file__, "--trap"], capture_output=True, text=True, timeout=60)
    told = "index out of range in self" in done.stderr and Path(__file__).name in done.stderr
    return "" if done.returncode and told else f"exit status {done.returncode}: {done.stderr[-300:]}"


def trap():
    fn = jitted(lambda w, i: torch.nn.functional.embedding(i, w) * 2)
    with torch.no_grad():
        fn(torch.ones(5, 8, device="cuda"), torch.tensor([1, 5], device="cuda"))
    torch.cuda.synchronize()


CHECKS = {"graph": graph_capture, "a float that changes": changing_float, "memory that is not aligned": not_aligned,
          "training": training, "raw kernel": raw_kernel, "index out of bounds": out_of_bounds}


def attempted(what, run, errors):
    """Its result, or None, with the error kept."""
    try:
        return run()
    except Exception as error:                                 # a check goes on to the next program, and fails at the end
        errors.append({"what": what, "wrong": f"{type(error).__name__}: {error}"})
        traceback.print_exc(limit=-3)
        return None


def table(rows, columns):
    texts = [[f"{v:.1f}" if isinstance(v, float) else str(v) for v in (r.get(c, "-") for c in columns)] for r in rows]
    widths = [max(map(len, column)) for column in zip(columns, *texts)]
    for line in [list(columns), *texts]:
        print("  ".join(v.ljust(w) if n == 0 else v.rjust(w) for n, (v, w) in enumerate(zip(line, widths))))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", default="gpu_check.json")
    parser.add_argument("--quick", action="store_true", help="correctness alone")
    parser.add_argument("--trap", action="store_true", help="do nothing but read an index out of bounds")
    options = parser.parse_args(arguments)
    why = "torch sees no CUDA device" if not torch.cuda.is_available() else missing()
    if why:
        print(f"nothing to run on: {why}")
        return 2
    if options.trap:
        return trap()
    start, device = time.perf_counter(), current_device()
    report = {"device": torch.cuda.get_device_name(device), "torch": torch.__version__, "nvrtc": ".".join(map(str, nvrtc.version())),
              "errors": [], "workloads": []}
    errors = report["errors"]
    runs = {**{p.name: lambda p=p: check(p, device) for p in PROGRAMS}, **{what: lambda f=f: f(device) for what, f in CHECKS.items()}}
    for what, run in runs.items():
        wrong = attempted(what, run, errors)
        if wrong:
            errors.append({"what": what, "wrong": wrong})
    report["checked"] = len(runs)
    print(f"{report['device']}: {len(runs) - len({e['what'] for e in errors})} of {len(runs)} programs and checks as eager")
    report["launch"] = attempted("launch", lambda: launch_cost(device), errors)
    if not options.quick:
        for w in WORKLOADS:
            late = time.perf_counter() - start > TIME_LEFT
            row = attempted(w.name, lambda w=w: measure(w, device, not late), errors)
            report["workloads"] += [row] if row else []
        table(report["workloads"], ("workload", "MB", "tracejit_us", "eager_us", "inductor_us", "tracejit_GBs", "copy_GBs", "tracejit_peak_MB",
                                    "eager_peak_MB", "first_ms"))
    print("launch:", report["launch"], " seconds:", round(time.perf_counter() - start))
    for e in errors:
        print(f"WRONG {e['what']}: {e['wrong']}")
    Path(options.json).write_text(json.dumps(report, indent=1))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
