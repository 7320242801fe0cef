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

from ..errors import UnsupportedError
from ..ir import prims
from ..ir.proxy import TensorProxy
from ..ir.symbol import SCHEMAS_THAT_LIE
from ..ir.trace import NOWHERE, BoundSymbol, Trace
from ..torch_private import run_backward
from .fakes import NEEDS_DATA
from .recorder import Recorder
from .result_views import result_views


UNTOLD = "untold"


class NoSplit(Exception):
    """Why the program has no forward and backward trace of its own."""


def history(t: torch.Tensor) -> Any:
    """`grad_fn`; UNTOLD for a view whose history autograd refuses to tell, or cannot make anew, since its base was written."""
    try:
        return t.grad_fn
    except (RuntimeError, IndexError):
        return UNTOLD


# (stride) of a tangent, or None for a result that no gradient reached
Layout = Optional[tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Joint:
    """`ops`: inputs, then tangents -> results, then a gradient (None: not reached) for each of `targets`.

    results: how many outputs the forward pass has; differentiable: which of them carry gradients, one tangent each;
    stages: for each of those, how many others one after another it is computed from: autograd reaches them through it;
    inner: which of them others are computed from; retained: which keep their gradients; targets: what gradients are of: an input k, or the differentiable result
    n as -1 - n; summands: how many gradients autograd adds up for each; read: the storages that the backward calls look at.
    """

    ops: Trace
    results: int
    differentiable: tuple[int, ...]
    stages: tuple[int, ...]
    inner: tuple[int, ...]
    retained: tuple[int, ...]
    targets: tuple[int, ...]
    summands: tuple[int, ...]
    read: frozenset[int]
    recording: "Recording"

    def again(self, layouts: tuple[Layout, ...]) -> "Joint":
        """The joint recording for other tangents."""
        return self.recording.joint(layouts, staged=len(set(self.stages)) > 1)

    @property
    def tangents(self) -> tuple[TensorProxy, ...]:
        return self.ops.inputs[len(self.ops.inputs) - len(self.differentiable):]

    def saved(self, functional: Trace) -> frozenset[int]:
        """The visible storages, as the functionalized trace names them, of which eager keeps a tensor for backward."""
        both = zip(functional.output[:self.results], self.ops.output)
        results = {o.storage for o, recorded in both if isinstance(o, TensorProxy) and recorded.storage in self.read}
        return frozenset(results | {p.storage for p in self.ops.inputs if p.storage in self.read})


# Derivatives that choose their formula by the values, or by whether tensors are subclasses, as fakes are.
_CHOOSES_BY_VALUE = ("ProdBackward", "CumprodBackward", "LinalgEigBackward", "LinalgEighBackward", "LinalgSvdBackward")


class Recording:
    """A finished forward recording: what it takes to record the backward pass, as often as asked."""

    def __init__(self, recorder: Recorder, forward: Trace, outputs: list, inputs: list[torch.Tensor], unique: Callable) -> None:
        """`outputs`: the results as fakes and plain values; `inputs`: a fake for each input of `forward`."""
        self.recorder, self.forward, self.outputs, self.inputs = copy.copy(recorder), forward, tuple(outputs), tuple(inputs)
        every = _differentiable(self.outputs, self.inputs)
        if any(history(t) is UNTOLD for t in (*(self.outputs[k] for k in every), *self.inputs)):
            raise NoSplit("a view made under no_grad of memory that was written since is an argument or a result")
        self.views = result_views(forward, self.outputs, every)
        self.differentiable = tuple(k for k in every if not any(k in v.positions for v in self.views))
        self.wanted = tuple(k for k, t in enumerate(self.inputs) if t.requires_grad)
        self.names = [unique(f"tangent_{k}") for k in range(len(self.differentiable))]
        results = [self.outputs[k] for k in self.differentiable]
        self.stages, self.inner = _stages(results)
        self.retained = tuple(n for n, r in enumerate(results) if r.retains_grad)
        self.summands = _summands(results, {k: self.inputs[k] for k in self.wanted} | {-1 - n: results[n] for n in self.inner})
        self.recorder.on_new_input = _refuse_real_tensor
        self.recorder.source = lambda: NOWHERE

    def joint(self, layouts: Optional[tuple[Layout, ...]] = None, run: Optional[Callable] = None, staged: bool = True) -> Joint:
        """Record the backward pass for tangents laid out like this; by default like the results.

        run: calls the backward pass under the recorder given, with more than the recorder on. staged: a result that others
        are computed from gets a gradient of its own, and what is before it follows from its tangent alone.
        """
        if not staged and set(self.retained) & set(self.inner):
            raise NoSplit("the gradient of a result that others are computed from is retained")
        recorder, forward = self.private_recorder(), self.forward
        tangents = self.tangents(layouts)
        proxies = [self.proxy(recorder, t, n) for n, t in enumerate(tangents)]
        inner = self.inner if staged else ()
        first = len(recorder.bound_symbols)
        found = self.run(recorder, tangents, inner, run or _under_recorder)
        gradients = {target: recorder.proxy(g) if g is not None else None for target, g in found.items()}
        if layouts is None:                                    # autograd must not be led to inputs that nothing reaches
            gradients = {target: g for target, g in gradients.items() if g is not None}
            self.wanted = tuple(target for target in gradients if target >= 0)
        if not self.wanted:
            raise NoSplit("no gradient reaches an argument")
        calls = recorder.bound_symbols[first:]
        marker = BoundSymbol(prims.BACKWARD_BEGINS, (), {}, None)
        ops = forward.replace(inputs=(*forward.inputs, *proxies), bound_symbols=(*forward.bound_symbols, marker, *calls),
                              output=(*forward.output, *gradients.values()))
        uncounted = {w.storage for b in forward.bound_symbols if b.sym.overload in SCHEMAS_THAT_LIE for w in b.written}
        read = {a.storage for b in calls for a in b.tensor_args} - uncounted       # eager does not find such writes
        stages = self.stages if staged else (0,) * len(self.stages)
        summands = tuple(self.summands.get(target, 1) for target in gradients)
        return Joint(ops, len(forward.output), self.differentiable, stages, self.inner, self.retained, tuple(gradients),
                     summands, frozenset(read), self)

    def private_recorder(self) -> Recorder:
        """A recorder that knows what the forward pass knew, and tells it nothing."""
        recorder = copy.copy(self.recorder)
        for name, value in vars(recorder).items():
            if type(value) in (dict, list):
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

    def run(self, recorder: Recorder, tangents: list, inner: tuple[int, ...], run: Callable) -> dict[int, Any]:
        """The gradients by target."""
        found: dict[int, Any] = {}
        if any(tangents[n] is None for n in inner):
            raise NoSplit("no gradient reaches a result that others are computed from")
        roots = [n for n, t in enumerate(tangents) if t is not None and n not in inner]
        if not roots or not self.wanted:
            return dict.fromkeys(self.wanted)

        def cut(n: int) -> Callable:
            def hook(gradient: torch.Tensor) -> torch.Tensor:
                found[-1 - n] = gradient
                return tangents[n]
            return hook
        hooks = [self.outputs[self.differentiable[n]].register_hook(cut(n)) for n in inner]
        outputs = tuple(self.outputs[self.differentiable[n]] for n in roots)
        inputs = tuple(self.inputs[k] for k in self.wanted)
        try:
            with torch.autocast("cpu", enabled=False):
                made = run(recorder, lambda: run_backward(outputs, tuple(tangents[n] for n in roots), True, False, inputs,
                                                          allow_unreachable=True, accumulate_grad=False))
            return {**dict(zip(self.wanted, made)), **found}
        except (UnsupportedError, *NEEDS_DATA) as error:
            raise NoSplit(str(error)) from error
        except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError) as error:
            raise NoSplit(f"the backward pass raises {type(error).__name__}: {error}") from error
        finally:
            for hook in hooks:
                hook.remove()


