"""The dispatch-level recorder: every ATen call of one capture, on fakes that alias as the real inputs do.

In: a function running on fakes under `Recorder`. Out: `bound_symbols`, ATen calls over proxies, in order.
Guaranteed: two proxies have one storage id iff the tensors share memory; an object whose shape, strides or storage
moved (`unsqueeze_`, `set_`) has a new proxy from there on.
"""
from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Callable, NoReturn, Optional

import torch
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import UnsupportedError
from ..ir import prims
from ..ir.extents import as_extent, as_extents, as_long, is_extent, now
from ..ir.proxy import TensorConstant, TensorProxy, proxy_of, some_number
from ..ir.results import told
from ..ir.symbol import Symbol, aten_symbol, in_grad_mode
from ..ir.trace import BoundSymbol, Modes, SourceLine
from ..ir.trees import flat_leaves, map_leaves, with_leaves
from ..torch_private import converted, function_modes_see, is_composite, kernels_for_open_sizes, runs_again, taken_by_fakes, unseen_by_function_modes
from .fakes import NEEDS_DATA, Fakes, is_fake, real_tensors
from .hook import unprofiled
from .known_calls import UNKNOWN, KnownCalls, each_kind_once, note_results, on_paper, on_stand_ins, on_view
from .modes import operation_settings
from .numbers import NEEDS_VALUE, NumberNode, number_of, refuse_unless_elementwise, with_floats
from .remade import Remade
from .scratch import (layout_is_uncertain, raise_beyond_storage, raise_if_eager_refuses, as_kernel_says, raise_if_no_view, real_strides,
                      run_on_scratch)

aten = torch.ops.aten
_QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})
_NO_TENSOR = torch.empty(0)
_LIFTS = (aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default)
_PASS_THROUGH = ("prim", "profiler", "inductor_utils")       # namespaces that touch no tensor's memory


def current_modes() -> Modes:
    """The thread's modes that change what a recorded call means."""
    autocast = None
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled())
    return Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, again=runs_again())


