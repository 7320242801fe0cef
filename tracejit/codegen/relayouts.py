"""Rows of the op table that move elements: each is a map of indices, with predicates for windows."""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from ..ir.proxy import TensorProxy
from .calls import Call, constant_number, fits, is_number
from .index import ZERO, Index, flatten, floordiv, mod, unflatten
from .kernel import DTYPES, ERRORS, INTEGERS, Expr
from .rows import Row

FAR = 1 << 62
Indices = tuple[Index, ...]


def _replaced(index: Indices, dim: int, by: Index) -> Indices:
    return (*index[:dim], by, *index[dim + 1:])


def _self(call: Call) -> TensorProxy:
    return call.args["self"] if "self" in call.args else call.tensors[0]


def _reshape(v: Any, call: Call, index: Indices) -> Expr:
    x = _self(call)
    return v.read(x, unflatten(flatten(index, call.out.shape), x.shape), call)


def _flip(v: Any, call: Call, index: Indices) -> Expr:
    x = _self(call)
    dims = {d % len(index) for d in call.args["dims"]} if index else ()
    return v.read(x, tuple(i * -1 + (n - 1) if d in dims and n > 1 else i for d, (i, n) in enumerate(zip(index, x.shape))), call)


def _roll(v: Any, call: Call, index: Indices) -> Expr:
    x = _self(call)
    if not call.args["dims"]:
        n = x.numel
        flat = mod(flatten(index, x.shape) + -(call.args["shifts"][0] % max(n, 1)) + n, max(n, 1))
        return v.read(x, unflatten(flat, x.shape), call)
    def rolled(index: Indices, shifts: list[tuple[int, int]]) -> Expr:
        if not shifts:
            return v.read(x, index, call)
        (k, d), rest = shifts[0], shifts[1:]
        n = x.shape[d]
        return v.choose(v.x.inside(index[d], k % n, n), lambda: rolled(_replaced(index, d, index[d] + -(k % n)), rest),
                        lambda: rolled(_replaced(index, d, index[d] + (n - k % n)), rest))
    return rolled(index, [(k, d % len(index)) for k, d in zip(call.args["shifts"], call.args["dims"]) if x.shape[d] > 1])


def _repeat(v: Any, call: Call, index: Indices) -> Expr:
    x = _self(call)
    lead = len(index) - len(x.shape)
    return v.read(x, tuple(mod(i, n) if n > 1 else ZERO for i, n in zip(index[lead:], x.shape)), call)


def _triangle(lower: bool) -> Callable:
    def rule(v: Any, call: Call, index: Indices) -> Expr:
        k, d = call.args["diagonal"], index[-1] + index[-2] * -1
        keep = v.x.inside(d, -FAR, k + 1) if lower else v.x.inside(d, k, FAR)
        return v.choose(keep, lambda: v.read(_self(call), index, call), lambda: v.x.const(0, call.dtype))
    return rule


def _cat(v: Any, call: Call, index: Indices) -> Expr:
    parts = [t for t in call.args["tensors"] if t.shape != (0,) or len(index) == 1]
    d = call.args["dim"] % len(index)
    def piece(k: int, at: int) -> Expr:
        n = parts[k].shape[d]
        def here() -> Expr:
            return v.x.cast(v.read(parts[k], _replaced(index, d, index[d] + -at), call), call.dtype)
        if k == len(parts) - 1:
            return here()
        return v.choose(v.x.inside(index[d], at, at + n), here, lambda: piece(k + 1, at + n))
    return piece(0, 0)


def _stack(v: Any, call: Call, index: Indices) -> Expr:
    parts = call.args["tensors"]
    d = call.args["dim"] % len(index)
    own = (*index[:d], *index[d + 1:])
    def piece(k: int) -> Expr:
        def here() -> Expr:
            return v.x.cast(v.read(parts[k], own, call), call.dtype)
        return here() if k == len(parts) - 1 else v.choose(v.x.inside(index[d], k, k + 1), here, lambda: piece(k + 1))
    return piece(0)


