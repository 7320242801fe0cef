"""Rules of losses and their backwards."""
from __future__ import annotations

import torch
from torch import Tensor

from .rules import CALLS, NLL_LOSS_GATHER, aten, is_float, rounded, rule, wide


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


@rule(aten.nll_loss_forward.default)
def nll_loss_forward(x, target, weight, reduction, ignore_index):
    if x.dim() != 2 or target.dtype != torch.int64:
        return NotImplemented
    counts = target != ignore_index
    safe = torch.where(counts, target, 0)
    picked = CALLS.get()(NLL_LOSS_GATHER, x, 1, safe.unsqueeze(1)).squeeze(1)
    loss = -wide(picked)
    share = counts.to(x.dtype) if weight is None else torch.where(counts, weight.gather(0, safe), 0)
    loss = torch.where(counts, loss if weight is None else loss * wide(share), 0)
    if reduction == 0:
        return loss, torch.full((), 0, dtype=x.dtype, device=x.device)
    total = wide(share).sum()
    return (loss.sum() / total if reduction == 1 else loss.sum()), total


@rule(aten.nll_loss_backward.default)
def nll_loss_backward(grad, x, target, weight, reduction, ignore_index, total_weight):
    if x.dim() != 2 or target.dtype != torch.int64:
        return NotImplemented
    counts = target != ignore_index
    if weight is not None:
        return NotImplemented
    column = torch.arange(x.shape[1], device=x.device)
    hit = (column == target.unsqueeze(1)) & counts.unsqueeze(1)
    scale = -wide(grad) / wide(total_weight) if reduction == 1 else -wide(grad)
    return torch.where(hit, scale.unsqueeze(1) if reduction == 0 else scale, 0)
