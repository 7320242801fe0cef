"""Rules of normalisations and their backwards."""
from __future__ import annotations

import math

import torch
from torch import Tensor

from .rules import aten, rule, wide, writer


def normalised(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(var + eps), mean, 1 / sqrt(var + eps), the last two with keepdim."""
    var, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    rstd = 1 / torch.sqrt(var + eps)
    return (x - mean) * rstd, mean, rstd


@rule(aten.native_layer_norm.default)
def layer_norm(x, shape, weight, bias, eps):
    dims = list(range(x.dim() - len(shape), x.dim()))
    weight, bias = (None if t is None else wide(t) for t in (weight, bias))      # before the rows that read them
    y, mean, rstd = normalised(wide(x), dims, eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias), mean, rstd


@rule(aten.native_layer_norm_backward.default)
def layer_norm_backward(grad, x, shape, mean, rstd, weight, bias, mask):
    dims, outer = list(range(x.dim() - len(shape), x.dim())), list(range(x.dim() - len(shape)))
    grad, n = wide(grad), math.prod(shape)
    y = (wide(x) - wide(mean)) * wide(rstd)
    g = grad if weight is None else grad * wide(weight)
    dx = wide(rstd) * (g - g.sum(dims, True) / n - y * ((g * y).sum(dims, True) / n)) if mask[0] else None
    dw = ((grad * y).sum(outer) if outer else grad * y) if mask[1] and weight is not None else None
    db = (grad.sum(outer) if outer else grad) if mask[2] and bias is not None else None
    return dx, dw, db


@rule(aten._fused_rms_norm.default)
def rms_norm(x, shape, weight, eps):
    dims = list(range(x.dim() - len(shape), x.dim()))
    wide_x = wide(x)
    eps = torch.finfo(wide_x.dtype).eps if eps is None else eps
    n = math.prod(shape)
    rstd = torch.rsqrt((wide_x * wide_x).sum(dims, True) / n + eps)
    y = wide_x * rstd
    return (y if weight is None else y * wide(weight)), rstd


@rule(aten.native_group_norm.default)
def group_norm(x, weight, bias, n, c, hw, groups, eps):
    y, mean, rstd = normalised(wide(x).reshape(n, groups, -1), [2], eps)
    y = y.reshape(x.shape)
    over = [1, c] + [1] * (x.dim() - 2)
    y = y if weight is None else y * wide(weight).reshape(over)
    y = y if bias is None else y + wide(bias).reshape(over)
    return y, mean.squeeze(2), rstd.squeeze(2)


@writer(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
@rule(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps):
    dims = [d for d in range(x.dim()) if d != 1]
    over = [1, -1] + [1] * (x.dim() - 2)
    wide_x = wide(x)
    if not training:
        mean, rstd = wide(running_mean), 1 / torch.sqrt(wide(running_var) + eps)
        alpha = rstd if weight is None else rstd * wide(weight)
        beta = -mean * alpha if bias is None else torch.addcmul(wide(bias), mean, alpha, value=-1)
        y = torch.addcmul(beta.reshape(over), wide_x, alpha.reshape(over))         # one contracted step an element, as eager
        return y, x.new_empty(0), x.new_empty(0)
    n = x.numel() // x.shape[1]
    if n == 1:
        return NotImplemented
    var, mean = torch.var_mean(wide_x, dims, correction=0, keepdim=True)
    rstd = 1 / torch.sqrt(var + eps)
    y = (wide_x - mean) * rstd
    y = y if weight is None else y * wide(weight).reshape(over)
    y = y if bias is None else y + wide(bias).reshape(over)
    flat_mean, flat_var = mean.reshape(-1), var.reshape(-1)
    if running_mean is not None:
        running_mean.copy_((momentum * flat_mean + (1 - momentum) * running_mean).to(running_mean.dtype))
        unbiased = flat_var * (n / (n - 1))
        running_var.copy_((momentum * unbiased + (1 - momentum) * running_var).to(running_var.dtype))
    return y, flat_mean, rstd.reshape(-1)


@rule(aten.native_group_norm_backward.default)
def group_norm_backward(grad, x, mean, rstd, weight, n, c, hw, groups, mask):
    def rows(t: Tensor) -> Tensor:
        return wide(t).reshape(n, groups, -1)
    over, count = [1, c] + [1] * (x.dim() - 2), x.numel() // (n * groups)
    y = (rows(x) - wide(mean).unsqueeze(2)) * wide(rstd).unsqueeze(2)
    g = rows(grad) if weight is None else rows(wide(grad) * wide(weight).reshape(over))
    dx = wide(rstd).unsqueeze(2) * (g - g.sum(2, True) / count - y * ((g * y).sum(2, True) / count)) if mask[0] else None
    dims = [d for d in range(x.dim()) if d != 1]
    dw = (wide(grad) * y.reshape(x.shape)).sum(dims) if mask[1] and weight is not None else None
    db = wide(grad).sum(dims) if mask[2] else None
    return None if dx is None else dx.reshape(x.shape), dw, db


@rule(aten.native_batch_norm_backward.default)
def batch_norm_backward(grad, x, weight, running_mean, running_var, mean, rstd, training, eps, mask):
    dims, over = [d for d in range(x.dim()) if d != 1], [1, -1] + [1] * (x.dim() - 2)
    if not training:
        mean, rstd = running_mean, 1 / torch.sqrt(wide(running_var) + eps)
    grad, rstd, n = wide(grad), wide(rstd).reshape(over), x.numel() // x.shape[1]
    y = (wide(x) - wide(mean).reshape(over)) * rstd
    db = grad.sum(dims, True)
    dw = (grad * y).sum(dims, True)
    scale = rstd if weight is None else rstd * wide(weight).reshape(over)
    dx = (scale * (grad - db / n - y * (dw / n)) if training else grad * scale) if mask[0] else None
    return dx, dw.reshape(-1) if mask[1] and weight is not None else None, db.reshape(-1) if mask[2] else None