class Recorder(TorchDispatchMode):
    """Records ATen calls. `on_new_input(real) -> fake` is asked for a real tensor that reaches it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False             # otherwise every dispatch goes through torch._dynamo.disable

    def __init__(self, fakes: Fakes, on_new_input: Callable[[torch.Tensor], torch.Tensor],
                 source: Callable[[], SourceLine], on_number: Callable[[BoundSymbol], None]) -> None:
        super().__init__()
        self.fakes, self.on_new_input, self.source, self.on_number = fakes, on_new_input, source, on_number
        self.bound_symbols: list[BoundSymbol] = []
        self.kept: list = []                                   # keeps ids unique while recording
        self._now: dict[int, TensorProxy] = {}                 # id(fake) -> its proxy under its current metadata
        self._first: dict[int, TensorProxy] = {}               # id(fake) -> the proxy that names the object
        self._roots: dict[int, TensorProxy] = {}               # storage address -> the first proxy seen over it
        self._views: dict[tuple, TensorProxy] = {}             # (storage address, metadata) -> the last proxy of that view
        self._storages: dict[Any, int] = {}                    # storage address -> storage id
        self.known, self.remade = KnownCalls(fakes.mode), Remade()
        self.comment = ""
        self.makes_constants = False                           # within a call that copies Python data into a new tensor
        self.takes_data = False                                # within `.data`
        self.of_data: set[int] = set()                         # ids of the fakes that have versions of their own, as `.data` has
        self.half_done = ""                                    # a call that raised and may have written before
        self.refused: Optional[UnsupportedError] = None        # somebody needed the value of a number
        self._settings = operation_settings()

    # ------------------------------------------------------------ proxies

    def new_proxy(self, t: torch.Tensor, name: str = "") -> TensorProxy:
        storage = t.untyped_storage()
        number = self._storages.setdefault(storage._cdata, len(self._storages))
        proxy = proxy_of(name or f"t{len(self.kept)}", t, number)
        self._now[id(t)] = proxy
        self._first.setdefault(id(t), proxy)
        self._roots.setdefault(storage._cdata, proxy)
        self._views[_view_key(t)] = proxy
        self.kept.append((t, storage))
        return proxy

    def proxy(self, t: torch.Tensor) -> TensorProxy:
        """The current proxy of a fake; an object that no recorded call made is adopted as a view of its storage."""
        proxy = self._now.get(id(t))
        if proxy is None:
            return self._adopt(t)
        if (proxy.shape, proxy.stride, proxy.offset) != (t.shape, t.stride(), t.storage_offset()) or (
                self._storages.get(t.untyped_storage()._cdata) != proxy.storage):
            raise UnsupportedError(f"{proxy.name} changed its metadata behind the dispatcher: change it by an operation of torch", where=str(self.source()))
        return proxy

    def named(self, a: Any) -> Any:
        """The proxy of a tensor or a number; anything else as it is."""
        return self.proxy(a) if isinstance(a, torch.Tensor) else number_of(a) or as_extent(a)

    def number_in(self, t: torch.Tensor) -> NumberNode:
        """The number that `item()` reads of a tensor."""
        if t.dim():
            with self:
                t = aten.view.default(t, [])
        return NumberNode(self.number(prims.NUMBER, (self.proxy(t),)), self.number, self.refuse)

    def number(self, sym: Symbol, args: tuple) -> TensorProxy:
        """What an operation on numbers makes."""
        storage = self._storages.setdefault(("number", len(self.kept)), len(self._storages))
        made = TensorProxy(f"t{len(self.kept)}", (), (), torch.float64, torch.device("cpu"), storage, number=True)
        self.kept.append((_NO_TENSOR, None))                   # as every name has
        self._emit(sym, args, {}, made)
        if sym is not prims.NUMBER:                            # no call of a torch function, which would be recorded as such
            self.on_number(self.bound_symbols[-1])
        return made

    def refuse(self, what: str) -> NoReturn:
        self.refused = self.refused or UnsupportedError(NEEDS_VALUE.format(what), where=str(self.source()))
        raise self.refused

    def object_proxy(self, t: torch.Tensor) -> TensorProxy:
        """The proxy that names the object for its whole life (calls at the level of torch functions use it)."""
        self.proxy(t)
        return self._first[id(t)]

    @property
    def moved_storages(self) -> set[int]:
        """Those of objects whose metadata moved."""
        return {p.storage for key, p in self._now.items() if p is not self._first[key]}

    def storage_of(self, t: torch.Tensor) -> Optional[int]:
        """The number of the storage under a fake; None for one that no recorded call made or read."""
        return self._storages.get(t.untyped_storage()._cdata)

    def knows(self, t: torch.Tensor) -> bool:
        return id(t) in self._now

    def _adopt(self, t: torch.Tensor) -> TensorProxy:
        real = self.fakes.real_of(t)
        if real is not None:                                   # an input that is first used now
            self.on_new_input(real)
            return self._now[id(t)]
        root = self._roots.get(t.untyped_storage()._cdata)
        if root is None or not is_fake(t):
            raise UnsupportedError(f"a tensor from outside reached the recording, {type(t).__name__}{tuple(t.shape)}: "
                                   "pass a torch.Tensor that has data",
                                   where=str(self.source()))
        same = self._views.get(_view_key(t))
        proxy = self.new_proxy(t)
        if same is not None:                                   # as autograd unpacks what it saved
            self._emit(aten_symbol(aten.alias.default), (same,), {}, proxy)
        else:
            self._emit(aten_symbol(aten.as_strided.default), (root, [*as_extents(t.shape)], [*as_extents(t.stride())], as_extent(t.storage_offset())), {}, proxy)
        return proxy

    def _emit(self, sym: Symbol, args: tuple, kwargs: dict, output: Any) -> None:
        self.bound_symbols.append(BoundSymbol(sym, args, kwargs, output, self.source(), modes=current_modes(),
                                              comment=self.comment))

    # ------------------------------------------------------------ dispatch

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None) -> Any:
        if func.namespace in _PASS_THROUGH:
            return func(*args, **kwargs or {})
        if sys.getprofile() is None and not function_modes_see():
            return self._dispatch(func, args, kwargs or {})
        with unprofiled(), unseen_by_function_modes():    # a call that came past the function level, as from TorchScript or autograd
            return self._dispatch(func, args, kwargs or {})

    def _dispatch(self, func: Any, args: tuple, kwargs: dict) -> Any:
        if operation_settings() != self._settings:
            raise UnsupportedError("the function runs operations under another default dtype, or deterministic "
                                   "algorithms: set them around the call", where=str(self.source()))
        if is_composite(func):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        flat = flat_leaves((args, kwargs))
        if func in _LIFTS and not is_fake(flat[0]):
            return self._constant(func, flat[0])
        if any((a.dtype if isinstance(a, torch.Tensor) else a) in _QUANTIZED for a in flat if isinstance(a, (torch.Tensor, torch.dtype))):
            raise UnsupportedError("quantized tensors are not captured: use them outside of the jitted function", where=str(self.source()))
        flat = [self._fake(a) if isinstance(a, torch.Tensor) else a for a in flat]
        args, kwargs = with_leaves((args, kwargs), flat)
        sym = in_grad_mode(aten_symbol(func)) if torch.is_grad_enabled() else aten_symbol(func)
        if any(map(is_extent, flat)):
            args, kwargs = with_floats(sym, *with_leaves((args, kwargs), list(map(as_long, flat))))
            flat = flat_leaves((args, kwargs))
        before = [self.named(a) for a in flat]
        if func is aten._local_scalar_dense.default and flat[0].dtype.is_floating_point:
            return torch.SymFloat(self.number_in(flat[0]))
        if any(isinstance(p, TensorProxy) and p.number for p in before):
            refuse_unless_elementwise(sym, args, kwargs)
            flat = [some_number(p) if isinstance(p, TensorProxy) and p.number else a for a, p in zip(flat, before)]
            args, kwargs = with_leaves((args, kwargs), flat)
        if sym.pointwise and any(map(is_extent, before)):      # an operand: results have the same metadata for all values
            flat = list(map(now, flat))
            args, kwargs = with_leaves((args, kwargs), flat)
        written = sym.written(args, kwargs)
        key = self.known.key(sym, flat, before, (args, kwargs))
        out = self.known.recall(key, flat)
        if out is UNKNOWN:
            out = self._judged(sym, (args, kwargs), before)
            self.known.note(key, sym, flat, out)
        self._record(sym, (flat, before, (args, kwargs)), written, out)
        if written and sym.writes_lists:                       # fakes do not count such writes, real tensors do
            increment_version([flat[i] for i in written if not flat[i].is_inference()])
        return out

    def _judged(self, sym: Symbol, call: tuple[tuple, dict], before: list) -> Any:
        """The results of a call, as fakes; where these are not to be trusted, the real kernel is asked."""
        func, written = sym.overload, sym.written(*call)
        try:
            if sym.over_storage:
                raise_beyond_storage(self.fakes.storage_bytes(call[0][0]), **sym.named(*call))
            if written and not sym.moves_metadata:
                raise_if_eager_refuses(func, before, call, written)
            out = self._on_fakes(func, *call, before)
            if not sym.moves_metadata:
                out = as_kernel_says(sym, before, call, out)
            if not written and layout_is_uncertain(sym, [p for p in before if isinstance(p, TensorProxy) and not p.number]):
                self._take_real_strides(sym, before, call, out)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError):
            self.half_done = self.half_done or len(written) > 1 and sym.name    # it may have written some by then
            raise
        return out

    def _on_fakes(self, func: Any, args: tuple, kwargs: dict, before: list) -> Any:
        """Run on fakes. Where fakes refuse, the real kernel decides, on scratch memory: its error is the program's own."""
        try:
            sym, flat = aten_symbol(func), flat_leaves((*args, *kwargs.values()))
            rule = told(sym, *with_leaves((args, kwargs), before))
            out = on_paper(rule, flat, self.fakes.mode)
            if out is not UNKNOWN:
                return out
            if func.__name__.startswith("_foreach_"):
                out = each_kind_once(func, args, kwargs, self.proxy)
            else:
                out = on_view(sym, args, kwargs, self.fakes.mode)
                out = on_stand_ins(sym, args, kwargs, self.fakes.mode) if out is UNKNOWN else out
            if out is UNKNOWN:
                raise_if_no_view(func, before)
                with kernels_for_open_sizes(flat):
                    out = taken_by_fakes(func)(*args, **kwargs)
            note_results(rule, sym, flat, out)
            return out
        except NEEDS_DATA:
            raise
        except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError, AssertionError) as error:
            scratch, out = run_on_scratch(func, before, (args, kwargs))
            fakes = flat_leaves((args, kwargs))
            out = map_leaves(lambda o: self._fake_like(o, scratch, fakes) if isinstance(o, torch.Tensor) else o, out)
            if any(isinstance(p, TensorProxy) and p.shape != tuple(t.shape) for p, t in zip(before, scratch)):
                raise UnsupportedError(f"fake tensors cannot run {func}: register a fake implementation of it "
                                       f"(torch.library.register_fake). {error}", where=str(self.source())) from error
            return out

    def _take_real_strides(self, sym: Symbol, before: list, call: tuple[tuple, dict], out: Any) -> None:
        """Fakes do not reproduce all strides that kernels choose: take them from a real run, on scratch memory."""
        made = [o for o in flat_leaves((out,)) if isinstance(o, torch.Tensor)]
        if made and not any(map(self.knows, made)) and not any(isinstance(a, torch.Generator) for a in before):
            try:
                layouts = real_strides(sym, before, call)
            except (RuntimeError, ValueError, IndexError):     # it dislikes zeros, not what it was given
                return
            for o, (shape, stride) in zip(made, layouts):
                if o.shape == shape and o.stride() != stride:
                    o.as_strided_(shape, stride, o.storage_offset())

    def _fake_like(self, out: torch.Tensor, scratch: list, fakes: list) -> torch.Tensor:
        """The fake for a result of a real run: the argument that it is, or a new one."""
        for t, fake in zip(scratch, fakes):
            if t is out:
                return fake
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata == out.untyped_storage()._cdata:
                raise UnsupportedError("fake tensors cannot run an operator that gives a view: register a fake implementation "
                                       "of it (torch.library.register_fake)", where=str(self.source()))
        with real_tensors():
            return converted(self.fakes.mode, out)

    def _fake(self, t: torch.Tensor) -> torch.Tensor:
        if is_fake(t):
            return t
        if t.requires_grad and torch.is_grad_enabled():        # the history would lead to the caller's tensor, and gradients to its `.grad`
            raise UnsupportedError("code that nobody sees computes with a tensor of the caller's under autograd: call it outside of the function",
                                   where=str(self.source()))
        fake = self.fakes.find(t)
        return self.on_new_input(t) if fake is None else fake

    def _record(self, sym: Symbol, call: tuple, written: tuple, out: Any) -> None:
        flat, before, given = call
        moved = [i for i in written if self._moved(flat[i], before[i])]
        if moved and not sym.moves_metadata:
            real, _ = run_on_scratch(sym.overload, before, given)        # eager may refuse to resize
            for i in moved:                                     # out= resized as a side effect: say so beforehand
                before = self._resize(flat[i], before, before[i], real[i])
            moved = []
        args, kwargs = with_leaves(given, before)
        leaves = flat_leaves((out,))
        if self.takes_data or self.of_data:
            sym = self._by_way_of_data(sym, flat, written, leaves)
        outputs = [self._output(o, {id(flat[i]) for i in moved}) for o in leaves]
        self._emit(sym, args, kwargs, with_leaves(out, outputs))

    def _by_way_of_data(self, sym: Symbol, flat: list, written: tuple, made: list) -> Symbol:
        """The symbol of a call where `.data` is taken or was: its writes, and those to views of it, are untold."""
        apart = {id(a) for a in flat if isinstance(a, torch.Tensor)} & self.of_data
        if self.takes_data and sym.overload is aten.detach.default:
            sym, apart = _DATA, {id(flat[0])}
        elif written and all(id(flat[i]) in apart for i in written):
            sym = replace(sym, untold=True)
        storages = {a.untyped_storage()._cdata for a in flat if id(a) in apart}
        self.of_data.update(id(o) for o in made if isinstance(o, torch.Tensor) and o.untyped_storage()._cdata in storages)
        return sym

    def _moved(self, t: torch.Tensor, proxy: TensorProxy) -> bool:
        return (proxy.shape, proxy.stride, proxy.offset) != (tuple(t.shape), t.stride(), t.storage_offset()) or (
            self._storages.get(t.untyped_storage()._cdata) != proxy.storage)

    def _resize(self, t: torch.Tensor, before: list, old: TensorProxy, real: torch.Tensor) -> list:
        if sum(b is old for b in before) > 1:
            raise UnsupportedError("out= is resized and is an operand, too: "
                                   "give it the size of the result, or leave it out", where=str(self.source()))
        if t.stride() != real.stride():                        # eager resizes it to the strides of the result
            t.resize_(real.shape)
            self._emit(aten_symbol(aten.resize_.default), (old, list(t.shape)), {}, self.new_proxy(t))
            old, before = self._now[id(t)], [self._now[id(t)] if b is old else b for b in before]
            t.as_strided_(real.shape, real.stride())
            new = self.new_proxy(t)
            self._emit(aten_symbol(aten.as_strided_.default), (old, list(t.shape), list(t.stride())), {}, new)
        else:
            new = self.new_proxy(t)
            self._emit(aten_symbol(aten.resize_.default), (old, list(t.shape)), {}, new)
        return [new if b is old else b for b in before]

    def _output(self, o: Any, moved: set[int]) -> Any:
        if not isinstance(o, torch.Tensor):
            return o
        if id(o) in self._now and id(o) not in moved:
            return self._now[id(o)]
        return self.new_proxy(o)

    def _constant(self, func: Any, value: torch.Tensor) -> torch.Tensor:
        if not self.makes_constants:
            raise UnsupportedError("a tensor over memory from outside torch (from_numpy, frombuffer, as_tensor): "
                                   "make it outside, "
                                   "and pass it",
                                   where=str(self.source()))
        with real_tensors():
            kept = value.detach().clone()
        out = func(value)
        self._emit(prims.CONSTANT, (TensorConstant(kept),), {}, self.new_proxy(out))
        return out


_DATA = replace(aten_symbol(aten.detach.default), fn=prims.data)


def _view_key(t: torch.Tensor) -> tuple:
    return (t.untyped_storage()._cdata, as_extent(t.storage_offset()), as_extents(t.shape), as_extents(t.stride()), t.dtype, t.is_conj(), t.is_neg())
