"""The stages between a recording and the program that runs: one screen, each stage a named Trace -> Trace."""
from __future__ import annotations

import time
from dataclasses import replace
from typing import Callable, Sequence

from .capture.tracer import Capture
from .errors import TraceError
from .executors.claim import claim
from .executors.registry import Executor, fuses, resolve
from .executors.torch_fallback import TORCH
from .ir.check import check_trace
from .ir.trace import Trace
from .options import Options, check_traces, log_topics
from .passes.copies import copies
from .passes.cse import cse
from .passes.dce import dce
from .passes.functionalize import functionalize
from .passes.inplace_check import inplace_check
from .passes.versions import versions
from .runtime.instrument import TOPICS, instrument

Stage = tuple[str, Callable[[Trace], Trace]]

FUNCTIONAL: tuple[Stage, ...] = (("functionalize", functionalize), ("cse", cse), ("copies", copies), ("dce", dce))


def lower(capture: Capture, options: Options) -> list[Trace]:
    """All traces of one compile; the last one runs.

    A program of which the ATen calls do not tell all (autograd, above all) runs as it was recorded, call by call.
    """
    if capture.replay_because:
        return [checked(capture.calls)]
    asked = resolve(options.executors, TORCH, options.executor_options)
    executors = tuple(e.with_numerics(options.numerics) for e in asked)
    traces = [capture.calls, checked(capture.ops)]
    fusing = any(map(fuses, executors))
    before, after, placing = fusing_stages(executors) if fusing else ((), (), claiming_stages(executors))
    run_stages((*before, *FUNCTIONAL), traces)
    if options.transforms:
        reference = traces[-1]
        run_stages([(getattr(t, "__name__", "transform"), t) for t in options.transforms], traces)
        prove(traces[-1], reference, options)
    run_stages(after, traces)
    reference = traces[-1]
    run_stages(placing, traces)
    checked(traces[-1], by_user=options.executors is not None)
    prove(traces[-1], reference, options)
    traces[-1] = versions(traces[-1], capture.ops)
    if log_topics() & TOPICS:
        traces[-1] = instrument(traces[-1], log_topics())
    return traces


def claiming_stages(executors: Sequence[Executor]) -> tuple[Stage, ...]:
    """No executor fuses: every call goes to the first that takes it."""
    return (("claim", lambda trace: claim(trace, executors)),)


def fusing_stages(executors: Sequence[Executor]) -> tuple[tuple[Stage, ...], ...]:
    """(before functionalization, after it, placing): composite calls are opened, and regions formed and ordered."""
    from .partition.regions import partition                   # what no call needs without a fuser
    from .passes.decompose import decompose, unroll
    return ((("unroll", unroll),), (("decompose", decompose),), (("partition", lambda trace: partition(trace, executors)),))


def run_stages(stages: Sequence[Stage], traces: list[Trace]) -> None:
    for stage in stages:
        traces.append(run_stage(stage, traces[-1]))


def run_stage(stage: Stage, trace: Trace) -> Trace:
    """The trace that a stage makes, with its name, time and origin; TraceError when it makes something else."""
    name, function = stage
    start = time.perf_counter()
    made = function(trace)
    if not isinstance(made, Trace):
        raise TraceError(f"stage {name} returned {type(made).__name__}, not a Trace")
    made = replace(made, stage=name, seconds=time.perf_counter() - start, previous=trace.stage)
    return checked(made, by_user=function.__module__.split(".")[0] != "tracejit")


def checked(trace: Trace, by_user: bool = False) -> Trace:
    """What the user's code made is always checked, our own stages under TRACEJIT_CHECK=1."""
    return check_trace(trace) if by_user or check_traces() else trace


def prove(final: Trace, reference: Trace, options: Options) -> None:
    """The order of memory accesses is that of `reference`, unless the user switched the proof off."""
    if not options.disable_inplace_copy_check:
        inplace_check(final, reference)
