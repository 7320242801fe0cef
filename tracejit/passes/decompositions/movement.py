"""Rules of operations that move or make elements."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .rules import aten, fits, rule


@rule(aten.stack.default)
def stack(tensors, dim=0):
    if any(t.dtype != tensors[0].dtype for t in tensors):
        return NotImplemented
    return torch.cat([t.unsqueeze(dim) for t in tensors], dim)


@rule(aten.roll.default)
def roll(x, shifts, dims=()):
    if x.dim() == 0:
        return NotImplemented
    if not dims:
        return NotImplemented if len(shifts) != 1 else roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims):
        n = x.shape[dim]
        cut = (n - shift) % n
        if cut:
            x = torch.cat([x.narrow(dim, cut, n - cut), x.narrow(dim, 0, cut)], dim)
    return x


@rule(aten.tril.default)
def tril(x, diagonal=0):
    return _triangle(x, diagonal, lower=True)


@rule(aten.triu.default)
def triu(x, diagonal=0):
    return _triangle(x, diagonal, lower=False)


def _triangle(x: Tensor, diagonal: int, *, lower: bool) -> Tensor:
    rows = torch.arange(x.shape[-2], device=x.device).unsqueeze(1) + diagonal
    columns = torch.arange(x.shape[-1], device=x.device)
    return torch.where(columns <= rows if lower else columns >= rows, x, 0)


@rule(aten.repeat.default)
def repeat(x, repeats):
    if 0 in repeats:
        return NotImplemented
    missing = len(repeats) - x.dim()
    sizes = [1] * missing + list(x.shape)
    apart = [m for r, n in zip(repeats, sizes) for m in (1, n)]
    spread = [m for r, n in zip(repeats, sizes) for m in (r, n)]
    copy = x.reshape(apart).expand(spread).clone(memory_format=torch.contiguous_format)
    return copy.view([r * n for r, n in zip(repeats, sizes)])


@rule(aten.slice_backward.default)
def slice_backward(grad, sizes, dim, start, end, step):
    zeros = torch.full(sizes, 0, dtype=grad.dtype, device=grad.device)
    return aten.slice_scatter.default(zeros, grad, dim, start, end, step)


@rule(aten.select_backward.default)
def select_backward(grad, sizes, dim, index):
    zeros = torch.full(sizes, 0, dtype=grad.dtype, device=grad.device)
    return aten.select_scatter.default(zeros, grad, dim, index)



def _full(shape: Any, value: Any, like: Tensor, dtype: Optional[torch.dtype]) -> Any:
    if not fits(value, dtype or like.dtype):
        return NotImplemented
    return torch.full(list(shape), value, dtype=dtype or like.dtype, device=like.device)


@rule(aten.fill.Scalar)
def fill(x, value):
    return _full(x.shape, value, x, None)


@rule(aten.fill.Tensor)
def fill_tensor(x, value):
    return value.to(x.dtype).expand(x.shape)


@rule(aten.zero.default)
def zero(x):
    return _full(x.shape, 0, x, None)


@rule(aten.zeros_like.default)
def zeros_like(x, *, dtype=None, **layout):
    return _full(x.shape, 0, x, dtype)


@rule(aten.ones_like.default)
def ones_like(x, *, dtype=None, **layout):
    return _full(x.shape, 1, x, dtype)


@rule(aten.full_like.default)
def full_like(x, value, *, dtype=None, **layout):
    return _full(x.shape, value, x, dtype)


@rule(aten.new_zeros.default)
def new_zeros(x, size, *, dtype=None, **layout):
    return _full(size, 0, x, dtype)


@rule(aten.new_ones.default)
def new_ones(x, size, *, dtype=None, **layout):
    return _full(size, 1, x, dtype)


@rule(aten.new_full.default)
def new_full(x, size, value, *, dtype=None, **layout):
    return _full(size, value, x, dtype)
