"""What may go in and come out: pytrees, callables of every kind, out=, foreach, custom ops, unusual tensors."""
import collections
import dataclasses
import functools
import typing

import pytest
import torch

import tracejit

from cases.parity import assert_parity


def arange(*shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape)


def a34():
    return arange(3, 4)


# ------------------------------------------------------------------ structures

@dataclasses.dataclass
class State:
    x: torch.Tensor
    step: int = 0
    parts: list = dataclasses.field(default_factory=list)
    name: typing.Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    y: torch.Tensor


class Pair(typing.NamedTuple):
    x: torch.Tensor
    n: int = 2


Point = collections.namedtuple("Point", "a b")


def test_nested_lists_dicts_and_tuples():
    def program(tree):
        tree["a"][0].add_(1)
        return {"sum": tree["a"][0] + tree["b"][1]["c"], "same": tree["a"], "none": None, "text": "x",
                "n": (1, 2.5, True)}

    assert_parity(program, lambda: [{"a": [a34(), None], "b": (1, {"c": a34()})}])


def test_dataclasses_in_and_out():
    def program(state):
        state.x[0] = 9
        return State(state.x * state.step, state.step + 1, [state.x, *state.parts], "out")

    assert_parity(program, lambda: [State(a34(), 3, [arange(2)])])


def test_frozen_dataclass():
    assert_parity(lambda f: Frozen(f.y + 1, f.x), lambda: [Frozen(a34(), a34())])


def test_dataclass_field_assigned_by_the_function():
    def program(state):
        state.x = state.x * 2
        state.step += 1
        return state

    assert_parity(program, lambda: [State(a34())])


def test_namedtuples_in_and_out():
    def program(pair, point):
        pair.x.mul_(pair.n)
        return Point(pair, Pair(point.a + point.b, 7)), torch.max(pair.x, 0)

    assert_parity(program, lambda: [Pair(a34()), Point(a34(), a34())])


def test_ordered_and_default_dicts():
    def program(ordered, default):
        default["new"] = ordered["a"] * 2
        return collections.OrderedDict(b=ordered["b"], a=default["new"])

    assert_parity(program, lambda: [collections.OrderedDict(b=a34(), a=a34()), collections.defaultdict(list, k=1)])


def test_no_result_and_no_tensors():
    assert_parity(lambda x: None, lambda: [a34()])
    assert_parity(lambda n: n + 1, lambda: [3])
    assert_parity(lambda: torch.ones(3), lambda: [])
    assert_parity(lambda x: (x.shape, x.dtype, x.device, x.dim(), x.numel()), lambda: [a34()])
    assert_parity(lambda x: [], lambda: [a34()])


def test_constants_made_inside_are_fresh_each_call():
    def program(x):
        c = torch.tensor([1.0, 2.0])
        c.add_(x.sum())
        return c

    jfn = assert_parity(program, lambda: [a34()])
    first, second = jfn(a34()), jfn(a34())
    assert first.data_ptr() != second.data_ptr()


def test_same_tensor_twice_in_a_structure():
    def program(items):
        items[0].add_(1)
        return [items[1], items[0] * 2, items]

    def make():
        x = a34()
        return [[x, x, x.view(-1)]]

    assert_parity(program, make)


def test_scalars_complex_and_special_floats():
    def program(x, z, inf, nan):
        return x * z, x + inf, x * nan

    assert_parity(program, lambda: [a34(), 2 + 1j, float("inf"), float("-inf")])
    jfn = tracejit.jit(lambda x, v: x * v, fallback="error")
    for _ in range(2):
        assert jfn(a34(), float("nan")).isnan().all()
        assert torch.equal(torch.signbit(jfn(torch.ones(2), -0.0)), torch.tensor([True, True]))
        assert torch.equal(torch.signbit(jfn(torch.ones(2), 0.0)), torch.tensor([False, False]))


# ------------------------------------------------------------------ callables and arguments

def test_args_kwargs_defaults_and_keyword_only():
    def program(x, y=2, *rest, scale=3.0, bias=None, **more):
        out = x * y * scale + (0 if bias is None else bias)
        for t in rest:
            out = out + t
        for name in sorted(more):
            out = out - more[name]
        return out

    jfn = tracejit.jit(program, fallback="error")
    calls = [((a34(),), {}), ((a34(), 3), {}), ((a34(), a34(), a34()), {"scale": 2}),
             ((), {"x": a34(), "bias": a34()}),
             ((a34(),), {"k": a34(), "j": 1}), ((a34(),), {})]
    for args, kwargs in calls:
        assert torch.equal(jfn(*args, **kwargs), program(*args, **kwargs))
    assert jfn.cache_info().hits == 1


class Scaler:
    def __init__(self, gain):
        self.gain = gain

    def apply(self, x):
        return x.mul_(self.gain)

    def __call__(self, x):
        return x + self.gain

    @staticmethod
    def double(x):
        return x * 2

    @classmethod
    def make(cls, x):
        return cls(2.0).apply(x)

    @tracejit.jit
    def decorated(self, x):
        return x * self.gain


def test_bound_static_and_class_methods_and_callable_objects():
    for fn in (Scaler(3.0).apply, Scaler(3.0), Scaler.double, Scaler.make):
        assert_parity(fn, lambda: [a34()])


def test_method_decorated_in_the_class_binds():
    one, two = Scaler(2.0), Scaler(5.0)
    for thing in (one, two, one):
        assert torch.equal(thing.decorated(a34()), a34() * thing.gain)
    one.gain = 7.0
    assert torch.equal(one.decorated(a34()), a34() * 7)


