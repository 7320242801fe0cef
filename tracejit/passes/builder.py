"""Emits bound symbols into a new trace and gives their results metadata by running the op on stand-ins."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ..ir.proxy import TensorConstant, TensorProxy, layout_is_ambiguous, proxy_of, some_number
from ..ir.symbol import Symbol
from ..ir.trace import NOWHERE, BoundSymbol, Modes
from ..torch_private import conj_view, neg_view


class Builder:
    """`first_storage` is the first free storage id; `modes` are those of the whole program."""

    def __init__(self, first_storage: int, modes: Modes) -> None:
        self.modes = modes                                     # of calls without an origin
        self.bound_symbols: list[BoundSymbol] = []
        self.extent: dict[int, int] = {}                       # bytes of each storage, as far as its first name reaches
        self.origin: Optional[BoundSymbol] = None              # whose line and modes new calls carry
        self._storage, self._names = first_storage, 0

    def new_storage(self) -> int:
        self._storage += 1
        return self._storage - 1

    def new_name(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def fresh(self, like: TensorProxy) -> TensorProxy:
        """A new name in a storage of its own, laid out like `like`."""
        return TensorProxy(self.new_name(), like.shape, like.stride, like.dtype, like.device, self.new_storage(), 0,
                           like.conj, like.neg)

    def bind(self, sym: Symbol, args: tuple, kwargs: dict, output: Any, comment: str = "") -> Any:
        """Append a call whose output proxies are known."""
        for p in tree_leaves(output):
            if isinstance(p, TensorProxy):
                self.extent.setdefault(p.storage, p.bytes.end)
        o = self.origin
        source, modes, said = (o.source, o.modes, o.comment) if o is not None else (NOWHERE, self.modes, "")
        self.bound_symbols.append(BoundSymbol(sym, args, kwargs, output, source, modes=modes, comment=comment or said))
        return output

    def call(self, sym: Symbol, *args: Any, **kwargs: Any) -> Any:
        """Append a call; its results are told by running it on stand-ins."""
        flat, spec = tree_flatten((args, kwargs))
        tensors = [a for a in flat if isinstance(a, TensorProxy) and not a.number]
        device = "cpu" if layout_is_ambiguous(tensors) else "meta"
        stands = [_stand_in(a, device) for a in flat]
        homes = {s.untyped_storage()._cdata: a for s, a in zip(stands, flat) if isinstance(s, torch.Tensor) and isinstance(a, TensorProxy)}
        meta_args, meta_kwargs = tree_unflatten(stands, spec)
        out = sym.fn(*meta_args, **meta_kwargs)

        def name(t: Any) -> Any:
            if not isinstance(t, torch.Tensor):
                return t
            home = homes.get(t.untyped_storage()._cdata)
            p = proxy_of(self.new_name(), t, self.new_storage() if home is None else home.storage)
            return replace(p, device=tensors[0].device, offset=p.offset + (home.offset if home is not None else 0))
        return self.bind(sym, args, kwargs, tree_map(name, out))


def _stand_in(a: Any, device: str) -> Any:
    if isinstance(a, TensorConstant):
        return torch.empty_like(a.value, device=device)
    if not isinstance(a, TensorProxy) or a.number:
        return some_number(a)
    t = torch.empty_strided(a.shape, a.stride, dtype=a.dtype, device=device)
    t = t.zero_() if device == "cpu" else t
    t = conj_view(t) if a.conj else t
    return neg_view(t) if a.neg else t
