"""The in-place checker, proved on traces built by hand: what breaks a rule is named."""
from dataclasses import replace

import pytest
import torch

import tracejit
from tracejit.ir.symbol import Symbol
from tracejit.passes.inplace_check import inplace_check

from cases.handmade import aten, call, copy_, region, tensor, trace, unfused

X, Y = 0, 1  # storages of memory that the caller sees
_names = iter(range(10**6))


def memory(name="x", shape=(4, 4), storage=X, **layout):
    return tensor(name, shape, storage, **layout)


def value(shape=(4, 4), **layout):
    """A fresh value, in a storage of its own."""
    n = next(_names)
    return tensor(f"v{n}", shape, 100 + n, **layout)


def doubled(a, shape=None):
    return call(aten.mul.Tensor, (a, 2), value(shape or a.shape))


def check(final, reference=None):
    return inplace_check(final, unfused(final) if reference is None else reference)


def refusal(final, reference=None):
    """The checker's message; it must name the user's line, like every error."""
    with pytest.raises(tracejit.InplaceCopyError) as info:
        check(final, reference)
    assert info.value.where == "/home/user/model.py:17" and info.value.where in str(info.value)
    return str(info.value)


# ------------------------------------------------------------------ inside a region: reads at another index

x = memory()
VIEWS_OF_X = {
    "transpose": memory("xt", (4, 4), stride=(1, 4)),
    "shifted slice": memory("x_shifted", (3, 4), offset=4),
    "every other column": memory("x_steps", (4, 2), stride=(4, 2)),
    "row": memory("x_row", (4,), offset=4),
    "broadcast row": memory("x_spread", (4, 4), stride=(0, 1)),
    "flat": memory("x_flat", (16,)),
    "other dtype": memory("x_ints", (4, 4), dtype=torch.int32),
}


@pytest.mark.parametrize("view", VIEWS_OF_X.values(), ids=VIEWS_OF_X)
def test_written_memory_read_as_another_view_is_refused(view):
    read = doubled(view)
    text = refusal(trace([x, view], region("fused_7", read, copy_(x, value()))))
    assert "in region fused_7: " in text and "torch.ops.aten.mul.Tensor(" in text
    assert f"{view.name} overlaps x, which the region writes, but is another view" in text


def test_the_order_of_read_and_write_in_the_region_does_not_matter():
    """A kernel's iterations run in any order: a read before the write is as wrong as one after it."""
    view = VIEWS_OF_X["transpose"]
    assert "is another view" in refusal(trace([x, view], region("r", copy_(x, value()), doubled(view))))


def test_flipped_read_is_refused():
    flip = call(aten.flip.default, (x, [0]), value())
    text = refusal(trace([x], region("r", flip, copy_(x, flip.output))))
    assert "torch.ops.aten.flip.default(x, [0])" in text
    assert "x is written in the region and read other than index for index" in text


NOT_INDEX_FOR_INDEX = {
    "reduction that keeps the shape": lambda: call(aten.cumsum.default, (x, 0), value()),
    "softmax": lambda: call(aten._softmax.default, (x, 0, False), value()),
    "gather": lambda: call(
        aten.gather.default, (x, 0, tensor("index", (4, 4), 9, dtype=torch.int64)), value()
    ),
    "index": lambda: call(aten.index.Tensor, (x, [tensor("index", (4,), 9, dtype=torch.int64)]), value()),
    "matmul": lambda: call(aten.mm.default, (x, memory("y", storage=Y)), value()),
    "roll": lambda: call(aten.roll.default, (x, [1]), value()),
    "broadcast": lambda: call(aten.add.Tensor, (x, memory("y", (2, 4, 4), Y)), value((2, 4, 4))),
    "scatter in place": lambda: call(
        aten.index_fill_.int_Scalar, (x, 0, tensor("index", (4,), 9, dtype=torch.int64), 0), x
    ),
}


@pytest.mark.parametrize("read", NOT_INDEX_FOR_INDEX.values(), ids=NOT_INDEX_FOR_INDEX)
def test_read_that_is_not_index_for_index_is_refused(read):
    read = read()
    text = refusal(trace([x], region("r", read, copy_(x, value()))))
    assert f"{read.sym.overload}".rsplit(".", 1)[0] in text
    assert "x is written in the region and read other than index for index" in text


@pytest.mark.parametrize("read", NOT_INDEX_FOR_INDEX.values(), ids=NOT_INDEX_FOR_INDEX)
def test_the_same_read_outside_the_region_is_fine(read):
    read = read()
    check(trace([x], read, region("r", copy_(x, value()))))
    check(trace([x], region("r", copy_(x, value())), read))


