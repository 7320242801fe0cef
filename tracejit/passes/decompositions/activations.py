"""Rules of activation functions and their backwards."""
from __future__ import annotations

import torch

from .rules import aten, rule, wide


@rule(aten.hardtanh.default)
def hardtanh(x, low=-1, high=1):
    return torch.clamp(x, low, high)


@rule(aten.hardsigmoid.default)
def hardsigmoid(x):
    return torch.clamp(wide(x) + 3, 0, 6) / 6


@rule(aten.hardswish.default)
def hardswish(x):
    x = wide(x)
    return x * torch.clamp(x + 3, 0, 6) / 6


@rule(aten.leaky_relu.default)
def leaky_relu(x, slope=0.01):
    x = wide(x)
    return torch.where(x > 0, x, x * slope)


@rule(aten.elu.default)
def elu(x, alpha=1, scale=1, input_scale=1):
    x = wide(x)
    return torch.where(x < 0, torch.expm1(x * input_scale) * (alpha * scale), x * scale)


@rule(aten.elu_backward.default)
def elu_backward(grad, alpha, scale, input_scale, is_result, x):
    grad, x = wide(grad), wide(x)
    if is_result:
        low = grad * input_scale * (x + alpha * scale)
    else:
        low = grad * (input_scale * alpha * scale) * torch.exp(x * input_scale)
    return torch.where(x <= 0, low, grad * scale)


@rule(aten.softplus.default)
def softplus(x, beta=1, threshold=20):
    x = wide(x)
    scaled = x * beta
    return torch.where(scaled > threshold, x, torch.log1p(torch.exp(scaled)) / beta)


@rule(aten.softplus_backward.default)
def softplus_backward(grad, x, beta, threshold):
    grad, x = wide(grad), wide(x)
    z = torch.exp(x * beta)
    return torch.where(x * beta > threshold, grad, grad * z / (z + 1))


@rule(aten.mish.default)
def mish(x):
    x = wide(x)
    return x * torch.tanh(torch.log1p(torch.exp(x)))


@rule(aten.log_sigmoid_forward.default)
def log_sigmoid(x):
    wide_x = wide(x)
    e = torch.exp(-wide_x.abs())
    return torch.clamp_max(wide_x, 0) - torch.log1p(e), e


@rule(aten.glu.default)
def glu(x, dim=-1):
    left, right = torch.chunk(wide(x), 2, dim)
    return left * (1 / (1 + torch.exp(-right)))


@rule(aten.glu_backward.default)
def glu_backward(grad, x, dim):
    left, right = torch.chunk(wide(x), 2, dim)
    grad = wide(grad)
    s = 1 / (1 + torch.exp(-right))
    return torch.cat([grad * s, (1 - s) * s * grad * left], dim)


@rule(aten.hardswish_backward.default)
def hardswish_backward(grad, x):
    grad, x = wide(grad), wide(x)
    inner = torch.where(x < 3, grad * (x / 3 + 0.5), grad)
    return torch.where(x <= -3, 0, inner)


@rule(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(grad, x):
    grad, x = wide(grad), wide(x)
    return torch.where((x > -3) & (x < 3), grad * (1 / 6), 0)


@rule(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad, x, buffer):
    grad, x = wide(grad), wide(x)
    e = torch.exp(-x.abs())
    share = e / (1 + e)
    return grad * torch.where(x < 0, 1 - share, share)


@rule(aten.mish_backward.default)
def mish_backward(grad, x):
    grad, x = wide(grad), wide(x)
    s, t = 1 / (1 + torch.exp(-x)), torch.tanh(torch.log1p(torch.exp(x)))
    return grad * (t + x * s * (1 - t * t))


@rule(aten._prelu_kernel.default)
def prelu(x, weight):
    return torch.where(x > 0, x, wide(weight) * wide(x)) if x.dtype == weight.dtype else NotImplemented


@rule(aten._prelu_kernel_backward.default)
def prelu_backward(grad, x, weight):
    positive, grad = wide(x) > 0, wide(grad)
    return torch.where(positive, grad, wide(weight) * grad), torch.where(positive, 0, wide(x) * grad)
