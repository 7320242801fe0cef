"""Integers of Python state that change from call to call: open from their third value on, as in eager for every value."""
import math
import threading
import types

import pytest
import torch

import tracejit
from tracejit.runtime import template
from tracejit.runtime.template import FEW

both_executors = pytest.mark.parametrize("executors", [["torch"], ["cpu", "torch"]], ids=["torch", "cpu"])
UNTIL_OPEN = FEW + 1         # compiles: one for each of the few values, and one with the integer open
VALUES = (3, 4, 5, 6, 7, 11, 9, 3, 40, 5)
BY_SIGN = (5, -3, 7, -1, 0, 2, 100, -100, 1, 6, -7)
LARGE = (10**6, 2**31 - 1, 2**31, -2**31, 10**12, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -2**70, 7)
KINDS = (3, 2.5, 4, True, 5, False, 6.5, 7, 8, 9)


class State:
    def __init__(self):
        self.n, self.table, self.pair, self.cache = 0, {"k": 0}, (0, 1.5), torch.zeros(4, 3)


def alike(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    return type(a) is type(b) and a == b


def outcome(call):
    try:
        return call()
    except (ArithmeticError, IndexError, RuntimeError, TypeError, ValueError) as error:
        return type(error).__name__


def same(program, values=VALUES, state=State, **options):
    """Runs a program in eager and jitted, with these values at `state.n`, or what it makes of them itself: all is equal."""
    jitted = tracejit.jit(program, **options)
    mine, theirs = state(), state()
    for value in values:
        for s in (mine, theirs) if value is not None else ():
            s.n = value
        x, y = (torch.arange(12.0).view(4, 3) - 4 for _ in range(2))
        assert alike(outcome(lambda: jitted(mine, x)), outcome(lambda: program(theirs, y))), value
        assert alike(x, y) and all(alike(a, b) for a, b in zip(vars(mine).values(), vars(theirs).values(), strict=True)), value
    return jitted


def counter(s, x):
    s.n += 1
    return x * s.n + 1 / (1 + s.n)


def position(s, x):
    s.cache[s.n % 4:s.n % 4 + 1] = x[:1]
    s.n += 1
    return (s.cache[:s.n % 4] * 2).sum(0)


def correction(s, x):
    s.n += 1
    x.mul_(0.9).addcdiv_(x, x.abs() + 1e-8, value=-0.01 / (1 - 0.9 ** s.n))


def in_containers(s, x):
    s.table["k"] += 1
    s.pair = s.pair[0] + s.table["k"], s.pair[1] * 2
    return x * s.pair[0] + s.table["k"]


ONE_PROGRAM = {"counter": counter, "correction": correction, "containers": in_containers,
               "scale": lambda s, x: x * s.n, "sum": lambda s, x: (x + s.n, x - s.n, s.n - x), "filled": lambda s, x: x.fill_(s.n) + 1,
               "power": lambda s, x: (x.abs() ** (s.n + 200), 0.9 ** s.n), "alpha": lambda s, x: torch.add(x, x, alpha=s.n),
               "triangle": lambda s, x: (torch.tril(x, s.n + 200), torch.triu(x, -s.n - 200)), "quotient": lambda s, x: (x / (s.n + 0.5), s.n / 3),
               "integers": lambda s, x: (-s.n, s.n // 2, s.n % 3, divmod(s.n, 4)), "whole": lambda s, x: torch.arange(6) * s.n + s.n}
SEVERAL = {"position": position, "parity": lambda s, x: x + 1 if s.n % 2 == 0 else x - 1, "few": lambda s, x: x + s.n if s.n < 4 else x.sum() * s.n,
           "slice": lambda s, x: x[s.n % 4:] * 2, "negative": lambda s, x: x.narrow(0, -1 - s.n % 3, 1) * 3, "roll": lambda s, x: x.roll(s.n, 0) + 1,
           "made": lambda s, x: torch.zeros(s.n % 5, 3) + 1, "row": lambda s, x: x[s.n % 4] + 1,
           "extrema": lambda s, x: (x * min(s.n, 5), x * max(s.n, 3), x * abs(s.n - 3)), "strided": lambda s, x: x.as_strided((2, 2), (1, 2), s.n % 4) * 2,
           "repeated": lambda s, x: x.repeat(s.n % 3 + 1, 1), "compared": lambda s, x: (x > s.n, x == s.n, s.n == 3.0, s.n < 4.5),
           "clamped": lambda s, x: x.clamp(-s.n, s.n + 1), "products": lambda s, x: (x + s.n * 10**9, x * (s.n * 10**20), torch.arange(3) + s.n * 2**40)}
BY_VALUE = {"loop": lambda s, x: sum([x] * (s.n % 50)), "text": lambda s, x: (x + 1, f"step {s.n}"), "root": lambda s, x: x * math.sqrt(s.n * s.n + 1),
            "key": lambda s, x: x * {n: n for n in range(-200, 200)}.get(s.n, 0), "bits": lambda s, x: torch.arange(4) & s.n, "complex": lambda s, x: x * (s.n * 1j),
            "diagonal": lambda s, x: torch.diag(x, s.n - 2) + 1, "tensor": lambda s, x: torch.tensor(s.n) + x, "set": lambda s, x: x.fill_diagonal_(s.n)[:, s.n % 3] * 2}


@both_executors
@pytest.mark.parametrize("program", ONE_PROGRAM.values(), ids=ONE_PROGRAM)
def test_one_program_for_all_values(program, executors):
    values = [None] * 9 if program in (counter, correction, in_containers) else VALUES
    assert same(program, values, executors=executors, fallback="error").cache_info().misses == UNTIL_OPEN


@pytest.mark.parametrize("values", [VALUES, BY_SIGN, LARGE, KINDS, [None] * 9], ids=["values", "signs", "large", "kinds", "counted"])
@pytest.mark.parametrize("program", [*ONE_PROGRAM.values(), *SEVERAL.values(), *BY_VALUE.values()], ids=[*ONE_PROGRAM, *SEVERAL, *BY_VALUE])
@pytest.mark.one_in(3)
def test_every_value_is_as_in_eager(program, values):
    if program is correction:                  # raises halfway, where it divides by 0
        values = [n for n in values if n != -1]
    same(program, values)


@pytest.mark.parametrize("program", SEVERAL.values(), ids=SEVERAL)
def test_few_programs_for_many_values(program):
    values = [*range(3, 60)]
    assert same(program, values, fallback="error").cache_info().misses <= UNTIL_OPEN + 6


def test_a_position_in_a_cache_is_open():
    state = types.SimpleNamespace(keys=torch.zeros(2, 32, 4), at=0)

    @tracejit.jit(fallback="error")
    def attend(x):
        state.keys[:, state.at:state.at + 1] = x
        state.at += 1
        return (state.keys[:, :state.at] * 2).sum(1)
    expected = torch.zeros(2, 32, 4)
    for n in range(32):
        x = torch.randn(2, 1, 4)
        expected[:, n:n + 1] = x
        torch.testing.assert_close(attend(x), (expected[:, :n + 1] * 2).sum(1))
        assert torch.equal(state.keys, expected) and state.at == n + 1 and type(state.at) is int
    assert attend.cache_info().misses <= UNTIL_OPEN + 1


def test_buffers_that_take_turns():
    buffers, state = [torch.zeros(3) for _ in range(3)], types.SimpleNamespace(n=0)

    @tracejit.jit(fallback="error")
    def turn(x):
        state.n += 1
        buffers[state.n % 3].add_(x)
        return buffers[(state.n + 1) % 3] * 2
    expected = [torch.zeros(3) for _ in range(3)]
    for n in range(1, 20):
        x = torch.randn(3)
        expected[n % 3] += x
        assert torch.equal(turn(x), expected[(n + 1) % 3] * 2) and alike(buffers, expected)
    assert turn.cache_info().misses == FEW + 3                 # one for each remainder


def test_two_values_are_constants_of_two_entries():
    state = types.SimpleNamespace(n=2)
    jitted = tracejit.jit(lambda x: x * state.n + 1, fallback="error")
    for n in (2, 3, 2, 3, 2):
        state.n = n
        assert torch.equal(jitted(torch.ones(3)), torch.ones(3) * n + 1)
        assert not any(p.number for p in jitted.last_traces[-1].inputs)
    assert jitted.cache_info().misses == 2


@pytest.mark.parametrize("program", BY_VALUE.values(), ids=BY_VALUE)
def test_a_value_that_is_needed_stays_a_constant(program):
    assert same(program, VALUES, fallback="error").cache_info().misses <= len(set(VALUES))


def test_an_integer_that_holds_for_one_value_by_chance_is_not_tried_for_ever():
    def program(s, x):
        return x * 2 if s.n % 97 == x.shape[0] else x * [s.n][0] if s.n == 5 or s.n == 7 else x + s.n
    assert same(program, range(3, 40), fallback="error").cache_info().misses <= UNTIL_OPEN + 4


def test_sizes_are_not_open_where_that_is_not_wanted():
    assert same(counter, VALUES, fallback="error", dynamic=False).cache_info().misses == len(set(VALUES))


def test_an_integer_beside_a_float_and_a_size_that_change():
    def program(s, x, lr):
        s.n += 1
        x.sub_(x, alpha=lr / s.n)
        return x[1:] * s.n
    jitted, mine, theirs = tracejit.jit(program, fallback="error"), State(), State()
    for n in range(3, 30):
        x = torch.randn(n % 7 + 2, 3)
        y = x.clone()
        assert alike(jitted(mine, x, 0.1 * n), program(theirs, y, 0.1 * n)) and alike(x, y) and mine.n == theirs.n
    assert jitted.cache_info().misses < 15


def test_gradients_where_a_float_of_the_integer_is_all_that_is_needed():
    class Decaying(torch.nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            return super().forward(x).tanh() * 0.9 ** self.steps + x * (1 / self.steps)
    torch.manual_seed(0)
    eager, mine = Decaying(), Decaying()
    mine.load_state_dict(eager.state_dict())
    jitted = tracejit.jit(mine, fallback="error")
    for _ in range(8):
        x = torch.randn(2, 3)
        jitted(x).square().sum().backward()
        eager(x).square().sum().backward()
        torch.testing.assert_close([p.grad for p in mine.parameters()], [p.grad for p in eager.parameters()])
    assert mine.steps == eager.steps == 8 and jitted.cache_info().misses == UNTIL_OPEN and not jitted.replayed_because


def test_gradients_where_the_integer_is_needed():
    program = lambda s, x, w: (x * w)[s.n % 4:].sum() * s.n                                                          # noqa: E731
    jitted, s, w, v = tracejit.jit(program, fallback="error"), State(), torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    for s.n in VALUES:
        x = torch.randn(4, 3)
        jitted(s, x, w).backward()
        program(s, x, v).backward()
        torch.testing.assert_close(w.grad, v.grad)


def test_why_it_was_compiled_again():
    jitted = same(lambda s, x: x + 1 if s.n < 9 else x - 1, (3, 4, 5, 6, 12), fallback="error")
    changes = [line.partition(".n changed from ")[2] for line in jitted.cache_info().retraces]
    assert changes == ["3 to 4", "4 to 5", "5 to 12"]          # 6 is as 5 was


def test_entries_for_values_are_bounded(monkeypatch):
    monkeypatch.setattr(template, "MOST_SETTLED", 3)
    jitted = same(lambda s, x: x.view(-1)[s.n:s.n + 4] * 2, [3, 4, 5, 6, 7, 8, 5, 4, 7, 6], fallback="error")
    groups = [group for table in jitted._tables.values() for group in table.groups.values()]
    kept = [len(e.entries) for group in groups for e in group.entries.values() if isinstance(e, template.SettledEntries)]
    assert kept and max(kept) == 3


@pytest.mark.parametrize("start", [0, 0.5], ids=["integer", "float"])
def test_threads_with_objects_of_their_own(start):
    def program(s, x):
        s.n += 1
        s.cache[0] = x[0] * s.n
        return x * s.n + s.cache[0] / s.n
    jitted, found = tracejit.jit(program, fallback="error"), []

    def calls():
        mine, theirs = State(), State()
        mine.n = theirs.n = start
        for _ in range(25):
            x = torch.randn(4, 3)
            torch.testing.assert_close(jitted(mine, x), program(theirs, x))
            assert mine.n == theirs.n
        found.append(mine.n)
    threads = [threading.Thread(target=calls) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [start + 25] * 4


@pytest.mark.parametrize("make", [lambda n: types.SimpleNamespace(n=n), lambda n: type("Slotted", (), {"__slots__": ("n",)})()], ids=["plain", "slots"])
def test_objects_of_other_kinds(make):
    mine, theirs = make(0), make(0)
    jitted = tracejit.jit(counter, fallback="error")
    for n in VALUES:
        mine.n = theirs.n = n
        assert alike(jitted(mine, torch.ones(3)), counter(theirs, torch.ones(3))) and mine.n == theirs.n


def test_an_argument_that_elements_are_compared_with():
    jitted = tracejit.jit(lambda i, n: (i == n, i > n, i * n), fallback="error")
    for n in range(2, 7):
        assert alike(jitted(torch.arange(6), n), (torch.arange(6) == n, torch.arange(6) > n, torch.arange(6) * n))
    assert jitted.cache_info().misses == 2


@both_executors
@pytest.mark.parametrize("far", [2**31 - 1, -2**31, 2**63 - 1, -2**63])
def test_a_diagonal_that_is_far_away(far, executors):
    x = torch.arange(12.0).view(4, 3) + 1
    jitted = tracejit.jit(lambda x: (x.tril(far) * 2, x.triu(far) * 2), fallback="error", executors=executors)
    assert alike(jitted(x), (x.tril(far) * 2, x.triu(far) * 2))


def test_what_one_number_makes_of_another_joins_what_uses_it():
    jitted = tracejit.jit(lambda x, s: x * s + 1 / s, fallback="error")
    for s in (0.3, 0.7):
        assert alike(jitted(torch.ones(5), s), torch.ones(5) * s + 1 / s)
    assert len(jitted.kernels) == 1 and len(jitted.last_traces[-1].bound_symbols) == 1
