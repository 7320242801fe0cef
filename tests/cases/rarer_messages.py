"""More of `messages`: what hardly any program meets."""
import ctypes
import io
import operator
import os
import tempfile
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import GenericAlias, SimpleNamespace
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import tracejit
from tracejit.__main__ import main
from tracejit.capture import modes
from tracejit.executors import compiler, cupy, kernel_cache, nvrtc
from tracejit.passes.inplace_check import inplace_check

from . import handmade
from .messages import HOLDER, WORDS, Marked, fusion, program, transformed, use, x
from .replay_messages import leaf, results_whose_histories_mix

# ------------------------------------------------------------ arguments, state and results


def moved_away():
    view = (leaf() * 1)[:]
    view.data = torch.ones(3)
    return (view,)


@program(args=moved_away)
def takes_a_view_that_left_its_base(x):
    return x * 2


@program
def asks_for_the_nodes_before(x):
    return (x.requires_grad_() * 2).grad_fn.next_functions


@program(args=lambda: (torch.quantize_per_tensor(x(), 0.1, 0, torch.quint8),))
def takes_a_quantized_tensor(x):
    return x.dequantize()


@program(args=lambda: (torch._efficientzerotensor((3,)),))
def takes_a_zero_tensor(x):
    return x * 2


@program(around=lambda: torch.autograd.graph.save_on_cpu())
def called_under_hooks_on_saved_tensors(x):
    return x * 2


@use
def called_under_torch_jit_trace():
    torch.jit.trace(tracejit.jit(lambda x: x * 2, fallback="error"), x(), check_trace=False)


@program(around=lambda: mock.patch.object(modes, "MISSING", ["torch._C._of_another_release"]))
def called_under_another_release_of_torch(x):
    return x * 2


class Mine(list):
    pass


@program
def stores_a_container_of_ones_own(x):
    HOLDER.made = Mine([WORDS])
    return x


class Kept:
    def keep(self, value):
        self.value = value


KEPT = GenericAlias(list, (Kept(), torch.ones(3)))        # what it holds is seen by nothing in Python


@program
def writes_to_an_object_of_unknown_origin(x):
    KEPT.__args__[0].keep(x * 2)
    return x


@program
def asks_for_the_class_of_a_number(x):
    n = x.sum().item()
    return x * n, type(n) is float


@program
def uses_a_tensor_of_unknown_origin(x):
    return x * KEPT.__args__[1]


NUMBER_IN_C, NAMES, NEXT = ctypes.c_int(3), np.array([["a"], "b"], dtype=object), [iter((1, 2))]


@program
def reads_memory_of_ctypes(x):
    return x * NUMBER_IN_C.value


@program
def reads_an_array_of_objects(x):
    return x * len(NAMES[0])


@program
def moves_an_iterator_in_a_list(x):
    return x * next(NEXT[0])


ones_of_any_size = lru_cache(None)(torch.ones)


@program
def fills_a_cache_unseen(x):
    return x * ones_of_any_size(3)


@program
def transforms_a_function_inside(x):
    return torch.vmap(lambda a: a * 2)(x)


@program
def makes_a_tensor_of_a_subclass(x):
    return x.as_subclass(Marked) * 2


@program
def uses_a_fake_tensor(x):
    return x * FAKE


with FakeTensorMode():
    FAKE = torch.ones(3)


@program(args=lambda: (torch.ones(2, 3),))
def transposes_unseen(x):
    y = x * 2
    with torch._C._DisableTorchDispatch():
        y.t_()
    return y + 1


@program(args=lambda: (torch.ones(2, 1, 2),))
def compares_through_a_map(x):
    return list(map(operator.lt, [TRANSPOSED], [x * 2]))


TRANSPOSED = torch.ones(2, 1, 2).permute(2, 1, 0)


def with_a_gradient():
    start = leaf()
    start.grad = torch.ones(3)
    return start, start.grad.view(3)


