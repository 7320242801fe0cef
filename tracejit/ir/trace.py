"""Trace and BoundSymbol: a program as a flat list of calls, each stage a new one.

    trace    ::= inputs  bound_symbol*  output
    bound_symbol ::= output = symbol(*args, **kwargs)     # with subsymbols: what it is made of
    output, args, kwargs: pytrees of TensorProxy, TensorConstant and Python constants

A name is bound once. A *value* name never changes; a *memory* name (an input, or a view of one) is read at its
place in the program.
"""
from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional

from .cached import cached_property
from .proxy import TensorProxy
from .symbol import Symbol
from .trees import flat_leaves, map_leaves, with_leaves


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's program."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{_cell(self.file) or self.file}:{self.line}" if self.file else ""

    @property
    def short(self) -> str:
        return f"{_cell(self.file) or self.file.rsplit('/', 1)[-1]}:{self.line}" if self.file else ""


def _cell(file: str) -> str:
    """`In[3]` for what IPython compiled the third cell as, "" for other files."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_shell() if get_shell is not None else None
    known = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)(file)     # (kind, name), of later releases
    return known[1] if known else ""


NOWHERE = SourceLine("", 0)


class Modes(NamedTuple):
    """Thread-wide modes that change what a call means."""

    grad: bool = True
    inference: bool = False
    autocast: Optional[tuple] = None     # (device type, dtype, cache enabled) when on
    again: bool = False                  # in a function that checkpoint runs again: what was computed before is not kept for it


@dataclass(frozen=True, eq=False)
class BoundSymbol:
    """One call: `output = sym(*args, **kwargs)`, of tensor proxies and Python constants.

    sym: the operation; `sym.name` is its full name, `sym.packet` that without namespace and overload. source: the user's line.
    subsymbols: what it is made of; executor: who runs it, "" before one took it. A proxy has `name`, `shape`, `stride`,
    `dtype`, `device` and `offset` (in elements), and `storage`, a number that is equal for tensors that share memory.

    >>> import torch, tracejit
    >>> f = tracejit.jit(lambda x: x.add_(1) * 2)
    >>> _ = f(torch.ones(2, 3))
    >>> add, mul = f.last_traces[1].bound_symbols
    >>> add.sym.name, add.args, add.written == [add.args[0]], mul.output.shape
    ('aten.add_.Tensor', (x: f32[2, 3], 1), True, (2, 3))
    """

    sym: Symbol
    args: tuple
    kwargs: dict
    output: Any
    source: SourceLine = NOWHERE
    subsymbols: tuple["BoundSymbol", ...] = ()
    modes: Modes = Modes()
    executor: str = ""
    comment: str = ""                    # what the user called, beside the op that it became

    @cached_property
    def flat_args(self) -> list:
        """The leaves of `args` and `kwargs`, in order."""
        return flat_leaves((*self.args, *self.kwargs.values()))

    def arguments(self, leaves: Iterable) -> tuple[tuple, dict]:
        """`args` and `kwargs` with other leaves, in the order of `flat_args`."""
        return with_leaves((self.args, self.kwargs), leaves)

    def renamed(self, rename: Callable[[Any], Any]) -> "BoundSymbol":
        """The call on what `rename` makes of each leaf of its arguments and results."""
        return replace(self, args=map_leaves(rename, self.args), kwargs=map_leaves(rename, self.kwargs),
                       output=map_leaves(rename, self.output))

    @cached_property
    def tensor_args(self) -> list[TensorProxy]:
        """The tensors among the arguments, in order, as often as they are given."""
        return [a for a in self.flat_args if isinstance(a, TensorProxy)]

    @cached_property
    def flat_outputs(self) -> list:
        """The leaves of `output`, in order."""
        return flat_leaves((self.output,))

    @cached_property
    def tensor_outputs(self) -> list[TensorProxy]:
        """The tensors among them."""
        return [o for o in self.flat_outputs if isinstance(o, TensorProxy)]

    @cached_property
    def written(self) -> list[TensorProxy]:
        """The arguments that this call writes (those of its subsymbols for a fusion region)."""
        if self.is_region:
            return [w for sub in self.subsymbols for w in sub.written]
        flat = self.flat_args
        return [flat[i] for i in self.sym.written(self.args, self.kwargs) if isinstance(flat[i], TensorProxy)]

    @cached_property
    def told(self) -> list[TensorProxy]:
        """Of these, those that autograd is told of: their versions go up."""
        if self.is_region:
            return [w for sub in self.subsymbols for w in sub.told]
        flat = self.flat_args
        return [flat[i] for i in self.sym.written(self.args, self.kwargs, told=True) if isinstance(flat[i], TensorProxy)]

    @cached_property
    def has_effect(self) -> bool:
        """Writes memory, advances a generator, may raise on values, or may do anything."""
        return bool(self.written) or self.sym.random or self.sym.opaque or self.sym.may_raise([a.dtype for a in self.tensor_args])

    @cached_property
    def is_view(self) -> bool:
        """Only names bytes of its arguments anew."""
        if self.has_effect or not self.tensor_outputs:
            return False
        storages = {a.storage for a in self.tensor_args}
        return all(o.storage in storages for o in self.tensor_outputs)

    @cached_property
    def reads(self) -> list[TensorProxy]:
        """The arguments whose memory it reads: not those it only views, nor the destination of a copy_."""
        if self.sym.is_copy:
            return [a for a in self.flat_args[1:] if isinstance(a, TensorProxy)]
        unread = self.sym.unread(self.args, self.kwargs)
        return [] if self.is_view else [a for i, a in enumerate(self.flat_args) if isinstance(a, TensorProxy) and i not in unread]

    @property
    def is_region(self) -> bool:
        """A fusion region: its subsymbols are what it runs."""
        return bool(self.subsymbols) and bool(self.executor)

    def __str__(self) -> str:
        from .printer import bound_symbol_text
        return bound_symbol_text(self)


@dataclass(frozen=True, eq=False)
class Trace:
    """A program at one stage. `output` is flat: the leaves of the result, then the values written to Python state.

    stage: what made it; previous: the stage that it was made from; seconds: how long that took. `str` is Python that runs.

    >>> import torch, tracejit
    >>> f = tracejit.jit(lambda x: x[0].add_(1), name="f")
    >>> _ = f(torch.ones(2, 3))
    >>> [t.stage for t in f.last_traces][:4]
    ['calls', 'ops', 'unroll', 'functionalize']
    >>> last = f.last_traces[-1]
    >>> last.stage, last.count("copy_"), [p.name for p in last.inputs]
    ('partition', 1, ['x'])
    """

    stage: str
    inputs: tuple[TensorProxy, ...]
    bound_symbols: tuple[BoundSymbol, ...]
    output: tuple
    name: str = "program"
    seconds: float = 0.0                 # how long the stage that made it took
    previous: str = ""                   # the stage that it was made from
    notes: dict = field(default_factory=dict)

    def replace(self, **changes: Any) -> "Trace":
        """The trace with other fields: traces are frozen."""
        return replace(self, **changes)

    @cached_property
    def tensor_results(self) -> list[TensorProxy]:
        """The tensors among `output`."""
        return [o for o in self.output if isinstance(o, TensorProxy)]

    @property
    def regions(self) -> list[BoundSymbol]:
        """The fusion regions, in order."""
        return [b for b in self.bound_symbols if b.is_region]

    @cached_property
    def written_storages(self) -> frozenset[int]:
        """Storages that some call writes: the only ones whose accesses have an order."""
        return frozenset(w.storage for b in self.bound_symbols for w in b.written)

    @cached_property
    def told_storages(self) -> frozenset[int]:
        """Of these, those of whose writes autograd is told."""
        return frozenset(w.storage for b in self.bound_symbols for w in b.told)

    def count(self, name: str) -> int:
        """How many calls of an op, such as "copy_", there are, inside fusion regions too."""
        return sum(name in (b.sym.packet, b.sym.name) for b in walk(self.bound_symbols))

    def diff(self, other: "Trace") -> Any:
        """What `other` has that this trace has not, and the reverse: a `TraceDiff`, shown coloured in a notebook."""
        from ..inspection.diff import TraceDiff
        return TraceDiff(self, other)

    def graph(self) -> Any:
        """Calls, data and memory edges, regions as boxes: a `TraceGraph`, drawn in a notebook."""
        from ..inspection.graph import TraceGraph
        return TraceGraph(self)

    def _repr_html_(self) -> str:
        from ..inspection.html import trace_html
        return trace_html(self)

    def facts(self) -> Iterator[str]:
        """What it was made from, and how much is in it."""
        if self.previous:
            yield f"from {self.previous}"
        yield f"{len(self.bound_symbols)} calls"
        if self.regions:
            yield f"{len(self.regions)} regions"
        copies = self.count("copy_")
        if copies:
            yield f"{copies} copy_"

    def __str__(self) -> str:
        from .printer import trace_text
        return trace_text(self)

    def __repr__(self) -> str:
        return f"<trace {self.stage} of {self.name}: {', '.join(self.facts())}>"


def walk(bound_symbols: tuple[BoundSymbol, ...]) -> Iterator[BoundSymbol]:
    """Every bound symbol, the subsymbols of each right after it."""
    for b in bound_symbols:
        yield b
        yield from walk(b.subsymbols)
