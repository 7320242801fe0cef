"""Programs with gradients as a forward and a backward trace: what is kept, how it is connected, what eager refuses."""
import gc
import itertools
import weakref

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint

import tracejit
from tracejit.ir.trace import walk

from cases.parity import assert_parity

EXECUTORS = [["torch"], ["cpu"]]
both = pytest.mark.parametrize("executors", EXECUTORS, ids=["torch", "cpu"])

ROUNDED = {"rtol": 1e-5, "atol": 1e-5}        # kernels have an exp, a tanh and an erf of their own


def equal(a, b, executors=("cpu",)):
    return torch.equal(a, b) if executors == ["torch"] else torch.allclose(a, b, **ROUNDED)


def leaf(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (3,), generator=generator).requires_grad_()


def plain(*shape, seed=1):
    return leaf(*shape, seed=seed).detach()


def split(fn, make_args, **options):
    """Parity over three calls, by a forward and a backward trace."""
    if options.get("jit_options", {}).get("executors") != ["torch"]:
        options = {**ROUNDED, **options}
    jfn = assert_parity(fn, make_args, grad=True, repeat=3, **options)
    assert jfn.replayed_because == "" and jfn.last_backward_traces
    return jfn


def kept(jfn):
    """Names of what backward reads besides tangents."""
    return [p.name for p in jfn.last_backward_traces[0].inputs if not p.name.startswith("tangent")]


# ------------------------------------------------------------------ what is split

@both
def test_chain_of_pointwise_ops_keeps_only_the_argument(executors):
    def program(x):
        return (x.sin().cos() * x).tanh().square()

    jfn = split(program, lambda: [leaf(8)], jit_options={"executors": executors, "recompute": "always"})
    assert kept(jfn) == ["x"]


def test_nothing_is_computed_again_when_asked():
    def program(x):
        return (x.sin().cos() * x).tanh()

    jfn = split(program, lambda: [leaf(8)], jit_options={"recompute": "never"})
    again = {b.sym.packet for b in walk(jfn.last_backward_traces[0].bound_symbols)}
    assert "tanh" not in again and len(kept(jfn)) > 1


def test_unknown_way_to_recompute_is_a_type_error():
    with pytest.raises(TypeError, match="recompute"):
        tracejit.jit(lambda x: x, recompute="sometimes")


@both
def test_a_linear_layer_with_dropout(executors):
    def program(x, w, b):
        return F.dropout(F.relu(F.linear(x, w, b)), 0.5)

    split(program, lambda: [leaf(4, 3), leaf(5, 3, seed=2), leaf(5, seed=3)], jit_options={"executors": executors})


def test_random_numbers_are_drawn_once():
    def program(x):
        return F.dropout(x, 0.5) * x

    jfn = split(program, lambda: [leaf(8)], jit_options={"recompute": "always"})
    assert not any(b.sym.random for b in walk(jfn.last_backward_traces[-1].bound_symbols))


@both
def test_batch_norm_twice_before_backward(executors):
    net = nn.BatchNorm1d(3).train()
    jitted = tracejit.jit(net, fallback="error", executors=executors)
    x = leaf(4, 3)
    (jitted(x).sin().sum() + jitted(x * 2).sum()).backward()
    got = x.grad, net.running_mean.clone(), net.weight.grad
    net.reset_running_stats()
    x.grad = net.weight.grad = net.bias.grad = None
    (net(x).sin().sum() + net(x * 2).sum()).backward()
    assert jitted.replayed_because == ""
    assert all(equal(a, b, executors) for a, b in zip(got, (x.grad, net.running_mean, net.weight.grad)))


def test_buffer_written_beside_gradients():
    def program(w, state):
        state.mul_(0.9).add_(w.detach())
        return w * state

    split(program, lambda: [leaf(), plain()])


def test_a_call_without_differentiable_results_is_no_split():
    def program(w):
        return (w * 2).detach(), w.argmax()

    jfn = assert_parity(program, lambda: [leaf()])
    assert jfn.replayed_because == "" and jfn.last_backward_traces == []


