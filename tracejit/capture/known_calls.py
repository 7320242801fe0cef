"""What fakes said of a call holds for the calls that are alike: one run on fakes takes a tenth of a millisecond and more."""
from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Hashable, Optional, Sequence

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from ..ir.alike import metadata_key, structure_key
from ..ir.results import Told
from ..ir.symbol import Symbol
from ..ir.trees import flat_leaves, map_leaves, with_leaves
from ..torch_private import (FakeTensorMode, bare_tensor, below_dispatch_modes, decomposition_on_fakes, fake_over, has_fake_rule, has_open_sizes, new_fake,
                             unseen_by_function_modes)

UNKNOWN = object()
_DEVICE_OF = torch.Tensor.device.__get__
_CPU = torch.device("cpu")
_TELLING = frozenset({torch.Tag.pointwise, torch.Tag.reduction})


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
        elif isinstance(out, torch.Tensor) and _are_new([out], flat):
            self._made[key] = torch.Tensor, [_metadata(out)]
        elif type(out) in (tuple, list) and all(isinstance(o, torch.Tensor) for o in out) and _are_new(out, flat):
            self._made[key] = type(out), [_metadata(o) for o in out]


def _are_new(made: Sequence, given: list) -> bool:
    """Does each result lie alone in a storage of its own, and do its metadata say all about it?"""
    storages = [t.untyped_storage()._cdata for t in made]
    taken = {t.untyped_storage()._cdata for t in given if isinstance(t, torch.Tensor)}
    return len(set(storages)) == len(made) and not taken & set(storages) and all(
        not t.storage_offset() and not t.is_conj() and not t.is_neg() and getattr(t, "constant", None) is None for t in made)


def on_stand_ins(sym: Symbol, args: tuple, kwargs: dict, mode: FakeTensorMode) -> Any:
    """A call on tensors without data, in a third of the time that fakes take for it; and what torch asks them for their
    device imports much.

    UNKNOWN where fakes do something else, and where a result is, or views, an argument that the schema does not say is written.
    """
    overload, flat = sym.overload, flat_leaves((*args, *kwargs.values()))
    tensors = [a for a in flat if isinstance(a, torch.Tensor)]
    if not tensors or not _is_told(sym) or any(isinstance(a, torch.device) for a in flat):
        return UNKNOWN
    if has_open_sizes(flat) or any(t.device.type != "cpu" or t.is_conj() or t.is_neg() or t.constant is not None for t in tensors):
        return UNKNOWN
    with _disable_current_modes(), torch.no_grad():
        stands = [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta") if isinstance(a, torch.Tensor) else a
                  for a in flat]
        given, named = with_leaves((args, kwargs), stands)
        try:
            with _Deviceless():
                out = (decomposition_on_fakes(overload) or overload)(*given, **named)
        except (NotImplementedError, _DeviceAsked):
            return UNKNOWN
        made = [o for o in flat_leaves((out,)) if isinstance(o, torch.Tensor)]
    if sym.returns_self:
        return args[0]
    if isinstance(out, tuple):
        out = tuple(out)                                       # decompositions name their results
    if not _are_new(made, stands):
        return UNKNOWN
    return map_leaves(lambda o: new_fake(mode, *_metadata(o)[:3], tensors[0].device) if isinstance(o, torch.Tensor) else o, out)


def on_paper(rule: Optional[Told], flat: list, mode: FakeTensorMode) -> Any:
    """What the rule of a call says, as fakes; UNKNOWN where it says nothing. flat: the call's arguments as fakes."""
    results = None if rule is None else rule.results
    if results is None or any(isinstance(a, torch.Tensor) and a.constant is not None for a in flat):
        return UNKNOWN
    if not results:
        return flat[0]
    device = next(a.device for a in flat if isinstance(a, torch.Tensor))
    made = tuple(None if r is None else new_fake(mode, *r, device) for r in results)
    return made if len(made) > 1 else made[0]


def note_results(rule: Optional[Told], sym: Symbol, flat: list, out: Any) -> None:
    """What a call returned that was run, for those of its kind."""
    made = [] if sym.returns_self else flat_leaves((out,))
    if rule is not None and _are_new([o for o in made if isinstance(o, torch.Tensor)], flat):
        rule.note(made)


def on_view(sym: Symbol, args: tuple, kwargs: dict, mode: FakeTensorMode) -> Any:
    """A view, made of a tensor without data over the storage of the fake, in a fifth of the time that fakes take for it.

    UNKNOWN where fakes do something else. Raises what the real function raises: it does not look at data.
    """
    if not _is_view(sym):
        return UNKNOWN
    viewed, *others = [a for a in flat_leaves((*args, *kwargs.values())) if isinstance(a, (torch.Tensor, torch.device))]
    if others or has_open_sizes(flat_leaves((*args, *kwargs.values()))) or viewed is not args[0] or viewed.is_conj() or viewed.is_neg() or viewed.constant is not None:
        return UNKNOWN
    device = viewed.device
    with below_dispatch_modes(), unseen_by_function_modes(), torch.no_grad():
        out = sym.overload(bare_tensor(viewed), *args[1:], **kwargs)
        if any(o.is_conj() or o.is_neg() for o in flat_leaves((out,))):
            return UNKNOWN
    return map_leaves(lambda o: fake_over(mode, o, device), out)


@lru_cache(None)
def _is_view(sym: Symbol) -> bool:
    """Does it return nothing but views of its first argument, and write nothing?"""
    if sym.overload is torch.ops.aten._unsafe_view.default:    # its schema does not say so
        return True
    schema = sym.overload._schema
    marked = [a.alias_info for a in (*schema.arguments, *schema.returns)]
    first = str(schema.arguments[0].type) == "Tensor" if schema.arguments else False
    return first and marked[0] is not None and not any(m is not None and m.is_write for m in marked) and all(
        m is not None for m in marked[len(schema.arguments):])


class _DeviceAsked(Exception):
    """A decomposition makes a tensor on the device, where stand-ins are not."""


class _Deviceless(TorchFunctionMode):
    """Around decompositions of calls on the CPU, and those that they call: they may ask for the device, not make a tensor there."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Optional[dict] = None) -> Any:
        if func == _DEVICE_OF:
            return _CPU
        if any(isinstance(a, torch.device) for a in (*args, *(kwargs or {}).values())) or (kwargs or {}).get("device") is not None:
            raise _DeviceAsked
        decomposition = decomposition_on_fakes(func) if isinstance(func, torch._ops.OpOverload) else None
        with unseen_by_function_modes() if decomposition is None else self:
            return (decomposition or func)(*args, **kwargs or {})


@lru_cache(None)
def _is_told(sym: Symbol) -> bool:
    """A pointwise operation, a reduction or one that torch decomposes in Python: where its results depend on the device, it
    asks for it. It views nothing, and writes no more than its first argument. (The rule of fakes for copies is about devices.)"""
    if sym.is_copy:
        return True
    told = set(sym.overload.tags) & _TELLING or decomposition_on_fakes(sym.overload)
    schema = sym.overload._schema
    return bool(told) and not has_fake_rule(sym.overload) and (sym.returns_self or not any(a.alias_info is not None for a in (*schema.arguments, *schema.returns)))


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
