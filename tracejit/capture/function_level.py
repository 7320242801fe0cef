"""The function level: a TorchFunctionMode above the recorder.

It gives every recorded ATen call the public name that the user called and the user's line, and it swaps real tensors
for their fakes on the way in and back on the way out, so that no real tensor is touched by a capture. What calls do
that the dispatcher does not see (hooks, `.grad`, `backward`) is recorded here; such a program is replayed call by call.
"""
from __future__ import annotations

import functools
import sys
import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Callable, Iterator, Optional

import torch
from torch.overrides import TorchFunctionMode, handle_torch_function

from ..errors import UnsupportedError, located
from ..ir import prims
from ..ir.extents import as_extent, as_given
from ..ir.proxy import layout_is_ambiguous
from ..ir.symbol import Symbol
from ..ir.torch_names import torch_name
from ..ir.trace import NOWHERE, BoundSymbol, SourceLine
from ..ir.trees import flat_leaves, with_leaves
from ..torch_private import (function_modes_see, run_backward, saved_tensor_hooks, set_grad_mode, tensor_set,
                             unseen_by_function_modes)
from .handlers import OWN_PATH, refuse_exception_handlers
from .fakes import Fakes, is_fake
from .numbers import as_number, number_of
from .hook import unprofiled
from .lines import user_line
from .open_indices import view_of
from .recorder import Recorder, current_modes
from .scratch import order_shows
from .sites import compared_at
from .stand_ins import RecordedNode, RecordedStorage, is_set_to
from .keys import MISSING
from .structure import PLAIN
from .while_captured import WhileCaptured, distributed_wrappers_refused

_T = torch.Tensor

# What acts on autograd or on an object without any ATen call. A program with one of these is replayed call by call.
_DATA_GET, _DATA_SET, _GRAD_GET = _T.data.__get__, _T.data.__set__, _T.grad.__get__
_GRAD_FN_GET, _VERSION_GET, _BASE_GET = _T.grad_fn.__get__, _T._version.__get__, _T._base.__get__
_EFFECTS = frozenset({_T.register_hook, _T.register_post_accumulate_grad_hook, _T.retain_grad, _T.requires_grad_,
                      _T.backward, torch.autograd.backward, torch.autograd.grad, _DATA_SET, _T.grad.__set__,
                      _T.requires_grad.__set__, _T.grad.__delete__, prims.register_node_hook, prims.register_node_prehook})
_CUTS_HISTORY = frozenset({_T.detach_, torch.detach_})       # no ATen call either, but a forward and a backward trace show it
_SETS_REQUIRES_GRAD = frozenset({_T.requires_grad_, _T.requires_grad.__set__})
_ON_A_TENSOR = _CUTS_HISTORY | {_T.register_hook, _T.retain_grad}
# Of these, what only takes gradients: it shows in ATen calls, and in the `.grad` of leaves.
_TAKES_GRADIENTS = frozenset({torch.autograd.backward, torch.autograd.grad, _T.grad.__set__, _T.grad.__delete__})
# Composite functions that choose their ATen calls by whether a tensor is subclass-like, as fakes are and real tensors
# are not (`compute_uv` of the SVD, the range checks of one_hot): kept whole, so that eager's choice is made at run time.
_KEPT_WHOLE = frozenset({torch.linalg.svdvals, torch.linalg.cond, torch.linalg.norm, torch.linalg.matrix_norm,
                         torch.linalg.matrix_rank, torch.linalg.eigvalsh, torch.svd, torch.norm, _T.norm, _T.svd, torch.nn.functional.one_hot})
# `real < fake` reaches us as `fake > real`: Python asks the subclass first. Only the strides of the result can tell.
_REFLECTED = {getattr(_T, a): getattr(_T, b) for a, b in (
    ("lt", "gt"), ("gt", "lt"), ("le", "ge"), ("ge", "le"), ("__eq__", "__eq__"), ("ne", "ne"))}
_MAY_SHARE_MEMORY = frozenset({torch.as_tensor, torch.asarray, torch.from_numpy, torch.frombuffer})
# What asks for memory, or for objects that live outside torch's operations.
_HOST_READS = frozenset({_T.__repr__, _T.__format__, _T.tolist, _T.numpy, _T.__array__, _T.storage, _T.__dlpack__, _T.share_memory_,
                         _T.pin_memory, _T.__reduce_ex__, _T.apply_, _T.map_, _T.map2_, _GRAD_FN_GET})

