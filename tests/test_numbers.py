"""Python floats that are known at run time alone: what `item()` reads is computed with, and goes into operations, as in eager."""
import copy
import math

import pytest
import torch

import tracejit

both_executors = pytest.mark.parametrize("executors", [["torch"], ["cpu"]], ids=["torch", "cpu"])
OPTIMIZERS = {
    "adam": (torch.optim.Adam, dict(amsgrad=True, weight_decay=0.01)),
    "adam_plain_first_moment": (torch.optim.Adam, dict(betas=(0.0, 0.9), maximize=True)),
    "adamw": (torch.optim.AdamW, {}),
    "nadam": (torch.optim.NAdam, dict(decoupled_weight_decay=True, weight_decay=0.1)),
    "adamax": (torch.optim.Adamax, {}),
    "adagrad": (torch.optim.Adagrad, dict(lr_decay=0.1)),
}


@both_executors
@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizer_steps_are_eagers_bit_for_bit(kind, foreach, executors):
    make, options = OPTIMIZERS[kind]
    torch.manual_seed(0)
    shapes = [(5, 7), (3, 4, 2), (1,), ()]
    ours = [torch.nn.Parameter(torch.randn(s)) for s in shapes]
    theirs = copy.deepcopy(ours)
    eager, jitted = (make(ps, foreach=foreach, **options) for ps in (theirs, ours))
    step = tracejit.jit(jitted.step, fallback="error", executors=executors)
    for _ in range(5):
        for p, q in zip(ours, theirs):
            p.grad = torch.randn(p.shape)
            q.grad = p.grad.clone()
        step()
        eager.step()
        for a, b in zip([*ours, *_tensors(jitted)], [*theirs, *_tensors(eager)], strict=True):
            assert torch.equal(a, b)
    assert step.cache_info().misses <= 2 and step.replayed_because == ""     # the first step makes the optimizer's state


def _tensors(optimizer):
    return [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]


def same(program, *args, executors=("cpu",), calls=3):
    """Runs a program in eager and jitted on equal arguments, several times: results, arguments and their types are equal."""
    jfn = tracejit.jit(program, fallback="error", executors=list(executors))
    others = copy.deepcopy(args)
    for _ in range(calls):
        results = [program(*args), jfn(*others)]
        a, b = ([r] if not isinstance(r, tuple) else r for r in results)
        for x, y in zip([*a, *args], [*b, *others], strict=True):
            assert type(x) is type(y)
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    assert (jfn.cache_info().hits, jfn.cache_info().misses) == (calls - 1, 1)
    return jfn


@both_executors
def test_a_number_is_read_at_its_place(executors):
    def program(x, y):
        before = x.item()
        x.mul_(2)
        after = x[None].item()
        y.add_(y, alpha=after).sub_(before, alpha=before).mul_(after)
        return before, after, 1 - after / 3, abs(-after) ** 2, isinstance(after, float)
    same(program, torch.tensor(1.7), torch.randn(6, 32), executors=executors)


@both_executors
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_operations_round_a_number_as_they_round_a_constant(dtype, executors):
    def program(s, x, y):
        v = s.item() + 0.1
        return (x + v, v - x, x * v, x / v, torch.add(x, y, alpha=v), torch.addcmul(x, y, y, value=v), torch.addcdiv(x, y, x, value=v),
                torch.lerp(x, y, v), x ** v, x.clamp(min=v), torch.where(x > v, x, v), torch.full((3,), v), x.masked_fill(x > v, v))
    torch.manual_seed(0)
    same(program, torch.tensor(0.4), torch.rand(64).to(dtype) + 0.5, torch.rand(64).to(dtype), executors=executors, calls=1)


@both_executors
def test_operands_of_no_dims_keep_their_dtype(executors):
    def program(s, x, k):
        v = s.item()
        return x + v, x > v, k * v, k > v
    same(program, torch.tensor(0.3), torch.tensor(0.3), torch.tensor(3), executors=executors)


def test_gradients_through_numbers():
    def program(s, w):
        v = s.item()
        return ((w * v) / (v + 1)).sin()

    jfn, w, s = tracejit.jit(program, fallback="error"), torch.randn(5), torch.tensor(0.5)
    for _ in range(2):
        ours, theirs = w.clone().requires_grad_(), w.clone().requires_grad_()
        jfn(s, ours).sum().backward()
        program(s, theirs).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
        s.add_(1)
    assert jfn.cache_info().hits == 1 and jfn.replayed_because == "" and jfn.last_backward_traces


