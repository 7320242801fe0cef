"""Workloads beside eager and torch.compile: medians of interleaved runs in one process, each result checked first.

    python scripts/bench.py [--inductor] [--only NAME] [--threads N] [--samples N] [--quantile Q] [--tables workloads,calls] [--json FILE]

`x eager` and `x inductor` say how many times faster tracejit is. GB/s is bytes that must move (each argument and result
once) over tracejit's time; `of copy_` compares with a copy of 64 MB. `first` is the first call with no kernel on disk.
"""
import argparse
import json
import math
import os
import platform
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.utils._pytree import tree_leaves, tree_map

from bench_calls import call_overhead, first_calls, writes
from bench_functions import functions
from bench_models import models, processes
from bench_training import memory, training
import timing
from timing import compile_with_inductor, compile_with_tracejit, in_units, seconds, take_turns
from workloads import WORKLOADS, least_bytes

SAMPLE_SECONDS = 0.01        # a sample repeats calls until it takes about this long


@dataclass(frozen=True)
class Measured:
    """Seconds of one workload, and the bytes that it must move."""
    name: str
    eager: float
    tracejit: float
    first: float
    moved: int
    inductor: Optional[float] = None
    inductor_first: Optional[float] = None


# -- workloads -------------------------------------------------------------------------------------

def copied(args):
    return tree_map(lambda a: a.clone() if isinstance(a, torch.Tensor) else a, args)


def check(workload, jitted, args):
    """Results and arguments after the call are eager's, up to rounding."""
    ours, theirs = copied(args), copied(args)
    got, wanted = jitted(*ours), workload.fn(*theirs)
    for a, b in zip(tree_leaves((got, ours)), tree_leaves((wanted, theirs)), strict=True):
        half = isinstance(a, torch.Tensor) and a.dtype in (torch.bfloat16, torch.float16)
        torch.testing.assert_close(a, b, rtol=2e-2 if half else 1e-4, atol=1e-4, equal_nan=True,
                                   msg=lambda m: f"{workload.name}: {m}")
    return wanted, theirs


def measure(workload, opts):
    args = workload.make()
    with tempfile.TemporaryDirectory() as kernels:
        jitted = compile_with_tracejit(workload.fn, kernels)
        first = seconds(jitted, copied(args))
        result, after = check(workload, jitted, args)
        moved = least_bytes(workload, args, after, result)
        ways, inductor_first = [workload.fn, jitted], None
        if opts.inductor:
            ways.append(compile_with_inductor(workload.fn))
            inductor_first = seconds(ways[-1], copied(args))
        runs = [(fn, copied(args)) for fn in ways]
        rough = max(seconds(fn, a, 3) for fn, a in runs)
        calls = max(1, math.ceil(SAMPLE_SECONDS / rough))
        taken = take_turns(runs, opts.samples, calls, opts.quantile)
    return Measured(workload.name, *taken[:2], first, moved, *(taken[2:] or [None]), inductor_first)


def copy_rate(opts):
    source, target = torch.randn(16 << 20), torch.empty(16 << 20)
    return 2 * source.nbytes / take_turns([(target.copy_, (source,))], max(opts.samples, 5), 3, opts.quantile)[0]


def workloads(opts):
    compile_with_tracejit(lambda x: x * 2 + 1)(torch.ones(4))  # imports are no part of these first calls
    if opts.inductor:
        compile_with_inductor(lambda x: x * 2 + 1)(torch.ones(4))
    rate = copy_rate(opts)
    heads = ["eager", "inductor", "tracejit", "x eager", "x inductor", "MB", "GB/s", "of copy_", "first", "inductor's"]
    print(f"\ncopy_ of 64 MB: {rate / 1e9:.1f} GB/s\n{'workload':32}" + "".join(f"{head:>11}" for head in heads))
    rows = []
    for workload in WORKLOADS:
        if opts.only in workload.name:
            rows.append(measure(workload, opts))
            show_measured(rows[-1], rate)
    show_means(rows)
    return rows


