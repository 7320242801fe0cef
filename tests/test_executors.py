"""Executors: registration, claiming, the torch fallback's choice of a public function."""
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tracejit
from tracejit.executors import registry
from tracejit.executors.torch_fallback import TORCH, public_function
from tracejit.ir.symbol import Symbol

from cases.handmade import aten, call, tensor
from cases.parity import assert_parity


@pytest.fixture(autouse=True)
def registry_is_put_back(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(registry, "_defaults", list(registry._defaults))


class MulExecutor(tracejit.Executor):
    """Takes aten.mul of two tensors and counts how often it ran."""

    name = "muls"

    def __init__(self):
        self.runs = 0

    def can_execute(self, bsym):
        return bsym.sym.overload is aten.mul.Tensor and len(bsym.tensor_args) == 2

    def execute(self, bsym):
        return replace(bsym, sym=Symbol("muls.mul", self.mul, bsym.sym.overload), executor=self.name)

    def mul(self, a, b):
        self.runs += 1
        return torch.ops.aten.mul.Tensor(a, b)


def program(x, y):
    x.mul_(y)
    return x * y + 1, x * 2


def make_args():
    return torch.arange(3.0), torch.full((3,), 2.0)


def executors_of(jfn):
    return [(b.sym.packet, b.executor) for b in jfn.last_traces[-1].bound_symbols]


# ------------------------------------------------------------------ registration


def test_registered_executor_is_found_by_name():
    muls = MulExecutor()
    assert tracejit.register_executor(muls) is muls and tracejit.get_executor("muls") is muls
    (fuser,) = tracejit.default_executors()
    assert fuser.name == "cpu"
    tracejit.register_executor(muls, default=True)
    tracejit.register_executor(muls, default=True)
    assert tracejit.default_executors() == (muls, fuser)


def test_registering_again_replaces_an_executor_of_the_same_class():
    first, second = MulExecutor(), MulExecutor()
    tracejit.register_executor(first, default=True)
    tracejit.register_executor(second)
    assert tracejit.get_executor("muls") is second and tracejit.default_executors()[0] is second


def test_unknown_name_lists_the_known_ones():
    tracejit.register_executor(MulExecutor())
    with pytest.raises(tracejit.TraceError, match="no executor is named 'mul'; there are cpu, cupy, muls, torch"):
        tracejit.get_executor("mul")


class Nameless(tracejit.Executor):
    pass


@pytest.mark.parametrize("thing", [Nameless(), MulExecutor, object(), "muls"])
def test_what_is_no_executor_cannot_be_registered(thing):
    with pytest.raises(tracejit.TraceError, match="is not an Executor with a name"):
        tracejit.register_executor(thing)


def test_taken_name_is_refused():
    class Impostor(tracejit.Executor):
        name = "torch"

    with pytest.raises(tracejit.TraceError, match="the executor name 'torch' is taken by TorchFallback"):
        tracejit.register_executor(Impostor())


# ------------------------------------------------------------------ claiming


@pytest.mark.parametrize("how", ["instance", "name", pytest.param("default", marks=pytest.mark.compiler), "list"])
def test_own_executor_runs_what_it_takes(how):
    muls = tracejit.register_executor(MulExecutor(), default=how == "default")
    options = {
        "instance": {"executors": (muls,)},
        "name": {"executors": ["muls"]},
        "default": {},
        "list": {"executors": [muls, "torch"]},
    }
    jfn = assert_parity(program, make_args, jit_options=options[how])
    assert muls.runs == 4  # two calls of two muls of tensors; x * 2 is not its own
    others = [("cpu_region0", "cpu")] if how == "default" else [("add", "torch"), ("mul", "torch"), ("copy_", "torch")]
    assert executors_of(jfn) == [("mul", "muls"), ("mul", "muls"), *others]


def test_executors_named_by_a_jit_are_the_only_ones_asked():
    muls = tracejit.register_executor(MulExecutor(), default=True)
    jfn = assert_parity(program, make_args, jit_options={"executors": []})
    assert muls.runs == 0 and {e for _, e in executors_of(jfn)} == {"torch"}


def test_executors_are_asked_in_order():
    class Second(MulExecutor):
        name = "second"

    for order in (["muls", "second"], ["second", "muls"]):
        tracejit.register_executor(MulExecutor()), tracejit.register_executor(Second())
        jfn = assert_parity(program, make_args, jit_options={"executors": order})
        assert executors_of(jfn)[0] == ("mul", order[0])


def test_an_error_in_an_executor_kernel_is_the_users_to_see():
    class Failing(MulExecutor):
        def mul(self, a, b):
            raise ZeroDivisionError("kernel")

    with pytest.raises(ZeroDivisionError, match="kernel"):
        tracejit.jit(program, executors=[Failing()], fallback="error")(*make_args())


def wrong(bsym, what):
    out = bsym.output
    return {
        "nothing": None,
        "a function": torch.mul,
        "a list": [bsym],
        "another name": replace(bsym, output=replace(out, name="other")),
        "a copy of the output": replace(bsym, output=replace(out)),
        "no output": replace(bsym, output=None),
        "one more output": replace(bsym, output=(out, replace(out, name="more"))),
    }[what]


@pytest.mark.parametrize(
    "what",
    [
        "nothing",
        "a function",
        "a list",
        "another name",
        "a copy of the output",
        "no output",
        "one more output",
    ],
)
def test_wrong_result_of_execute_is_a_trace_error_naming_executor_call_and_line(what):
    class Careless(MulExecutor):
        name = "careless"

        def execute(self, bsym):
            return wrong(bsym, what)

    x, y = make_args()
    with pytest.raises(tracejit.TraceError, match="executor 'careless' must return a BoundSymbol") as info:
        tracejit.jit(program, executors=[Careless()], fallback="error")(x, y)
    assert "torch.ops.aten.mul.Tensor(x, y)" in str(info.value) and "test_executors.py" in info.value.where
    assert torch.equal(x, make_args()[0]), "refused before anything ran"


def test_executor_that_reads_what_is_not_bound_is_a_trace_error():
    class Reading(MulExecutor):
        name = "reading"

        def execute(self, bsym):
            return replace(bsym, args=(bsym.args[0], tensor("nowhere", (3,), 999)), executor=self.name)

    with pytest.raises(tracejit.TraceError, match="nowhere is used before it is bound"):
        tracejit.jit(program, executors=[Reading()], fallback="error")(*make_args())


def test_executor_that_does_not_override_can_execute():
    class Lazy(tracejit.Executor):
        name = "lazy"

    with pytest.raises((NotImplementedError, tracejit.TraceError)):
        tracejit.jit(program, executors=[Lazy()], fallback="error")(*make_args())


def test_claiming_changes_no_name_and_no_order():
    jfn = tracejit.jit(program, executors=[MulExecutor()], fallback="error")
    jfn(*make_args())
    before, after = jfn.last_traces[-2:]
    assert [b.output for b in before.bound_symbols] == [b.output for b in after.bound_symbols]
    assert [b.sym.overload for b in before.bound_symbols] == [b.sym.overload for b in after.bound_symbols]


# ------------------------------------------------------------------ the torch fallback


class Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def f32(name="x", shape=(2, 2), **layout):
    return tensor(name, shape, 100 + sum(map(ord, name)), **layout)


i64, cond, cplx = f32("i", dtype=torch.int64), f32("c", dtype=torch.bool), f32("z", dtype=torch.complex64)
TAKES = {
    "add": call(aten.add.Tensor, (f32(), f32("y"))),
    "add scalar": call(aten.add.Tensor, (f32(), 2)),
    "add alpha": call(aten.add.Tensor, (f32(), f32("y")), alpha=2),
    "add_": call(aten.add_.Tensor, (f32(), 1)),
    "mul": call(aten.mul.Tensor, (f32(), i64)),
    "relu": call(aten.relu.default, (f32(),)),
    "sum": call(aten.sum.dim_IntList, (f32(), [0])),
    "select": call(aten.select.int, (f32(), 0, 1)),
    "where": call(aten.where.self, (cond, f32(), f32("y"))),
    "mm": call(aten.mm.default, (f32(), f32("y"))),
    "copy_": call(aten.copy_.default, (f32(), f32("y"))),
    "fill_": call(aten.fill_.Scalar, (f32(), 1.0)),
    "cat": call(aten.cat.default, ([f32(), f32("y")], 0)),
    "view": call(aten.view.default, (f32(), [4])),
    "gather": call(aten.gather.default, (f32(), 0, i64)),
    "complex": call(aten.mul.Tensor, (cplx, 2)),
}
# Other ops, other arguments, or no function of this name.
REFUSED = {
    "slice": call(aten.slice.Tensor, (f32(), 0, 0, 1)),
    "to_copy": call(aten._to_copy.default, (f32(),), dtype=torch.float64),
    "unsafe_view": call(aten._unsafe_view.default, (f32(), [4])),
    "div scalar": call(aten.div.Scalar, (f32(), 2.0)),
    "add scalar overload": call(aten.add.Scalar, (f32(), 2.0)),
    "eq scalar as tensor": call(aten.eq.Tensor, (f32(), f32("y", ()))),
    "conjugated": call(aten.add.Tensor, (replace(cplx, conj=True), 1)),
    "empty_like with a layout": call(
        aten.empty_like.default, (f32(),), layout=torch.strided, generator=object()
    ),
    "index": call(aten.index.Tensor, (f32(), [i64])),
    "linear": call(aten.linear.default, (f32(), f32("y"))),
}


def taken(b):
    return TORCH.execute(b).sym.fn


@pytest.mark.parametrize("b", TAKES.values(), ids=TAKES)
def test_public_function_is_taken_where_it_is_the_same_op(b):
    fn = taken(b)
    assert fn in (getattr(torch, b.sym.packet, None), getattr(torch.Tensor, b.sym.packet, None))


@pytest.mark.parametrize("b", {**TAKES, **REFUSED}.values(), ids={**TAKES, **REFUSED})
def test_whatever_is_taken_dispatches_to_the_very_same_overload(b):
    def real(a):
        return torch.zeros(a.shape, dtype=a.dtype) if hasattr(a, "storage") else a

    fn = taken(b)
    if isinstance(fn, torch._ops.OpOverload):
        assert fn is b.sym.overload
        return
    args = torch.utils._pytree.tree_map(real, b.args)
    with Calls() as calls, torch.no_grad():
        fn(*args, **b.kwargs)
    assert calls.seen == [b.sym.overload]


@pytest.mark.parametrize("name", sorted(set(REFUSED) - {"eq scalar as tensor"}))
def test_what_no_public_function_does_is_called_as_it_is(name):
    assert taken(REFUSED[name]) is REFUSED[name].sym.fn


def test_the_choice_depends_on_the_kinds_of_the_arguments():
    """torch.div of a tensor and a number is aten.div.Tensor: the recorded aten.div.Scalar stays."""
    assert taken(call(aten.div.Tensor, (f32(), 2.0))) is torch.div
    assert taken(call(aten.div.Scalar, (f32(), 2.0))) is aten.div.Scalar
    assert taken(call(aten.pow.Tensor_Scalar, (f32(), 2))) is torch.pow
    assert taken(call(aten.pow.Tensor_Tensor, (f32(), f32("y")))) is torch.pow


def test_the_choice_for_one_size_holds_for_others():
    public_function.cache_clear()
    assert taken(call(aten.view.default, (f32(), [2, 3]))) is torch.Tensor.view
    before = public_function.cache_info().misses
    assert taken(call(aten.view.default, (f32(), [7, 3]))) is torch.Tensor.view
    assert public_function.cache_info().misses == before
    taken(call(aten.view.default, (f32(), [-1, 3])))
    assert public_function.cache_info().misses == before + 1


def test_numbers_that_compare_equal_are_different_arguments():
    """True == 1 == 1.0, but x + True, x + 1 and x + 1.0 are not one call."""
    i = torch.arange(3)
    for number in (True, 1, 1.0, False, 0, 0.0, -0.0):
        assert_parity(lambda x: (x + number, x * number, torch.full((2,), number)), lambda: (i.clone(),))


def test_choosing_runs_nothing_and_leaves_no_mode_behind():
    x = torch.ones(2, 2)
    state = torch.get_rng_state()
    taken(call(aten.normal_.default, (f32(), 0.0, 1.0)))
    assert torch.equal(torch.get_rng_state(), state)
    assert (
        torch._C._len_torch_dispatch_stack() == 0 and (x + 1).device.type == "cpu" and torch.is_grad_enabled()
    )


# ------------------------------------------------------------------ options

@pytest.mark.compiler
@pytest.mark.parametrize("alone, regions", [(False, (0, 0, 0)), (None, (1, 0, 0)), (True, (1, 1, 1))])
def test_options_say_which_calls_are_kernels_by_themselves(alone, regions):
    def fused(fn, dtype):
        x = torch.randn(64, dtype=dtype)
        jfn = tracejit.jit(fn, executors=["cpu"], fallback="error", executor_options={"cpu": {"allow_single_op_fusion": alone}})
        torch.testing.assert_close(jfn(x), fn(x))
        return len(jfn.last_traces[-1].regions)
    assert (fused(torch.exp, torch.float32), fused(torch.relu, torch.float32), fused(torch.exp, torch.float64)) == regions


@pytest.mark.parametrize("options, message", [
    ({"cpu": {"speed": 3}}, "executor 'cpu': .*speed"), ({"gpu": {}}, "executor_options names 'gpu'")])
def test_wrong_executor_options_say_so(options, message):
    with pytest.raises(tracejit.TraceError, match=message):
        tracejit.jit(lambda x: x + 1, executors=["cpu"], executor_options=options)(torch.ones(3))
