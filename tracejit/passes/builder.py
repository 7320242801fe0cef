"""Emits bound symbols into a new trace and gives their results metadata by running the op on stand-ins."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch

from ..ir.alike import metadata_key, structure_key
from ..ir.extents import settled
from ..ir.proxy import TensorConstant, TensorProxy, layout_is_ambiguous, proxy_of, some_number
from ..ir.symbol import Symbol
from ..ir.trace import NOWHERE, BoundSymbol, Modes
from ..ir.trees import flat_leaves, map_leaves, with_leaves
from ..torch_private import conj_view, neg_view, kernels_for_open_sizes


class Builder:
    """`first_storage` is the first free storage id; `modes` are those of the whole program."""

    def __init__(self, first_storage: int, modes: Modes) -> None:
        self.modes = modes                                     # of calls without an origin
        self.bound_symbols: list[BoundSymbol] = []
        self.extent: dict[int, int] = {}                       # bytes of each storage, as far as its first name reaches
        self.origin: Optional[BoundSymbol] = None              # whose line and modes new calls carry
        self._storage, self._names = first_storage, 0
        self._known: dict[Any, tuple[list, Any]] = {}          # results by call

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
        for p in flat_leaves((output,)):
            if isinstance(p, TensorProxy):
                self.extent.setdefault(p.storage, p.bytes.end)
        o = self.origin
        source, modes, said = (o.source, o.modes, o.comment) if o is not None else (NOWHERE, self.modes, "")
        self.bound_symbols.append(BoundSymbol(sym, args, kwargs, output, source, modes=modes, comment=comment or said))
        return output

    def call(self, sym: Symbol, *args: Any, **kwargs: Any) -> Any:
        """Append a call; its results are told by running it on stand-ins, or from an earlier call that is alike."""
        flat = flat_leaves((*args, *kwargs.values()))
        alike = metadata_key(flat)
        key = None if alike is None else (sym.name, id(sym.fn), structure_key(args, kwargs), alike)
        if key is None or key not in self._known:
            self._known[key] = self._results(sym, flat, args, kwargs)
        described, like = self._known[key]
        device = next(a.device for a in flat if isinstance(a, TensorProxy) and not a.number)

        def named(r: Any) -> Any:
            if not isinstance(r, _Result):
                return r
            home = None if r.home is None else flat[r.home]
            like, storage = r.like, self.new_storage() if home is None else home.storage
            return TensorProxy(self.new_name(), like.shape, like.stride, like.dtype, device, storage,
                               like.offset + (0 if home is None else home.offset), like.conj, like.neg, like.requires_grad)
        return self.bind(sym, args, kwargs, with_leaves(like, map(named, described)))

    def _results(self, sym: Symbol, flat: list, args: tuple, kwargs: dict) -> tuple[list, Any]:
        """Flat results of a call, and how they are put together."""
        tensors = [a for a in flat if isinstance(a, TensorProxy) and not a.number]
        device = "cpu" if layout_is_ambiguous(tensors) else "meta"
        stands = [_stand_in(a, device) for a in flat]
        homes = {s.untyped_storage()._cdata: k for k, (s, a) in enumerate(zip(stands, flat))
                 if isinstance(s, torch.Tensor) and isinstance(a, TensorProxy)}
        meta_args, meta_kwargs = with_leaves((args, kwargs), stands)
        with kernels_for_open_sizes(stands):
            out = sym.fn(*meta_args, **meta_kwargs)
        return [_Result(proxy_of("", o, 0), homes.get(o.untyped_storage()._cdata)) if isinstance(o, torch.Tensor) else o
                for o in flat_leaves((out,))], map_leaves(lambda _: None, out)


@dataclass(frozen=True)
class _Result:
    """A tensor that a call returns. home: the flat argument over whose memory it lies, from whose offset its own counts."""

    like: TensorProxy
    home: Optional[int]


def _stand_in(a: Any, device: str) -> Any:
    if isinstance(a, TensorConstant):
        return torch.empty_like(a.value, device=device)
    if not isinstance(a, TensorProxy) or a.number:
        return some_number(a)
    shape, stride = (a.shape, a.stride) if device == "meta" else ([*map(settled, n)] for n in (a.shape, a.stride))
    t = torch.empty_strided(shape, stride, dtype=a.dtype, device=device)
    t = t.zero_() if device == "cpu" else t
    t = conj_view(t) if a.conj else t
    return neg_view(t) if a.neg else t