def test_a_replayed_program_has_numbers_too():
    def program(s, w):
        v = 2 * s.item()
        w.grad = None
        (w * v).register_hook(lambda g: g * 2)
        return w * v, v

    jfn, w = tracejit.jit(program, fallback="error"), torch.randn(3, requires_grad=True)
    for k in range(2):
        result, v = jfn(torch.tensor(float(k)), w)
        assert v == 2.0 * k and torch.equal(result, w * v)


def test_numbers_are_written_to_python_state():
    class Meter:
        last = 0.0

    meter = Meter()

    @tracejit.jit(fallback="error")
    def program(x):
        x.add_(1)
        meter.last = x.sum().item()
        return x.mean().item()

    x = torch.zeros(4)
    for k in range(1, 4):
        assert program(x) == float(k) and type(meter.last) is float and meter.last == 4.0 * k
    assert program.cache_info().hits == 2


@pytest.mark.parametrize("needs", [
    lambda v, x: x if v > 0 else -x, lambda v, x: x * int(v), lambda v, x: x * math.sqrt(v), lambda v, x: x * sum([v, v]),
    lambda v, x: torch.arange(v), lambda v, x: x * len(f"{v}"), lambda v, x: x * round(v), lambda v, x: {v: x}[v],
    lambda v, x: torch.nn.functional.dropout(x, v), lambda v, x: x * max(v, 1.0), lambda v, x: x * (v // 2), lambda v, x: torch.tensor([v, v]),
], ids="branch int math sum size text round key probability max floor tensor".split())
def test_a_program_that_needs_the_value_runs_eagerly(needs):
    def program(s, x):
        return needs(s.item(), x)

    jfn = tracejit.jit(program, fallback="silent")
    for value in (3.0, 1.0):
        torch.manual_seed(0)
        expected = program(torch.tensor(value) / 4, torch.ones(3))
        torch.manual_seed(0)
        assert torch.equal(jfn(torch.tensor(value) / 4, torch.ones(3)), expected)
    assert jfn.cache_info().fallbacks == 2


def test_an_error_that_the_program_catches_is_none_of_its_own():
    def program(s, x):
        try:
            return x + math.floor(s.item())
        except Exception:
            return x

    jfn = tracejit.jit(program, fallback="silent")
    assert torch.equal(jfn(torch.tensor(2.5), torch.ones(2)), torch.full((2,), 3.0)) and jfn.cache_info().fallbacks == 1


@both_executors
@pytest.mark.parametrize("compute, wrong, error", [
    (lambda v: 1 / v, 0.0, ZeroDivisionError), (lambda v: v ** 0.5, -1.0, ArithmeticError), (lambda v: 10.0 ** v, 400.0, ArithmeticError),
    (lambda v: v ** -1, 0.0, ZeroDivisionError)], ids="division root overflow reciprocal".split())
def test_arithmetic_raises_where_python_has_no_float(compute, wrong, error, executors):
    def program(s, x):
        return x * compute(s.item())

    jfn = tracejit.jit(program, fallback="error", executors=executors)
    for value in (4.0, math.nan, math.inf):
        assert torch.equal(*(f(torch.tensor(value), torch.ones(2)).nan_to_num(-1) for f in (program, jfn)))
    with pytest.raises(error):
        jfn(torch.tensor(wrong), torch.ones(2))


def test_powers_are_the_c_librarys():
    def program(s):
        v = s.item()
        return v ** 2, v ** -1, v ** 0.5

    jfn = tracejit.jit(program, fallback="error", executors=["cpu"])
    s = torch.zeros((), dtype=torch.float64)
    for value in torch.rand(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)):
        s.copy_(value)
        assert jfn(s) == program(s)


def test_a_number_prints_as_the_float_that_it_is():
    jfn = tracejit.jit(lambda s, x: (x * s.item(), s.item() + 1), fallback="error", executors=["torch"])
    jfn(torch.tensor(2.0), torch.ones(2))
    text = str(jfn.last_traces[-1])
    assert "= number(s)    # float" in text and "torch.mul(x, t" in text and ".item())" in text


# ---------------------------------------------------------------- floats that change from call to call

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.limit, self.settings = 1.0, 2.0, {"shift": [0.5]}

    def forward(self, x):
        x = x * self.scale + self.settings["shift"][0]
        return x + 1 if self.limit > 3 else x


