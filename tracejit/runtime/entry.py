"""A compiled entry: the program, what it runs under, and how its flat outputs become the user's result."""
from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Callable

import torch

from ..capture.inputs import CallInputs
from ..capture.journal import replay
from ..capture.structure import Structure
from ..capture.tracer import Capture, StateEffect
from ..ir.trace import Trace
from .program import Program


class Entry:
    """`run(inputs, call)` -> the user's result, with the program's writes to Python state made."""

    __slots__ = ("program", "run")

    def __init__(self, program: Program, run: Callable[[list, CallInputs], Any]) -> None:
        self.program, self.run = program, run


def make_entry(captured: Capture, final: Trace) -> Entry:
    program = Program(final)
    build = _builder(captured.structure, captured.results)

    def finished(run: Callable) -> Callable[[list, CallInputs], Any]:
        run = _under(_contexts(captured, final), run)
        if captured.effects:
            return lambda inputs, call: _finish(run(*inputs), build, captured.effects, call)
        return lambda inputs, call: build(run(*inputs))

    entry = Entry(program, finished(program.run))
    if program.has_regions:
        verifying = entry.run

        def first(inputs: list, call: CallInputs) -> Any:
            result = verifying(inputs, call)
            entry.run = finished(program.direct())
            return result
        entry.run = first
    return entry


def _finish(outputs: tuple, build: Callable[[tuple], Any], effects: tuple[StateEffect, ...], call: CallInputs) -> Any:
    result = build(outputs)
    values = [e.structure.unflatten(list(outputs[e.start:e.stop])) for e in effects]
    replay([e.write for e in effects], values, call.roots)
    return result


def _builder(structure: Structure, results: int) -> Callable[[tuple], Any]:
    """Flat outputs -> result, without a pytree for the commonest shapes."""
    spec = structure.spec
    plain = not any(structure.nodes)
    if plain and spec.is_leaf():
        return lambda outputs: outputs[0]
    if plain and spec.type in (tuple, list) and all(c.is_leaf() for c in spec.children()):
        kind = spec.type
        return lambda outputs: kind(outputs[:results])
    return lambda outputs: structure.unflatten(list(outputs[:results]))


def _contexts(captured: Capture, final: Trace) -> list[Callable]:
    """An ATen program was recorded below autograd and autocast, so both are off when it runs."""
    modes = captured.calls.notes["modes"]
    if captured.replay_because:
        return []
    wanted: list[Callable] = []
    if modes.grad and any(p.requires_grad for p in final.inputs):
        wanted.append(torch.no_grad)
    if modes.autocast is not None:
        wanted.append(lambda: torch.autocast(modes.autocast[0], enabled=False))
    return wanted


def _under(contexts: list[Callable], run: Callable) -> Callable:
    if not contexts:
        return run

    def guarded(*inputs: torch.Tensor) -> tuple:
        with ExitStack() as stack:
            for make in contexts:
                stack.enter_context(make())
            return run(*inputs)
    return guarded
