"""The key of a call in C and in Python: equal for the same calls, and where C cannot tell it says so."""
import contextlib
import random

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tracejit.capture.inputs import CallInputs
from tracejit.capture.modes import capture_is_hindered, mode_key
from tracejit.runtime import call_layout
from tracejit.runtime.call_core import core

pytestmark = pytest.mark.compiler
DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.float16, torch.complex64, torch.uint8)
BASES = {dtype: torch.zeros(4096, dtype=dtype) for dtype in DTYPES}
NUMPY = np.zeros(64, dtype=np.float32)


class Sub(torch.Tensor):
    pass


class PassOn(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def set_and_restore(read, write, value):
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


MODES = (contextlib.nullcontext, contextlib.nullcontext, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu"),
         lambda: torch.autocast("cpu", dtype=torch.float16),
         lambda: set_and_restore(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
         lambda: set_and_restore(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True))
HINDERING = (PassOn, Functions, lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x))


def tensor(rnd):
    dims = rnd.randint(0, 8) if rnd.random() < 0.2 else rnd.randint(0, 3)
    shape, dtype = [rnd.choice([0, 1, 2, 3]) for _ in range(dims)], rnd.choice(DTYPES)
    kind = rnd.random()
    if kind < 0.35:
        return BASES[dtype].as_strided(shape, [rnd.choice([0, 1, 3, 9]) for _ in shape], rnd.choice([0, 1, 8, 500]))
    if kind < 0.4:
        return torch.from_numpy(NUMPY[rnd.randint(0, 4):][:rnd.randint(1, 40)])
    t = torch.zeros(shape, dtype=dtype)
    if kind < 0.5 and dims:
        return t.expand(2, *shape)
    if kind < 0.55:
        return t.conj() if dtype.is_complex else t.t() if dims == 2 else t
    if kind < 0.6:
        return t.conj().imag if dtype.is_complex else t
    if kind < 0.7 and dtype.is_floating_point:
        return torch.nn.Parameter(t, requires_grad=rnd.random() < 0.5)
    if kind < 0.85 and dtype.is_floating_point:
        t.requires_grad_()
        return t * 2 if rnd.random() < 0.4 else t.detach() if rnd.random() < 0.3 else t
    return t


def scalar(rnd):
    return rnd.choice([0, 1, -1, True, False, None, 1.0, 0.0, -0.0, float("nan"), float("inf"), 2**62, "a", "b", "", "ä" * 9, "x" * 40,
                       torch.float32, torch.int64, torch.device("cpu"), torch.device("cuda:0"), torch.device("cuda:1")])


def value(rnd, depth=0):
    kind = rnd.random()
    if kind < 0.7 or depth == 3:
        return tensor(rnd) if rnd.random() < 0.7 else scalar(rnd)
    items = [value(rnd, depth + 1) for _ in range(rnd.randint(0, 3))]
    if kind < 0.8:
        return items
    return tuple(items) if kind < 0.9 else dict(zip(rnd.sample(["a", "b", "c"], len(items)), items))


def arguments(rnd):
    args = [value(rnd) for _ in range(rnd.choice([1, 1, 2, 2, 3]))]
    if len(args) > 1 and rnd.random() < 0.2:
        args[1] = args[0]
    if rnd.random() < 0.1:
        args.append([tensor(rnd)] * rnd.randint(1, 3))
    kwargs = {name: value(rnd) for name in rnd.sample(["p", "q", "r"], rnd.choice([0, 0, 0, 1, 2]))}
    return tuple(args), kwargs


def test_keys_in_c_and_in_python_agree(full):
    """Equal iff equal, for random arguments and modes."""
    rnd, by_c, by_python, calls = random.Random(5), {}, {}, 40_000 if full else 4_000
    equal = 0
    for _ in range(calls):
        # Tensors of the bases are given up at once, others may take their addresses: keys must not depend on them.
        with rnd.choice(MODES)():
            args, kwargs = arguments(rnd)
            in_c, in_python = core().key_of(*args, **kwargs), (CallInputs(args, kwargs).key, mode_key())
        assert in_c is not None
        equal += in_c in by_c
        assert by_c.setdefault(in_c, in_python) == in_python, "two keys in Python, one in C"
        assert by_python.setdefault(in_python, in_c) == in_c, "one key in Python, two in C"
    assert calls / 50 < equal < calls / 2


def test_many_tensors_have_one_key_each():
    def lists(same):
        ts = [torch.zeros(n % 7 + 1) for n in range(500)]
        ts[400] = ts[3] if same else ts[400]
        return ts
    for same in (False, True):
        one, other = lists(same), lists(same)
        assert core().key_of(one, other[:400]) == core().key_of(other, one[:400])
    assert core().key_of(lists(True)) != core().key_of(lists(False))
    base = torch.zeros(1000)
    views = [base[n:n + 2] for n in range(300)]
    assert core().key_of(views) == core().key_of([torch.as_strided(base, (2,), (1,), n) for n in range(300)])
    assert core().key_of(views) != core().key_of([base[n:n + 2].clone() for n in range(300)])


def test_storages_that_overlap_without_being_shared():
    memory = np.zeros(100, dtype=np.float32)
    def over(*ranges):
        return core().key_of(*(torch.from_numpy(memory[a:b]) for a, b in ranges))
    apart = over((0, 10), (10, 20), (20, 30))
    assert over((20, 30), (0, 10), (10, 20)) == apart != over((20, 30), (0, 11), (10, 20))


ODD = {
    "subclass": lambda: torch.zeros(2).as_subclass(Sub), "sparse": lambda: torch.eye(2).to_sparse(),
    "meta": lambda: torch.zeros(2, device="meta"), "zero tensor": lambda: torch._efficientzerotensor(2),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "large int": lambda: 1 << 70,
    "complex": lambda: 1j, "object": object, "slice": lambda: slice(1), "Size": lambda: torch.Size([2]), "long string": lambda: "x" * 300,
    "surrogate": lambda: "\ud800", "module": lambda: torch.nn.Linear(2, 2), "numpy scalar": lambda: np.float32(1),
    "dict of int": lambda: {1: torch.ones(2)}, "set": lambda: {"a": {2}}, "range": lambda: range(3), "layout": lambda: torch.strided,
    "structseq": lambda: torch.return_types.max((torch.ones(2), torch.ones(2))),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_c_cannot_tell_is_left_to_python(odd):
    assert core().key_of(odd()) is None and core().key_of([(odd(),)]) is None and core().key_of(k=odd()) is None
    assert core().key_of(1) is not None


def test_a_container_that_holds_itself():
    items = []
    items.append(items)
    assert core().key_of(items) is None


@pytest.mark.parametrize("around", HINDERING)
def test_a_call_under_a_mode_that_would_see_a_capture(around):
    x = torch.zeros(2)
    plain = core().key_of(x)
    with around():
        assert capture_is_hindered() and core().key_of(x) != plain
        with around():
            assert core().key_of(x) != plain
    assert core().key_of(x) == plain


def test_functorch_and_jit_trace_have_keys_of_their_own():
    seen = []
    def look(x):
        seen.append(core().key_of(torch.zeros(2)))
        return x
    look(torch.zeros(2))
    torch.vmap(look)(torch.zeros(2, 2))
    torch.jit.trace(look, torch.zeros(2), check_trace=False)
    assert seen[0] not in seen[1:]


@pytest.mark.parametrize("name", ["keyset", "meta", "bytes", "dtype_at", "offset"])
def test_a_wrong_place_is_noticed(name, monkeypatch):
    found = core()
    layout = call_layout.Layout.in_dll(found.library, "tj_layout")
    right = getattr(layout, name)
    try:
        setattr(layout, name, right + 8)
        assert not found.agrees()
    finally:
        setattr(layout, name, right)
    assert found.agrees()
