"""Decomposition: composite operations become the few that kernels are made of.

In: a functional trace. Out: the same results from pointwise ops, reductions, views, cat and gathers.
Guaranteed: results have the recorded dtypes and strides; the numbers are eager's where IEEE arithmetic defines them, else
no further from the exact ones than eager's. An op without a rule, and one whose rule declines, stays as it is.

A rule is a plain function of tensors (`decompositions.RULES`). It runs on meta tensors, and the calls that it makes are recorded.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, NoReturn, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture.numbers import NumberNode, number_of
from ..errors import TraceError
from ..ir import prims
from ..ir.alike import metadata_key
from ..ir.printer import bound_symbol_text
from ..ir.extents import as_extent, now
from ..ir.memory import overlaps
from ..ir.proxy import TensorConstant, TensorProxy, contiguous_stride, is_proxy, proxy_of
from ..ir.results import told
from ..ir.symbol import SCHEMAS_THAT_LIE, Symbol, aten_symbol
from ..ir.trace import BoundSymbol, Trace
from ..ir.trees import flat_leaves, map_leaves
from ..torch_private import kernels_for_open_sizes
from .dce import dce
from .decompositions import CALLS, ITEM_BY_ITEM, RULES, WRITERS


def decompose(trace: Trace) -> Trace:
    """The pass, on a functionalized trace."""
    return dce(_by(RULES, trace)).replace(stage="decompose")


def unroll(trace: Trace) -> Trace:
    """Before functionalization: what writes several tensors (foreach ops, optimizer steps, a batch norm's statistics)
    as in-place ops on each, so that functionalization forwards their values."""
    return _by(WRITERS, trace).replace(stage="unroll")


def _by(rules: dict[Any, Callable], trace: Trace) -> Trace:
    names = Names(trace)
    made: list[BoundSymbol] = []
    for b in trace.bound_symbols:
        rule = rules.get(b.sym.fn)
        parts = None
        if rule is not None and _fits(b):
            parts = (_item_by_item if rule in ITEM_BY_ITEM else _decomposed)(b, rule, names)
        made += [b] if parts is None else parts
    return trace.replace(bound_symbols=tuple(made))


def _fits(b: BoundSymbol) -> bool:
    """Rules are written for real numbers, and for at least one of them; not for statistics that are rows of what is normalized."""
    if b.sym.overload in SCHEMAS_THAT_LIE and _writes_operands(b):
        return False
    return not any(isinstance(a, TensorConstant) for a in b.flat_args) and not any(
        p.dtype.is_complex or p.neg or not p.numel for p in (*b.tensor_args, *b.tensor_outputs[:1]))


def _writes_operands(b: BoundSymbol) -> bool:
    """Does a call write memory that it takes as another argument, too? Which it reads first is the kernel's choice."""
    flat, written = b.flat_args, b.sym.written(b.args, b.kwargs)
    return any(isinstance(a, TensorProxy) and k != n and a.storage == flat[n].storage and overlaps(a.bytes, flat[n].bytes)
               for n in written for k, a in enumerate(flat))


class Names:
    """Names and storages that the trace does not use yet."""

    def __init__(self, trace: Trace) -> None:
        proxies = {*trace.inputs, *(o for b in trace.bound_symbols for o in b.tensor_outputs)}
        self.taken = {p.name for p in proxies}
        self.storage, self.count = 1 + max((p.storage for p in proxies), default=0), 0

    def name(self) -> str:
        self.count += 1
        while f"d{self.count}" in self.taken:
            self.count += 1
        return f"d{self.count}"

    def new_storage(self) -> int:
        self.storage += 1
        return self.storage - 1


@dataclass
class Recording:
    """The calls that a rule makes. Meta tensors stand for proxies."""

    names: Names
    origin: BoundSymbol
    calls: list[BoundSymbol] = field(default_factory=list)
    proxies: dict[int, TensorProxy] = field(default_factory=dict)      # by id of the meta tensor
    storages: dict[int, TensorProxy] = field(default_factory=dict)     # by meta storage: its first proxy
    alive: list[torch.Tensor] = field(default_factory=list)
    paused: bool = False

    def stand_in(self, a: Any) -> Any:
        if not isinstance(a, TensorProxy):
            return a
        if a.number:
            return torch.SymFloat(NumberNode(a, _decline, _decline))
        t = torch.empty_strided(a.shape, a.stride, dtype=a.dtype, device="meta")
        self._know(t, a)
        return t

    def _know(self, t: torch.Tensor, p: TensorProxy) -> None:
        self.alive.append(t)
        self.proxies[id(t)] = p
        self.storages.setdefault(t.untyped_storage()._cdata, p)

    def proxy(self, t: Any) -> Any:
        return self.proxies[id(t)] if isinstance(t, torch.Tensor) else number_of(t) or as_extent(t)

    def name(self, t: Any) -> Any:
        """The proxy of a result."""
        if not isinstance(t, torch.Tensor) or id(t) in self.proxies:
            return self.proxy(t)
        home = self.storages.get(t.untyped_storage()._cdata)
        p = proxy_of(self.names.name(), t, self.names.new_storage() if home is None else home.storage)
        p = replace(p, device=self.device, offset=p.offset + (home.offset if home is not None else 0))
        self._know(t, p)
        return p

    @property
    def device(self) -> torch.device:
        return (*self.origin.tensor_args, *self.origin.tensor_outputs)[0].device

    def bind(self, sym: Symbol, args: tuple, kwargs: dict, output: Any) -> None:
        o = self.origin
        sym = replace(sym, untold=True) if o.sym.overload in SCHEMAS_THAT_LIE and sym.written(args, kwargs) else sym
        self.calls.append(BoundSymbol(sym, args, kwargs, output, o.source, modes=o.modes, comment=o.comment))

    def record(self, sym: Symbol, args: tuple, kwargs: dict, out: Any) -> Any:
        args, kwargs = map_leaves(self.proxy, (args, kwargs))
        if sym.overload is torch.ops.aten.detach.default:      # factories detach what they make
            self._know(out, args[0])
            return out
        kwargs = {k: self.device if k == "device" else v for k, v in kwargs.items() if k not in ("pin_memory", "layout")}
        self.bind(sym, args, kwargs, map_leaves(self.name, out))
        return out

    def call(self, sym: Symbol, *args: Any) -> Any:
        """One of our own operations: its result has the dtype of the first argument and the shape of the last tensor."""
        self.paused = True
        out = torch.empty([a for a in args if isinstance(a, torch.Tensor)][-1].shape, dtype=args[0].dtype, device="meta")
        self.paused = False
        return self.record(sym, args, {}, out)


class _Recorder(TorchDispatchMode):
    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None) -> Any:
        sym, kwargs = aten_symbol(func), kwargs or {}
        out = args[0] if sym.returns_self else self.result(sym, args, kwargs)
        return out if self.recording.paused else self.recording.record(sym, args, kwargs, out)

    def result(self, sym: Symbol, args: tuple, kwargs: dict) -> Any:
        """What a call returns that writes nothing: told by a rule, or by running it."""
        rule = None if self.recording.paused else told(sym, *map_leaves(self.recording.proxy, (args, kwargs)))
        results = None if rule is None else rule.results
        if results is not None:
            made = tuple(r and torch.empty_strided(r[0], r[1], dtype=r[2], device="meta") for r in results)
            return made if len(made) > 1 else made[0]
        given, named = map_leaves(lambda a: 0.5 if number_of(a) is not None else a, (args, kwargs))
        if sym.pointwise:                                      # results have the same metadata for all values of operands
            given, named = map_leaves(now, (given, named))
        with kernels_for_open_sizes(flat_leaves((*given, *named.values()))):
            out = sym.overload(*given, **named)
        made = flat_leaves((out,))
        if rule is not None and not any(isinstance(t, torch.Tensor) and t.untyped_storage()._cdata in self.recording.storages for t in made):
            rule.note(made)
        return out


