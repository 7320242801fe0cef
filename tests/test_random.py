"""Random numbers: the same draws in program order, and the same generator state afterwards."""
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tracejit

from cases.parity import assert_parity


def zeros():
    return torch.zeros(4, 6)


def check(program, make_args=lambda: [zeros()], **options):
    """The harness compares results, arguments and the state of the default generator, over three calls."""
    return assert_parity(program, make_args, repeat=3, **options)


def test_draws_come_in_program_order():
    def program(x):
        a = torch.rand(3)
        b = torch.randn(4)
        c = torch.randint(0, 10, (5,))
        d = torch.randperm(6)
        return x + 1, a, b, c, d

    check(program)


def test_unused_draws_still_advance_the_generator():
    def program(x):
        torch.rand(3)
        torch.randn(2)
        return torch.rand(2) + x[0, 0]

    check(program)


def test_draws_like_an_argument():
    def program(x):
        return torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 5), torch.bernoulli(x + .5)

    check(program)


FILLS = {
    "uniform_": lambda t: t.uniform_(-1, 1), "normal_": lambda t: t.normal_(1, 2),
    "exponential_": lambda t: t.exponential_(),
    "bernoulli_": lambda t: t.bernoulli_(.3), "cauchy_": lambda t: t.cauchy_(),
    "log_normal_": lambda t: t.log_normal_(),
    "geometric_": lambda t: t.geometric_(.4), "random_": lambda t: t.random_(0, 9),
}


@pytest.mark.parametrize("fill", list(FILLS))
def test_in_place_fills_of_arguments_views_and_intermediates(fill):
    def program(x):
        FILLS[fill](x)
        FILLS[fill](x[1:3, ::2])
        FILLS[fill](x.t()[2])
        y = torch.zeros(4, 6)
        FILLS[fill](y[:, 1:])
        y.mul_(2)
        return y, x * 1

    check(program)


def test_dropout():
    def program(x):
        y = F.dropout(x + 1, 0.5)
        return F.dropout(y, 0.2, training=False), F.dropout1d(y[None], .5), F.alpha_dropout(y, .3)

    check(program)


def test_in_place_dropout():
    def program(x):
        F.dropout(x[:2], 0.5, inplace=True)
        return x * 2

    check(program, lambda: [torch.ones(4, 6)])


def test_dropout_with_gradients():
    def program(w):
        return F.dropout(w * 2, 0.5)

    check(program, lambda: [torch.ones(32, requires_grad=True)], grad=True)


def test_multinomial_and_distributions():
    def program(x):
        p = torch.softmax(x, -1)
        return torch.multinomial(p, 2), torch.poisson(x + 3), torch.binomial(x + 5, p), torch.normal(x, x + 1)

    check(program)


def test_two_calls_give_different_numbers():
    jfn = tracejit.jit(lambda x: x + torch.rand(4, 6), fallback="error")
    first, second = jfn(zeros()), jfn(zeros())
    assert jfn.cache_info().hits == 1
    assert not torch.equal(first, second)


def test_attention_dropout():
    def program(q):
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    check(program, lambda: [torch.ones(1, 2, 5, 8)])


def test_module_with_dropout_and_rrelu():
    net = nn.Sequential(nn.Dropout(0.3), nn.RReLU(inplace=True))
    check(lambda x: net(x * 2 - 1), lambda: [torch.ones(4, 6)])


def test_generator_as_an_argument():
    def program(x, g):
        x[1:].normal_(generator=g)
        return torch.rand(3, generator=g) + torch.rand(3)

    jfn = tracejit.jit(program, fallback="error")
    mine, theirs = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    for call in range(3):
        a, b = zeros(), zeros()
        torch.manual_seed(call)
        want = program(a, mine)
        after = torch.get_rng_state()
        torch.manual_seed(call)
        got = jfn(b, theirs)
        assert torch.equal(want, got) and torch.equal(a, b)
        assert torch.equal(after, torch.get_rng_state())
        assert torch.equal(mine.get_state(), theirs.get_state())


def test_another_generator_object_is_the_one_that_advances():
    jfn = tracejit.jit(lambda g: torch.rand(3, generator=g), fallback="error")
    for seed in (1, 2, 1):
        g = torch.Generator().manual_seed(seed)
        assert torch.equal(jfn(g), torch.rand(3, generator=torch.Generator().manual_seed(seed)))


def test_generator_in_a_closure_and_rebound():
    g = torch.Generator().manual_seed(7)

    def program(x):
        return x + torch.randn(6, generator=g)

    jfn = tracejit.jit(program, fallback="error")
    reference = torch.Generator().manual_seed(7)
    for _ in range(3):
        assert torch.equal(jfn(zeros()), zeros() + torch.randn(6, generator=reference))
    g = torch.Generator().manual_seed(99)
    assert torch.equal(jfn(zeros()), zeros() + torch.randn(6, generator=torch.Generator().manual_seed(99)))


def test_default_generator_passed_by_name():
    check(lambda x: x + torch.rand(6, generator=torch.default_generator))


def test_manual_seed_inside():
    def program(x):
        torch.manual_seed(11)
        return x + torch.rand(6)

    assert_parity(program, lambda: [zeros()], repeat=3, jit_options={"fallback": "silent"})


def test_fork_rng_and_state_inside():
    def program(x):
        state = torch.get_rng_state()
        a = torch.rand(3)
        torch.set_rng_state(state)
        with torch.random.fork_rng(devices=[]):
            b = torch.rand(3)
        return x[0, :3] + a, b

    assert_parity(program, lambda: [zeros()], repeat=3, jit_options={"fallback": "silent"})


def test_a_program_that_draws_nothing_leaves_the_generator_alone():
    jfn = tracejit.jit(lambda x: x * 2, fallback="error")
    before = torch.get_rng_state()
    jfn(zeros())
    jfn(zeros())
    assert torch.equal(before, torch.get_rng_state())


def test_compiling_does_not_advance_the_generator():
    def program(x):
        return torch.rand(4, 6) + x

    torch.manual_seed(3)
    want = program(zeros())
    torch.manual_seed(3)
    assert torch.equal(tracejit.jit(program, fallback="error")(zeros()), want)


def test_python_and_numpy_randomness_is_not_frozen():
    import random

    def program(x):
        return x + random.random()

    jfn = tracejit.jit(program, fallback="silent")
    results = []
    for fn in (program, jfn, jfn):
        random.seed(4)
        results.append([fn(zeros())[0, 0].item() for _ in range(3)])
    assert results[0] == results[1] == results[2]


def test_what_a_call_drew_and_wrote_before_it_raised_stays_in_a_replayed_program():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, written):
            written.mul_(2).add_(torch.rand(3))
            raise ValueError

    def program(w, h, written):
        try:
            torch.nn.functional.dropout(w, 0.5, inplace=True)
        except RuntimeError:
            pass
        try:
            Doubled.apply(w, written)
        except ValueError:
            pass
        with torch.no_grad():
            h.index_fill_(1, torch.tensor([0, 2]), 0)
        return w * written

    compiled = tracejit.jit(program)
    found = []
    for function in (program, compiled, compiled):
        torch.manual_seed(3)
        written, w = torch.ones(3), torch.ones(3, requires_grad=True)
        result = function(w, torch.stack([w * 2, w * 3]), written)
        found.append((written, result.detach(), torch.rand(2)))
    assert compiled.replayed_because and compiled.cache_info().fallbacks == 0
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))
