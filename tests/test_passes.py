"""copies, cse and dce: on traces built by hand, and by parity with eager."""
import copy

import pytest
import torch

from tracejit.passes.copies import copies
from tracejit.passes.cse import cse
from tracejit.passes.dce import dce

from cases.handmade import aten, call, copy_, tensor, trace
from cases.parity import assert_parity


def ops(made):
    return [b.sym.packet for b in made.bound_symbols]


def check(fn, *args, **options):
    """Parity with eager on clones of `args`, which alias as these do."""
    return assert_parity(fn, lambda: tuple(copy.deepcopy(list(args))), **options)


def x4():
    return torch.arange(16.0).reshape(4, 4)


# ------------------------------------------------------------------ copies: clones

a, b, v, w = tensor("a", (4,), 0), tensor("b", (4,), 1), tensor("v", (4,), 10), tensor("w", (4,), 11)
u = tensor("u", (4,), 12)


def cloned(source, out):
    return call(aten.clone.default, (source,), out)


def doubled(source, out):
    return call(aten.mul.Tensor, (source, 2), out)


def after_copies(*calls, output=(), inputs=(a, b)):
    return [b.sym.packet for b in copies(trace(inputs, *calls, output=output)).bound_symbols]


def test_clone_that_is_only_read_is_its_source():
    made = copies(trace([a], cloned(a, v), doubled(v, w), output=[w]))
    assert ops(made) == ["mul"] and made.bound_symbols[0].args[0] is a


def test_clone_of_memory_that_is_written_after_its_last_use_goes():
    assert after_copies(cloned(a, v), doubled(v, w), copy_(a, w), output=[w]) == ["mul", "copy_"]


def test_clone_read_by_the_very_call_that_overwrites_its_source_goes_only_for_copy_():
    assert after_copies(cloned(a, v), copy_(b, v)) == ["copy_"]
    assert after_copies(cloned(a, v), call(aten.cumsum_.default, (a, 0), a), doubled(v, w), output=[w]) == [
        "clone",
        "cumsum_",
        "mul",
    ]


def test_clone_of_memory_that_is_written_while_it_is_used_stays():
    assert after_copies(cloned(a, v), copy_(a, b), doubled(v, w), output=[w]) == ["clone", "copy_", "mul"]


def test_clone_survives_a_write_beside_its_source():
    first, second = tensor("first", (2,), 0), tensor("second", (2,), 0, offset=2)
    fv, fw = tensor("fv", (2,), 10), tensor("fw", (2,), 11)
    assert after_copies(
        cloned(first, fv), copy_(second, fw), doubled(fv, w), output=[w], inputs=(first, second, fw)
    ) == ["copy_", "mul"]


@pytest.mark.parametrize(
    "kept",
    [
        [cloned(a, v)],
        [cloned(a, v), call(aten.add_.Tensor, (v, 1), v)],
        [cloned(a, v), call(aten.as_strided.default, (v, [2], [1], 1), tensor("s", (2,), 10, offset=1))],
    ],
    ids=["returned", "written", "as_strided"],
)
def test_clone_that_needs_memory_of_its_own_stays(kept):
    assert "clone" in after_copies(*kept, output=[v])


def test_clone_in_another_layout_stays():
    t, out = tensor("t", (2, 2), 0, stride=(1, 2)), tensor("out", (2, 2), 10)
    r = tensor("r", (2, 2), 11)
    assert after_copies(
        call(aten.clone.default, (t,), out, memory_format=torch.contiguous_format),
        doubled(out, r),
        output=[r],
        inputs=(t,),
    ) == ["clone", "mul"]


def test_views_of_a_dropped_clone_are_views_of_its_source():
    row, target = tensor("row", (2,), 10, offset=2), tensor("r", (2,), 12)
    source = tensor("source", (4,), 0, offset=4)
    made = copies(
        trace(
            [source],
            cloned(source, v),
            call(aten.slice.Tensor, (v, 0, 2), row),
            doubled(row, target),
            output=[target],
        )
    )
    assert ops(made) == ["slice", "mul"]
    view = made.bound_symbols[0].output
    assert (view.storage, view.offset) == (0, 6) and made.bound_symbols[1].args[0] is view


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x.clone() + x.add_(1), x),
        lambda x: (x.clone().t()[1] * 2, x.mul_(2)),
        lambda x: (lambda y: (x.zero_(), y + 1))(x.clone()),
        lambda x: (lambda y: (x[0].zero_(), y[1] + 1))(x.clone()),
        lambda x: x.copy_(x.t().clone()),
        lambda x: x[1:].copy_(x[:-1].clone()),
        lambda x: (lambda y: (x.t().copy_(y), x[1].copy_(y[0])))(x.clone()),
    ],
)
def test_dropping_clones_changes_nothing(program):
    check(program, x4())


