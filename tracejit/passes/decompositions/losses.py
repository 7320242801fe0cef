"""Rules of losses and their backwards."""
from __future__ import annotations

import torch
from torch import Tensor

from .rules import CALLS, NLL_LOSS_GATHER, PROBABILITY, aten, is_float, rounded, rule, wide


def reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


@rule(aten.mse_loss.default)
def mse_loss(x, y, reduction=1):
    if x.dtype != y.dtype or not is_float(x):
        return NotImplemented
    d = x - y
    return reduced(d * d, reduction)


@rule(aten.mse_loss_backward.default)
def mse_loss_backward(grad, x, y, reduction):
    if x.dtype != y.dtype or x.shape != y.shape:
        return NotImplemented
    scale = rounded(2 / x.numel() if reduction == 1 else 2.0, x.dtype)
    return scale * (x - y) * grad


@rule(aten.binary_cross_entropy_with_logits.default)
def bce_with_logits(x, y, weight=None, pos_weight=None, reduction=1):
    if not is_float(x, y) or x.dtype != y.dtype:
        return NotImplemented
    log_sigmoid = torch.clamp_max(x, 0) - torch.log1p(torch.exp(-x.abs()))
    if pos_weight is not None:
        loss = (1 - y) * x - (1 + (pos_weight - 1) * y) * log_sigmoid
    else:
        loss = (1 - y) * x - log_sigmoid
    return reduced(loss if weight is None else loss * weight, reduction)


@rule(aten.binary_cross_entropy.default)
def bce(x, y, weight=None, reduction=1):
    if x.dtype not in (torch.float32, torch.float64) or x.dtype != y.dtype or x.shape != y.shape:
        return NotImplemented
    x, y = (CALLS.get()(PROBABILITY, t) for t in (x, y))
    loss = (y - 1) * torch.clamp_min(torch.log1p(-x), -100) - y * torch.clamp_min(torch.log(x), -100)
    return reduced(loss if weight is None else loss * weight, reduction)


@rule(aten.binary_cross_entropy_backward.default)
def bce_backward(grad, x, y, weight=None, reduction=1):
    if not is_float(x, y) or x.dtype != y.dtype:
        return NotImplemented
    n, (grad, x, y, weight) = x.numel(), map(wide, (grad, x, y, weight))
    d = grad * (x - y) / torch.clamp_min((1 - x) * x, rounded(1e-12, x.dtype))
    d = d if weight is None else d * weight
    return d / n if reduction == 1 else d


@rule(aten.smooth_l1_loss.default)
def smooth_l1_loss(x, y, reduction=1, beta=1.0):
    if not is_float(x) or y.dtype != x.dtype:
        return NotImplemented
    dtype, beta = x.dtype, rounded(beta, x.dtype)
    d = (wide(x) - wide(y)).abs()
    loss = torch.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta) if beta else d
    return reduced(loss.to(dtype), reduction)


@rule(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(grad, x, y, reduction, beta):
    return _sloped_backward(grad, x, y, reduction, beta, lambda d: d / beta if beta else d, 1.0)


@rule(aten.huber_loss.default)
def huber_loss(x, y, reduction=1, delta=1.0):
    if x.dtype != torch.float32 or y.dtype != x.dtype:
        return NotImplemented
    d = (x - y).abs()
    loss = torch.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))
    return reduced(loss, reduction)


@rule(aten.huber_loss_backward.default)
def huber_loss_backward(grad, x, y, reduction, delta):
    return _sloped_backward(grad, x, y, reduction, delta, lambda d: d, delta)


def _sloped_backward(grad, x, y, reduction, limit, near, far):
    """near(d) where |d| < limit, `far` with d's sign beyond it."""
    if x.dtype not in (torch.float32, torch.float64) or y.dtype != x.dtype or x.shape != y.shape:
        return NotImplemented
    scale = rounded(1 / x.numel(), x.dtype) if reduction == 1 else 1.0
    limit, d = rounded(limit, x.dtype), x - y
    return torch.where(d <= -limit, -scale * grad * far, torch.where(d >= limit, scale * grad * far, scale * near(d) * grad))


@rule(aten.soft_margin_loss.default)
def soft_margin_loss(x, y, reduction=1):
    if not is_float(x) or x.dtype != y.dtype:
        return NotImplemented
    return reduced(torch.log1p(torch.exp(-(x * y))), reduction)


@rule(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(x, target, weight, reduction, ignore_index):
    """Of [N, C] with [N], and of [N, C, H, W] with [N, H, W]."""
    if x.dim() not in (2, 4) or target.dtype != torch.int64 or target.dim() != x.dim() - 1:
        return NotImplemented
    if x.dim() == 4 and reduction and x.dtype in (torch.float16, torch.bfloat16):
        return NotImplemented                                  # eager adds up in the half type there
    counts = target != ignore_index
    safe = torch.where(counts, target, 0)
    picked = CALLS.get()(NLL_LOSS_GATHER, x, 1, safe.unsqueeze(1)).squeeze(1)
    loss = -wide(picked)
    share = counts.to(x.dtype) if weight is None else torch.where(counts, weight[safe], 0)
    loss = torch.where(counts, loss if weight is None else loss * wide(share), 0)
    if reduction == 0:
        return loss, torch.full((), 0, dtype=x.dtype, device=x.device)
    total = wide(share).sum()
    return (loss.sum() / total if reduction == 1 else loss.sum()), total


@rule(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(grad, x, target, weight, reduction, ignore_index, total_weight):
    if x.dim() not in (2, 4) or target.dtype != torch.int64 or target.dim() != x.dim() - 1:
        return NotImplemented
    counts = target != ignore_index
    column = torch.arange(x.shape[1], device=x.device).reshape(-1, *[1] * (x.dim() - 2))
    hit = (column == target.unsqueeze(1)) & counts.unsqueeze(1)
    scale = -grad / total_weight if reduction == 1 else -grad
    scale = scale.unsqueeze(1) if reduction == 0 else scale
    return torch.where(hit, scale if weight is None else scale * weight.reshape(column.shape), 0)
