"""With gradients: views, in-place rules and saved tensors are as in eager."""
import pytest
import torch

import tracejit

from cases.parity import assert_parity


def leaf(*values):
    return torch.tensor(values or (1.0, -2.0, 3.0), requires_grad=True)


def plain(*values):
    return torch.tensor(values or (2.0, 0.5, -1.0))


def check(fn, make_args, **options):
    """Parity of values, sharing, state and of the gradients of the arguments, over three calls of one function."""
    return assert_parity(fn, make_args, grad=True, repeat=3, **options)


# ------------------------------------------------------------------ what works

def test_gradients_through_in_place_ops_on_intermediates():
    def program(w, x):
        y = w * x
        y.add_(1).mul_(w)
        y[1:].relu_()
        return y, y[0] * 2

    check(program, lambda: [leaf(), plain()])


def test_slice_write_cuts_and_redirects_gradients():
    def program(w, v):
        y = w * 2
        y[1:] = v[:2] * 3
        return y * y

    check(program, lambda: [leaf(), leaf(5.0, 6.0, 7.0)])


def test_write_into_a_plain_argument_makes_it_require_grad():
    def program(buffer, w):
        buffer.mul_(w)
        return buffer * 2

    check(program, lambda: [plain(), leaf()])


def test_non_leaf_argument_written_in_place():
    def program(a, root):
        a.mul_(2)
        a[0] = 7
        return a * a

    def make():
        root = leaf()
        return [root * 3, root]

    check(program, make)


def test_view_argument_of_a_non_leaf():
    def program(view, base, root):
        view.mul_(2)
        return base * base, view

    def make():
        root = leaf()
        base = root * 1
        return [base[1:], base, root]

    check(program, make)


def test_detach_and_data():
    def program(w):
        y = w * 2
        d = y.detach()
        d.add_(1)
        return y + d, d

    check(program, lambda: [leaf()])


def test_no_grad_block_inside():
    def program(w, x):
        with torch.no_grad():
            scale = (w * x).sum()
            x.add_(scale)
        return w * scale + x

    check(program, lambda: [leaf(), plain()])


def test_enable_grad_inside_no_grad():
    def program(w):
        with torch.no_grad():
            a = w * 2
            with torch.enable_grad():
                b = w * 3
        return a, b

    check(program, lambda: [leaf()])


def test_leaf_written_under_no_grad():
    def program(w):
        with torch.no_grad():
            w[1:].mul_(2)
        return w * w

    check(program, lambda: [leaf()])


def test_called_under_no_grad():
    def program(w, x):
        x.add_(w)
        return w * x

    jfn = tracejit.jit(program, fallback="error")
    w, mine, theirs = leaf(), plain(), plain()
    with torch.no_grad():
        want, got = program(w, mine), jfn(w, theirs)
    assert torch.equal(want, got) and torch.equal(mine, theirs) and not got.requires_grad
    assert jfn(w, plain()).requires_grad


def test_results_that_are_or_view_a_leaf():
    def program(w):
        return w, w.view(-1)[1:], w.detach()

    check(program, lambda: [leaf()])


def test_integer_and_bool_results_beside_differentiable_ones():
    def program(w):
        values, where = w.sort()
        return values * 2, where, w > 0, w.argmax()

    check(program, lambda: [leaf()])


def test_multi_output_views():
    def program(w):
        a, b = (w * 2).reshape(3, 1).expand(3, 2).unbind(1)
        return a * b, a + 1

    check(program, lambda: [leaf()])


def test_retained_gradient_of_an_intermediate():
    def program(w):
        y = w * 2
        y.retain_grad()
        return y, (y * y).sum()

    for fn in (program, tracejit.jit(program, fallback="silent")):
        y, loss = fn(leaf())
        loss.backward()
        assert torch.equal(y.grad, 2 * y.detach())


def test_retain_graph_and_second_backward():
    def program(w):
        return (w.sin() * w).sum()

    for fn in (program, tracejit.jit(program, fallback="error")):
        w = leaf()
        loss = fn(w)
        loss.backward(retain_graph=True)
        once = w.grad.clone()
        loss.backward()
        assert torch.equal(w.grad, 2 * once)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_double_backward():
    def program(w, x):
        return (w.pow(3) * x).sum()

    results = []
    for fn in (program, tracejit.jit(program, fallback="error")):
        w, x = leaf(), plain()
        (g,) = torch.autograd.grad(fn(w, x), w, create_graph=True)
        (gg,) = torch.autograd.grad(g.sum(), w)
        results.append((g, gg))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


def test_gradients_accumulate_over_calls():
    def program(w, x):
        return w * x

    grads = []
    for fn in (program, tracejit.jit(program, fallback="error")):
        w = leaf()
        for i in range(3):
            fn(w, plain() + i).sum().backward()
        grads.append(w.grad)
    assert torch.equal(*grads)


