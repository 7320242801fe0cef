"""Executors: who runs the calls of a trace. They are asked in order; the torch fallback is always last."""
from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from inspect import signature
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Union

from ..errors import TraceError
from ..ir.symbol import Symbol
from ..ir.trace import BoundSymbol, Trace


class Executor:
    """Runs calls. Subclass it, give it a `name`, and pass an instance to `jit`, or its name once
    `tracejit.register_executor` knows it.

    `can_execute(bsym)` says whether it takes a call. `execute(bsym)` returns the call that runs instead: a BoundSymbol
    with the same output proxies. It may read only the arguments and write only what the call writes.

    One that fuses also has `can_fuse(bsym)`, which says whether a call may be part of a region, and `fuse(region)`, which
    returns the region with `sym.fn` the callable that runs it: it takes the region's args and returns the list of its
    outputs. None: not as one kernel. What a region may hold is told in `tracejit.partition.regions`. `finishing(regions)` is
    entered once all regions of a program are known, and gives a function that returns them ready to run; what takes long
    goes on meanwhile. None: the program is to be partitioned anew, by what `can_fuse` says now.

    >>> import torch, tracejit
    >>> class Watch(tracejit.Executor):
    ...     name, seen = "watch", []
    ...     def can_execute(self, bsym):
    ...         self.seen.append(bsym.sym.name)
    ...         return False                               # torch runs it
    >>> watch = Watch()
    >>> tracejit.jit(lambda x: (x + 1).sum(), executors=[watch])(torch.ones(2))
    tensor(4.)
    >>> watch.seen
    ['aten.add.Tensor', 'aten.sum.default']
    """

    name: str = ""
    allow_single_op_fusion: Optional[bool] = False      # is a region of one call (and its views) worth a kernel? None: `fuse` says
    max_region_ops: int = 400                 # calls of a region, views not counted
    postpones_copies: bool = False            # the last call of a region may be a `copy_` to memory that the region reads elsewhere
    takes_open_sizes: bool = False            # sizes may be extents (`tracejit.ir.extents`), for which a call is not compiled anew
    passes_over_long_rows: bool = False       # a region may reduce few, long rows and need them again

    def available(self) -> bool:
        """Has it what it needs? One that has not is not asked."""
        return True

    def can_execute(self, bsym: BoundSymbol) -> bool:
        """Does it take this call, by itself?"""
        raise NotImplementedError

    def execute(self, bsym: BoundSymbol) -> BoundSymbol:
        """The call that runs instead of one that it took, with the same output proxies."""
        return bsym

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """May this call be part of a region?"""
        return False

    def why_not(self, bsym: BoundSymbol) -> str:
        """Why it fuses no such call, for people; "" when it does."""
        return "" if self.can_fuse(bsym) else f"executor {self.name!r} does not fuse {bsym.sym.name}"

    def fuse(self, region: BoundSymbol) -> Optional[BoundSymbol]:
        """The region with `sym.fn` what runs it, or None: its calls then run one by one."""
        return None

    @contextmanager
    def finishing(self, regions: list[BoundSymbol]) -> Iterator[Callable[[], Optional[list[BoundSymbol]]]]:
        """With a function that returns all regions of a program with the `sym` that runs each; None: form them anew."""
        yield lambda: regions

    def with_numerics(self, numerics: str) -> "Executor":
        """The executor for a `jit` with this option: "eager", or "fast" for one that can gain by other roundings."""
        return self


def fuses(executor: Executor) -> bool:
    """Does it take regions, not only single calls?"""
    return type(executor).can_fuse is not Executor.can_fuse


