"""Programs that were once wrong here, each kept with the promise that it broke."""
import gc
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import tracejit

from cases.compare import call_problems, run
from cases.parity import assert_parity


def jit(fn):
    return tracejit.jit(fn, fallback="error")


def ones():
    return torch.ones(2)


def test_two_places_with_one_tensor_may_part():
    a, b = [ones()], [None]
    b[0] = a[0]
    f = jit(lambda x: x * a[0] + b[0])
    f(ones())
    b[0] = torch.full((2,), 5.0)
    assert f(ones()).tolist() == [6, 6]


def test_tied_weights_may_part():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    f = jit(lambda x: net(x).detach())
    f(ones())
    net[1].weight = nn.Parameter(torch.zeros(2, 2))
    assert torch.equal(f(ones()), net(ones()))


def test_an_argument_that_is_also_an_attribute_may_be_another_one():
    holder = nn.Module()
    holder.a = ones()
    f = jit(lambda x: x.add_(1) + holder.a)
    f(holder.a)
    assert f(ones()).tolist() == (ones() + 1 + holder.a).tolist()


@pytest.mark.parametrize("change", [
    lambda: torch.set_grad_enabled(False), lambda: torch.set_default_dtype(torch.float64),
    lambda: torch.use_deterministic_algorithms(True), lambda: torch.set_float32_matmul_precision("high")],
    ids=["grad", "dtype", "deterministic", "matmul precision"])
def test_settings_left_changed_are_not_captured_and_are_put_back(change):
    before = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
              torch.get_float32_matmul_precision())

    def program(x):
        change()
        return x * 2

    with pytest.raises(tracejit.UnsupportedError, match="leaves it changed|another default dtype"):
        jit(program)(ones())
    assert before == (torch.is_grad_enabled(), torch.get_default_dtype(),
                      torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision())


def test_checkpoint_of_a_function_that_writes_is_not_captured():
    body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(tracejit.UnsupportedError, match="checkpoint"):
        jit(lambda x: checkpoint(body, x, use_reentrant=False))(torch.ones(3, 4))


@pytest.mark.parametrize("make", [
    lambda: (nn.MultiheadAttention(8, 2, batch_first=True).eval(), 3),
    lambda: (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval(), 1)],
    ids=["attention", "encoder"])
def test_modules_take_the_fast_path_that_eager_takes(make):
    module, arguments = make()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        call = ((x,) * arguments, {})
        assert not call_problems(call, run(module, *call), call, run(jit(module), *call))


def test_modules_under_inference_mode():
    linear = nn.Linear(2, 2)
    with torch.inference_mode():
        assert torch.equal(jit(linear)(ones()), linear(ones()))


def test_one_hot_checks_its_range_at_every_call():
    f = jit(lambda i: nn.functional.one_hot(i, 4))
    assert f(torch.tensor([1])).tolist() == [[0, 1, 0, 0]]
    with pytest.raises(RuntimeError, match="Class values"):
        f(torch.tensor([9]))


def test_memory_shared_with_numpy_is_no_constant():
    array = np.zeros(2, np.float32)

    def program(x):
        return torch.from_numpy(array).add_(x)

    with pytest.raises(tracejit.UnsupportedError, match="memory from outside torch"):
        jit(program)(ones())
    assert array.tolist() == [0, 0]


def test_data_of_python_is_a_constant_through_as_tensor():
    assert_parity(lambda x: x + torch.as_tensor([1.0, 2.0]), lambda: [ones()])


def test_names_of_a_tensor_are_those_that_eager_lists():
    def program(x):
        made = x + 1
        made.mark = 1
        listed = [name for t in (x, made) for name in dir(t)]
        return made * len(listed), listed

    assert jit(program)(ones())[1] == program(ones())[1]


def test_nested_tensors_run_eagerly():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.warns(tracejit.FallbackWarning):
        assert tracejit.jit(lambda t: t * 2)(nested).is_nested


def test_what_the_user_dropped_is_freed():
    def once():
        module, x = nn.Linear(2, 2), torch.ones(1, 2)
        f = jit(lambda x, module=module: module(x).detach())
        f(x)
        return weakref.ref(module), weakref.ref(x)

    module, x = once()
    gc.collect()
    assert module() is None and x() is None


def test_a_call_that_fell_back_does_not_hold_its_arguments():
    f = tracejit.jit(lambda x: x * x.sum().item(), fallback="silent")
    x = torch.ones(3)
    f(x)
    held = weakref.ref(x)
    del x
    gc.collect()
    assert held() is None


