"""Whole training steps in one jit: zero_grad, forward, loss, backward, clipping and the optimizer, as in eager."""
import copy
import subprocess
import sys

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint

import tracejit

OPTIMIZERS = {
    "sgd": lambda ps, foreach: torch.optim.SGD(ps, lr=0.1, foreach=foreach),
    "momentum": lambda ps, foreach: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True, foreach=foreach),
    "adam": lambda ps, foreach: torch.optim.Adam(ps, lr=0.01, weight_decay=0.01, amsgrad=True, foreach=foreach),
    "adamw": lambda ps, foreach: torch.optim.AdamW(ps, lr=0.01, eps=1e-4, foreach=foreach),
}
each_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS)
foreach_or_not = pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(16, 4))

    def forward(self, x):
        return self.body(x)


def batch(i, n=12):
    generator = torch.Generator().manual_seed(i)
    return torch.randn(n, 8, generator=generator), torch.randint(0, 4, (n,), generator=generator)


def state(net, optimizer):
    tensors = [*net.state_dict().values(), *(p.grad for p in net.parameters())]
    return tensors + [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]


def both_ways(kind, foreach, make_step, steps=5, executors=("torch",), args=batch):
    """Runs a step in eager and jitted from the same start; (jitted step, its losses, eager's)."""
    torch.manual_seed(0)
    nets = [Net()]
    nets.append(copy.deepcopy(nets[0]))
    optimizers = [OPTIMIZERS[kind](net.parameters(), foreach) for net in nets]
    eager, jitted = (make_step(net, optimizer) for net, optimizer in zip(nets, optimizers))
    jitted = tracejit.jit(jitted, fallback="error", executors=list(executors))
    losses = []
    for i in range(steps):
        outcomes = []
        for step in (eager, jitted):
            torch.manual_seed(i)
            outcomes.append((step(*args(i)), torch.get_rng_state()))
        losses.append([loss for loss, _ in outcomes])
        assert torch.equal(outcomes[0][1], outcomes[1][1]), f"generator after step {i}"
        for a, b in zip(state(nets[0], optimizers[0]), state(nets[1], optimizers[1]), strict=True):
            assert (a is None) == (b is None)
            assert a is None or (torch.equal(a, b) if executors == ("torch",) else torch.allclose(a, b, rtol=1e-4, atol=1e-6))
    assert jitted.replayed_because == ""
    assert jitted.cache_info().hits >= steps - 2
    return jitted, losses


def plain_step(net, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss
    return step


@each_optimizer
@foreach_or_not
def test_a_step(kind, foreach):
    jitted, losses = both_ways(kind, foreach, plain_step)
    assert all(torch.equal(a, b) and a.requires_grad and b.requires_grad for a, b in losses)


@each_optimizer
def test_a_step_in_kernels(kind):
    jitted, losses = both_ways(kind, True, plain_step, executors=("cpu",))
    assert jitted.last_traces[-1].regions and all(torch.allclose(a, b, rtol=1e-5) for a, b in losses)


def test_the_graph_of_a_step_is_used_up():
    _, losses = both_ways("sgd", True, plain_step)
    for loss in losses[-1]:
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_clipping():
    def make(net, optimizer):
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            return loss.detach() + norm
        return step
    both_ways("momentum", True, make)


def test_gradient_accumulation():
    def make(net, optimizer):
        def step(xs, ys):
            total = 0
            for x, y in zip(xs.chunk(3), ys.chunk(3)):
                loss = F.cross_entropy(net(x), y) / 3
                loss.backward()
                total = total + loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            return total
        return step
    both_ways("momentum", True, make)


def test_gradients_that_accumulate_over_calls():
    def make(net, optimizer):
        def step(x, y):
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss.detach()
        return step
    both_ways("sgd", True, make)


def test_zero_grad_in_place():
    def make(net, optimizer):
        def step(x, y):
            for p in net.parameters():
                if p.grad is not None:
                    p.grad.zero_()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()
        return step
    both_ways("momentum", True, make)


def test_moving_average_of_the_weights():
    def make(net, optimizer):
        average = [p.detach().clone() for p in net.parameters()]

        def step(x, y):
            loss = plain(x, y)
            with torch.no_grad():
                for a, p in zip(average, net.parameters()):
                    a.lerp_(p, 0.1)
            return loss, average[0].clone()
        plain = plain_step(net, optimizer)
        return lambda x, y: step(x, y)[1]
    both_ways("sgd", True, make)


def test_a_hook_that_is_added_later_is_seen():
    w = torch.randn(3, requires_grad=True)

    @tracejit.jit(fallback="error")
    def step(x):
        w.grad = None
        (w * x).sum().backward()

    for _ in range(2):
        step(torch.ones(3))
    assert step.replayed_because == ""
    w.register_hook(lambda g: g * 5)
    step(torch.ones(3))
    assert torch.equal(w.grad, torch.full((3,), 5.0))


def test_gradients_taken_of_results():
    def program(w, x):
        loss = (w * x).relu_().square().sum()
        (g,) = torch.autograd.grad(loss, w)
        return g, loss.detach()

    jfn = tracejit.jit(program, fallback="error")
    w, x = torch.randn(5, requires_grad=True), torch.randn(5)
    for _ in range(2):
        assert all(torch.allclose(a, b) for a, b in zip(program(w, x), jfn(w, x)))
    assert jfn.replayed_because == "" and jfn.last_traces[-1].regions


def test_a_nonscalar_without_gradient_raises():
    jfn = tracejit.jit(lambda w: (w * 2).backward(), fallback="error")
    with pytest.raises(RuntimeError, match="scalar outputs"):
        jfn(torch.randn(3, requires_grad=True))


def test_a_loss_that_is_not_finite_changes_nothing():
    def make(net, optimizer):
        return plain_step(net, optimizer)

    def poisoned(i):
        x, y = batch(i)
        return (x * float("inf"), y) if i == 2 else (x, y)
    torch.manual_seed(0)
    nets = [Net()]
    nets.append(copy.deepcopy(nets[0]))
    steps = [plain_step(net, OPTIMIZERS["sgd"](net.parameters(), True)) for net in nets]
    steps[1] = tracejit.jit(steps[1], fallback="error", executors=["torch"])
    for i in range(4):
        for step in steps:
            torch.manual_seed(i)
            step(*poisoned(i))
        for a, b in zip(*(net.parameters() for net in nets)):
            assert torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def test_a_step_that_is_recorded_in_vain_leaves_no_gradients_on_weights():
    """Code of the user's in the backward pass takes gradients itself, of weights that it closes over."""
    def run(jit):
        torch.manual_seed(0)
        inner, head = nn.Linear(4, 4), nn.Linear(4, 2)

        def step(x):
            loss = head(torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=True)).square().mean()
            loss.backward()
            return loss.detach()

        step = jit(step)
        return [step(torch.ones(3, 4, requires_grad=True)) for _ in range(2)] + [p.grad for m in (inner, head) for p in m.parameters()]

    eager, jitted = run(lambda step: step), run(tracejit.jit)
    assert all(type(t) is torch.Tensor and torch.allclose(t, e) for t, e in zip(jitted, eager))


