"""Hooks, custom Functions, gradients and optimizer steps taken within the function: all as eager."""
import pytest
import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

import tracejit

from cases.parity import assert_parity


def leaf(*values):
    return torch.tensor(values or (1.0, -2.0, 3.0), requires_grad=True)


def plain(*values):
    return torch.tensor(values or (2.0, 0.5, -1.0))


def check(fn, make_args, **options):
    """Parity of values, sharing, state and of the gradients of the arguments, over three calls of one function."""
    return assert_parity(fn, make_args, grad=True, repeat=3, **options)


# ------------------------------------------------------------------ hooks and custom Functions

def test_tensor_hooks():
    def program(w):
        y = w * 2
        y.register_hook(lambda g: g * 3)
        return y * y

    check(program, lambda: [leaf()])


def test_hook_on_an_argument_set_by_the_caller():
    def program(w, x):
        return w * x

    def make():
        w = leaf()
        w.register_hook(lambda g: g * 5)
        return [w, plain()]

    check(program, make)


def test_post_accumulate_grad_hook():
    seen = []
    w = leaf()
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    jfn = tracejit.jit(lambda w: (w * 2).sum(), fallback="error")
    jfn(w).backward()
    jfn(w).backward()
    assert [g.tolist() for g in seen] == [[2.0] * 3, [4.0] * 3]


def test_module_backward_hooks():
    results = []
    for jit in (lambda m: m, lambda m: tracejit.jit(m, fallback="silent")):
        seen = []
        net = nn.Linear(3, 2)
        with torch.no_grad():
            net.weight.fill_(.5)
        net.register_full_backward_hook(lambda m, gin, gout, seen=seen: seen.append(gout[0].clone()))
        jitted = jit(net)
        for _ in range(2):
            (jitted(plain()[None]) * 3).sum().backward()
        results.append((seen, net.weight.grad))
    (seen_want, grad_want), (seen_got, grad_got) = results
    assert len(seen_want) == len(seen_got) == 2
    assert torch.equal(torch.stack(seen_want), torch.stack(seen_got)) and torch.equal(grad_want, grad_got)


class Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.mark_dirty(t)
        return t.div_(2)

    @staticmethod
    def backward(ctx, g):
        return g / 2


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x, (x > 0)

    @staticmethod
    def backward(ctx, g, _):
        (x,) = ctx.saved_tensors
        return g * 30 * x * x      # not the true gradient, so that it shows who computed it


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize("function", [Halve, Cube, StraightThrough], ids=lambda f: f.__name__)
def test_custom_function(function):
    def program(w):
        y = w * 3
        return function.apply(y), y + 1

    check(program, lambda: [leaf()])


def test_custom_function_marks_an_argument_dirty():
    def program(a, root):
        b = Halve.apply(a)
        return b * a

    def make():
        root = leaf()
        return [root * 3, root]

    check(program, make)


def test_custom_function_without_grad():
    def program(x):
        return Cube.apply(x)

    assert_parity(program, lambda: [plain()])


def test_saved_tensor_hooks_inside():
    def program(w):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t * 2):
            return w * w

    assert_parity(program, lambda: [leaf()], grad=True, jit_options={"fallback": "silent"})


# ------------------------------------------------------------------ gradients taken inside

def test_autograd_grad_inside():
    def program(w, x):
        loss = (w * x).relu_().square().sum()
        (g,) = torch.autograd.grad(loss, w)
        return g, loss.detach()

    check(program, lambda: [leaf(), plain()])


def test_autograd_grad_with_create_graph_inside():
    def program(w):
        (g,) = torch.autograd.grad(w.pow(3).sum(), w, create_graph=True)
        return g * w

    check(program, lambda: [leaf()])


def test_backward_inside_accumulates_into_grad():
    def program(w, x):
        (w * x).sum().backward()
        return x + 1

    def make():
        w, second = leaf(), leaf()
        second.grad = torch.ones(3)
        return [w, plain()]

    assert_parity(program, make, grad=True, repeat=3)


def test_backward_inside_onto_an_existing_grad():
    def program(w, x):
        (w * x).sum().backward()
        return w.grad * 2

    for fn in (program, tracejit.jit(program, fallback="silent")):
        w = leaf()
        assert torch.equal(fn(w, plain()), plain() * 2)
        assert torch.equal(fn(w, plain()), plain() * 4)
        w.grad = None
        assert torch.equal(fn(w, plain()), plain() * 2)


def test_grad_of_an_argument_read_and_cleared():
    def program(w):
        g = w.grad
        w.grad = None
        return g * 2

    for fn in (program, tracejit.jit(program, fallback="silent")):
        for scale in (1.0, 3.0):
            w = leaf()
            w.grad = torch.full((3,), scale)
            assert torch.equal(fn(w), torch.full((3,), 2 * scale))
            assert w.grad is None


def test_checkpoint():
    def program(w, x):
        return checkpoint(lambda t: (t * x).sin().exp(), w, use_reentrant=False) * 2

    check(program, lambda: [leaf(), plain()])


def test_gradient_penalty():
    def program(net, x):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return g.square().sum()

    def make():
        torch.manual_seed(0)
        return [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), torch.ones(2, 3)]

    assert_parity(program, make, grad=True, repeat=2, jit_options={"fallback": "silent"})


