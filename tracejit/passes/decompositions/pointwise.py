"""Rules of pointwise operations and their backwards."""
from __future__ import annotations

import math

import torch
from torch import Tensor

from ...ir.symbol import may_overflow
from .rules import CALLS, MASKED_FILL_VALUE, aten, fits, one, rounded, rule, wide


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


@rule(aten.threshold.default)
def threshold(x, limit, value):
    if not fits(value, x.dtype):
        return NotImplemented
    return torch.where(wide(x) <= limit, torch.full((), value, dtype=x.dtype, device=x.device), x)


@rule(aten.threshold_backward.default)
def threshold_backward(grad, x, limit):
    return torch.where(wide(x) <= limit, 0, grad)


@rule(aten.hardshrink.default)
def hardshrink(x, limit=0.5):
    limit = rounded(limit, x.dtype)
    return torch.where((x >= -limit) & (x <= limit), 0, x)


@rule(aten.softshrink.default)
def softshrink(x, limit=0.5):
    x = wide(x)
    return torch.where(x > limit, x - limit, torch.where(x < -limit, x + limit, x * 0))


@rule(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(grad, x, limit):
    limit = rounded(limit, x.dtype)
    return torch.where((x < -limit) | (x > limit), grad, 0)


@rule(aten.nan_to_num.default)
def nan_to_num(x, nan=None, posinf=None, neginf=None):
    if not x.dtype.is_floating_point:
        return x.clone()
    info = torch.finfo(x.dtype)
    nan, top, bottom = 0 if nan is None else nan, info.max if posinf is None else posinf, info.min if neginf is None else neginf
    if not all(fits(v, x.dtype) for v in (nan, top, bottom)):
        return NotImplemented
    return torch.where(x != x, nan, torch.where(x == math.inf, top, torch.where(x == -math.inf, bottom, x)))


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default, aten.floor_divide.Scalar)
def rounded_division(x, y, *, rounding_mode="floor"):
    """Of halves: one divisor for all is computed with in float32, many step by step in the half type."""
    if rounding_mode is None or not isinstance(x, Tensor) or x.dtype not in (torch.float16, torch.bfloat16):
        return NotImplemented
    if not isinstance(y, Tensor) or y.numel() == 1:
        x, y = wide(x), wide(y) if isinstance(y, Tensor) else y
        return torch.div(x, y, rounding_mode=rounding_mode)
    if y.dtype != x.dtype:
        return NotImplemented
    quotient = x / y
    if rounding_mode == "trunc":
        return torch.trunc(quotient)
    rest = torch.fmod(x, y)
    whole = (x - rest) / y
    whole = torch.where((rest != 0) & ((y < 0) != (rest < 0)), whole - 1, whole)
    floor = torch.floor(whole)
    floor = torch.where(whole - floor > 0.5, floor + 1, floor)
    floor = torch.where(whole == 0, torch.where(torch.signbit(quotient), -0.0, 0.0), floor)
    return torch.where(y == 0, quotient, floor)


@rule(aten.heaviside.default)
def heaviside(x, at_zero):
    return torch.where(x == 0, at_zero, (x > 0).to(x.dtype))


@rule(aten.fmax.default)
def fmax(x, y):
    return _unless_nan(torch.maximum, x, y)


@rule(aten.fmin.default)
def fmin(x, y):
    return _unless_nan(torch.minimum, x, y)


def _unless_nan(extreme, x, y):
    if x.dtype != y.dtype or not x.dtype.is_floating_point:
        return NotImplemented
    return torch.where(x != x, y, torch.where(y != y, x, extreme(x, y)))


@rule(aten.isposinf.default)
def isposinf(x):
    return x == math.inf if x.dtype.is_floating_point else NotImplemented


@rule(aten.isneginf.default)
def isneginf(x):
    return x == -math.inf if x.dtype.is_floating_point else NotImplemented


@rule(aten.deg2rad.default)
def deg2rad(x):
    return x * (math.pi / 180)


@rule(aten.rad2deg.default)
def rad2deg(x):
    return x * (180 / math.pi)


@rule(aten.logit.default)
def logit(x, eps=None):
    if not x.dtype.is_floating_point:
        return NotImplemented
    dtype, x = x.dtype, wide(x)
    if eps is not None:
        low, high = rounded(eps, x.dtype), rounded(1 - rounded(eps, x.dtype), x.dtype)
        x = torch.where(x < low, low, torch.where(x > high, high, x))
    return torch.log(x / (1 - x)).to(dtype)


@rule(aten.logit_backward.default)
def logit_backward(grad, x, eps=None):
    grad, x = wide(grad), wide(x)
    low, high = (0.0, 1.0) if eps is None else (rounded(eps, x.dtype), rounded(1 - rounded(eps, x.dtype), x.dtype))
    outside = math.nan if eps is None else 0
    return torch.where((x < low) | (x > high), outside, grad / (x * (1 - x)))


@rule(aten.xlogy.Tensor)
def xlogy(x, y):
    return _times_log(x, y, torch.log)


@rule(aten.special_xlog1py.default)
def xlog1py(x, y):
    return _times_log(x, y, torch.log1p)


def _times_log(x, y, log):
    if x.dtype != y.dtype or not x.dtype.is_floating_point:
        return NotImplemented
    wide_x, wide_y = wide(x), wide(y)
    return torch.where(wide_y != wide_y, wide_y, torch.where(wide_x == 0, 0, wide_x * log(wide_y)))


@rule(aten.special_entr.default)
def entr(x):
    if not x.dtype.is_floating_point:
        return NotImplemented
    x = wide(x)
    inside = torch.where(x > 0, -x * torch.log(x), torch.where(x == 0, 0, -math.inf))
    return torch.where(x != x, x, inside)


@rule(aten.sinc.default)
def sinc(x):
    if not x.dtype.is_floating_point:
        return NotImplemented
    x = wide(x)
    angle = x * math.pi
    return torch.where(x == 0, 1, torch.sin(angle) / angle)


@rule(aten.logaddexp.default)
def logaddexp(x, y):
    if x.dtype != y.dtype or not x.dtype.is_floating_point:
        return NotImplemented
    x, y = wide(x), wide(y)
    top = torch.maximum(x, y)
    return torch.where((x == y) & (x.abs() == math.inf), x, top + torch.log1p(torch.exp(-(x - y).abs())))


@rule(aten.hardtanh_backward.default)
def hardtanh_backward(grad, x, low, high):
    return torch.where((x > low) & (x < high), grad, 0)


@rule(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad, x, slope, self_is_result):
    return torch.where(wide(x) > 0, wide(grad), wide(grad) * slope)


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(x, mask, value):
    if isinstance(value, Tensor):
        value = CALLS.get()(MASKED_FILL_VALUE, value, x.dtype) if may_overflow(value.dtype, x.dtype) else value
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
