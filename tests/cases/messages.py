"""Programs and uses of which each is answered by a message of tracejit's own: what happened, where, and what to do."""
import random
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Callable, Optional

import numpy
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import tracejit


@dataclass(frozen=True)
class Case:
    """`use()` raises the message, or warns it. where: does it name a line of the program?"""

    name: str
    use: Callable[[], Any]
    where: bool = True


CASES: list[Case] = []


def x():
    return torch.tensor([1.0, 2.0, 3.0])


def use(fn):
    """A case that is no call of a jitted function."""
    CASES.append(Case(fn.__name__, fn, where=False))
    return fn


def program(fn=None, *, args: Callable[[], tuple] = lambda: (x(),), around: Optional[Callable] = None):
    """A function that is not traced. around: a context in which it is called."""
    def listed(fn):
        def call():
            jitted, given = tracejit.jit(fn, fallback="error"), args()
            if around is None:
                return jitted(*given)
            with around():
                return jitted(*given)
        CASES.append(Case(fn.__name__, call))
        return fn
    return listed(fn) if fn is not None else listed


# ------------------------------------------------------------ values of tensors

@program
def branches_on_a_sum(x):
    if x.sum() > 0:
        return x
    return x * 2


@program
def counts_what_is_positive(x):
    return x[x > 1] * 2


@program
def takes_an_integer_of_a_tensor(x):
    return x[:int(x.sum())]


@program
def indexes_by_a_number(x):
    n = x.sum().item()
    return list(range(3))[n]


@program
def prints_a_tensor(x):
    return str(x)


@program
def asks_for_numpy(x):
    return torch.as_tensor(x.numpy())


@program
def asks_for_an_address(x):
    return (x + 1).data_ptr()


@program(args=lambda: (x()[1:],))
def asks_for_a_base(x):
    return x._base * 2


@program
def asks_for_a_storage(x):
    return x.untyped_storage().data_ptr()


@program(args=lambda: (x(), torch.tensor([0])))
def catches_an_error_of_values(x, i):
    try:
        return x[i]
    except IndexError:
        return x


@program
def makes_a_tensor_over_numpy(x):
    return x + torch.from_numpy(ARRAY)


ARRAY = numpy.ones(3, numpy.float32)


# ------------------------------------------------------------ the world outside

@program
def prints(x):
    print("sum")
    return x


@program
def asks_for_the_time(x):
    return x * time.time()


@program
def draws_from_python(x):
    return x * random.random()


@program
def draws_from_numpy(x):
    return x * float(numpy.random.rand())


@program
def draws_from_a_generator_of_numpy(x):
    return x * float(GENERATOR.random())


GENERATOR = numpy.random.default_rng(0)


@program
def seeds(x):
    torch.manual_seed(0)
    return x + torch.rand(3)


@program
def reads_a_file(x):
    with open(__file__) as file:
        return x * len(file.read())


@program
def leaves_a_setting_changed(x):
    torch.set_num_threads(torch.get_num_threads() + 1)
    return x * 2


