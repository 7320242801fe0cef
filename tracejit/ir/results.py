"""The metadata of results, told from those of the arguments without running the call.

Torch describes many calls by functions in Python, which take up to milliseconds. What these say of contiguous operands follows from
the shapes by few rules, but for dtypes and for what is refused: that depends on no sizes, so one call that was run tells of all of
its kind. A kind whose first call had other results than its rule says is always run.
"""
from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Hashable, NamedTuple, Optional, Sequence

import torch

from ..torch_private import has_fake_rule
from .alike import structure_key
from .proxy import TensorProxy, contiguous_stride
from .symbol import Symbol
from .trees import flat_leaves

Shape = tuple[int, ...]
Shapes = tuple[Optional[Shape], ...]         # None: a result that is no tensor
Rule = Callable[[Symbol, list[TensorProxy], tuple, dict], Optional[Shapes]]

aten = torch.ops.aten
MOST_KINDS = 1 << 14
_SAYS_NO_SIZE = (int, float, complex, str, torch.dtype, torch.memory_format, type(None))
_dtypes: dict[Hashable, Optional[tuple]] = {}        # kind -> dtypes of the results; None: its rule does not hold


class Told(NamedTuple):
    """What its rule says of a call: new contiguous tensors of these shapes, none where it returns what it writes.
    kind: whatever else decides on the results."""

    kind: Hashable
    shapes: Shapes

    @property
    def results(self) -> Optional[list[Optional[tuple[Shape, Shape, torch.dtype]]]]:
        """(shape, strides, dtype) of each; None as long as no call of the kind has been run."""
        dtypes = _dtypes.get(self.kind)
        if dtypes is None:
            return None
        return [None if s is None else (s, contiguous_stride(s), d) for s, d in zip(self.shapes, dtypes)]

    def note(self, made: Sequence[Any]) -> None:
        """What a call of the kind returned when it was run; nothing, if what it writes."""
        if self.kind not in _dtypes:
            if len(_dtypes) >= MOST_KINDS:
                _dtypes.clear()
            holds = tuple(map(_shape, made)) == self.shapes
            _dtypes[self.kind] = tuple(getattr(o, "dtype", None) for o in made) if holds else None


def told(sym: Symbol, args: tuple, kwargs: dict) -> Optional[Told]:
    """args, kwargs: with proxies for tensors. None where there is no rule."""
    rule = _rule(sym)
    if rule is None:
        return None
    flat = flat_leaves((*args, *kwargs.values()))
    tensors, kind = [], [sym.name, structure_key(args, kwargs), torch.get_default_dtype()]
    for a in flat:
        if isinstance(a, TensorProxy):
            if a.device.type != "cpu" or a.conj or a.neg or a.number or 0 in a.shape:
                return None
            tensors.append(a)
            kind.append((a.dtype, len(a.shape)))
        elif isinstance(a, _SAYS_NO_SIZE):
            kind.append((type(a), repr(a)))                    # NaN is not equal to itself, and 0.0 is to -0.0
        else:
            return None
    if not tensors or () in {p.shape for p in tensors} and len({p.dtype for p in tensors}) > 1:
        return None                                            # of no dims: dtypes depend on whether it was a number
    shapes = rule(sym, tensors, args, kwargs)
    return None if shapes is None else Told(tuple(kind), shapes)


def _shape(o: Any) -> Any:
    """That of a contiguous tensor at the start of its storage; what no rule says for another."""
    if o is None:
        return None
    plain = isinstance(o, torch.Tensor) and o.stride() == contiguous_stride(o.shape) and not o.storage_offset()
    return tuple(o.shape) if plain and not o.is_conj() and not o.is_neg() else o


# ---------------------------------------------------------------- rules

@lru_cache(None)
def _rule(sym: Symbol) -> Optional[Rule]:
    if sym.overload is None or sym.random or sym.opaque:
        return None
    if sym.overload in _RULES:
        return _RULES[sym.overload]
    schema = sym.overload._schema
    if has_fake_rule(sym.overload) or any(str(r.type) != "Tensor" for r in schema.returns) or any(
            "List[Tensor" in str(a.type) or "List[Optional[Tensor" in str(a.type) for a in schema.arguments):
        return None
    if sym.returns_self:
        return _written if sym.pointwise else None
    if any(a.alias_info is not None for a in (*schema.arguments, *schema.returns)):
        return None
    if sym.pointwise:
        return _pointwise
    names = {a.name for a in schema.arguments}
    return _reduced if sym.reduces and {"dim", "keepdim"} <= names else None


def _contiguous(tensors: Sequence[TensorProxy]) -> bool:
    return all(p.stride == contiguous_stride(p.shape) for p in tensors)


