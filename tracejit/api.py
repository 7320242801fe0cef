"""The public face: `jit`, and what it returns."""
from __future__ import annotations

import copy
import functools
import sys
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch

from .capture import function_level
from .capture.collector import collector_paused
from .capture.changing import FloatArguments, Places
from .capture.guards import EntryTable
from .capture.inputs import CallInputs
from .capture.lines import defined_at, user_frame
from .capture.opened import Opening
from .capture.modes import capture_is_hindered, hindrance, mode_key
from .capture.retraces import MANY, Retraces
from .capture.tracer import Capture, capture
from .errors import EagerRefuses, FallbackWarning, RetraceWarning, UnsupportedError
from .executors.registry import asked, resolve
from .executors.torch_fallback import TORCH
from .ir.printer import function_name
from .ir.trace import Trace
from .options import Options, log_topics, make_options
from .pipeline import lower
from .runtime.call_core import Calls, called_in_c, hits, paused
from .executors.compile_lock import compile_lock
from .runtime.entry import Entry, trimmed
from .runtime.program import stack_level
from .runtime.template import Templates, fits

if TYPE_CHECKING:                                              # opened when they are asked for
    from .inspection.bisect import Difference
    from .inspection.explain import Explanation
    from .inspection.kernels import Kernel

_capture_lock = compile_lock()


@dataclass(frozen=True)
class CacheInfo:
    """hits: calls that ran an entry; misses: calls that compiled one; fallbacks: calls that ran eagerly; entries: how many are kept,
    each for all sizes that it holds for; retraces: for each of the latest hundred compiles after the first, a line that says what had
    changed since the entry that is most like it.

    >>> import torch, tracejit
    >>> f = tracejit.jit(lambda x: x * 2)
    >>> _ = f(torch.ones(3)), f(torch.ones(3)), f(torch.ones(4))
    >>> f.cache_info()
    CacheInfo(hits=1, misses=2, fallbacks=0, entries=2)
    """

    hits: int
    misses: int
    fallbacks: int
    entries: int
    retraces: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        return "\n".join([repr(self), *self.retraces])


