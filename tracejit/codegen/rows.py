"""A row of the op table, and the commonest kinds of rows."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch

from .calls import Call
from .kernel import DTYPES, FLOATS, INTEGERS, Expr, Expressions

NUMERIC = (*FLOATS, *INTEGERS)
WHOLE_NUMBERS = (*INTEGERS, torch.bool)


@dataclass(frozen=True)
class Row:
    """kind: elementwise | relayout | gather | factory | reduction | scan.

    build: elementwise (x, exprs, call) -> Expr; relayout, gather, factory (values, call, index) -> Expr;
           reduction (x, value, reduce, call, count, along) -> [Expr of each output];
           scan (x, value) -> Expr that changes from one element along the dim to the next.
    compute: "out", or "promoted" for results whose dtype says nothing about the operands' (comparisons).
    scalars: how eager takes a Python number beside half tensors: "rounded" to the half type, or "exact".
    """

    kind: str
    build: Callable
    inputs: tuple[str, ...] = ()
    dtypes: tuple = NUMERIC              # of the result, or of the promoted operands
    compute: str = "out"
    scalars: str = "rounded"
    heavy: bool = False                  # worth keeping rather than computing twice
    accepts: Callable[[Call], bool] = lambda call: True


def computed(name: str, x: Expressions, *args: Expr) -> Expr:
    """A primitive in the type of its first argument."""
    return x.node(name, args, args[0].dtype)


def prim(name: str) -> Callable:
    return lambda x, a, call: x.node(name, tuple(a), a[0].dtype if call.dtype is not torch.bool else torch.bool)


def unary(name: str, dtypes: tuple = FLOATS, heavy: bool = True, **more: Any) -> Row:
    return Row("elementwise", prim(name), ("self",), dtypes, heavy=heavy, **more)


def binary(name: str, dtypes: tuple = NUMERIC, **more: Any) -> Row:
    return Row("elementwise", prim(name), ("self", "other"), dtypes, **more)


def compare(name: str, inputs: tuple = ("self", "other")) -> Row:
    return Row("elementwise", lambda x, a, call: x.node(name, tuple(a), torch.bool), inputs, DTYPES, "promoted")
