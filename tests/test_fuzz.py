"""Random programs mean compiled what they mean in eager; and the comparison notices wrong compilers."""
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tests.fuzz import observe, programs, rounding, run
from tests.fuzz.shrink import shrink

EXAMPLES = 10_000 if os.environ.get("TRACEJIT_TEST_ALL") == "1" else 200
SEED = 20
CHUNK = 500
hypothesis_settings = settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None,
                               print_blob=False, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def explain(program: programs.Program, outcome: run.Outcome) -> str:
    return "\n".join([outcome.kind, *outcome.problems[:6], "", program.source])


@hypothesis_settings
@given(programs.genomes())
def test_random_programs_mean_what_eager_means(genome):
    program = programs.build(genome)
    assert_same(program)


def assert_same(program, may_refuse=False):
    """As eager to the bit by torch's own calls; where kernels run, but for rounding. Returns whether it was compiled."""
    for compiler, tolerant in (("tracejit:torch", False), ("tracejit", True)):
        outcome = run.judge(program, run.compiler(compiler), tolerant)
        if may_refuse and outcome.kind == "unsupported":
            return False
        assert outcome.kind in ("same", "unstable", "rounded"), explain(program, outcome)
    return True


def compiled_of(options, indices):
    torch.set_num_threads(1)
    return [assert_same(run.draw(SEED, index, options), True) for index in indices]


def in_fresh_processes(options, n):
    """A process cannot map the shared objects of ten thousand programs (`vm.max_map_count`)."""
    chunks = [range(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK)]
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        return [c for part in pool.map(compiled_of, [options] * len(chunks), chunks) for c in part]


@pytest.mark.parametrize("options, share", [(programs.Options(), 2), (programs.Options(grad=True), 3),
                                            (programs.Options(large=True, max_statements=6), 30)],
                         ids=["long", "grad", "large"])
