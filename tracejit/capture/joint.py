"""The joint recording: a recorded forward pass goes on with its backward pass.

In: the recording of a call on fakes whose results carry autograd history. Out: `Joint`: one trace of the calls of both,
with a tangent for every differentiable result, and how to record the backward pass again for other tangents.
Guaranteed: NoSplit says why a program cannot be told as such a trace; it is then replayed call by call.
"""
from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from ..errors import TraceError, UnsupportedError
from ..ir import prims
from ..ir.proxy import TensorProxy
from ..ir.symbol import SCHEMAS_THAT_LIE
from ..ir.trace import NOWHERE, BoundSymbol, Trace
from ..torch_private import run_backward
from .fakes import NEEDS_DATA
from .histories import (UNTOLD, Start, checked_by, computed_from, edge_of, groups, history, kept_as_made, leads_to, led_to, nodes, reached, sharing, stage_numbers,
                        summand_counts)
from .lines import made_at, stored_at, user_frame
from .recorder import Recorder
from .result_views import ResultView, led_through, result_views


class NoSplit(TraceError):
    """Why the program has no forward and backward trace of its own."""

    @classmethod
    def of(cls, error: Exception) -> "NoSplit":
        """The same message and line."""
        made = cls(str(error))
        made.place(user_frame(error))
        return made


