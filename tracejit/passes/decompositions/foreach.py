"""Rules of operations on lists of tensors: `_foreach_*`, and the fused optimizer steps.

On the CPU eager runs a foreach op as its plain op, tensor by tensor in order, so the unrolled calls are the same numbers.
"""
from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from .rules import ITEM_BY_ITEM, RULES, WRITERS, aten, rounded, writer

_OPS = """abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt
    sigmoid sign sin sinh sqrt tan tanh trunc zero add sub mul div clamp_min clamp_max maximum minimum pow addcmul addcdiv lerp
    copy""".split()
_SCALAR_MEANS = {"maximum": "clamp_min", "minimum": "clamp_max"}       # what they are called with a number


def _each(op: Callable, items: int, args: tuple, kwargs: dict) -> list[Any]:
    """op on the i-th item of every list."""
    def item(a: Any, i: int) -> Any:
        return a[i] if isinstance(a, (list, tuple)) else a
    return [op(*(item(a, i) for a in args), **kwargs) for i in range(items)]


def _foreach_rules() -> None:
    """One rule an overload, made from the plain op of the same name."""
    for name in _OPS:
        for suffix, table in (("", RULES), ("_", WRITERS)):
            foreach = getattr(aten, f"_foreach_{name}{suffix}", None)
            for overload in (getattr(foreach, o) for o in foreach.overloads()) if foreach is not None else ():
                if "out" in overload._overloadname or overload._overloadname == "ScalarAndTensor":
                    continue
                plain = _SCALAR_MEANS.get(name, name) if overload._overloadname.startswith("Scalar") else name
                op = getattr(aten, plain + suffix, None)
                if op is not None:
                    table[overload] = _rule(op)
                    ITEM_BY_ITEM.update({table[overload]} if suffix else ())


def _rule(op: Callable) -> Callable:
    ternary = op.__name__.startswith("addc")

    def unrolled(tensors, *args, **kwargs):
        if ternary and len(args) == 3:                         # value is positional there, by keyword here
            values = args[2] if isinstance(args[2], (list, tuple)) else [args[2]] * len(tensors)
            return [op(t, a, b, value=v) for t, a, b, v in zip(tensors, *args[:2], values)]
        if any(isinstance(a, Tensor) and a.dim() and op not in (aten.add, aten.mul, aten.div) for a in args):
            return NotImplemented                              # a tensor of scalars: its values are read
        return _each(op, len(tensors), (tensors, *args), kwargs)
    return unrolled


_foreach_rules()


# ---------------------------------------------------------------- fused optimizers

@writer(aten._fused_sgd_.default)
def fused_sgd(params, grads, buffers, *, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step,
              grad_scale=None, found_inf=None):
    if grad_scale is not None or found_inf is not None or not _plain(params, grads):
        return NotImplemented
    for i, (p, g) in enumerate(zip(params, grads)):
        g = -g if maximize else g
        g = torch.add(g, p, alpha=weight_decay) if weight_decay else g
        if momentum:
            moved = g.clone() if is_first_step else torch.add(buffers[i] * momentum, g, alpha=1 - dampening)
            buffers[i].copy_(moved)
            g = torch.add(g, moved, alpha=momentum) if nesterov else moved
        p.copy_(torch.add(p, g, alpha=-lr))
    return ()


def _adam(params, grads, averages, squares, largest, steps, *, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize,
          grad_scale, found_inf, decoupled):
    if grad_scale is not None or found_inf is not None or not _plain(params, grads, averages, squares):
        return NotImplemented
    for i, (p, g, m, v, t) in enumerate(zip(params, grads, averages, squares, steps)):
        t = t.to(torch.float64)
        scale = (torch.full_like(t, -lr) / (1 - beta1 ** t)).to(p.dtype)
        correction = torch.sqrt(1 - beta2 ** t).to(p.dtype)
        g = -g if maximize else g
        start = p
        if weight_decay and decoupled:
            start = p * rounded(1 - lr * weight_decay, p.dtype)
        elif weight_decay:
            g = torch.add(g, p, alpha=weight_decay)
        new_m = torch.lerp(m, g, 1 - beta1)
        new_v = torch.addcmul(v * beta2, g, g, value=1 - beta2)
        m.copy_(new_m)
        v.copy_(new_v)
        if amsgrad:
            new_v = torch.maximum(largest[i], new_v)
            largest[i].copy_(new_v)
        p.copy_(start + scale * new_m / (torch.sqrt(new_v) / correction + eps))
    return ()


@writer(aten._fused_adam_.default)
def fused_adam(*args, grad_scale=None, found_inf=None, **kwargs):
    return _adam(*args, grad_scale=grad_scale, found_inf=found_inf, decoupled=False, **kwargs)


@writer(aten._fused_adamw_.default)
def fused_adamw(*args, grad_scale=None, found_inf=None, **kwargs):
    return _adam(*args, grad_scale=grad_scale, found_inf=found_inf, decoupled=True, **kwargs)


def _plain(*lists: list[Tensor]) -> bool:
    """Formulas hold for these types; half types are rounded elsewhere in eager's kernels."""
    return all(t.dtype in (torch.float32, torch.float64) for tensors in lists for t in tensors)
