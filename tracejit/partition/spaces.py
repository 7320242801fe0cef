"""Iteration spaces: over which elements a call runs, and whether two calls walk them row by row alike.

A space with reduced dims has rows: the elements that one output element of the reduction needs. Where a value lies on
the rows is told by its strides over them (a `row map`), which views keep: two values are aligned when their row maps agree.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

from ..ir import prims
from ..ir.cached import cached_property
from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol

RowMap = tuple[tuple[int, int], ...]          # (size, stride) of each run of dims that is walked as one

# Work that is not done again for each element of a larger space (several multiplications' worth each).
_CHEAP = frozenset("""add sub rsub mul neg abs eq ne lt le gt ge where maximum minimum clamp clamp_min clamp_max relu sign
    logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor isnan _to_copy clone fill
    number number_add number_sub number_mul number_neg number_abs
    masked_fill square reciprocal div sqrt rsqrt constant_pad_nd cat slice_scatter select_scatter tril triu""".split())
_RELABELS = frozenset({prims.RESTRIDE, prims.EXACT_COPY})


@dataclass(frozen=True)
class Space:
    """What a call iterates over; `reduced`: its reduced dims, None for a call that is no reduction."""

    shape: tuple[int, ...]
    reduced: Optional[frozenset[int]] = None

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def rows(self) -> int:
        return math.prod(n for d, n in enumerate(self.shape) if d not in (self.reduced or ()))

    @cached_property
    def runs(self) -> tuple[tuple[int, bool], ...]:
        """Sizes of neighbouring dims taken together, and whether they are reduced: equal for [B, T, C] and [B*T, C]."""
        runs: list[tuple[int, bool]] = []
        for d, n in enumerate(self.shape):
            reduced = d in (self.reduced or ())
            if n == 1:
                continue
            if runs and runs[-1][1] == reduced:
                runs[-1] = (runs[-1][0] * n, reduced)
            else:
                runs.append((n, reduced))
        return tuple(runs)


def space_of(b: BoundSymbol) -> Space:
    """The space of a call that is no view."""
    if is_reduction(b) or is_scan(b):
        operand = b.tensor_args[0]
        return Space(operand.shape, reduced_dims(b, len(operand.shape)))
    if b.written:
        return Space(b.written[0].shape)
    return Space(max((o.shape for o in b.tensor_outputs), key=math.prod))


def is_reduction(b: BoundSymbol) -> bool:
    return b.sym.reduces


def is_scan(b: BoundSymbol) -> bool:
    """Elements of the result are made from those before them along a dim."""
    return b.sym.overload is not None and b.sym.packet in ("cumsum", "cumprod")


def reduced_dims(b: BoundSymbol, rank: int) -> frozenset[int]:
    """From the argument that the schema calls `dim`; none or an empty list means all."""
    names = [a.name for a in b.sym.overload._schema.arguments]
    dim = b.kwargs.get("dim")
    if "dim" in names and names.index("dim") < len(b.args):
        dim = b.args[names.index("dim")]
    if dim is None or dim == [] or dim == ():
        return frozenset(range(rank))
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return frozenset(d % rank for d in dims) if rank else frozenset()


def is_elementwise(b: BoundSymbol) -> bool:
    """The element of the result at an index needs the arguments' elements at that index (after broadcasting) alone."""
    return b.sym.pointwise or b.sym.is_copy or b.sym in _RELABELS


def is_costly(b: BoundSymbol) -> bool:
    return not (b.sym in _RELABELS or b.sym.packet in _CHEAP)


# ---------------------------------------------------------------- row maps

def collapse(shape: tuple[int, ...], stride: tuple[int, ...]) -> RowMap:
    """Dims of size 1 dropped, neighbours that are walked as one merged."""
    runs: list[tuple[int, int]] = []
    for n, s in zip(shape, stride):
        if n == 1:
            continue
        if runs and runs[-1][1] == s * n:
            runs[-1] = (runs[-1][0] * n, s)
        else:
            runs.append((n, s))
    return tuple(runs)


def broadcast_stride(p: TensorProxy, shape: tuple[int, ...]) -> Optional[tuple[int, ...]]:
    """Strides of `p` over a shape that it is broadcast to; None when it does not broadcast to it."""
    missing = len(shape) - len(p.shape)
    if missing < 0 or any(n not in (1, m) for n, m in zip(p.shape, shape[missing:])):
        return None
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(p.shape, p.stride))


def row_strides(space: Space, value: TensorProxy) -> tuple[int, ...]:
    """Strides over the full shape of a reduction's result: 0 along the reduced dims."""
    reduced = space.reduced or frozenset()
    kept = len(value.shape) == len(space.shape)                # keepdim
    left = iter(value.stride)
    return tuple((next(left), 0)[1] if d in reduced and kept else 0 if d in reduced else next(left)
                 for d in range(len(space.shape)))

