"""Byte regions: overlap, cover and density against sets of addresses."""
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tracejit.ir.memory import EXACT_LIMIT, ByteRegion, apart_modulo, byte_region, covers, overlaps
from tracejit.ir.proxy import is_racy

from cases.handmade import tensor

ITEMSIZES = (1, 2, 4, 8, 16)


def addresses(region):
    """Every byte of every element, in order, repeated where elements share it."""
    found = []
    for index in itertools.product(*map(range, region.size)):
        first = region.offset + sum(i * s for i, s in zip(index, region.stride))
        found += range(first, first + region.itemsize)
    return found


@st.composite
def regions(draw):
    dims = draw(st.integers(0, 3))
    sizes = draw(st.lists(st.integers(0, 4), min_size=dims, max_size=dims))
    strides = draw(st.lists(st.integers(0, 6), min_size=dims, max_size=dims))
    return byte_region(
        draw(st.integers(0, 8)), tuple(sizes), tuple(strides), draw(st.sampled_from(ITEMSIZES))
    )


many = settings(max_examples=400, deadline=None)


@many
@given(regions(), regions())
def test_overlaps_is_a_shared_byte(a, b):
    assert overlaps(a, b) == overlaps(b, a) == bool(set(addresses(a)) & set(addresses(b)))


@many
@given(regions(), regions())
def test_covers_is_a_subset_of_bytes(a, b):
    assert covers(a, b) == (set(addresses(b)) <= set(addresses(a)))


@many
@given(regions())
def test_overlaps_itself_is_a_byte_of_two_elements(region):
    assert region.overlaps_itself == (len(set(addresses(region))) < len(addresses(region)))


@many
@given(regions())
def test_dense_is_an_interval_filled_once(region):
    taken = addresses(region)
    if taken:
        assert region.dense == (sorted(taken) == [*range(region.offset, region.end)])


@many
@given(regions())
def test_extent_and_count(region):
    taken = addresses(region)
    assert region.numel * region.itemsize == len(taken)
    if taken:
        assert (region.offset, region.end) == (min(taken), max(taken) + 1)


@many
@given(regions(), regions())
def test_a_region_covers_and_meets_itself_and_cover_implies_overlap(a, b):
    assert covers(a, a) and overlaps(a, a) == (a.numel > 0)
    if covers(a, b) and b.numel:
        assert overlaps(a, b) and a.numel


@given(regions())
def test_equal_memory_at_equal_indices_compares_equal(region):
    """The stride of a dimension of size 1 says nothing."""
    other = byte_region(
        0, region.size, tuple(1000 if n == 1 else s for n, s in zip(region.size, (1, 2, 3))), 1
    )
    plain = byte_region(0, region.size, tuple(7 if n == 1 else s for n, s in zip(region.size, (1, 2, 3))), 1)
    assert other == plain and hash(other) == hash(plain)


# ------------------------------------------------------------------ against torch's own views

VIEWS = {
    "whole": lambda t: t,
    "transpose": lambda t: t.t(),
    "row": lambda t: t[1],
    "column": lambda t: t[:, 2],
    "diagonal": lambda t: t.diagonal(),
    "steps": lambda t: t[::2, 1::3],
    "expand": lambda t: t[0].expand(3, 6),
    "ints": lambda t: t.view(torch.int32),
    "bytes of a column": lambda t: t.view(torch.uint8)[:, 3],
    "scalar": lambda t: t[3, 3],
    "nothing": lambda t: t[2:2],
    "windows": lambda t: t.reshape(-1).unfold(0, 4, 2),
}


def region_of(t):
    return byte_region(t.storage_offset(), tuple(t.shape), t.stride(), t.element_size())


@pytest.mark.parametrize("first, second", [*itertools.product(VIEWS, VIEWS)])
def test_views_of_one_tensor(first, second):
    """What one view writes is seen through another iff they overlap, whole iff it covers that one."""
    base = torch.zeros(4, 6)
    a, b = VIEWS[first](base), VIEWS[second](base)
    marks = torch.zeros(base.numel() * 4, dtype=torch.bool)
    marks[addresses(region_of(a))] = True
    seen = marks[addresses(region_of(b))]
    assert overlaps(region_of(a), region_of(b)) == bool(seen.any())
    assert covers(region_of(a), region_of(b)) == bool(seen.all())