# (stride) of a tangent, or None for a result that no gradient reached
Layout = Optional[tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Joint:
    """`ops`: inputs, then tangents -> results, then a gradient (None: not reached) for each of `targets`.

    results: how many outputs the forward pass has; differentiable: which of them carry gradients, one tangent each;
    stages: for each of those, when its part of the history is made: after what it is computed from, through which autograd reaches it;
    inner: which of them others are computed from; retained: which keep their gradients; rebased: which of them are inputs, and
    which one, that the program writes with history; severed: the inputs among them whose history goes on without the one they came
    with; targets: what gradients are of: an input k, as it came, or the differentiable result n as -1 - n; summands: how many
    gradients autograd adds up for each; read: the storages that the backward calls look at, and for which tangents.
    """

    ops: Trace
    results: int
    differentiable: tuple[int, ...]
    stages: tuple[int, ...]
    inner: tuple[int, ...]
    retained: tuple[int, ...]
    rebased: dict[int, int]
    severed: frozenset[int]
    targets: tuple[int, ...]
    summands: tuple[int, ...]
    read: dict[int, frozenset[int]]
    recording: "Recording"

    def again(self, layouts: tuple[Layout, ...]) -> "Joint":
        """The joint recording for other tangents."""
        return self.recording.joint(layouts, staged=self.stages == self.recording.stages)

    @property
    def tangents(self) -> tuple[TensorProxy, ...]:
        return self.ops.inputs[len(self.ops.inputs) - len(self.differentiable):]

    def saved(self, functional: Trace) -> dict[int, frozenset[int]]:
        """The visible storages, as the functionalized trace names them, of which eager keeps a tensor for backward, and for
        which tangents."""
        both = zip(functional.output[:self.results], self.ops.output)
        results = {o.storage: self.read[recorded.storage] for o, recorded in both
                   if isinstance(o, TensorProxy) and recorded.storage in self.read}
        return results | {p.storage: self.read[p.storage] for p in self.ops.inputs if p.storage in self.read}


# Derivatives that choose their formula by the values, or by whether tensors are subclasses, as fakes are.
_CHOOSES_BY_VALUE = ("ProdBackward", "CumprodBackward", "LinalgEigBackward", "LinalgEighBackward", "LinalgSvdBackward")


class Recording:
    """A finished forward recording: what it takes to record the backward pass, as often as asked."""

    def __init__(self, recorder: Recorder, forward: Trace, outputs: list, inputs: list[torch.Tensor], starts: list[Start],
                 unique: Callable, asked_at: dict[int, str]) -> None:
        """`outputs`: the results as fakes and plain values; `inputs`: a fake for each input of `forward`, and how it came. Those
        whose history the program changes are results, too, after the others. asked_at: id(fake) -> the line of its hook, of
        `retain_grad` or `detach_`.

        sharing: for each differentiable result those, itself among them, whose backward pass uses up what its own needs;
        led_to: for each the inputs to which its history leads; held:
        the targets (an input k, or the result n as -1 - n) that eager keeps as they were made for its backward pass; views: the
        results that autograd makes of what they view, after all others; inner_views: those among the differentiable results of
        which it makes them in between, as others are computed from them; viewed: the written inputs whose earlier views are used
        after the write.
        """
        self.recorder, self.inputs, self.starts, self.asked_at = copy.copy(recorder), tuple(inputs), starts, asked_at
        places = {len(outputs) + n: k for n, k in enumerate(_rebased(forward, inputs, starts, asked_at))}
        self.forward = forward = forward.replace(output=(*forward.output, *(forward.inputs[k] for k in places.values())))
        self.outputs = (*outputs, *(inputs[k] for k in places.values()))
        every = (*_differentiable(outputs, self.inputs), *places)
        untold = [self.line(k) for k in every if history(self.outputs[k]) is UNTOLD]
        if untold or any(history(t) is UNTOLD for t in self.inputs):
            raise NoSplit("a view made under no_grad of memory that was written since is an argument or a result: detach it",
                          where="".join(untold[:1]))
        views = {v.positions[0]: v for v in result_views(forward, self.outputs, every)}
        _refuse_outdated(tuple(views.values()), forward, set(places.values()))
        inner = led_through(self.outputs, every, views)
        self.views = tuple(v for k, v in views.items() if k not in inner)
        self.differentiable = tuple(k for k in every if k not in views or k in inner)
        self.inner_views = {n: views[k] for n, k in enumerate(self.differentiable) if k in views}
        self.rebased = {n: places[k] for n, k in enumerate(self.differentiable) if k in places}
        self.viewed = frozenset(k for k in places.values() if id(inputs[k]) in recorder.remade.under)
        self.severed = frozenset(k for k in places.values() if starts[k].edge and not leads_to(inputs[k].grad_fn, starts[k].edge))
        self.wanted = tuple(k for k, start in enumerate(starts) if start.requires_grad)
        self.names = [unique(f"tangent_{k}") for k in range(len(self.differentiable))]
        results = [self.outputs[k] for k in self.differentiable]
        self.before = computed_from(results)
        self.inner = tuple(sorted(set().union(*self.before)))
        histories = reached(results, [self.came(k) for k in self.wanted])
        self.stages = stage_numbers(self.before, groups(histories))
        _refuse_views_beside_others(self)
        self.sharing = sharing(histories)
        self.led_to = led_to(histories, {k: self.came(k) for k in self.wanted})
        self.checked = [self.minded_by(history, k) for history, k in zip(histories, self.differentiable)]
        ends = {edge_of(results[n]): -1 - n for n in self.inner}
        ends |= {edge_of(inputs[k]): k for k in self.wanted if not inputs[k].is_leaf and k not in self.rebased.values()}
        self.held = tuple(kept_as_made(ends, nodes) for nodes in histories)
        self.retained = tuple(n for n, r in enumerate(results) if r.retains_grad)
        self.summands = summand_counts(results, {k: self.came(k) for k in self.wanted} | {-1 - n: results[n] for n in self.inner})
        self.recorder.on_new_input = _refuse_real_tensor
        self.recorder.source = lambda: NOWHERE

    def line(self, k: int) -> str:
        """Of the call that makes output k."""
        return made_at(self.forward.bound_symbols, self.forward.output[k])

    def minded_by(self, history: set, k: int) -> set[Optional[int]]:
        """The storages that the backward pass of output k unpacks."""
        try:
            return {self.recorder.storage_of(t) for node in history for t in checked_by(node)}
        except RuntimeError as error:
            raise NoSplit(f"the backward pass raises {type(error).__name__}: {error}", where=self.line(k)) from error

    def came(self, k: int) -> Any:
        """What the gradient of input k is asked of: one that the program writes with history is a result, too."""
        return self.starts[k].edge if k in self.rebased.values() else self.inputs[k]

    def joint(self, layouts: Optional[tuple[Layout, ...]] = None, run: Optional[Callable] = None, staged: bool = True) -> Joint:
        """Record the backward pass for tangents laid out like this; by default like the results.

        run: calls the backward pass under the recorder given, with more than the recorder on. staged: a result that others
        are computed from gets a gradient of its own, and what is before it follows from its tangent alone.
        """
        if not staged:
            self.refuse_mixed()
        recorder, forward = self.private_recorder(), self.forward
        tangents = self.tangents(layouts)
        proxies = [self.proxy(recorder, t, n) for n, t in enumerate(tangents)]
        first = len(recorder.bound_symbols)
        found = self.run(recorder, tangents, staged, run or _under_recorder)
        gradients = {target: recorder.proxy(g) if g is not None else None for target, g in found.items()}
        if layouts is None:                                    # autograd must not be led to inputs that nothing reaches
            gradients = {target: g for target, g in gradients.items() if g is not None}
            self.wanted = tuple(target for target in gradients if target >= 0)
        if not self.wanted:
            raise NoSplit("no gradient reaches an argument: detach the results")
        calls = recorder.bound_symbols[first:]
        marker = BoundSymbol(prims.BACKWARD_BEGINS, (), {}, None)
        ops = forward.replace(inputs=(*forward.inputs, *proxies), bound_symbols=(*forward.bound_symbols, marker, *calls),
                              output=(*forward.output, *gradients.values()))
        uncounted = {w.storage for b in forward.bound_symbols if b.sym.overload in SCHEMAS_THAT_LIE for w in b.written}
        stages = self.stages if staged else (0,) * len(self.stages)
        read = self.minded(_read_by_tangent(calls, proxies, stages), staged)
        read = {storage: found for storage, found in read.items() if storage not in uncounted}     # eager does not find such writes
        summands = tuple(self.summands.get(target, 1) for target in gradients)
        return Joint(ops, len(forward.output), self.differentiable, stages, self.inner, self.retained, self.rebased, self.severed,
                     tuple(gradients), summands, read, self)

    def minded(self, read: dict[int, frozenset[int]], staged: bool) -> dict[int, frozenset[int]]:
        """`read`, and what eager keeps though its formula does not read it."""
        for n, before in enumerate(self.before):
            for storage in self.checked[n].union(*(() if staged else (self.checked[m] for m in before))):
                read[storage] = read.get(storage, frozenset()) | {n}
        return read

    def refuse_mixed(self) -> None:
        """NoSplit where one backward pass for all results does not do, as two of them are computed from one value and from each other."""
        for n in self.retained:
            if n in self.inner:
                raise NoSplit("the gradient of a result that others are computed from is retained: retain it of what the call gives",
                              where=self.asked_at.get(id(self.outputs[self.differentiable[n]]), ""))
        for n, k in self.rebased.items():
            raise NoSplit("an argument is written with history, and results are computed from each other: write to a copy",
                          where=stored_at(self.forward.bound_symbols, self.forward.inputs[k].storage))
        for n in self.inner_views:
            raise NoSplit("results are computed from one that is a view, and from each other: return a copy of it, as .clone() makes one",
                          where=self.line(self.differentiable[n]))

    def private_recorder(self) -> Recorder:
        """A recorder that knows what the forward pass knew, and tells it nothing."""
        recorder = copy.copy(self.recorder)
        for name, value in vars(recorder).items():
            if type(value) in (dict, list, set):
                setattr(recorder, name, value.copy())
        return recorder

    def tangents(self, layouts: Optional[tuple[Layout, ...]]) -> list[Optional[torch.Tensor]]:
        made: list[Optional[torch.Tensor]] = []
        with self.recorder.fakes.mode, torch.no_grad():
            for k, position in enumerate(self.differentiable):
                result = self.outputs[position]
                if layouts is None:
                    made.append(torch.empty_like(result))
                elif layouts[k] is None:
                    made.append(None)
                else:
                    made.append(torch.empty_strided(result.shape, layouts[k], dtype=result.dtype, device=result.device))
        return made

    def proxy(self, recorder: Recorder, tangent: Optional[torch.Tensor], k: int) -> TensorProxy:
        """The tangent's name; an absent one has a name that nothing reads."""
        if tangent is None:
            with recorder.fakes.mode, torch.no_grad():
                tangent = torch.empty_like(self.outputs[self.differentiable[k]])
        return recorder.new_proxy(tangent, self.names[k])

    def run(self, recorder: Recorder, tangents: list, staged: bool, run: Callable) -> dict[int, Any]:
        """The gradients by target. staged: of what is computed from a result without a tangent nothing is asked."""
        found: dict[int, Any] = {}
        absent = {n for n, t in enumerate(tangents) if t is None}
        asked = [n for n in range(len(tangents)) if n not in absent and not (staged and self.before[n] & absent)]
        inner = set().union(*(self.before[n] for n in asked)) if staged else set()
        roots = [n for n in asked if n not in inner]
        if not roots or not self.wanted:
            return dict.fromkeys(self.wanted)

        def cut(n: int) -> Callable:
            def hook(gradient: torch.Tensor) -> torch.Tensor:
                found[-1 - n] = gradient
                return tangents[n]
            return hook
        hooks = [self.outputs[self.differentiable[n]].register_hook(cut(n)) for n in sorted(inner)]
        outputs = tuple(self.outputs[self.differentiable[n]] for n in roots)
        inputs = tuple(map(self.came, self.wanted))
        try:
            with torch.autocast("cpu", enabled=False):
                made = run(recorder, lambda: run_backward(outputs, tuple(tangents[n] for n in roots), True, False, inputs,
                                                          allow_unreachable=True, accumulate_grad=False))
            return {**dict(zip(self.wanted, made)), **found}
        except (UnsupportedError, *NEEDS_DATA) as error:
            raise NoSplit.of(error) from error
        except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError) as error:
            raise NoSplit(f"the backward pass raises {type(error).__name__}, as it will when it is called: mend it, or detach the results. "
                          f"{error}", where=user_frame(error)) from error
        finally:
            for hook in hooks:
                hook.remove()