def test_gradient_check_in_double():
    def program(w, x):
        y = (w * x).sin()
        y[1:].mul_(w[:2])
        return y

    jfn = tracejit.jit(program, fallback="error")
    assert torch.autograd.gradcheck(jfn, (leaf().double().detach().requires_grad_(),
                                          plain().double().requires_grad_()))


# ------------------------------------------------------------------ what eager refuses

def test_in_place_on_a_leaf_raises():
    check(lambda w: w.add_(1), lambda: [leaf()], raises="RuntimeError")


def test_in_place_on_a_view_of_a_leaf_raises():
    check(lambda w: w[1:].add_(1), lambda: [leaf()], raises="RuntimeError")


def test_in_place_on_a_piece_of_split_raises():
    def program(w):
        a, b = (w * 2).split([1, 2])
        a.add_(1)
        return a, b

    check(program, lambda: [leaf()], raises="RuntimeError")


def test_write_to_a_tensor_saved_for_backward_raises_at_backward():
    def program(w):
        y = w.exp()
        z = y * 2
        y.add_(1)
        return z + y

    check(program, lambda: [leaf()], raises="RuntimeError")


def test_write_to_a_saved_argument_after_the_call_raises_at_backward():
    def program(w, x):
        return w * x

    for fn in (program, tracejit.jit(program, fallback="error")):
        for _ in range(2):
            w, x = leaf(), plain()
            y = fn(w, x)
            x.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()


def test_write_between_two_uses_of_an_argument_raises_at_backward():
    def program(w, x):
        y = w * x
        x.add_(1)
        return y + w * x

    check(program, lambda: [leaf(), plain()], raises="RuntimeError")


def test_leaf_written_under_no_grad_after_its_use_raises_at_backward():
    def program(w):
        y = w * w
        with torch.no_grad():
            w.add_(1)
        return y

    check(program, lambda: [leaf()], raises="RuntimeError")


@pytest.mark.parametrize("executors", [None, ["torch"]])
def test_a_view_by_strides_of_what_leads_no_gradients_on_leads_none(executors):
    def program(a):
        cast = a.view(torch.float32)
        a.detach().as_strided((2, 2), (2, 1)).mul_(2)
        return a.data.as_strided((2, 2), (2, 1)), a.detach().as_strided((3,), (1,)), cast.as_strided((2,), (3,)), a.detach()[1:]

    for make in (lambda t: t, lambda t: t * 1, lambda t: torch.stack([t, t])[1]):
        compiled = tracejit.jit(program, fallback="error", executors=executors)
        for _ in range(2):
            outcomes = []
            for function in (program, compiled):
                a = make(torch.arange(12.0).reshape(3, 4).requires_grad_())
                results = function(a)
                outcomes.append([(t.requires_grad, t.is_leaf, t.tolist()) for t in (*results, a)])
            assert outcomes[0] == outcomes[1]


def view_apart(a):
    with torch.no_grad():
        return a.reshape(-1)


def written_apart(a):
    with torch.no_grad():
        view = a.reshape(-1)
        view.mul_(2)
    return view * 2


@pytest.mark.parametrize("program", [view_apart, written_apart, lambda a: view_apart(a).swapaxes(0, -1), lambda a: view_apart(a).sin() + a.cos()],
                         ids=["a result", "written", "viewed", "computed with"])
@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("executors", [["torch"], ["cpu"]])
def test_a_view_made_under_no_grad_of_a_leaf_that_is_a_view_requires_no_gradients(program, size, executors):
    def outcome(function, viewed):
        a = torch.zeros(size)
        a = (a.view(-1) if viewed else a).requires_grad_()
        try:
            result = function(a)
        except RuntimeError as error:
            return type(error)
        return result.requires_grad, result.is_leaf

    compiled = tracejit.jit(program, executors=executors)
    for viewed in (True, False, False, True):
        assert outcome(compiled, viewed) == outcome(program, viewed)


@pytest.mark.parametrize("executors", [["torch"], ["cpu"]])
def test_results_that_view_one_hidden_tensor_lead_to_it_and_not_to_each_other_once_it_is_written(executors):
    def program(a):
        twice = a.repeat_interleave(2, -1)
        last = twice[-1]
        last.lerp_(last, 0.25)
        return twice, last

    def gradients(function):
        twice, last = function(torch.arange(4.0, requires_grad=True) * 2)
        return torch.autograd.grad(last, [twice, last], allow_unused=True)

    compiled = tracejit.jit(program, executors=executors)
    for _ in range(2):
        assert gradients(compiled) == gradients(program) == (None, torch.ones(()))
