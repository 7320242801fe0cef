"""What fakes said of a call holds for the calls that are alike: one run on fakes takes a tenth of a millisecond and more."""
from __future__ import annotations

from typing import Any, Callable, Hashable, Optional

import torch

from ..ir.alike import metadata_key, structure_key
from ..ir.symbol import Symbol
from ..torch_private import FakeTensorMode, new_fake

UNKNOWN = object()


class KnownCalls:
    """Calls of one recording that fakes took: those that return what they write, and those that return new tensors."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._made: dict[Hashable, Any] = {}                   # key -> None: the first argument; else the results' metadata

    def key(self, sym: Symbol, flat: list, before: list, call: tuple[tuple, dict]) -> Optional[Hashable]:
        """flat, before: the call's arguments as fakes and as proxies. None: such a call is not remembered."""
        if any(isinstance(a, torch.Tensor) and a.constant is not None for a in flat):
            return None                                        # fakes follow what is written to these
        alike = metadata_key(before)
        return None if alike is None else (sym.name, structure_key(*call), alike, torch.get_default_dtype())

    def recall(self, key: Optional[Hashable], flat: list) -> Any:
        """The results of a call that is alike an earlier one, or UNKNOWN."""
        made = UNKNOWN if key is None else self._made.get(key, UNKNOWN)
        if made is UNKNOWN:
            return UNKNOWN
        if made is None:
            return flat[0]
        kind, results = made
        fakes = [new_fake(self.mode, *r) for r in results]
        return fakes[0] if kind is torch.Tensor else kind(fakes)

    def note(self, key: Optional[Hashable], sym: Symbol, flat: list, out: Any) -> None:
        if key is None:
            return
        if sym.returns_self:
            self._made[key] = None
        elif isinstance(out, torch.Tensor) and self._is_new([out], flat):
            self._made[key] = torch.Tensor, [_metadata(out)]
        elif type(out) in (tuple, list) and all(isinstance(o, torch.Tensor) for o in out) and self._is_new(out, flat):
            self._made[key] = type(out), [_metadata(o) for o in out]

    def _is_new(self, made: Any, flat: list) -> bool:
        """Does each lie alone in a storage of its own, and is nothing but its metadata known of it?"""
        storages = [t.untyped_storage()._cdata for t in (*flat, *made) if isinstance(t, torch.Tensor)]
        return len(set(storages[-len(made):])) == len(made) and not set(storages[-len(made):]) & set(storages[:-len(made)]) and all(
            o.constant is None and not o.storage_offset() and not o.is_conj() and not o.is_neg() for o in made)


def each_kind_once(func: Callable, args: tuple, kwargs: dict, proxy: Callable) -> Any:
    """A foreach op on fakes: its items are independent of each other, so one of each kind tells of all.

    Returns what `func` does; UNKNOWN when the lists are not of one length, or an item does not tell its kind.
    """
    lists = [a for a in args if isinstance(a, (list, tuple))]
    kinds = [metadata_key([proxy(a) if isinstance(a, torch.Tensor) else a for a in item]) for item in zip(*lists)]
    if not kinds or None in kinds or len({len(a) for a in lists}) > 1:
        return UNKNOWN
    first: dict[Hashable, int] = {}
    for k, kind in enumerate(kinds):
        first.setdefault(kind, k)
    chosen = list(first.values())
    out = func(*([a[k] for k in chosen] if isinstance(a, (list, tuple)) else a for a in args), **kwargs)
    if out is None:
        return None
    of_kind = dict(zip(first, out))
    mode = out[0].fake_mode
    return [of_kind[kind] if first[kind] == k else new_fake(mode, *_metadata(of_kind[kind])) for k, kind in enumerate(kinds)]


def _metadata(t: torch.Tensor) -> tuple:
    return t.shape, t.stride(), t.dtype, t.device