@program(args=with_a_gradient)
def asks_for_the_address_of_a_gradient(x, gradient):
    return gradient * gradient.data_ptr()


@program(around=lambda: mock.patch("threading.active_count", lambda: 1))
def sets_the_generator_from_c(x):
    list(map(torch.default_generator.set_state, [STATE]))
    return x * torch.rand(3)


STATE = torch.Generator().manual_seed(123).get_state()


@use
def distributed_module():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tracejit.jit(DistributedDataParallel(torch.nn.Linear(3, 3)), fallback="error")(x())
    finally:
        dist.destroy_process_group()


@program
def passes_a_number_to_what_draws(x):
    return torch.bernoulli(x, x.sum().item())


@use
def takes_a_power_of_a_negative_number():
    tracejit.jit(lambda x: x * x.sum().item() ** 0.5, fallback="error")(-x())


# ------------------------------------------------------------ operators of one's own

LIBRARY = torch.library.Library("tracejit_messages", "FRAGMENT")
LIBRARY.define("rest(Tensor(a) x) -> Tensor(a)")
LIBRARY.define("grown(Tensor(a!) x) -> Tensor(a!)")
LIBRARY.impl("rest", lambda x: x[1:], "CPU")
LIBRARY.impl("grown", lambda x: x.resize_(5), "CPU")


@program
def resizes_in_an_operator_of_ones_own(x):
    return torch.ops.tracejit_messages.grown(x * 2)


@program
def views_by_an_operator_of_ones_own(x):
    return torch.ops.tracejit_messages.rest(x * 2)