def show_measured(m, rate):
    moved = m.moved / m.tracejit
    known = m.inductor is not None
    cells = [in_units(m.eager), in_units(m.inductor) if known else "-", in_units(m.tracejit), f"{m.eager / m.tracejit:.2f}",
             f"{m.inductor / m.tracejit:.2f}" if known else "-", f"{m.moved / 1e6:.3g}", f"{moved / 1e9:.1f}",
             f"{moved / rate:.2f}", in_units(m.first), in_units(m.inductor_first) if known else "-"]
    print(f"{m.name:32}" + "".join(f"{cell:>11}" for cell in cells), flush=True)


def show_means(rows):
    for name in ("eager", "inductor"):
        ratios = [getattr(m, name) / m.tracejit for m in rows if getattr(m, name) is not None]
        if ratios:
            slower = sum(x < 1 for x in ratios)
            print(f"geometric mean over {name}: {statistics.geometric_mean(ratios):.2f} "
                  f"({len(ratios)} workloads; slower on {slower}, at least twice as fast on {sum(x >= 2 for x in ratios)})")


# -- calls -----------------------------------------------------------------------------------------

def show(title, rows, opts):
    """A first call is not set in relation to eager's: what counts there is what it adds."""
    first = title == "first call"
    heads = ["eager", "tracejit", "added"] + ([] if first else ["x eager"])
    heads += ["inductor", "x inductor"] if opts.inductor else []
    print(f"\n{title:64}" + "".join(f"{head:>12}" for head in heads))
    for row in rows:
        cells = [in_units(row.eager), in_units(row.tracejit), in_units(row.tracejit - row.eager)]
        cells += [] if first else [f"{row.eager / row.tracejit:.2f}"]
        if row.inductor is not None:
            cells += [in_units(row.inductor), f"{row.inductor / row.tracejit:.2f}"]
        print(f"  {row.name:62}" + "".join(f"{cell:>12}" for cell in cells))


def calls(opts):
    tables = {}
    for title, table in (("first call", first_calls), ("call with everything cached", call_overhead),
                         ("writes in place", writes)):
        tables[title] = table(opts)
        show(title, tables[title], opts)
    return tables


# -- report ----------------------------------------------------------------------------------------

def machine():
    return {"torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count(),
            "threads": torch.get_num_threads()}


TABLES = {"workloads": workloads, "functions": functions, "models": models, "training": training, "memory": memory,
          "processes": processes}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inductor", action="store_true", help="torch.compile as well (needs a C++ compiler)")
    parser.add_argument("--samples", type=int, default=15, help="of each row, interleaved (default: 15)")
    parser.add_argument("--quantile", type=float, default=0.5, help="of the samples (default: 0.5); lower on a busy machine")
    parser.add_argument("--only", default="", help="workloads and models whose name contains this, and no table of calls")
    parser.add_argument("--executor", choices=("cpu", "torch"), default="cpu", help="of tracejit (default: cpu)")
    parser.add_argument("--threads", type=int, help="of torch (default: as many as it takes)")
    parser.add_argument("--tables", default="calls,workloads", help=f"of calls, {', '.join(TABLES)} (default: the first two)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    return parser.parse_args()


def main():
    opts = parse_options()
    timing.executor = opts.executor
    if opts.threads:
        torch.set_num_threads(opts.threads)
    torch.manual_seed(0)
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    tables = {}
    # Inductor's first calls are to be first ones: nothing on disk from an earlier process.
    with torch.no_grad(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
        if "calls" in opts.tables and not opts.only:
            tables.update(calls(opts))
        for title, table in TABLES.items():
            if title in opts.tables:
                tables[title] = table(opts)
    if opts.json:
        rows = {title: [asdict(row) for row in rows] for title, rows in tables.items()}
        opts.json.write_text(json.dumps({"machine": machine(), "seconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
