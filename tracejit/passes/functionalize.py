"""Functionalization: mutation becomes data flow, and memory that somebody can see is written back by `copy_`.

In: a trace of ATen calls that mutate and view. Out: single-assignment calls, and `copy_` into views of inputs.
Guaranteed: a value name never changes; a memory name (an input or a view of one) is read at its place in the program,
and every copy_ that it must see stands before that place.

Each storage is a store buffer: what memory (or the base value) holds, plus the writes that are pending, oldest first.
    read(view)    forward a pending write of the same bytes, derive a view of it, or flush and go through memory/base
    write(view)   drop the pending writes that it covers (dead stores), append
    flush         visible storage: copy_ into the written view; intermediate: scatter into a new base value
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Optional

import torch

from ..errors import EagerRefuses, UnsupportedError
from ..ir import prims
from ..ir.memory import covers, overlaps
from ..ir.proxy import TensorProxy, is_racy
from ..ir.symbol import Symbol, aten_symbol
from ..ir.trace import BoundSymbol, Trace
from ..ir.trees import flat_leaves, with_leaves
from . import views
from .alias import Aliases, ViewStep
from .builder import Builder

aten = torch.ops.aten
MOST_PENDING = 16            # keeps reads and writes of a store O(1), so the walk stays linear
COPY_, CLONE, CAST, EXPAND, DETACH = (aten_symbol(op) for op in (
    aten.copy_.default, aten.clone.default, aten._to_copy.default, aten.expand.default, aten.detach.default))

UNTOLD_COPY_ = replace(COPY_, fn=prims.copy_untold, untold=True)


@dataclass(frozen=True, eq=False)
class Write:
    """A pending write of `value` into `view`, made by the call `origin`."""

    view: TensorProxy
    value: TensorProxy
    origin: Optional[BoundSymbol]


@dataclass
class Store:
    """One storage. `base` is its value form; without one it is memory, seen through the inputs over it."""

    root: TensorProxy
    visible: bool
    base: Optional[TensorProxy] = None
    pending: list[Write] = field(default_factory=list)


def functionalize(trace: Trace) -> Trace:
    """The pass. Raises EagerRefuses for a write that eager refuses, UnsupportedError for memory of unknown origin."""
    return _Functionalizer(trace).run()


class _Functionalizer:
    def __init__(self, trace: Trace) -> None:
        self.trace, self.aliases = trace, Aliases(trace)
        self.builder = Builder(1 + max([p.storage for b in trace.bound_symbols for p in b.tensor_outputs]
                                       + [p.storage for p in trace.inputs], default=0), trace.notes["modes"])
        self.stores = {p.storage: Store(self.aliases.roots[p.storage], visible=True) for p in trace.inputs}
        self.memory = set(self.stores)                         # storages that are written
        self.views = views.ViewReplay(self.aliases, self.builder)

    def run(self) -> Trace:
        for b in self.trace.bound_symbols:
            self.builder.origin = b
            if b.sym.moves_metadata and b.written:
                self.metadata_move(b)
            elif b.written:
                self.mutation(b)
            elif not any(o in self.aliases.step for o in b.tensor_outputs):
                self.pure(b)
        self.builder.origin = None
        output = self.finish()
        return self.trace.replace(stage="functionalize", bound_symbols=tuple(self.builder.bound_symbols), output=output)

    # ------------------------------------------------------------ the store buffer

    def at_rest(self, p: TensorProxy) -> TensorProxy:
        """`p` through memory (or the base value); pending writes are not looked at."""
        base = self.stores[p.storage].base
        return self.views.replay(self.aliases.top(p) if base is None else base, self.aliases.chain(p))

    def read(self, p: TensorProxy) -> TensorProxy:
        s = self.stores[p.storage]
        for written in reversed(s.pending):
            chain = self.steps_below(p, written.view)
            if chain is not None:
                return self.views.replay(written.value, chain)
            if overlaps(p.bytes, written.view.bytes):
                self.flush(s)
                break
        return self.at_rest(p)

    def steps_below(self, p: TensorProxy, ancestor: TensorProxy) -> Optional[list[ViewStep]]:
        """The view steps from the bytes of `ancestor` to `p`, or None when p is not a view of just those bytes."""
        chain: list[ViewStep] = []
        while not p.same_view(ancestor):
            step = self.aliases.step.get(p)
            if step is None or step.call is None:
                return None
            chain.append(step)
            p = step.parent
        return chain[::-1]

    def write(self, p: TensorProxy, value: TensorProxy) -> None:
        value = self.cast(value, p)
        if not p.numel:
            return
        s = self.stores[p.storage]
        s.pending = [w for w in s.pending if not covers(p.bytes, w.view.bytes)] + [Write(p, value, self.builder.origin)]
        if len(s.pending) > MOST_PENDING:
            self.flush(s)

    def cast(self, value: TensorProxy, p: TensorProxy) -> TensorProxy:
        if value.dtype != p.dtype:
            if not torch.can_cast(value.dtype, p.dtype):
                raise EagerRefuses(f"{value.dtype} cannot be stored in {p.dtype} ({self.where()})")
            value = self.builder.call(CAST, value, dtype=p.dtype)
        if value.shape != p.shape:
            raise EagerRefuses(f"a write of shape {value.shape} into {p.shape} ({self.where()})")
        return value

    def flush(self, s: Store) -> None:
        pending, s.pending = s.pending, []
        reader = self.builder.origin
        for written in pending:
            self.builder.origin = written.origin               # the line that wrote, not the one that reads
            if s.visible:
                target = self.at_rest(written.view)
                told = written.origin is None or not written.origin.sym.untold
                self.builder.bind(COPY_ if told else UNTOLD_COPY_, (target, written.value), {}, target)
            else:
                s.base = self.views.scatter(s.base, s.root, written.view, written.value)
        self.builder.origin = reader

    def to_memory(self, s: Store) -> None:
        """The escape hatch: an intermediate whose mutation cannot be told as values becomes memory of its own."""
        self.flush(s)
        if not s.visible:
            s.base, s.visible = self.views.restride(s.base, s.root, always=True), True
            self.memory.add(s.base.storage)

    def where(self) -> str:
        return str(self.builder.origin.source) if self.builder.origin is not None else ""

    # ------------------------------------------------------------ walking

    def arguments(self, b: BoundSymbol) -> list:
        """Flat arguments as values laid out as recorded."""
        unread = b.sym.unread(b.args, b.kwargs)
        values = [a if not isinstance(a, TensorProxy) else self.views.restride(
            self.at_rest(a) if i in unread else self.read(a), a) for i, a in enumerate(b.flat_args)]
        if b.sym.opaque or b.sym.may_raise([a.dtype for a in b.tensor_args]):
            for s in self.stores.values():                     # what eager had written by then stays written
                if s.visible:
                    self.flush(s)
        return values

    def pure(self, b: BoundSymbol) -> None:
        args, kwargs = b.arguments(self.arguments(b))
        self.builder.bind(b.sym, args, kwargs, b.output)
        self.define(b.flat_outputs)

    def define(self, proxies: list) -> None:
        """Results of a call are values in storages of their own."""
        for p in proxies:
            if isinstance(p, TensorProxy):
                self.stores[p.storage] = Store(p, visible=False, base=p)

    def mutation(self, b: BoundSymbol) -> None:
        flat = b.flat_args
        written = b.sym.written(b.args, b.kwargs)
        if b.sym.opaque or is_racy(flat, written):
            return self.verbatim(b)
        plain = b.sym.functional()
        if any(w.dtype.is_complex for w in b.written):         # its rounding depends on which operands share memory
            return self.verbatim(b)
        if all(self.stores[w.storage].visible for w in b.written) and not (plain and plain.pointwise or b.sym.is_copy):
            return self.verbatim(b)                            # a scatter, a random fill: in place is the least work
        values = self.arguments(b)
        fresh = tuple(k for k, o in enumerate(b.flat_outputs) if isinstance(o, TensorProxy) and o.storage not in self.stores)
        targets = [flat[i] for i in written]
        if b.sym.is_copy:
            return self.write(targets[0], self.copied(values[1], targets[0]))
        results = self.computed(plain, *b.arguments(values)) if plain is not None and not fresh else None
        if results is None:
            results = self.on_copy(b, values, written, fresh)
        for p, v in zip(targets, results):
            self.write(p, v)

    def computed(self, plain: Symbol, args: tuple, kwargs: dict) -> Optional[list]:
        """What the functional form of a writing op returns; None where it cannot be described without data, or torch refuses
        it, as it does some of what the op that writes takes: that one runs then, and raises if it does."""
        if kwargs:
            taken = {a.name for a in plain.overload._schema.arguments}
            kwargs = {k: v for k, v in kwargs.items() if k in taken}
        try:
            return flat_leaves((self.builder.call(plain, *args, **kwargs),))
        except RuntimeError:                                   # of torch, NotImplementedError among them; nothing is recorded yet
            return None

    def copied(self, source: TensorProxy, target: TensorProxy) -> TensorProxy:
        """The value that `copy_` stores: frozen, because a source that is memory may change later."""
        if source.dtype != target.dtype:
            source = self.builder.call(CAST, source, dtype=target.dtype)
        elif self.is_memory(source):
            source = self.builder.call(CLONE, source)
        return source if source.shape == target.shape else self.builder.call(EXPAND, source, list(target.shape))

    def is_memory(self, p: TensorProxy) -> bool:
        return p.storage in self.memory

    def on_copy(self, b: BoundSymbol, values: list, written: tuple, fresh: tuple) -> list:
        """The op on private copies of what it writes."""
        args, kwargs = b.arguments(values)
        recorded = [b.flat_outputs[k] for k in fresh]
        copies = [self.builder.fresh(values[i]) for i in written]
        sym = replace(prims.ON_COPY, random=b.sym.random)
        self.builder.bind(sym, (b.sym.fn, written, fresh, *args), kwargs, [*recorded, *copies])
        self.define(recorded)
        return copies

    def verbatim(self, b: BoundSymbol) -> None:
        """The recorded call as it is, on memory."""
        homes = {w.storage for w in b.written}
        for a in b.tensor_args:
            if a.storage in homes:
                self.to_memory(self.stores[a.storage])
        args, kwargs = b.arguments(self.arguments(b))
        outputs = [o if isinstance(o, TensorProxy) and o.storage not in self.stores else None for o in b.flat_outputs]
        self.builder.bind(b.sym, args, kwargs, with_leaves(b.output, outputs))
        self.define(outputs)

    def metadata_move(self, b: BoundSymbol) -> None:
        """Views of the new metadata are as_strided views of the root; only a storage that grows needs memory."""
        new = b.tensor_outputs[0]
        s = self.stores.get(new.storage)
        if s is None:
            raise UnsupportedError("set_ to a storage from outside", where=self.where())
        if b.sym.packet.startswith("resize") and new.numel and new.bytes.end > self.extent(new.storage):
            self.to_memory(s)
            self.builder.bind(prims.GROW_STORAGE, (self.at_rest(s.root), new.bytes.end), {}, None)

    def extent(self, storage: int) -> int:
        """Bytes that a storage surely has: those under its root and under the inputs over it."""
        over = [p for p in self.trace.inputs if p.storage == storage] + [self.aliases.roots[storage]]
        return max(p.bytes.end for p in over)

    # ------------------------------------------------------------ results

    def finish(self) -> tuple:
        for s in self.stores.values():
            if s.visible:
                self.flush(s)
        wanted = {o: self.aliases.object_of(o) for o in self.trace.output if isinstance(o, TensorProxy)}
        results = {o: p for o, p in wanted.items() if p not in self.aliases.inputs}
        moved = {i: p for i, p in self.aliases.moved.items() if not self.stores[p.storage].visible}
        self.share([*{id(p): o for o, p in results.items()}.values(), *moved.values()])
        claimed: dict[int, int] = {}
        values: dict[TensorProxy, TensorProxy] = {}
        for o, obj in results.items():                         # one result per object: identity among outputs
            if obj not in values:
                values[obj] = self.result(o, claimed)
        sources = {i: self.new_storage(i, p, claimed) for i, p in self.aliases.moved.items()}
        for i, p in self.aliases.moved.items():                # all sources are taken before any input moves
            self.move_input(i, p, sources[i])
        return tuple(o if not isinstance(o, TensorProxy) else values.get(wanted[o], wanted[o])
                     for o in self.trace.output)

    def share(self, results: list[TensorProxy]) -> None:
        """Results over one storage must share memory, and so must the elements of an expanded one: make its base real."""
        homes = [p.storage for p in results]
        expanded = {p.storage for p in results if p.bytes.overlaps_itself}
        for storage in dict.fromkeys(homes):
            s = self.stores[storage]
            if not s.visible and (homes.count(storage) > 1 or storage in expanded):
                self.flush(s)
                s.base = self.views.restride(s.base, s.root)

    def result(self, p: TensorProxy, claimed: dict[int, int]) -> TensorProxy:
        """A result with the recorded layout, sharing memory with nothing that it did not share it with."""
        s = self.stores[p.storage]
        value = self.read(p)
        if s.visible:
            return value
        foreign = claimed.get(value.storage, p.storage) != p.storage or self.is_memory(value)
        inside = value.offset != p.offset or self.builder.extent[value.storage] != s.root.bytes.end
        value = self.views.restride(value, p, always=foreign or inside)
        claimed[value.storage] = p.storage
        return value

    def new_storage(self, i: TensorProxy, p: TensorProxy, claimed: dict[int, int]) -> Optional[TensorProxy]:
        """What input i must be pointed at, or None when it stays in its storage."""
        s = self.stores[p.storage]
        if s is self.stores[i.storage]:
            return None
        if s.visible:
            return self.builder.call(DETACH, self.at_rest(s.root))
        return self.result(p, claimed)

    def move_input(self, i: TensorProxy, p: TensorProxy, source: Optional[TensorProxy]) -> None:
        if source is not None:
            self.builder.bind(prims.SET_TENSOR, (i, source), {}, None)
        stays = source is None or self.stores[p.storage].visible
        if stays and (p.shape, p.stride, p.offset) != (i.shape, i.stride, i.offset) or source is not None and stays:
            self.builder.bind(prims.SET_METADATA, (i, list(p.shape), list(p.stride), p.offset), {}, None)