@program
def computes_under_another_setting(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    y = x * torch.ones(3)
    torch.set_default_dtype(before)
    return y


@program
def replaces_the_profile_hook(x):
    sys.setprofile(None)
    return x * 2


# ------------------------------------------------------------ Python state

class Holder:
    pass


HOLDER, ITERATOR, LARGE, NESTED, WORDS, OBJECTS = Holder(), iter([1.0, 2.0]), numpy.ones(1 << 20), [], {"a": 1, "b": 2}, {Holder()}
NESTED.append(NESTED)


@program
def uses_an_iterator_made_before(x):
    return x * next(ITERATOR)


@program
def reads_a_large_array(x):
    return x * float(LARGE[0])


@program
def reads_a_list_that_contains_itself(x):
    return x * len(NESTED)


@program
def stores_a_list_that_contains_itself(x):
    made = [x]
    made.append(made)
    HOLDER.made = made
    return x * 2


@program
def reorders_a_dict(x):
    WORDS["a"] = WORDS.pop("a") + 1
    return x * WORDS["a"]


@program
def removes_from_a_set(x):
    OBJECTS.pop()
    return x * 2


@program
def writes_into_an_array(x):
    ARRAY[0] = 2
    return x * 2


@program
def returns_a_generator(x):
    return (x * k for k in range(2))


@program
def casts_by_data(x):
    y = x * 2
    y.data = y.double()
    return y


@program
def returns_a_parameter(x):
    return nn.Parameter(x * 2)


@lru_cache(None)
def remembered(n):
    return torch.ones(n)


@program
def remembers_a_tensor(x):
    return x * remembered(3)


# ------------------------------------------------------------ autograd

@program(args=lambda: (x().requires_grad_(),))
def sets_hooks_on_saved_tensors(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return x * x


@program(args=lambda: (x().requires_grad_(),))
def checkpoints_what_draws(x):
    return checkpoint(lambda x: x * torch.rand(3), x, use_reentrant=False)


@program(args=lambda: (x().requires_grad_(),))
def computes_a_result_from_one_of_checkpoint(x):
    first = checkpoint(lambda x: x.exp(), x, use_reentrant=False)
    return first, first * 2


@use
def second_derivative_of_what_writes():
    def writes(x, state):
        state.add_(1)
        return x * x * state

    start = x().requires_grad_()
    (first,) = torch.autograd.grad(tracejit.jit(writes, fallback="error")(start, x()).sum(), start, create_graph=True)
    first.sum().backward()


# ------------------------------------------------------------ what is around a call, and its arguments

class SeesEverything(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs or {})


@program(around=SeesEverything)
def called_under_a_dispatch_mode(x):
    return x * 2


@program(around=lambda: torch.device("cpu"))
def called_under_a_device_context(x):
    return x * 2


@use
def called_under_vmap():
    return torch.vmap(tracejit.jit(lambda x: x * 2, fallback="error"))(torch.ones(2, 2))


@program(args=lambda: (torch.eye(3).to_sparse(),))
def takes_a_sparse_tensor(x):
    return x * 2


@program(args=lambda: (torch.ones(3, device="meta"),))
def takes_a_meta_tensor(x):
    return x * 2


class Marked(torch.Tensor):
    pass


@program(args=lambda: (x().as_subclass(Marked),))
def takes_a_subclass(x):
    return x * 2


@program
def uses_a_scripted_module(x):
    return SCRIPTED(x)


SCRIPTED = torch.jit.script(nn.ReLU())


@use
def warns_instead_of_raising():
    return tracejit.jit(branches_on_a_sum)(x())


@use
def warns_of_many_compiles():
    jitted = tracejit.jit(lambda x, n: x * n, dynamic=False)
    for n in range(12):
        jitted(x(), n)


# ------------------------------------------------------------ options and executors

@use
def unknown_option():
    tracejit.jit(lambda x: x, fulgraph=True)


@use
def wrong_value_of_an_option():
    tracejit.jit(lambda x: x, fallback="never")


@use
def options_of_executors_are_no_mapping():
    tracejit.jit(lambda x: x, executor_options=["cpu"])


@use
def transforms_are_no_functions():
    tracejit.jit(lambda x: x, transforms="cse")


@use
def not_callable():
    tracejit.jit(3)


@use
def unknown_executor():
    tracejit.jit(lambda x: x + 1, executors=["nvfuser"])(x())


@use
def executor_that_is_none():
    tracejit.jit(lambda x: x + 1, executors=[3])(x())


@use
def an_open_dim_of_what_is_no_tensor():
    tracejit.mark_dynamic([1, 2], 0)


@use
def an_open_dim_that_is_not_there():
    tracejit.mark_dynamic(torch.ones(2, 3), 2)


@use
def options_of_an_executor_that_is_not_asked():
    tracejit.jit(lambda x: x + 1, executors=["torch"], executor_options={"cpu": {}})(x())


@use
def unknown_option_of_an_executor():
    tracejit.jit(lambda x: x + 1, executor_options={"cpu": {"threads": 2}})(x())


class Own(tracejit.Executor):
    name = "own"

    def can_execute(self, bsym):
        return True

    def execute(self, bsym):
        return None


@use
def executor_without_a_name():
    tracejit.register_executor(tracejit.Executor())


@use
def executor_of_a_taken_name():
    class Impostor(Own):
        name = "cpu"
    tracejit.register_executor(Impostor())


@use
def executor_that_returns_nothing():
    tracejit.jit(lambda x: x + 1, executors=[Own()])(x())


@use
def executor_that_fuses_into_nothing():
    class Fuser(Own):
        def can_execute(self, bsym):
            return False

        def can_fuse(self, bsym):
            return True

        def fuse(self, region):
            return replace(region, output=())
    tracejit.jit(lambda x: (x + 1) * 2, executors=[Fuser()])(x())


# ------------------------------------------------------------ transforms

def transformed(transform, fn):
    tracejit.jit(fn, transforms=[transform], fallback="error")(x())


def adds_and_doubles(x):
    x.add_(1)
    return x * 2


@use
def transform_that_returns_text():
    transformed(str, adds_and_doubles)


@use
def transform_that_drops_what_is_read():
    transformed(lambda trace: trace.replace(bound_symbols=trace.bound_symbols[1:]), adds_and_doubles)


@use
def transform_that_drops_a_write():
    transformed(lambda trace: trace.replace(bound_symbols=tuple(b for b in trace.bound_symbols if not b.written)), adds_and_doubles)


@use
def transform_that_reorders_writes():
    def writes_and_reads(x):
        y = x * 2
        x.add_(1)
        return y
    def last_write_first(trace):
        *others, write = sorted(trace.bound_symbols, key=lambda b: bool(b.written))
        made = [b for b in others if b.output in write.tensor_args]
        return trace.replace(bound_symbols=(*made, write, *(b for b in others if b not in made)))
    transformed(last_write_first, writes_and_reads)


# ------------------------------------------------------------ inspection and interfaces

@use
def reproduction_of_another_executor():
    lowered = tracejit.lower(lambda x: x.sigmoid() * x, torch.empty(64))
    from tracejit.inspection.kernels import Kernel
    Kernel(lowered.kernels[0].region).save_repro(tempfile.gettempdir())


@use
def raw_kernel_of_the_cpu():
    jitted = tracejit.jit(lambda x: (x + 1) * 2, fallback="error")
    jitted(x())
    jitted.kernels[0].raw_kernel()


@use
def lower_for_the_cpu():
    tracejit.lower(lambda x: x * 2, x(), device="cpu")


@use
def lower_for_an_unknown_architecture():
    tracejit.lower(lambda x: x * 2, x(), arch="hopper")


@use
def lower_runs_nothing():
    tracejit.lower(lambda x: x * 2, x()).kernels[0].region.sym.fn(x())


def functionalized(fn, *args):
    tracejit.functionalize(fn)(*args)


@use
def functional_form_of_stored_state():
    def stores(x):
        HOLDER.last = x * 2
        return x
    functionalized(stores, x())


@use
def functional_form_of_a_number():
    functionalized(lambda x: x * x.sum().item(), x())


@use
def functional_form_of_a_resize():
    functionalized(lambda x: x.resize_(8), x())


@use
def functional_form_of_shared_memory():
    def adds(x, y):
        x.add_(1)
        return x + y
    shared = x()
    functionalized(adds, shared, shared[:])


def fusion(define):
    """A case in the `with` block of a `Fusion`."""
    def call():
        with tracejit.Fusion() as f:
            define(f, f.tensor(ndim=1))
    CASES.append(Case(define.__name__, call))
    return define


@fusion
def fusion_with_an_unknown_op(f, x):
    f.ops.rellu(x)


@fusion
def fusion_with_a_wrong_call(f, x):
    f.ops.relu(x, inplace=True)


@fusion
def fusion_with_a_tensor(f, x):
    f.ops.add(x, torch.ones(3))


@fusion
def fusion_with_a_value_of_another(f, x):
    f.output(FUSION_INPUT)


@fusion
def fusion_with_an_element_of_a_tensor(f, x):
    x[0]


@fusion
def fusion_without_outputs(f, x):
    f.ops.relu(x)


@fusion
def fusion_called_too_early(f, x):
    f(torch.ones(3))


with tracejit.Fusion() as FUSION:
    FUSION_INPUT = FUSION.tensor(ndim=2)
    FUSION.output(FUSION_INPUT)


@use
def fusion_after_its_block():
    FUSION.tensor(ndim=1)


@use
def fusion_with_a_wrong_argument():
    FUSION(torch.ones(3))


@use
def fusion_with_too_many_arguments():
    FUSION(torch.ones(3, 3), 1)