def test_a_dead_store_reads_before_it_writes():
    def program(a):
        a.div_(2)
        a.copy_(a.t())

    assert_parity(program, lambda: [torch.arange(32.0).as_strided((5, 5), (6, 1), 2)])


def test_views_of_a_clone_keep_their_absolute_offsets():
    def program(d):
        d.set_(d.clone())
        d.add_(d.flip(0))

    assert_parity(program, lambda: [torch.arange(224).as_strided((2, 3, 4), (12, 4, 1), 32)])


def test_metadata_moved_before_an_error_stays_moved():
    def program(a, i):
        a.transpose_(0, 1)
        a.index_copy_(0, i, a[i].flip(0))

    assert_parity(program, lambda: [torch.ones(3, 4), torch.tensor([7])], raises="IndexError")


def test_a_caught_value_error_is_no_straight_line():
    def program(x, i):
        try:
            return x[i]
        except IndexError:
            return x

    with pytest.raises(tracejit.UnsupportedError, match="try that catches"):
        jit(program)(torch.ones(3), torch.tensor([1]))


@pytest.mark.parametrize("make", [lambda: torch.ones(3, dtype=torch.bool), lambda: torch.ones(3, dtype=torch.complex64)],
                         ids=["bool", "complex"])
def test_a_dtype_without_a_kernel_is_an_error_though_nothing_reads_the_result(make):
    def program(x):
        x.argmax(0)

    assert_parity(program, lambda: [make()], raises="RuntimeError")


@pytest.mark.parametrize("rows, columns", [(2, 2), (512, 1024)])
def test_an_expanded_result_keeps_its_stride_after_a_write(rows, columns):
    def program(x):
        wide = (x * 1)[:1].expand(2, rows, columns)
        wide[1:] = wide[:-1].clone()
        return wide

    assert_parity(program, lambda: [torch.ones(1, rows, columns)])


def test_a_resize_to_no_elements_grows_no_storage():
    assert_parity(lambda x: x.resize_((3, 0)).detach(), lambda: [torch.ones(0, 4)])


def test_a_result_has_the_strides_that_the_kernel_gives_to_dimensions_of_size_one():
    assert_parity(lambda x: (x + 1, torch.full_like(x, 2), x.flip(-1)),
                  lambda: [torch.ones(8).as_strided((4, 1), (1, 4))])


def test_a_resized_out_takes_the_strides_of_the_result():
    assert_parity(lambda x, out: torch.mul(x.mT, 2, out=out), lambda: [torch.ones(5, 5), torch.empty(0)])


def test_views_that_differ_in_the_stride_of_one_row_overlap_as_in_eager():
    assert_parity(lambda a: a.add_(a.view_as(a)), lambda: [torch.ones(8).as_strided((1, 5), (6, 1))], raises="RuntimeError")


@pytest.mark.parametrize("program", [
    lambda x, y: x == y, lambda x, y: y == x, lambda x, y: x != y.clone(), lambda x, y: y[:] != x, lambda x, y: x < y, lambda x, y: y < x,
    lambda x, y: x <= y, lambda x, y: x > y, lambda x, y: y >= x[...]], ids="== =!= != !=! < >! <= > >=".split())
def test_a_comparison_of_operands_laid_out_differently_has_the_strides_that_their_order_gives(program):
    assert_parity(lambda x: program(x, x.t() * 2), lambda: [torch.ones(5, 5)])


def moved_view():
    view, other = torch.ones(24)[2:6], torch.full((4,), 0.5)
    return [view.set_(other), other]


def view_of_moved_data():
    view, other = torch.ones(24)[2:6], torch.full((4,), 0.5)
    view.data = other
    return [view, other]


def view_of_a_base_that_moved():
    base = torch.ones(4)
    view = base[:]
    return [view, base.set_(torch.full((4,), 0.5))]


@pytest.mark.parametrize("arguments", [moved_view, view_of_moved_data, view_of_a_base_that_moved])
def test_a_view_that_left_its_base_lies_where_it_was_moved(arguments):
    def program(view, other):
        view.mul_(3)
        other.add_(view)

    assert_parity(program, arguments)


@pytest.mark.parametrize("size", [(15,), (15, 1), (5, 3)], ids=str)
def test_dimensions_of_size_one_do_not_make_a_view_possible(size):
    assert_parity(lambda x: x.view(size), lambda: [torch.ones(15).as_strided((3, 1, 5), (1, 15, 3))], raises="RuntimeError")