@contextmanager
def finishing(trace: Trace, executors: Iterable[Executor]) -> Iterator[Callable[[], Optional[Trace]]]:
    """With a function that returns the trace whose regions are ready to run; None when an executor wants other regions."""
    with ExitStack() as stack:
        regions = [(e, [b for b in trace.bound_symbols if b.is_region and b.executor == e.name]) for e in executors]
        asked = [(own, stack.enter_context(e.finishing(own))) for e, own in regions if own]

        def finished() -> Optional[Trace]:
            runs: dict[int, Symbol] = {}
            for own, ready in asked:
                made = ready()
                if made is None:
                    return None
                runs.update((id(b), m.sym) for b, m in zip(own, made, strict=True))
            return trace.replace(bound_symbols=tuple(replace(b, sym=runs[id(b)]) if id(b) in runs else b for b in trace.bound_symbols))
        yield finished


_registered: dict[str, Executor] = {}
_defaults: list[str] = []


def register_executor(executor: Executor, *, default: bool = False) -> Executor:
    """Make an executor known by its name. default: ask it in every `jit` that names no executors,
    before those that are asked there already.

    Returns the executor. TraceError when it has no name, or one that is taken by another class.

    >>> import tracejit
    >>> tracejit.register_executor(tracejit.CpuExecutor()).name
    'cpu'
    """
    if not isinstance(executor, Executor) or not executor.name:
        raise TraceError(f"{executor!r} is not an Executor with a name: "
                         "register an instance of a subclass that has one")
    old = _registered.get(executor.name)
    if old is not None and type(old) is not type(executor):
        raise TraceError(f"the executor name {executor.name!r} is taken by {type(old).__name__}: choose another")
    _registered[executor.name] = executor
    if default and executor.name not in _defaults:
        _defaults.insert(0, executor.name)
    return executor


def get_executor(name: str) -> Executor:
    """The executor of this name; TraceError naming those that exist.

    >>> import tracejit
    >>> tracejit.get_executor("cpu").max_region_ops
    2000
    """
    if name not in _registered:
        raise TraceError(f"no executor is named {name!r}; there are {', '.join(sorted(_registered))}. "
                         "Register others with tracejit.register_executor")
    return _registered[name]


def default_executors() -> tuple[Executor, ...]:
    """Those asked when `jit` names none, in order.

    >>> import tracejit
    >>> [e.name for e in tracejit.default_executors()]
    ['cpu']
    """
    return tuple(_registered[n] for n in _defaults)


def resolve(chosen: Optional[Iterable[Union[str, Executor]]], last: Executor,
            options: Optional[Mapping[str, Mapping[str, Any]]] = None) -> tuple[Executor, ...]:
    """The executors of one `jit` that have what they need, `last` (the torch fallback) at the end."""
    return (*(e for e in asked(chosen, options) if e is not last and e.available()), last)


def asked(chosen: Optional[Iterable[Union[str, Executor]]],
          options: Optional[Mapping[str, Mapping[str, Any]]] = None) -> tuple[Executor, ...]:
    """The executors that are asked for; one with options is another of its class.

    TraceError for what is no executor, and for options of one that is not asked or does not have them.
    """
    if chosen is None:
        found = default_executors()
    else:
        found = tuple(get_executor(e) if isinstance(e, str) else e for e in chosen)
    for e in found:
        if not isinstance(e, Executor):
            raise TraceError(f"{e!r} is not an Executor: pass a registered name or an instance of tracejit.Executor")
    options = options or {}
    unknown = set(options) - {e.name for e in found}
    if unknown:
        raise TraceError(f"executor_options names {min(unknown)!r}, which is not among the executors asked: "
                         f"{', '.join(e.name for e in found)}")
    return tuple(_with_options(e, options[e.name]) if e.name in options else e for e in found)


@lru_cache(64)
def _made(kind: type, options: tuple[tuple[str, Any], ...]) -> Executor:
    """One for all compiles with these options: it knows what it has compiled, and whether there is a compiler."""
    return kind(**dict(options))


def _with_options(executor: Executor, options: Mapping[str, Any]) -> Executor:
    try:
        return _made(type(executor), tuple(sorted(options.items())))
    except TypeError as error:
        raise TraceError(f"executor {executor.name!r}: {error}; it takes {signature(type(executor))}") from None