def _pad(v: Any, call: Call, index: Indices) -> Expr:
    x, pads = _self(call), call.args["pad"]
    keep, own = v.x.const(True, torch.bool), list(index)
    for k in range(len(pads) // 2):
        d = len(index) - 1 - k
        own[d] = index[d] + -pads[2 * k]
        keep = v.conjunction(keep, v.x.inside(own[d], 0, x.shape[d]))
    return v.choose(keep, lambda: v.read(x, tuple(own), call), lambda: v.x.const(call.args["value"], call.dtype))


def _position(given: Optional[int], missing: int, n: int) -> int:
    """The bound of a slice among n elements."""
    at = missing if given is None else given + n if given < 0 else given
    return 0 if at < 0 else n if at > n else at


def _slice_scatter(v: Any, call: Call, index: Indices) -> Expr:
    base, source = _self(call), call.args["src"]
    d = call.args["dim"] % len(index)
    n = base.shape[d]
    start, end, step = _position(call.args["start"], 0, n), _position(call.args["end"], n, n), call.args["step"]
    count = (end - start + step - 1) // step if start < end else 0
    at = index[d] + -start
    keep = v.conjunction(v.x.inside(at, 0, (count - 1) * step + 1 if count else 0), v.x.inside(mod(at, step), 0, 1))
    return v.choose(keep, lambda: v.x.cast(v.read_broadcast(source, _replaced(index, d, floordiv(at, step)), call), call.dtype),
                    lambda: v.read(base, index, call))


def _select_scatter(v: Any, call: Call, index: Indices) -> Expr:
    d = call.args["dim"] % len(index)
    at = call.args["index"] % _self(call).shape[d]
    return v.choose(v.x.inside(index[d], at, at + 1),
                    lambda: v.x.cast(v.read(call.args["src"], (*index[:d], *index[d + 1:]), call), call.dtype),
                    lambda: v.read(_self(call), index, call))


def _diagonal_scatter(v: Any, call: Call, index: Indices) -> Expr:
    offset, rank = call.args["offset"], len(index)
    d1, d2 = call.args["dim1"] % rank, call.args["dim2"] % rank
    source = call.args["src"]
    along = index[d1] if offset >= 0 else index[d2]
    keep = v.conjunction(v.x.inside(index[d2] + index[d1] * -1 + -offset, 0, 1), v.x.inside(along, 0, source.shape[-1]))
    own = (*(i for d, i in enumerate(index) if d not in (d1, d2)), along)
    return v.choose(keep, lambda: v.x.cast(v.read(source, own, call), call.dtype), lambda: v.read(_self(call), index, call))


# ------------------------------------------------------------ gathers

def _index_select(v: Any, call: Call, index: Indices) -> Expr:
    x, which = _self(call), call.args["index"]
    d = call.args["dim"] % max(len(x.shape), 1)
    at = v.checked(v.read(which, (index[d],) * len(which.shape), call), x.shape[d], "IndexError", False)
    return v.fetched(x, _replaced(index, d, at), call)


def _gather(v: Any, call: Call, index: Indices, error: str = "RuntimeError") -> Expr:
    x = _self(call)
    d = call.args["dim"] % max(len(index), 1)
    at = v.checked(v.read(call.args["index"], index, call), x.shape[d], error, False)
    return v.fetched(x, _replaced(index, d, at), call)


def _embedding(v: Any, call: Call, index: Indices) -> Expr:
    weight = call.args["weight"]
    at = v.checked(v.read(call.args["indices"], index[:-1], call), weight.shape[0], "IndexError", False)
    return v.fetched(weight, (at, index[-1]), call)


def _advanced_index(v: Any, call: Call, index: Indices) -> Expr:
    x = _self(call)
    which = [*call.args["indices"], *([None] * (len(x.shape) - len(call.args["indices"])))]
    dims = [d for d, i in enumerate(which) if i is not None]
    together = dims == list(range(dims[0], dims[-1] + 1))
    shape = torch.broadcast_shapes(*(which[d].shape for d in dims))
    at = dims[0] if together else 0
    shared, plain = index[at:at + len(shape)], iter((*index[:at], *index[at + len(shape):]))
    own = tuple(next(plain) if i is None else v.checked(v.read_broadcast(i, shared, call), x.shape[d], "IndexError", True)
                for d, i in enumerate(which))
    return v.fetched(x, own, call)


def _index_ok(call: Call) -> bool:
    which = [i for i in call.args["indices"] if i is not None]
    return bool(which) and all(isinstance(i, TensorProxy) and i.dtype in (torch.int64, torch.int32) for i in which)


def _gather_ok(call: Call) -> bool:
    return _self(call).numel > 0 and len(_self(call).shape) == len(call.out.shape) > 0 and not call.args.get("sparse_grad")


def _embedding_ok(call: Call) -> bool:
    return len(call.args["weight"].shape) == 2 and not call.args["sparse"] and not call.args["scale_grad_by_freq"]


def _probability(v: Any, call: Call, index: Indices) -> Expr:
    """The element, once it is known to be one: what is checked is 1 - (0 <= x <= 1), as an index into one place."""
    e = v.read(_self(call), index, call)
    inside = v.x.both(v.x.node("ge", (e, v.x.const(0, e.dtype)), torch.bool), v.x.node("le", (e, v.x.const(1, e.dtype)), torch.bool))
    guards = (v.guard,) if v.guard is not None else ()
    wrong = v.x.cast(v.x.node("not", (inside,), torch.bool), torch.int64)
    place = v.x.node("checked", (wrong, *guards), torch.int64, (1, ERRORS["Probability"], False))
    return v.x.node("select", (v.x.node("eq", (place, v.x.const(0, torch.int64)), torch.bool), e, v.x.const(0, e.dtype)), e.dtype)


# ------------------------------------------------------------ factories

def _filled(value_of: Callable[[Call], Any]) -> Callable:
    return lambda v, call, index: v.x.const(value_of(call), call.dtype)


def _arange(v: Any, call: Call, index: Indices) -> Expr:
    start, step = call.args.get("start", 0), call.args.get("step", 1)
    return v.x.cast(v.x.position(index[0] * step + start), call.dtype)


def _arange_ok(call: Call) -> bool:
    numbers = [call.args.get(n, 0) for n in ("start", "end", "step")]
    return all(isinstance(n, int) for n in numbers) and call.dtype in (torch.int64, torch.int32)


def _eye(v: Any, call: Call, index: Indices) -> Expr:
    return v.x.cast(v.x.inside(index[0] + index[1] * -1, 0, 1), call.dtype)


def _fill_ok(call: Call) -> bool:
    return is_number(call.args["fill_value"]) and fits(call.args["fill_value"], call.dtype)


def _constant_ok(call: Call) -> bool:
    return constant_number(call.args["value"]) is not None


def _sized(call: Call) -> bool:
    return len(call.out.shape) == len(_self(call).shape) and call.out.dtype is _self(call).dtype


def _roll_ok(call: Call) -> bool:
    return bool(call.out.shape) and _self(call).stride == call.out.stride


def _factory(value_of: Callable[[Call], Any], accepts: Callable = lambda call: True) -> Row:
    return Row("factory", _filled(value_of), (), DTYPES, accepts=accepts)


def _relayout(rule: Callable, accepts: Callable = lambda call: True) -> Row:
    return Row("relayout", rule, (), DTYPES, accepts=accepts)


_ZERO, _ONE = (_factory(lambda call, k=k: k) for k in (0, 1))
_FULL = _factory(lambda call: call.args["fill_value"], _fill_ok)
RELAYOUTS: dict[str, Row] = {
    "reshape": _relayout(_reshape), "view_copy": _relayout(_reshape), "_unsafe_view": _relayout(_reshape),
    "flip": _relayout(_flip), "roll": _relayout(_roll, _roll_ok), "repeat": _relayout(_repeat),
    "tril": _relayout(_triangle(True)), "triu": _relayout(_triangle(False)), "cat": _relayout(_cat), "stack": _relayout(_stack),
    "constant_pad_nd": _relayout(_pad, lambda call: fits(call.args["value"], call.dtype)),
    "slice_scatter": _relayout(_slice_scatter), "select_scatter": _relayout(_select_scatter),
    "diagonal_scatter": _relayout(_diagonal_scatter), "binary_cross_entropy_probability": _relayout(_probability),
    "index_select": Row("gather", _index_select, (), DTYPES, accepts=_gather_ok),
    "gather": Row("gather", _gather, (), DTYPES, accepts=_gather_ok),
    "nll_loss_gather": Row("gather", lambda v, call, index: _gather(v, call, index, "Target"), (), DTYPES, accepts=_gather_ok),
    "embedding": Row("gather", _embedding, (), DTYPES, accepts=_embedding_ok),
    "index": Row("gather", _advanced_index, (), DTYPES, accepts=_index_ok),
    "zero": _ZERO, "zeros": _ZERO, "zeros_like": _ZERO, "new_zeros": _ZERO, "ones": _ONE, "ones_like": _ONE, "new_ones": _ONE,
    "empty": _ZERO, "full": _FULL, "full_like": _FULL, "new_full": _FULL,
    "scalar_tensor": _factory(lambda call: call.args["s"], lambda call: is_number(call.args["s"]) and fits(call.args["s"], call.dtype)),
    "constant": _factory(lambda call: constant_number(call.args["value"]), _constant_ok),
    "arange": Row("factory", _arange, (), INTEGERS, accepts=_arange_ok),
    "eye": Row("factory", _eye, (), DTYPES),
}