@pytest.mark.parametrize("program", [lambda x: 2.0 ** x, lambda x: torch.pow(2, x), lambda x: torch.pow(x, 2.0)], ids="r** pow(2,x) pow(x,2)".split())
def test_a_power_of_a_number_has_the_strides_that_the_kernel_gives(program):
    assert_parity(program, lambda: [torch.ones(5, 4).t()])


def test_an_error_that_comes_after_a_part_of_a_list_was_written_and_is_caught():
    def program(a):
        mask = a > 1
        try:
            torch._foreach_add_([a, mask], [mask, a])
        except RuntimeError:
            pass

    a, b = torch.tensor([-2, 3]), torch.tensor([-2, 3])
    program(a)
    tracejit.jit(program, fallback="silent")(b)
    assert torch.equal(a, torch.tensor([-2, 4])) and torch.equal(a, b)


@pytest.mark.parametrize("program", [lambda x, s: torch.add(x, x, alpha=s) * 2, lambda x, s: x.clone().fill_(s) * 2], ids=["alpha", "fill"])
def test_a_number_that_the_dtype_does_not_hold_raises_though_others_were_taken(program):
    for value in (0.5, 2e38):
        assert_parity(lambda x: program(x, value), lambda: [torch.ones(3)])
    assert_parity(lambda x: program(x, 1e300), lambda: [torch.ones(3)], raises="RuntimeError")


def test_a_default_dtype_that_holds_for_some_calls_alone():
    def program(x):
        before = x // 2 / 2
        torch.set_default_dtype(torch.float64)
        try:
            return before, x / 2
        finally:
            torch.set_default_dtype(torch.float32)

    jfn = tracejit.jit(program, fallback="silent", executors=["torch"])
    assert [t.dtype for t in jfn(torch.arange(3))] == [torch.float32, torch.float64]


def test_an_error_of_an_empty_tensor_is_caught_where_another_was_taken():
    def program(x):
        try:
            return x.max(), x[:0].max()
        except RuntimeError:
            return x + 1

    assert_parity(lambda x: x.max(), lambda: [torch.ones(3)])
    assert_parity(program, lambda: [torch.ones(3)])


def test_a_tensor_set_to_memory_that_is_seen_under_another_dtype_first():
    assert_parity(lambda a, c: c.set_(a.imag).add_(1), lambda: [torch.ones(2, 3, dtype=torch.complex64), torch.zeros(2, 3)])


def test_a_random_op_without_a_kernel_raises_where_it_stands():
    def program(b):
        b.set_(b.clone())
        b.mul_(-1)
        b.random_(0, 5)

    assert_parity(program, lambda: [torch.ones(3, dtype=torch.complex64)], raises="RuntimeError")


def test_a_row_of_a_dim_that_is_none_is_refused():
    assert_parity(lambda x: (x.select(-2, -1), x + 1)[1], lambda: [torch.ones(12)], raises="IndexError")


@pytest.mark.parametrize("number,first", [(1, 0), (8, 6)])
def test_memory_beyond_a_storage_is_refused(number, first):
    for unread in (False, True):
        for over in (torch.as_strided, torch.as_strided_copy, lambda x, *to: torch.as_strided_scatter(x, torch.ones(2, 2), *to)):
            assert_parity(lambda x: (over(x, (2, 2), (2, 1)) * 2, x + 1)[unread:], lambda: [torch.ones(number)[first:]], raises="RuntimeError")


def test_memory_beyond_a_tensor_in_its_storage_is_not_refused_until_a_storage_is_smaller():
    def program(x):
        try:
            return x.as_strided((2, 2), (2, 1)) * 2
        except RuntimeError:
            return x + 1
    jitted, memory = tracejit.jit(program, fallback="error"), torch.arange(8.0)
    for x in (memory[:1], memory[:1].data, torch.ones(1), memory[4:5].detach(), memory[6:7], torch.ones(3)[:1].data, torch.ones(4)[:1]):
        assert torch.equal(jitted(x), program(x))


@pytest.mark.parametrize("shape", [(1, 4, 3, 1), (1, 4, 1, 3), (2, 1, 3, 1)])
def test_sizes_of_one_keep_the_strides_that_eager_gives_them(shape):
    """Fake tensors took such a view for a channels_last image."""
    def program(a):
        view = a.as_strided(shape, (shape[1], 1, shape[1] * shape[3], shape[1]) if shape[3] > 1 else (4, 1, shape[1], 1))
        a.add_(1)
        return view * 2, (view + 1).neg(), view.exp() * view
    a = torch.randn(64)
    got, want = tracejit.jit(program, fallback="error")(a.clone()), program(a.clone())
    assert [t.stride() for t in got] == [t.stride() for t in want]