def test_why_a_program_is_replayed_can_be_asked():
    def program(w):
        y = w * 2
        y.register_hook(lambda g: g * 3)
        return y

    jfn = assert_parity(program, lambda: [leaf()], grad=True)
    assert "a result has a hook" in jfn.replayed_because and jfn.last_backward_traces == []


# ------------------------------------------------------------------ tangents

def two_results(w, x):
    y = w * x
    return y.sin(), (y + w).exp(), w.relu()


@both
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_results_that_no_gradient_reaches(used, executors):
    jfn = tracejit.jit(two_results, fallback="error", executors=executors)
    for _ in range(2):
        got = []
        for fn in (two_results, jfn):
            w, x = leaf(), leaf(seed=1)
            results = fn(w, x)
            sum(results[k].square().sum() for k in used).backward()
            got.append((w.grad, x.grad))
        (w_want, x_want), (w_got, x_got) = got
        assert equal(w_want, w_got, executors) and (x_want is None) == (x_got is None)
        assert x_want is None or equal(x_want, x_got, executors)
    assert jfn.replayed_because == ""


@both
def test_tangents_of_another_layout(executors):
    def program(x, b):
        return x.tanh() + b

    jfn = tracejit.jit(program, fallback="error", executors=executors)
    tangents = [torch.randn(()).expand(6, 5), torch.randn(5, 6).t(), torch.randn(6, 5), torch.randn(6, 10)[:, ::2]]
    for tangent in tangents:
        got = []
        for fn in (program, jfn):
            x, b = leaf(6, 5), leaf(5, seed=2)
            fn(x, b).backward(tangent)
            got.append((x.grad, b.grad))
        assert all(equal(a, b, executors) and a.stride() == b.stride() for a, b in zip(*got))
    assert jfn.replayed_because == ""


# ------------------------------------------------------------------ results that are computed from each other

def features_and_loss(x, w):
    features = (x @ w).relu()
    return (features * 2).square().mean(), features


def test_gradient_of_a_result_with_respect_to_another():
    jfn = tracejit.jit(features_and_loss, fallback="error", executors=["torch"])
    for fn in (features_and_loss, jfn, jfn):
        loss, features = fn(leaf(3, 3), leaf(3, 3, seed=2))
        (g,) = torch.autograd.grad(loss, features)
        assert torch.equal(g, features.detach() * 4 * 2 / 9)
    assert jfn.replayed_because == ""


def test_hooks_and_retained_gradients_of_a_result():
    jfn = tracejit.jit(features_and_loss, fallback="error", executors=["torch"])
    got = []
    for fn in (features_and_loss, jfn, jfn):
        x, w = leaf(3, 3), leaf(3, 3, seed=2)
        loss, features = fn(x, w)
        features.register_hook(lambda g: g * 3)
        features.retain_grad()
        (loss + features.sin().sum()).backward()
        got.append((x.grad, w.grad, features.grad))
    assert jfn.replayed_because == ""
    assert all(torch.equal(a, b) for later in got[1:] for a, b in zip(got[0], later))


@both
def test_a_chain_of_results(executors):
    def program(x, w):
        a = x.tanh() + x
        b = (a @ w).tanh() + a
        c = (b @ w).tanh() + b
        return a, b, c

    jfn = tracejit.jit(program, fallback="error", executors=executors)
    for used in ((2,), (0,), (0, 2), (1,), (0, 1, 2)):
        got = []
        for fn in (program, jfn):
            x, w = leaf(3, 3), leaf(3, 3, seed=2)
            results = fn(x, w)
            sum(results[k].square().sum() for k in used).backward()
            got.append((x.grad, w.grad))
        assert all((a is None) == (b is None) and (a is None or equal(a, b, executors)) for a, b in zip(*got)), used
    assert jfn.replayed_because == "" and sum(t.stage == "backward" for t in jfn.last_backward_traces) == 3


