"""Modules may change between calls, and functions may write state: each call is eager's."""
import functools
import gc
import types
import weakref

import pytest
import torch
import torch.nn as nn

import tracejit

from cases.compare import near
from cases.stale import changed, x3

NUMBER = 2


def global_name(name):
    return functools.partial(globals().__setitem__, name)


# ------------------------------------------------------------------ modules

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("shift", torch.zeros(3))
        self.gain, self.act, self.options = 2.0, torch.relu, {"bias": 1.0}
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_((torch.arange(p.numel()) % 5 + i).reshape(p.shape) / 4)

    def forward(self, x):
        x = self.act(self.first(x)) * self.gain + self.shift + self.options["bias"]
        return self.dropout(self.norm(self.second(x)))


def x43():
    return torch.arange(12.).reshape(4, 3) / 8


def check_module_change(change, undo=None):
    """change(net) between calls; eager runs on a second net of the same history. undo must hit the old entry."""
    eager, wrapped = Net().eval(), Net().eval()
    jitted = tracejit.jit(wrapped, fallback="error")

    def both(label):
        torch.manual_seed(0)
        want = eager(x43())
        torch.manual_seed(0)
        got = jitted(x43())
        assert near(want, got) and want.dtype == got.dtype, label
        assert want.requires_grad == got.requires_grad, label
        for (name, a), (_, b) in zip(eager.state_dict().items(), wrapped.state_dict().items(), strict=True):
            assert near(a, b), f"{label}: {name}"

    both("before")
    both("before, cached")
    change(eager), change(wrapped)
    both("after")
    both("after, cached")
    if undo:
        undo(eager), undo(wrapped)
        both("changed back")


def new_linear():
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3) * 3)
        layer.bias.fill_(.5)
    return layer


MODULE_CHANGES = {
    "training": (lambda net: net.train(), lambda net: net.eval()),
    "training of a submodule": (lambda net: net.norm.train(), lambda net: net.norm.eval()),
    "attribute": (lambda net: setattr(net, "gain", 3.0), lambda net: setattr(net, "gain", 2.0)),
    "activation": (lambda net: setattr(net, "act", torch.sigmoid), lambda net: setattr(net, "act", torch.relu)),
    "option in a dict": (lambda net: net.options.update(bias=4.0), lambda net: net.options.update(bias=1.0)),
    "hyperparameter of a submodule": (lambda net: setattr(net.norm, "eps", 0.5), None),
    "submodule replaced": (lambda net: setattr(net, "second", new_linear()), None),
    "submodule of another class": (lambda net: setattr(net, "second", nn.Identity()), None),
    "parameter rebound": (lambda net: setattr(net.first, "weight", nn.Parameter(torch.eye(3))), None),
    "parameter mutated": (lambda net: net.first.weight.data.mul_(2), None),
    "parameter's data replaced": (lambda net: setattr(net.first.weight, "data", torch.eye(3)), None),
    "parameter removed": (lambda net: setattr(net.first, "bias", None), None),
    "parameter frozen": (lambda net: net.requires_grad_(False), lambda net: net.requires_grad_(True)),
    "parameters tied": (lambda net: setattr(net.second, "weight", net.first.weight), None),
    "buffer replaced": (lambda net: setattr(net, "shift", torch.full((3,), 2.0)), None),
    "buffer of another shape": (lambda net: setattr(net, "shift", torch.ones(4, 1)), None),
    "buffer mutated": (lambda net: net.shift.add_(3), None),
    "dtype": (lambda net: net.double().register_forward_pre_hook(lambda m, a: (a[0].double(),)), None),
    "forward hook": (lambda net: net.second.register_forward_hook(lambda m, a, out: out * 2), None),
    "forward pre-hook": (lambda net: net.second.register_forward_pre_hook(lambda m, a: (a[0] + 1,)), None),
    "hook on the whole": (lambda net: net.register_forward_hook(lambda m, a, out: out * 2), None),
    "state dict loaded": (lambda net: net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()}), None),
    "forward replaced": (lambda net: setattr(net.second, "forward", lambda x: x * 5), None),
}


@pytest.mark.parametrize("kind", list(MODULE_CHANGES))
def test_module_change(kind):
    check_module_change(*MODULE_CHANGES[kind])


def test_hook_removed():
    handles = []
    check_module_change(
        lambda net: handles.append(net.second.register_forward_hook(lambda m, a, out: out * 2)),
        lambda net: handles.pop(0).remove())


