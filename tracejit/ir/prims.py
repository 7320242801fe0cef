"""The few operations of a trace that torch does not have: plain functions of real (or fake) tensors."""
from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, Callable

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..torch_private import conj_view, neg_view
from .symbol import Symbol, aten_symbol


def constant(value: torch.Tensor) -> torch.Tensor:
    """A fresh tensor with the value of a constant of the program."""
    return value.clone()


def exact_copy(t: torch.Tensor) -> torch.Tensor:
    """A private copy with the very size and stride: kernels choose their path (and order of random draws) by strides."""
    return restride(t, t.size(), t.stride())


def restride(t: torch.Tensor, size: list[int], stride: list[int]) -> torch.Tensor:
    """A copy with this size and stride (in elements)."""
    out = torch.empty_strided(size, stride, dtype=t.dtype, device=t.device)
    end, apart = 1, True
    for s, n in sorted((s, n) for n, s in zip(size, stride) if n > 1):
        apart = apart and s >= end
        end += s * (n - 1)
    if apart or not t.numel():
        return out.copy_(t)
    flat = out.as_strided((end,), (1,))                        # a copy into elements that share bytes is refused
    index = torch.arange(end, device=t.device).as_strided(size, stride)
    flat[index.reshape(-1)] = t.reshape(-1)
    return out


def write_region(base: torch.Tensor, value: torch.Tensor, size: list[int], stride: list[int], offset: int,
                 dtype: torch.dtype, conj: bool, neg: bool) -> torch.Tensor:
    """A copy of `base` with `value` written where a view with this size, stride and offset (in elements of `dtype`) lies."""
    out = exact_copy(base)
    region_view(out, size, stride, offset, dtype, conj, neg).copy_(value)
    return out


def region_view(base: torch.Tensor, size: list[int], stride: list[int], offset: int, dtype: torch.dtype,
                conj: bool, neg: bool) -> torch.Tensor:
    """The view of base's whole storage with this size, stride and offset, in elements of `dtype`."""
    raw = base.new_empty(0, dtype=dtype).set_(base.untyped_storage(), 0, (base.untyped_storage().nbytes() // dtype.itemsize,))
    view = raw.as_strided(size, stride, offset)
    view = conj_view(view) if conj else view
    return neg_view(view) if neg else view


def on_copy(op: Callable, written: tuple[int, ...], fresh: tuple[int, ...], *args: Any, **kwargs: Any) -> list:
    """A writing op made pure: runs on copies of the written arguments; returns its fresh results, then those copies.

    written: positions in the flattened arguments; fresh: positions in the flattened results.
    """
    flat, spec = tree_flatten((args, kwargs))
    for i in written:
        flat[i] = exact_copy(flat[i])
    args, kwargs = tree_unflatten(flat, spec)
    out = tree_flatten(op(*args, **kwargs))[0]
    return [out[k] for k in fresh] + [flat[i] for i in written]


def copy_untold(t: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`t.copy_(value)`, of which autograd is not told."""
    t.data.copy_(value)
    return t


def data(t: torch.Tensor) -> torch.Tensor:
    """`t.data`: detached, and of what is written by way of it autograd is not told."""
    return t.data


def grow_storage(t: torch.Tensor, nbytes: int) -> None:
    """Make t's storage at least `nbytes` long, keeping its contents."""
    if t.untyped_storage().nbytes() < nbytes:
        t.untyped_storage().resize_(nbytes)


def resize_storage(t: torch.Tensor, nbytes: int) -> None:
    """`t.untyped_storage().resize_(nbytes)`"""
    t.untyped_storage().resize_(nbytes)


def register_node_hook(t: torch.Tensor, hook: Callable) -> Any:
    """`t.grad_fn.register_hook(hook)`"""
    return t.grad_fn.register_hook(hook)


def register_node_prehook(t: torch.Tensor, hook: Callable) -> Any:
    """`t.grad_fn.register_prehook(hook)`"""
    return t.grad_fn.register_prehook(hook)


def set_metadata(t: torch.Tensor, size: list[int], stride: list[int], offset: int) -> None:
    """Give the caller's tensor this size, stride and offset."""
    t.as_strided_(size, stride, offset)


def set_tensor(t: torch.Tensor, source: torch.Tensor) -> None:
    """Point the caller's tensor at source's storage and metadata; their dtypes may differ."""
    t.set_(source.untyped_storage(), source.storage_offset(), source.shape, source.stride())


def backward_begins() -> None:
    """In a joint trace: what stands before it belongs to the forward pass."""


def number(t: torch.Tensor) -> torch.Tensor:
    """`t.item()` as a number of the trace."""
    return torch.tensor(t.item(), dtype=torch.float64, device="cpu")


def _on_numbers(name: str, op: Callable) -> Symbol:
    """Python's own arithmetic, errors included."""
    def run(*operands: Any) -> torch.Tensor:
        made = op(*map(float, operands))
        if isinstance(made, complex):
            raise ArithmeticError("a power of numbers is out of range, or complex: keep them tensors, without .item()")
        return torch.tensor(made, dtype=torch.float64, device="cpu")
    run.__name__ = run.__qualname__ = f"number_{name}"
    return Symbol(run.__name__, run, numbers=True)


NUMBER = Symbol("number", number, numbers=True)
NUMBER_OPS = {name: _on_numbers(name, getattr(operator, name)) for name in ("add", "sub", "mul", "truediv", "pow", "neg", "abs")}
CONSTANT = Symbol("constant", constant)
EXACT_COPY = Symbol("exact_copy", exact_copy)
RESTRIDE = Symbol("restride", restride)
WRITE_REGION = Symbol("write_region", write_region)
REGION_VIEW = Symbol("region_view", region_view)
ON_COPY = Symbol("on_copy", on_copy)
GROW_STORAGE = Symbol("grow_storage", grow_storage, writes_to=(0,), opaque=True)
RESIZE_STORAGE = Symbol("resize_storage", resize_storage, writes_to=(0,), opaque=True)
SET_METADATA = Symbol("set_metadata", set_metadata, writes_to=(0,), opaque=True)
SET_TENSOR = Symbol("set_tensor", set_tensor, writes_to=(0,), opaque=True)
POSTPONED_COPY = replace(aten_symbol(torch.ops.aten.copy_.default), postponed=True)
BACKWARD_BEGINS = Symbol("backward_begins", backward_begins, opaque=True)
