"""Views between torch's calls are one step; what is a result, a region's argument or written memory keeps its own."""
import pytest
import torch

import tracejit


def compiled(fn, *args):
    jitted = tracejit.jit(fn, fallback="error")
    expected_args, given = [a.clone() for a in args], [a.clone() for a in args]
    for _ in range(2):
        torch.testing.assert_close(jitted(*given), fn(*expected_args))
    torch.testing.assert_close(given, expected_args)
    return jitted.last_traces[-1]


def views_of(trace):
    return [b.sym.packet for b in trace.bound_symbols if not b.is_region and not b.written
            and any(o.storage == a.storage for o in b.tensor_outputs for a in b.tensor_args)]


def attention(q, k):
    return q @ k[:, :, :8].transpose(-1, -2)


@pytest.mark.parametrize("program", [
    lambda w: w.t().detach(), lambda w: w.detach().t(), lambda w: w.t().view(torch.float32)[0], lambda w: w.detach().unsqueeze_(0),
    lambda w: w.detach().unsqueeze_(0)[0, 1:], lambda w: (w * 2, w.t().detach()[1:]), lambda w: w[:1].unbind()[0].view(-1).detach()], ids="last first dtype moved inside beside one".split())
def test_detached_views_of_what_requires_gradients_require_none(program):
    w = torch.randn(3, 3, requires_grad=True)
    jitted = tracejit.jit(program, fallback="error")
    for _ in range(2):
        for leaf in (w, w * 2):
            ours, theirs = (r if isinstance(r, tuple) else (r,) for r in (jitted(leaf), program(leaf)))
            assert [t.requires_grad for t in ours] == [t.requires_grad for t in theirs]
            assert all(map(torch.equal, ours, theirs)) and ours[-1].untyped_storage()._cdata == leaf.untyped_storage()._cdata


def test_a_chain_of_views_is_one_call():
    trace = compiled(attention, torch.randn(1, 4, 1, 16), torch.randn(1, 4, 32, 16))
    assert views_of(trace).count("as_strided") == 1 and len(views_of(trace)) <= 3


def test_parts_are_views_of_what_was_split():
    trace = compiled(lambda x: [torch.mm(p, p) for p in torch.mm(x, x).split(2, 1)[1].split(2)], torch.randn(4, 4))
    assert set(views_of(trace)) == {"as_strided"} and len(views_of(trace)) == 2


def test_parts_that_are_results_are_parts_of_one_split():
    def split(x):
        return torch.mm(x, x).split(2, 1)
    for _ in range(2):
        ours, theirs = tracejit.jit(split, fallback="error")(torch.ones(4, 4)), split(torch.ones(4, 4))
        assert all(map(torch.equal, ours, theirs)) and ours[0].untyped_storage()._cdata == ours[1].untyped_storage()._cdata


def test_parts_that_are_written_are_written_where_they_lie():
    def half(x):
        left, right = x.split(2, 1)
        left.copy_(torch.mm(right.t(), right.clone()).repeat(2, 1))
        return torch.mm(x, x)
    compiled(half, torch.randn(4, 4))


def same_again(x):
    return torch.mm(x.expand(4, 4).view(4, 4), x)


def test_a_view_that_is_its_parent_is_not_made():
    assert views_of(compiled(same_again, torch.randn(4, 4))) == []


def results_are_views(x):
    y = torch.mm(x, x)
    return y, y.view(4, 4), y.t()[1:].t()


def test_results_keep_being_tensors_of_their_own():
    jitted = tracejit.jit(results_are_views, fallback="error")
    a, b, c = jitted(torch.randn(4, 4))
    assert a is not b and a.data_ptr() == b.data_ptr() and c.data_ptr() == a.data_ptr() + 4
    assert c.stride() == (4, 1) and c.shape == (4, 3)


def writes_through_views(x):
    x.t()[1:].t().copy_(torch.mm(x, x)[:, 1:])
    return torch.mm(x.view(4, 4)[::2, ::2].t(), x[:2])


@pytest.mark.parametrize("make", [lambda: torch.randn(4, 4), lambda: torch.randn(6, 4)[2:], lambda: torch.randn(4, 4).t()])
def test_offsets_and_strides_of_arguments_are_counted(make):
    x = make()
    jitted, y = tracejit.jit(writes_through_views, fallback="error"), x.clone(memory_format=torch.preserve_format)
    for _ in range(2):
        torch.testing.assert_close(jitted(x), writes_through_views(y))
        torch.testing.assert_close(x, y)


def reads_bytes_anew(x):
    return torch.mm(x.view(torch.int32).view(torch.float32).t().t(), x)


def test_views_as_another_dtype_stay():
    compiled(reads_bytes_anew, torch.randn(4, 4))


def views_before_and_after_a_move(x, y):
    old = x.t()
    x.set_(y)
    return torch.mm(old[1:], old), torch.mm(x.t()[1:], x)


def test_a_view_of_memory_that_an_argument_left_stays_there():
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    a, b = x.clone(), y.clone()
    for got, want in zip(tracejit.jit(views_before_and_after_a_move)(x, y), views_before_and_after_a_move(a, b)):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("view", [lambda x: x.as_strided((2, 2), (2, 1)), lambda x: x.t().as_strided((3,), (1,), 1),
                                  lambda x: x.detach().as_strided((3,), (1,)), lambda x: x.data.t().as_strided((3,), (1,)).view(-1)])
def test_a_view_by_strides_under_no_grad_requires_what_its_base_requires(view):
    def program(x):
        with torch.no_grad():
            return view(x)

    compiled = tracejit.jit(program, fallback="error")
    for _ in range(2):
        x = torch.ones(4, 4, requires_grad=True) * 2
        assert compiled(x).requires_grad == program(x).requires_grad