def mixed(x):
    h = x.sin()
    y = h * 2
    return y, (h * y).sum()


def test_results_whose_histories_mix_have_one_backward_pass():
    jfn = tracejit.jit(mixed, fallback="error", executors=["torch"])
    for used in (0, 1):
        got = []
        for fn in (mixed, jfn):
            x = leaf()
            fn(x)[used].sum().backward()
            got.append(x.grad)
        assert torch.equal(*got)
    assert jfn.replayed_because == ""


def test_a_gradient_that_mixed_histories_cannot_give_is_refused():
    jfn = tracejit.jit(mixed, fallback="error")
    y, loss = jfn(leaf())
    y.retain_grad()
    with pytest.raises(tracejit.UnsupportedError, match="retained"):
        loss.backward()


# ------------------------------------------------------------------ code of the user's in backward

class Scaled(torch.autograd.Function):
    scale = 3.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * Scaled.scale * ctx.saved_tensors[0]


def test_state_that_the_backward_of_a_custom_function_reads_is_guarded():
    jfn = tracejit.jit(lambda x: Scaled.apply(x), fallback="error", executors=["torch"])
    try:
        for Scaled.scale in (3.0, 3.0, 5.0):
            x = leaf()
            jfn(x).sum().backward()
            assert torch.equal(x.grad, x.detach() * Scaled.scale) and jfn.replayed_because == ""
    finally:
        Scaled.scale = 3.0
    assert jfn.cache_info().hits == 1


def test_hook_of_an_intermediate_that_holds_a_tensor_of_the_call():
    def program(w, x):
        y = w * 2
        y.register_hook(lambda g: g * x)
        return y * y

    split(program, lambda: [leaf(), plain()])


def test_hook_of_an_intermediate_that_writes_to_python_state():
    seen = []

    def program(w):
        y = w * 2
        y.register_hook(lambda g: seen.append(len(seen)))
        return y * y

    jfn = tracejit.jit(program, fallback="error")
    for n in range(3):
        jfn(leaf()).sum().backward()
        assert len(seen) == n + 1
    assert "writes to Python state" in jfn.replayed_because


def test_checkpoint():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def program(x):
        return torch.utils.checkpoint.checkpoint(lambda x: net(x).exp(), x, use_reentrant=False)

    split(program, lambda: [leaf(2, 3)])


