"""The op table: one row an op. Dialects spell the primitives that rows are made of.

An elementwise row names the arguments that it reads (already cast to the type that eager computes in) and a builder
from their expressions to the result's. bf16 and f16 results are rounded after the builder, as eager does at an op's end.
"""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from .calls import Call, fits, is_number, result_type
from .kernel import DTYPES, FLOATS, HALVES, INTEGERS, Expr, Expressions
from .numbers import NUMBERS
from .reductions import REDUCTIONS, SCANS
from .rows import NUMERIC, WHOLE_NUMBERS, Row, binary, compare, computed, prim, unary

# ------------------------------------------------------------ builders of elementwise rows

def _exact(x: Expressions, value: Any, like: Expr) -> Expr:
    """A number as eager's scalar code holds it: not rounded to a half type."""
    if isinstance(value, Expr):
        return x.cast(value, like.dtype)
    return x.const(value, torch.float32 if like.dtype in HALVES else like.dtype)


def _add(sign: int) -> Callable:
    def build(x: Expressions, a: list[Expr], call: Call) -> Expr:
        alpha = call.args.get("alpha", 1)
        name = "add" if sign > 0 else "sub"
        if alpha == 1:
            return computed(name, x, *a)
        k = _exact(x, alpha, a[0]) if isinstance(alpha, Expr) else x.const(alpha, a[0].dtype)
        if k.dtype.is_floating_point:                          # eager's vector path is fma(b, alpha, a)
            if k.op != "const":
                return computed("fma", x, a[1], k if sign > 0 else computed("neg", x, k), a[0])
            return computed("fma", x, a[1], x.const(sign * k.extra, k.dtype), a[0])
        return computed(name, x, a[0], computed("mul", x, a[1], k))
    return build


