"""The op table: one row an op. Dialects spell the primitives that rows are made of.

An elementwise row names the arguments that it reads (already cast to the type that eager computes in) and a builder
from their expressions to the result's. bf16 and f16 results are rounded after the builder, as eager does at an op's end.
"""
from __future__ import annotations

import math
from typing import Any, Callable, Optional

import torch

from .calls import Call, fits, is_number, result_type
from .kernel import DTYPES, FLOATS, HALVES, INTEGERS, Expr, Expressions
from .rows import NUMERIC, WHOLE_NUMBERS, Row, binary, compare, prim, unary

# ------------------------------------------------------------ builders of elementwise rows

def _computed(name: str, x: Expressions, *args: Expr) -> Expr:
    """A primitive in the type of its first argument."""
    return x.node(name, args, args[0].dtype)


def _exact(x: Expressions, value: Any, like: Expr) -> Expr:
    """A number as eager's scalar code holds it: not rounded to a half type."""
    return x.const(value, torch.float32 if like.dtype in HALVES else like.dtype)


def _add(sign: int) -> Callable:
    def build(x: Expressions, a: list[Expr], call: Call) -> Expr:
        alpha = call.args.get("alpha", 1)
        name = "add" if sign > 0 else "sub"
        if alpha == 1:
            return _computed(name, x, *a)
        k = x.const(alpha, a[0].dtype)
        if k.dtype.is_floating_point:                          # eager's vector path is fma(b, alpha, a)
            return _computed("fma", x, a[1], x.const(sign * k.extra, k.dtype), a[0])
        return _computed(name, x, a[0], _computed("mul", x, a[1], k))
    return build


