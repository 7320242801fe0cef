"""Warnings of a program: every call raises them anew, as eager does, and Python's filters say what becomes of them."""
import logging
import sys
import warnings
from functools import lru_cache

import pytest
import torch

import tracejit

WARN = warnings.warn


def of_its_own_line(x):
    warnings.warn("old", DeprecationWarning)
    return x + 1


def helper():
    warnings.warn("helped", stacklevel=2)


def of_lines_that_call(x):
    helper()
    x.add_(1)
    warnings.warn(UserWarning("twice"), stacklevel=2)
    return x


def of_a_function_of_torch(x):
    return torch.nn.functional.softmax(x)                      # without a dim, it warns


def hidden_inside(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hidden")
    return x * 2


@lru_cache(None)
def remembered():
    warnings.warn("once")


def once_for_all(x):
    remembered()
    return x * 2


def with_a_hook(x):
    warnings.warn("replayed")
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda g: g)
    return y


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        warnings.warn("forward")
        return x * 2

    @staticmethod
    def backward(ctx, g):
        warnings.warn("backward")
        return g * 2


def of_a_function_of_ones_own(x):
    return Doubled.apply(x) * 2


PROGRAMS = [of_its_own_line, of_lines_that_call, of_a_function_of_torch, hidden_inside, once_for_all, with_a_hook, of_a_function_of_ones_own]


def heard(function, make, action, backward):
    """(text, class, line) of what three calls, one below another, warn of, and their results."""
    remembered.cache_clear()
    for module in (sys.modules[__name__], torch.nn.functional):
        vars(module).pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        results = []
        for _ in range(3):
            x = make()
            results += [x, function(x)]
            if backward:
                results[-1].sum().backward()
                results.append(x.grad)
    return [(str(w.message), w.category, w.filename, w.lineno) for w in caught], results


@pytest.mark.parametrize("action, gradients", [
    ("always", False), ("default", False), ("once", False), ("ignore", False), ("always", True), ("ignore", True)])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_every_call_warns_as_eager_does(program, action, gradients):
    if gradients and program is of_lines_that_call:
        program = of_its_own_line                              # that one writes a leaf

    def make():
        return torch.ones(3, requires_grad=gradients)
    jitted = tracejit.jit(program, fallback="error")
    want, results = heard(program, make, action, gradients)
    got, others = heard(jitted, make, action, gradients)
    assert got == want and jitted.cache_info().hits == 2
    assert all(torch.equal(a, b) for a, b in zip(results, others))


@pytest.mark.parametrize("program", PROGRAMS[:3], ids=lambda p: p.__name__)
def test_a_warning_that_a_filter_makes_an_error_is_raised_where_it_stands(program):
    jitted = tracejit.jit(program, fallback="error")
    x, y = torch.ones(3), torch.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jitted(torch.ones(3))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "twice|old|Implicit")
        warnings.filterwarnings("ignore", "helped")
        for function, argument in ((program, x), (jitted, y)):
            with pytest.raises(Warning):
                function(argument)
    assert torch.equal(x, y)


def test_a_first_call_under_error_filters():
    jitted = tracejit.jit(of_its_own_line, fallback="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(DeprecationWarning):
                jitted(torch.ones(3))


def test_warnings_that_are_logged(caplog):
    jitted = tracejit.jit(of_its_own_line, fallback="error")
    logging.captureWarnings(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            jitted(torch.ones(3)), jitted(torch.ones(3))
    finally:
        logging.captureWarnings(False)
    assert len(caplog.records) == 2 and "test_warnings.py" in caplog.text


def test_a_capture_that_runs_eagerly_in_the_end_warns_once():
    def program(x):
        warnings.warn("mine")
        return x.tolist()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tracejit.jit(program, fallback="silent")(torch.ones(2))
    assert [str(w.message) for w in caught] == ["mine"]


def test_other_compilers_of_a_call_warn_when_they_record_it():
    with pytest.warns(DeprecationWarning, match="old"):
        tracejit.functionalize(of_its_own_line)(torch.ones(3))


def test_what_a_fake_implementation_warns_of_is_not_the_programs():
    @torch.library.custom_op("tracejit_warnings::copied", mutates_args=())
    def copied(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @copied.register_fake
    def _(x):
        warnings.warn("of a fake")
        return torch.empty_like(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracejit.jit(lambda x: copied(x) + 1, fallback="error")(torch.ones(3))


def test_warn_is_as_before():
    with pytest.warns(DeprecationWarning):
        tracejit.jit(of_its_own_line)(torch.ones(3))
    assert warnings.warn is WARN
