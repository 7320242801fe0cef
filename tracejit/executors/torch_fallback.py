"""The torch fallback: any recorded call, in the cheapest way that torch offers for the very same op.

`torch.add(x, y)` takes about half the time of `torch.ops.aten.add.Tensor(x, y)`. Whether a public function is the same op
is not looked up in a list but asked: it is run on meta tensors, and what it dispatches to is compared.
"""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Callable, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..ir.alike import structure_key
from ..ir.extents import is_extent
from ..ir.proxy import TensorProxy, some_number
from ..ir.trace import BoundSymbol
from ..ir.trees import flat_leaves
from ..torch_private import is_composite
from .registry import Executor


class TorchFallback(Executor):
    """Takes every call."""

    name = "torch"
    takes_open_sizes = True

    def can_execute(self, bsym: BoundSymbol) -> bool:
        return True

    def execute(self, bsym: BoundSymbol) -> BoundSymbol:
        overload = bsym.sym.overload
        if overload is None or overload.namespace != "aten" or is_composite(overload) or (
                bsym.sym.untold or bsym.sym.fn is not overload):
            return replace(bsym, executor=self.name)
        cheaper = public_function(overload, _kinds(bsym), structure_key(bsym.args, bsym.kwargs))
        if cheaper is None:
            return replace(bsym, executor=self.name)
        return replace(bsym, sym=replace(bsym.sym, fn=cheaper), executor=self.name)


def _kinds(b: BoundSymbol) -> tuple:
    """Kinds of the arguments: what the choice of an overload depends on. Which size, of those above 1, is all the same."""
    return tuple((len(a.shape), a.dtype, a.conj) if isinstance(a, TensorProxy) else (int, _least_alike(a)) if is_extent(a)
                 else (type(a), _hashable(a)) for a in map(some_number, b.flat_args))


def _least_alike(size: Any) -> int:
    """An integer that stands for this one and those of its kind: their value is not asked."""
    return next((n for n in (2, 1, 0) if size >= n), -1)


def _hashable(a: Any) -> Any:
    if type(a) is int:
        return min(a, 2)
    return a if isinstance(a, (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout,
                               torch.memory_format)) else None


def _put_together(flat: list, positional: tuple, named: tuple) -> tuple[tuple, dict]:
    """Arguments of these leaves, as `structure_key` tells."""
    left = iter(flat)

    def taken(n: int) -> Any:
        return next(left) if n < 0 else [next(left) for _ in range(n)]
    return tuple(map(taken, positional)), {name: taken(n) for name, n in named}


class _Probe(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        raise _Seen


class _Seen(Exception):
    """Stops a probe at its first dispatch."""


@lru_cache(1 << 14)
def public_function(overload: Any, kinds: tuple, structure: tuple) -> Optional[Callable]:
    """`torch.f`, `torch.Tensor.f` or the `f` of `torch.nn.functional` when, on such arguments, it dispatches to `overload` with these very arguments."""
    flat = [torch.empty((2,) * k[0], dtype=k[1], device="meta") if isinstance(k[0], int) else k[1] for k in kinds]
    if any(not isinstance(k[0], int) and k[1] is None and k[0] is not type(None) or isinstance(k[0], int) and k[2] for k in kinds):
        return None
    args, kwargs = _put_together(flat, *structure)
    name = overload.overloadpacket.__name__
    for home in (torch, torch.Tensor, torch.nn.functional):
        candidate = getattr(home, name, None)
        if candidate is None or isinstance(candidate, property) or not isinstance(candidate, _BUILTIN):
            continue
        probe = _Probe()
        try:
            with probe, torch.no_grad():
                candidate(*args, **kwargs)
        except _Seen:
            func, seen_args, seen_kwargs = probe.calls[0]
            if func is overload and _same_arguments(overload, (args, kwargs), (seen_args, seen_kwargs)):
                return candidate
        except (TypeError, RuntimeError, ValueError, IndexError):
            continue                                           # another signature: not the same op
    return None


_BUILTIN = (type(torch.add), type(torch.Tensor.add))


def _same_arguments(overload: Any, ours: tuple, seen: tuple) -> bool:
    """Equal after the schema's defaults are filled in."""
    return _complete(overload, *ours) == _complete(overload, *seen)


def _complete(overload: Any, args: tuple, kwargs: dict) -> list:
    filled = []
    for i, a in enumerate(overload._schema.arguments):
        value = args[i] if i < len(args) and not a.kwarg_only else kwargs.get(a.name, a.default_value)
        filled.append([id(v) if isinstance(v, torch.Tensor) else repr(v) for v in flat_leaves((value,))])
    return filled


TORCH = TorchFallback()