def _mul(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return _computed("and" if a[0].dtype is torch.bool else "mul", x, *a)


def _sigmoid_backward(x: Expressions, a: list[Expr], call: Call) -> Expr:
    """Eager computes f16 in f16, operation by operation."""
    step = x.rounded if call.dtype is torch.float16 else lambda e: e
    left = step(_computed("sub", x, x.const(1, a[1].dtype), a[1]))
    return _computed("mul", x, step(_computed("mul", x, a[0], left)), a[1])


def _tanh_backward(x: Expressions, a: list[Expr], call: Call) -> Expr:
    """Eager contracts 1 - y * y, except in f16."""
    one = x.const(1, a[1].dtype)
    return _computed("mul", x, a[0], _computed("fma", x, _computed("neg", x, a[1]), a[1], one))


def _rsub(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return _add(-1)(x, [a[1], a[0]], call)


def _div(x: Expressions, a: list[Expr], call: Call) -> Expr:
    mode = call.args.get("rounding_mode")
    return _computed({None: "div", "trunc": "div_trunc", "floor": "div_floor"}[mode], x, *a)


def _pow(x: Expressions, a: list[Expr], call: Call) -> Expr:
    base, exponent = a[0], call.args["exponent"]
    if not is_number(exponent):
        return _computed("pow", x, *a)
    if base.dtype in INTEGERS:
        out = x.const(1, base.dtype)
        for _ in range(int(exponent)):
            out = _computed("mul", x, out, base)
        return out
    square = _computed("mul", x, base, base)
    if base.dtype is torch.bfloat16:                           # eager rounds each product, in f16 only the last
        square = x.rounded(square)
    if base.dtype is torch.float16 and exponent in (0.5, -0.5):      # eager calls the C library's pow there
        return _computed("pow", x, *a)
    known = {0: lambda: x.const(1, base.dtype), 1: lambda: base, 2: lambda: square, 3: lambda: _computed("mul", x, square, base),
             0.5: lambda: _computed("sqrt", x, base), -1: lambda: _computed("reciprocal", x, base),
             -0.5: lambda: _computed("rsqrt", x, base), -2: lambda: _computed("reciprocal", x, square)}
    return known[exponent]() if exponent in known else _computed("pow", x, *a)


def _numbers_fit(call: Call) -> bool:
    """Eager refuses numbers that overflow the dtype here; elsewhere it wraps them."""
    return all(not is_number(a) or fits(a, call.dtype) for a in call.args.values())


def _pow_ok(call: Call) -> bool:
    exponent = call.args["exponent"]
    if call.overload == "Tensor_Scalar":
        whole = isinstance(exponent, int) and not isinstance(exponent, bool) and 0 <= exponent <= 8
        return _numbers_fit(call) if call.dtype in FLOATS else whole and call.dtype in INTEGERS
    return call.dtype in FLOATS and call.overload == "Tensor_Tensor"


def _clamp(x: Expressions, a: list[Expr], call: Call) -> Expr:
    out, rest = a[0], list(a[1:])
    for name in ("min", "max"):
        if call.args[name] is not None:
            limit = rest.pop(0)
            scalar = limit.op == "const" and limit.extra == limit.extra
            out = _computed(f"clamp_{name}" + ("_number" if scalar else ""), x, out, limit)
    return out


def _limit(name: str, argument: str) -> Row:
    def build(x: Expressions, a: list[Expr], call: Call) -> Expr:
        scalar = a[1].op == "const" and a[1].extra == a[1].extra
        return _computed(name + ("_number" if scalar else ""), x, *a)
    return Row("elementwise", build, ("self", argument), accepts=_numbers_fit)


def _hardtanh(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return _computed("clamp_max_number", x, _computed("clamp_min_number", x, a[0], a[1]), a[2])


def _where(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return x.node("select", (x.cast(a[0], torch.bool), a[1], a[2]), a[1].dtype)


def _masked_fill(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return x.node("select", (x.cast(a[1], torch.bool), a[2], a[0]), a[0].dtype)


def _addcmul(x: Expressions, a: list[Expr], call: Call) -> Expr:
    scaled = _computed("mul", x, a[1], _exact(x, call.args["value"], a[1])) if call.args["value"] != 1 else a[1]
    return _computed("fma", x, scaled, a[2], a[0])


def _addcdiv(x: Expressions, a: list[Expr], call: Call) -> Expr:
    scaled = _computed("mul", x, a[1], _exact(x, call.args["value"], a[1])) if call.args["value"] != 1 else a[1]
    return _computed("add", x, a[0], _computed("div", x, scaled, a[2]))


def _lerp(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return _computed("lerp", x, *a)


def _gelu(suffix: str = "") -> Callable:
    def build(x: Expressions, a: list[Expr], call: Call) -> Expr:
        return _computed(("gelu_tanh" if call.args["approximate"] == "tanh" else "gelu") + suffix, x, *a)
    return build


def _bitwise_not(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return _computed("not" if a[0].dtype is torch.bool else "bitwise_not", x, a[0])


def _leaky_relu(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return _computed("leaky_relu", x, a[0], _exact(x, call.args["negative_slope"], a[0]))


def _softplus(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return _computed("softplus", x, a[0], _exact(x, call.args["beta"], a[0]), _exact(x, call.args["threshold"], a[0]))


def _elu(x: Expressions, a: list[Expr], call: Call) -> Expr:
    scale = call.args["scale"]
    return _computed("elu", x, a[0], _exact(x, call.args["alpha"] * scale, a[0]), _exact(x, scale, a[0]),
                     _exact(x, call.args["input_scale"], a[0]))


def _copy(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return a[-1]


def _no_rounding_name(call: Call) -> bool:
    return call.overload != "decimals"


def _trunc_div_ok(call: Call) -> bool:
    """Halves and integers: eager divides integers in integers, and checks for zero."""
    if call.args.get("rounding_mode") is None and call.name in ("div", "divide", "true_divide"):
        return call.dtype in FLOATS
    return call.dtype not in HALVES


ELEMENTWISE: dict[str, Row] = {
    "add": Row("elementwise", _add(1), ("self", "other")),
    "sub": Row("elementwise", _add(-1), ("self", "other")),
    "rsub": Row("elementwise", _rsub, ("self", "other")),
    "mul": Row("elementwise", _mul, ("self", "other"), DTYPES, scalars="exact"),
    "div": Row("elementwise", _div, ("self", "other"), scalars="exact", accepts=_trunc_div_ok),
    "floor_divide": Row("elementwise", lambda x, a, call: _computed("div_floor", x, *a), ("self", "other"), scalars="exact",
                        accepts=_trunc_div_ok),
    "remainder": binary("remainder", (*INTEGERS, torch.float32, torch.float64), heavy=True),
    "fmod": binary("fmod", (*INTEGERS, torch.float32, torch.float64), heavy=True),
    "pow": Row("elementwise", _pow, ("self", "exponent"), heavy=True, accepts=_pow_ok),
    "square": Row("elementwise", lambda x, a, call: _computed("mul", x, a[0], a[0]), ("self",)),
    "neg": unary("neg", NUMERIC, heavy=False), "abs": unary("abs", NUMERIC, heavy=False),
    "sign": unary("sign", NUMERIC, heavy=False), "sgn": unary("sign", NUMERIC, heavy=False),
    "relu": unary("relu", NUMERIC, heavy=False), "positive": Row("elementwise", _copy, ("self",)),
    "floor": unary("floor", heavy=False), "ceil": unary("ceil", heavy=False), "trunc": unary("trunc", heavy=False),
    "round": Row("elementwise", prim("rint"), ("self",), FLOATS, accepts=_no_rounding_name),
    "frac": unary("frac", heavy=False), "sqrt": unary("sqrt"), "rsqrt": unary("rsqrt"), "reciprocal": unary("reciprocal"),
    "exp": unary("exp"), "exp2": unary("exp2"), "expm1": unary("expm1"), "log": unary("log"), "log2": unary("log2"),
    "log10": unary("log10"), "log1p": unary("log1p"), "sin": unary("sin"), "cos": unary("cos"), "tan": unary("tan"),
    "asin": unary("asin"), "acos": unary("acos"), "atan": unary("atan"), "sinh": unary("sinh"), "cosh": unary("cosh"),
    "tanh": unary("tanh"), "asinh": unary("asinh"), "acosh": unary("acosh"), "atanh": unary("atanh"),
    "erf": unary("erf"), "erfc": unary("erfc"), "sigmoid": unary("sigmoid"), "silu": unary("silu"),
    "atan2": binary("atan2", FLOATS, heavy=True), "hypot": binary("hypot", (torch.float32, torch.float64), heavy=True),
    "maximum": binary("maximum", DTYPES), "minimum": binary("minimum", DTYPES),
    "clamp": Row("elementwise", _clamp, ("self", "min", "max"), NUMERIC, accepts=_numbers_fit),
    "clamp_min": _limit("clamp_min", "min"), "clamp_max": _limit("clamp_max", "max"),
    "hardtanh": Row("elementwise", _hardtanh, ("self", "min_val", "max_val"), FLOATS, accepts=_numbers_fit),
    "where": Row("elementwise", _where, ("condition", "self", "other"), DTYPES),
    "masked_fill": Row("elementwise", _masked_fill, ("self", "mask", "value"), DTYPES, accepts=_numbers_fit),
    "addcmul": Row("elementwise", _addcmul, ("self", "tensor1", "tensor2"), FLOATS),
    "addcdiv": Row("elementwise", _addcdiv, ("self", "tensor1", "tensor2"), FLOATS),
    "lerp": Row("elementwise", _lerp, ("self", "end", "weight"), FLOATS, scalars="exact"),
    "gelu": Row("elementwise", _gelu(), ("self",), FLOATS, heavy=True),
    "gelu_backward": Row("elementwise", _gelu("_backward"), ("grad_output", "self"), FLOATS, heavy=True),
    "silu_backward": Row("elementwise", prim("silu_backward"), ("grad_output", "self"), FLOATS, heavy=True),
    "sigmoid_backward": Row("elementwise", _sigmoid_backward, ("grad_output", "output"), FLOATS),
    "tanh_backward": Row("elementwise", _tanh_backward, ("grad_output", "output"), FLOATS),
    "threshold_backward": Row("elementwise", prim("threshold_backward"), ("grad_output", "self", "threshold"), NUMERIC),
    "leaky_relu": Row("elementwise", _leaky_relu, ("self",), FLOATS),
    "softplus": Row("elementwise", _softplus, ("self",), FLOATS, heavy=True),
    "elu": Row("elementwise", _elu, ("self",), FLOATS, heavy=True),
    "bitwise_and": binary("and", WHOLE_NUMBERS), "bitwise_or": binary("or", WHOLE_NUMBERS),
    "bitwise_xor": binary("xor", WHOLE_NUMBERS), "__and__": binary("and", WHOLE_NUMBERS),
    "__or__": binary("or", WHOLE_NUMBERS), "__xor__": binary("xor", WHOLE_NUMBERS),
    "bitwise_not": Row("elementwise", _bitwise_not, ("self",), WHOLE_NUMBERS),
    "bitwise_left_shift": binary("shift_left", INTEGERS), "bitwise_right_shift": binary("shift_right", INTEGERS),
    "__lshift__": binary("shift_left", INTEGERS), "__rshift__": binary("shift_right", INTEGERS),
    "eq": compare("eq"), "ne": compare("ne"), "lt": compare("lt"), "le": compare("le"), "gt": compare("gt"),
    "ge": compare("ge"), "isnan": compare("isnan", ("self",)), "isinf": compare("isinf", ("self",)),
    "isfinite": compare("isfinite", ("self",)), "signbit": compare("signbit", ("self",)),
    "logical_not": compare("logical_not", ("self",)), "logical_and": compare("logical_and"),
    "logical_or": compare("logical_or"), "logical_xor": compare("logical_xor"),
    "clone": Row("elementwise", _copy, ("self",), DTYPES), "_to_copy": Row("elementwise", _copy, ("self",), DTYPES),
    "contiguous": Row("elementwise", _copy, ("self",), DTYPES), "lift_fresh_copy": Row("elementwise", _copy, ("self",), DTYPES),
    "restride": Row("elementwise", _copy, ("self",), DTYPES), "exact_copy": Row("elementwise", _copy, ("self",), DTYPES),
    "fill": Row("elementwise", _copy, ("value",), DTYPES, accepts=_numbers_fit), "copy": Row("elementwise", _copy, ("src",), DTYPES),
}

# ------------------------------------------------------------ reductions

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
    d = _computed("sub", x, value, mean)
    correction = call.args.get("correction")
    if "correction" not in call.args:
        correction = 1 if call.args.get("unbiased", True) else 0
    correction = 1 if correction is None else correction
    return mean, _divided(x, reduce("sum", _computed("mul", x, d, d)), max(count - correction, 0))


def _var(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int, along: Any) -> list[Expr]:
    return [_moments(x, value, reduce, call, count)[1]]


def _std(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int, along: Any) -> list[Expr]:
    return [_computed("sqrt", x, _moments(x, value, reduce, call, count)[1])]


def _var_mean(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int, along: Any) -> list[Expr]:
    return list(reversed(_moments(x, value, reduce, call, count)))


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


def _norm(x: Expressions, value: Expr, reduce: Callable, call: Call, count: int, along: Any) -> list[Expr]:
    value = x.cast(value, accumulator(call.dtype))
    order = call.args.get("ord", call.args.get("p", 2))
    if order == 2:
        return [_computed("sqrt", x, reduce("sum", _computed("mul", x, value, value)))]
    size = _computed("abs", x, value)
    return [reduce("max" if math.isinf(order) else "sum", size)]


def _norm_ok(call: Call) -> bool:
    return call.args.get("ord", 2) in (1, 2, math.inf) and call.args.get("dtype") is None


def _correction_ok(call: Call) -> bool:
    return call.overload in ("correction", "dim", "") and call.tensors[0].dtype in FLOATS


def _not_empty(call: Call) -> bool:
    return call.tensors[0].numel > 0


def _extreme_ok(call: Call) -> bool:
    return call.overload in ("", "dim", "default") and call.tensors[0].numel > 0


def _one_dim(call: Call) -> bool:
    return call.tensors[0].numel > 0 and (call.args.get("dim") is not None or len(call.tensors[0].shape) == 1)


REDUCTIONS: dict[str, Row] = {
    "sum": Row("reduction", _fold("sum"), ("self",)), "mean": Row("reduction", _mean, ("self",), FLOATS),
    "prod": Row("reduction", _fold("prod"), ("self",), (*INTEGERS, torch.float32, torch.float64)),
    "amax": Row("reduction", _extreme("max"), ("self",), DTYPES, accepts=_not_empty),
    "amin": Row("reduction", _extreme("min"), ("self",), DTYPES, accepts=_not_empty),
    "max": Row("reduction", _extreme_or_both("max"), ("self",), DTYPES, accepts=_extreme_ok),
    "min": Row("reduction", _extreme_or_both("min"), ("self",), DTYPES, accepts=_extreme_ok),
    "any": Row("reduction", _truth("any"), ("self",), (torch.bool, torch.uint8)),
    "all": Row("reduction", _truth("all"), ("self",), (torch.bool, torch.uint8)),
    "argmax": Row("reduction", _arg("max"), ("self",), (torch.int64,), accepts=_one_dim),
    "argmin": Row("reduction", _arg("min"), ("self",), (torch.int64,), accepts=_one_dim),
    "var": Row("reduction", _var, ("self",), FLOATS, accepts=_correction_ok),
    "std": Row("reduction", _std, ("self",), FLOATS, accepts=_correction_ok),
    "var_mean": Row("reduction", _var_mean, ("self",), FLOATS, accepts=_correction_ok),
    "linalg_vector_norm": Row("reduction", _norm, ("self",), FLOATS, accepts=_norm_ok),
}


def reduced_dims(call: Call) -> tuple[tuple[int, ...], bool]:
    """(reduced dims, keepdim) of a reduction."""
    rank = len(call.tensors[0].shape)
    dims = call.args.get("dim")
    if dims is None or isinstance(dims, (list, tuple)) and not dims:
        dims = range(rank)
    dims = [dims] if isinstance(dims, int) else dims
    return tuple(sorted({d % rank for d in dims})) if rank else (), bool(call.args.get("keepdim", False))


def compute_dtype(row: Row, call: Call) -> torch.dtype:
    if row.compute == "out":
        return call.dtype
    return result_type([call.args[n] for n in row.inputs])


def scalar_operand(x: Expressions, row: Row, value: Any, dtype: torch.dtype) -> Expr:
    """A Python number as an operand computed in `dtype`."""
    exact = row.scalars == "exact" and dtype in HALVES
    return x.const(value, torch.float32 if exact else dtype)


def row_of(call: Call) -> Optional[Row]:
    from .relayouts import RELAYOUTS
    return ELEMENTWISE.get(call.name) or REDUCTIONS.get(call.name) or RELAYOUTS.get(call.name)