OPTIMIZERS = [
    lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    lambda ps: torch.optim.Adam(ps, lr=0.1),
    lambda ps: torch.optim.AdamW(ps, lr=0.1, foreach=True),
    lambda ps: torch.optim.RMSprop(ps, lr=0.1),
]


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS, ids=["sgd", "adam", "adamw-foreach", "rmsprop"])
@pytest.mark.parametrize("jit_whole_step", [True, False], ids=["whole step", "forward only"])
def test_optimizer_steps(make_optimizer, jit_whole_step):
    def forward(net, x):
        return (net(x) - 1).square().mean()

    def train(net, optimizer, x, forward=forward):
        optimizer.zero_grad()
        loss = forward(net, x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    histories = []
    for jitted in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
        optimizer = make_optimizer(net.parameters())
        step = train
        if jitted and jit_whole_step:
            step = tracejit.jit(train, fallback="silent", executors=["torch"])
        elif jitted:
            compiled = tracejit.jit(forward, fallback="error")
            step = lambda net, optimizer, x, f=compiled: train(net, optimizer, x, f)  # noqa: E731
        losses = [step(net, optimizer, torch.ones(2, 3) * i) for i in range(4)]
        histories.append(torch.stack(losses + [p.detach().sum() for p in net.parameters()]))
    assert torch.equal(*histories)


def test_optimizer_step_alone():
    results = []
    for wrap in (lambda f: f, lambda f: tracejit.jit(f, fallback="silent")):
        w = leaf()
        optimizer = torch.optim.Adam([w], lr=0.1)
        step = wrap(lambda optimizer=optimizer: optimizer.step())
        for i in range(4):
            w.grad = torch.full((3,), float(i + 1))
            step()
        results.append(w.detach().clone())
    assert torch.equal(*results)


# ------------------------------------------------------------------ backward hooks of modules within, hooks of nodes

def notes(seen):
    return lambda module, *gradients: seen.append([None if g is None else g.sum().item() for gs in gradients for g in gs])


def changes(module, grad_input, grad_output):
    return tuple(None if g is None else g * 3 for g in grad_input)


def changes_before(module, grad_output):
    return tuple(g * 2 for g in grad_output)


MODULE_HOOKS = {
    "noted": lambda m, seen: m.register_full_backward_hook(notes(seen)),
    "changed": lambda m, seen: m.register_full_backward_hook(changes),
    "before": lambda m, seen: m.register_full_backward_pre_hook(changes_before),
    "noted before": lambda m, seen: m.register_full_backward_pre_hook(notes(seen)),
    "all": lambda m, seen: [m.register_full_backward_hook(notes(seen)), m.register_full_backward_pre_hook(changes_before),
                            m.register_full_backward_hook(changes)]}


@pytest.mark.parametrize("register", MODULE_HOOKS.values(), ids=MODULE_HOOKS)
def test_full_backward_hooks_of_a_module_within(register):
    outcomes = []
    for jit in (lambda m: m, lambda m: tracejit.jit(m, fallback="error")):
        torch.manual_seed(0)
        net, seen = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4)), nn.Linear(4, 2)), []
        jitted = jit(net)
        jitted(plain()[None]).sum().backward()
        register(net[1], seen)
        for _ in range(2):
            (jitted(plain()[None]).sum() + jitted(plain(2.0, 1.0, 3.0)[None]).square().sum()).backward()
        outcomes.append((seen, [p.grad for p in net.parameters()]))
    (seen, want), (got_seen, got) = outcomes
    assert torch.allclose(torch.tensor(seen, dtype=torch.float64), torch.tensor(got_seen, dtype=torch.float64))
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(want, got))


def test_hooks_of_a_node():
    def program(w, log):
        y = w.exp()
        z = y * y
        assert w.sin().grad_fn.name() == "SinBackward0" and z.grad_fn is not None and z.detach().grad_fn is None
        z.grad_fn.register_hook(lambda grad_inputs, grad_outputs: (grad_inputs[0] * 2, grad_inputs[1]))
        y.grad_fn.register_prehook(lambda grad_outputs: (grad_outputs[0] + 1,))
        return z.sum()

    results = []
    for function in (program, tracejit.jit(program, fallback="error")):
        for _ in range(2):
            w = leaf()
            function(w, []).backward()
            results.append(w.grad)
    assert all(torch.allclose(results[0], r) for r in results)


def test_of_nodes_a_trace_knows_the_name_alone():
    for asks in (lambda y: y.grad_fn.next_functions, lambda y: str(y.grad_fn), lambda y: y.grad_fn == y.grad_fn):
        with pytest.raises(tracejit.UnsupportedError, match="the name alone"):
            tracejit.jit(lambda w, asks=asks: asks(w.exp()), fallback="error")(leaf())
    with pytest.raises(tracejit.UnsupportedError, match="grad_fn"):
        tracejit.jit(lambda y: y.grad_fn.name(), fallback="error")(leaf() * 1)


def test_a_tensor_made_within_takes_gradients_in_a_compiled_call():
    def penalty(w, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad((w * x).exp().sum(), x, create_graph=True)
        loss = slope.square().sum()
        loss.backward()
        return loss.detach()

    def attack(w, x):
        shift = torch.zeros(3, requires_grad=True)
        for _ in range(2):
            (w * (x + shift)).exp().sum().backward()
            with torch.no_grad():
                shift.add_(shift.grad.sign())
            shift.grad.zero_()
        return shift.detach()

    for program in (penalty, attack):
        assert check(program, lambda: [leaf(), plain()]).replayed_because == ""

    def shown(w, x):
        y = x.detach().requires_grad_()
        return y[1:], y

    def a_view(w, x):
        y = x.clone()[1:]
        return y.requires_grad_()

    def beside_a_write(w, x):
        y = x.detach().requires_grad_()
        w = w * 2
        w.zero_()
        return y[1:], w

    for program in (shown, a_view, beside_a_write):
        assert "requires_grad" in check(program, lambda: [leaf(), plain()]).replayed_because