def test_value_made_from_written_memory_is_tied_to_its_index():
    read = doubled(x)
    further = doubled(read.output)
    flip = call(aten.flip.default, (further.output, [1]), value())
    assert "aten.flip" in refusal(trace([x], region("r", read, further, flip, copy_(x, flip.output))))


@pytest.mark.parametrize("view", ["t", "slice", "expand"])
def test_read_through_a_view_of_a_value_is_refused(view):
    read = doubled(x)
    v = read.output
    seen = {
        "t": lambda: call(aten.t.default, (v,), replace(v, name="vt", stride=(1, 4))),
        "slice": lambda: call(aten.slice.Tensor, (v, 0, 1), replace(v, name="vs", shape=(3, 4), offset=4)),
        "expand": lambda: call(
            aten.expand.default, (v, [2, 4, 4]), replace(v, name="ve", shape=(2, 4, 4), stride=(0, 4, 1))
        ),
    }[view]()
    used = doubled(seen.output)
    text = refusal(trace([x], region("r", read, seen, used, copy_(x, v))))
    assert "x is written in the region and read" in text


# ------------------------------------------------------------------ inside a region: rows

def summed(a, dims, keepdim=False):
    shape = tuple(1 if d in dims else n for d, n in enumerate(a.shape) if keepdim or d not in dims)
    return call(aten.sum.dim_IntList, (a, dims, keepdim), value(shape))


def added(a, b, shape):
    return call(aten.add.Tensor, (a, b), value(shape))


def unsqueezed(a):
    return call(aten.unsqueeze.default, (a, 1), replace(a, name=f"{a.name}_column", shape=(4, 1), stride=(1, 1)))


def test_a_reduction_of_what_is_written_may_meet_its_own_row():
    kept, bare = summed(x, [1], True), summed(x, [1])
    column = unsqueezed(bare.output)
    for made in ([kept, added(x, kept.output, (4, 4))], [bare, column, added(x, column.output, (4, 4))],
                 [kept, doubled(kept.output), added(x, kept.output, (4, 4))]):
        check(trace([x], region("r", *made, copy_(x, made[-1].output))))
    alone = summed(doubled(x).output, [0, 1])
    check(trace([x], region("r", alone, copy_(x, value()))))


def test_a_reduction_of_what_is_written_may_not_meet_other_rows():
    bare, kept, columns = summed(x, [1]), summed(x, [1], True), summed(x, [0], True)
    turned = call(aten.t.default, (kept.output,), replace(kept.output, name="turned", shape=(1, 4), stride=(1, 1)))
    for made in ([bare, added(x, bare.output, (4, 4))],                              # each element meets the sum of another row
                 [kept, turned, added(value(), turned.output, (4, 4))],
                 [kept, columns, added(x, kept.output, (4, 4))],                     # every row needs all columns
                 [kept, summed(kept.output, [0], True), added(x, kept.output, (4, 4))],
                 [kept, added(kept.output, value((1, 4)), (4, 4)), summed(value(), [0])],
                 [kept, call(aten.cumsum.default, (kept.output, 0), value((4, 1)))]):
        if made[1].sym.overload is aten.add.Tensor and len(made) == 3:
            made[2] = summed(made[1].output, [0])
        text = refusal(trace([x], region("r", *made, copy_(x, value()))))
        assert "x is written in the region and read other than index for index" in text


def test_broadcasting_copy_of_written_memory_is_refused():
    row, y = VIEWS_OF_X["row"], memory("y", storage=Y)
    text = refusal(trace([x, row, y], region("r", copy_(row, value((4,))), copy_(y, row))))
    assert "x_row is written in the region and read other than index for index" in text


# ------------------------------------------------------------------ inside a region: what is fine


def test_index_for_index_read_then_write_is_fine():
    read = doubled(x)
    more = call(aten.add.Tensor, (read.output, x), value())
    final = trace([x], region("r", read, more, copy_(x, more.output)))
    assert check(final) is final


def test_read_through_another_name_of_the_same_view_is_fine():
    again = memory("x_again")
    read = doubled(again)
    check(trace([x, again], region("r", read, copy_(x, read.output))))


def test_in_place_pointwise_call_in_a_region_is_fine():
    y = memory("y", storage=Y)
    check(trace([x, y], region("r", call(aten.add_.Tensor, (x, y), x), doubled(x))))


