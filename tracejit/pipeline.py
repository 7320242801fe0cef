"""The stages between a recording and the program that runs: one screen, each stage a named Trace -> Trace."""
from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Callable, Optional, Sequence

from .capture.joint import Joint, Layout, NoSplit
from .capture.tracer import AUTOGRAD, Capture
from .errors import EagerRefuses, TraceError, UnsupportedError
from .executors.claim import claim
from .executors.registry import Executor, finishing, fuses, resolve
from .executors.torch_fallback import TORCH
from .ir.check import check_trace
from .ir.trace import Trace
from .options import Options, check_traces, log_topics
from .passes.autodiff import Half, Halves, Mixed, below_autograd, refuse_several_views, split
from .passes.copies import copies
from .passes.cse import cse
from .passes.dce import dce
from .passes.functionalize import functionalize
from .passes.inplace_check import inplace_check
from .passes.short_views import short_views, whole_values
from .passes.versions import versions
from .runtime.instrument import TOPICS, instrument

Stage = tuple[str, Callable[[Trace], Trace]]

FUNCTIONAL: tuple[Stage, ...] = (("functionalize", functionalize), ("cse", cse), ("copies", copies), ("dce", dce))


@dataclass(frozen=True, eq=False)
class Part:
    """The backward pass of some results. `traces`: its stages of lowering; `half`: what it takes and gives."""

    traces: list[Trace]
    half: Half


@dataclass(frozen=True, eq=False)
class Backward:
    """The backward half of a program: its parts in the order in which they run.

    kept: how many extra results of the forward program they take; again: a part for tangents laid out otherwise.
    """

    parts: list[Part]
    joint: Joint
    kept: int
    again: Callable[[int, tuple[Layout, ...]], Part]

    @property
    def traces(self) -> list[Trace]:
        return [trace for part in self.parts for trace in part.traces]


@dataclass(frozen=True, eq=False)
class Lowered:
    """All traces of one compile, the last of which runs. replayed: why it runs as recorded, call by call, or ""."""

    traces: list[Trace]
    backward: Optional[Backward] = None
    replayed: str = ""


def lower(capture: Capture, options: Options) -> Lowered:
    """A program of which the ATen calls do not tell all runs as it was recorded, call by call."""
    if capture.replay_because:
        return replayed(capture, capture.replay_because)
    passes = Passes.of(options)
    lowered = lower_by(passes, capture)
    return lowered if passes.available else lower(capture, options)     # it turned out while compiling


def lower_by(passes: "Passes", capture: Capture) -> Lowered:
    ops = capture.ops if capture.joint is None else capture.joint.ops
    traces = [capture.calls, checked(below_autograd(ops) if capture.grads else ops)]
    if capture.joint is None:
        passes.functional(traces)
        passes.place(traces, capture.ops)
        return Lowered(traces)
    try:
        return lower_joint(capture.joint, traces, passes)
    except (UnsupportedError, EagerRefuses, NoSplit) as error:
        if capture.unnamed:
            raise UnsupportedError(f"{error}\n{capture.unnamed}") from error
        why = NoSplit.of(error)
        why.place(capture.defined)
        return replayed(capture, f"{AUTOGRAD}: {why}")


def replayed(capture: Capture, why: str) -> Lowered:
    return Lowered([checked(capture.calls)], replayed=why)


def lower_joint(joint: Joint, traces: list[Trace], passes: "Passes") -> Lowered:
    """One functional trace of forward and backward, then each half for itself."""
    made_by_autograd = joint.recording.inner_views
    refuse_several_views(joint.ops, tuple(k for n, k in enumerate(joint.differentiable) if n not in made_by_autograd))
    try:
        first = cut(joint, traces, passes)
    except Mixed:
        joint = joint.recording.joint(staged=False)
        traces = [traces[0], checked(joint.ops)]
        first = cut(joint, traces, passes)

    def half(found: Half) -> Part:
        stages = [checked(found.trace)]
        passes.place(stages)
        return Part(stages, found)

    def again(stage: int, layouts: tuple[Layout, ...]) -> Part:
        other = joint.again(layouts)
        return half(cut(other, [checked(other.ops)], passes, first.kept).backward[stage])

    forward = [checked(first.forward)]
    passes.place(forward, joint.recording.forward)
    parts = [half(found) for found in first.backward.values() if not made_by_autograd.keys() >= set(found.tangents)]
    return Lowered([*traces, *forward], Backward(parts, joint, len(first.kept), again))


