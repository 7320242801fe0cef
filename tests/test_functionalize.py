"""Functionalization, by the traces of small programs and by parity with eager."""
import copy

import pytest
import torch

from tracejit.ir import prims

from cases.parity import assert_parity, copied_elements
from cases.parity import copies as count_copies


def stage(jfn, name):
    return next(t for t in jfn.last_traces if t.stage == name)


def ops(made):
    return [b.sym.packet for b in made.bound_symbols]


def check(fn, *args, **options):
    """Parity with eager on clones of `args`, which alias as these do; the jitted function, for its traces."""
    return assert_parity(fn, lambda: tuple(copy.deepcopy(list(args))), **options)


def x4():
    return torch.arange(16.0).reshape(4, 4)


# ------------------------------------------------------------------ value form and memory form


def test_mutation_of_an_intermediate_is_data_flow():
    def program(x):
        y = x + 1
        y.mul_(2).relu_()
        y[1] = 0.0
        y.t()[2] += 5
        return y

    jfn = check(program, x4())
    made = stage(jfn, "functionalize")
    assert (
        not any(b.sym.overload is not None and b.written for b in made.bound_symbols)
        and made.count("copy_") == 0
    )
    assert made.count("select_scatter") == 2


def test_mutation_of_an_argument_is_written_back_once_at_the_granularity_of_the_view():
    def program(x):
        x[1].add_(1)
        x[1].mul_(2)
        return x.sum()

    jfn = check(program, x4())
    assert count_copies(jfn) == 1 and copied_elements(jfn) == [4]
    assert not {"add_", "mul_"} & set(ops(stage(jfn, "functionalize")))


def test_read_after_a_pending_write_of_the_same_bytes_is_that_value():
    def program(x):
        x.mul_(2)
        return x + 1, x.t() + 1

    made = stage(check(program, x4()), "functionalize")
    assert ops(made) == ["mul", "add", "t", "add", "copy_"]
    mul, add, t, _, write = made.bound_symbols
    assert add.args[0] is mul.output is t.args[0] is write.args[1]


def test_read_of_part_of_a_pending_write_is_a_view_of_the_value():
    def program(x):
        x.mul_(2)
        return x[1].clone() + 1

    made = stage(check(program, x4()), "functionalize")
    select = next(b for b in made.bound_symbols if b.sym.packet == "select")
    assert select.args[0] is made.bound_symbols[0].output


def test_read_of_more_than_a_pending_write_flushes_first():
    def program(x):
        x[1].mul_(2)
        return x.sum() + x[2].sum()

    made = stage(check(program, x4()), "functionalize")
    assert ops(made).index("copy_") < ops(made).index("sum")


def test_read_beside_a_pending_write_does_not_flush():
    def program(x):
        x[1].mul_(2)
        return x[2] + 1

    made = stage(check(program, x4()), "functionalize")
    assert ops(made)[-1] == "copy_"


def test_covered_pending_writes_are_dead_stores():
    def program(x):
        x[0].add_(1)
        x[1].add_(2)
        x.copy_(torch.ones(4, 4))
        x[2].add_(3)
        x[2].mul_(7)

    jfn = check(program, x4())
    assert copied_elements(jfn) == [16, 4]


OVERWRITES = {
    "fill_": lambda x: x.fill_(3.0),
    "zero_": lambda x: x.zero_(),
    "full slice": lambda x: x.__setitem__(slice(None), 3.0),
    "ones_like": lambda x: x.copy_(torch.ones_like(x)),  # reads the shape, not the values
}


@pytest.mark.parametrize("overwrite", OVERWRITES.values(), ids=OVERWRITES)
def test_overwriting_reads_nothing_of_what_it_overwrites(overwrite):
    def program(x):
        x[0].add_(1)
        overwrite(x)

    assert copied_elements(check(program, x4())) == [16]


def test_partly_covered_pending_writes_stay_in_order():
    def program(x):
        x[0:3] = 1.0
        x[1:4] = 2.0
        x[:, 0] = 3.0

    jfn = check(program, x4())
    assert copied_elements(jfn) == [12, 12, 4]


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize("writes", [15, 16, 17, 40])
def test_more_writes_than_the_buffer_holds(writes, visible):
    def program(x):
        y = x if visible else x + 0
        for i in range(writes):
            y[i % 20, i % 3 :] = float(i)
        return y * 2

    jfn = check(program, torch.zeros(20, 4))
    assert count_copies(jfn) == (writes if visible else 0) or writes > 20


def test_overlapping_writes_beyond_the_buffer_keep_the_last_one():
    def program(x):
        for i in range(40):
            x[i % 5 : i % 5 + 3] = float(i)
            if i == 20:
                x.mul_(2)
        return x + 1

    check(program, torch.zeros(8))


CHAINS = {
    "relabel": lambda y: y.view(2, 2, 4).unsqueeze(1)[1].squeeze(0),
    "permute": lambda y: y.view(2, 2, 4).permute(2, 0, 1)[3],
    "transpose of a slice": lambda y: y[1:3].t()[1:],
    "slice of a slice": lambda y: y[1:, 1:][::2, ::2],
    "diagonal": lambda y: y[:3].diagonal(1)[1:],
    "diagonal of a transpose": lambda y: y.t().diagonal()[::2],
    "negative dims": lambda y: y.unsqueeze(0).permute(-1, 0, -2)[..., -1],
    "scalar": lambda y: y[2][3],
    "expand of a row": lambda y: y[1:2].expand(1, 4),
    "unfold": lambda y: y[0].unfold(0, 2, 2),
    "as_strided": lambda y: y.as_strided((2, 3), (8, 2), 1),
    "as_strided of a slice": lambda y: y[1:].as_strided((2, 2), (4, 1), 5),
    "dtype": lambda y: y.view(torch.int32)[1],
    "split": lambda y: y.split([1, 3], dim=1)[1],
    "chunk": lambda y: y.chunk(2)[1],
    "unbind": lambda y: y.unbind(1)[2],
    "unflatten": lambda y: y.unflatten(0, (2, 2))[:, 1],
    "movedim": lambda y: y.view(2, 2, 4).movedim(0, 2)[1],
    "empty": lambda y: y[2:2],
    "bytes": lambda y: y.view(torch.uint8)[:, 3:7],
}


