"""Rows of the op table that reduce: what is folded, and what a result is made of from what was folded."""
from __future__ import annotations

from typing import Any, Callable

import torch

from .calls import Call
from .kernel import DTYPES, FLOATS, INTEGERS, Expr, Expressions
from .rows import Row, computed

_ACCUMULATOR = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


def accumulator(dtype: torch.dtype) -> torch.dtype:
    return _ACCUMULATOR.get(dtype, dtype)


def _fold(kind: str) -> Callable:
    def build(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int, along: Any) -> list[Expr]:
        return [reduce(kind, x.cast(value, accumulator(call.dtype)))]
    return build


def _extreme(kind: str) -> Callable:
    return lambda x, value, reduce, call, count, along: [reduce(kind, value)]


def _truth(kind: str) -> Callable:
    def build(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int, along: Any) -> list[Expr]:
        return [reduce(kind, x.cast(value, torch.bool))]
    return build


def _divided(x: Expressions, total: Expr, count: float) -> Expr:
    return x.node("div", (total, x.const(count, total.dtype)), total.dtype)


def _mean(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int, along: Any) -> list[Expr]:
    return [_divided(x, reduce("sum", x.cast(value, accumulator(call.dtype))), count)]


def _moments(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int) -> tuple[Expr, Expr]:
    """Mean and variance: a second pass over distances from the mean."""
    value = x.cast(value, torch.float64)                       # as eager accumulates
    mean = _divided(x, reduce("sum", value), count)
    d = computed("sub", x, value, mean)
    correction = call.args.get("correction")
    if "correction" not in call.args:
        correction = 1 if call.args.get("unbiased", True) else 0
    correction = 1 if correction is None else correction
    return mean, _divided(x, reduce("sum", computed("mul", x, d, d)), max(count - correction, 0))


def _var(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int, along: Any) -> list[Expr]:
    return [_moments(x, value, reduce, call, count)[1]]


def _std(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int, along: Any) -> list[Expr]:
    return [computed("sqrt", x, _moments(x, value, reduce, call, count)[1])]


def _var_mean(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int, along: Any) -> list[Expr]:
    return list(reversed(_moments(x, value, reduce, call, count)))


def _std_mean(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int, along: Any) -> list[Expr]:
    mean, variance = _moments(x, value, reduce, call, count)
    return [computed("sqrt", x, variance), mean]


def _position(x: Expressions, value: Expr, reduce: Callable, kind: str, along: Expr) -> tuple[Expr, Expr]:
    """The extreme, and the first index where it (or a NaN) stands."""
    best = reduce(kind, value)
    here = x.node("eq", (value, best), torch.bool)
    if value.dtype.is_floating_point:
        here = x.node("or", (here, x.node("isnan", (value,), torch.bool)), torch.bool)
    return best, reduce("min", x.node("select", (here, along, x.const((1 << 63) - 1, torch.int64)), torch.int64))


def _arg(kind: str) -> Callable:
    return lambda x, value, reduce, call, count, along: [_position(x, value, reduce, kind, along)[1]]


def _extreme_or_both(kind: str) -> Callable:
    def build(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int, along: Any) -> list[Expr]:
        return list(_position(x, value, reduce, kind, along)) if call.overload == "dim" else [reduce(kind, value)]
    return build


def _correction_ok(call: Call) -> bool:
    return call.overload in ("correction", "dim", "") and call.tensors[0].dtype in FLOATS


def _not_empty(call: Call) -> bool:
    return call.tensors[0].numel > 0


def _extreme_ok(call: Call) -> bool:
    return call.overload in ("", "dim", "default") and call.tensors[0].numel > 0


REDUCTIONS: dict[str, Row] = {
    "sum": Row("reduction", _fold("sum"), ("self",)), "mean": Row("reduction", _mean, ("self",), FLOATS),
    "prod": Row("reduction", _fold("prod"), ("self",), (*INTEGERS, torch.float32, torch.float64)),
    "amax": Row("reduction", _extreme("max"), ("self",), DTYPES, accepts=_not_empty),
    "amin": Row("reduction", _extreme("min"), ("self",), DTYPES, accepts=_not_empty),
    "max": Row("reduction", _extreme_or_both("max"), ("self",), DTYPES, accepts=_extreme_ok),
    "min": Row("reduction", _extreme_or_both("min"), ("self",), DTYPES, accepts=_extreme_ok),
    "any": Row("reduction", _truth("any"), ("self",), (torch.bool, torch.uint8)),
    "all": Row("reduction", _truth("all"), ("self",), (torch.bool, torch.uint8)),
    "argmax": Row("reduction", _arg("max"), ("self",), (torch.int64,), accepts=_not_empty),
    "argmin": Row("reduction", _arg("min"), ("self",), (torch.int64,), accepts=_not_empty),
    "var": Row("reduction", _var, ("self",), FLOATS, accepts=_correction_ok),
    "std": Row("reduction", _std, ("self",), FLOATS, accepts=_correction_ok),
    "var_mean": Row("reduction", _var_mean, ("self",), FLOATS, accepts=_correction_ok),
    "std_mean": Row("reduction", _std_mean, ("self",), FLOATS, accepts=_correction_ok),
}


def _running(kind: str) -> Callable:
    """What eager accumulates float32 in is float64, halves in float32."""
    def build(x: Expressions, value: Expr, call: Call) -> Expr:
        wider = {torch.float32: torch.float64, torch.bfloat16: torch.float32, torch.float16: torch.float32}
        dtype = wider.get(call.dtype, call.dtype)
        value = x.cast(x.cast(value, call.dtype), dtype)
        return x.rounded(x.cast(x.node("running", (value,), dtype, kind), call.dtype))
    return build


SCANS: dict[str, Row] = {"cumsum": Row("scan", _running("sum"), ("self",), (*FLOATS, *INTEGERS)),
                         "cumprod": Row("scan", _running("prod"), ("self",), (*FLOATS, *INTEGERS))}


def reduced_dims(call: Call) -> tuple[tuple[int, ...], bool]:
    """(reduced dims, keepdim) of a reduction; of a scan the dim that it runs along."""
    rank = len(call.tensors[0].shape)
    dims = call.args.get("dim")
    if dims is None or isinstance(dims, (list, tuple)) and not dims:
        dims = range(rank)
    dims = [dims] if isinstance(dims, int) else dims
    return tuple(sorted({d % rank for d in dims})) if rank else (), bool(call.args.get("keepdim", False))
