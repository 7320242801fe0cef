"""What a caller does with several results of one call, beside eager: one backward pass after another, hooks, writes, detaching."""
import pytest
import torch

import tracejit

from test_written_arguments import leaf


def apart(w, x):
    return w.exp(), x.exp()


def a_trunk(w, x):
    h = (w * x).tanh()
    return h.exp(), h.sin(), h * 2


def each_other(w, x):
    h = w.exp()
    return h, h * h, x * h


def one_that_keeps_nothing(w, x):
    return w.sum(), (w * x).sum()


def a_trunk_that_keeps_nothing(w, x):
    h = w + x
    return h.exp(), h.sin(), h.expand(2, 3, 5)


def sums_of_both(w, x):
    return w + x, w * 2, x.expand(2, 3, 5)


def a_custom_function(w, x):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t * t

        @staticmethod
        def backward(ctx, tangent):
            (t,) = ctx.saved_tensors
            return 2 * t * tangent

    return Square.apply(w), Square.apply(x)


def written_views(w, x):
    h = w + 0
    h[1:].copy_(x[1:])
    return h, x + 1


def one_that_leads_to_nothing(w, x):
    with torch.no_grad():
        view = w.flatten()
    h = view + view
    return h, x * x, h * h, w * x


def from_a_view(w, x):
    h = w + x
    v = h.flatten()
    return h, v, v.exp()


def from_a_view_of_an_argument_and_one_of_that(w, x):
    v = w[1:]
    u = v.flatten()
    return v, u, u * u, x + 1


def from_both_parts(w, x):
    h = w * x
    first, last = h.split([1, h.shape[0] - 1])
    return h, first, last, first.sum() * last


PROGRAMS = (one_that_leads_to_nothing, from_a_view, from_a_view_of_an_argument_and_one_of_that, apart, a_trunk, a_trunk_that_keeps_nothing, each_other,
            one_that_keeps_nothing, sums_of_both, a_custom_function, written_views)


def one_after_another(results):
    for r in results:
        yield r.sum().backward()


def all_at_once(results):
    yield sum(r.sum() for r in results).backward()
    yield results[0].sum().backward()


def the_first_twice(results):
    yield results[0].sum().backward()
    yield results[0].sum().backward()


def the_last_twice(results):
    yield results[-1].sum().backward()
    yield results[-1].sum().backward()


def hooks_on_all(results, asked=0):
    seen = []
    for n, r in enumerate(results):
        r.register_hook(lambda g, n=n: seen.append((n, g.sum().item())))
        r.grad_fn.register_hook(lambda *_, n=n: seen.append(n))
    results[asked].sum().backward()
    yield sorted(map(str, seen))


def hooks_and_the_last(results):
    return hooks_on_all(results, -1)


def hooks_that_change(results):
    for r in results:
        r.register_hook(lambda g: g * 2)
    yield results[-1].sum().backward()


def gradients_retained(results):
    for r in results:
        r.retain_grad()
    yield results[-1].sum().backward()
    yield [None if r.grad is None else r.grad.sum().item() for r in results]


def the_first_detached(results):
    results[0].detach_()
    yield results[-1].sum().backward()


def of_the_first_detached(results):
    results[0].detach_()
    yield results[0].sum().backward()


def the_first_written(results):
    with torch.no_grad():
        results[0].add_(1)
    for r in results[::-1]:
        yield r.sum().backward()


def the_last_written(results):
    with torch.no_grad():
        results[-1].add_(1)
    for r in results:
        yield r.sum().backward(retain_graph=True)


WAYS = (one_after_another, all_at_once, the_first_twice, the_last_twice, hooks_on_all, hooks_and_the_last, hooks_that_change,
        gradients_retained, the_first_written, the_last_written, the_first_detached, of_the_first_detached)


def outcome(function, way):
    w, x = leaf(), leaf(seed=1)
    steps = way(function(w, x))
    seen = []
    while True:
        try:
            seen.append(next(steps))
        except StopIteration:
            break
        except RuntimeError as error:
            seen.append(str(error)[:60])
    return seen, [w.grad, x.grad]


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_several_results(program, way):
    compiled = tracejit.jit(program, fallback="error", executors=["torch"])
    for _ in range(2):
        (seen, gradients), (got_seen, got) = outcome(program, way), outcome(compiled, way)
        assert str(got_seen) == str(seen)
        for want, have in zip(gradients, got):
            assert (want is None) == (have is None) and (want is None or torch.allclose(want, have))
    assert compiled.replayed_because == ""


