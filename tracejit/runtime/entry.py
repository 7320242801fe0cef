"""A compiled entry: the program, what it runs under, and how its flat outputs become the user's result."""
from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Optional

import torch

from ..capture.inputs import CallInputs
from ..capture.journal import replay
from ..capture.result_views import ResultView
from ..capture.structure import Structure
from ..capture.tracer import Capture, StateEffect
from ..ir.trace import Modes, Trace
from ..options import log_topics
from .gradients import Differentiable, Spent
from .program import Program, Replayed, stack_level, user_traceback


class Entry:
    """`run(inputs, call)` -> the user's result, with the program's writes to Python state made.

    ready: it has run once, which verifies how the arguments of its regions are laid out. From then on it is
    `build(direct(*inputs))` and the writes, or `build` of what `call` gives. `result`: "item", "tuple" or "list" when that
    is what `build` makes of the outputs.
    """

    __slots__ = ("program", "run", "ready", "direct", "call", "build", "result", "effects", "seen", "grads", "warned", "eager", "filled")

    def __init__(self, captured: Capture, final: Trace, backward: Any = None, replayed: bool = False,
                 filled: tuple[tuple[int, Callable], ...] = ()) -> None:
        """backward: the other half of a program with gradients (`pipeline.Backward`); replayed: it runs as it was recorded;
        filled: outputs that are computed of integers of state, (which, what gives its value)."""
        self.program, self.effects, self.seen = Program(final), captured.effects, 0
        if backward is not None:
            self.program = Differentiable(self.program, backward, captured.calls)
        if captured.spent and not replayed:
            self.program = Spent(self.program, captured.spent, final)
        self.grads, self.filled = () if replayed else captured.grads, filled
        self.eager, self.warned = captured.eager, [w for w in captured.warned if not (replayed and w.inside)]
        self.build, self.result = _builder(captured.structure, captured.results)
        modes = captured.calls.notes["modes"]
        contexts = [] if replayed else _contexts(modes, final, backward is None)
        views = () if replayed else captured.views
        self.direct = _viewing(views, modes.grad, _under(contexts, self.program.run))
        self.run: Callable[[list, CallInputs], Any] = self._finished()
        self.ready = not self.program.has_regions
        self.call = None if views or not self.ready else self.program.one_call(not contexts)
        if not self.ready:
            verifying = self.run

            def first(inputs: list, call: CallInputs) -> Any:
                result = verifying(inputs, call)
                self.direct = _viewing(views, modes.grad, _under(contexts, self.program.direct()))
                self.call = None if views else self.program.one_call(not contexts)
                self.run, self.ready = self._finished(), True
                return result
            self.run = first

    def _finished(self) -> Callable[[list, CallInputs], Any]:
        run, warned, eager = self._finishing(), self.warned, self.eager
        if not warned:
            return run

        def warning(inputs: list, call: CallInputs) -> Any:
            if any(w.is_error for w in warned):
                given = getattr(call, "plain", None) or call
                return eager(*given.roots["args"], **given.roots["kwargs"])
            for w in warned:
                w.raise_anew(stack_level)
            return run(inputs, call)
        return warning

    def _finishing(self) -> Callable[[list, CallInputs], Any]:
        direct, build, effects, grads, filled = self.direct, self.build, self.effects, self.grads, self.filled
        if filled:
            return lambda inputs, call: _finish(_with_grads(_filled([(k, value()) for k, value in filled], direct(*inputs)), inputs, grads),
                                                build, effects, call)
        if grads:
            return lambda inputs, call: _finish(_with_grads(direct(*inputs), inputs, grads), build, effects, call)
        if effects:
            return lambda inputs, call: _finish(direct(*inputs), build, effects, call)
        return lambda inputs, call: build(direct(*inputs))

    def finish_call(self, inputs: list, args: tuple, kwargs: dict, tensors: list) -> Any:
        """`run`, for one who has no `CallInputs`."""
        return self.run(inputs, _Roots({"args": args, "kwargs": kwargs, **dict(enumerate(tensors))}))


@dataclass(frozen=True)
class _Roots:
    roots: dict


def trimmed(error: BaseException, candidate: Any = None) -> Optional[TracebackType]:
    """The traceback that the user shall see of an error from a call; `candidate`: what ran, if it ran in C."""
    if not isinstance(error, Exception) or "internal" in log_topics():
        return error.__traceback__
    return user_traceback(error, candidate.source if candidate is not None else None)


def _filled(values: list[tuple[int, int]], outputs: tuple) -> tuple:
    """The outputs, with these values among them."""
    found = list(outputs)
    for k, value in values:
        found[k] = value
    return tuple(found)


def _with_grads(outputs: tuple, inputs: list, grads: tuple[tuple[int, int], ...]) -> tuple:
    for k, n in grads:
        inputs[k].grad = outputs[n]
    return outputs


def _finish(outputs: tuple, build: Callable[[tuple], Any], effects: tuple[StateEffect, ...], call: Any) -> Any:
    result = build(outputs)
    values = [e.structure.unflatten(list(outputs[e.start:e.stop])) for e in effects]
    stored = replay([e.write for e in effects], values, call.roots)
    return stored[-1] if effects and effects[-1].write.how == "result" else result


def _builder(structure: Structure, results: int) -> tuple[Callable[[tuple], Any], str]:
    """Flat outputs -> result, without a pytree for the commonest shapes."""
    spec = structure.spec
    plain = not any(structure.nodes)
    if plain and spec.is_leaf():
        return lambda outputs: outputs[0], "item"
    if plain and spec.type in (tuple, list) and all(c.is_leaf() for c in spec.children()):
        kind = spec.type
        return lambda outputs: kind(outputs[:results]), kind.__name__
    return lambda outputs: structure.unflatten(list(outputs[:results])), "built"


def _contexts(modes: Modes, final: Trace, plain: bool) -> list[Callable]:
    """An ATen program was recorded below autograd and autocast, so both are off when it runs (a program with gradients sees
    to autograd itself, where the program turns it on, too)."""
    wanted: list[Callable] = []
    if plain and modes.grad and any(p.requires_grad for p in final.inputs):
        wanted.append(torch.no_grad)
    if not plain and not modes.grad:
        wanted.append(torch.enable_grad)
    if modes.autocast is not None:
        wanted.append(lambda: torch.autocast(modes.autocast[0], enabled=False))
    return wanted


def _viewing(views: tuple[ResultView, ...], grad: bool, run: Callable) -> Callable:
    """`run`, and the results that are views made of what they view. grad: the mode around the call."""
    if not views:
        return run
    makers = [(v.positions, v.source, _under([] if grad else [torch.enable_grad], v.maker())) for v in views]

    def viewing(*inputs: torch.Tensor) -> tuple:
        found = run(*inputs)
        if type(found) is Replayed:
            return tuple(found)
        outputs, made = list(found), {}
        for positions, source, make in makers:
            view = make(inputs[source] if source >= 0 else outputs[-1 - source], made)
            for k in positions:
                outputs[k] = view
        return tuple(outputs)
    return viewing


def _under(contexts: list[Callable], run: Callable) -> Callable:
    if not contexts:
        return run

    def guarded(*inputs: torch.Tensor) -> tuple:
        with ExitStack() as stack:
            for make in contexts:
                stack.enter_context(make())
            return run(*inputs)
    return guarded
