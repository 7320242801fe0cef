"""Sizes that are left open: polynomials, extents, and programs whose one compile is for many sizes."""
import functools
import gc
import operator
import os
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch.testing._internal.common_methods_invocations import op_db

import tracejit
from tests import test_sizes
from tests.fuzz import programs, run
from tracejit.capture.opened import MOST_TRIES
from tracejit.ir.extents import Extent, Relations, as_extent, as_given, extent_of
from tracejit.ir.polynomial import SMALLEST, Polynomial, Size, decided, sign

A, B = Size("a"), Size("b")
OPERATIONS = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)
# Steps of a random expression: an operation, and what it is done with (an earlier result, or a number).
steps = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(-5, 9), st.booleans()), max_size=7)
values = st.integers(SMALLEST, 12)


def grown(expression, a, b, number):
    """The results of a random expression, of integers or of what stands for them."""
    made = [a, b]
    for op, which, n, with_number in expression:
        other = number(n) if with_number else made[which % len(made)]
        if other != number(0):
            made.append(op(made[-1], other))
    return made


# ------------------------------------------------------------ polynomials and extents

@settings(max_examples=300, deadline=None)
@given(steps, values, values, values, values)
def test_a_polynomial_has_the_value_of_the_expression_and_knows_no_wrong_sign(expression, a, b, c, d):
    polynomials = [p for p in grown(expression, *map(Polynomial.of, (A, B)), Polynomial.of)]
    for x, y in ((a, b), (c, d)):
        for p in polynomials:
            try:
                value = p.at({A: x, B: y})
            except ZeroDivisionError:
                continue
            assert sign(p) < 0 or (value > 0 if sign(p) else value >= 0)
            assert decided(p, True) in (None, value == 0) and decided(p, False) in (None, value > 0)


@settings(max_examples=300, deadline=None)
@given(steps, values, values, values, values, st.sampled_from("lt le gt ge eq ne".split()))
def test_extents_compute_as_integers_and_note_what_they_were_asked(expression, a, b, c, d, comparison):
    relations = Relations({A: a, B: b})
    extents = grown(expression, *(as_given(extent_of(Polynomial.of(s), relations)) for s in (A, B)), int)
    integers = grown(expression, a, b, int)
    compare = getattr(operator, comparison)
    assert [compare(x, extents[0]) for x in extents] == [compare(n, integers[0]) for n in integers]
    assert not relations.needed
    if relations.condition()({A: c, B: d}):                   # then the same is so for other sizes, too
        others = grown(expression, c, d, int)
        assert [compare(n, others[0]) for n in others] == [compare(n, integers[0]) for n in integers]
        assert [p.node.p.at({A: c, B: d}) if isinstance(p, Extent) and type(p) is not int else p for p in extents] == others


NEEDS = {"int": int, "float": float, "str": str, "repr": repr, "hash": hash, "range": range, "format": "{}".format, "half": lambda n: n / 2,
         "square": lambda n: n ** 2, "list": lambda n: [0] * n, "key": lambda n: {7: 1}[n], "divmod": lambda n: divmod(7.0, n),
         "shift": lambda n: n << 1, "sum": lambda n: n + 0.5}


@pytest.mark.parametrize("use", NEEDS.values(), ids=NEEDS)
def test_who_needs_the_value_gets_it_and_is_noted(use):
    relations = Relations({A: 7})
    assert use(as_given(extent_of(Polynomial.of(A), relations))) == use(7) and relations.needed == {A}


def test_an_extent_is_an_int_for_who_asks_and_one_key_for_one_polynomial():
    relations = Relations({A: 7, B: 7})
    a, b = (extent_of(Polynomial.of(s), relations) for s in (A, B))
    assert isinstance(a, int) and {a + 1: 3}[1 + a] == 3 and a - a == 0 and type(a - a) is int
    assert a + 1 not in {8: 1} and not relations.asked         # not by chance
    assert a == b and list(relations.asked.values()) == [True]
    assert as_extent(slice(as_given(a), None)).start is not a


# ------------------------------------------------------------ programs

def lengths_of(program, lengths, make=lambda n: (torch.randn(n, 12),), **options):
    """The jitted program, called with each length and compared with eager, arguments and all."""
    jitted = tracejit.jit(program, fallback="error", **options)
    for n in lengths:
        theirs = make(n)
        mine = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in theirs)
        wanted = program(*theirs)
        found = jitted(*mine)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(mine, theirs)
        assert [t.stride() for t in tensors(found)] == [t.stride() for t in tensors(wanted)]
    return jitted