def test_swap_needs_one_temporary():
    def swap(x, y):
        t = x.clone()
        x.copy_(y)
        y.copy_(t)

    jfn = check(swap, x4(), x4() + 100)
    final = jfn.last_traces[-1]
    assert final.count("copy_") == 2 and final.count("clone") == 1


# ------------------------------------------------------------------ copies: dead stores


def test_store_overwritten_before_any_read_goes():
    assert after_copies(copy_(a, v), copy_(a, w), inputs=(a, v, w)) == ["copy_"]
    assert after_copies(copy_(a, v), doubled(b, u), copy_(a, w), inputs=(a, b, v, w), output=[u]) == [
        "mul",
        "copy_",
    ]


def test_store_read_between_stays():
    assert after_copies(copy_(a, v), doubled(a, u), copy_(a, w), inputs=(a, v, w), output=[u]) == [
        "copy_",
        "mul",
        "copy_",
    ]
    part = tensor("part", (1,), 0, offset=3)
    p = tensor("p", (1,), 13)
    assert after_copies(copy_(a, v), doubled(part, p), copy_(a, w), inputs=(a, part, v, w), output=[p]) == [
        "copy_",
        "mul",
        "copy_",
    ]


def test_store_partly_overwritten_stays():
    part, p = tensor("part", (3,), 0), tensor("p", (3,), 13)
    assert after_copies(copy_(a, v), copy_(part, p), inputs=(a, part, v, p)) == ["copy_", "copy_"]
    assert after_copies(copy_(part, p), copy_(a, v), inputs=(a, part, v, p)) == ["copy_"]


def test_store_before_an_op_that_may_raise_stays():
    index = tensor("i", (1,), 20, dtype=torch.int64)
    taken = call(aten.index.Tensor, (b, [index]), tensor("t", (1,), 21))
    assert after_copies(copy_(a, v), taken, copy_(a, w), inputs=(a, b, v, w, index)) == [
        "copy_",
        "index",
        "copy_",
    ]


def test_store_read_by_the_store_that_overwrites_it_stays():
    assert after_copies(copy_(a, v), copy_(a, a), inputs=(a, v))[0] == "copy_"
    shifted = tensor("shifted", (4,), 0, stride=(0,), offset=2)
    assert after_copies(copy_(a, v), copy_(a, shifted), inputs=(a, shifted, v)) == ["copy_", "copy_"]


# ------------------------------------------------------------------ cse


def after_cse(*calls, output=(), inputs=(a, b)):
    return cse(trace(inputs, *calls, output=output))


def test_equal_calls_are_made_once():
    made = after_cse(doubled(a, v), doubled(a, w), call(aten.add.Tensor, (v, w), u), output=[u])
    assert ops(made) == ["mul", "add"] and made.bound_symbols[1].args == (v, v)


@pytest.mark.parametrize(
    "second",
    [
        call(aten.mul.Tensor, (a, 2.0), w),
        call(aten.mul.Tensor, (a, True), w),
        call(aten.mul.Tensor, (b, 2), w),
        call(aten.add.Tensor, (a, 2), w),
    ],
    ids=["2.0", "True", "b", "add"],
)
def test_different_calls_stay(second):
    made = after_cse(doubled(a, v), second, call(aten.add.Tensor, (v, w), u), output=[u])
    assert len(made.bound_symbols) == 3


def test_reads_of_memory_are_equal_only_between_writes():
    written = after_cse(
        doubled(a, v), copy_(a, b), doubled(a, w), call(aten.add.Tensor, (v, w), u), output=[u]
    )
    assert ops(written) == ["mul", "copy_", "mul", "add"]
    elsewhere = after_cse(
        doubled(a, v), copy_(b, v), doubled(a, w), call(aten.add.Tensor, (v, w), u), output=[u]
    )
    assert ops(elsewhere) == ["mul", "copy_", "add"]


