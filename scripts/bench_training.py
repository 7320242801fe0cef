"""Forward and backward of whole models: those of `bench_models` and its columns, with gradients of all parameters.

The loss is the mean square of the first output. The gradients are compared with eager's first.

`memory` is what torch's allocator gives out in a step from no gradients to gradients of all parameters, dropout on: bytes that the
forward pass leaves behind for backward, and the most that are held at once, gradients among them. It depends on no clock.
"""
import gc
import tempfile
from dataclasses import dataclass
from typing import Optional

import torch

from bench_models import TRAINED, build, processor_seconds, without_names


@dataclass(frozen=True)
class Trained:
    """Seconds of a forward and backward pass; `first`, `work`, `again` as in `bench_models`; `kernels`: of both passes."""
    name: str
    eager: float
    tracejit: float
    first: float
    work: float
    again: float
    kernels: int
    inductor: Optional[float] = None
    inductor_first: Optional[float] = None


def loss_of(model):
    def loss(**inputs):
        return next(o for o in model(**inputs).values() if isinstance(o, torch.Tensor)).square().mean()
    return loss


def step_of(loss, model, inputs):
    """(a function of positional arguments that leaves gradients in the parameters, those arguments)."""
    call, values = without_names(loss, inputs)

    def step(*values):
        model.zero_grad()
        call(*values).backward()
    return step, values


def gradients(model, step, values):
    step(*values)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check(name, found, wanted):
    for key in wanted.keys() | found.keys():
        small = 1e-3 * wanted[key].abs().max().item()
        torch.testing.assert_close(found[key], wanted[key], rtol=1e-3, atol=max(1e-4, small), msg=lambda m: f"{name} {key}: {m}")


def train(name, opts):
    from timing import compile_with_inductor, compile_with_tracejit, seconds, take_turns
    model, inputs = build(name)
    loss = loss_of(model)
    steps = [step_of(loss, model, inputs)]
    wanted, taken, inductor_first = gradients(model, *steps[0]), [], None
    with tempfile.TemporaryDirectory() as kernels:
        for _ in range(2):                                     # the second finds the kernels of the first
            jitted = compile_with_tracejit(loss, kernels)
            steps[1:] = [step_of(jitted, model, inputs)]
            before = processor_seconds()
            taken += [seconds(*steps[1]), processor_seconds() - before]
    if jitted.replayed_because:
        raise RuntimeError(f"{name} is replayed: {jitted.replayed_because}")
    if opts.inductor:
        steps.append(step_of(compile_with_inductor(loss), model, inputs))
        inductor_first = seconds(*steps[2])
    check(name, gradients(model, *steps[1]), wanted)
    for step in steps:
        seconds(*step, 3)
    times = take_turns(steps, opts.samples, 2, opts.quantile)
    return Trained(name, *times[:2], *taken[:3], len(jitted.kernels), *(times[2:] or [None]), inductor_first)


def training(opts):
    from timing import in_units
    heads = ["eager", "inductor", "tracejit", "x eager", "x inductor", "kernels", "first", "work", "again", "inductor's"]
    print(f"\n{'whole model, forward and backward':36}" + "".join(f"{head:>11}" for head in heads))
    rows = []
    for name in TRAINED:
        if opts.only not in name:
            continue
        with torch.enable_grad():
            rows.append(m := train(name, opts))
        known = m.inductor is not None
        cells = [in_units(m.eager), in_units(m.inductor) if known else "-", in_units(m.tracejit), f"{m.eager / m.tracejit:.2f}",
                 f"{m.inductor / m.tracejit:.2f}" if known else "-", m.kernels, *map(in_units, (m.first, m.work, m.again)),
                 in_units(m.inductor_first) if known else "-"]
        print(f"{m.name:36}" + "".join(f"{cell:>11}" for cell in cells), flush=True)
    return rows


# -- memory ----------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Memory:
    """Bytes in eager and in tracejit: `saved` by the forward pass, `peak` of both passes; `gradients`: of all parameters."""
    name: str
    saved_eager: int
    saved: int
    peak_eager: int
    peak: int
    gradients: int


def allocated(run):
    """(bytes held after `run` of what it allocated while its result lives, the most that were at once)."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept = run()                                           # noqa: F841
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return now, peak


def occupy(name):
    import tracejit
    model, inputs = build(name)
    model.train()
    loss, found = loss_of(model), []
    for way in (loss, tracejit.jit(loss, fallback="error")):
        for _ in range(2):                                     # what a first call leaves is no part of a step
            way(**inputs).backward()
            model.zero_grad()
        found.append((allocated(lambda: way(**inputs))[0], allocated(lambda: way(**inputs).backward())[1]))
        gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
        model.zero_grad()
    (saved_eager, peak_eager), (saved, peak) = found
    return Memory(name, saved_eager, saved, peak_eager, peak, gradients)


def memory(opts):
    heads = ["saved", "eager's", "of eager's", "peak", "eager's", "of eager's", "gradients"]
    print(f"\n{'training step, MB':24}" + "".join(f"{head:>12}" for head in heads))
    rows = []
    for name in TRAINED:
        if opts.only not in name:
            continue
        with torch.enable_grad():
            rows.append(m := occupy(name))
        cells = [f"{m.saved / 1e6:.1f}", f"{m.saved_eager / 1e6:.1f}", f"{m.saved / m.saved_eager:.2f}", f"{m.peak / 1e6:.1f}",
                 f"{m.peak_eager / 1e6:.1f}", f"{m.peak / m.peak_eager:.2f}", f"{m.gradients / 1e6:.1f}"]
        print(f"{m.name:24}" + "".join(f"{cell:>12}" for cell in cells), flush=True)
    return rows