def test_functional_flag_of_a_module_that_is_an_argument():
    net = nn.Dropout(0.5)

    def program(net, x):
        return net(x)

    jfn = tracejit.jit(program, fallback="error")
    for training in (True, False, True):
        net.train(training)
        torch.manual_seed(3)
        want = program(net, x43())
        torch.manual_seed(3)
        assert torch.equal(jfn(net, x43()), want)


def test_another_module_of_the_same_class():
    a, b = new_linear(), new_linear()
    with torch.no_grad():
        b.weight.mul_(2)

    def program(net, x):
        return net(x)

    jfn = tracejit.jit(program, fallback="error")
    for net in (a, b, a, b):
        assert torch.equal(jfn(net, x43()), net(x43()))


# ------------------------------------------------------------------ state that the function itself writes

class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.step, self.log, self.last = 0, [], {}
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.history = torch.zeros(3)

    def forward(self, x):
        self.seen = self.seen + x.numel()
        self.history = self.history * 0.5 + x
        return x * self.seen + self.history


def check_stateful(program, make_state, read, calls=4, hits=None):
    """Same results and same state as eager after each of several calls."""
    mine, theirs = make_state(), make_state()
    jfn = tracejit.jit(program, fallback="error")
    for i in range(calls):
        want, got = program(mine, x3() + i), jfn(theirs, x3() + i)
        assert torch.equal(want, got), f"call {i}"
        assert str(read(mine)) == str(read(theirs)), f"call {i}"
    if hits is not None:
        assert jfn.cache_info().hits >= hits, jfn.cache_info()


def test_counter_advances():
    def program(net, x):
        net.step += 1
        return x * 2

    check_stateful(program, Stateful, lambda net: net.step)


def test_counter_that_is_read():
    def program(net, x):
        net.step += 1
        return x * net.step

    check_stateful(program, Stateful, lambda net: net.step)


def test_buffers_rebound():
    check_stateful(lambda net, x: net(x), Stateful, lambda net: (net.seen, net.history), hits=3)


def test_buffer_rebound_by_a_jitted_module():
    net = Stateful()
    jitted = tracejit.jit(net, fallback="error")
    for i in range(1, 4):
        jitted(x3())
        assert net.seen.item() == 3 * i
        assert jitted.seen is net.seen


def test_list_append():
    def program(net, x):
        y = x * 2
        net.log.append(y)
        return y + 1

    check_stateful(program, Stateful, lambda net: net.log)


def test_dict_entry():
    def program(net, x):
        net.last["y"] = x * 2
        net.last["n"] = x.shape[0]
        return x + 1

    check_stateful(program, Stateful, lambda net: net.last)


def test_attribute_set_to_a_result():
    def program(net, x):
        net.cached = (x * 2)[1:]
        return x + 1

    check_stateful(program, Stateful, lambda net: getattr(net, "cached", None))


def test_attribute_deleted_and_created():
    def program(net, x):
        if hasattr(net, "cached"):
            del net.cached
            return x * 1
        net.cached = x * 2
        return x * 3

    check_stateful(program, Stateful, lambda net: getattr(net, "cached", None))


def test_global_written_by_the_function():
    def program(x):
        global NUMBER
        NUMBER = NUMBER + 1
        return x * NUMBER

    jfn = tracejit.jit(program, fallback="error")
    with changed(global_name("NUMBER"), 2, 2):
        for step in range(3, 7):
            assert torch.equal(jfn(x3()), x3() * step)
            assert NUMBER == step


def test_nonlocal_written_by_the_function():
    total = torch.zeros(3)

    def program(x):
        nonlocal total
        total = total + x
        return total * 2

    jfn = tracejit.jit(program, fallback="error")
    for step in range(1, 4):
        assert torch.equal(jfn(x3()), x3() * step * 2)
        assert torch.equal(total, x3() * step)


def test_plain_object_state():
    def program(state, x):
        state.count += 1
        state.sum = state.sum + x.sum()
        return x / state.count

    check_stateful(program, lambda: types.SimpleNamespace(count=0, sum=torch.zeros(())), lambda s: (s.count, s.sum))


def appending(x, made=[]):
    made.append(x)
    return x * len(made)


def filling(x, *, made={}):
    made[len(made)] = x
    return x * len(made)


def reading(x, options={"gain": 2}):
    return x * options["gain"]


