"""The programs that pin the in-place semantics down, each with its number of copies, small and large."""
import operator

import pytest
import torch
import torch.nn.functional as F

from cases.parity import assert_parity, copied_elements, copies

SIZES = [4, 1024]
both_sizes = pytest.mark.parametrize("n", SIZES)


def numbers(*shape, dtype=torch.float32):
    """Small exact values, different from their neighbours in every direction."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 251 - 120).to(dtype).reshape(shape)


def test_conv_bias_relu_has_no_copies():
    def program(x, w, b):
        return (F.conv2d(x, w) + b).relu_() + 1

    for n in (4, 64):
        jfn = assert_parity(program, lambda: [numbers(2, 3, n, n), numbers(4, 3, 3, 3), numbers(4, 1, 1)])
        assert copies(jfn) == 0


@both_sizes
def test_relu_of_an_argument_is_one_copy_into_it(n):
    def program(a, b):
        return a.relu_() + b.relu()

    jfn = assert_parity(program, lambda: [numbers(n, n), numbers(n, n) + 1])
    assert copies(jfn) == 1
    assert copied_elements(jfn) == [n * n]


@both_sizes
def test_a_read_before_an_in_place_op_sees_the_old_value(n):
    def program(a, b):
        c = a + b
        return c.sigmoid().add(c.relu_())

    jfn = assert_parity(program, lambda: [numbers(n, n) / 64, numbers(n, n) / 32])
    assert copies(jfn) == 0


@both_sizes
@pytest.mark.parametrize("return_flat", [False, True])
def test_writes_through_a_flattened_intermediate(n, return_flat):
    def program(a, b):
        c = torch.exp(a)
        d = torch.tanh(b)
        e = c.flatten()
        e += d.flatten()
        d.div_(a)
        return (c, d, e) if return_flat else (c, d)

    jfn = assert_parity(program, lambda: [numbers(n, n) / 64 + .25, numbers(n, n) / 32])
    assert copies(jfn) == 0
    if return_flat:
        c, _, e = jfn(numbers(n, n) / 64 + .25, numbers(n, n) / 32)
        assert c.data_ptr() == e.data_ptr()


AUGMENTED = [
    (operator.iand, torch.int32), (operator.ior, torch.int32), (operator.ixor, torch.int32),
    (operator.iand, torch.bool), (operator.ior, torch.bool), (operator.ixor, torch.bool),
    (operator.ilshift, torch.int32), (operator.irshift, torch.int32),
    (operator.ifloordiv, torch.float32), (operator.ifloordiv, torch.int32),
    (operator.imod, torch.float32), (operator.imod, torch.int32), (operator.ipow, torch.float32),
    (operator.iadd, torch.bfloat16), (operator.isub, torch.int32), (operator.imul, torch.float32),
    (operator.itruediv, torch.float32),
]


@both_sizes
@pytest.mark.parametrize("op, dtype", AUGMENTED, ids=lambda p: getattr(p, "__name__", str(p)))
def test_augmented_assignment(op, dtype, n):
    def on_intermediate(a, b):
        c = a.clone()
        c = op(c, b)
        return c, c.flatten()

    def on_argument(a, b):
        before = a
        a = op(a, b)
        return a is before

    def make():
        right = torch.arange(n * n).reshape(n, n) % 3 + 1
        return [numbers(n, n, dtype=dtype), right.to(dtype)]

    assert copies(assert_parity(on_intermediate, make)) == 0
    jfn = assert_parity(on_argument, make)
    assert copied_elements(jfn) == [n * n]


@pytest.mark.parametrize("rows", [8, 1024])
def test_slice_assignment_writes_its_rows_only(rows):
    def program(x):
        x[:5] = 0
        return 2 * x

    def through_a_view(x):
        y = x[:2]
        y[:5] = 0
        return 2 * x

    jfn = assert_parity(program, lambda: [numbers(rows, rows)])
    assert all(elements == 5 * rows for elements in copied_elements(jfn))
    assert copies(jfn) <= 1
    jfn = assert_parity(through_a_view, lambda: [numbers(rows, rows)])
    assert all(elements == 2 * rows for elements in copied_elements(jfn))
    assert copies(jfn) <= 1


@pytest.mark.parametrize("n", [5, 1024])
def test_metadata_of_the_argument_changes(n):
    def program(x):
        x.unsqueeze_(2)
        return x * 2

    jfn = assert_parity(program, lambda: [numbers(n, n)])
    assert copies(jfn) == 0
    x = numbers(n, n)
    assert jfn(x).shape == x.shape == (n, n, 1)


@both_sizes
def test_reshape_that_copies_leaves_the_argument_alone(n):
    def program(a):
        a[:, :-1].reshape(-1).add_(1)
        return a * 2

    jfn = assert_parity(program, lambda: [numbers(n, n)])
    assert copies(jfn) == 0


@both_sizes
def test_reshape_that_views_writes_the_argument(n):
    def program(a):
        a.reshape(-1).add_(1)

    jfn = assert_parity(program, lambda: [numbers(n, n)])
    assert copied_elements(jfn) == [n * n]


def add_transposed_clone(x):
    x += x.t().clone()


def add_flip(x):
    x += x.flip(0)


def shift_rows(h):
    h[1:] = h[:-1].clone()


@both_sizes
@pytest.mark.parametrize("program", [add_transposed_clone, add_flip, shift_rows])
def test_reads_of_the_destination_at_another_index(program, n):
    jfn = assert_parity(program, lambda: [numbers(n, n)])
    rows = n - 1 if program is shift_rows else n
    assert copied_elements(jfn) == [rows * n]


@both_sizes
def test_adding_its_own_transpose_raises_and_leaves_it_alone(n):
    def program(x):
        x += x.t()

    def make():
        return [numbers(n, n)]

    jfn = assert_parity(program, make, raises="RuntimeError")
    x = numbers(n, n)
    with pytest.raises(RuntimeError, match="memory|overlap"):
        jfn(x)
    assert torch.equal(x, numbers(n, n))


@both_sizes
def test_arguments_that_alias_see_each_others_writes(n):
    def program(a, b):
        a.add_(1)
        c = b * 2
        b.mul_(3)
        return c, a.sum(), b + 0

    def make():
        x, y, z = numbers(n, n), numbers(n, n), numbers(n, n)
        return [[numbers(n, n), numbers(n, n)], [x, x], [y, y[1:]], [z.view(-1), z], [x, x]]

    assert_parity(program, make, multi=True)


@both_sizes
def test_index_assignment_through_a_flat_view_scatters_in_place(n):
    def program(buf, idx, val):
        buf.view(-1)[idx] = val
        return buf

    jfn = assert_parity(program, lambda: [numbers(n, n), torch.tensor([3, 1, 7]), numbers(3)])
    final = jfn.last_traces[-1]
    assert copies(jfn) == 0
    assert final.count("clone") == 0


@pytest.mark.parametrize("rows, columns", [(4, 4), (32768, 1024)])
def test_adding_to_one_row_writes_one_row(rows, columns):
    def program(x):
        x[0].add_(1)

    jfn = assert_parity(program, lambda: [torch.zeros(rows, columns)])
    assert copied_elements(jfn) == [columns]


@pytest.mark.parametrize("positions", [4, 8192])
def test_writing_one_cache_position_writes_one_position(positions):
    def program(cache, k):
        cache[:, :, 3] = k
        return cache[:, :, :4].sum(-1)

    def make():
        return [torch.zeros(2, 4, positions, 8), numbers(2, 4, 8)]

    jfn = assert_parity(program, make)
    assert copied_elements(jfn) == [2 * 4 * 8]


@both_sizes
def test_two_full_overwrites_are_one_copy(n):
    def program(x, a, b):
        x.copy_(a)
        x.copy_(b)
        return x

    jfn = assert_parity(program, lambda: [numbers(n, n), numbers(n, n) + 1, numbers(n, n) + 2])
    assert copied_elements(jfn) == [n * n]


@both_sizes
def test_mutation_of_an_intermediate_leaves_no_copy(n):
    def program(x):
        y = x * 2
        y[0] = 1
        y[:, 1:].add_(y[:, :1].clone())
        y.t()[2].mul_(3)
        return y, y.sum()

    assert copies(assert_parity(program, lambda: [numbers(n, n)])) == 0


@both_sizes
def test_disabling_the_inplace_check_changes_nothing_else(n):
    def program(x, y):
        x[1:].add_(y[:-1])
        return x.t() * y

    make = lambda: [numbers(n, n), numbers(n, n) + 1]  # noqa: E731
    checked = assert_parity(program, make)
    unchecked = assert_parity(program, make, jit_options={"disable_inplace_copy_check": True})
    assert body(checked) == body(unchecked)


def body(jfn):
    """The final trace as text without its first line, which says how long the stage took."""
    return str(jfn.last_traces[-1]).split("\n", 1)[1]