class CompiledFunction:
    """A function that is captured at its first call with arguments of a kind, and runs its compiled program after that.

    `__wrapped__` is the original function. Of the latest compile: `last_traces`, one `Trace` a stage; `last_backward_traces`,
    those of its backward pass; `replayed_because`, why the program runs as recorded, under autograd, or "".

    >>> import torch, tracejit
    >>> f = tracejit.jit(lambda x: torch.relu(x) * 2)
    >>> f(torch.tensor([-1.0, 1.0])), f.last_traces[0].stage, [k.name for k in f.kernels]
    (tensor([0., 2.]), 'calls', ['cpu_region0'])
    """

    def __init__(self, fn: Callable, options: Options) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.__wrapped__ = fn
        self.options = options
        self.name = function_name(fn, options.name)
        self.last_traces: list[Trace] = []
        self.last_backward_traces: list[Trace] = []
        self.replayed_because = ""           # why the latest compile replays the program under autograd, call by call
        self._tables: dict[Any, EntryTable] = {}
        self._eager: dict[Any, UnsupportedError] = {}
        self._floats = FloatArguments()
        self._opened: dict[Any, dict] = {}    # by the objects that are given: places of numbers whose values entries leave open
        self._closed: set[Any] = set()       # and those whose values the program needs
        self._templates = Templates(options)
        self._hits = self._misses = self._fallbacks = 0
        self._warned: set[str] = set()
        self._retraces, self._warned_of_retraces = Retraces(fn), False
        self._calls = Calls(self)

    def __new__(cls, *args: Any, **kwargs: Any) -> CompiledFunction:
        return object.__new__(called_in_c(cls) if cls is CompiledFunction else cls)

    def __reduce__(self) -> tuple:
        return CompiledFunction, (self.__wrapped__, self.options)

    def __get__(self, instance: Any, owner: Optional[type] = None) -> Any:
        """As a method: bound like a function."""
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._missed(None, args, kwargs)
        except Exception as error:                             # the user's error: show the user's frames
            error.__traceback__ = trimmed(error)
            raise                                              # bare: this frame is not added again

    def _missed(self, in_c: Optional[bytes], args: tuple, kwargs: dict) -> Any:
        """A call that C does not know. in_c: its key there, if C can key it."""
        if function_level.active() is not None:                # jit inside jit is part of the outer program
            return self.__wrapped__(*args, **kwargs)
        if capture_is_hindered():
            return self._run_eagerly(args, kwargs, UnsupportedError(hindrance(), where=defined_at(self.__wrapped__)))
        inputs = CallInputs(args, kwargs)
        modes = mode_key()
        opened = inputs
        for opened in (inputs, self._floats.opened(inputs, modes, self._closed)):
            table = self._tables.get((opened.key, modes))
            if table is not None:
                entry, tensors, group = table.find(opened)
                if entry is not None:
                    self._hits += 1
                    if in_c is not None and opened is inputs:
                        self._calls.register(self, in_c, group, inputs, tensors, entry)
                    self._calls.attach(self)
                    return entry.run(tensors, opened)
        return self._first_call(opened, (opened.key, modes))

    def _first_call(self, inputs: CallInputs, key: Any) -> Any:
        if key in self._eager and self.options.fallback != "error":
            return self._run_eagerly(inputs.args, inputs.kwargs, self._eager[key])
        try:
            with _capture_lock, paused(), collector_paused():
                entry, tensors = self._compile(inputs, key)
        except UnsupportedError as error:
            error.place(defined_at(self.__wrapped__))
            self._eager[key] = UnsupportedError(*error.args)   # without the traceback, which holds the arguments
            return self._run_eagerly(inputs.args, inputs.kwargs, error)
        except _ProgramError as failed:
            error = failed.__cause__
        else:
            return entry.run(tensors, inputs)
        return self._after_program_error(inputs, error)

    def _compile(self, inputs: CallInputs, key: Any) -> tuple[Entry, list]:
        table = self._tables.get(key)
        entry, tensors, _ = table.find(inputs) if table is not None else (None, [], None)
        if entry is not None:                                  # another thread compiled it meanwhile
            return entry, tensors
        entry, guards = self._templates.find(opened := self._templates.opened(inputs, key[1]), inputs)
        if entry is not None:
            self._hits += 1
            return entry, self._tables.setdefault(key, EntryTable()).add(guards, inputs, entry)
        places = self._templates.places(table, opened, inputs, self._opened.setdefault(inputs.held, {}), self._closed)
        try:
            captured, lowered, entry = self._templates.compiled(opened, inputs, places, self._closed,
                                                                functools.partial(self._lowered, inputs), _ProgramError)
        except (UnsupportedError, _ProgramError):
            if not places.all:
                raise
            self._closed |= places.suspects                    # the program needs the value of one of these
            inputs = self._floats.opened(inputs.plain or inputs, key[1], self._closed)
            return self._compile(inputs, (inputs.key, key[1]))
        self._opened[inputs.held].update((p.ident, p) for p in (*places.state, *places.integers))
        why = self._retraces.note(inputs, key[1], captured.guards)
        tensors = self._tables.setdefault(key, EntryTable()).add(captured.guards, inputs, entry)
        self.last_traces, self.replayed_because = lowered.traces, lowered.replayed
        self.last_backward_traces = lowered.backward.traces if lowered.backward is not None else []
        self._misses += 1
        self._calls.attach(self)
        if "recompiles" in log_topics():
            print(f"tracejit: {self.name} compiled for entry {self._misses}: {why}", file=sys.stderr)
        if self._misses > MANY and not self._warned_of_retraces:
            self._warned_of_retraces = True
            warnings.warn(f"{self.name} was compiled {self._misses} times; {self._retraces.warning()}", RetraceWarning, stacklevel=stack_level())
        return entry, tensors

    def _lowered(self, inputs: CallInputs, places: Places, opening: Optional[Opening] = None) -> tuple[Capture, Any]:
        try:
            captured = capture(self.__wrapped__, inputs, self.name, places, opening)
        except UnsupportedError:
            raise
        except Exception as error:                             # the program's own error, of any class: eager shows it
            raise _ProgramError from error
        fit = opening is None or fits(captured, opening)
        try:
            return captured, lower(captured, self.options) if fit else None
        except EagerRefuses as error:
            raise _ProgramError from error

    def _after_program_error(self, inputs: CallInputs, error: BaseException) -> Any:
        """The capture raised, as eager should: run eagerly, which raises with memory as eager leaves it."""
        result = self.__wrapped__(*inputs.args, **inputs.kwargs)
        unsupported = UnsupportedError(f"the capture raised {type(error).__name__}, which eager does not: {error}\n"
                                       "Call what raises it outside of the jitted function", where=user_frame(error))
        unsupported.__cause__ = error
        if self.options.fallback == "error":
            raise unsupported
        self._warn(unsupported)
        self._fallbacks += 1
        return result

    def _run_eagerly(self, args: tuple, kwargs: dict, why: UnsupportedError) -> Any:
        if self.options.fallback == "error":
            raise why
        self._warn(why)
        self._fallbacks += 1
        return self.__wrapped__(*args, **kwargs)

    def _warn(self, why: UnsupportedError) -> None:
        if "fallback" in log_topics():
            print(f"tracejit: {self.name} runs eagerly: {why}", file=sys.stderr)
        if self.options.fallback == "warn" and str(why) not in self._warned:
            self._warned.add(str(why))
            warnings.warn(f"{self.name} runs eagerly: {why}", FallbackWarning, stacklevel=stack_level())

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels of the latest compile, in the order in which they run, those of the backward pass last."""
        from .inspection.kernels import kernels_of
        return [*kernels_of(self.last_traces), *kernels_of(self.last_backward_traces)]

    def cache_info(self) -> CacheInfo:
        """Counts since the last `cache_clear`."""
        entries = sum(map(len, list(self._tables.values()))) - self._templates.settled
        return CacheInfo(self._hits + hits(self, self._calls), self._misses, self._fallbacks, entries, self._retraces.lines)

    def cache_clear(self) -> None:
        """Forget all entries and counts."""
        self._tables.clear()
        self._eager.clear()
        self._floats, self._opened, self._closed, self._templates = FloatArguments(), {}, set(), Templates(self.options)
        self._calls, self._retraces = Calls(self), Retraces(self.__wrapped__)
        self._hits = self._misses = self._fallbacks = 0

    def __repr__(self) -> str:
        return f"<tracejit.jit of {self.name}: {self.cache_info()!r}>"


class _ProgramError(Exception):
    """Carries an exception of the user's program out of a capture."""