def test_long_random_programs_gradients_and_large_shapes_mean_what_eager_means(options, share):
    """One in 300 may run eagerly: a call that may raise where its error is caught; views whose histories fake tensors cannot make."""
    n = EXAMPLES // share
    compiled = compiled_of(options, range(n)) if n <= CHUNK else in_fresh_processes(options, n)
    assert compiled.count(False) <= max(n // 300, 1)


@pytest.mark.parametrize("options", [programs.Options(), programs.Options(grad=True, branches=True)],
                         ids=["plain", "grad and branches"])
def test_eager_means_the_same_every_time_and_most_programs_raise_no_error(options):
    outcomes = [run.judge(run.draw(SEED, i, options), run.compiler("identity")) for i in range(300)]
    assert {o.kind for o in outcomes} == {"same"}
    assert sum(o.eager_error for o in outcomes) < 0.15 * len(outcomes)


def copied(value):
    return tree_map_only(torch.Tensor, torch.clone, value)


def loses_writes(fn):
    return lambda *arguments: fn(*copied(arguments))


def copies_results(fn):
    return lambda *arguments: copied(fn(*arguments))


def replays_first_call(fn):
    results = []

    def replay(*arguments):
        results.append(results[0] if results else fn(*arguments))
        return results[0]
    return replay


def views_are_copies(fn):
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            aliases = [r.alias_info for r in func._schema.returns]
            return copied(out) if any(a is not None and not a.is_write for a in aliases) else out

    def without_aliases(*arguments):
        with Mode():
            return fn(*arguments)
    return without_aliases


def believes_arguments_are_apart(fn):
    """Writes back in the end what it computed on copies, as if no two arguments shared memory."""
    def apart(*arguments):
        own = copied(arguments)
        result = fn(*own)
        for mine, theirs in zip(observe.leaves_of(arguments, ""), observe.leaves_of(own, "")):
            if isinstance(mine[1], torch.Tensor) and not torch.equal(mine[1], theirs[1]):
                mine[1].copy_(theirs[1])
        return result
    return apart


def forgets_the_generator(fn):
    def forgetful(*arguments):
        with torch.random.fork_rng(devices=()):
            return fn(*arguments)
    return forgetful


def raises_nothing(fn):
    def silent(*arguments):
        try:
            return fn(*arguments)
        except RuntimeError:
            return None
    return silent


BROKEN = (loses_writes, copies_results, replays_first_call, views_are_copies, believes_arguments_are_apart,
          forgets_the_generator, raises_nothing)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_compiler_is_noticed_within_200_programs(broken):
    outcomes = (run.judge(run.draw(SEED, index, programs.Options()), broken) for index in range(200))
    assert any(outcome.kind == "different" for outcome in outcomes)


def test_a_failing_program_shrinks_to_the_statement_that_matters():
    fails = run.fails_like("different", loses_writes)
    program = next(p for p in (run.draw(SEED, i, programs.Options()) for i in range(200)) if fails(p))
    small = shrink(program, fails)
    assert fails(small) and len(small.statements) <= 1 and len(small.calls) == 1


def test_a_program_is_the_same_for_the_same_seed_and_index():
    sources = [run.draw(SEED, index, programs.Options()).source for index in (3, 4, 3)]
    assert sources[0] == sources[2] != sources[1]


def test_observation_tells_signed_zeros_apart_and_not_two_nans():
    def moments(value):
        return observe.observe(lambda: (lambda: torch.tensor(value), lambda call: call()))
    assert observe.differences(moments([0.0]), moments([-0.0]))
    assert not observe.differences(moments([float("nan")]), moments([-float("nan")]))
    assert observe.differences(moments([1.0]), moments([float("nan")]))


def rounded(program, make_arguments, compiled):
    """`compiled` against eager, with what rounding explains forgiven."""
    def make():
        def caller(call):
            call(*make_arguments())
        return program, caller
    want, got = observe.observe(make), observe.observe(make, lambda fn: compiled)
    assert observe.differences(want, got)
    return observe.differences(want, rounding.forgiven(want, got, make))


def test_the_rounding_of_a_sum_is_a_share_of_its_terms():
    terms = torch.tensor([1.0, 1e-7, -1.0, 3e-8])
    assert not rounded(lambda x: x.sum(), lambda: [terms.clone()], lambda x: x.double().sum().float())
    assert rounded(lambda x: x.sum(), lambda: [terms.clone()], lambda x: x.sum() + 1e-4)


def test_a_sum_whose_terms_overflow_is_open_and_one_of_infinities_is_not():
    large = torch.tensor([3e38, 3e38, -3e38, -3e38])
    for program in (torch.sum, torch.mean):
        assert not rounded(program, lambda: [large.clone()], lambda x: x.new_tensor(float("nan")))
        assert not rounded(program, lambda: [large.clone()], lambda x: x.new_tensor(-float("inf")))
        assert rounded(program, lambda: [large.clone() / 16], lambda x: x.new_tensor(float("inf")))
        assert rounded(program, lambda: [torch.tensor([float("inf"), 1.0])], lambda x: x.new_tensor(float("nan")))


def test_gradients_at_nan_are_open_where_eagers_vectors_and_scalars_disagree():
    def backward(x):
        return torch.ops.aten.hardshrink_backward(torch.ones_like(x), x, 0.5)
    x = torch.full((24,), float("nan"))
    assert not rounded(backward, lambda: [x.clone()], torch.ones_like)
    assert rounded(backward, lambda: [torch.full_like(x, 2.0)], torch.zeros_like)


def test_the_sign_of_zeros_is_open_only_where_eager_has_both():
    shrink, x = torch.nn.functional.softshrink, torch.full((40,), -0.2)
    assert not rounded(shrink, lambda: [x.clone()], lambda x: torch.zeros_like(x))
    assert not rounded(shrink, lambda: [x.clone()], lambda x: -torch.zeros_like(x))
    assert rounded(lambda x: x * 0, lambda: [x.clone()], lambda x: torch.zeros_like(x))


def test_halves_may_overflow_where_eager_does_not_contract():
    large = torch.full((24,), 2.65e38, dtype=torch.bfloat16)
    assert not rounded(lambda x: x.sub_(x, alpha=2), lambda: [large.clone()], lambda x: x.neg_())
    assert rounded(lambda x: x.sub_(x, alpha=2), lambda: [large / 1e38], lambda x: x.neg_().mul_(0.9))


def test_a_norm_over_one_element_may_be_exact_though_eager_is_not():
    """Eager computes x * rstd - mean * rstd for halves, with rstd = 316 where there is no variance."""
    def normalised(x):
        return torch.nn.functional.layer_norm(x, (1,))
    x = torch.randn(64, 1).bfloat16()
    assert not rounded(normalised, lambda: [x.clone()], torch.zeros_like)
    assert rounded(normalised, lambda: [x.clone()], lambda x: torch.full_like(x, 0.01))


def test_a_long_norm_may_be_more_exact_than_eagers():
    x = torch.randn(640, 1024)
    assert not rounded(lambda x: x.norm(), lambda: [x.clone()], lambda x: x.double().norm().float())
    assert rounded(lambda x: x.norm(), lambda: [x.clone()], lambda x: x.norm() * (1 + 1e-3))


def test_the_bits_of_a_nan_are_nobodys_promise_in_lists_either():
    def program(x):
        torch._foreach_add_([x], [x])
        return x.view(torch.int16)
    x = torch.full((8,), float("nan"), dtype=torch.bfloat16)
    assert not rounded(program, lambda: [x.clone()], lambda x: x.view(torch.int16).fill_(-1))