@functools.lru_cache(None)
def function_symbol(func: Callable) -> Symbol:
    """The Symbol of a call at this level: named as the user knows it; what it does to memory is not stated."""
    owner = getattr(func, "__self__", None)
    if isinstance(owner, type):                                # Function.apply
        return Symbol(f"{owner.__name__}.{func.__name__}", func, opaque=True)
    name = torch_name(func) or getattr(func, "__qualname__", None) or getattr(func, "__name__", "call")
    return Symbol(name, func, opaque=True)


class FunctionLevel(TorchFunctionMode):
    """Records calls as the user made them: `calls`, each with the ATen calls that it became as subsymbols.

    `watched()` is the context in which the user's frames are watched again, for calls that run the user's code.
    """

    def __init__(self, fakes: Fakes, on_new_input: Callable[[torch.Tensor], torch.Tensor],
                 watched: Callable[[], AbstractContextManager]) -> None:
        super().__init__()
        self.fakes, self.on_new_input, self.watched = fakes, on_new_input, watched
        self.calls: list[BoundSymbol] = []
        self.recorder = Recorder(fakes, on_new_input, self.source, self._on_number)
        self.needs_replay = ""               # why the ATen calls alone do not tell the whole program
        self.named: set[int] = set()         # ids of the fakes that a name stands for at this level
        self.unnamed = ""                    # what works on a tensor that no call at this level made, if anything does
        self.host_reads: list[tuple[str, torch.Tensor, Any]] = []     # (what, real tensor, value it had)
        self.checkpointed = self.draws_again = False                  # a function runs again in backward; it draws random numbers
        self.made_again: dict[Callable, set[int]] = {}                # by what packs for it: storages that it makes
        self.read_again: set[int] = set()                             # and of others those that it reads or writes
        self.calls_back = ""                 # the line of what makes the backward pass run code of the user's
        self.takes_gradients = self.takes_gradients_at = ""           # a backward pass within the call, and its line
        self.in_backward = False
        self.hooked: list[torch.Tensor] = []                          # tensors made in the call that have a hook
        self.asked_at: dict[int, str] = {}   # id(fake) -> the line that sets a hook on it, retains its gradient or detaches it
        self.whole: Optional[BoundSymbol] = None                      # a differentiable call of `_KEPT_WHOLE`
        self.inside = 0                      # public calls that run
        self._line: Optional[SourceLine] = None

    def _on_number(self, b: BoundSymbol) -> None:
        """Arithmetic on a number that may raise, or give a complex one, as tensors' operations may for their values."""
        if b.sym in (prims.NUMBER_OPS["truediv"], prims.NUMBER_OPS["pow"]):
            refuse_exception_handlers(b.source)
        self.calls.append(b)

    def source(self) -> SourceLine:
        return self._line or user_line()

    def line_of_call(self) -> SourceLine:
        """Of the public call that runs, if one does: autograd makes others."""
        return self._line or NOWHERE

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Optional[dict] = None) -> Any:
        if func is set_grad_mode or sys.getprofile() is None:
            return self._handle(func, args, kwargs or {})
        with unprofiled():
            return self._handle(func, args, kwargs or {})

    def _handle(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        if func is set_grad_mode:
            return func(*args, **kwargs)
        if func is _T.backward:
            return self._backward(*args, **kwargs)
        if func in _HOST_READS:
            return self._refuse(func, args)
        if func == _VERSION_GET or func is _T.data_ptr:
            return self._host_value(func, args[0])
        if func is _T._is_view or func == _BASE_GET:
            return (self.fakes.is_view if func is _T._is_view else self.fakes.base)(self._fake(args[0]), self.host_reads, user_line)
        if func is _T.__dir__:
            return self.fakes.names(args[0])
        if func is _T.__hash__:
            return id(args[0])                                 # dictionaries keyed by tensors are keyed by the real ones
        if func is _T.untyped_storage:
            return RecordedStorage(self, self._fake(args[0]))
        if func is _T.is_set_to:
            return is_set_to(self._fake(args[0]), self._fake(args[1]))
        view = view_of(func, args, self)
        if view is not None:
            return view if func is _T.__getitem__ else self.call(func, (view, ..., *args[2:]), kwargs)
        return self.call(func, args, kwargs, calls_back=_is_function_apply(func))

    def call(self, func: Callable, args: tuple, kwargs: dict, *, calls_back: bool = False) -> Any:
        """Run one public call on fakes and record it with what it became."""
        flat = flat_leaves((args, kwargs))
        operands = flat[:2]
        flat = [self._fake(a) if isinstance(a, _T) else a for a in flat]
        if func in _REFLECTED and is_fake(operands[0]) and isinstance(operands[1], _T) and not is_fake(operands[1]):
            if layout_is_ambiguous([self.recorder.proxy(a) for a in flat]) and order_shows(*flat) and _reflected(*operands):
                func, flat = _REFLECTED[func], flat[::-1]
        args, kwargs = with_leaves((args, kwargs), flat)
        if self.inside:                                       # within a call that is recorded as one: fakes throughout
            return func(*args, **kwargs)
        self.recorder.remade.met(flat)
        recorder, first = self.recorder, len(self.recorder.bound_symbols)
        self._line, recorder.takes_data = user_line(), func == _DATA_GET
        recorder.comment = function_symbol(func).name.removeprefix("torch.")
        names = [recorder.object_proxy(a) if isinstance(a, _T) else number_of(a) or as_extent(a) for a in flat]
        now = [recorder.named(a) for a in flat]
        if not all(id(a) in self.named for a in flat if isinstance(a, _T)):
            self.unnamed = self.unnamed or located(f"{recorder.comment} works on a tensor that no recorded call made", str(self._line))
        recorder.makes_constants = func not in _MAY_SHARE_MEMORY or isinstance(args[0], (*PLAIN, list, tuple))
        modes, self.inside, done = current_modes(), self.inside + 1, False
        try:
            out = self._data_set(*args) if func == _DATA_SET else self._run(func, args, kwargs, calls_back)
            self._record(func, (names, now, flat, (args, kwargs)), out, first, modes)
            done = True
        finally:
            self.inside -= 1
            self.calls += () if done else self._done_by_then(first)
            self._line, recorder.comment, recorder.makes_constants, recorder.takes_data = None, "", False, False
        if func == _GRAD_GET and out is None and self.fakes.real_of(args[0]) is not None:
            self.host_reads.append(("grad", self.fakes.real_of(args[0]), None))
        return self._hand_out(out)

    def _run(self, func: Callable, args: tuple, kwargs: dict, calls_back: bool) -> Any:
        if calls_back:                                         # the user's code runs inside
            if func not in _TAKES_GRADIENTS:
                self.calls_back = self.calls_back or str(self.source())
            with self.watched(), self:
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _record(self, func: Callable, call: tuple, out: Any, first: int, modes: Any) -> None:
        effect = func in _EFFECTS and not (func in _SETS_REQUIRES_GRAD and self._is_unseen(call[2][0]))
        leaves = flat_leaves((out,))
        outputs = [self.recorder.object_proxy(self._fake(o)) if isinstance(o, _T) else number_of(o) or as_extent(o) for o in leaves]
        fresh = any(isinstance(o, _T) and id(self._fake(o)) not in self.named for o in leaves)
        if not (func in _EFFECTS or func in _CUTS_HISTORY or fresh or len(self.recorder.bound_symbols) > first):
            return
        self.recorder.remade.made(leaves)
        names, now, flat, given = call
        self._note_fakes_in_callables(names)
        self._refuse_saved_tensor_hooks(first)
        if any(b.sym.may_raise([a.dtype for a in b.tensor_args]) for b in self.recorder.bound_symbols[first:]):
            refuse_exception_handlers(self.source())
        self.named.update(id(self._fake(o)) for o in leaves if isinstance(o, _T))
        args, kwargs = with_leaves(given, names)
        if func in _KEPT_WHOLE:
            self._keep_whole(func, *with_leaves(given, now), with_leaves(out, outputs), first)
        if func in _ON_A_TENSOR:
            self.asked_at[id(flat[0])] = str(self.source())
        if func in (_T.register_hook, _T.retain_grad) and self.fakes.real_of(flat[0]) is None:
            self.hooked += [flat[0]] if func is _T.register_hook else []
        elif func in _TAKES_GRADIENTS:
            self.takes_gradients_at = self.takes_gradients_at or str(self.source())
            self.takes_gradients = self.takes_gradients or function_symbol(func).name
        elif effect:
            self.replay(f"{function_symbol(func).name} does more than compute: call it outside")
        sym = prims.NUMBER if number_of(out) is not None else function_symbol(func)
        self.calls.append(BoundSymbol(sym, args, kwargs, with_leaves(out, outputs),
                                      self.source(), tuple(self.recorder.bound_symbols[first:]), modes))

    def _is_unseen(self, fake: torch.Tensor) -> bool:
        """Is setting whether it requires gradients nobody's business until it is a result: made in the call, or left as it was?"""
        real = self.fakes.real_of(fake)
        return fake.is_leaf if real is None else fake.requires_grad == real.requires_grad

    def _done_by_then(self, first: int) -> list[BoundSymbol]:
        """Of a call that raised, which the program may catch: the ATen calls that stay, if one drew or wrote."""
        made = self.recorder.bound_symbols[first:]
        if not any(b.written or b.sym.random for b in made):
            return []
        if self.recorder.moved_storages & {a.storage for b in made for a in b.tensor_args}:
            self.unnamed = self.unnamed or located(f"{self.recorder.comment} raises after it wrote or drew", str(self.source()))
        return made

    def _keep_whole(self, func: Callable, args: tuple, kwargs: dict, output: Any, first: int) -> None:
        """Put the call itself in the place of its ATen calls when those only compute."""
        made = self.recorder.bound_symbols[first:]
        if not any(b.written or b.sym.random or b.sym.opaque for b in made):
            whole = replace(function_symbol(func), opaque=False)
            call = BoundSymbol(whole, args, kwargs, output, self.source(), modes=current_modes())
            self.whole, self.recorder.bound_symbols[first:] = self.whole or call, [call]

    def replay(self, because: str) -> None:
        """The ATen calls alone do not tell the whole program."""
        self.needs_replay = self.needs_replay or located(because, str(self.source()))

    def _fake(self, t: torch.Tensor) -> torch.Tensor:
        return t if is_fake(t) else self.fakes.find(t) if self.fakes.find(t) is not None else self.on_new_input(t)

    def _hand_out(self, out: Any) -> Any:
        """A fake that stands for a real tensor goes out as that tensor: identity is kept."""
        if isinstance(out, _T):
            real = self.fakes.real_of(out)
            return out if real is None else real
        if type(out) in (list, tuple):
            return type(out)(self._hand_out(o) for o in out)
        return as_given(as_number(out))

    # ------------------------------------------------------------ calls that need care

    def _backward(self, tensor: torch.Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False,
                  inputs: Any = None) -> None:
        self.call(torch.autograd.backward, (tensor,), dict(grad_tensors=gradient, retain_graph=retain_graph,
                                                            create_graph=create_graph, inputs=inputs), calls_back=True)

    def _data_set(self, target: torch.Tensor, value: torch.Tensor) -> None:
        """`x.data = y`: for the recorder the same as `x.set_(y)` outside autograd."""
        if target.dtype != value.dtype or target.device != value.device:
            raise UnsupportedError(".data is assigned a tensor of another dtype or device: make a tensor of it, or do it outside",
                                   where=str(self.source()))
        with torch.no_grad():
            torch.Tensor.set_(target.detach() if target.requires_grad else target, value.detach())

    def _refuse(self, func: Callable, args: tuple) -> Any:
        what = function_symbol(func).name.removeprefix("torch.")
        if func == _GRAD_FN_GET and ((fake := self._fake(args[0])).grad_fn is None or self.fakes.real_of(fake) is None):
            return RecordedNode.of(self, fake)
        raise UnsupportedError(f"{what} needs real memory or leaves torch's operations: do it outside of the jitted function",
                               where=str(user_line()))

    def resize_storage(self, fake: torch.Tensor, nbytes: int) -> None:
        """No ATen call: the program is replayed."""
        self.replay("a storage is resized: resize it outside")
        with unseen_by_function_modes():
            args = (self.recorder.object_proxy(fake), nbytes)
            prims.resize_storage(fake, nbytes)
            self.calls.append(BoundSymbol(prims.RESIZE_STORAGE, args, {}, None, user_line(), modes=current_modes()))

    def _host_value(self, func: Callable, tensor: torch.Tensor) -> int:
        """`_version` and `data_ptr` of an argument: the value now, under a guard."""
        fake, what = self._fake(tensor), "data_ptr" if func is _T.data_ptr else "version"
        self.replay(f"{what} is asked for: ask for it outside")
        storage = fake.untyped_storage()._cdata
        owner = next((r for r, f in self.fakes.pairs() if f.untyped_storage()._cdata == storage), None)
        if what == "version" and owner is None:
            return fake._version
        if owner is None or what == "version" and self.fakes.real_of(fake) is not owner:
            raise UnsupportedError(f"{what} of an intermediate result is not known before the program runs: "
                                   "ask for it outside", where=str(user_line()))
        with unseen_by_function_modes():
            value = owner._version if what == "version" else owner.untyped_storage().data_ptr()
        self.host_reads.append((what, owner, value))
        if what == "version":
            return value + fake._version - self.fakes.first_version(fake)
        return value + fake.storage_offset() * fake.element_size()

    def _refuse_saved_tensor_hooks(self, first: int) -> None:
        """They act on what autograd saves, which a replay does not show. Those of checkpoint run the function again, with the state
        that the generator had: that only spares memory where it does not draw. first: of the calls that a call became."""
        hooks = saved_tensor_hooks()
        if hooks is None or self.in_backward:
            return
        self.checkpointed = True
        made = self.made_again.setdefault(hooks[0], set())
        for b in self.recorder.bound_symbols[first:]:
            self.draws_again = self.draws_again or b.sym.random
            read = {a.storage for a in b.tensor_args}
            self.read_again |= read - made
            made |= {o.storage for o in b.tensor_outputs} - read
        if hooks[0].__module__ != "torch.utils.checkpoint":
            raise UnsupportedError("saved_tensors_hooks are set inside the function: leave them out; the option recompute='always' "
                                   "spares memory", where=str(self.source()))

    def _note_fakes_in_callables(self, leaves: list) -> None:
        for f in leaves:
            cells = getattr(f, "__closure__", None) or ()
            held = [c.cell_contents for c in cells] + list(getattr(f, "__defaults__", None) or ()) + list(
                getattr(f, "args", ())) if callable(f) else []
            if any(is_fake(x) for x in flat_leaves(held)):
                self.unnamed = self.unnamed or located("a hook or callback holds a tensor of this call", str(self.source()))


_local = threading.local()
_apply, _set, _has = torch.autograd.Function.__dict__["apply"], tensor_set, torch.overrides.has_torch_function


def active() -> Optional[FunctionLevel]:
    """The capture that runs on this thread, if any."""
    return getattr(_local, "level", None)


def _recording() -> bool:
    return active() is not None and function_modes_see()


def _recorded_apply(cls: type, *args: Any, **kwargs: Any) -> Any:
    bound = _apply.__get__(None, cls)
    return handle_torch_function(bound, args, *args, **kwargs) if _recording() else bound(*args, **kwargs)


def _recorded_set(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return handle_torch_function(_set, (self,), self, *args, **kwargs) if _recording() else _set(self, *args, **kwargs)


def _recorded_backward(*args: Any, **kwargs: Any) -> Any:
    """The user's code within a backward pass is seen, too; the function that asks for the pass has left the mode."""
    with nullcontext() if active() is None or function_modes_see() else active():
        return run_backward(*args, **kwargs)


def _has_torch_function(args: Any) -> bool:
    """The mode of a recording makes this true for every tensor; modules ask it whether their fast path may run."""
    if not _recording():
        return _has(args)
    return any(isinstance(a, _T) and not is_fake(a) and type(a) not in (_T, torch.nn.Parameter) for a in args)


def _is_function_apply(func: Callable) -> bool:
    owner = getattr(func, "__self__", None)                    # `apply` is written in C from torch 2.14 on
    return isinstance(owner, type) and issubclass(owner, torch.autograd.Function) and func.__name__ == "apply"


def _reflected(fake: torch.Tensor, real: torch.Tensor) -> bool:
    """Does the program compare `real` with `fake`, rather than `fake` with `real`?"""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OWN_PATH):
        frame = frame.f_back
    left, right = compared_at(frame)
    if left is MISSING and right is MISSING:
        raise UnsupportedError("a comparison whose operands are laid out differently: "
                               "make one of them contiguous before", where=str(user_line()))
    return left is real or right is fake


@contextmanager
def function_level(level: FunctionLevel) -> Iterator[None]:
    """Run with `level` on, where WRAPPED is."""
    _local.level = level
    try:
        with distributed_wrappers_refused(active), level.fakes.mode, level.recorder, level:
            yield
    finally:
        _local.level = None


def _wrap() -> None:
    torch.autograd.Function.apply, torch.Tensor.set_ = classmethod(_recorded_apply), _recorded_set
    torch.overrides.has_torch_function, torch.autograd._engine_run_backward = _has_torch_function, _recorded_backward


def _unwrap() -> None:
    torch.autograd.Function.apply, torch.overrides.has_torch_function = _apply, _has
    torch.autograd._engine_run_backward = run_backward
    del torch.Tensor.set_


# What no mode can override (`Function.apply`, `Tensor.set_`), or what shows the mode to the program (`has_torch_function`).
WRAPPED = WhileCaptured(_wrap, _unwrap)
