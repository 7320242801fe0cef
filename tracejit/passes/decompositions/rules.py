"""The table of rules, and what they are written with."""
from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from ...ir.symbol import Symbol
from ...torch_private import below_dispatch_modes

aten = torch.ops.aten
CALLS: ContextVar[Callable] = ContextVar("calls")              # records a call of one of our own operations
RULES: dict[Any, Callable] = {}
WRITERS: dict[Any, Callable] = {}                              # of ops that write several tensors, for `unroll`
ITEM_BY_ITEM: set[Callable] = set()                            # of these, rules that write each tensor of a list by itself


def rule(*overloads: Any) -> Callable:
    def add(function: Callable) -> Callable:
        RULES.update((o, function) for o in overloads)
        return function
    return add


def writer(*overloads: Any) -> Callable:
    def add(function: Callable) -> Callable:
        WRITERS.update((o, function) for o in overloads)
        return function
    return add


def nll_loss_gather(source: Tensor, dim: int, target: Tensor) -> Tensor:
    """`gather` that raises as nll_loss does."""
    wrong = (target < 0) | (target >= source.size(dim))
    if wrong.any():
        raise IndexError(f"Target {target[wrong][0].item()} is out of bounds.")
    return source.gather(dim, target)


def binary_cross_entropy_probability(x: Tensor) -> Tensor:
    """x; raises as binary_cross_entropy does when one of its elements is no probability."""
    if not ((x >= 0) & (x <= 1)).all():
        raise RuntimeError("all elements of input should be between 0 and 1")
    return x.clone()


def masked_fill_value(value: Tensor, dtype: torch.dtype) -> Tensor:
    """value; raises as masked_fill into a tensor of that dtype does where it would overflow."""
    torch.zeros(1, dtype=dtype).masked_fill_(torch.ones(1, dtype=torch.bool), value)
    return value.clone()


MASKED_FILL_VALUE = Symbol("masked_fill_value", masked_fill_value)
NLL_LOSS_GATHER = Symbol("nll_loss_gather", nll_loss_gather)
PROBABILITY = Symbol("binary_cross_entropy_probability", binary_cross_entropy_probability)


def wide(x: Optional[Tensor]) -> Optional[Tensor]:
    """In the type that eager's kernels compute in."""
    return x.float() if x is not None and x.dtype in (torch.float16, torch.bfloat16) else x


def one(like: Tensor) -> Tensor:
    return torch.full((), 1, dtype=like.dtype, device=like.device)


def rounded(value: float, dtype: torch.dtype) -> float:
    """A constant as a kernel of this dtype holds it."""
    with below_dispatch_modes():
        return torch.tensor(value, dtype=dtype).item()


def fits(value: Any, dtype: torch.dtype) -> bool:
    """Does eager take this number as an element of that dtype? It raises where it would overflow."""
    try:
        with below_dispatch_modes():
            torch.zeros(1, dtype=dtype).masked_fill(torch.ones(1, dtype=torch.bool), value)
    except RuntimeError:
        return False
    return True


def is_float(*tensors: Optional[Tensor]) -> bool:
    return all(t is None or t.dtype.is_floating_point for t in tensors)
