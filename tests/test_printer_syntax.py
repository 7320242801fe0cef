"""The syntax of printed traces: names that meet, literals, paths of functions."""
import math

import pytest
import torch
import torch.nn.functional as F

import tracejit
from tracejit.ir.printer import Scope, public_path, value_text

from cases.compare import tensor_problem


def problems(want, got):
    return [p for a, b in zip(want, got, strict=True) if (p := tensor_problem(a, b))]


def user_function(x):
    return x


NAMES = [
    "v1",
    "t1",
    "const_0",
    "constant_0",
    "constant_1",
    "clone_0",
    "restride_0",
    "aten_random__from_0",
    "f",
    "inf",
    "nan",
    "torch",
    "list",
    "slice",
    "f_1",
]


@pytest.mark.parametrize("name", NAMES)
def test_argument_names_never_meet_names_of_the_text(name):
    scope = {"torch": torch}
    exec(
        f"def f({name}):\n    y = {name} + {name}.new_tensor([1., 2., float('inf')])\n"
        f"    y[0] = 3.0\n    {name}.mul_(2)\n"
        f"    z = y.clone().random_(1, to=5)\n    return y * 2, z, {name}.t()\n",
        scope,
    )
    x = torch.tensor([1.0, 2.0, 3.0])
    given, want_given = x.clone(), x.clone()
    torch.manual_seed(0)
    want = scope["f"](want_given)
    torch.manual_seed(0)
    got = tracejit.jit(scope["f"], fallback="error")(given)
    assert not problems(want, got) and torch.equal(given, want_given)


FUNCTION_NAMES = ["torch", "inf", "nan", "class", "x", "v1", "constant_0", "constant_1", "my function", "1st", "λ"]


@pytest.mark.parametrize("name", FUNCTION_NAMES)
def test_any_name_of_the_function_will_do(name):
    def program(x):
        return x.cumsum_(0) + torch.tensor([1.0, math.inf]), x * math.nan

    want = program(torch.ones(2))
    got = tracejit.jit(program, fallback="error", name=name)(torch.ones(2))
    assert torch.equal(want[0], got[0]) and got[1].isnan().all()
    renamed = type(program)(program.__code__, program.__globals__, name)
    assert torch.equal(tracejit.jit(renamed, fallback="error")(torch.ones(2))[0], want[0])


VALUES = [
    True,
    -3,
    1e30,
    math.inf,
    -math.inf,
    -0.0,
    1 + 2j,
    complex(math.inf, 1),
    complex(-0.0, 2),
    complex(1, -0.0),
    complex(-0.0, -0.0),
    complex(1, math.inf),
    complex(-math.inf, -2.0),
    "it's",
    b"\x00",
    None,
    ...,
    [1, [2.5]],
    (1,),
    (),
    [],
    {"a": [1], "b": ()},
    slice(None, 3, None),
    torch.float32,
    torch.strided,
    torch.channels_last,
    torch.device("cuda", 1),
    torch.Size([2, 3]),
    torch.Size([4]),
    torch.contiguous_format,
    2**70,
    "a\nb",
    range(3),
    frozenset({1}),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_text_of_a_value_is_that_value(value):
    scope = Scope()
    got = eval(value_text(value, scope), scope.names)
    assert type(got) is type(value) and got == value and repr(got) == repr(value)


@pytest.mark.parametrize("value", [math.nan, complex(math.nan, 1.0), complex(1.0, math.nan)], ids=repr)
def test_text_of_nan(value):
    scope = Scope()
    assert repr(eval(value_text(value, scope), scope.names)) == repr(value)


def test_public_path_is_a_path_to_that_very_function():
    assert public_path(torch.add) == "torch.add" and public_path(torch.Tensor.add_) == "torch.Tensor.add_"
    assert public_path(F.gelu) == "torch.nn.functional.gelu"
    assert public_path(user_function) == "" and public_path(math.sin) == "" and public_path(lambda x: x) == ""