def test_an_operation_of_the_users_own_runs_once_a_call():
    calls = []

    @torch.library.custom_op("tracejit_tests::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(x.shape))
        return x.clone()

    noted.register_fake(torch.empty_like)
    jitted = jit(lambda x: noted(x * 2) + 1)
    for _ in range(3):
        assert torch.equal(jitted(torch.ones(3, 4)), torch.full((3, 4), 3.0))
    assert calls == [(3, 4)] * 3


@pytest.mark.parametrize("shape, stride", [((4, 1), (1, 4)), ((3, 1, 2), (2, 7, 1)), ((1, 3), (1, 1)), ((2, 1, 4), (4, 9, 1))])
@pytest.mark.parametrize("program", [torch.isposinf, torch.isneginf, torch.sinc, F.silu, torch.clone])
def test_what_one_operation_is_made_of_keeps_its_strides(program, shape, stride):
    """Of dims of size 1, kernels without data choose other strides than those with data."""
    x = torch.rand(20).as_strided(shape, stride)
    for fused in (False, True):
        jitted = tracejit.jit(program, fallback="error", executor_options={"cpu": {"allow_single_op_fusion": fused}})
        assert jitted(x).stride() == program(x).stride()


@pytest.mark.parametrize("program", [
    lambda x: x.apply_(lambda v: v + 1), lambda x: x.map_(x * 2, lambda v, w: v + w), lambda x: x.map2_(x, x, lambda u, v, w: u + v + w),
    lambda x: torch.quantize_per_tensor(x, 0.5, 0, torch.qint8).dequantize()], ids=["apply", "map", "map2", "quantized"])
def test_what_leaves_torchs_operations_is_not_captured(program):
    with pytest.raises(tracejit.UnsupportedError):
        jit(program)(ones())
    assert torch.equal(tracejit.jit(program, fallback="silent")(ones()), program(ones()))


def test_the_base_of_a_view_is_the_argument_itself():
    assert jit(lambda x: x * (x[1:]._base is x))(ones()).tolist() == [1, 1]


def test_a_kernel_that_only_stores_is_called():
    """gcc 12 took the function of its loop for pure, once it read the sizes from a table."""
    def program(a, b):
        v = b.sqrt()
        v -= v.flip(0)
        v.div_(2)
        a.copy_(v.nan_to_num().clamp(0, 9))
    jitted = tracejit.jit(program, fallback="error")
    for offset, stride in ((0, (1, 4)), (1, (4, 1))):
        b = (torch.arange(48.0) % 7).as_strided((4, 4), (4, 1), 2 - 2 * offset)
        a = torch.arange(-20, 0).as_strided((4, 4), stride, offset)
        want = a.clone()
        program(want, b)
        jitted(a, b)
        assert torch.equal(a, want)


@pytest.mark.parametrize("program", [lambda a: F.batch_norm(a, a[0], a[1], training=True),
                                     lambda a: (F.batch_norm(b := a * 2, b[0], b[1], training=True), b),
                                     lambda a: F.batch_norm(a, a[0], a[1], weight=a[2], bias=a[3], training=True),
                                     lambda a: (F.batch_norm(a, m := torch.zeros(3), m, training=True), m)])
def test_running_statistics_that_are_rows_of_what_is_normalized_or_each_other(program):
    compiled = jit(program)
    for _ in range(2):
        a = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
        b = a.clone()
        torch.testing.assert_close(compiled(a), program(b))
        torch.testing.assert_close(a, b)


def test_new_memory_that_grows_is_not_taken_for_other_new_memory():
    def doubled_twice(a, b):
        before = torch.empty(0)
        torch.mul(a, 2, out=before)
        a.add_(b)
        torch.mul(a, 2, out=torch.empty(0))
        return before
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    for executors in (["torch"], ["cpu"]):
        jitted = tracejit.jit(doubled_twice, executors=executors, fallback="error")
        torch.testing.assert_close(jitted(a.clone(), b), doubled_twice(a.clone(), b), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 0, 4)])
def test_sums_of_nothing_keep_the_strides_that_eager_gives_them(shape):
    def program(x):
        total = x.sum(-2, keepdim=True).detach()
        return total.detach(), total
    x = torch.zeros(shape)
    assert [t.stride() for t in tracejit.jit(program, fallback="error")(x)] == [t.stride() for t in program(x)]
