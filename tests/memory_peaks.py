"""Peak memory of programs in eager and fused, in bytes per byte of the largest argument: `python -m tests.memory_peaks`.

Resident memory of this process is what counts, with what tracejit keeps for the next call: its high-water mark is reset
before the second call of a program and read after it. Linux only.
"""
from __future__ import annotations

import gc
import json
from pathlib import Path

import torch
import torch.nn.functional as F

import tracejit

ROWS, COLUMNS = 3072, 4096           # beyond what malloc keeps for itself
NBYTES = 4 * ROWS * COLUMNS


def chain(x, y):
    for _ in range(4):
        x = torch.tanh(x * 2 + y)
    return x


def softmax_of_product(x, y):
    return F.softmax(x * y, -1)


def swiglu(x, y):
    return (F.silu(x) * y).mul_(2).add_(1)


def matmul_between(x, y):
    """What was dropped before the second product is kept for the next call: one more than eager."""
    h = F.gelu(x + y) @ y[:64].t()
    return F.relu(h + 1) @ y[:64] + x


def step(x, y):
    x.mul_(0.9).add_(y, alpha=0.1)
    y.addcdiv_(x, x.abs().sqrt() + 1e-8, value=-0.1)


def stencil(x, y):
    x[1:-1, 1:-1] = 0.25 * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])
    return x


def norm_and_residual(x, y):
    return F.layer_norm(x + y, (COLUMNS,)) + x


def slices(x, y):
    h = COLUMNS // 2
    a, b = x[:, :h] * y[:, :h], x[:, h:] - y[:, h:]
    x[:, :h] = b
    x[:, h:] = a
    return x.sum()


def layers(x, y):
    for _ in range(6):
        x = F.gelu(x + 1) @ y[:64].t() @ y[:64]
    return x


PROGRAMS = (chain, softmax_of_product, swiglu, matmul_between, step, stencil, norm_and_residual, slices, layers)


def status(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def peak(fn, compiled) -> float:
    gc.collect()
    x, y = torch.rand(ROWS, COLUMNS), torch.rand(ROWS, COLUMNS)
    before = status("VmRSS")
    compiled(x, y)                                             # capture may run an op on scratch memory
    Path("/proc/self/clear_refs").write_text("5")
    compiled(x, y)
    return (status("VmHWM") - before) / NBYTES


def main() -> None:
    torch.manual_seed(0)
    tracejit.jit(chain, executors=["cpu"], fallback="error")(torch.rand(8, 8), torch.rand(8, 8))     # what it imports takes memory
    found = {}
    for fn in PROGRAMS:
        found[fn.__name__] = peak(fn, fn), peak(fn, tracejit.jit(fn, executors=["cpu"], fallback="error"))
    print(json.dumps(found, indent=0))


if __name__ == "__main__":
    main()
