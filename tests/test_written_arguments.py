"""Arguments that are written with history: the program gives them a new one, and gradients go on to where they came from."""
import gc
import weakref

import pytest
import torch

import tracejit

from cases.parity import assert_parity

BEYOND_CACHES = (640, 1031)
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def leaf(shape=(3, 5), seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def doubled(b):
    b.mul_(2)


def returned(b, w):
    return b.mul_(w)


def saved_by_its_reader(b, w):
    b.mul_(w)
    return (b * b).sum()


def saves_its_result(b, w):
    b.exp_()
    return b * w


def read_before_and_after(b, w):
    before = b + w
    b.mul_(2)
    return before * b


def read_before(b, w):
    before = (b + w).tanh()
    b.mul_(w)
    return before


def overwritten(b, w):
    b.copy_(w.sin())


def through_a_view(b, w):
    b[1:].mul_(w[1:])
    return b[0], b.t()


def first_without_history(b, w):
    with torch.no_grad():
        b.mul_(3)
    b.add_(w)
    return b.sin()


def severed(b, w):
    before = b * 1
    b.detach_()
    b.mul_(w)
    return before


def another_result(b, w):
    b.mul_(2)
    return w * 3, b + w




def read_detached_by_an_earlier_result(b, w):
    r = w.exp()
    b.mul_(r.mean())
    return r, w * b.detach()


PROGRAMS = (returned, saved_by_its_reader, saves_its_result, read_before_and_after, read_before, overwritten, through_a_view,
            first_without_history, severed, another_result, read_detached_by_an_earlier_result)
FRESH = (overwritten, saved_by_its_reader, another_result)


def everything(results, b, w):
    """A loss of all that carries gradients."""
    tensors = [t for t in (*results, b, w) if isinstance(t, torch.Tensor) and t.requires_grad]
    return sum((k + 1) * (t * t).mean() for k, t in enumerate(tensors))


def backward(results, b, w, source):
    everything(results, b, w).backward()


def backward_twice(results, b, w, source):
    loss = everything(results, b, w)
    loss.backward(retain_graph=True)
    loss.backward()


def of_the_argument(results, b, w, source):
    loss = everything(results, b, w)
    found = torch.autograd.grad(loss, b, retain_graph=True)
    loss.backward(inputs=[w])
    return found


def of_one_result(results, b, w, source):
    found = []
    for t in (*results, b):
        if isinstance(t, torch.Tensor):
            found += torch.autograd.grad((t * t).sum(), [source, w, b], retain_graph=True, allow_unused=True)
    return found


def retained(results, b, w, source):
    b.retain_grad()
    backward(results, b, w, source)
    return [b.grad]


def written_since(results, b, w, source):
    with torch.no_grad():
        b.add_(1)
    backward(results, b, w, source)


WAYS = (backward, backward_twice, of_the_argument, of_one_result, retained, written_since)


def observe(function, shape, comes, way):
    """(what can be seen that is no tensor, tensors) of a call and what follows it."""
    source, w = leaf(shape, 1), leaf(shape, 2)
    b = comes(source)
    version = b._version
    out = function(b, w)
    results = out if isinstance(out, tuple) else (out,)
    seen = [(b.requires_grad, b.is_leaf, b.grad_fn is not None, b._version > version, w._version)]
    seen += [(t is b, t.requires_grad, t.is_leaf) for t in results if t is not None]
    tensors = [b.detach().clone(), *(t.detach().clone() for t in results if t is not None)]
    try:
        tensors += way(results, b, w, source) or []
    except RuntimeError as error:
        return [*seen, str(error)[:60]], tensors
    return seen, [*tensors, source.grad, w.grad]


def agree(program, shape, way, comes=lambda source: source * 1, executors=None):
    compiled = tracejit.jit(program, fallback="error", executors=executors)
    for _ in range(3):
        (seen, tensors), (got_seen, got) = observe(program, shape, comes, way), observe(compiled, shape, comes, way)
        assert seen == got_seen
        assert [t is None for t in tensors] == [t is None for t in got]
        for want, have in zip(tensors, got):
            assert want is None or torch.allclose(want, have, **TOLERANCE)
    return compiled


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_an_argument_with_history_is_written(program, way):
    compiled = agree(program, (3, 5), way, executors=None if way is backward else ["torch"])     # no kernels made for each
    assert compiled.replayed_because == "" and compiled.cache_info().hits == 2


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("program", [saves_its_result, read_before_and_after], ids=lambda f: f.__name__)
def test_beyond_the_caches(program, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert agree(program, BEYOND_CACHES, backward).replayed_because == ""
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("program", FRESH, ids=lambda f: f.__name__)
def test_an_argument_without_history_is_given_one(program):
    compiled = agree(program, (3, 5), backward, lambda source: source.detach() * 1)
    assert compiled.replayed_because == ""


def test_the_sum_over_a_chain_of_written_arguments():
    def program(a, b):
        a.mul_(2)
        b.add_(a)
        return a * b

    jfn = assert_parity(program, lambda: [leaf() * 1, leaf(seed=1) * 1], grad=True, repeat=3, **TOLERANCE)
    assert jfn.replayed_because == ""


def test_a_leaf_is_refused_before_it_is_written():
    compiled = tracejit.jit(doubled, fallback="error")
    source = leaf()
    compiled(source * 1)
    value = source.detach().clone()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        compiled(source)
    assert torch.equal(source, value)


VIEWS = {"of all": lambda t: (t * 1).view_as(t), "rows": lambda t: torch.cat([t * 1, t * 2])[2:5], "transposed": lambda t: (t.t() * 2).t(),
         "every other": lambda t: torch.stack([t, t], -1)[..., 1], "a view of a view": lambda t: torch.stack([t, t])[1:][0]}


@pytest.mark.parametrize("comes", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p is not severed], ids=lambda f: f.__name__)
def test_an_argument_that_is_a_view_is_written(program, comes):
    for way in (backward_twice, of_one_result):
        compiled = agree(program, (3, 5), way, comes, executors=["torch"])
        assert compiled.replayed_because == "" and compiled.cache_info().hits == 2


@pytest.mark.parametrize("program", [saves_its_result, read_before_and_after, returned, overwritten], ids=lambda f: f.__name__)
def test_an_argument_is_a_view_at_one_call_and_none_or_one_that_retains_its_gradient_at_another(program):
    ways = (lambda t: t * 1, VIEWS["rows"], lambda t: t * 1, lambda t: kept(t * 1), VIEWS["transposed"], lambda t: kept(VIEWS["rows"](t)))
    compiled = tracejit.jit(program, fallback="error")
    for comes in (*ways, *ways[::-1]):
        outcomes = []
        for function in (program, compiled):
            source, w = leaf(), leaf(seed=1)
            b = comes(source)
            everything((function(b, w),), b, w).backward()
            outcomes.append((source.grad, w.grad, b.grad if b.retains_grad else b.detach()))
        for want, have in zip(*outcomes):
            assert torch.allclose(want, have, **TOLERANCE)
    assert compiled.cache_info().entries <= 3 and compiled.replayed_because == ""     # one for each layout


@pytest.mark.parametrize("program", [saves_its_result, read_before_and_after, returned, overwritten], ids=lambda f: f.__name__)
def test_the_base_of_a_written_view_and_its_other_views_go_on(program):
    outcomes = []
    compiled = tracejit.jit(program, fallback="error")
    for function in (program, compiled, compiled):
        source, w, seen = leaf((4, 5)), leaf((2, 5), seed=1), []
        base = source * 2
        base.register_hook(lambda g, seen=seen: seen.append(g.clone()))
        b, whole, other = base[1:3], base.view(-1), base[2:]
        version = base._version
        result = function(b, w)
        facts = base._version - version, b._base is base, [t.grad_fn.name() for t in (base, whole, other)]
        (base.sum() + (whole * whole).sum() + other.exp().sum() + everything((result,), b, w)).backward()
        outcomes.append((facts, [source.grad, w.grad, *seen]))
    assert compiled.replayed_because == ""
    for facts, tensors in outcomes[1:]:
        assert facts == outcomes[0][0]
        assert all(torch.allclose(want, have, **TOLERANCE) for want, have in zip(outcomes[0][1], tensors, strict=True))


@pytest.mark.parametrize("comes", [lambda t: t[:], lambda t: (t * 1).unbind()[0], lambda t: (t * 1).split(2)[0],
                                   lambda t: no_grad_view(t * 1)], ids=["of a leaf", "one of several", "a part", "under no_grad"])
@pytest.mark.parametrize("first", [True, False])
def test_a_view_that_autograd_lets_nobody_write(comes, first):
    compiled = tracejit.jit(doubled, fallback="error")
    if not first:
        compiled(leaf() * 1)
        compiled((leaf() * 1)[:2]), compiled((leaf() * 1)[0])
    outcomes = []
    for function in (doubled, compiled):
        source = leaf()
        b = comes(source)
        value = b.detach().clone()
        with pytest.raises(RuntimeError) as raised:
            function(b)
        assert torch.equal(b, value)
        outcomes.append(str(raised.value)[:100])
    assert outcomes[0] == outcomes[1]


def no_grad_view(t):
    with torch.no_grad():
        return t[1:]


def test_a_view_is_not_detached_in_place():
    compiled = tracejit.jit(severed, fallback="error")
    for comes in (lambda t: t * 1, VIEWS["rows"], lambda t: t * 1):
        for function in (severed, compiled):
            b = comes(leaf())
            if b._is_view():
                with pytest.raises(RuntimeError, match="Can't detach views in-place"):
                    function(b, leaf(seed=1))
            else:
                function(b, leaf(seed=1))


def kept(t):
    t.retain_grad()
    return t


def test_hooks_of_the_argument_see_the_gradient_as_it_came():
    def run(function):
        source, seen = leaf(), []
        b = source * 1
        b.register_hook(lambda g: seen.append(g.clone()) or g * 3)
        function(b, leaf(seed=1)).sum().backward()
        return [*seen, source.grad]

    for want, have in zip(run(saves_its_result), run(tracejit.jit(saves_its_result, fallback="error"))):
        assert torch.allclose(want, have, **TOLERANCE)


def test_what_another_result_is_computed_from_is_left_alone():
    """Where the argument came from has been used up; the other result does not lead there."""
    def program(b, w):
        b.mul_(2)
        return w * w

    compiled = tracejit.jit(program, fallback="error")
    source, w = leaf(), leaf(seed=1)
    b = source.exp()
    for k in range(1, 4):
        compiled(b, w).sum().backward()
        assert torch.allclose(w.grad, 2 * k * w.detach()) and source.grad is None
    assert compiled.replayed_because == ""


def test_a_gradient_that_nobody_asks_for_is_no_zero():
    """Zero times infinity would be NaN."""
    def program(b):
        before = b + 1
        b.mul_(before)
        return before[...]

    compiled = tracejit.jit(program, fallback="error")
    for _ in range(2):
        source = torch.full((3,), torch.inf).requires_grad_()
        compiled(source * 2).sum().backward()
        assert torch.equal(source.grad, torch.full((3,), 2.0))
    assert compiled.replayed_because == ""


def test_an_argument_is_written_again():
    """Where nothing is kept for backward, histories may be gone through twice."""
    def program(b, w):
        b.add_(w)
        return b

    compiled = tracejit.jit(program, fallback="error")
    b, w = leaf() + 1, leaf(seed=1)
    for k in range(1, 4):
        assert compiled(b, w) is b
        b.sum().backward()
        assert torch.equal(w.grad, torch.full((3, 5), k * (k + 1) / 2))


def test_a_result_that_leads_to_no_argument():
    """A view made under no_grad is a leaf to autograd: nobody is led to where the argument came from."""
    def program(b):
        b.add_(b)
        with torch.no_grad():
            v = b[1:]
        return v + 1

    compiled = tracejit.jit(program, fallback="error")
    b = leaf().exp()
    for _ in range(3):
        result = compiled(b)
        assert result.requires_grad
        result.sum().backward()


def test_a_buffer_goes_on_from_step_to_step():
    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.register_buffer("state", torch.zeros(3, 4))

        def forward(self, x):
            self.state.detach_()
            self.state.copy_(torch.tanh(self.linear(x) + self.state))
            return self.state.square().sum()

    torch.manual_seed(0)
    module, twin = Recurrent(), Recurrent()
    twin.load_state_dict(module.state_dict())
    compiled = tracejit.jit(twin, fallback="error")
    for step in range(5):
        x = leaf((3, 4), step).detach()
        module(x).backward()
        compiled(x).backward()
        assert torch.allclose(module.linear.weight.grad, twin.linear.weight.grad, **TOLERANCE)
        assert torch.allclose(module.state, twin.state, **TOLERANCE) and twin.state.requires_grad
    assert compiled.replayed_because == "" and compiled.cache_info().entries == 2


def test_what_the_user_dropped_is_freed():
    compiled, w = tracejit.jit(saves_its_result, fallback="error"), leaf(seed=1)
    for _ in range(3):
        b = leaf() * 1
        result = compiled(b, w)
        references = weakref.ref(b), weakref.ref(result)
        gc.disable()
        try:
            del b, result
            assert [r() for r in references] == [None, None]
        finally:
            gc.enable()


def test_a_saved_value_that_is_overwritten_raises_as_in_eager():
    def program(b, w):
        kept = b * w
        b.mul_(2)
        return kept

    assert "modified by an inplace operation" in agree(program, (3, 5), backward).replayed_because


def test_detach_of_an_argument():
    def program(b):
        b.detach_()
        b.mul_(2)
        return b

    compiled = tracejit.jit(program, fallback="error")
    for _ in range(3):
        b = leaf() * 1
        assert compiled(b) is b and not b.requires_grad and b.grad_fn is None


def test_history_made_with_enable_grad_inside_no_grad():
    def program(b, w):
        with torch.enable_grad():
            b.mul_(w)
            return b * 2, w[1:]

    compiled = tracejit.jit(program, fallback="error")
    for _ in range(3):
        with torch.no_grad():
            b, w = torch.ones(3, 5), leaf()
            results = compiled(b, w)
        assert b.requires_grad and all(t.requires_grad for t in results)
        (b.sum() + results[0].sum() + results[1].sum()).backward()
        assert torch.allclose(w.grad, 3 + torch.tensor([[0.0], [1.0], [1.0]]))
    assert compiled.replayed_because == ""


@pytest.mark.parametrize("asked", [(0,), (1,), (2,), (3,), (0, 1), (1, 2), (1, 3)])
def test_results_that_are_not_asked_for_give_no_gradient(asked):
    def program(w, x):
        r = w.exp()
        s = r * 2
        y = x * 3
        return r, s, y, s * y

    compiled = tracejit.jit(program, fallback="error")
    outcomes = []
    for function in (program, compiled):
        w, x = leaf(), leaf(seed=1)
        results = function(w, x)
        sum(results[k].sum() for k in asked).backward()
        outcomes.append((w.grad, x.grad))
    for want, have in zip(*outcomes):
        assert (want is None) == (have is None) and (want is None or torch.allclose(want, have, **TOLERANCE))


def test_a_second_derivative_is_refused_when_it_is_asked_for():
    compiled = tracejit.jit(saves_its_result, fallback="error")
    for ask in (lambda y, w: torch.autograd.grad(y.sum(), w, create_graph=True), lambda y, w: y.sum().backward(create_graph=True)):
        w = leaf(seed=1)
        result = compiled(leaf() * 1, w)
        with pytest.raises(tracejit.UnsupportedError, match="a second derivative of a program that writes its arguments"):
            ask(result, w)
        result = compiled(leaf() * 1, w)
        result.sum().backward()
        assert w.grad is not None


def test_an_argument_that_is_detached_in_place_since():
    """Autograd minds where a later call has kept it, not where the call that wrote it has."""
    def written_and_kept(b, w):
        b.mul_(w)
        return b * b

    for program, minds in ((written_and_kept, True), (saves_its_result, True), (lambda b, w: b.exp_() + w, False)):
        compiled = tracejit.jit(program, fallback="error")
        for function in (program, compiled, compiled):
            b, w = leaf() * 1, leaf(seed=1)
            result = function(b, w)
            b.detach_()
            if minds:
                with pytest.raises(RuntimeError, match="saved tensor that has been detached in-place"):
                    result.sum().backward()
            else:
                result.sum().backward()
        assert compiled.replayed_because == ""


@pytest.mark.parametrize("comes", [lambda t: t * 1, VIEWS["rows"]], ids=["whole", "a view"])
def test_one_call_that_writes_an_argument_twice(comes):
    def program(b, w):
        torch._foreach_neg_([b, b])
        return b * w

    assert "writes an argument with history twice" in agree(program, (3, 5), backward, comes).replayed_because


def test_an_earlier_view_of_a_written_view_does_not_lead_its_gradient_through_that():
    def program(b):
        earlier = b.view(-1)
        b.add_(1)
        return b, earlier * b.view(-1)

    compiled = tracejit.jit(program, fallback="error")
    for make in (lambda: leaf() * 1, lambda: torch.stack([leaf() * 2, leaf() * 3])[1], lambda: leaf() * 1):
        found = []
        for function in (program, compiled):
            b, product = function(make())
            b.retain_grad()
            product.sum().backward()
            found.append(b.grad)
        assert torch.equal(*found)


def test_a_view_of_a_leaf_that_is_a_view_requires_gradients_after_a_write():
    def program(a):
        view = a.unflatten(0, (-1, 1))
        with torch.no_grad():
            view.sigmoid_()
        return view

    compiled = tracejit.jit(program, fallback="error")
    for _ in range(2):
        eager, jitted = (function(torch.zeros(3, 4)[:2].requires_grad_()) for function in (program, compiled))
        assert eager.requires_grad and jitted.requires_grad and torch.equal(eager, jitted)


@pytest.mark.parametrize("jit", (lambda fn: fn, tracejit.jit), ids=("eager", "jitted"))
def test_a_result_that_views_a_written_view_argument_hangs_on_its_base_alone(jit):
    """The view was made before the write: autograd makes its history anew, of the base, and not of the argument."""
    def program(b):
        v = b.view(5, 1)
        v.add_(1)
        return v.view(1, 5), v.sum()

    def apart(b):
        v = b.view(5, 1)
        v.add_(1)
        return v * 2, v.sum()

    for function in (program, apart):
        leaf = torch.ones(1, 5, requires_grad=True)
        base = torch.stack([leaf * 2, leaf * 3])
        b = base[1]
        results = jit(function)(b)
        assert type(results) is tuple
        of_argument, of_base = torch.autograd.grad(results[0].sum(), (b, base), allow_unused=True)
        assert of_argument is None and of_base.sum() in (5, 10)