def _under_recorder(recorder: Recorder, backward: Callable[[], list]) -> list:
    with recorder.fakes.mode, recorder:
        return backward()


def _refuse_real_tensor(real: torch.Tensor) -> torch.Tensor:
    raise UnsupportedError("the backward pass uses a tensor that the forward pass did not: pass it to forward")


def _differentiable(outputs: tuple, inputs: tuple) -> tuple[int, ...]:
    """Positions of the results that carry gradients, each object once; what is an input carries its own."""
    seen = {id(t) for t in inputs}
    found = []
    for k, o in enumerate(outputs):
        if isinstance(o, torch.Tensor) and o.requires_grad and id(o) not in seen:
            seen.add(id(o))
            found.append(k)
    return tuple(found)


def _rebased(forward: Trace, inputs: list[torch.Tensor], starts: list[Start], asked_at: dict[int, str]) -> list[int]:
    """The inputs whose history the program changes; NoSplit where it does so otherwise than by writes to what they hold."""
    found = [k for k, (t, start) in enumerate(zip(inputs, starts)) if start.differs(t)]
    storages = [p.storage for p in forward.inputs]
    moved = {w.storage for b in forward.bound_symbols if b.sym.moves_metadata for w in b.written}
    for k in found:
        line = stored_at(forward.bound_symbols, storages[k])
        if inputs[k]._is_view() or storages.count(storages[k]) > 1:
            raise NoSplit("an argument that is a view, or shares memory with another, is written with history: write to a copy", where=line)
        apart = _viewed_apart(forward.bound_symbols, storages[k])
        if apart:
            raise NoSplit("an argument that is written with history is viewed under no_grad before: view a copy", where=str(apart[0].source))
        twice = [b for b in forward.bound_symbols if [w.storage for w in b.written].count(storages[k]) > 1]
        if twice:
            raise NoSplit("one call writes an argument with history twice: make it two calls", where=str(twice[0].source))
        if storages[k] in moved:
            raise NoSplit("an argument that is written with history changes its metadata: write to a copy", where=line)
        if inputs[k].grad_fn is None or starts[k].requires_grad and starts[k].edge is None:
            raise NoSplit("an argument changes its autograd history otherwise than by a write: detach it by .detach()",
                          where=asked_at.get(id(inputs[k]), line))
    return found