class _Declined(Exception):
    """A rule needs the value of a number."""


def _decline(*needs: Any) -> NoReturn:
    raise _Declined


def _decomposed(b: BoundSymbol, rule: Callable, names: Names) -> Optional[list[BoundSymbol]]:
    """The calls that make b's outputs; None when the rule declines."""
    recording = Recording(names, b)
    args, kwargs = map_leaves(recording.stand_in, (b.args, b.kwargs))
    with torch.no_grad(), _Recorder(recording):
        token = CALLS.set(recording.call)
        try:
            results = rule(*args, **kwargs)
        except _Declined:
            return None
        finally:
            CALLS.reset(token)
        if results is NotImplemented:
            return None
        results = [r.to(o.dtype) if isinstance(o, TensorProxy) and isinstance(r, torch.Tensor) else r
                   for o, r in zip(b.flat_outputs, flat_leaves((results,)))]
    return _renamed(b, recording, results)


def _item_by_item(b: BoundSymbol, rule: Callable, names: Names) -> Optional[list[BoundSymbol]]:
    """The calls that write each tensor of a list: those of one item, for all that are alike."""
    made: list[BoundSymbol] = []
    known: dict[Any, tuple[list, list[BoundSymbol]]] = {}      # by kind: the tensors of its first item, and the calls
    for i, written in enumerate(b.args[0]):
        args = tuple([a[i:i + 1] if isinstance(a, (list, tuple)) else a for a in b.args])
        flat = flat_leaves((*args, *b.kwargs.values()))
        kind = metadata_key(flat)
        if kind is None or kind not in known:
            parts = _decomposed(replace(b, args=args, output=[written]), rule, names)
            if parts is None:
                return None
            made += parts
            known[kind] = flat, parts
        else:
            first, parts = known[kind]
            renamed = dict(zip(filter(is_proxy, first), filter(is_proxy, flat)))
            made += [c.renamed(lambda x: renamed.get(x, x) if is_proxy(x) else x) for c in parts]
    return made