def test_autocast_inside():
    def program(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (F.linear(x, w) + F.linear(x, w)).float().sum()

    split(program, lambda: [leaf(2, 3), leaf(2, 3, seed=2)])


# ------------------------------------------------------------------ what eager refuses

def test_write_to_a_result_that_eager_keeps_raises_at_backward():
    def program(w):
        return w.exp() * 1, w.exp()

    for recompute in ("never", "always"):
        jfn = tracejit.jit(program, fallback="error", recompute=recompute)
        _, y = jfn(leaf())
        y.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_write_to_an_argument_that_eager_does_not_keep_is_fine(recompute):
    def program(h):
        return h.exp().sum()

    jfn = tracejit.jit(program, fallback="error", recompute=recompute)
    for fn in (program, jfn):
        w = leaf()
        h = w * 1
        y = fn(h)
        h.add_(1)
        y.backward()
        assert equal(w.grad, w.detach().exp())


def test_second_backward_needs_the_graph_kept():
    jfn = tracejit.jit(lambda w: w.sin().sum(), fallback="error")
    w = leaf()
    loss = jfn(w)
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert equal(w.grad, 2 * w.detach().cos())


def test_gradients_of_some_inputs():
    def program(w, x):
        return (w * x).sin().sum()

    results = []
    for fn in (program, tracejit.jit(program, fallback="error")):
        w, x = leaf(), leaf(seed=1)
        fn(w, x).backward(inputs=[x])
        results.append((w.grad, x.grad))
    assert results[0][0] is results[1][0] is None and equal(results[0][1], results[1][1])


# ------------------------------------------------------------------ second derivatives

def test_second_derivative_runs_hooks_once():
    def program(w):
        return w.pow(3).sum()

    results = []
    for fn in (program, tracejit.jit(program, fallback="error")):
        w = leaf()
        w.register_hook(lambda g: g * 5)
        h = w * 1
        (g,) = torch.autograd.grad(fn(h), h, create_graph=True)
        g.sum().backward()
        results.append(w.grad)
    assert torch.equal(*results)


def test_second_derivative_of_a_random_program_is_refused():
    jfn = tracejit.jit(lambda w: F.dropout(w.sin(), 0.5).sum(), fallback="error")
    w = leaf()
    with pytest.raises(tracejit.UnsupportedError, match="second derivative"):
        torch.autograd.grad(jfn(w), w, create_graph=True)


# ------------------------------------------------------------------ memory

def test_nothing_that_the_user_dropped_is_kept_alive():
    jfn = tracejit.jit(lambda w, x: (w * x).sin(), fallback="error")
    w, x = leaf(64), plain(64)
    y = jfn(w, x)
    y.sum().backward()
    watched = [weakref.ref(t) for t in (w, x, y)]
    del w, x, y
    gc.collect()
    assert [r() for r in watched] == [None] * 3


def test_an_argument_that_backward_does_not_read_is_freed_before():
    jfn = tracejit.jit(lambda h: h.exp().sum(), fallback="error", recompute="never")
    jfn(leaf(64) * 1)
    h = leaf(64) * 1
    y = jfn(h)
    watched = weakref.ref(h)
    del h
    assert watched() is None
    y.backward()


def test_backward_keeps_one_tensor_of_a_pointwise_chain():
    def program(x, w):
        return F.gelu((x @ w).sin() * 2).square().sum()

    jfn = split(program, lambda: [leaf(16, 16), leaf(16, 16, seed=2)], jit_options={"recompute": "fused"})
    intermediate = [n for n in kept(jfn) if n not in ("x", "w")]
    assert len(intermediate) == 1


def test_foreach_write_to_a_kept_intermediate_raises_at_backward():
    def program(b):
        y = b * 2
        z = y.exp() * y
        torch._foreach_neg_([y])
        return z

    for fn in (program, tracejit.jit(program, fallback="error")):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            fn(leaf()).sum().backward()


def test_gradients_of_a_tensor_used_inside_and_outside_are_added_in_eagers_order():
    def program(a):
        return a / a.flip(0) * a

    got = []
    for fn in (program, tracejit.jit(program, fallback="error", executors=["torch"])):
        a = leaf(1000)
        (fn(a).sum() + (a * 1e-3).sum()).backward()
        got.append(a.grad)
    assert torch.equal(*got)


RESULTS_THAT_ARE_VIEWS = {
    "of an argument": lambda x, w: x.t(),
    "beside another": lambda x, w: (x.view(-1), (x * w).sum(1)),
    "of another": lambda x, w: ((y := x * w), y.t()),
    "before what they view": lambda x, w: ((y := x * w).t(), y, y[0]),
    "twice": lambda x, w: ((v := x.view(-1)), v, (x + w).exp()),
    "of what is written": lambda x, w: ((y := x * w).add_(1), y.t(), y.mul_(2)),
    "expanded": lambda x, w: (w[0].expand(3, 4), x * 2),
    "one of one": lambda x, w: x[1:2].unbind()[0],
    "parts": lambda x, w: (*x.split(2), x * w),
    "parts of another": lambda x, w: ((y := x * w), y.unbind(1)[2]),
}


@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "inner"])
@pytest.mark.parametrize("written", [None, 0, -1], ids=["", "first written", "last written"])
@pytest.mark.parametrize("case", RESULTS_THAT_ARE_VIEWS)
def test_results_that_are_views_are_split(case, written, leaf):
    program = RESULTS_THAT_ARE_VIEWS[case]
    jitted = tracejit.jit(program, fallback="error", executors=["cpu"])

    def outcome(fn):
        x, w = (torch.arange(16.0).view(4, 4).cos().add(k).requires_grad_() for k in range(2))
        given = x if leaf else x * 1
        results = fn(given, w)
        results = results if isinstance(results, tuple) else (results,)
        try:
            if written is not None:
                results[written].mul_(3)
            loss = sum((r * torch.arange(r.numel()).view(r.shape)).sum() for r in (*results, given))
            gradients = torch.autograd.grad(loss, (x, w), allow_unused=True)
        except RuntimeError as error:
            return [type(error)]
        same = [results.index(r) if r is results[0] else k for k, r in enumerate(results)]
        return [*results, *gradients, same, [r.untyped_storage()._cdata == given.untyped_storage()._cdata for r in results]]

    for _ in range(2):
        for a, b in zip(outcome(program), outcome(jitted), strict=True):
            assert torch.allclose(a, b) and a.requires_grad == b.requires_grad if isinstance(a, torch.Tensor) else a == b
    assert jitted.replayed_because == ""