# ------------------------------------------------------------------ beyond the limit: wrong on the safe side

BIG = math.isqrt(EXACT_LIMIT) * 2


def test_large_dense_regions_are_exact():
    whole = byte_region(0, (BIG, BIG), (BIG, 1), 4)
    top, bottom = byte_region(0, (BIG // 2, BIG), (BIG, 1), 4), byte_region(
        BIG * BIG // 2, (BIG // 2, BIG), (BIG, 1), 4
    )
    assert whole.dense and not whole.overlaps_itself
    assert covers(whole, top) and covers(whole, bottom) and not covers(top, whole)
    assert overlaps(whole, top) and not overlaps(top, bottom)
    assert covers(
        whole, byte_region(0, (BIG, BIG), (1, BIG), 4)
    ), "a dense region covers any order of its bytes"


def test_large_strided_regions_err_on_the_safe_side():
    first, rest = byte_region(0, (BIG * BIG, 3), (5, 1), 4), byte_region(3, (BIG * BIG, 2), (5, 6), 4)
    assert overlaps(first, rest), "unsure: say that they meet"
    even = byte_region(0, (BIG * BIG,), (2,), 4)
    assert not covers(even, first)
    assert covers(even, even) and not even.overlaps_itself and not even.dense
    windows = byte_region(0, (BIG, BIG), (3, 2), 4)
    assert windows.overlaps_itself


def test_large_column_slices_are_told_apart():
    left, right = (byte_region(i, (BIG, BIG // 2), (BIG, 1), 4) for i in (0, BIG // 2))
    wider, across = byte_region(0, (BIG, BIG // 2 + 1), (BIG, 1), 4), byte_region(0, (BIG // 2, BIG), (1, BIG), 4)
    assert not overlaps(left, right) and not overlaps(right, left) and not overlaps(across, right)
    assert overlaps(wider, right) and overlaps(left, across)
    even, odd = (byte_region(i, (BIG * BIG,), (2,), 4) for i in (0, 1))
    assert not overlaps(even, odd) and overlaps(even, byte_region(0, (BIG * BIG,), (3,), 4))
    heads = [byte_region(64 * h, (4, BIG, 64), (8 * 64 * BIG, 8 * 64, 1), 2) for h in range(8)]
    assert not any(overlaps(a, b) for a, b in itertools.combinations(heads, 2))


@many
@given(regions(), regions(), st.integers(1, 12))
def test_apart_modulo_is_right_about_every_pair(a, b, m):
    first, second = ((r.offset, r.offset + r.itemsize) for r in (a, b))
    met = {x % m for x in range(*first)} & {x % m for x in range(*second)}
    assert apart_modulo(m, first, second) == (not met)


def test_small_regions_with_far_ends_are_exact():
    far = byte_region(0, (2, 3), (10**9, 7), 8)
    between = byte_region(10**8, (100,), (1,), 8)
    assert not overlaps(far, between) and overlaps(far, byte_region(10**9 + 14, (1,), (1,), 8))


def test_zero_dimensional_and_empty():
    scalar, nothing = byte_region(3, (), (), 4), byte_region(3, (0, 5), (5, 1), 4)
    assert scalar == ByteRegion(12, (), (), 4) and scalar.end == 16 and scalar.dense
    assert not overlaps(scalar, nothing) and covers(scalar, nothing) and not covers(nothing, scalar)
    assert not nothing.overlaps_itself


# ------------------------------------------------------------------ racy calls


def test_racy_is_a_read_at_another_index_or_a_double_write():
    x, again = tensor("x", (4, 4), 0), tensor("again", (4, 4), 0)
    xt, row, y = tensor("xt", (4, 4), 0, stride=(1, 4)), tensor("row", (4,), 0), tensor("y", (4, 4), 1)
    spread = tensor("spread", (4, 4), 0, stride=(0, 1))
    assert not is_racy([x, x], (0,)) and not is_racy([x, again], (0,)) and not is_racy([x, y], (0,))
    assert is_racy([x, xt], (0,)) and is_racy([x, row], (0,)) and is_racy([row, x], (0,))
    assert is_racy([spread, y], (0,)) and not is_racy([y, spread], (0,))
    assert is_racy([x, xt, y, y], (0, 1)) and is_racy(
        [x, y, again, y], (0, 1)
    ), "a foreach op writes one after another"
    assert not is_racy([x, 2, None], (0,))