@pytest.mark.parametrize("visible", [True, False], ids=["argument", "intermediate"])
@pytest.mark.parametrize("view", CHAINS.values(), ids=CHAINS)
def test_write_through_a_chain_of_views(view, visible):
    def program(x):
        y = x if visible else x * 1
        old = view(y).sum()
        view(y).add_(3)
        view(y).mul_(2)
        return old, y.clone() if visible else y, view(y) * 1

    jfn = check(program, x4())
    made = stage(jfn, "functionalize")
    if visible:
        assert {"add_", "mul_"}.isdisjoint(ops(made)) and count_copies(jfn) <= 1
    else:
        assert count_copies(jfn) == 0 and not any(b.written for b in made.bound_symbols)


@pytest.mark.parametrize(
    "name, uses",
    [
        ("relabel", "select_scatter"),
        ("permute", "permute"),
        ("slice of a slice", "slice_scatter"),
        ("diagonal", "diagonal_scatter"),
        ("as_strided", "write_region"),
        ("dtype", "write_region"),
        ("unfold", "write_region"),
    ],
)
def test_how_a_write_goes_back_through_views(name, uses):
    def program(x):
        y = x * 1
        CHAINS[name](y).add_(3)
        return y

    assert stage(check(program, x4()), "functionalize").count(uses) >= 1


def test_write_region_leaves_its_base_alone():
    base, value = x4(), torch.full((2, 3), -1.0)
    kept = base.clone()
    got = prims.write_region(base, value, [2, 3], [8, 2], 1, torch.float32, False, False)
    kept.as_strided((2, 3), (8, 2), 1).copy_(value)
    assert torch.equal(got, kept) and torch.equal(base, x4()) and got.stride() == base.stride()


def test_layout_of_the_base_survives_a_write():
    def program(x):
        y = x.t() * 1
        y[1] = 0.0
        return y, y.view(-1) if y.is_contiguous() else y.t().view(-1)

    check(program, torch.arange(6.0).reshape(2, 3))


def test_what_values_cannot_express_becomes_memory():
    def program(x):
        y = x * 1
        y[1:].copy_(y[:-1])  # a race that eager accepts or refuses as it likes
        return y

    def racy(x):
        y = x * 1
        y.as_strided((3, 2), (1, 1)).fill_(5)
        return y

    made = stage(check(racy, x4()), "functionalize")
    assert made.count("fill_") == 1 and made.count("restride") == 1
    with pytest.raises(RuntimeError):
        program(x4())
    assert_parity(program, lambda: (x4(),), raises="RuntimeError")


def test_scatter_into_an_argument_runs_in_place():
    def program(x, i):
        x.index_add_(0, i, x.new_ones(2, 4))
        return x * 2

    made = stage(check(program, x4(), torch.tensor([1, 1])), "functionalize")
    assert made.count("index_add_") == 1 and made.count("copy_") == 0


def test_writes_before_an_op_that_may_raise_are_flushed():
    def program(x, i):
        x.add_(1)
        y = x.new_ones(3)[i]
        x.mul_(2)
        return y

    made = stage(check(program, x4(), torch.tensor([1])), "functionalize")
    assert ops(made).index("copy_") < ops(made).index("index") and made.count("copy_") == 2


# ------------------------------------------------------------------ identity and sharing of results

RESULTS = {
    "argument itself": lambda x: x.add_(1),
    "argument twice": lambda x: (x.add_(1), x),
    "view of an argument": lambda x: (x.mul_(2), x[1:].t()),
    "two views of an intermediate": lambda x: (lambda y: (y[0], y.t()))(x + 1),
    "intermediate and its view, written": lambda x: (lambda y: (y, y[1].zero_()))(x + 1),
    "one intermediate twice": lambda x: (lambda y: (y, y))(x + 1),
    "detached": lambda x: (lambda y: (y, y.detach()))(x + 1),
    "equal but apart": lambda x: (x + 1, x + 1),
    "contiguous of contiguous": lambda x: (x.contiguous(), x.clone()),
    "view of the middle": lambda x: (x + 1)[1:3, 1:],
    "expanded": lambda x: (x[0] + 1).expand(3, 4),
    "dtype view": lambda x: (lambda y: (y, y.view(torch.int32)))(x + 1),
    "metadata moved": lambda x: (x.t_(), x.unsqueeze_(0)),
    "intermediate with metadata moved": lambda x: (lambda y: (y.t_(), y.squeeze_(), y))(x * 1),
}


@pytest.mark.parametrize("fn", RESULTS.values(), ids=RESULTS)
def test_results_keep_identity_sharing_and_strides(fn):
    check(fn, x4())


@pytest.mark.parametrize("fn", RESULTS.values(), ids=RESULTS)
def test_a_caller_who_writes_a_result_changes_what_eager_changes(fn):
    def after(result, args):
        first = result[0] if isinstance(result, tuple) else result
        first[(0,) * first.dim()] = 99.0
        return result

    check(fn, x4(), after=after)