def _refuse_outdated(views: tuple[ResultView, ...], forward: Trace, rebased: set[int]) -> None:
    """NoSplit for a view of an argument that is written later: autograd makes its history anew, by strides."""
    last = {w.storage: n for n, b in enumerate(forward.bound_symbols) for w in b.written}
    for v in views:
        made = v.steps[-1][0]
        if v.source in rebased and last[forward.inputs[v.source].storage] > forward.bound_symbols.index(made):
            raise NoSplit("a view of an argument is a result, and the argument is written since: make the view after the write",
                          where=str(made.source))


def _refuse_views_beside_others(recording: Recording) -> None:
    """NoSplit where a view that others are computed from is not made between two parts of the program, of what is there."""
    own, stages = recording.inner_views, recording.stages
    for n, v in own.items():
        line = recording.line(recording.differentiable[n])
        if any(stages[n] == stages[m] for m in range(len(stages)) if m not in own):
            raise NoSplit("a result is computed from a view that is a result, and from another that was made with it: return a copy of "
                          "the view, as .clone() makes one", where=line)
        if v.source < 0 and -1 - v.source not in recording.differentiable:
            raise NoSplit("a result is computed from one that is a view of a view, and not by way of that: return a copy of the view, "
                          "as .clone() makes one", where=line)


def _viewed_apart(calls: tuple[BoundSymbol, ...], storage: int) -> list[BoundSymbol]:
    """The views of it that are made under no_grad before a write with history. Autograd refuses to tell its history then."""
    writes = [n for n, b in enumerate(calls) if b.modes.grad and any(w.storage == storage for w in b.written)]
    return [b for b in calls[:max(writes, default=0)]
            if not b.modes.grad and not b.written and any(o.storage == storage for o in b.tensor_outputs)]