def test_a_result_whose_gradient_ends_in_a_view_made_under_no_grad_requires_gradients():
    def f(x):
        with torch.no_grad():
            view = x.ravel()
        shifted = view - 1.5
        return torch.lerp(x, shifted, 0.25), shifted
    x, y = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    jitted = tracejit.jit(f, fallback="error")
    got, wanted = jitted(x), f(y)
    assert [(t.requires_grad, t.is_leaf) for t in got] == [(True, False)] * 2 and not jitted.replayed_because
    (got[0] * 2 + got[1]).sum().backward()
    (wanted[0] * 2 + wanted[1]).sum().backward()
    assert torch.equal(x.grad, y.grad)


def shifted_in_place(x):
    with torch.no_grad():
        view = x.as_strided((3,), (1,))
    with torch.no_grad():
        view += 1
    return view


def restrided_copy(x):
    padded = F.pad(x[None], (1, 1), "circular")
    padded.as_strided_((2, 2), (2, 1))


@pytest.mark.parametrize("f", [shifted_in_place, restrided_copy])
def test_a_history_that_autograd_does_not_tell_is_not_asked_for(f):
    x, y = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
    got, wanted = tracejit.jit(f, fallback="error")(x), f(y)
    assert torch.equal(x, y) and (got is wanted is None or torch.equal(got, wanted) and got.requires_grad == wanted.requires_grad)


def test_backward_frees_what_it_keeps_as_eager_does():
    weights = [torch.randn(512, 512, requires_grad=True) for _ in range(6)]

    def program(x, *weights):
        for w in weights:
            x = F.gelu(x @ w * 0.05)
        return x.square().mean()

    def most(function, **options):
        """Bytes at once, over the second step."""
        for _ in range(2):
            for w in weights:
                w.grad = None
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
                function(x, *weights).backward(**options)
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))

    x, jfn = torch.randn(1024, 512), tracejit.jit(program, fallback="error")
    assert most(jfn) <= most(program)
    assert most(jfn, retain_graph=True) > most(jfn) and jfn.replayed_because == ""


def test_what_is_computed_again_is_computed_where_backward_needs_it():
    """All layers' at once would be held until then, and be out of the caches."""
    def program(x, *weights):
        for w in weights:
            x = F.gelu(x @ w).sin().exp()
        return x.sum()

    jitted = tracejit.jit(program, executors=["cpu"], fallback="error")
    jitted(plain(8, 64), *(leaf(64, 64, seed=n) for n in range(4)))
    stages = [[b.sym.packet for b in t.bound_symbols] for t in jitted.last_backward_traces if t.stage == "backward"]
    calls = [c for c in stages[0] if c in ("sin", "mm")]
    assert calls.count("sin") == 4 and "sin sin sin" not in " ".join(calls), calls
