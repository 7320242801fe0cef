"""More of `messages`: what few programs meet."""
import os
import shutil
import sys
import tempfile
import warnings
from unittest import mock
from warnings import warn

import torch

import tracejit
from tracejit.executors import compiler

from .messages import HOLDER, WORDS, functionalized, program, transformed, use, x

# ------------------------------------------------------------ what the recorder has no form for


class Plain:
    pass


@program
def stores_an_object_with_a_list_from_before(x):
    made = Plain()
    made.words = WORDS
    HOLDER.made = made
    return x * 2


@program
def resizes_an_operand_by_out(x):
    return torch.mul(x, torch.ones(2, 3), out=x)


@program
def warns_by_a_function_taken_before(x):
    warn("old")
    return x * 2


@program
def warns_under_filters_of_its_own(x):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("new")
    return x * 2


@program
def sets_the_state_of_the_generator(x):
    torch.set_rng_state(STATE)
    return x * torch.rand(3)


@program
def quantizes(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize()


@program
def catches_an_error_of_many_writes(x):
    try:
        torch._foreach_add_([x, x[:2]], [torch.ones(3), torch.ones(5)])
    except RuntimeError:
        pass
    return x * 2


STATE = torch.get_rng_state()


# ------------------------------------------------------------ gradients of gradients

@use
def second_derivative_of_results_computed_from_each_other():
    def both(x):
        y = x * x
        return y, y * y
    start = x().requires_grad_()
    y, z = tracejit.jit(both, fallback="error")(start)
    (first,) = torch.autograd.grad(z.sum(), y, create_graph=True)
    first.sum().backward()


# ------------------------------------------------------------ transforms, inspection and interfaces

@use
def transform_that_names_two_inputs_alike():
    transformed(lambda trace: trace.replace(inputs=trace.inputs * 2), lambda x: x * 2)


@torch.library.custom_op("tracejit_messages::bump", mutates_args=("state",))
def bump(state: torch.Tensor) -> None:
    state.add_(1)


@use
def functional_form_of_an_op_that_writes():
    def program(x):
        bump(x)
        return x * 2
    functionalized(program, x())


@use
def functional_form_of_a_function():
    functionalized(lambda x: (x * 2, torch.relu), x())


@use
def functional_form_of_bits():
    def program(x):
        y = x * 2
        y.view(torch.int32)[:1] = 0
        return y
    functionalized(program, x())


@use
def unknown_name_of_the_package():
    tracejit.compile


@use
def fusion_whose_name_is_none():
    tracejit.Fusion(name="my fusion")


@use
def picture_without_a_drawing_library():
    jitted = tracejit.jit(lambda x: x * 2)
    jitted(x())
    without_matplotlib = mock.patch.dict(sys.modules, {"matplotlib.backends.backend_svg": None})
    with mock.patch.object(shutil, "which", lambda name: None), without_matplotlib:
        jitted.last_traces[0].graph().svg()


# ------------------------------------------------------------ without a compiler

@use
def no_compiler():
    found = compiler.compiler, compiler.machine, compiler.machine_flags
    with mock.patch.dict(os.environ, {"CC": "tracejit-has-no-such-compiler"}):
        for f in found:
            f.cache_clear()
        try:
            fuser = tracejit.CpuExecutor(kernel_cache=tempfile.mkdtemp())
            tracejit.jit(lambda x: (x + 1) * 2, executors=[fuser])(x())
        finally:
            for f in found:
                f.cache_clear()