def test_disjoint_bytes_are_fine():
    left, right = memory("left", (4, 2), stride=(4, 1)), memory("right", (4, 2), stride=(4, 1), offset=2)
    total = call(aten.sum.default, (right,), value(()))
    check(trace([left, right], region("r", doubled(right), total, copy_(left, value((4, 2))))))


def test_anything_may_be_read_from_memory_that_the_region_does_not_write():
    y = memory("y", storage=Y)
    flip = call(aten.flip.default, (y, [0]), value())
    total = call(aten.sum.default, (flip.output,), value(()))
    check(trace([x, y], region("r", flip, total, copy_(x, value()))))


def test_a_view_without_a_read_is_fine():
    row = VIEWS_OF_X["row"]
    select = call(aten.select.int, (x, 0, 1), row)
    check(trace([x], region("r", select, doubled(value()), copy_(row, value((4,))))))


# ------------------------------------------------------------------ inside a region: two writes


@pytest.mark.parametrize(
    "name", sorted(set(VIEWS_OF_X) - {"broadcast row"})
)  # that one overlaps itself: another rule
def test_two_writes_of_overlapping_views_are_refused(name):
    view = VIEWS_OF_X[name]
    text = refusal(trace([x, view], region("twice", copy_(x, value()), copy_(view, value(view.shape)))))
    assert "in region twice: " in text and f"copy_.default({view.name}, v" in text
    assert f"{view.name} overlaps x, which the region writes too" in text


def test_two_writes_of_the_same_view_are_fine():
    check(trace([x], region("r", copy_(x, value()), copy_(memory("x_again"), value()))))


def test_writes_of_disjoint_slices_are_fine():
    rows = [memory(f"row{i}", (4,), offset=4 * i) for i in range(4)]
    check(trace(rows, region("r", *(copy_(row, value((4,))) for row in rows))))


@pytest.mark.parametrize("shape, stride", [((3, 4), (0, 1)), ((3, 2), (1, 1)), ((2, 3, 2), (3, 2, 1))])
def test_write_to_memory_that_overlaps_itself_is_refused(shape, stride):
    meets_itself = memory("w", shape, stride=stride)
    text = refusal(trace([meets_itself], region("r", copy_(meets_itself, value(shape)))))
    assert "in region r: " in text and "w writes memory that overlaps itself" in text


def test_write_through_odd_strides_without_overlap_is_fine():
    interleaved = memory("w", (2, 3), stride=(1, 2))
    check(trace([interleaved], region("r", copy_(interleaved, value((2, 3))))))


# ------------------------------------------------------------------ order between calls and regions


def writer(target=x, name="writer"):
    read = doubled(value(target.shape))
    return region(name, read, copy_(target, read.output))


def test_region_that_reads_a_destination_moved_before_its_writer_is_refused():
    w, r = writer(), region("reader", doubled(x))
    check(trace([x], w, r), trace([x], w, r))
    text = refusal(trace([x], r, w), trace([x], w, r))
    assert (
        "must come after the write aten.copy_.default(x, v" in text
        and "torch.ops.aten.mul.Tensor(x, 2)" in text
    )


@pytest.mark.parametrize("view", VIEWS_OF_X.values(), ids=VIEWS_OF_X)
def test_reader_of_an_alias_moved_before_the_writer_is_refused(view):
    w, r = writer(), doubled(view)
    refusal(trace([x, view], r, w), trace([x, view], w, r))


def test_read_moved_after_a_write_is_refused():
    r, w = doubled(x), writer()
    text = refusal(trace([x], w, r), trace([x], r, w))
    assert (
        "must come before the write aten.copy_.default(x, v" in text
        and "torch.ops.aten.mul.Tensor(x, 2)" in text
    )


def test_two_writers_swapped_are_refused():
    row = VIEWS_OF_X["row"]
    first, second = writer(name="first"), writer(row, name="second")
    text = refusal(trace([x, row], second, first), trace([x, row], first, second))
    assert "copy_.default" in text and "the order of memory accesses changed" in text


def test_disjoint_accesses_may_move():
    top, bottom = memory("top", (2, 4)), memory("bottom", (2, 4), offset=8)
    w, r = writer(top), doubled(bottom)
    check(trace([top, bottom], r, w), trace([top, bottom], w, r))
    other = writer(bottom)
    check(trace([top, bottom], other, w), trace([top, bottom], w, other))


def test_disjoint_writers_may_swap_before_a_read_of_both():
    top, bottom = memory("top", (2, 4)), memory("bottom", (2, 4), offset=8)
    first, second, r = writer(top), writer(bottom), doubled(x)
    check(trace([x, top, bottom], second, first, r), trace([x, top, bottom], first, second, r))


