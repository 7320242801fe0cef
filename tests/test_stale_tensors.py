"""Arguments, tensors reached from outside and global modes may change between calls: each call is eager's."""
import collections
import dataclasses
import functools
import types

import pytest
import torch

import tracejit

from cases.compare import call_problems, run
from cases.stale import attribute, check_change, x3

TENSOR = torch.ones(3)


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 1.0


Point = collections.namedtuple("Point", "x y")


def global_name(name):
    return functools.partial(globals().__setitem__, name)


# ------------------------------------------------------------------ global modes

def test_grad_mode():
    def program(x):
        return x * 2 if torch.is_grad_enabled() else x * 3

    check_change(program, torch.set_grad_enabled, True, False)


def test_grad_mode_decides_requires_grad_of_results():
    w = torch.ones(3, requires_grad=True)

    def program(x):
        return x * w

    jfn = tracejit.jit(program, fallback="error")
    for enabled in (True, False, True, False):
        with torch.set_grad_enabled(enabled):
            assert jfn(x3()).requires_grad is enabled


def test_autocast():
    def program(x):
        return x @ x

    jfn = tracejit.jit(program, fallback="error")
    for enabled, dtype in [(False, torch.bfloat16), (True, torch.bfloat16), (True, torch.float16),
                           (False, torch.float16)]:
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            assert jfn(torch.eye(3)).dtype == program(torch.eye(3)).dtype == (dtype if enabled else torch.float32)


def test_default_dtype():
    def program(x):
        return torch.ones(3) + x.int()

    check_change(program, torch.set_default_dtype, torch.float32, torch.float64, differs=False)


def test_deterministic_mode():
    def program(x):
        return x * (2 if torch.are_deterministic_algorithms_enabled() else 3)

    check_change(program, torch.use_deterministic_algorithms, False, True)


def test_inference_mode():
    def program(x):
        return x * (2 if torch.is_inference_mode_enabled() else 3)

    jfn = tracejit.jit(program, fallback="silent")
    for enabled in (False, True, False, True):
        with torch.inference_mode(enabled):
            got, want = jfn(x3()), program(x3())
        assert torch.equal(got, want)
        assert got.is_inference() == want.is_inference()


# ------------------------------------------------------------------ arguments

ARGUMENTS = {
    "dtype": lambda: [[x3()], [x3().double()], [x3().to(torch.int64)], [x3()]],
    "shape": lambda: [[x3()], [torch.ones(4)], [torch.ones(2, 3)], [torch.ones(0)], [torch.ones(())], [x3()]],
    "stride": lambda: [[torch.ones(3, 3)], [torch.ones(3, 6)[:, ::2]], [torch.ones(3, 3).t()],
                       [torch.ones(3, 1).expand(3, 3)], [torch.ones(3, 3)]],
    "storage offset": lambda: [[torch.arange(9.)[:3]], [torch.arange(9.)[3:6]], [torch.arange(9.)[:3]]],
    "requires_grad": lambda: [[x3()], [x3().requires_grad_()], [x3()]],
    "number": lambda: [[x3(), 1], [x3(), 2], [x3(), 1.0], [x3(), True], [x3(), 1]],
    "none": lambda: [[x3(), None], [x3(), 2], [x3(), None]],
    "number of arguments": lambda: [[x3()], [x3(), x3()], [x3(), x3(), x3()], [x3()]],
    "tensor or number": lambda: [[x3(), 2.0], [x3(), torch.tensor(2.0)], [x3(), torch.tensor([2.0])], [x3(), 2.0]],
}


@pytest.mark.parametrize("kind", list(ARGUMENTS))
def test_argument_of_another(kind):
    def program(x, *rest):
        y = x * 2
        for other in rest:
            y = y if other is None else y + other
        return y, x.t() if x.dim() <= 2 else x

    jfn = tracejit.jit(program, fallback="error")
    for i, (want_args, got_args) in enumerate(zip(ARGUMENTS[kind](), ARGUMENTS[kind](), strict=True)):
        want, got = run(program, want_args, {}), run(jfn, got_args, {})
        assert want[1] is None
        assert not call_problems((want_args, {}), want, (got_args, {}), got), f"call {i}"
    assert jfn.cache_info().hits >= 1, "the last call repeats the first"


def test_argument_aliasing():
    def program(a, b):
        a.add_(1)
        return a * b

    def patterns():
        base, one = torch.arange(8.), torch.arange(4.)
        return [[torch.ones(4), torch.ones(4)], [base[:4], base[2:6]], [one, one], [base[:4], base[4:]],
                [torch.ones(4), torch.ones(4)], [one, one.view(4)], [base[2:6], base[:4]], [one, one.detach()]]

    jfn = tracejit.jit(program, fallback="error")
    for i, (want_args, got_args) in enumerate(zip(patterns(), patterns(), strict=True)):
        want, got = run(program, want_args, {}), run(jfn, got_args, {})
        assert not call_problems((want_args, {}), want, (got_args, {}), got), f"call {i}"


