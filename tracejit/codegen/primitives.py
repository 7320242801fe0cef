"""The primitives that rows of the op table are made of, spelled for C and what derives from it.

`{0}`, `{1}`, ...: operands; `{m}`: what mathematical functions begin with; `{f}`: their suffix for float; `{s}`: the
letter of the register type, `{u}`: its unsigned type. `abs.int` goes before `abs` for integers, `abs.real` for the rest.
A primitive that is not here is the C library's function of that name.
"""
from __future__ import annotations

PRIMITIVES = {
    "after": "{0}",                                             # a value, once the checks beside it are made
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}", "neg_apart": "tj_neg_{s}({0})",
    "fma": "{m}fma{f}({0}, {1}, {2})", "abs.real": "{m}fabs{f}({0})", "abs.int": "({0} < 0 ? -{0} : {0})",
    "div_trunc.real": "{m}trunc{f}({0} / {1})", "div_trunc.int": "tj_div_trunc_{s}({0}, {1})",
    "div_floor": "tj_div_floor_{s}({0}, {1})", "remainder": "tj_mod_{s}({0}, {1})", "fmod": "tj_fmod_{s}({0}, {1})",
    "copysign": "{m}copysign{f}({0}, {1})", "reciprocal": "1 / {0}", "sqrt": "{m}sqrt{f}({0})",
    "rsqrt": "1 / {m}sqrt{f}({0})", "sign": "({0} > 0) - ({0} < 0)", "relu": "({0} < 0 ? 0 : {0})",
    "floor": "{m}floor{f}({0})", "ceil": "{m}ceil{f}({0})", "trunc": "{m}trunc{f}({0})",
    "rint": "{m}rint{f}({0})", "frac": "{0} - {m}trunc{f}({0})",
    "maximum": "({0} > {1} || {0} != {0} ? {0} : {1})", "minimum": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "clamp_min": "({0} != {0} ? {0} : {1} != {1} ? {1} : {0} < {1} ? {1} : {0})",
    "clamp_max": "({0} != {0} ? {0} : {1} != {1} ? {1} : {0} > {1} ? {1} : {0})",
    "clamp_min_number": "({0} < {1} ? {1} : {0})", "clamp_max_number": "({0} > {1} ? {1} : {0})",
    "select": "({0} ? {1} : {2})", "lerp": "tj_lerp_{s}({0}, {1}, {2})",
    "number_pow": "tj_number_pow({0}, {1})",
    "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "!{0}", "bitwise_not": "~{0}",
    "shift_left": "(({u}){1} >= sizeof({u}) * 8 ? 0 : ({u}){0} << {1})",
    "shift_right": "({0} >> (({u}){1} >= sizeof({u}) * 8 ? sizeof({u}) * 8 - ('{s}' != 'u') : {1}))",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "isnan": "{0} != {0}", "isinf.real": "{m}fabs{f}({0}) == {m}inf()", "isinf.int": "0",
    "isfinite.real": "{m}fabs{f}({0}) < {m}inf()", "isfinite.int": "1",
    "signbit.real": "tj_signbit_{s}({0})", "signbit.int": "{0} < 0", "logical_not": "!{0}",
    "logical_and": "({0} != 0) & ({1} != 0)", "logical_or": "({0} != 0) | ({1} != 0)", "logical_xor": "({0} != 0) ^ ({1} != 0)",
    "sigmoid": "tj_sigmoid_{s}({0})", "silu": "{0} / (1 + {exp}(-{0}))",
    "threshold_backward": "({1} <= {2} ? 0 : {0})",
    "leaky_relu": "({0} > 0 ? {0} : {0} * {1})", "softplus": "tj_softplus_{s}({0}, {1}, {2})",
    "elu": "tj_elu_{s}({0}, {1}, {2}, {3})", "gelu": "tj_gelu_{s}({0})", "gelu_bf16": "tj_gelu_bf16({0})",
    "gelu_tanh": "tj_gelu_tanh_{s}({0})",
    "gelu_backward": "tj_gelu_backward_{s}({0}, {1})", "gelu_tanh_backward": "tj_gelu_tanh_backward_{s}({0}, {1})",
    "silu_backward": "tj_silu_backward_{s}({0}, {1})",
}
ARITY = {"pow": 2, "atan2": 2, "hypot": 2}                     # of the C library's functions; the rest have one argument
