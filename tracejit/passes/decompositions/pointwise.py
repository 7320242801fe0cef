"""Rules of pointwise operations and their backwards."""
from __future__ import annotations

import math

import torch
from torch import Tensor

from .rules import aten, fits, one, rule, wide


@rule(aten.silu.default)
def silu(x):
    x = wide(x)
    return x / (1 + torch.exp(-x))


@rule(aten.silu_backward.default)
def silu_backward(grad, x):
    grad, x = wide(grad), wide(x)
    s = 1 / (1 + torch.exp(-x))
    return grad * s * torch.addcmul(one(x), x, 1 - s)          # eager contracts this sum


@rule(aten.sigmoid_backward.default)
def sigmoid_backward(grad, y):
    if y.dtype is torch.bfloat16:                              # eager rounds float16 at every step here
        grad, y = wide(grad), wide(y)
    return grad * (1 - y) * y


@rule(aten.tanh_backward.default)
def tanh_backward(grad, y):
    grad, y = wide(grad), wide(y)
    return grad * torch.addcmul(one(y), y, y, value=-1)        # eager contracts this difference


@rule(aten.threshold_backward.default)
def threshold_backward(grad, x, threshold):
    return torch.where(x <= threshold, 0, grad)


@rule(aten.hardtanh_backward.default)
def hardtanh_backward(grad, x, low, high):
    return torch.where((x > low) & (x < high), grad, 0)


@rule(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad, x, slope, self_is_result):
    return torch.where(wide(x) > 0, wide(grad), wide(grad) * slope)


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(x, mask, value):
    if isinstance(value, Tensor):
        value = value.to(x.dtype)
    elif not fits(value, x.dtype):
        return NotImplemented
    elif not x.dtype.is_floating_point:
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    return torch.where(mask, value, x)


@rule(aten.native_dropout.default)
def native_dropout(x, p, train):
    if train is False or p in (0, 1):
        return NotImplemented
    keep = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    mask = aten.bernoulli.p(keep, 1 - p)                       # the draw stays the one that eager makes
    return (x * mask) * (1 / (1 - p)), mask


@rule(aten.native_dropout_backward.default)
def native_dropout_backward(grad, mask, scale):
    return grad * mask * scale