@torch.library.custom_op("tracejit_messages::turned", mutates_args=())
def turned(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


@turned.register_fake
def _(x):
    return torch.empty_like(x)


@program(args=lambda: (torch.ones(2, 3),))
def lays_out_otherwise_than_it_says(x):
    return (turned(x) + 1) * 2


# ------------------------------------------------------------ gradients

@program(args=lambda: (leaf(),))
def hook_that_holds_a_tensor_of_the_call(x):
    weights = x.exp()
    y = weights * 2
    y.register_hook(lambda g: g * weights)
    return y


@use
def second_derivative_after_a_write():
    start, other = leaf(), x()
    square = tracejit.jit(lambda x, y: x * x + y, fallback="error")(start, other)
    other.add_(1)
    torch.autograd.grad(square.sum(), start, create_graph=True)


def of_results_whose_histories_mix():
    return tracejit.jit(results_whose_histories_mix, fallback="error")(leaf())


@use
def retains_the_gradient_of_a_result_that_is_mixed_with_another():
    y, loss = of_results_whose_histories_mix()
    y.retain_grad()
    loss.backward()


@use
def backward_of_a_result_that_another_was_detached_from():
    y, loss = of_results_whose_histories_mix()
    y.detach_()
    loss.backward()


@use
def backward_after_a_result_was_written():
    y, loss = of_results_whose_histories_mix()
    with torch.no_grad():
        y.add_(1)
    loss.backward()


@program(args=lambda: (leaf() * 2,))
def step_whose_argument_has_history(x):
    x.sum().backward()


@use
def backward_a_second_time():
    y = tracejit.jit(lambda x: x * x, fallback="error")(leaf())
    y.sum().backward()
    y.sum().backward()


# ------------------------------------------------------------ lower, functional forms, inspection

@use
def lower_what_is_replayed():
    def asks(x):
        x.untyped_storage().resize_(0)
        return x
    tracejit.lower(asks, x())


@use
def lower_with_gradients():
    def enables(x):
        with torch.enable_grad():
            return x * 2
    tracejit.lower(enables, leaf())


@use
def region_whose_iterations_read_each_other():
    memory, seen = handmade.tensor("x", (4, 4), 0), handmade.tensor("seen", (4, 4), 0, stride=(1, 4))
    read = handmade.call(handmade.aten.mul.Tensor, (seen, 2), handmade.tensor("v0", (4, 4), 1))
    final = handmade.trace([memory, seen], handmade.region("my_region0", read, handmade.copy_(memory, handmade.tensor("v1", (4, 4), 2))))
    inplace_check(final, handmade.unfused(final))


def calls_changed(change):
    """A transform that changes the last call."""
    return lambda trace: trace.replace(bound_symbols=(*trace.bound_symbols[:-1], *change(trace.bound_symbols[-1])))


@use
def transform_that_returns_text_for_a_call():
    transformed(calls_changed(lambda b: ["call"]), lambda x: x * 2)


@use
def transform_that_names_an_op_by_text():
    transformed(calls_changed(lambda b: [replace(b, sym="aten.mul")]), lambda x: x * 2)


@use
def transform_that_binds_twice():
    transformed(calls_changed(lambda b: [b, b]), lambda x: x * 2)


@use
def transform_that_reads_an_impostor():
    transformed(calls_changed(lambda b: [replace(b, args=(replace(b.args[0], dtype=torch.int32), 2))]), lambda x: x * 2)


@use
def transform_that_tells_a_wrong_shape():
    transformed(calls_changed(lambda b: [replace(b, output=replace(b.output, shape=(3, 1)))]), lambda x: x * 2)


@use
def transform_that_tells_no_dtype():
    transformed(calls_changed(lambda b: [replace(b, output=replace(b.output, dtype=float))]), lambda x: x * 2)


@use
def executor_that_drops_a_call():
    class Dropping(tracejit.Executor):
        name = "dropping"

        def can_execute(self, bsym):
            return False

        def can_fuse(self, bsym):
            return True

        def fuse(self, region):
            return replace(region, subsymbols=region.subsymbols[:-1])
    tracejit.jit(lambda x: (x + 1) * 2, executors=[Dropping()])(x())


@use
def transform_that_returns_what_nothing_makes():
    transformed(lambda trace: trace.replace(output=tuple(replace(o, name="lost") for o in trace.output)), lambda x: x * 2)


@use
def command_with_no_function():
    told = io.StringIO()
    with redirect_stderr(told), suppress(SystemExit):
        main(["explain", "model"])
    return told.getvalue().strip().splitlines()[-1]


# ------------------------------------------------------------ fusions

@fusion
def fusion_defined_twice(f, x):
    with f:
        pass


@fusion
def fusion_of_no_dims(f, x):
    f.tensor(ndim=-1)


@fusion
def fusion_of_a_text(f, x):
    f.scalar(str)


@fusion
def fusion_with_an_operand_of_another(f, x):
    with tracejit.Fusion() as other:
        y = other.tensor(ndim=1)
        other.output(y)
    f.ops.add(x, y)


# ------------------------------------------------------------ compilers and libraries that are broken

@contextmanager
def compiled_by(script: str, timeout: float = 100.0):
    """A compiler that is this shell script, in a directory of its own."""
    found = compiler.compiler, compiler.machine, compiler.machine_flags
    with tempfile.TemporaryDirectory() as directory:
        command = Path(directory, "cc")
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        with mock.patch.dict(os.environ, {"CC": str(command), "TRACEJIT_CHECK": "0"}), mock.patch.object(compiler, "TIMEOUT", timeout):
            for f in found:
                f.cache_clear()
            try:
                yield tracejit.CpuExecutor(kernel_cache=directory)
            finally:
                for f in found:
                    f.cache_clear()


def compiled(script, timeout=100.0):
    with compiled_by(script, timeout) as executor:
        tracejit.jit(lambda x: (x + 1) * 2, executors=[executor])(x())


@use
def compiler_that_tells_no_version():
    compiled("exit 1")


@use
def compiler_that_fails():
    compiled(FAILS)


@use
def compiler_that_hangs():
    compiled('[ "$1" = --version ] || exec sleep 60', timeout=0.5)


@use
def compiler_that_makes_no_library():
    compiled('[ "$1" = --version ] && exit\nwhile [ "$1" != -o ]; do shift; done\necho text > "$2"')


@use
def cache_that_cannot_be_written():
    with mock.patch.object(kernel_cache.DiskCache, "put", side_effect=OSError(28, "No space left on device")):
        compiled('[ "$1" = --version ] && exit\nwhile [ "$1" != -o ]; do shift; done\necho text > "$2"')


@use
def sources_that_cannot_be_written():
    with mock.patch.object(Path, "write_text", side_effect=OSError(28, "No space left on device")):
        compiled_without_room()


def compiled_without_room():
    executor = tracejit.CpuExecutor(kernel_cache=tempfile.mkdtemp())
    with mock.patch.dict(os.environ, {"TRACEJIT_CHECK": "0"}):
        tracejit.jit(lambda x: (x + 1) * 2, executors=[executor])(x())


def region_on_cuda():
    return tracejit.lower(lambda x: (x + 1) * 2, x(), device="cuda:0").kernels[0].region


@use
def cuda_without_cupy():
    with mock.patch.dict("sys.modules", {"cupy": None}):
        cupy.missing.cache_clear()
        try:
            tracejit.CupyExecutor().can_fuse(region_on_cuda().subsymbols[0])
        finally:
            cupy.missing.cache_clear()


@use
def cuda_without_nvrtc():
    here = mock.patch.dict("sys.modules", {"cupy": mock.MagicMock()})
    with here, mock.patch.object(nvrtc, "is_available", lambda: False):
        cupy.missing.cache_clear()
        try:
            tracejit.CupyExecutor().can_fuse(region_on_cuda().subsymbols[0])
        finally:
            cupy.missing.cache_clear()


@contextmanager
def nowhere():
    """No package, no toolkit and no system library of CUDA's."""
    nothing = mock.patch.multiple(nvrtc, _packages=lambda: [], cuda_home=lambda: None)
    with nothing, mock.patch("ctypes.util.find_library", lambda name: None), mock.patch("importlib.util.find_spec", lambda name: None):
        with mock.patch.object(Path, "exists", lambda path: False):
            yield


@use
def nvrtc_that_is_not_installed():
    with nowhere():
        nvrtc._library.__wrapped__()


@use
def headers_that_are_not_installed():
    with nowhere():
        nvrtc.include_directory.__wrapped__()


@use
def cuda_source_that_does_not_compile():
    refused = mock.patch.object(nvrtc, "compile_text", side_effect=nvrtc.NvrtcError("k0.cu(3): error: no way"))
    device = mock.patch.object(cupy, "Device", lambda index: SimpleNamespace(arch="sm_90", load=lambda cubin: None))
    with refused, device, mock.patch.dict(os.environ, {"TRACEJIT_CHECK": "0"}):
        tracejit.CupyExecutor(kernel_cache=tempfile.mkdtemp()).fuse(region_on_cuda())


# ------------------------------------------------------------ errors of eager's, where the compiler is broken

FAILS = '[ "$1" = --version ] || { echo no way >&2; exit 1; }'


def without_kernels(fn, *args):
    with compiled_by(FAILS) as executor:
        tracejit.jit(fn, executors=[executor])(*args)


@use
def target_that_is_no_class():
    without_kernels(lambda x, t: functional.nll_loss(x.log_softmax(-1), t), torch.ones(2, 3), torch.tensor([0, 99]))


@use
def probability_above_one():
    without_kernels(lambda x, t: functional.binary_cross_entropy(x * 2, t), torch.ones(3), torch.ones(3))


# ------------------------------------------------------------ fakes that tell other dims than the kernel makes

@use
def loss_of_one_row():
    tracejit.jit(lambda x, t: functional.multilabel_margin_loss(x, t, reduction="none"), fallback="error")(torch.ones(3), torch.tensor([1, -1, 0]))


@program
def an_object_that_leads_back_to_itself(x):
    made = SimpleNamespace(value=x * 2)
    made.itself = made
    return made