def test_view_of_memory_is_the_same_at_any_time_but_reads_through_it_are_not():
    row, again = tensor("row", (2,), 0), tensor("again", (2,), 0)
    r1, r2, r3 = (tensor(n, (2,), 30 + k) for k, n in enumerate(("r1", "r2", "r3")))
    first, second = (call(aten.slice.Tensor, (a, 0, 0, 2), t) for t in (row, again))
    made = after_cse(
        first,
        doubled(row, r1),
        copy_(a, b),
        second,
        doubled(again, r2),
        call(aten.add.Tensor, (r1, r2), r3),
        output=[r3],
    )
    assert ops(made) == ["slice", "mul", "copy_", "mul", "add"] and made.bound_symbols[3].args[0] is row


def test_random_and_effectful_calls_are_never_merged():
    for op, args in ((aten.rand_like.default, (a,)), (aten.bernoulli.default, (a,))):
        made = after_cse(call(op, args, v), call(op, args, w), call(aten.add.Tensor, (v, w), u), output=[u])
        assert len(made.bound_symbols) == 3
    assert ops(after_cse(call(aten.add_.Tensor, (a, 1), a), call(aten.add_.Tensor, (a, 1), a))) == [
        "add_",
        "add_",
    ]


def test_results_gain_no_alias():
    apart = after_cse(doubled(a, v), doubled(a, w), output=[v, w])
    assert ops(apart) == ["mul", "mul"] and apart.output == (v, w)
    one = after_cse(doubled(a, v), doubled(a, w), call(aten.add.Tensor, (w, 1), u), output=[v, u])
    assert one.output == (v, u) and len(one.bound_symbols) == 2


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x + 1, x + 1),
        lambda x: ((x + 1)[0], (x + 1)[0]),
        lambda x: ((x + 1).t(), x + 1),
        lambda x: (x.clone(), x.clone()),
        lambda x: (torch.zeros(2), torch.zeros(2), torch.zeros(2) + torch.zeros(2)),
        lambda x: (x.sum(), x.add_(1), x.sum()),
        lambda x: (torch.rand(3) - torch.rand(3), torch.rand(3)),
        lambda x: (x * 2 + x.mul_(1) * 2, x * -0.0 + x * 0.0),
        lambda x: (torch.empty(0).new_zeros(2), (x > 1) == (x > 1.0)),
        lambda x: (lambda y, z: (y.add_(1), z))(x + 1, x + 1),
        lambda x: (lambda y, z: (y.set_(z), z.zero_()))(x + 1, x + 1),
        lambda x: (
            x / 1 == x / True,
            x * torch.tensor(2.0) + x * torch.tensor(2.0),
            x * torch.tensor(2.0) + x * torch.tensor(3.0),
        ),
    ],
)
def test_merging_changes_nothing(program):
    def after(result, args):
        for t in result:
            if t.is_floating_point():
                t.view(-1)[:1].add_(1) if t.is_contiguous() else t.add_(1)
        return result

    check(program, x4(), after=after)


# ------------------------------------------------------------------ dce


def test_unused_calls_go_in_chains():
    made = dce(trace([a], doubled(a, v), doubled(v, w), doubled(a, u), output=[u]))
    assert ops(made) == ["mul"] and made.bound_symbols[0].output is u


@pytest.mark.parametrize(
    "effect",
    [
        copy_(a, b),
        call(aten.rand_like.default, (a,), v),
        call(aten.remainder.Tensor, (tensor("i", (4,), 0, dtype=torch.int64), 2), v),
        call(aten.linalg_cholesky_ex.default, (a,), v),
    ],
    ids=["write", "random", "integer division", "linalg"],
)
def test_effects_stay(effect):
    assert ops(dce(trace([a, b], effect))) == [effect.sym.packet]


def test_what_an_effect_needs_stays():
    assert ops(dce(trace([a], doubled(a, v), copy_(a, v)))) == ["mul", "copy_"]


def test_one_live_output_keeps_a_call():
    many = call(aten.max.dim, (a, 0), (v, w))
    assert ops(dce(trace([a], many, output=[w]))) == ["max"]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x + 1, None)[1],
        lambda x: (torch.rand(3), torch.rand(3))[1],
        lambda x: (x.exp(), x.add_(1))[1],
        lambda x: [x[[0, 1]], x * 2][1],
    ],
)
def test_dropping_what_is_unused_changes_nothing(program):
    check(program, x4())


def test_unused_error_is_still_raised():
    def program(x, i):
        x[i]
        return x * 2

    assert_parity(program, lambda: (x4(), torch.tensor([9])), raises="IndexError")
