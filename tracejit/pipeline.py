"""The stages between a recording and the program that runs: one screen, each stage a named Trace -> Trace."""
from __future__ import annotations

import time
from dataclasses import replace
from typing import Callable

from .capture.tracer import Capture
from .errors import TraceError
from .executors.claim import claim
from .executors.registry import resolve
from .executors.torch_fallback import TORCH
from .ir.check import check_trace
from .ir.trace import Trace
from .options import Options, check_traces
from .passes.copies import copies
from .passes.cse import cse
from .passes.dce import dce
from .passes.functionalize import functionalize
from .passes.inplace_check import inplace_check

Stage = tuple[str, Callable[[Trace], Trace]]


def functional_stages() -> list[Stage]:
    """What makes a recording of mutations and views into single assignments and the fewest copies."""
    return [
        ("functionalize", functionalize),
        ("cse", cse),
        ("copies", copies),
        ("dce", dce),
    ]


def execution_stages(options: Options) -> list[Stage]:
    """The user's transforms, and who runs what."""
    executors = resolve(options.executors, TORCH)
    return [
        *((getattr(t, "__name__", "transform"), t) for t in options.transforms),
        ("claim", lambda trace: claim(trace, executors)),
    ]


def lower(capture: Capture, options: Options) -> list[Trace]:
    """All traces of one compile; the last one runs.

    A program of which the ATen calls do not tell all (autograd, above all) runs as it was recorded, call by call.
    """
    if capture.replay_because:
        return [checked(capture.calls)]
    traces = [capture.calls, checked(capture.ops)]
    for stage in functional_stages():
        traces.append(run_stage(stage, traces[-1]))
    reference = traces[-1]
    for stage in execution_stages(options):
        traces.append(run_stage(stage, traces[-1]))
    checked(traces[-1], by_user=options.executors is not None)
    if not options.disable_inplace_copy_check:
        inplace_check(traces[-1], reference)
    return traces


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