def _strides_of_ones_are_open(call: BoundSymbol) -> bool:
    """Dims of size 1 may get other strides of a kernel than of meta tensors, where those of an operand are not the usual ones."""
    return any(1 in a.shape and a.stride != contiguous_stride(a.shape) for a in call.tensor_args)


def _renamed(b: BoundSymbol, recording: Recording, results: list) -> list[BoundSymbol]:
    """The recorded calls with the recorded names of the results; another layout is one more copy, free inside a kernel."""
    made = {o: c for c in recording.calls for o in c.tensor_outputs if o not in c.tensor_args}
    final: dict[TensorProxy, TensorProxy] = {}
    copies: list[tuple[TensorProxy, TensorProxy]] = []
    for o, r in zip(b.flat_outputs, results):
        if not isinstance(o, TensorProxy) or o in b.tensor_args or r is None:          # None: of what a mask leaves out
            continue
        p = recording.proxy(r) if isinstance(r, torch.Tensor) else None
        if p is None or p.shape != o.shape:
            raise TraceError(f"the decomposition of {bound_symbol_text(b)} makes {p!r} for {o!r}", where=str(b.source))
        owned = p in made and not any(a.storage == p.storage for a in made[p].tensor_args)
        if owned and p not in final and p.stride == o.stride and not _strides_of_ones_are_open(made[p]):
            final[p] = o
        else:
            copies.append((p, o))
    homes = {p.storage: o for p, o in final.items()}
    moved: dict[TensorProxy, TensorProxy] = dict(final)

    def rename(x: Any) -> Any:
        if not isinstance(x, TensorProxy) or x in moved:
            return moved.get(x, x) if isinstance(x, TensorProxy) else x
        if x.storage in homes:
            moved[x] = replace(x, storage=homes[x.storage].storage)
            return moved[x]
        return x
    for p, o in copies:
        recording.bind(prims.RESTRIDE, (p, list(o.shape), list(o.stride)), {}, o)
    return [c.renamed(rename) for c in recording.calls]
