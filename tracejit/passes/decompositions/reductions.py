"""Rules of reductions and softmaxes."""
from __future__ import annotations

import math

import torch

from .rules import aten, rule, wide

MANY_ROWS, SHARES = 1 << 14, 16          # for which a sum over few columns is split; in how many parts

@rule(aten.mean.dim, aten.mean.default)
def mean(x, dim=None, keepdim=False, *, dtype=None):
    dims = [dim] if isinstance(dim, int) else list(dim or range(x.dim()))
    dtype = dtype or x.dtype
    if not dtype.is_floating_point:
        return NotImplemented
    x = wide(x if x.dtype in (torch.float16, torch.bfloat16) and dtype == x.dtype else x.to(dtype))
    n = math.prod(x.shape[d] for d in dims) if x.dim() else 1
    return x.sum(dims, keepdim) / n


@rule(aten.sum.dim_IntList)
def sum_of_few_columns(x, dim, keepdim=False, *, dtype=None):
    """Many rows of few columns: rows side by side make vectors, and parts of them are shared among threads."""
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    columns, rows = math.prod(x.shape[len(dims):]), math.prod(x.shape[:len(dims)])
    leading = sorted(d % max(x.dim(), 1) for d in dims) == list(range(len(dims))) and 0 < len(dims) < x.dim()
    if not leading or dtype is not None or x.dtype not in (torch.float32, torch.float64) or not x.is_contiguous():
        return NotImplemented
    beside = 1
    while 0 < columns and 2 * beside * columns <= 256:
        beside *= 2
    if not 0 < columns < 32 or rows < MANY_ROWS or rows % (SHARES * beside):
        return NotImplemented
    parts = x.view(SHARES, rows // (SHARES * beside), beside * columns).sum(1)
    kept = (1,) * len(dims) if keepdim else ()
    return parts.view(SHARES * beside, columns).sum(0).view(*kept, *x.shape[len(dims):])


@rule(aten.max.default)
def max_default(x):
    return x.amax()


@rule(aten.min.default)
def min_default(x):
    return x.amin()


@rule(aten.max.dim)
def max_dim(x, dim, keepdim=False):
    if x.dtype is torch.bool:                                  # argmax refuses it
        return NotImplemented
    return x.amax(dim, keepdim), x.argmax(dim, keepdim)


@rule(aten.min.dim)
def min_dim(x, dim, keepdim=False):
    if x.dtype is torch.bool:                                  # argmax refuses it
        return NotImplemented
    return x.amin(dim, keepdim), x.argmin(dim, keepdim)


@rule(aten.aminmax.default)
def aminmax(x, *, dim=None, keepdim=False):
    dims = range(x.dim()) if dim is None else [dim]
    return x.amin(list(dims), keepdim), x.amax(list(dims), keepdim)


@rule(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(x, dim=None):
    return (x != 0).sum(list(range(x.dim())) if dim is None or dim == [] else dim)


@rule(aten.nansum.default)
def nansum(x, dim=None, keepdim=False, *, dtype=None):
    if not x.dtype.is_floating_point:
        return NotImplemented
    return torch.where(torch.isnan(x), 0, x).sum(list(range(x.dim())) if not dim else dim, keepdim, dtype=dtype)


@rule(aten.logsumexp.default)
def logsumexp(x, dim, keepdim=False):
    if not x.dtype.is_floating_point or not dim:
        return NotImplemented
    x = wide(x)
    top = x.amax(dim, True)
    below = (x - torch.where(top.abs() == math.inf, 0, top)).clamp(max=0)      # changes nothing where the largest is finite
    total = torch.exp(below).sum(dim, True).log() + top
    return total if keepdim else total.squeeze(dim)


@rule(aten.linalg_vector_norm.default)
def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None):
    if not x.dtype.is_floating_point or dtype is not None:
        return NotImplemented
    x = wide(x)
    dims = [dim] if isinstance(dim, int) else list(dim or range(x.dim()))
    without = not x.dim() and bool(dims)                       # eager takes its only element for a row
    alone = ord != 0 and not without and all(x.shape[d] == 1 for d in dims)    # of one element: neither overflows nor underflows
    if ord == math.inf or alone:
        return x.abs().amax(dims, keepdim)
    if ord == 2:
        return (x * x).sum(dims, keepdim).sqrt()
    if ord == 1:
        return x.abs().sum(dims, keepdim)
    if ord == -math.inf:
        return x.abs().amin(dims, keepdim)
    if ord == 0:
        return (x != 0).to(x.dtype).sum(dims, keepdim)
    return torch.pow(torch.pow(x.abs(), ord).sum(dims, keepdim), 1 / ord)


@rule(aten.norm.Scalar, aten.norm.ScalarOpt_dim)
def norm(x, p=2, dim=None, keepdim=False):
    return vector_norm(x, 2 if p is None else p, dim, keepdim)


@rule(torch.norm, torch.Tensor.norm)
def norm_of_any_kind(x, p="fro", dim=None, keepdim=False, out=None, dtype=None):
    """Kept whole by the capture, since some kinds are norms of matrices."""
    if out is not None or not (p is None or p == "fro" or isinstance(p, (int, float))):
        return NotImplemented
    return vector_norm(x, 2 if p in (None, "fro") else p, dim, keepdim, dtype=dtype)


@rule(aten._foreach_norm.Scalar)
def foreach_norm(tensors, ord=2, dtype=None):
    norms = [vector_norm(t, ord, dtype=dtype) for t in tensors]
    return NotImplemented if NotImplemented in norms else [n.to(t.dtype) for n, t in zip(norms, tensors)]


@rule(aten.dist.default)
def dist(x, y, p=2):
    return vector_norm(x - y, p) if x.dtype == y.dtype else NotImplemented


@rule(aten.trace.default)
def trace(x):
    return torch.diagonal(x).sum()


def _has_dim(x: torch.Tensor, dim: int) -> bool:
    """False also where eager's kernel is going to say that there is no such dim: descriptions without data do not."""
    return -x.dim() <= dim < x.dim()


@rule(aten._softmax.default)
def softmax(x, dim, half_to_float):
    if not _has_dim(x, dim):
        return NotImplemented
    x = wide(x)
    e = torch.exp(x - x.amax(dim, True))
    return e / e.sum(dim, True)


@rule(aten._safe_softmax.default)
def safe_softmax(x, dim, dtype=None):
    """A row that is -inf throughout becomes zeros."""
    if not _has_dim(x, dim) or dtype not in (None, x.dtype):
        return NotImplemented
    return torch.where((x == -math.inf).all(dim, True), 0, softmax(x, dim, False))


@rule(aten._log_softmax.default)
def log_softmax(x, dim, half_to_float):
    if not _has_dim(x, dim):
        return NotImplemented
    x = wide(x)
    shifted = x - x.amax(dim, True)
    return shifted - torch.exp(shifted).sum(dim, True).log()


@rule(aten._softmax_backward_data.default)
def softmax_backward(grad, y, dim, input_dtype):
    if y.dim() == 0:
        return NotImplemented
    grad, y = wide(grad), wide(y)
    return (grad - (grad * y).sum(dim, True)) * y


@rule(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad, y, dim, input_dtype):
    if y.dim() == 0:
        return NotImplemented
    grad, y = wide(grad), wide(y)
    return torch.addcmul(grad, torch.exp(y), grad.sum(dim, True), value=-1)