def tensors(result):
    return [t for t in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(t, torch.Tensor)]


LENGTHS = (20, 21, 22, 37, 50, 64, 33)
PROGRAMS = "pointwise rows columns broadcast transposed windows reshaped in_place gathered branching halves sines totals".split()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.compiler
def test_one_compile_is_for_many_sizes(name):
    jitted = lengths_of(getattr(test_sizes, name), LENGTHS, lambda n: (torch.randn(n, n), n))
    assert jitted.cache_info().misses <= 4


def decode(cache, key, at):
    cache[:, at] = key
    return (cache[:, :at + 1] * key[:, None]).sum(-1)


def test_a_position_is_open_as_a_size_is():
    jitted = tracejit.jit(decode, fallback="error")
    mine, theirs = torch.zeros(2, 64, 8), torch.zeros(2, 64, 8)
    for at in range(64):
        key = torch.randn(2, 8)
        torch.testing.assert_close(jitted(mine, key, at), decode(theirs, key, at))
        torch.testing.assert_close(mine, theirs)
    assert jitted.cache_info().misses <= 8


def sized_loop(x):
    return sum(x[k] for k in range(x.shape[0]))


def rooted(x):
    return x / x.shape[0] ** 0.5


def returned(x):
    return x + 1, x.shape[0], x.shape


table = {20: 1.0, 21: 2.0, 22: 3.0}


def looked_up(x):
    return x * table.get(x.shape[0], 4.0)


def named(x):
    return x * len(f"{x.shape[0]:>{3}}{x.size(0)}")


kept = []


def stored(x):
    kept[:] = [x.shape[0]]
    return x * 2


def typed(x):
    return x * 2 if type(x.shape[0]) is int else x * 3


def tuples(x):
    return x + 1 if x.shape == (21, 12) else x - 1


@pytest.mark.parametrize("program", (sized_loop, rooted, returned, looked_up, named, stored, typed, tuples), ids=lambda f: f.__name__)
@pytest.mark.parametrize("dynamic", (None, True))
def test_a_program_that_needs_a_size_gets_it(program, dynamic):
    lengths_of(program, LENGTHS, dynamic=dynamic)
    assert program is not stored or kept == [LENGTHS[-1]] and type(kept[0]) is int


def table_added(x, w):
    return x + w[:x.shape[0]]


def test_sizes_that_must_fit_others_are_asked_for():
    w = torch.randn(40, 12)
    jitted = lengths_of(table_added, (20, 21, 22, 39, 40), lambda n: (torch.randn(n, 12), w))
    assert jitted.cache_info().misses <= 3
    with pytest.raises(RuntimeError, match="must match"):
        jitted(torch.randn(41, 12), w)


def test_sizes_of_one_value_are_one_and_may_part():
    jitted = lengths_of(lambda x, y: (x * 2 + 1, y.sum(0)), ((20, 20), (21, 21), (22, 22), (23, 24), (25, 26)),
                        lambda n: (torch.randn(n[0], 4), torch.randn(n[1], 4)))
    assert jitted.cache_info().misses == 3


def test_layouts_are_those_of_each_call():
    def make(n):
        x = torch.randn(3, n)
        return (x.t(),) if n % 2 else (x.t().contiguous(),)
    jitted = lengths_of(lambda x: (x * 2, x.sum(0)), (20, 21, 22, 23, 24, 25), make)
    assert jitted.cache_info().misses == 4                     # two of each layout


scale = 2.0


def scaled(x):
    return torch.relu(x) * scale


def test_state_is_looked_at_for_other_sizes_too():
    global scale
    jitted = lengths_of(scaled, (20, 21, 22))
    scale = 3.0
    x = torch.randn(23, 12)
    torch.testing.assert_close(jitted(x), scaled(x))
    scale = 2.0


def test_options():
    assert lengths_of(scaled, LENGTHS, dynamic=False).cache_info().misses == len(LENGTHS)
    assert lengths_of(scaled, LENGTHS, dynamic=True).cache_info().misses == 1
    assert lengths_of(scaled, LENGTHS, transforms=(lambda t: t,)).cache_info().misses == len(LENGTHS)

    def marked(n):
        x = torch.randn(n, 12)
        tracejit.mark_dynamic(x, -2)
        return (x,)
    jitted = tracejit.jit(scaled, fallback="error")
    for n in LENGTHS:
        jitted(*marked(n))
    assert jitted.cache_info().misses == 1