class CompiledModule:
    """Mixed into the class of a jitted module: the same module, called through its compiled function.

    It shares the original's attributes, parameters, buffers, submodules, hooks and mode, and has what a `CompiledFunction` has.

    >>> import torch, tracejit
    >>> layer = torch.nn.Linear(2, 2)
    >>> jitted = tracejit.jit(layer)
    >>> isinstance(jitted, torch.nn.Linear), jitted.weight is layer.weight, jitted(torch.ones(1, 2)).shape
    (True, True, torch.Size([1, 2]))
    """

    _tracejit: CompiledFunction

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return type(self)._tracejit(*args, **kwargs)

    def __reduce__(self) -> tuple:
        compiled = type(self)._tracejit
        return _jit_module, (compiled.__wrapped__, compiled.options)

    def __deepcopy__(self, memo: dict) -> Any:
        compiled = type(self)._tracejit
        return _jit_module(copy.deepcopy(compiled.__wrapped__, memo), compiled.options)

    @property
    def last_traces(self) -> list[Trace]:
        """The stages of the latest compile."""
        return type(self)._tracejit.last_traces

    @property
    def kernels(self) -> list[Kernel]:
        """Those of the latest compile."""
        return type(self)._tracejit.kernels

    @property
    def last_backward_traces(self) -> list[Trace]:
        """The stages of its backward pass."""
        return type(self)._tracejit.last_backward_traces

    @property
    def replayed_because(self) -> str:
        """Why the program runs as recorded, under autograd, or ""."""
        return type(self)._tracejit.replayed_because

    def cache_info(self) -> CacheInfo:
        """Counts since the last `cache_clear`."""
        return type(self)._tracejit.cache_info()

    def cache_clear(self) -> None:
        """Forget all entries and counts."""
        type(self)._tracejit.cache_clear()


def _jit_module(module: torch.nn.Module, options: Options) -> torch.nn.Module:
    compiled = CompiledFunction(module, options)
    kind = type(f"Compiled{type(module).__name__}", (CompiledModule, type(module)),
                {"_tracejit": compiled, "__call__": staticmethod(compiled)})
    wrapped = object.__new__(kind)                             # a class may make something else (FSDPModule)
    object.__setattr__(wrapped, "__dict__", module.__dict__)
    return wrapped