def test_partials():
    def program(x, y, scale=1.0):
        x.add_(y)
        return x * scale

    assert_parity(functools.partial(program, scale=2.0), lambda: [a34(), a34()])
    held = a34()
    jfn = tracejit.jit(functools.partial(program, held, scale=2.0), fallback="error")
    for i in range(1, 4):
        assert torch.equal(jfn(a34()), a34() * (i + 1) * 2)
    assert torch.equal(held, a34() * 4)


def test_builtins_and_lambdas():
    assert_parity(torch.relu, lambda: [a34()])
    assert_parity(torch.Tensor.add_, lambda: [a34(), a34()])
    assert_parity(torch.nn.functional.gelu, lambda: [a34()])
    assert_parity(lambda x: x * 2, lambda: [a34()])


def test_jit_within_jit():
    inner = tracejit.jit(lambda x: x.add_(1) * 2, fallback="error")

    def program(x):
        return inner(x) + inner(x[1:]).sum()

    jfn = assert_parity(program, lambda: [a34()])
    assert jfn.last_traces[-1].count("copy_") >= 1, "the inner function is part of the outer trace"


def test_jit_of_a_jitted_function():
    twice = tracejit.jit(tracejit.jit(lambda x: x.add_(1) * 2, fallback="error"), fallback="error")
    x = a34()
    assert torch.equal(twice(x), (a34() + 1) * 2) and torch.equal(x, a34() + 1)


@torch.jit.script
def scripted(x: torch.Tensor, n: int):
    y = x * n
    for i in range(n):
        y += i
    x.add_(1)
    return y


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_functions():
    assert_parity(lambda x: scripted(x, 3) + 1, lambda: [a34()])
    assert_parity(scripted, lambda: [a34(), 2])


def test_recursion_generators_and_comprehensions():
    def power(x, n):
        return x if n == 0 else power(x * 2, n - 1)

    def pieces(x):
        for i in range(3):
            yield x[i] * i

    def program(x):
        return power(x, 3), torch.stack(list(pieces(x))), sum(row.sum() for row in x)

    assert_parity(program, lambda: [a34()])


def test_try_except_inside():
    def program(x):
        try:
            x + torch.ones(7)
        except RuntimeError:
            x.add_(1)
        return x * 2

    assert_parity(program, lambda: [a34()])


def test_shape_arithmetic():
    def program(x):
        n, m = x.shape
        if n * m > 10:
            x = x.reshape(m, n)
        return x.view(-1, 2)[: n // 2], x.size(0), len(x), [row for row in x][0]

    assert_parity(program, lambda: [a34()])


# ------------------------------------------------------------------ out=, foreach, custom ops

def test_out_arguments():
    def program(a, b, out, where):
        torch.add(a, b, out=out)
        values, indices = torch.max(a, 0, out=(out[0], where))
        torch.mul(out, 2, out=a[:])
        return torch.exp(b, out=b), values, indices

    assert_parity(program, lambda: [a34(), a34(), torch.zeros(3, 4), torch.zeros(4, dtype=torch.int64)])


def test_out_that_must_grow():
    def program(a, out):
        return torch.mul(a, 2, out=out)

    assert_parity(program, lambda: [a34(), torch.empty(0)])


def test_out_of_another_dtype():
    assert_parity(lambda a, out: torch.add(a, 1, out=out), lambda: [arange(3, dtype=torch.int32), torch.zeros(3)])
    assert_parity(lambda a, out: torch.add(a, 1, out=out), lambda: [torch.ones(3), arange(3, dtype=torch.int32)],
                  raises="RuntimeError")


def test_foreach_ops():
    def program(a, b):
        torch._foreach_add_([a, b], 1)
        torch._foreach_mul_([a, b], [b, a])
        c = torch._foreach_sqrt([a, b])
        torch._foreach_lerp_(c, [b, a], 0.5)
        torch._foreach_zero_([a[0]])
        torch._foreach_copy_([b[1]], [a[2]])
        return c, torch._foreach_norm([a, b])

    assert_parity(program, lambda: [a34(), a34() + 1])


def test_foreach_ops_whose_operands_alias():
    def program(a):
        torch._foreach_add_([a, a[1:], a], [a, a[:-1].clone(), a.t().t()])
        return a

    assert_parity(program, lambda: [a34()])


@torch.library.custom_op("tracejit_tests::bump", mutates_args=("state",))
def bump(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    state.add_(x.sum())
    return x * 2


@bump.register_fake
def _(x, state):
    return torch.empty_like(x)


@torch.library.custom_op("tracejit_tests::overwrite", mutates_args=("a", "b"))
def overwrite(a: torch.Tensor, b: torch.Tensor) -> None:
    a.copy_(b + 1)
    b.zero_()


@torch.library.custom_op("tracejit_tests::pure", mutates_args=())
def pure(x: torch.Tensor, n: int) -> list[torch.Tensor]:
    return [x + i for i in range(n)]


@pure.register_fake
def _(x, n):
    return [torch.empty_like(x) for _ in range(n)]


def test_custom_ops_that_mutate():
    def program(x, state):
        y = bump(x, state)
        t = x + 1
        overwrite(t[0], t[1])
        overwrite(x[:, 0], x[:, 1])
        return y + state, t, pure(x, 2)

    assert_parity(program, lambda: [a34(), torch.zeros(())])


def test_custom_op_on_aliasing_arguments():
    def program(x):
        bump(x[0], x[1])
        return x * 2

    assert_parity(program, lambda: [a34()])