def _mul(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return computed("and" if a[0].dtype is torch.bool else "mul", x, *a)


def _sigmoid_backward(x: Expressions, a: list[Expr], call: Call) -> Expr:
    """Eager computes f16 in f16, operation by operation."""
    step = x.rounded if call.dtype is torch.float16 else lambda e: e
    left = step(computed("sub", x, x.const(1, a[1].dtype), a[1]))
    return computed("mul", x, step(computed("mul", x, a[0], left)), a[1])


def _tanh_backward(x: Expressions, a: list[Expr], call: Call) -> Expr:
    """Eager contracts 1 - y * y, except in f16."""
    one = x.const(1, a[1].dtype)
    return computed("mul", x, a[0], computed("fma", x, computed("neg", x, a[1]), a[1], one))


def _rsub(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return _add(-1)(x, [a[1], a[0]], call)


def _div(x: Expressions, a: list[Expr], call: Call) -> Expr:
    mode = call.args.get("rounding_mode")
    return computed({None: "div", "trunc": "div_trunc", "floor": "div_floor"}[mode], x, *a)


def _pow(x: Expressions, a: list[Expr], call: Call) -> Expr:
    base, exponent = a[0], call.args["exponent"]
    if not is_number(exponent):
        return x.const(1, base.dtype) if call.overload == "Scalar" and call.args["self"] == 1 else computed("pow", x, *a)
    if base.dtype in INTEGERS:
        out = x.const(1, base.dtype)
        for _ in range(int(exponent)):
            out = computed("mul", x, out, base)
        return out
    square = computed("mul", x, base, base)
    if base.dtype is torch.bfloat16:                           # eager rounds each product, in f16 only the last
        square = x.rounded(square)
    if base.dtype is torch.float16 and exponent in (0.5, -0.5):      # eager calls the C library's pow there
        return computed("pow", x, *a)
    known = {0: lambda: x.const(1, base.dtype), 1: lambda: base, 2: lambda: square, 3: lambda: computed("mul", x, square, base),
             0.5: lambda: computed("sqrt", x, base), -1: lambda: computed("reciprocal", x, base),
             -0.5: lambda: computed("rsqrt", x, base), -2: lambda: computed("reciprocal", x, square)}
    return known[exponent]() if exponent in known else computed("pow", x, *a)


def _numbers_fit(call: Call) -> bool:
    """Eager refuses numbers that overflow the dtype here; elsewhere it wraps them."""
    return all(not is_number(a) or fits(a, call.dtype) for a in call.args.values())


def _pow_ok(call: Call) -> bool:
    exponent = call.args["exponent"]
    if call.overload == "Tensor_Scalar":
        whole = isinstance(exponent, int) and not isinstance(exponent, bool) and 0 <= exponent <= 8
        return _numbers_fit(call) if call.dtype in FLOATS else whole and call.dtype in INTEGERS
    return call.dtype in FLOATS and call.overload in ("Tensor_Tensor", "Scalar")


def _clamp(x: Expressions, a: list[Expr], call: Call) -> Expr:
    out, rest = a[0], list(a[1:])
    for name in ("min", "max"):
        if call.args[name] is not None:
            limit = rest.pop(0)
            scalar = limit.op == "const" and limit.extra == limit.extra
            out = computed(f"clamp_{name}" + ("_number" if scalar else ""), x, out, limit)
    return out


def _limit(name: str, argument: str) -> Row:
    def build(x: Expressions, a: list[Expr], call: Call) -> Expr:
        scalar = a[1].op == "const" and a[1].extra == a[1].extra
        return computed(name + ("_number" if scalar else ""), x, *a)
    return Row("elementwise", build, ("self", argument), accepts=_numbers_fit)


def _hardtanh(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return computed("clamp_max_number", x, computed("clamp_min_number", x, a[0], a[1]), a[2])


def _where(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return x.node("select", (x.cast(a[0], torch.bool), a[1], a[2]), a[1].dtype)


def _masked_fill(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return x.node("select", (x.cast(a[1], torch.bool), a[2], a[0]), a[0].dtype)


def _addcmul(x: Expressions, a: list[Expr], call: Call) -> Expr:
    scaled = computed("mul", x, a[1], _exact(x, call.args["value"], a[1])) if call.args["value"] != 1 else a[1]
    return computed("fma", x, scaled, a[2], a[0])


def _addcdiv(x: Expressions, a: list[Expr], call: Call) -> Expr:
    scaled = computed("mul", x, a[1], _exact(x, call.args["value"], a[1])) if call.args["value"] != 1 else a[1]
    return computed("add", x, a[0], computed("div", x, scaled, a[2]))


def _lerp(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return computed("lerp", x, *a)


def _gelu(x: Expressions, a: list[Expr], call: Call) -> Expr:
    tanh = call.args["approximate"] == "tanh"
    return computed("gelu_tanh" if tanh else "gelu_bf16" if a[0].dtype is torch.bfloat16 else "gelu", x, *a)


def _gelu_backward(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return computed("gelu_tanh_backward" if call.args["approximate"] == "tanh" else "gelu_backward", x, *a)


def _bitwise_not(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return computed("not" if a[0].dtype is torch.bool else "bitwise_not", x, a[0])


def _leaky_relu(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return computed("leaky_relu", x, a[0], _exact(x, call.args["negative_slope"], a[0]))


def _softplus(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return computed("softplus", x, a[0], _exact(x, call.args["beta"], a[0]), _exact(x, call.args["threshold"], a[0]))


def _elu(x: Expressions, a: list[Expr], call: Call) -> Expr:
    scale = call.args["scale"]
    return computed("elu", x, a[0], _exact(x, call.args["alpha"] * scale, a[0]), _exact(x, scale, a[0]),
                     _exact(x, call.args["input_scale"], a[0]))


def _copy(x: Expressions, a: list[Expr], call: Call) -> Expr:
    return a[-1]


def _no_rounding_name(call: Call) -> bool:
    return call.overload != "decimals"


def _division_ok(call: Call) -> bool:
    """Integers: true division makes floats of them, the others stay integers and check for zero. Halves: decomposed."""
    if call.args.get("rounding_mode") is None and call.name in ("div", "divide", "true_divide"):
        return call.dtype in FLOATS
    return call.dtype not in HALVES


ELEMENTWISE: dict[str, Row] = {
    **NUMBERS,
    "add": Row("elementwise", _add(1), ("self", "other")),
    "sub": Row("elementwise", _add(-1), ("self", "other")),
    "rsub": Row("elementwise", _rsub, ("self", "other")),
    "mul": Row("elementwise", _mul, ("self", "other"), DTYPES, scalars="exact"),
    "div": Row("elementwise", _div, ("self", "other"), scalars="exact", accepts=_division_ok),
    "floor_divide": Row("elementwise", lambda x, a, call: computed("div_floor", x, *a), ("self", "other"), scalars="exact",
                        accepts=_division_ok),
    "remainder": binary("remainder", NUMERIC, heavy=True), "fmod": binary("fmod", NUMERIC, heavy=True),
    "pow": Row("elementwise", _pow, ("self", "exponent"), heavy=True, accepts=_pow_ok),
    "square": Row("elementwise", lambda x, a, call: computed("mul", x, a[0], a[0]), ("self",)),
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
    "copysign": binary("copysign", FLOATS), "atan2": binary("atan2", FLOATS, heavy=True),
    "hypot": binary("hypot", (torch.float32, torch.float64), heavy=True),
    "maximum": binary("maximum", DTYPES), "minimum": binary("minimum", DTYPES),
    "clamp": Row("elementwise", _clamp, ("self", "min", "max"), NUMERIC, accepts=_numbers_fit),
    "clamp_min": _limit("clamp_min", "min"), "clamp_max": _limit("clamp_max", "max"),
    "hardtanh": Row("elementwise", _hardtanh, ("self", "min_val", "max_val"), FLOATS, accepts=_numbers_fit),
    "where": Row("elementwise", _where, ("condition", "self", "other"), DTYPES),
    "masked_fill": Row("elementwise", _masked_fill, ("self", "mask", "value"), DTYPES, accepts=_numbers_fit),
    "addcmul": Row("elementwise", _addcmul, ("self", "tensor1", "tensor2"), FLOATS),
    "addcdiv": Row("elementwise", _addcdiv, ("self", "tensor1", "tensor2"), FLOATS),
    "lerp": Row("elementwise", _lerp, ("self", "end", "weight"), FLOATS, scalars="exact"),
    "gelu": Row("elementwise", _gelu, ("self",), FLOATS, heavy=True),
    "gelu_backward": Row("elementwise", _gelu_backward, ("grad_output", "self"), FLOATS, heavy=True),
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


def compute_dtype(row: Row, call: Call) -> torch.dtype:
    if row.compute == "out":
        return call.dtype
    return result_type([call.args[n] for n in row.inputs])


def scalar_operand(x: Expressions, row: Row, value: Any, dtype: torch.dtype) -> Expr:
    """A Python number as an operand computed in `dtype`."""
    exact = row.scalars == "exact" and dtype in HALVES
    return x.const(value, torch.float32 if exact else dtype)


def row_of(call: Call) -> Optional[Row]:
    found = ELEMENTWISE.get(call.name)
    if found is not None:
        return found
    from .relayouts import RELAYOUTS
    return REDUCTIONS.get(call.name) or SCANS.get(call.name) or RELAYOUTS.get(call.name)
