"""Transforms: functions Trace -> Trace of the user's own, between the passes and the executors."""
from dataclasses import replace

import pytest
import torch

import tracejit

from cases.handmade import tensor



def double_every_add(trace):
    """A worked example: replaces each add by the call of the same function with alpha=2."""

    def rewritten(b):
        return replace(b, kwargs={**b.kwargs, "alpha": 2}) if b.sym.packet == "add" else b

    return trace.replace(bound_symbols=tuple(map(rewritten, trace.bound_symbols)))


@pytest.mark.compiler
def test_transform_rewrites_the_program():
    jfn = tracejit.jit(lambda x, y: (x + y) * y, transforms=[double_every_add], fallback="error")
    for _ in range(2):
        assert torch.equal(jfn(torch.ones(2), torch.full((2,), 3.0)), torch.full((2,), 21.0))
    assert [t.stage for t in jfn.last_traces][-3:] == ["double_every_add", "decompose", "partition"]
    made = jfn.last_traces[-3]
    assert (
        made.previous == "dce"
        and made.seconds >= 0
        and "alpha=2" in str(made)
        and "# double_every_add from dce" in str(made)
    )


def test_transforms_run_in_order_on_the_functionalized_trace():
    seen = []

    def first(trace):
        seen.append(("first", trace.stage, trace.count("add_"), trace.count("copy_")))
        return trace

    def second(trace):
        seen.append(("second", trace.stage))
        return trace

    tracejit.jit(lambda x: x.add_(1), transforms=(first, second), fallback="error")(torch.ones(2))
    assert seen == [("first", "dce", 0, 1), ("second", "first")]


def drops_a_call(trace):
    return trace.replace(bound_symbols=trace.bound_symbols[1:])


def unknown_result(trace):
    return trace.replace(output=(tensor("nowhere", (2,), 999),))


def no_symbol(trace):
    return trace.replace(
        bound_symbols=(replace(trace.bound_symbols[0], sym=torch.add), *trace.bound_symbols[1:])
    )


def not_bound_symbols(trace):
    return trace.replace(bound_symbols=("add",))


def returns_text(trace):
    return str(trace)


@pytest.mark.parametrize("checking", ["0", "1"])
@pytest.mark.parametrize(
    "transform",
    [drops_a_call, unknown_result, no_symbol, not_bound_symbols, returns_text],
    ids=lambda t: t.__name__,
)
def test_malformed_result_of_a_transform_is_a_trace_error_naming_it(transform, checking, monkeypatch):
    monkeypatch.setenv("TRACEJIT_CHECK", checking)
    x = torch.ones(2)
    with pytest.raises(tracejit.TraceError, match=transform.__name__):
        tracejit.jit(lambda x: (x + 1) * x.mul_(2), transforms=(transform,), fallback="error")(x)
    assert torch.equal(x, torch.ones(2))


def test_error_inside_a_transform_comes_through():
    def fails(trace):
        raise KeyError("in a transform")

    with pytest.raises(KeyError, match="in a transform"):
        tracejit.jit(lambda x: x + 1, transforms=(fails,), fallback="error")(torch.ones(2))


@pytest.mark.parametrize("transforms", [3, "text", (None,), [3]])
def test_transforms_must_be_functions(transforms):
    with pytest.raises(TypeError, match="transforms"):
        tracejit.jit(lambda x: x, transforms=transforms)
