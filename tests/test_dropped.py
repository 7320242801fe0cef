"""Nothing stays alive that the user dropped: jits, modules, arguments, results, gradients."""
import gc
import sys
import weakref

import pytest
import torch
from torch import nn

import tracejit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.k = nn.Linear(4, 4), nn.BatchNorm1d(4), 2.0

    def forward(self, x):
        return torch.relu(self.b(self.a(x))) * self.k


def of_function(times):
    """The jit, and what it was called with and gave."""
    scale, x, y = 2, torch.randn(3, 4), torch.randn(3, 4)
    jfn = tracejit.jit(lambda a, b: torch.relu(a + b) * b * scale, fallback="error")
    for _ in range(times):
        result = jfn(x, y)
    return [jfn, x, y, result]


def of_module(times):
    net, x = Net(), torch.randn(3, 4)
    jitted = tracejit.jit(net, fallback="error")
    with torch.no_grad():
        for _ in range(times):
            result = jitted(x)
    return [jitted, type(jitted)._tracejit, net, net.a.weight, net.b.running_mean, x, result]


def of_training(times):
    net, x = Net(), torch.randn(3, 4)
    jitted = tracejit.jit(net, fallback="error")
    for _ in range(times):
        result = jitted(x)
        result.sum().backward()
    return [jitted, type(jitted)._tracejit, net, net.a.weight, net.a.weight.grad, x, result]


def of_training_step(times):
    net, x = Net(), torch.randn(3, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
        return loss
    jfn = tracejit.jit(step, fallback="error")
    for _ in range(times):
        result = jfn(x)
    return [jfn, net, optimizer, net.a.weight, net.a.weight.grad, optimizer.state[net.a.weight]["momentum_buffer"], x, result]


PROGRAMS = [of_function, of_module, of_training, of_training_step]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("times", [1, 4], ids=["compiled", "cached"])
def test_what_was_dropped_is_gone(program, times):
    watched = [weakref.ref(o) for o in program(times)]
    gc.collect()
    assert [w() for w in watched] == [None] * len(watched)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("times", [1, 4], ids=["compiled", "cached"])
def test_arguments_and_results_go_while_the_jit_stays(program, times):
    gc.collect()
    gc.disable()                                               # at once, not when the collector comes
    try:
        made = program(times)
        jfn, watched = made[0], [weakref.ref(o) for o in made[-2:]]
        del made
        assert [w() for w in watched] == [None] * 2 and jfn.cache_info().entries
    finally:
        gc.enable()


@pytest.mark.parametrize("program", PROGRAMS)
def test_jits_made_and_dropped_leave_nothing(program, full):
    """Four programs: a thousand jits in the full run."""
    def blocks(jits):
        for _ in range(jits):
            program(3)
        gc.collect()
        return len(gc.get_objects()), sys.getallocatedblocks()
    blocks(5)
    jits = 250 if full else 5
    (objects, before), (more, after) = blocks(2), blocks(jits)
    assert more - objects < jits + 100 and after - before < 8 * jits + 1000      # one jit is hundreds and a thousand