def test_keyword_order_and_spelling():
    def program(x, a=1, b=2, **more):
        y = x * a + b
        for name, value in more.items():
            y = y * 2 + value if name == "c" else y + 10 * value
        return y

    jfn = tracejit.jit(program, fallback="error")
    for args, kwargs in [((), {"x": x3(), "a": 3, "b": 4}), ((), {"b": 3, "a": 4, "x": x3()}), ((x3(), 3), {"b": 4}),
                         ((x3(), 4, 3), {}), ((x3(),), {"c": 1, "d": 2}), ((x3(),), {"d": 2, "c": 1})]:
        assert torch.equal(jfn(*args, **kwargs), program(*args, **kwargs)), (args, kwargs)


@pytest.mark.parametrize("container", [list, tuple, dict, Batch, Point], ids=lambda c: c.__name__)
def test_tensor_within_a_container(container):
    def make(x, scale):
        if container is dict:
            return {"x": x, "scale": scale}
        return container([x, scale]) if container in (list, tuple) else container(x, scale)

    def program(batch):
        if container is dict:
            x, scale = batch["x"], batch["scale"]
        elif container is Batch:
            x, scale = batch.x, batch.scale
        else:
            x, scale = batch
        x.add_(1)
        return make(x * scale, scale)

    jfn = tracejit.jit(program, fallback="error")
    for x, scale in [(x3(), 2.0), (x3() + 1, 2.0), (x3(), 3.0), (torch.ones(2, 2), 3.0), (x3(), 2.0)]:
        mine, theirs = make(x.clone(), scale), make(x.clone(), scale)
        want, got = program(mine), jfn(theirs)
        assert type(want) is type(got)
        assert str(want) == str(got) and str(mine) == str(theirs)
    assert jfn.cache_info().hits == 2


def test_strings_and_enums_as_arguments():
    def program(x, how):
        return x.sum() if how == "sum" else x.mean() if how == "mean" else x

    jfn = tracejit.jit(program, fallback="error")
    for how in ("sum", "mean", "none", "sum"):
        assert torch.equal(jfn(x3(), how), program(x3(), how))
    assert jfn.cache_info().hits == 1



def test_set_and_iterator_arguments():
    def program(x, numbers):
        for n in numbers:
            x = x + n
        return x

    jfn = tracejit.jit(program, fallback="silent")
    for _ in range(2):
        assert torch.equal(jfn(x3(), iter([1, 2])), x3() + 3)
        assert torch.equal(jfn(x3(), {1, 5}), x3() + 6)
        assert torch.equal(jfn(x3(), range(3)), x3() + 3)
        assert torch.equal(jfn(x3(), (i for i in (1, 1))), x3() + 2)


# ------------------------------------------------------------------ tensors reached from outside

def reads_tensor(x):
    return x + TENSOR


def test_global_tensor_mutated():
    check_change(reads_tensor, TENSOR.fill_, 1.0, 5.0)


def test_global_tensor_rebound():
    check_change(reads_tensor, global_name("TENSOR"), TENSOR, torch.full((3,), 7.0))


def test_global_tensor_of_another_shape_and_dtype():
    check_change(reads_tensor, global_name("TENSOR"), TENSOR, torch.ones(2, 3), differs=False)
    check_change(reads_tensor, global_name("TENSOR"), TENSOR, torch.ones(3, dtype=torch.float64), differs=False)


def test_global_tensor_resized():
    tensor = torch.ones(3)

    def program(x):
        return x.sum() + tensor

    def write(n):
        tensor.resize_(n).fill_(1)

    check_change(program, write, 3, 6, differs=False, hits_on_return=False)  # its storage stays the larger


def test_global_tensor_becomes_a_number():
    check_change(reads_tensor, global_name("TENSOR"), TENSOR, 3.5)


def test_closure_tensor_written_by_the_function():
    counter = torch.zeros(())

    def program(x):
        counter.add_(1)
        return x * counter

    jfn = tracejit.jit(program, fallback="error")
    for step in range(1, 5):
        assert torch.equal(jfn(x3()), x3() * step)
        assert counter.item() == step
    assert jfn.cache_info().hits == 3


def test_closure_tensor_passed_as_the_argument_too():
    state = torch.ones(3)

    def program(x):
        state.add_(1)
        return x * 2

    jfn = tracejit.jit(program, fallback="error")
    assert torch.equal(jfn(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(jfn(state), torch.full((3,), 6.0))
    assert torch.equal(jfn(state[:]), torch.full((3,), 8.0))


def test_tensor_attribute_of_an_object_in_a_list():
    layers = [types.SimpleNamespace(weight=torch.ones(3)), types.SimpleNamespace(weight=torch.ones(3))]

    def program(x):
        for layer in layers:
            x = x * layer.weight
        return x

    check_change(program, attribute(layers[1], "weight"), layers[1].weight, torch.full((3,), 2.0))
