"""Rules of operations that move or make elements."""
from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

from ...ir.memory import byte_region
from ...ir.polynomial import LARGEST
from .rules import aten, fits, rule, writer


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
    if abs(diagonal) > LARGEST:                                # no dim is: one that is farther would not differ
        diagonal = LARGEST if diagonal > 0 else -LARGEST
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


def _masked(x: Tensor, indices: list[Optional[Tensor]], values: Tensor) -> Optional[tuple[Tensor, Tensor]]:
    """`x[mask] = values` when every masked place takes the same values: (mask, values), which broadcast to x."""
    if len(indices) != 1 or indices[0].dtype != torch.bool or values.dtype != x.dtype:
        return None
    mask = indices[0]
    rest = x.dim() - mask.dim()
    if mask.shape != x.shape[:mask.dim()] or values.dim() > rest and any(n != 1 for n in values.shape[:values.dim() - rest]):
        return None
    values = values.reshape(values.shape[max(values.dim() - rest, 0):])
    return mask.reshape(*mask.shape, *[1] * rest), values


@writer(aten.index_put_.default)
def masked_put_(x, indices, values, accumulate=False):
    overlapping = byte_region(0, tuple(x.shape), x.stride(), 1).overlaps_itself
    put = NotImplemented if overlapping else masked_put(x, indices, values, accumulate)
    return put if put is NotImplemented else x.copy_(put)


@rule(aten.index_put.default)
def masked_put(x, indices, values, accumulate=False):
    found = _masked(x, indices, values)
    if found is None:
        return NotImplemented
    mask, values = found
    return torch.where(mask, x + values if accumulate else values, x)


@rule(aten.slice_backward.default)
def slice_backward(grad, sizes, dim, start, end, step):
    zeros = torch.full(sizes, 0, dtype=grad.dtype, device=grad.device)
    return aten.slice_scatter.default(zeros, grad, dim, start, end, step)


@rule(aten.select_backward.default)
def select_backward(grad, sizes, dim, index):
    zeros = torch.full(sizes, 0, dtype=grad.dtype, device=grad.device)
    return aten.select_scatter.default(zeros, grad, dim, index)


@rule(aten.diagonal_backward.default)
def diagonal_backward(grad, sizes, offset, dim1, dim2):
    zeros = torch.full(sizes, 0, dtype=grad.dtype, device=grad.device)
    return aten.diagonal_scatter.default(zeros, grad, offset, dim1, dim2)


@rule(aten.diag_embed.default)
def diag_embed(x, offset=0, dim1=-2, dim2=-1):
    rank, n = x.dim() + 1, x.shape[-1] + abs(offset)
    dim1, dim2 = dim1 % rank, dim2 % rank
    sizes = iter(x.shape[:-1])
    zeros = torch.full([n if d in (dim1, dim2) else next(sizes) for d in range(rank)], 0, dtype=x.dtype, device=x.device)
    return aten.diagonal_scatter.default(zeros, x, offset, dim1, dim2)


@rule(aten.rot90.default)
def rot90(x, k=1, dims=(0, 1)):
    a, b = dims
    turned = {0: x, 1: x.flip(b).transpose(a, b), 2: x.flip(a, b), 3: x.flip(a).transpose(a, b)}[k % 4]
    return turned.clone(memory_format=torch.contiguous_format)


@rule(aten.pixel_shuffle.default)
def pixel_shuffle(x, factor):
    *lead, c, h, w = x.shape
    parts = x.reshape(*lead, c // factor ** 2, factor, factor, h, w)
    n = len(lead)
    return parts.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2).reshape(*lead, c // factor ** 2, h * factor, w * factor)


@rule(aten.pixel_unshuffle.default)
def pixel_unshuffle(x, factor):
    *lead, c, h, w = x.shape
    parts = x.reshape(*lead, c, h // factor, factor, w // factor, factor)
    n = len(lead)
    return parts.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3).reshape(*lead, c * factor ** 2, h // factor, w // factor)


@rule(aten.channel_shuffle.default)
def channel_shuffle(x, groups):
    n, c, *rest = x.shape
    return x.reshape(n, groups, c // groups, *rest).transpose(1, 2).reshape(x.shape)


@rule(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(x, padding):
    def sides(x: Tensor, dim: int, low: int, high: int) -> tuple[Tensor, Tensor]:
        n = x.shape[dim]
        return x.narrow(dim, 1, low).flip(dim), x.narrow(dim, n - 1 - high, high).flip(dim)
    return _padded(x, padding, sides)


@rule(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(x, padding):
    def sides(x: Tensor, dim: int, low: int, high: int) -> tuple[Tensor, Tensor]:
        first, last = x.narrow(dim, 0, 1), x.narrow(dim, x.shape[dim] - 1, 1)
        return tuple(edge.expand([k if d == dim else n for d, n in enumerate(x.shape)]) for edge, k in ((first, low), (last, high)))
    return _padded(x, padding, sides)


def _padded(x: Tensor, padding: list[int], sides: Any) -> Any:
    if min(padding) < 0:
        return NotImplemented
    for k in range(len(padding) // 2):
        dim, low, high = x.dim() - 1 - k, padding[2 * k], padding[2 * k + 1]
        left, right = sides(x, dim, low, high)
        x = torch.cat([*([left] if low else []), x, *([right] if high else [])], dim)
    return x


@rule(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default)
def upsample_nearest(x, sizes, *scales):
    """To a multiple of every size, where eager's rounding picks what a repetition picks."""
    lead = x.dim() - len(sizes)
    factors = [m // n for m, n in zip(sizes, x.shape[lead:])]
    if any(m != n * k or s not in (None, k) for m, n, k, s in zip(sizes, x.shape[lead:], factors, (*scales, None, None, None))):
        return NotImplemented
    if not all(map(_repeats, x.shape[lead:], factors)):
        return NotImplemented
    apart = [m for n in x.shape[lead:] for m in (n, 1)]
    spread = [m for n, k in zip(x.shape[lead:], factors) for m in (n, k)]
    copy = x.reshape(*x.shape[:lead], *apart).expand(*x.shape[:lead], *spread).clone(memory_format=torch.contiguous_format)
    return copy.view(*x.shape[:lead], *sizes)


def _repeats(n: int, factor: int) -> bool:
    """Is floor(i * scale), in float32, i // factor for every i?"""
    places = np.arange(n * factor)
    scale = np.float32(1) / np.float32(factor)
    return bool((np.minimum((places.astype(np.float32) * scale).astype(np.int64), n - 1) == places // factor).all())


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


@rule(aten.empty_like.default)
def empty_like(x, *, dtype=None, memory_format=None, **layout):
    """Made from nothing, so that a kernel that overwrites all of it needs no memory for it."""
    if not x.is_contiguous() or memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return NotImplemented
    return torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)


@rule(aten.new_empty.default)
def new_empty(x, size, *, dtype=None, **layout):
    return torch.empty(size, dtype=dtype or x.dtype, device=x.device)


@rule(aten.new_zeros.default)
def new_zeros(x, size, *, dtype=None, **layout):
    return _full(size, 0, x, dtype)


@rule(aten.new_ones.default)
def new_ones(x, size, *, dtype=None, **layout):
    return _full(size, 1, x, dtype)


@rule(aten.new_full.default)
def new_full(x, size, value, *, dtype=None, **layout):
    return _full(size, value, x, dtype)