def jit(fn: Optional[Callable] = None, **options: Any) -> Any:
    """Make a PyTorch function or module fast without changing what it means.

    Args:
        fn: a function, method, `functools.partial`, callable object or `nn.Module`. Without it, `jit(**options)` is a
            decorator.
        executors: names or `Executor` objects, asked in order; the torch fallback is always last.
        executor_options: arguments of executors, by name, such as `{"cpu": {"allow_single_op_fusion": True}}`.
        disable_inplace_copy_check: skip the proof that memory accesses keep their order.
        fallback: "warn" (a call that cannot be captured runs eagerly, with one warning per cause), "silent", or
            "error" (it raises `UnsupportedError`).
        numerics: "eager" or "fast".
        recompute: what backward computes again instead of keeping it: "fused" (what costs nothing in a kernel), "never" or
            "always".
        transforms: functions `Trace -> Trace`, applied to the functionalized trace.
        name: the name in traces and messages.

    Returns:
        A callable with `last_traces`, `last_backward_traces`, `cache_info()` and `cache_clear()`; for a module, a module
        that shares everything with it. A program whose gradients cannot be traced is replayed under autograd, call by
        call; `replayed_because` then says why.

    Raises:
        TypeError: an unknown option, or a value that an option cannot have.

    >>> import torch, tracejit
    >>> @tracejit.jit
    ... def f(x):
    ...     x[:2] = 0
    ...     return x * 2
    >>> f(torch.ones(3))
    tensor([0., 0., 2.])
    >>> f.last_traces[-1].count("copy_")
    1
    """
    chosen = make_options(options)
    if fn is None:
        return lambda f: jit(f, **options)
    fn = _compiled(fn).__wrapped__ if isinstance(fn, (CompiledFunction, CompiledModule)) else fn
    if isinstance(fn, torch.nn.Module):
        return _jit_module(fn, chosen)
    if not callable(fn):
        raise TypeError(f"tracejit.jit() needs a callable, got {type(fn).__name__}")
    return CompiledFunction(fn, chosen)


def last_traces(fn: Any) -> list[Trace]:
    """The traces of the latest compile of a jitted function or module, one per stage.

    >>> import torch, tracejit
    >>> f = tracejit.jit(lambda x: x + 1)
    >>> _ = f(torch.ones(2))
    >>> [t.stage for t in tracejit.last_traces(f)][-2:]
    ['decompose', 'partition']
    """
    return fn.last_traces


def _compiled(fn: Callable) -> CompiledFunction:
    """What is called for a jitted function or module; one that is not jitted yet is, with the default options."""
    if isinstance(fn, CompiledModule):
        return type(fn)._tracejit
    return fn if isinstance(fn, CompiledFunction) else _compiled(jit(fn))


def explain(fn: Callable, *args: Any, **kwargs: Any) -> Explanation:
    """Compile `fn(*args, **kwargs)` anew and tell what became of it; calls it once.

    Returns an `Explanation`: `print` it, or show it in a notebook. It lists the kernels with their bytes and times, the
    calls that run one by one and why, the writes to the caller's memory and what caused them, the guards, and advice.

    >>> import torch, tracejit
    >>> def f(x):
    ...     x[0] = 1
    ...     return torch.exp(x) * 2
    >>> tracejit.explain(tracejit.jit(f, executors=["cpu"]), torch.zeros(4, 4)).summary
    '2 kernels, 0 calls one by one, 1 write, 1 compiled entry'
    """
    from .inspection.explain import explanation
    known = _compiled(fn)
    fresh = CompiledFunction(known.__wrapped__, replace(known.options, fallback="error"))
    eager = ""
    try:
        fresh(*args, **kwargs)
    except UnsupportedError as error:
        eager = str(error)
    guards = [line for table in fresh._tables.values() for line in table.describe()]
    executors = [e for e in asked(known.options.executors, known.options.executor_options) if e is not TORCH]
    entries = max(known.cache_info().entries, 1)
    return explanation(known.name, eager, fresh.last_traces, executors, guards, entries, True, fresh.replayed_because)


def bisect(fn: Callable, *args: Any, **kwargs: Any) -> Optional[Difference]:
    """The first fused region of `fn(*args, **kwargs)` that computes something else than the ops it replaces, or None.

    Calls the function once, with every region run both ways and compared by `torch.testing.assert_close`. A difference has
    `kernel`, `position` (which region, from 0) and `what`.

    >>> import torch, tracejit
    >>> tracejit.bisect(lambda x: torch.tanh(x) * 2, torch.randn(64)) is None
    True
    """
    from .inspection.bisect import ComparingExecutor
    options = _compiled(fn).options
    comparing = [ComparingExecutor(e) for e in resolve(options.executors, TORCH, options.executor_options)[:-1]]
    CompiledFunction(_compiled(fn).__wrapped__, replace(options, executors=tuple(comparing), executor_options=None))(*args, **kwargs)
    return min((e.found for e in comparing if e.found is not None), key=lambda d: d.position, default=None)