def _broadcast(tensors: Sequence[TensorProxy]) -> Optional[Shape]:
    """The shape that all are broadcast to; None where there is none."""
    shape = tensors[0].shape
    for p in tensors[1:]:
        if p.shape == shape:
            continue
        long, short = (shape, p.shape) if len(shape) >= len(p.shape) else (p.shape, shape)
        missing = len(long) - len(short)
        if any(n != m and n != 1 and m != 1 for n, m in zip(long[missing:], short)):
            return None
        shape = long[:missing] + tuple(max(n, m) for n, m in zip(long[missing:], short))
    return shape


def _pointwise(sym: Symbol, tensors: list[TensorProxy], args: tuple, kwargs: dict) -> Optional[Shapes]:
    plain = _contiguous(tensors) and kwargs.get("memory_format") is None
    shape = _broadcast(tensors) if plain else None
    return None if shape is None else (shape,) * len(sym.overload._schema.returns)


def _written(sym: Symbol, tensors: list[TensorProxy], args: tuple, kwargs: dict) -> Optional[Shapes]:
    return () if _broadcast(tensors) == args[0].shape else None


def _reduced(sym: Symbol, tensors: list[TensorProxy], args: tuple, kwargs: dict) -> Optional[Shapes]:
    if len(tensors) != 1 or not _contiguous(tensors):
        return None
    given = {**dict(zip((a.name for a in sym.overload._schema.arguments), args)), **kwargs}
    shape, dims = tensors[0].shape, given.get("dim")
    dims = [dims] if isinstance(dims, int) else dims or range(len(shape))
    if any(not -len(shape) <= d < len(shape) for d in dims):
        return None
    dims = {d % len(shape) for d in dims}
    kept = tuple(1 if k in dims else n for k, n in enumerate(shape))
    made = kept if given.get("keepdim") else tuple(n for k, n in enumerate(kept) if k not in dims)
    return (made,) * len(sym.overload._schema.returns)


def _layer_norm(sym: Symbol, tensors: list[TensorProxy], args: tuple, kwargs: dict) -> Optional[Shapes]:
    x, over, *scales = args[:4]
    outer = len(x.shape) - len(over)
    if not _contiguous(tensors) or outer < 0 or any(s not in (None, tuple(over)) for s in (
            x.shape[outer:], *(None if p is None else p.shape for p in scales))):
        return None
    rows = x.shape[:outer] + (1,) * len(over)
    return x.shape, rows, rows


def _layer_norm_backward(sym: Symbol, tensors: list[TensorProxy], args: tuple, kwargs: dict) -> Optional[Shapes]:
    grad, x, over, mean, rstd, weight, bias, mask = args
    forward = _layer_norm(sym, tensors, (x, over, weight, bias), kwargs)
    if forward is None or (grad.shape, mean.shape, rstd.shape) != forward:
        return None
    wanted = (x.shape, None if weight is None else weight.shape, None if bias is None else bias.shape)
    return tuple(s if wants else None for s, wants in zip(wanted, mask))


def _copied(sym: Symbol, tensors: list[TensorProxy], args: tuple, kwargs: dict) -> Optional[Shapes]:
    form = kwargs.get("memory_format")
    kept = form in (None, torch.preserve_format) and _contiguous(tensors)
    return (tensors[0].shape,) if kept or form is torch.contiguous_format else None


def _triangle(sym: Symbol, tensors: list[TensorProxy], args: tuple, kwargs: dict) -> Optional[Shapes]:
    return (tensors[0].shape,) if _contiguous(tensors) and len(tensors[0].shape) > 1 else None


def _softmax(sym: Symbol, tensors: list[TensorProxy], args: tuple, kwargs: dict) -> Optional[Shapes]:
    """And its backward, which takes two of one shape."""
    alike = _contiguous(tensors) and len({p.shape for p in tensors}) == 1
    return (tensors[0].shape,) if alike else None


def _product(sym: Symbol, tensors: list[TensorProxy], args: tuple, kwargs: dict) -> Optional[Shapes]:
    """A product of matrices is contiguous, whatever its operands are."""
    *bias, a, b = tensors
    rank = 3 if sym.overload is aten.bmm.default else 2
    if not len(a.shape) == len(b.shape) == rank or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return None
    shape = *a.shape[:-1], b.shape[-1]
    fits = all(len(p.shape) <= 2 and all(n in (1, m) for n, m in zip(reversed(p.shape), reversed(shape))) for p in bias)
    return (shape,) if fits else None


_RULES: dict[Any, Rule] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.clone.default: _copied,
    aten._to_copy.default: _copied,
    aten.tril.default: _triangle,
    aten.triu.default: _triangle,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten._softmax_backward_data.default: _softmax,
    aten._log_softmax_backward_data.default: _softmax,
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.addmm.default: _product,
}