def _under_recorder(recorder: Recorder, backward: Callable[[], list]) -> list:
    with recorder.fakes.mode, recorder:
        return backward()


def _refuse_real_tensor(real: torch.Tensor) -> torch.Tensor:
    raise UnsupportedError("the backward pass uses a tensor that the forward pass did not")


def _differentiable(outputs: tuple, inputs: tuple) -> tuple[int, ...]:
    """Positions of the results that carry gradients, each object once; what is an input carries its own."""
    seen = {id(t) for t in inputs}
    found = []
    for k, o in enumerate(outputs):
        if isinstance(o, torch.Tensor) and o.requires_grad and id(o) not in seen:
            seen.add(id(o))
            found.append(k)
    return tuple(found)


def _stages(results: list[torch.Tensor]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(for each result, how many others one after another it is computed from; those that others are computed from)."""
    own = {(r.grad_fn, r.output_nr): n for n, r in enumerate(results) if r.grad_fn is not None}
    before: list[set[int]] = []
    for r in results:
        todo, seen, found = [r.grad_fn], {r.grad_fn}, set()
        while todo:
            node = todo.pop()
            for edge in node.next_functions if node is not None else ():
                found |= {own[edge]} if edge in own else set()
                if edge[0] not in seen:
                    seen.add(edge[0])
                    todo.append(edge[0])
        before.append(found)
    depth: dict[int, int] = {}
    for n in sorted(range(len(results)), key=lambda n: len(before[n])):        # what it is computed from comes first
        depth[n] = 1 + max((depth.get(m, 0) for m in before[n]), default=-1)
    return tuple(depth[n] for n in range(len(results))), tuple(sorted(set().union(*before)))


def _summands(results: list[torch.Tensor], targets: dict[int, torch.Tensor]) -> dict[int, int]:
    """How many gradients autograd adds up for each target: the edges that lead to it."""
    edges = {(t.grad_fn, t.output_nr): target for target, t in targets.items() if t.grad_fn is not None}
    leaves = {id(t): target for target, t in targets.items() if t.is_leaf}
    found: dict[int, int] = {}
    todo = [r.grad_fn for r in results if r.grad_fn is not None]
    seen = set(todo)
    todo = list(seen)
    while todo:
        for edge in todo.pop().next_functions:
            leaf = getattr(edge[0], "variable", None)          # of the node that accumulates its gradient
            target = edges.get(edge) if leaf is None else leaves.get(id(leaf))
            if target is not None:
                found[target] = found.get(target, 0) + 1
            if edge[0] is not None and edge[0] not in seen:
                seen.add(edge[0])
                todo.append(edge[0])
    return found


def refuse_hooks_on_results(recording: Recording, hooked: list[torch.Tensor]) -> None:
    """NoSplit for a result with a hook: who asks for its gradient gets what the hook makes of it."""
    viewed = [n for v in recording.views for n in v.positions]
    if any(recording.outputs[k] is t for k in (*recording.differentiable, *viewed) for t in hooked):
        raise NoSplit("a result has a hook")


def refuse_derivatives_by_value(recording: Recording) -> None:
    """NoSplit if the history has a node whose recorded formula is not the one that eager would choose."""
    todo = [recording.outputs[k].grad_fn for k in recording.differentiable]
    seen = set(todo)
    while todo:
        node = todo.pop()
        if node.name().startswith(_CHOOSES_BY_VALUE) or _sums_what_is_selected(node):
            raise NoSplit(f"the formula of {node.name()} depends on values")
        following = {f for f, _ in node.next_functions if f is not None} - seen
        seen |= following
        todo += following


def _sums_what_is_selected(node: Any) -> bool:
    """The gradient of the tensor that `masked_fill` fills in: eager sums the elements that the mask selects, fakes a whole tensor."""
    return node.name() == "MaskedFillBackward1" and node.next_functions[1][0] is not None


def refuse_what_aliases(recording: Recording) -> None:
    """NoSplit where gradients flow through memory that arguments or results share, or that the program writes."""
    inputs, modes = recording.forward.inputs, recording.forward.notes["modes"]
    if any(b.modes.inference != modes.inference for b in recording.forward.bound_symbols):
        raise NoSplit("inference mode inside")
    written = {w.storage for b in recording.forward.bound_symbols for w in b.written}
    if any(inputs[k].storage in written for k in recording.wanted):
        raise NoSplit("an argument that requires gradients is written")
    viewed = [n for v in recording.views for n in v.positions]
    if any(recording.outputs[k].retains_grad for k in viewed):
        raise NoSplit("the gradient of a result that is a view is retained")
    if any(recording.outputs[k].grad_fn is None for k in (*recording.differentiable, *viewed)):
        raise NoSplit("a result requires gradients without a history, as a view made under no_grad does")
    taken = {t.untyped_storage()._cdata for t in recording.inputs}
    for k in recording.differentiable:
        storage = recording.outputs[k].untyped_storage()._cdata
        if storage in taken:
            raise NoSplit("a differentiable result shares memory with an argument or another result")
        taken.add(storage)
    of_inputs = [inputs[k].storage for k in recording.wanted]
    if len(set(of_inputs)) < len(of_inputs):
        raise NoSplit("arguments that require gradients share memory")
