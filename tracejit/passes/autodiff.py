"""The split of a joint trace into a forward and a backward trace.

In: a functionalized joint trace: forward calls, `backward_begins`, backward calls. Out: `Halves`. What depends on a tangent is
backward; of the rest, a minimum cut (`remat`) chooses what forward hands over and what backward computes again.
Guaranteed: both traces compute what the joint one does; no call that draws, writes or raises is made twice; memory that the
user can see is handed over only if eager keeps it for backward, too, and then always: a write to it is found in backward.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterable, Mapping, Optional

import torch

from ..errors import UnsupportedError
from ..ir import prims
from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol, Trace
from .alias import Aliases
from .decompose import Names
from .remat import FREELY, is_view, may_run_again, minimum_cut


@dataclass(frozen=True, eq=False)
class Half:
    """A backward trace: `kept` (positions in `Halves.kept`) and `tangents` (positions) -> gradients of `targets` (positions);
    `checked` (positions in `Halves.checked`): what else must not have been written; `readers`: for each of those kept, then
    checked, the tangents that need it unwritten."""

    trace: Trace
    kept: tuple[int, ...]
    checked: tuple[int, ...]
    tangents: tuple[int, ...]
    targets: tuple[int, ...]
    readers: tuple[frozenset[int], ...]


@dataclass(frozen=True, eq=False)
class Halves:
    """forward: inputs -> results, then `kept`, then `checked`; backward: one trace for each stage, by stage.

    kept: what backward reads, by its name there; checked: visible tensors that a backward trace does not read, of which eager
    would find out in it that they have been written.
    """

    forward: Trace
    backward: dict[int, Half]
    kept: tuple[TensorProxy, ...]
    checked: tuple[TensorProxy, ...]


def below_autograd(trace: Trace) -> Trace:
    """The modes under which the calls were recorded mean nothing any more: autograd and autocast have done their work."""
    modes = trace.notes["modes"]
    below = {again: modes._replace(again=again) for again in (False, True)}
    return trace.replace(bound_symbols=tuple([b if b.modes == modes else replace(b, modes=below[b.modes.again]) for b in trace.bound_symbols]))


class Mixed(UnsupportedError):
    """A backward call depends on tangents of several stages."""


def split(trace: Trace, results: int, tangents: tuple[TensorProxy, ...], saved: Mapping[int, frozenset[int]], recompute: str = "fused",
          stages: tuple[int, ...] = (), summands: tuple[int, ...] = (), keep: Optional[tuple[TensorProxy, ...]] = None) -> Halves:
    """
    Args:
        results: how many outputs are the forward pass's.
        saved: the visible storages of which eager keeps a tensor for backward, and for which tangents.
        recompute: what may be computed again ("fused", "never", "always").
        stages: the stage of each tangent; a backward trace is made for each, by default one for all.
        summands: how many gradients autograd adds up for each output after the forward pass's: it goes on to do so, in the
            order in which it would, beside what others add to them.
        keep: what forward hands over, if that has been chosen before.

    Raises:
        UnsupportedError: backward writes memory of the forward pass, or needs a value that nothing can hand over; `Mixed`.
    """
    return _Splitter(trace, results, tangents, saved, recompute, stages or (0,) * len(tangents), summands).run(keep)


def refuse_several_views(recorded: Trace, results: tuple[int, ...]) -> None:
    """UnsupportedError for a result that is a view of those made by one call, though it be one: autograd refuses writes to it."""
    aliases = Aliases(recorded)
    for k in results:
        for step in aliases.chain(recorded.output[k]):
            if step.call is not None and isinstance(step.call.output, (list, tuple)):
                raise UnsupportedError(f"a result is one of the views that {step.call.sym.name} makes: return a copy, as .clone() makes one",
                                       where=str(step.call.source))


class _Splitter:
    def __init__(self, trace: Trace, results: int, tangents: tuple, saved: Mapping[int, frozenset[int]], recompute: str,
                 stages: tuple, summands: tuple) -> None:
        self.trace, self.results, self.tangents = trace, results, tangents
        self.saved, self.recompute, self.stages, self.summands = saved, recompute, stages, summands
        calls = trace.bound_symbols
        self.begins = next(n for n, b in enumerate(calls) if b.sym is prims.BACKWARD_BEGINS)
        self.place = {id(b): n for n, b in enumerate(calls)}
        self.makers = {o: b for b in calls for o in b.tensor_outputs if o not in b.tensor_args}
        self.inputs = [p for p in trace.inputs if p not in tangents]
        self.visible = {p.storage for p in (*self.inputs, *self.forward_results)}
        self.last_write: dict[int, int] = {}
        for n, b in enumerate(calls):
            self.last_write.update((w.storage, n) for w in b.written)
        self.refuse_late_writes()

    @property
    def forward_results(self) -> list[TensorProxy]:
        return [o for o in self.trace.output[:self.results] if isinstance(o, TensorProxy)]

    def refuse_late_writes(self) -> None:
        """Backward may run again, or never: it must leave the forward pass's memory alone."""
        own = {p.storage for p in self.tangents} | {
            o.storage for b in self.trace.bound_symbols[self.begins:] for o in b.tensor_outputs}
        early = {o.storage for b in self.trace.bound_symbols[:self.begins] for o in b.tensor_outputs} | self.visible
        for b in self.trace.bound_symbols[self.begins:]:
            if any(w.storage in early or w.storage not in own for w in b.written):
                raise UnsupportedError("the backward pass writes memory of the forward pass: write to a copy", where=str(b.source))

    # ------------------------------------------------------------ backward

    def run(self, keep: Optional[tuple[TensorProxy, ...]]) -> Halves:
        self.depends = self.dependence()
        parts = {stage: self.backward_calls(stage, outputs) for stage, outputs in self.outputs_by_stage().items()}
        needed = {stage: self.early_reads(calls, outputs) for stage, (calls, outputs) in parts.items()}
        every = list(dict.fromkeys(p for reads in needed.values() for p in reads))
        kept = self.choose(every) if keep is None else self.chosen(every, keep)
        orders = {stage: self.when_needed(self.recomputed(needed[stage], kept), calls) for stage, (calls, _) in parts.items()}
        if keep is None:
            read = {p for stage, (_, outputs) in parts.items() for p in self.read_by(orders[stage], outputs)}
            keep = tuple(p for p in sorted(kept, key=lambda p: p.name) if p in read)
        else:
            found = {p.name: p for p in kept}
            keep = tuple(found.get(p.name, p) for p in keep)
        return self.halves(parts, orders, keep)

    def dependence(self) -> dict[TensorProxy, frozenset[int]]:
        """The stages on whose tangents a value depends. A call with an effect belongs to the stage that runs first."""
        depends = {t: frozenset((stage,)) for t, stage in zip(self.tangents, self.stages)}
        first = frozenset((max(self.stages),))
        for b in self.trace.bound_symbols[self.begins + 1:]:
            found = frozenset().union(*(depends.get(a, ()) for a in b.tensor_args)) or (first if b.has_effect else frozenset())
            depends.update((o, found) for o in b.tensor_outputs if found and o not in depends)
        return depends

    def outputs_by_stage(self) -> dict[int, list[tuple[int, TensorProxy]]]:
        """(target, gradient) pairs of each stage, none where no gradient reaches anything; a target may stand there several times."""
        found: dict[int, list[tuple[int, TensorProxy]]] = {stage: [] for stage in sorted(set(self.stages), reverse=True)}
        counts = self.summands or (1,) * len(self.trace.output[self.results:])
        for target, (g, count) in enumerate(zip(self.trace.output[self.results:], counts)):
            for part in self.parts_of(g, count) if isinstance(g, TensorProxy) else ():
                stages = self.depends.get(part, frozenset())
                stages = stages or frozenset(self.stages)      # zeros that depend on no tangent, as of `eq_`: of which is not told
                if len(stages) > 1:
                    raise Mixed("a gradient mixes results that are computed from each other")
                found[min(stages)].append((target, part))
        return found

    def parts_of(self, g: TensorProxy, count: int) -> list[TensorProxy]:
        """What autograd added up, one after another."""
        maker = self.makers.get(g)
        if count < 2 or maker is None or maker.sym.overload is not torch.ops.aten.add.Tensor or maker.kwargs:
            return [g]
        if len(maker.tensor_args) != 2 or any((p.shape, p.dtype) != (g.shape, g.dtype) for p in maker.tensor_args):
            return [g]
        before, last = maker.tensor_args
        return [*self.parts_of(before, count - 1), last]

    def early_reads(self, calls: list[BoundSymbol], outputs: list[tuple[int, TensorProxy]]) -> list[TensorProxy]:
        reads = (*(p for b in calls for p in b.tensor_args), *(g for _, g in outputs))
        return [p for p in dict.fromkeys(reads) if self.is_early(p)]

    def is_early(self, p: TensorProxy) -> bool:
        """Made by the forward pass, or an input of it."""
        maker = self.makers.get(p)
        return p not in self.tangents and (maker is None or self.place[id(maker)] < self.begins)

    def backward_calls(self, stage: int, outputs: list) -> tuple[list[BoundSymbol], list]:
        """The calls after the marker that gradients depend on, and those with an effect."""
        live = {g for _, g in outputs}
        kept = []
        for b in reversed(self.trace.bound_symbols[self.begins + 1:]):
            stages = frozenset().union(*(self.depends.get(p, ()) for p in (*b.tensor_args, *b.tensor_outputs)))
            own = b.has_effect and (stages == {stage} or not stages and stage == max(self.stages))
            if own or any(o in live for o in b.tensor_outputs):
                if stages - {stage}:
                    raise Mixed(f"{b.sym.name} mixes results that are computed from each other", where=str(b.source))
                live.update(b.tensor_args)
                kept.append(b)
        return kept[::-1], outputs

    def read_by(self, calls: list[BoundSymbol], outputs: list) -> set[TensorProxy]:
        return {a for b in calls for a in b.tensor_args} | {g for _, g in outputs}

    def runs_again(self, b: BoundSymbol) -> bool:
        """Also, no memory that it reads may have changed since."""
        return may_run_again(b, self.recompute) and (is_view(b) or all(
            self.last_write.get(a.storage, -1) < self.place[id(b)] for a in b.tensor_args))

    def choose(self, needed: list[TensorProxy]) -> set[TensorProxy]:
        kept, price = minimum_cut(needed, self.makers, self.price, self.runs_again)
        if price >= FREELY:
            raise UnsupportedError("backward needs a value that can be neither kept nor computed again")
        return kept

    def price(self, p: TensorProxy) -> int:
        """Bytes that keeping `p` costs. Memory that the user sees is free if eager keeps it, else it takes a copy."""
        if p.storage in self.visible:
            if p.storage in self.saved:
                return 0
            alone = sum(q.storage == p.storage for q in {*self.inputs, *self.forward_results}) == 1
            if p.offset or not alone or p in self.makers and is_view(self.makers[p]):
                return FREELY
        return max(1, p.bytes.end - p.bytes.offset)

    def chosen(self, needed: list[TensorProxy], keep: tuple[TensorProxy, ...]) -> set[TensorProxy]:
        """What was chosen before; whatever else is needed has to follow from it."""
        every = {p.name: p for p in (*self.inputs, *(o for b in self.trace.bound_symbols for o in b.tensor_outputs))}
        kept = {every[p.name] for p in keep if p.name in every}
        reached, todo = set(), list(needed)
        while todo:
            p = todo.pop()
            if p in reached or p in kept:
                continue
            reached.add(p)
            maker = self.makers.get(p)
            if maker is None or not self.runs_again(maker):
                raise UnsupportedError(f"{p.name} was not kept for backward")
            todo += maker.tensor_args
        return kept

    def recomputed(self, needed: list[TensorProxy], kept: set[TensorProxy]) -> list[BoundSymbol]:
        """The forward calls that backward makes again, down from what is kept."""
        calls: dict[int, BoundSymbol] = {}
        todo = [p for p in needed if p not in kept]
        while todo:
            b = self.makers[todo.pop()]
            if id(b) not in calls:
                calls[id(b)] = b
                todo += [a for a in b.tensor_args if a not in kept]
        return list(calls.values())

    def when_needed(self, again: list[BoundSymbol], calls: list[BoundSymbol]) -> list[BoundSymbol]:
        """`calls`, and before each what it needs of `again`: what is computed sooner takes memory until then."""
        makers = {o: b for b in again for o in b.tensor_outputs}
        order: list[BoundSymbol] = []
        left = {id(b): b for b in again}
        for b in calls:
            todo, found = list(b.tensor_args), []
            while todo:
                maker = makers.get(todo.pop())
                if maker is not None and left.pop(id(maker), None) is not None:
                    found.append(maker)
                    todo += maker.tensor_args
            order += [*sorted(found, key=lambda b: self.place[id(b)]), b]
        return order + sorted(left.values(), key=lambda b: self.place[id(b)])          # gradients themselves

    # ------------------------------------------------------------ the two traces

    def halves(self, parts: dict, orders: dict[int, list[BoundSymbol]], kept: tuple[TensorProxy, ...]) -> Halves:
        read = {stage: self.read_by(orders[stage], outputs) for stage, (_, outputs) in parts.items()}
        checked = self.checked({stage: {p.storage for p in kept if p in read[stage]} for stage in parts})
        names, copies = Names(self.trace), []
        handed = [self.copied(p, names, copies) if p.storage in self.visible and p.storage not in self.saved and not p.number else p for p in kept]
        output = (*self.trace.output[:self.results], *handed, *checked)
        calls = (*self.forward_calls({*self.forward_results, *kept, *checked}), *copies)
        forward = Trace("forward", tuple(self.inputs), calls, output, self.trace.name, previous=self.trace.stage,
                        notes=self.trace.notes)
        backward = {stage: self.half(stage, orders[stage], outputs, kept, checked) for stage, (_, outputs) in parts.items()}
        return Halves(below_autograd(forward), backward, kept, tuple(checked))

    def half(self, stage: int, order: list[BoundSymbol], outputs: list[tuple[int, TensorProxy]], kept: tuple, checked: dict) -> Half:
        read = self.read_by(order, outputs)
        used = tuple(n for n, p in enumerate(kept) if p in read)
        tangents = tuple(n for n, s in enumerate(self.stages) if s == stage)
        trace = Trace("backward", (*(kept[n] for n in used), *(self.tangents[n] for n in tangents)), tuple(order),
                      tuple(g for _, g in outputs), f"{self.trace.name}_backward", previous=self.trace.stage, notes=self.trace.notes)
        unread = tuple(n for n, stages in enumerate(checked.values()) if stage in stages)
        readers = tuple(self.saved.get(p.storage, frozenset(tangents)) for p in (*(kept[n] for n in used), *(list(checked)[n] for n in unread)))
        return Half(below_autograd(trace), used, unread, tangents, tuple(target for target, _ in outputs), readers)

    def copied(self, p: TensorProxy, names: Names, copies: list[BoundSymbol]) -> TensorProxy:
        """A private copy of memory that the user may write."""
        own = replace(p, name=names.name(), storage=names.new_storage(), offset=0, requires_grad=False)
        copies.append(BoundSymbol(prims.EXACT_COPY, (p,), {}, own, modes=self.trace.notes["modes"]))
        return own

    def forward_calls(self, live: set[TensorProxy]) -> Iterable[BoundSymbol]:
        kept = []
        for n, b in reversed(list(enumerate(self.trace.bound_symbols))):
            if n != self.begins and (n < self.begins and b.has_effect or any(o in live for o in b.tensor_outputs)):
                live.update(b.tensor_args)
                kept.append(b)
        return kept[::-1]

    def checked(self, held: dict[int, set[int]]) -> dict[TensorProxy, list[int]]:
        """One tensor of each visible storage that eager keeps for a stage, and the stages that do not hold it."""
        tensors: dict[int, TensorProxy] = {}
        for p in (*self.forward_results, *self.inputs):
            tensors.setdefault(p.storage, p)
        found = {p: [s for s, storages in held.items() if storage not in storages and any(self.stages[n] == s for n in self.saved.get(storage, ()))]
                 for storage, p in tensors.items()}
        return {p: stages for p, stages in found.items() if stages}