def test_sizes_of_one_and_none_are_their_own():
    jitted = lengths_of(lambda x: (x * 2).sum(0) + x.shape[0], (5, 6, 0, 1, 7, 2, 0, 1, 30), dynamic=None)
    assert jitted.cache_info().misses <= 6


def test_a_chance_that_holds_for_one_size_is_not_tried_for_ever():
    w = [torch.randn(n, 12) for n in range(60)]
    jitted = lengths_of(lambda x, k: x + w[x.shape[0]] if k else x, range(20, 30), lambda n: (torch.randn(n, 12), True))
    assert jitted.cache_info().misses == 10
    assert MOST_TRIES < 10


def test_what_runs_for_one_size_is_shown_and_what_it_was_made_from_has_open_sizes():
    jitted = lengths_of(scaled, (20, 21))
    assert "f32[s0, 12]" in str(jitted.last_traces[1]) and "f32[21, 12]" in str(jitted.last_traces[-1])
    (kernel,) = jitted.kernels
    assert kernel.bytes_read == kernel.bytes_written == 21 * 12 * 4
    assert "// 252 in this call" in kernel.source and "relu" in kernel.source      # as people read it


def test_templates_keep_no_argument_alive():
    jitted = tracejit.jit(scaled, fallback="error")
    seen = []
    for n in (20, 21, 22):
        x = torch.randn(n, 12)
        seen.append(weakref.ref(x))
        jitted(x)
        del x
    gc.collect()
    assert [r() for r in seen] == [None] * 3


def test_threads_meet_new_sizes_together():
    jitted, wrong = tracejit.jit(test_sizes.rows, fallback="error"), []

    def work(k):
        for n in range(20 + k, 60, 3):
            x = torch.randn(n, n + 3)
            if not torch.allclose(jitted(x, 1), test_sizes.rows(x, 1), atol=1e-5):
                wrong.append(n)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and jitted.cache_info().misses <= 8


def block(x, w):
    h = F.layer_norm(x, x.shape[-1:]) @ w
    return x + F.gelu(h) / h.shape[0]


@pytest.mark.parametrize("threads", (1, 2))
def test_large_sizes_are_open_too(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        w = torch.randn(64, 64)
        jitted = lengths_of(block, (3000, 3001, 4096, 5000, 60000), lambda n: (torch.randn(n, 64), w))
    finally:
        torch.set_num_threads(before)
    assert jitted.cache_info().misses <= 4


@pytest.mark.parametrize("dynamic", (None, True))
def test_random_programs_are_for_many_sizes(dynamic):
    options = programs.Options(sizes=True)
    for index in range(300 if os.environ.get("TRACEJIT_TEST_ALL") else 8):
        program = run.draw(40, index, options)
        def kind(dynamic):
            return run.judge(program, functools.partial(tracejit.jit, fallback="error", dynamic=dynamic), tolerant=True).kind
        found = kind(dynamic)
        assert found in ("same", "rounded") or found == kind(False) == "unsupported", program.source


# ------------------------------------------------------------ every op

OPS = [op for op in op_db if torch.float32 in op.dtypes and not op.name.startswith(("sparse", "jiterator", "masked.", "empty", "new_empty"))]


@pytest.mark.parametrize("op", OPS if os.environ.get("TRACEJIT_TEST_ALL") else OPS[::30], ids=lambda op: op.formatted_name)
def test_every_op_takes_open_sizes_or_closes_them(op):
    def call(sample):
        return op(sample.input, *sample.args, **sample.kwargs)
    for sample in list(op.sample_inputs("cpu", torch.float32, requires_grad=False))[:6]:
        state = torch.get_rng_state()
        jitted, closed = (tracejit.jit(lambda x, *args, **kwargs: op(x, *args, **kwargs), fallback="silent", dynamic=d) for d in (True, False))
        wanted = call(sample)
        torch.set_rng_state(state)
        found = jitted(sample.input, *sample.args, **sample.kwargs)
        torch.testing.assert_close(found, wanted, equal_nan=True)
        assert [t.stride() for t in tensors(found)] == [t.stride() for t in tensors(wanted)]
        if jitted.cache_info().fallbacks:                      # what runs eagerly does so whether sizes are open or not
            closed(sample.input, *sample.args, **sample.kwargs)
            assert closed.cache_info().fallbacks
