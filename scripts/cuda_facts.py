"""What the CUDA kernels of the benchmark's workloads move and use, by the generator and by NVRTC; needs no device.

    python scripts/cuda_facts.py [--arch sm_90] [--markdown] [name ...]

bytes: what the kernels load and store, each element of a kernel's operands once, or as often as a later pass reads it again; least: arguments once and results once.
registers, shared, spills: the most of any kernel, as ptxas says.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import tracejit
from workloads import WORKLOADS, Workload, least_bytes


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (1024,), weight, bias)


def sigmoid_digamma(x):
    for _ in range(5):
        x = torch.digamma(torch.sigmoid(x))
    return x


HEADLINES = [
    Workload("layer_norm (10, 512, 1024) f16", layer_norm,
             lambda: (torch.randn(10, 512, 1024).half(), torch.randn(1024).half(), torch.randn(1024).half())),
    Workload("sigmoid and digamma, alternating", sigmoid_digamma, lambda: (torch.rand(1024, 1024) + 0.5,)),
]

# Rows and columns that a block holds, and longer ones, by a block and shared.
HELD = [Workload("layer_norm (64, 32,768)", lambda x: F.layer_norm(x, x.shape[-1:]), lambda: (torch.randn(64, 1 << 15),)),
        Workload("softmax of channels (8, 128, 4096)", lambda x: torch.softmax(x, 1), lambda: (torch.randn(8, 128, 4096),))]
LONGER = [*(Workload(f"layer_norm ({rows}, {n:,})", lambda x: F.layer_norm(x, x.shape[-1:]), lambda rows=rows, n=n: (torch.randn(rows, n),))
            for rows, n in [(64, 1 << 17), (4, 1 << 20)]),
          Workload("softmax (4, 1,048,576)", lambda x: torch.softmax(x, -1), lambda: (torch.randn(4, 1 << 20),)),
          Workload("softmax of columns (4096, 1024)", lambda x: torch.softmax(x, 0), lambda: (torch.randn(4096, 1024),))]


def least(workload, args):
    copies = tree_map(lambda a: a.clone() if isinstance(a, torch.Tensor) else a, args)
    with torch.no_grad():
        result = workload.fn(*copies)
    return least_bytes(workload, args, copies, result)


def facts(workload, arch):
    args = workload.make()
    lowered = tracejit.lower(workload.fn, *args, arch=arch)
    found = [f for k in lowered.kernels for f in k.facts.values()]
    left = sum(not b.is_region and bool(b.tensor_outputs) and not is_view(b) for b in lowered.traces[-1].bound_symbols)
    moved = sum(k.bytes_read + k.bytes_written for k in lowered.kernels)
    return {
        "workload": workload.name, "regions": len(lowered.kernels), "launches": sum(len(k.launches) for k in lowered.kernels),
        "left to torch": left, "bytes": moved, "least": least(workload, args),
        "registers": max((f.registers for f in found), default=0), "shared": max((f.shared for f in found), default=0),
        "spills": sum(f.spills for f in found), "widest": max((w for f in found for w in (*f.loads, *f.stores)), default=0),
    }


def is_view(b):
    return not b.written and all(o.storage in {a.storage for a in b.tensor_args} for o in b.tensor_outputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    chosen = [w for w in [*HEADLINES, *WORKLOADS, *HELD, *LONGER] if not options.names or any(n in w.name for n in options.names)]
    heads = ["workload", "regions", "launches", "left to torch", "MB", "least MB", "ratio", "registers", "shared", "spills", "widest access"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for w in chosen:
        f = facts(w, options.arch)
        row = [f["workload"], f["regions"], f["launches"], f["left to torch"], f"{f['bytes'] / 1e6:.3f}", f"{f['least'] / 1e6:.3f}",
               f"{f['bytes'] / f['least']:.3f}", f["registers"], f["shared"], f["spills"], f["widest"]]
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