@pytest.mark.parametrize("fn, default", [
    (appending, lambda f: f.__defaults__[0]), (filling, lambda f: f.__kwdefaults__["made"])])
def test_mutable_default_of_the_function_itself(fn, default):
    jfn = tracejit.jit(fn, fallback="error")
    for step in range(1, 4):
        assert torch.equal(jfn(x3()), x3() * step)
        assert len(default(fn)) == step
    given = default(fn).copy()
    assert torch.equal(jfn(x3(), made=given), x3() * 4)
    assert len(given) == 4 and len(default(fn)) == 3


def test_mutable_default_that_is_read():
    jfn = tracejit.jit(reading, fallback="error")
    for gain in (2, 3, 2):
        reading.__defaults__[0]["gain"] = gain
        assert torch.equal(jfn(x3()), x3() * gain)
    assert jfn.cache_info().hits == 1


# ------------------------------------------------------------------ state that torch keeps in Python

def test_gradient_scaler():
    def make():
        return torch.amp.GradScaler("cpu", init_scale=2.0)

    mine, theirs = make(), make()
    jfn = tracejit.jit(lambda x: theirs.scale(x), fallback="error")
    for change in (lambda s: None, lambda s: None, lambda s: s._scale.fill_(4.0), lambda s: s.update(8.0)):
        assert torch.equal(jfn(x3()), mine.scale(x3()))
        change(mine), change(theirs)
    assert torch.equal(jfn(x3()), mine.scale(x3()))
    assert jfn.cache_info().hits >= 2


def test_gradient_scaler_is_put_back_after_a_failed_capture():
    p = nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([p], lr=0.5), torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(p.sum()).backward()

    def step(x):
        scaler.unscale_(optimizer)
        scaler.step(optimizer)                  # asks for the value of found_inf
        return x

    tracejit.jit(step, fallback="silent")(x3())
    assert torch.equal(p, torch.full((2,), 0.5)) and torch.equal(p.grad, torch.ones(2))


def test_autocast_and_grad_mode_objects():
    autocast, grad = torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(True)
    weight = torch.ones(3, 3, requires_grad=True)

    def program(x):
        with autocast, grad:
            return x @ weight

    jfn = tracejit.jit(program, fallback="error")
    for enabled, mode in ((True, True), (False, True), (True, False), (True, True)):
        autocast._enabled, grad.mode = enabled, mode
        want, got = program(x3()), jfn(x3())
        assert want.dtype == got.dtype and want.requires_grad == got.requires_grad
    assert jfn.cache_info().hits == 1


def test_sobol_engine():
    mine, theirs = (torch.quasirandom.SobolEngine(2) for _ in range(2))
    jfn = tracejit.jit(lambda x: x[:2] * theirs.draw(1), fallback="silent")
    for _ in range(3):
        assert torch.equal(jfn(x3()), x3()[:2] * mine.draw(1))
    assert theirs.num_generated == 3


class Scripted(nn.Module):
    gain: int

    def __init__(self):
        super().__init__()
        self.gain = 2

    def forward(self, x):
        return x * self.gain


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_modules_are_refused():
    net = torch.jit.script(Scripted())
    for fn in (net, lambda x: net(x), lambda x: net.forward(x)):
        with pytest.raises(tracejit.UnsupportedError, match="TorchScript"):
            tracejit.jit(fn, fallback="error")(x3())


# ------------------------------------------------------------------ what an entry keeps alive

def test_what_closures_hold_is_freed_with_the_function():
    def call():
        net, options = new_linear(), types.SimpleNamespace()
        options.net, parts = net, [net]

        def helper(x):
            return x * options.net.bias + parts[0].bias
        jfn = tracejit.jit(lambda x: helper(x) * net.bias, fallback="error")
        for _ in range(4):
            jfn(x3())
        assert jfn.cache_info().hits == 3
        return weakref.ref(net)
    seen = [call() for _ in range(3)]
    gc.collect()
    assert [ref() for ref in seen] == [None] * 3


def test_classes_are_freed_with_the_function():
    def call():
        class Layer:
            __slots__ = ("gain",)

            def __call__(self, x):
                return x * self.gain
        layer = Layer()
        layer.gain = 2
        jfn = tracejit.jit(lambda x: layer(x), fallback="error")
        for _ in range(4):
            assert torch.equal(jfn(x3()), x3() * 2)
        return weakref.ref(Layer)
    seen = call()
    gc.collect()
    assert seen() is None