def test_two_readers_may_swap():
    a, b, w = doubled(x), call(aten.sum.default, (x,), value(())), writer()
    check(trace([x], b, a, w), trace([x], a, b, w))


def test_separate_regions_in_the_recorded_order_are_fine():
    transposed = VIEWS_OF_X["transpose"]
    before, w, after = region("before", doubled(transposed)), writer(), region("after", doubled(transposed))
    final = trace([x, transposed], before, w, after)
    assert check(final) is final


def test_fusing_a_read_over_a_write_is_refused():
    """Reference: read, write, read. A region of both reads before the write breaks the second."""
    first, w, second = doubled(x), writer(), doubled(x)
    refusal(trace([x], region("both", first, second), w), trace([x], first, w, second))


def test_a_write_that_nobody_makes_any_more_is_refused():
    first, last = writer(name="first"), writer(VIEWS_OF_X["row"], name="last")
    inputs = [x, VIEWS_OF_X["row"]]
    refusal(trace(inputs, last), trace(inputs, first, last))  # a write over it shows that it is gone
    with pytest.raises(tracejit.InplaceCopyError):  # the caller is a reader as well
        check(trace(inputs, first), trace(inputs, first, last))


# ------------------------------------------------------------------ through jit


def program(a):
    b = a * 2
    a.add_(1)
    return b + a


def reads_last_first(t):
    """A transform that moves every read of memory behind the writes."""
    writes = [b for b in t.bound_symbols if b.sym.is_copy]
    first = t.bound_symbols[:2]
    return t.replace(
        bound_symbols=(first[1], *writes, first[0], *(b for b in t.bound_symbols[2:] if not b.sym.is_copy))
    )


def test_transform_that_breaks_the_order_is_refused():
    jfn = tracejit.jit(program, transforms=(reads_last_first,), fallback="error")
    with pytest.raises(tracejit.InplaceCopyError, match="order of memory accesses changed"):
        jfn(torch.ones(3))


class Flipper(tracejit.Executor):
    """Runs each copy_ as a region that first reads the destination backwards: a race in a real kernel."""

    name = "flipper"

    def can_execute(self, bsym):
        return bsym.sym.is_copy

    def execute(self, bsym):
        target = bsym.args[0]
        flip = call(
            aten.flip.default, (target, [0]), replace(value(target.shape), name="flipped"), source=bsym.source
        )
        fn = torch.ops.aten.copy_.default
        return replace(
            bsym, sym=Symbol("flipping_copy", fn, writes_to=(0,)), subsymbols=(flip, bsym), executor=self.name
        )


def test_executor_whose_region_races_is_refused():
    jfn = tracejit.jit(program, executors=[Flipper()], fallback="error")
    a = torch.ones(3)
    with pytest.raises(
        tracejit.InplaceCopyError, match="in region flipping_copy: .*read other than index for index"
    ) as info:
        jfn(a)
    assert "test_inplace_check.py" in info.value.where and "disable_inplace_copy_check=True" in str(
        info.value
    )
    assert torch.equal(a, torch.ones(3)), "refused before anything ran"


def test_switch_skips_the_check_and_changes_nothing_else():
    want_a = torch.ones(3)
    want = program(want_a)
    checked, skipped, racing = (
        tracejit.jit(program, fallback="error", **options)
        for options in (
            {},
            {"disable_inplace_copy_check": True},
            {"disable_inplace_copy_check": True, "executors": [Flipper()]},
        )
    )
    for jfn in (checked, skipped, racing):
        a = torch.ones(3)
        assert torch.equal(jfn(a), want) and torch.equal(a, want_a)
    assert [str(t) for t in checked.last_traces] == [str(t) for t in skipped.last_traces]


class OwnKernels(tracejit.Executor):
    """Runs copy_ and pointwise writes as kernels of its own, told by `writes_to` alone."""

    name = "own"

    def can_execute(self, bsym):
        return bsym.sym.is_copy

    def execute(self, bsym):
        return replace(
            bsym, sym=Symbol("own.copy", lambda a, b: a.copy_(b), writes_to=(0,)), executor=self.name
        )


def test_executor_that_keeps_the_order_under_names_of_its_own_is_fine():
    def reads_what_it_wrote(a):
        a[:2].add_(1)
        return a.sum()

    jfn = tracejit.jit(reads_what_it_wrote, executors=[OwnKernels()], fallback="error")
    a = torch.ones(3)
    assert jfn(a) == 5 and a.tolist() == [2, 2, 1]
    assert "own.copy" in [b.sym.name for b in jfn.last_traces[-1].bound_symbols]