def cut(joint: Joint, traces: list[Trace], passes: "Passes", keep: Optional[tuple] = None) -> Halves:
    passes.functional(traces)
    return split(traces[-1], joint.results, joint.tangents, joint.saved(traces[-1]), passes.recompute, joint.stages,
                 joint.summands, keep)


@dataclass(frozen=True, eq=False)
class Passes:
    """The stages that one set of options asks for."""

    options: Options
    executors: tuple[Executor, ...]
    before: tuple[Stage, ...]
    after: tuple[Stage, ...]
    placing: tuple[Stage, ...]
    recompute: str

    @classmethod
    def of(cls, options: Options) -> "Passes":
        asked = resolve(options.executors, TORCH, options.executor_options)
        executors = tuple(e.with_numerics(options.numerics) for e in asked)
        fusing = any(map(fuses, executors))
        stages = fusing_stages(executors) if fusing else ((), (), claiming_stages(executors))
        recompute = "never" if options.recompute == "fused" and not fusing else options.recompute
        return cls(options, executors, *stages, recompute)

    @property
    def available(self) -> bool:
        return all(e.available() for e in self.executors)

    def functional(self, traces: list[Trace]) -> None:
        """Append the stages down to the functional trace, the user's transforms among them."""
        run_stages((*self.before, *FUNCTIONAL), traces)
        if self.options.transforms:
            reference = traces[-1]
            run_stages([(getattr(t, "__name__", "transform"), t) for t in self.options.transforms], traces)
            prove(traces[-1], reference, self.options)

    def place(self, traces: list[Trace], recorded: Optional[Trace] = None) -> None:
        """Append the stages from a functional trace to the one that runs. recorded: the calls whose writes autograd is told."""
        run_stages(self.after, traces)
        placed: Optional[list[Trace]] = None
        while placed is None:
            placed = self._placed(traces[-1])
        traces += placed
        if recorded is not None:
            traces[-1] = versions(traces[-1], recorded)
        if log_topics() & TOPICS:
            traces[-1] = instrument(traces[-1], log_topics())

    def _placed(self, functional: Trace) -> Optional[list[Trace]]:
        """The stages of placing. None: an executor wants other regions. What it takes long for goes on during the proof."""
        stages = [functional]
        run_stages(self.placing, stages)
        with finishing(stages[-1], self.executors) as finished:
            checked(stages[-1], by_user=self.options.executors is not None)
            prove(stages[-1], functional, self.options)
            ready = finished()
        return None if ready is None else [*stages[1:-1], ready]


def claiming_stages(executors: Sequence[Executor]) -> tuple[Stage, ...]:
    """No executor fuses: every call goes to the first that takes it."""
    return (("claim", lambda trace: claim(trace, executors)),)


def fusing_stages(executors: Sequence[Executor]) -> tuple[tuple[Stage, ...], ...]:
    """(before functionalization, after it, placing): composite calls are opened, and regions formed and ordered."""
    from .partition.regions import partition                   # what no call needs without a fuser
    from .passes.decompose import decompose, unroll
    placing = (("partition", lambda trace: short_views(partition(trace, executors))),)
    return (("unroll", unroll),), (("decompose", lambda trace: whole_values(decompose(trace))),), placing


def run_stages(stages: Sequence[Stage], traces: list[Trace]) -> None:
    for stage in stages:
        traces.append(run_stage(stage, traces[-1]))


def run_stage(stage: Stage, trace: Trace) -> Trace:
    """The trace that a stage makes, with its name, time and origin; TraceError when it makes something else."""
    name, function = stage
    start = time.perf_counter()
    made = function(trace)
    if not isinstance(made, Trace):
        raise TraceError(f"stage {name} returned {type(made).__name__}, not a Trace: "
                         "a transform returns trace.replace(...)")
    made = replace(made, stage=name, seconds=time.perf_counter() - start, previous=trace.stage)
    return checked(made, by_user=function.__module__.split(".")[0] != "tracejit")


def checked(trace: Trace, by_user: bool = False) -> Trace:
    """What the user's code made is always checked, our own stages under TRACEJIT_CHECK=1."""
    return check_trace(trace) if by_user or check_traces() else trace


def prove(final: Trace, reference: Trace, options: Options) -> None:
    """The order of memory accesses is that of `reference`, unless the user switched the proof off."""
    if not options.disable_inplace_copy_check:
        inplace_check(final, reference)
