"""Values as functions of an index: what an element of a tensor is, as an expression over loads.

Views cost nothing: a view of memory is its strides; a view of a fused value goes through the memory that the value
would have had. An arm of a window predicate that is not taken may be out of bounds, so its loads carry the predicate.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Optional

import torch

from ..ir.memory import overlaps
from ..ir.proxy import TensorProxy
from .calls import Call, Region, is_number
from .index import ZERO, Gathered, Index, bounds, through_memory
from .kernel import ERRORS, CannotLower, Expr, Expressions, below
from .ops import Row, compute_dtype, row_of, scalar_operand

Indices = tuple[Index, ...]


class Values:
    """`here(call)` says whether a call belongs to the kernel being made, or is computed wherever it is read.

    What other kernels made is loaded from memory. `reductions` maps (call, output number) to what a reduction of this
    kernel yields: (expression, the row indices that it belongs to, reduced dims, keepdim).
    """

    def __init__(self, region: Region, here: Callable[[Call], bool]) -> None:
        self.region, self.here = region, here
        self.x = Expressions(rounds=not region.fast)
        self.guard: Optional[Expr] = None
        self.reductions: dict[tuple[Call, int], tuple] = {}
        self.scans: dict[Call, tuple[Expr, Indices]] = {}      # what each yields, and at which element
        self._memo: dict[tuple, Expr] = {}

    # ------------------------------------------------------------ reading

    def read(self, p: TensorProxy, index: Indices, reader: Call) -> Expr:
        """The element of `p` at `index`, as `reader` sees it."""
        writes = self.region.stores.get(p.storage)
        key = (p, index, self.guard, reader.position if writes else 0)
        if key not in self._memo:
            self._memo[key] = self._read(p, index, reader)
        return self._memo[key]

    def _read(self, p: TensorProxy, index: Indices, reader: Call) -> Expr:
        for store in reversed(self.region.stores.get(p.storage, ())):
            target, value = store.tensors
            if store.position < reader.position and self.here(store) and overlaps(target.bytes, p.bytes):
                if not target.same_view(p) or target.shape != p.shape:
                    raise CannotLower(f"{p.name} is read after a write into part of it", reader.position)
                return self.read(value, index, store)
        maker = self.region.made(p.storage)
        if maker is None or not self.here(maker):
            return self.load(p, index)
        root = self.region.roots[p.storage]
        if root.dtype is not p.dtype:                          # made outside, as such views are, of what is made here once more
            return self.load(p, index)
        if p is not root:
            index = self._in_root(p, root, index, reader)
        return self._computed(maker, index, self.region.output_number(p.storage))

    def _in_root(self, p: TensorProxy, root: TensorProxy, index: Indices, reader: Call) -> Indices:
        if p.shape == root.shape and p.stride == root.stride and p.offset == root.offset:
            return index
        found = through_memory(self.address(p, index) + -root.offset, root.shape, root.stride)
        if found is None:
            raise CannotLower(f"a view of {root.name}, whose strides overlap", reader.position)
        return found

    def _computed(self, call: Call, index: Indices, output: int) -> Expr:
        row = row_of(call)
        if row.kind == "reduction":
            return self._reduced(call, index, output)
        if row.kind == "scan":
            return self._scanned(call, index)
        if row.kind == "elementwise":
            return self.elementwise(row, call, index)
        return row.build(self, call, index)

    def read_broadcast(self, p: TensorProxy, index: Indices, reader: Call) -> Expr:
        own = index[len(index) - len(p.shape):]
        return self.read(p, tuple(ZERO if n == 1 else i for n, i in zip(p.shape, own)), reader)

    def operand(self, row: Row, value: Any, index: Indices, dtype: torch.dtype, reader: Call) -> Expr:
        if isinstance(value, TensorProxy):
            return self.x.cast(self.read_broadcast(value, index, reader), dtype)
        return scalar_operand(self.x, row, value, dtype)

    def elementwise(self, row: Row, call: Call, index: Indices) -> Expr:
        dtype = compute_dtype(row, call)
        exprs = []
        for name in row.inputs:
            value = call.args[name]
            if value is None:
                continue
            kept = name in ("condition", "mask")
            exprs.append(self.operand(row, value, index, value.dtype if kept else dtype, call))
        others = {name: self.operand(row, value, index, value.dtype, call) for name, value in call.args.items()
                  if name not in row.inputs and isinstance(value, TensorProxy) and value.number}
        call = replace(call, args={**call.args, **others}) if others else call
        out = self.x.cast(row.build(self.x, exprs, call), call.dtype)
        return self.x.rounded(self._zero_checked(out))

    def _zero_checked(self, e: Expr) -> Expr:
        """Integer division reports zero divisors."""
        if e.op in ("div_trunc", "div_floor", "remainder", "fmod") and not e.dtype.is_floating_point:
            divisor = e.args[1]
            if divisor.op != "const" or not divisor.extra:
                guards = (self.guard,) if self.guard is not None else ()
                return self.x.node(e.op, (e.args[0], self.x.node("nonzero", (divisor, *guards), divisor.dtype)), e.dtype)
        return e

    def computed(self) -> dict[Expr, tuple[Call, TensorProxy]]:
        """The expressions that are results of this kernel's calls, with call and result."""
        found: dict[Expr, tuple[Call, TensorProxy]] = {}
        for (p, *_), e in self._memo.items():
            maker = self.region.made(p.storage)
            if maker is not None and self.here(maker) and e.op not in ("load", "const"):
                found.setdefault(e, (maker, self.region.roots[p.storage]))
        return found

    # ------------------------------------------------------------ memory

    def address(self, p: TensorProxy, index: Indices) -> Index:
        """Elements from the start of p's storage."""
        at = Index(p.offset)
        for i, s in zip(index, p.stride):
            at = at + i * s
        return at

    def load(self, p: TensorProxy, index: Indices) -> Expr:
        at = self.address(p, index)
        guard = self.guard
        if guard is not None and self._always_valid(p, at):
            guard = None
        args = (*self.x.gathered(at), *(() if guard is None else (guard,)))
        return self.x.node("load", args, p.dtype, (buffer_name(p), at, guard))

    def _always_valid(self, p: TensorProxy, at: Index) -> bool:
        low, high = bounds(at)
        reach = [s * (n - 1) for n, s in zip(p.shape, p.stride)]
        return p.numel > 0 and low >= p.offset + sum(r for r in reach if r < 0) and high <= p.offset + sum(r for r in reach if r > 0)

    # ------------------------------------------------------------ predicates and gathers

    def choose(self, condition: Expr, yes: Callable[[], Expr], no: Callable[[], Expr]) -> Expr:
        if condition.op == "const":
            return yes() if condition.extra else no()
        outer = self.guard
        self.guard = self.x.both(outer, condition)
        a = yes()
        self.guard = self.x.both(outer, self.x.node("not", (condition,), torch.bool))
        b = no()
        self.guard = outer
        return a if a is b else self.x.node("select", (condition, a, b), a.dtype)

    def conjunction(self, p: Expr, q: Expr) -> Expr:
        for a, b in ((p, q), (q, p)):
            if a.op == "const":
                return b if a.extra else a
        return self.x.both(p, q)

    def checked(self, e: Expr, size: int, error: str, wraps: bool) -> Index:
        """A gathered index, checked as eager checks it."""
        guards = (self.guard,) if self.guard is not None else ()
        e = self.x.node("checked", (self.x.cast(e, torch.int64), *guards), torch.int64, (size, ERRORS[error], wraps))
        return Index(0, ((Gathered(e.number, size), 1),))

    def fetched(self, p: TensorProxy, index: Indices, reader: Call) -> Expr:
        """The element at a gathered index; the check stays where the element does not depend on the index, as one of `zeros`."""
        e = self.read(p, index, reader)
        known = below(e)
        checks = [c for c in self.x.gathered(*index) if c not in known]
        return self.x.node("after", (e, *checks), e.dtype) if checks else e

    # ------------------------------------------------------------ reductions

    def _reduced(self, call: Call, index: Indices, output: int) -> Expr:
        if (call, output) not in self.reductions:
            raise CannotLower("a reduction is read before it is made", call.position)
        e, row, dims, keepdim = self.reductions[call, output]
        got = tuple(i for d, i in enumerate(index) if d not in dims) if keepdim else index
        if got != row or self.guard is not None:
            raise CannotLower("a reduction is read at another row than it is made for", call.position)
        return e


    def _scanned(self, call: Call, index: Indices) -> Expr:
        e, at = self.scans.get(call, (None, None))
        if index != at or self.guard is not None:
            raise CannotLower("a scan is read at another element than it is at", call.position)
        return e


_LETTER = {torch.float32: "f", torch.float64: "f", torch.bfloat16: "b", torch.float16: "h", torch.int64: "i", torch.int32: "i",
           torch.int16: "i", torch.int8: "i", torch.uint8: "u", torch.bool: "t"}


def buffer_name(p: TensorProxy) -> str:
    """The pointer through which every access to p's storage under its dtype goes."""
    return f"b{p.storage}_{p.dtype.itemsize}{_LETTER[p.dtype]}"


def is_operand(value: Any) -> bool:
    return value is None or is_number(value) or isinstance(value, TensorProxy)
