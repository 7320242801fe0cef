"""Programs for CUDA kernels, as data: the shim proves them without a device, `scripts/gpu_check.py` runs them on one."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch
from torch.nn import functional as F


@dataclass(frozen=True)
class Program:
    """make: its arguments, on the CPU. exact: the bits are eager's; else results are compared within a few units in the last
    place, sums with their largest as the measure."""

    name: str
    fn: Callable
    make: Callable[[], tuple]
    exact: bool = False
    whole: bool = True                   # every call is part of a kernel


PROGRAMS: list[Program] = []


def add(name: str, fn: Callable, *shapes: tuple, dtype: torch.dtype = torch.float32, make: Callable | None = None, **more) -> None:
    PROGRAMS.append(Program(name, fn, make or (lambda: tuple(values(s, dtype, n) for n, s in enumerate(shapes))), **more))


def values(shape: tuple, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    if not dtype.is_floating_point:
        return torch.randint(-20 if dtype.is_signed else 0, 20, shape, generator=g).to(dtype)
    return torch.randn(shape, generator=g).to(dtype)


def indices(n: int, count: int) -> torch.Tensor:
    return torch.randint(0, n, (count,), generator=torch.Generator().manual_seed(7))


# ------------------------------------------------------------ pointwise

for n in (1003, 1, 3, 4, 5, 255, 4097):
    add(f"abs+1 of {n}", lambda x: x.abs() + 1, (n,), exact=True)
for name, fn, shapes in [
        ("row broadcast", lambda x, b: x + b, ((16, 64), (64,))), ("column broadcast", lambda x, b: x * b, ((16, 64), (16, 1))),
        ("odd broadcast", lambda x, b: x - b, ((5, 7, 9), (7, 1))), ("step 2", lambda x: x[:, 1::2] + 1, ((8, 64),)),
        ("flip", lambda x: x.flip(1) * 2, ((8, 64),)), ("expand", lambda x: x.expand(4, 8, 64) + 1, ((8, 64),)),
        ("cat at chunks", lambda x: torch.cat([x[:, 32:], x[:, :32]], 1) * 2, ((8, 64),)),
        ("cat between chunks", lambda x: torch.cat([x[:, 33:], x[:, :33]], 1) * 2, ((8, 64),)),
        ("pad", lambda x: F.pad(x, (1, 3, 2, 0)) + 1, ((8, 60),)), ("tril", lambda x: x.tril() + 1, ((24, 24),)),
        ("regroup", lambda x: x.view(4, 2, 64).transpose(0, 1).reshape(8, 64) + 1, ((8, 64),)),
        ("roll", lambda x: x.roll(3, 1) - x, ((8, 64),)), ("interleave", lambda x: torch.stack([x, x * 2], 2).view(8, 128) + 1, ((8, 64),)),
        ("two results", lambda x: (x + 1, (x > 0)), ((8, 64),)), ("scalar", lambda x: x * 2 + 1, ((),))]:
    add(name, fn, *shapes, exact=True)
SPECIAL = torch.tensor([0.0, -0.0, float("nan"), 1e-40, -1.0, 20.0, -20.0, 0.5])
for name, fn in [
        ("exp", torch.exp), ("tanh", torch.tanh), ("sigmoid", torch.sigmoid), ("silu", F.silu), ("gelu", F.gelu),
        ("gelu tanh", lambda x: F.gelu(x, approximate="tanh")), ("erf", torch.erf), ("sin", torch.sin), ("log1p", torch.log1p),
        ("expm1", torch.expm1), ("rsqrt", torch.rsqrt), ("floor", torch.floor), ("round", torch.round), ("sign", torch.sign),
        ("relu", torch.relu), ("softplus", F.softplus), ("elu", F.elu), ("cube", lambda x: x ** 3), ("pow", lambda x: x ** 2.5),
        ("fmod", lambda x: torch.fmod(x, 0.3)), ("remainder", lambda x: torch.remainder(x, -0.3)),
        ("atan2", lambda x: torch.atan2(x, x + 1)), ("clamp", lambda x: x.clamp(-0.5, 0.5)),
        ("where", lambda x: torch.where(x > 0, x, -x * 2)), ("lerp", lambda x: torch.lerp(x, x * 2, 0.3)),
        ("addcmul", lambda x: torch.addcmul(x, x, x, value=0.3)), ("isnan", lambda x: torch.isnan(x)),
        ("between", lambda x: (x > 0) & (x < 1)), ("to bf16 and back", lambda x: x.to(torch.bfloat16).float())]:
    add(name, fn, make=lambda: (torch.cat([values((120,)), SPECIAL]),))
for dtype in (torch.bfloat16, torch.float16):
    add(f"rounding {dtype}", lambda x, y: (x + y) * 1.1 - y / 3, (64, 64), (64,), dtype=dtype, exact=True)
for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
    add(f"arithmetic {dtype}", lambda x, y: x * y + x - 3, (32, 64), (64,), dtype=dtype, exact=True)

# ------------------------------------------------------------ reductions


def softmax(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


for rows, n in [(7, 96), (3, 1), (5, 3), (4, 64), (2, 1024), (3, 1000), (2, 4096), (2, 5001), (4, 12000)]:
    add(f"softmax of {n}", lambda x: torch.softmax(x, -1), (rows, n))
    add(f"layer norm of {n}", lambda x: F.layer_norm(x, x.shape[-1:]), (rows, n))
for name, fn in [
        ("sum of rows", lambda x: x.sum(-1)), ("mean of outer dims", lambda x: x.mean((0, 2))), ("amax of the middle", lambda x: x.amax(1)),
        ("argmax", lambda x: x.argmax(-1)), ("var_mean", lambda x: torch.var_mean(x, -1)),
        ("norm", lambda x: torch.linalg.vector_norm(x, dim=-1)), ("logsumexp", lambda x: torch.logsumexp(x, -1)),
        ("prod", lambda x: x.prod(-1)), ("any", lambda x: (x > 0).any(-1)), ("all", lambda x: (x > -9).all(1)),
        ("sum of columns", lambda x: x.sum(0)), ("softmax of columns", lambda x: torch.softmax(x, 0)), ("std", lambda x: x.std(1)),
        ("max and index", lambda x: x.max(-1)), ("amin of two dims", lambda x: x.amin((0, 1))),
        ("log_softmax", lambda x: F.log_softmax(x, 1)), ("sum of all", lambda x: x.sum()),
        ("sum in double", lambda x: x.to(torch.float64).sum(0))]:
    add(name, fn, (6, 40, 36))
for dtype in (torch.bfloat16, torch.float16):
    add(f"softmax {dtype}", lambda x, w: softmax(x) * w, (6, 512), (512,), dtype=dtype)
    add(f"layer norm {dtype}", lambda x, w, b: F.layer_norm(x, (512,), w, b), (6, 512), (512,), (512,), dtype=dtype)
for dtype in (torch.int64, torch.int8, torch.bool, torch.uint8, torch.int16, torch.int32):
    add(f"reductions {dtype}", lambda x: (x.sum(-1), x.amax(0), x.amin(-1)), (9, 70), dtype=dtype, exact=True)
for shape, dim in [((1, 70000), -1), ((200000,), 0), ((4096, 8), 0), ((3000, 40), 0), ((2, 30000), 1)]:
    add(f"sum over {dim} of {shape}", lambda x, dim=dim: (x * 2).sum(dim), shape)
add("softmax of a row that blocks share", lambda x: torch.softmax(x, -1), (1, 70004))
add("layer norm of rows that blocks share", lambda x: F.layer_norm(x, x.shape[-1:]), (3, 70001))
add("softmax of short columns", lambda x: torch.softmax(x, 1), (2, 100, 68))
add("softmax of few long columns", lambda x: torch.softmax(x, 0), (2048, 12))
add("cross entropy", lambda x, t: F.cross_entropy(x, t), make=lambda: (values((16, 100)), indices(100, 16)))
add("batch norm", lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True, 0.1, 1e-5), (4, 5, 6, 8), (5,), make=lambda: (
    values((4, 5, 6, 8)), torch.zeros(5), torch.ones(5), values((5,), seed=1), values((5,), seed=2)))

# ------------------------------------------------------------ movement and memory

for shape in ((40, 40), (100, 70), (33, 1), (64, 32), (3, 50, 20)):
    add(f"transpose {shape}", lambda x: x.transpose(-1, -2).contiguous() + 1, shape, exact=True)
for dtype in (torch.bfloat16, torch.float64, torch.uint8):
    add(f"transpose {dtype}", lambda x: x.t().contiguous() + 1, (70, 50), dtype=dtype, exact=True)
add("transpose and operand", lambda x, y: x.t() + y, (48, 40), (40, 48), exact=True)
add("NHWC to NCHW", lambda x: x.permute(0, 3, 1, 2).float().contiguous() / 255, make=lambda: (values((2, 8, 12, 3), torch.uint8),))
add("embedding", lambda w, i: F.embedding(i, w) * 2, make=lambda: (values((50, 64)), indices(50, 20)), exact=True)
add("gather", lambda x, i: x.gather(1, i[:, None]) + 1, make=lambda: (values((20, 50)), indices(50, 20)), exact=True)
add("index", lambda x, i: x[i, :] - x[i.flip(0), :], make=lambda: (values((50, 33)), indices(50, 20) - 50), exact=True)
add("index_select", lambda x, i: x.index_select(1, i) * 2, make=lambda: (values((20, 50)), indices(50, 7)), exact=True)


def cache_step(cache, k):
    cache[3].mul_(0.9).add_(k)
    k.relu_()
    return cache[3:5] * 2


def transpose_in_place(x):
    return x.copy_(x.t() + 1)


def shifted(x):
    x[1:] = x[:-1] * 2
    return x.sum(0)


def heat(u):
    u[1:-1, 1:-1] = u[1:-1, 1:-1] + 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])


def from_corners(u):
    u[1:-1, 1:-1, 1:] = u[:-2, :-2, :-1] - u[2:, 2:, 1:] * 2 + u[1:-1, 1:-1, 1:]


def scaled_by_its_rows(x, scale):
    y = x * scale[:, None]
    scale.copy_(y.sum(-1))
    return y


def swap(x):
    x[0], x[-1] = x[-1].clone(), x[0].clone()
    return x + 1


def column_write(cache, k, pos=5):
    cache[:, :, pos] = k
    return cache[:, :, :8].sum(-1)


def steps(params, grads):
    for p, g in zip(params, grads):
        p.mul_(0.9).add_(g, alpha=0.1)


add("steps on many tensors", steps, make=lambda: tuple([values((96,), seed=n + 7 * k) for n in range(5)] for k in range(2)), exact=True)
add("a float of a tensor", lambda x, n: x * (1 - 0.9 ** n.item()) + 1, make=lambda: (values((64, 33)), torch.tensor(3.0)), exact=True, whole=False)
add("cache step", cache_step, (8, 64), (64,), exact=True)
add("transpose in place", transpose_in_place, (40, 40), exact=True)
add("shift in place", shifted, (9, 64))
for shape in ((5, 7), (150, 333), (2050, 70)):
    add(f"stencil in place {shape}", heat, shape, exact=True)
for dtype in (torch.bfloat16, torch.uint8, torch.float64):
    add(f"corners in place {dtype}", from_corners, (20, 60, 70), dtype=dtype, exact=True)
add("rows that scale", scaled_by_its_rows, (6, 200), (6,))
add("swap of rows", swap, (6, 64), exact=True, whole=False)
add("column write", column_write, (2, 3, 16), (2, 3))