def test_an_attribute_that_changes_is_an_input_from_its_second_value_on():
    m = Scaled()
    jfn, x = tracejit.jit(m, fallback="error"), torch.randn(64)
    for k in range(6):
        m.scale = 1.0 + k / 3
        assert torch.equal(jfn(x), m.forward(x)) and m.scale == 1.0 + k / 3
    assert jfn.cache_info().misses == 2
    for k in range(4):
        m.settings["shift"][0] = k / 7
        m.scale = k / 5
        assert torch.equal(jfn(x), m.forward(x)) and m.settings == {"shift": [k / 7]}
    assert jfn.cache_info().misses == 3


def test_how_a_value_compares_is_guarded():
    m = Scaled()
    jfn, x = tracejit.jit(m, fallback="error"), torch.randn(64)
    for k in range(8):
        m.limit = m.scale = float(k)
        assert torch.equal(jfn(x), m.forward(x))
    assert jfn.cache_info().misses == 3                        # values of a first call, limit <= 3, limit > 3
    for k in range(8):
        m.limit, m.scale = float(k), float(-k)
        assert torch.equal(jfn(x), m.forward(x))
    m.limit = math.nan
    assert torch.equal(jfn(x), m.forward(x)) and jfn.cache_info().misses == 3


def test_a_value_that_is_needed_stays_a_guard():
    m = Scaled()

    def program(x):
        return x * m.scale + math.floor(m.limit)

    jfn, x = tracejit.jit(program, fallback="error"), torch.randn(64)
    for k in range(5):
        m.limit, m.scale = float(k // 2), k / 3
        assert torch.equal(jfn(x), program(x))


def test_other_state_may_change_beside():
    class Mean:
        count, scale, names = 0, 1.0, ("a",)

        def add(self, x):
            self.count += 1
            return x * (self.scale / (self.count + len(self.names)))

    mean = Mean()
    mean.count, mean.scale, mean.names = 0, 1.0, ("a",)
    jfn, x = tracejit.jit(mean.add, fallback="error"), torch.randn(8)
    for k in range(5):
        mean.scale, mean.names = k / 3, ("a",) * (1 + k // 2)
        assert torch.equal(jfn(x), x * (k / 3 / (k + 1 + len(mean.names))))


def test_another_type_is_another_entry():
    m = Scaled()
    jfn, x = tracejit.jit(m, fallback="error"), torch.randn(64)
    for scale in (1.0, 2.0, 3.0, 4, True, torch.tensor(5.0), 6.0, math.nan):
        m.scale = scale
        assert torch.equal(jfn(x).nan_to_num(7), m.forward(x).nan_to_num(7))


def test_a_float_argument_that_changes_is_an_input_from_its_second_value_on():
    def program(x, lr, *, decay=0.5, name="a"):
        return x * lr - decay

    jfn, x = tracejit.jit(program, fallback="error"), torch.randn(64)
    for k in range(6):
        assert torch.equal(jfn(x, k / 3, decay=0.25), program(x, k / 3, decay=0.25))
    assert jfn.cache_info().misses == 2
    for k in range(6):
        assert torch.equal(jfn(x, k / 3, decay=k / 7), program(x, k / 3, decay=k / 7))
    assert jfn.cache_info().misses == 3
    assert torch.equal(jfn(x, 2, decay=0.25), program(x, 2, decay=0.25)) and jfn.cache_info().misses == 4


def test_a_float_argument_whose_value_is_needed_stays_a_constant():
    def program(x, p):
        return x * p if p < 0.5 else x.view(-1, int(p * 4))

    jfn, x = tracejit.jit(program, fallback="error"), torch.randn(64)
    for p in (0.25, 0.5, 1.0, 0.25, 0.1, 0.3):
        assert torch.equal(jfn(x, p), program(x, p))


def test_a_float_argument_that_decides_a_branch():
    def program(x, p):
        return x * p if p < 0.5 else x - p

    jfn, x = tracejit.jit(program, fallback="error"), torch.randn(64)
    for p in (0.25, 0.5, 1.0, 0.3, 0.1, 0.3, 0.75, math.nan, math.inf):
        assert torch.equal(jfn(x, p), program(x, p)) or p != p
    assert jfn.cache_info().misses == 3


def test_gradients_where_a_changing_float_is_kept_for_backward():
    m, x = torch.nn.Linear(3, 3), torch.randn(4, 3)
    jfn = tracejit.jit(lambda x, gain: m(m(m(x).relu() * gain).tanh() + gain), fallback="error")
    for gain in (2.0, 3.0, 4.0, 5.0):
        found = []
        for f in (jfn, jfn.__wrapped__):
            m.zero_grad()
            f(x, gain).sum().backward()
            found.append([p.grad.clone() for p in m.parameters()])
        torch.testing.assert_close(*found)
    assert jfn.cache_info().misses == 2 and jfn.last_backward_traces


def test_a_variable_of_a_closure_that_changes():
    rate = 0.5

    def program(x):
        return x.mul_(rate)

    jfn, a = tracejit.jit(program, fallback="error"), torch.ones(8)
    b = a.clone()
    for k in range(6):
        rate = 1 + k / 3
        assert torch.equal(jfn(a), program(b))
    assert jfn.cache_info().misses == 2


def test_a_total_that_a_program_adds_up():
    class Meter:
        total = 0.0

    ours, theirs, x = Meter(), Meter(), torch.rand(8)
    ours.total = theirs.total = 0.0

    def program(x, meter=theirs):
        meter.total += x[0].item()
        return x.mul_(meter.total)

    jfn = tracejit.jit(lambda x: program(x, ours), fallback="error")
    a, b = x.clone(), x.clone()
    for _ in range(5):
        assert torch.equal(jfn(a), program(b)) and ours.total == theirs.total
    assert jfn.cache_info().misses == 2


def test_code_that_asks_for_the_class_of_a_float_has_the_float():
    m = Scaled()

    def program(x):
        return x * m.scale if type(m.scale) is float else x

    jfn, x = tracejit.jit(program, fallback="error"), torch.randn(8)
    for k in range(4):
        m.scale = float(k)
        assert torch.equal(jfn(x), x * k)
    item = tracejit.jit(lambda s, x: x * 2 if type(s.item()) is float else x, fallback="silent")
    assert torch.equal(item(torch.tensor(1.0), x), x * 2)


@both_executors
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_schedule_of_learning_rates_is_one_program(kind, executors):
    def trained():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
        optimizer = {"sgd": torch.optim.SGD(net.parameters(), momentum=0.9), "adamw": torch.optim.AdamW(net.parameters())}[kind]
        return net, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=20)    # momentum, too

    def step(net, optimizer):
        def run(x):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()
        return run

    (net, optimizer, schedule), (other, eagers, others) = trained(), trained()
    jitted, eager = tracejit.jit(step(net, optimizer), fallback="error", executors=executors), step(other, eagers)
    for k in range(8):
        x = torch.randn(12, 8)
        assert jitted(x) == pytest.approx(eager(x), rel=1e-5)
        for p, q in zip(net.parameters(), other.parameters()):
            torch.testing.assert_close(p, q, rtol=0, atol=0) if executors == ["torch"] else torch.testing.assert_close(p, q, atol=1e-5, rtol=1e-4)
        schedule.step()
        others.step()
    assert jitted.cache_info().misses == 2                     # the first step makes the optimizer's state


def caught_division(x, s):
    try:
        return x * (1 / s)
    except ZeroDivisionError:
        return x + 100


def caught_division_of_a_sum(x, s):
    try:
        return x / (1 / (s - 2))
    except ZeroDivisionError:
        return x + 100


@both_executors
@pytest.mark.parametrize("program", [
    caught_division, caught_division_of_a_sum, lambda x, s: x * (s ** 0.5).real, lambda x, s: x.clone().fill_(s) + 1,
    lambda x, s: torch.add(x, x, alpha=s) * 2, lambda x, s: x.half().clone().fill_(s) * 2],
    ids="division division+ root fill alpha half".split())
def test_an_argument_that_changes_to_a_value_at_which_a_constant_raises(program, executors):
    jfn = tracejit.jit(program, executors=executors)
    for value in (0.5, 1.5, 2.5, 0.0, 2.0, -0.0, -1.5, 1e5, 1e300, math.inf, 3.5):
        want, got = (outcome(f, torch.ones(3), value) for f in (program, jfn))
        assert type(want) is type(got) and (torch.equal(want, got) if isinstance(want, torch.Tensor) else want == got), value


def outcome(f, *args):
    try:
        return f(*args)
    except (ArithmeticError, RuntimeError, TypeError) as error:
        return type(error).__name__
