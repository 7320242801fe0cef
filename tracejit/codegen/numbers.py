"""Rows of Python's arithmetic on floats, which raises where IEEE arithmetic does not."""
from __future__ import annotations

import torch

from .calls import Call
from .kernel import ERRORS, Expr, Expressions
from .rows import Row, computed

_NUMBER = (torch.float64,)


def _checked(x: Expressions, e: Expr, wrong: Expr, error: str) -> Expr:
    """`e`, with an error reported where `wrong` holds: as an index into one place."""
    place = x.node("checked", (x.cast(wrong, torch.int64),), torch.int64, (1, ERRORS[error], False))
    return x.node("after", (e, place), e.dtype)


def _truediv(x: Expressions, a: list[Expr], call: Call) -> Expr:
    zero = x.node("eq", (a[1], x.const(0, torch.float64)), torch.bool)
    return _checked(x, computed("div", x, *a), zero, "division")


def _pow(x: Expressions, a: list[Expr], call: Call) -> Expr:
    """C's function, as Python calls it: what is not finite though the operands are is an error, or no float."""
    made = computed("number_pow", x, *a)
    finite = [x.node("isfinite", (e,), torch.bool) for e in (made, *a)]
    wrong = x.both(x.node("not", (finite[0],), torch.bool), x.both(finite[1], finite[2]))
    of_zero = x.node("eq", (a[0], x.const(0, torch.float64)), torch.bool)
    made = _checked(x, made, x.both(wrong, of_zero), "reciprocal")
    return _checked(x, made, x.both(wrong, x.node("not", (of_zero,), torch.bool)), "power")


def _op(name: str, inputs: tuple[str, ...] = ("self", "other")) -> Row:
    return Row("elementwise", lambda x, a, call: computed(name, x, *a), inputs, _NUMBER)


NUMBERS: dict[str, Row] = {
    "number": Row("elementwise", lambda x, a, call: a[0], ("self",), _NUMBER),
    "number_add": _op("add"), "number_sub": _op("sub"), "number_mul": _op("mul"),
    "number_neg": _op("neg", ("self",)), "number_abs": _op("abs", ("self",)),
    "number_truediv": Row("elementwise", _truediv, ("self", "other"), _NUMBER, heavy=True),
    "number_pow": Row("elementwise", _pow, ("self", "other"), _NUMBER, heavy=True),
}