def _read_by_tangent(calls: list[BoundSymbol], tangents: list[TensorProxy], stages: tuple[int, ...]) -> dict[int, frozenset[int]]:
    """The storages that backward calls read, and for which tangents. What depends on none is for those who read it."""
    depends = {tangent: frozenset((n,)) for n, tangent in enumerate(tangents)}
    behind: dict[TensorProxy, frozenset[int]] = {}
    read: dict[int, frozenset[int]] = {}
    for b in calls:
        found = frozenset().union(*(depends.get(a, ()) for a in b.tensor_args))
        storages = frozenset(a.storage for a in b.tensor_args).union(*(behind.get(a, ()) for a in b.tensor_args))
        if found:
            read.update((s, read.get(s, frozenset()) | found) for s in storages)
            depends.update(dict.fromkeys(b.tensor_outputs, found))
        else:
            behind.update(dict.fromkeys(b.tensor_outputs, storages))
    last = frozenset(n for n, stage in enumerate(stages) if stage == max(stages))
    return dict.fromkeys(frozenset().union(*behind.values()), last) | read


def refuse_hooks_on_results(recording: Recording, hooked: list[torch.Tensor]) -> None:
    """NoSplit for a result with a hook: who asks for its gradient gets what the hook makes of it."""
    viewed = [n for v in recording.views for n in v.positions]
    for t in hooked:
        if any(recording.outputs[k] is t for k in (*recording.differentiable, *viewed)):
            raise NoSplit("a result has a hook: register it with what the call gives", where=recording.asked_at[id(t)])


def refuse_derivatives(recording: Recording) -> None:
    """NoSplit if the history has a node whose recorded formula is not the one that eager would choose, or that does not say what it
    keeps: a write to that has to raise."""
    for node in nodes(*(recording.outputs[k].grad_fn for k in recording.differentiable)):
        why = ""
        if node.name().startswith(_CHOOSES_BY_VALUE) or _sums_what_is_selected(node):
            why = f"the formula of its gradient ({node.name()}) depends on values: compute it outside of the jitted function"
        if node.name().startswith("Foreach"):
            why = f"what {node.name()} keeps is not told: call the operation on each tensor of the list"
        if why:
            made = [recording.recorder.proxy(t) for t, _ in recording.recorder.kept if t.grad_fn is node]
            raise NoSplit(why, where=made_at(recording.forward.bound_symbols, made[0]) if made else "")


def _sums_what_is_selected(node: Any) -> bool:
    """The gradient of the tensor that `masked_fill` fills in: eager sums the elements that the mask selects, fakes a whole tensor."""
    return node.name() == "MaskedFillBackward1" and node.next_functions[1][0] is not None


def refuse_what_aliases(recording: Recording) -> None:
    """NoSplit where gradients flow through memory that arguments or results share, or that the program writes unseen by it."""
    inputs, modes, calls = recording.forward.inputs, recording.forward.notes["modes"], recording.forward.bound_symbols
    for b in calls:
        if b.modes.inference != modes.inference:
            raise NoSplit("inference mode inside: use torch.no_grad()", where=str(b.source))
    written = {w.storage for b in calls for w in b.written}
    for k in recording.wanted:
        if inputs[k].storage in written and k not in recording.rebased.values():
            raise NoSplit("an argument that requires gradients is written without history: write to it outside of the jitted function",
                          where=stored_at(calls, inputs[k].storage))
    viewed = [n for v in recording.views for n in v.positions]
    for k in viewed:
        if recording.outputs[k].retains_grad:
            raise NoSplit("the gradient of a result that is a view is retained: retain it of what the call gives",
                          where=recording.asked_at.get(id(recording.outputs[k]), ""))
    for k in (*recording.differentiable, *viewed):
        if recording.outputs[k].grad_fn is None:
            raise NoSplit("a result requires gradients without a history, as a view made under no_grad does: detach it", where=recording.line(k))
    taken = {t.untyped_storage()._cdata for t in recording.inputs}
    for k in (k for n, k in enumerate(recording.differentiable) if n not in recording.rebased and n not in recording.inner_views):
        storage = recording.outputs[k].untyped_storage()._cdata
        if storage in taken:
            raise NoSplit("a differentiable result shares memory with an argument or another result: return a copy, as .clone() makes one",
                          where=recording.line(k))
        taken.add(storage)
    of_inputs = [inputs[k].storage for k in recording.wanted]
    if len(set(of_inputs)) < len(of_inputs):
        raise NoSplit("arguments that require gradients share memory: pass one of them, and view it inside the function")