def test_a_result_that_leads_to_nothing_does_not_lead_to_arguments_of_others():
    compiled = tracejit.jit(one_that_leads_to_nothing, fallback="error")
    for function in (one_that_leads_to_nothing, compiled, compiled):
        w, x = leaf(), leaf(seed=1)
        nothing, square, *_ = function(w * 2, x * 2)
        nothing.sum().backward()
        square.sum().backward()                                # through x * 2, of which the first pass has freed nothing
        assert torch.allclose(x.grad, 8 * x) and w.grad is None
    assert compiled.replayed_because == ""


def test_gradients_that_are_zero_whatever_the_tangent_belong_to_the_result_that_leads_there():
    def program(w, x):
        x.eq_(w)
        return w.exp()

    compiled = tracejit.jit(program, fallback="error")
    for function in (program, compiled, compiled):
        w, x = leaf(), leaf(seed=1)
        function(w * 2, x * 2).sum().backward()
        assert w.grad is not None and x.grad is None


@pytest.mark.parametrize("program", [lambda v, w: (v // 2, w * 2), lambda v, w: v // 2 + w, lambda v, w: (w * 2, (v * 2) // w)],
                         ids=["apart", "added", "of two"])
def test_a_derivative_that_is_not_implemented_raises_wherever_it_leads(program):
    def around(w):
        with torch.no_grad():
            view = w.flatten()
        return program(view, w.flatten())

    compiled = tracejit.jit(around, fallback="error")
    for function in (around, compiled, compiled):
        results = function(leaf() * 2)
        results = results if isinstance(results, tuple) else (results,)
        with pytest.raises(RuntimeError, match="floor_divide is not implemented"):
            sum(r.sum() for r in results).backward()


def test_an_argument_that_is_detached_in_place_since():
    def program(h, w):
        return (h * w).sum(), w.sin()

    compiled = tracejit.jit(program, fallback="error")
    for function in (program, compiled, compiled):
        h, w = leaf() * 1, leaf(seed=1)
        results = function(h, w)
        h.detach_()
        results[1].sum().backward()
        with pytest.raises(RuntimeError, match="saved tensor that has been detached in-place"):
            results[0].backward()
        h = leaf()
        results = function(h, w)
        h.detach_()
        results[0].backward()                                  # a leaf may be


def test_a_write_to_an_argument_that_eager_keeps_and_does_not_read():
    def program(h, x):
        return 2.0 ** h, x * 2

    compiled = tracejit.jit(program, fallback="error", executors=["torch"])
    for function in (program, compiled, compiled):
        h = leaf() * 1
        power, other = function(h, leaf(seed=1))
        with torch.no_grad():
            h.add_(1)
        other.sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            power.sum().backward()
    assert compiled.replayed_because == ""


def test_what_is_kept_is_freed_with_the_last_result_that_needs_it():
    """The first backward pass frees what only it needs no sooner than eager, and all of it when nothing more can be asked."""
    def program(w, x):
        h = w + x
        return h.exp(), h.sin()

    compiled = tracejit.jit(program, fallback="error")
    for together in (True, False):
        w, x = leaf(), leaf(seed=1)
        first, second = compiled(w, x)
        node = first.grad_fn.next_functions[0][0]
        if together:
            (first + second).sum().backward()
        else:
            first.sum().backward()
            assert node.own is not None
            second.sum().backward()
        assert node.own is None and not node.watched


def test_second_derivatives_of_results_that_are_apart():
    outcomes = []
    for function in (apart, tracejit.jit(apart, fallback="error")):
        w, x = leaf(), leaf(seed=1)
        first, second = function(w, x)
        (once,) = torch.autograd.grad(first.sum(), w, create_graph=True)
        (twice,) = torch.autograd.grad(once.square().sum(), w)
        outcomes.append([once, twice, *torch.autograd.grad(second.sum(), x)])
    assert all(torch.allclose(want, have) for want, have in zip(*outcomes))


@pytest.mark.parametrize("way", [hooks_on_all, hooks_and_the_last, gradients_retained, one_after_another], ids=lambda f: f.__name__)
def test_views_of_views_among_the_results(way):
    def program(w, x):
        v = (w * 1)[1:]
        return v, v.view(-1), x[:1], v[0]

    def of_an_argument(w, x):
        v = w[1:]
        return x[1:], v, v.t()

    for function in (program, of_an_argument, from_both_parts):
        compiled = tracejit.jit(function, fallback="error", executors=["torch"])
        for _ in range(2):
            (seen, gradients), (got_seen, got) = outcome(function, way), outcome(compiled, way)
            assert str(got_seen) == str(seen)
            assert all((a is None) == (b is None) and (a is None or torch.allclose(a, b)) for a, b in zip(gradients, got))


def test_hooks_of_views_that_one_call_makes():
    def of_a_result(w):
        h = w * 2
        first, last = h.chunk(2)
        return h, first, last

    def of_an_argument_and_one_further(w):
        first, last = w.chunk(2)
        return first, last, last * 2

    for program in (of_a_result, of_an_argument_and_one_further):
        called = []
        compiled = tracejit.jit(program, fallback="error")
        for function in (program, compiled, compiled):
            seen = []
            results = function(leaf())
            for n, r in enumerate(results):
                r.register_hook(lambda g, n=n: seen.append((n, g is None)))
            results[-1].sum().backward()
            called.append(seen)
        assert called[0] == called[1] == called[2] and any(none for _, none in called[0])
        assert compiled.replayed_because == ""


def test_a_view_of_a_result_that_is_written_since_has_the_history_that_autograd_makes_anew():
    def program(w):
        h = w * 1
        view = h.mT
        h.mul_(2)
        return h, view, view.exp()

    compiled = tracejit.jit(program, fallback="error", executors=["torch"])
    for asked in (1, 2):
        gradients = []
        for function in (program, compiled, compiled):
            results = function(leaf())
            assert results[1].grad_fn.name() == "AsStridedBackward0"
            gradients.append(torch.autograd.grad(results[asked].sum(), results[0])[0])
        assert [g.stride() for g in gradients] == [(5, 1)] * 3 and torch.equal(gradients[0], gradients[2])
    assert compiled.replayed_because == ""


def test_the_gradient_by_way_of_a_view_whose_base_was_written_since_is_laid_out_as_the_base_is():
    def the_base(a):
        b = a * 1
        view = b.mT
        b.mul_(2)
        return view

    def the_view(a):
        b = a * 1
        view = b.mT[0]
        view.mul_(2)
        return view.exp()

    def twice(a):
        b = a * 1
        view = b.expand(2, *b.shape)
        b.mul_(2)
        first = view * 3
        b.mul_(a)
        return first + view

    def a_list(a):
        view = (a * 1).mT
        torch._foreach_neg_([view, view])
        return view * 2

    compiled = tracejit.jit(a_list, fallback="error")
    a = leaf()
    assert all(torch.equal(compiled(a), a_list(a)) for _ in range(2))
    for program in (the_base, the_view, twice):
        compiled = tracejit.jit(program, fallback="error")
        for shape in ((1, 5), (5, 1), (3, 5)):
            for a in (leaf(shape), leaf(shape[::-1]).detach().mT.requires_grad_()):
                found = [torch.autograd.grad(function(a).sum(), a)[0] for function in (program, compiled, compiled)]
                assert found[0].stride() == found[1].stride() == found[2].stride()
                assert torch.allclose(found[0], found[2])
        assert compiled.replayed_because == ""


def test_a_write_to_what_a_call_on_lists_keeps():
    def program(h, x):
        return torch._foreach_mul([h, x], 2)[1]

    compiled = tracejit.jit(program, fallback="error")
    for function in (program, compiled, compiled):
        h, x = leaf() * 1, leaf(seed=1)
        doubled = function(h, x)
        with torch.no_grad():
            h.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            doubled.sum().backward()


def test_a_write_to_the_one_view_of_a_call_that_may_make_several():
    def program(w):
        return w.exp()[-1:].unbind()[0]

    compiled = tracejit.jit(program, fallback="error")
    for function in (program, compiled, compiled):
        result = function(leaf())
        with torch.no_grad():
            result.add_(1)
        with pytest.raises(RuntimeError, match="is a view and its base or another view"):
            result.is_leaf


def test_what_one_result_leads_to_does_not_notice_the_backward_pass_of_another():
    def heads(x, w, v):
        h = x.tanh()
        return h * w, h * v

    def run(function, inner):
        leaves = [leaf(seed=n) for n in range(3)]
        arguments = [t * 2 for t in leaves] if inner else leaves
        called = []
        for n, t in enumerate(arguments):
            t.register_hook(lambda g, n=n: called.append(n))
        w, v = arguments[1:]
        first, second = function(arguments[0], w, v)
        (v.exp() if inner else second).sum().backward(retain_graph=not inner)
        first.sum().backward()
        return [called.count(n) for n in range(3)] + [t.grad for t in leaves]

    compiled = tracejit.jit(heads, fallback="error")
    for inner in (True, False):
        wanted, found = run(heads, inner), run(compiled, inner)
        assert wanted[:3] == found[:3]
        assert all(torch.allclose(a, b) for a, b in zip(wanted[3:], found[3:]))
    assert compiled.replayed_because == ""