class Checkpointed(Net):
    """What it runs again writes to buffers, and counts in Python."""

    def __init__(self):
        super().__init__()
        self.body[3] = nn.Identity()
        self.drop, self.runs = nn.Dropout(0.2), 0

    def counted(self, x):
        self.runs += 1
        return self.body(x)

    def forward(self, x):
        return self.drop(torch.utils.checkpoint.checkpoint(self.counted, x, use_reentrant=False))


@each_optimizer
def test_a_step_with_checkpoint(kind):
    """Writes of what backward runs again are made twice, as in eager."""
    torch.manual_seed(0)
    nets = [Checkpointed()]
    nets.append(copy.deepcopy(nets[0]))
    optimizers = [OPTIMIZERS[kind](net.parameters(), True) for net in nets]
    steps = [plain_step(*made) for made in zip(nets, optimizers)]
    steps[1] = tracejit.jit(steps[1], fallback="error")
    for i in range(4):
        for step in steps:
            torch.manual_seed(i)
            step(*batch(i))
        assert nets[0].runs == nets[1].runs == 2 * (i + 1)
        for a, b in zip(state(nets[0], optimizers[0]), state(nets[1], optimizers[1]), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)
    assert not steps[1].replayed_because and steps[1].cache_info().misses <= 2


def test_what_checkpoint_runs_again_is_computed_twice():
    """As its user asks for: what it computed before is not kept."""
    net, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.Tanh()), torch.randn(3, 4)

    def loss(x):
        for _ in range(2):
            x = x + torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)
        return x.square().mean()

    def step(x):
        net.zero_grad()
        found = loss(x)
        found.backward()
        return found.detach()

    def gradients(call):
        net.zero_grad()
        call(x)
        return [p.grad.clone() for p in net.parameters()]

    jitted = [tracejit.jit(fn, fallback="error") for fn in (step, loss)]
    wanted = gradients(step)
    for call in (jitted[0], lambda x: jitted[1](x).backward()):
        for a, b in zip(gradients(call), wanted):
            torch.testing.assert_close(a, b)
    assert jitted[0].last_traces[-1].count("addmm") == 8
    forward, backward = (t.count("addmm") for t in (jitted[1].last_traces[-1], jitted[1].last_backward_traces[-1]))
    assert forward == backward == 4


def test_checkpoint_in_a_new_process():
    """Nothing of what torch makes at the first call of `checkpoint` is the function's doing."""
    run = """
import torch, tracejit
from torch.utils.checkpoint import checkpoint
net = torch.nn.Linear(4, 4)
x = torch.randn(3, 4, requires_grad=True)
f = tracejit.jit(lambda x: checkpoint(lambda t: net(t).exp(), x, use_reentrant=False), fallback="error", executors=["torch"])
f(x).sum().backward()
found = x.grad.clone()
x.grad = None
net(x).exp().sum().backward()
assert torch.allclose(found, x.grad) and not f.replayed_because
f(x)
assert f.cache_info().misses == 1
"""
    subprocess.run([sys.executable, "-c", run], check=True, timeout=300)
