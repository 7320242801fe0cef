"""The calls of a region, with arguments by name, and what is known about their memory."""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Optional

import torch

from ..ir.cached import cached_property
from ..ir.prims import NUMBER_OPS
from ..ir.proxy import TensorConstant, TensorProxy, some_number
from ..ir.trace import BoundSymbol

_PRIM_ARGUMENTS = {"constant": ("value",), "exact_copy": ("self",), "restride": ("self", "size", "stride"),
                   "number": ("self",), **{op.name: ("self", "other") for op in NUMBER_OPS.values()},
                   "nll_loss_gather": ("self", "dim", "index"), "binary_cross_entropy_probability": ("self",)}


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a region. `args` are by the schema's names, defaults filled in."""

    bsym: BoundSymbol
    name: str                            # `add` of `aten.add.Tensor`
    overload: str                        # `Tensor`
    args: dict[str, Any]
    position: int

    @property
    def outputs(self) -> list:
        return self.bsym.flat_outputs

    @cached_property
    def out(self) -> TensorProxy:
        return next(o for o in self.outputs if isinstance(o, TensorProxy))

    @property
    def dtype(self) -> torch.dtype:
        return self.out.dtype

    @property
    def tensors(self) -> list[TensorProxy]:
        return self.bsym.tensor_args

    @cached_property
    def is_view(self) -> bool:
        """Its results are memory (or values) that it was given."""
        given = {a.storage for a in self.tensors}
        made = self.bsym.tensor_outputs
        return bool(made) and not self.bsym.written and all(o.storage in given for o in made)

    @property
    def is_store(self) -> bool:
        return self.bsym.sym.is_copy


@lru_cache(1 << 12)
def _schema_arguments(overload: Any) -> tuple:
    return tuple((a.name, a.kwarg_only, a.default_value) for a in overload._schema.arguments)


def call_of(bsym: BoundSymbol, position: int = 0) -> Call:
    sym = bsym.sym
    if sym.overload is None:
        names = _PRIM_ARGUMENTS.get(sym.name, ())
        return Call(bsym, sym.name, "", {**dict(zip(names, bsym.args)), **bsym.kwargs}, position)
    bound = {}
    for i, (name, kwarg_only, default) in enumerate(_schema_arguments(sym.overload)):
        bound[name] = bsym.args[i] if i < len(bsym.args) and not kwarg_only else bsym.kwargs.get(name, default)
    return Call(bsym, sym.packet, sym.overload._overloadname, bound, position)


def is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, complex)


@lru_cache(1 << 10, typed=True)
def fits(value: Any, dtype: torch.dtype) -> bool:
    """Does eager take this number as an element of that dtype? It raises where it would overflow."""
    try:
        torch.zeros(1, dtype=dtype).masked_fill(torch.ones(1, dtype=torch.bool), value)
    except RuntimeError:
        return False
    return True


def result_type(operands: list) -> torch.dtype:
    """What eager computes in: zero-dimensional tensors and Python numbers do not promote within their kind."""
    return _result_type(tuple((min(len(x.shape), 1), x.dtype) if isinstance(x, TensorProxy) else x.__class__
                              for x in map(some_number, operands)))


@lru_cache(1 << 10)
def _result_type(kinds: tuple) -> torch.dtype:
    stands = [torch.empty((1,) * k[0], dtype=k[1], device="meta") if isinstance(k, tuple) else k(1) for k in kinds]
    return stands[0].dtype if len(stands) == 1 else torch.result_type(*stands)


class Region:
    """Who makes which storage, and what is written where, in a list of calls.

    fast: half-precision values that stay in a kernel need not be rounded.
    """

    def __init__(self, calls: list[Call], fast: bool = False) -> None:
        self.calls, self.fast = calls, fast
        self.producer: dict[int, Call] = {}
        self.roots: dict[int, TensorProxy] = {}                # the first name of each storage that is made here
        self.stores: dict[int, list[Call]] = {}                # copy_ calls by the storage that they write
        self.numbers = {p.storage for c in calls for p in c.tensors if p.number}
        for c in calls:
            if c.is_store:
                self.stores.setdefault(c.tensors[0].storage, []).append(c)
            elif not c.is_view:
                for o in c.bsym.tensor_outputs:
                    self.producer[o.storage], self.roots[o.storage] = c, o

    def made(self, storage: int) -> Optional[Call]:
        return self.producer.get(storage)

    def output_number(self, storage: int) -> int:
        c = self.producer[storage]
        return next(k for k, o in enumerate(c.outputs) if isinstance(o, TensorProxy) and o.storage == storage)


def reads(call: Call) -> list[TensorProxy]:
    """The tensors whose elements a call reads."""
    if call.is_view:
        return []
    return call.tensors[1:] if call.is_store else call.tensors


def constant_number(x: Any) -> Optional[float]:
    """The Python number that a one-element constant holds."""
    return x.value.item() if isinstance(x, TensorConstant) and x.value.numel() == 1 and not x.value.is_complex() else None
