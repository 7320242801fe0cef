"""Values that eager refuses inside fused kernels: eager's error class, with memory as eager leaves it at that point.

And what is beyond the usual sizes: nothing at all, addresses beyond 32 bits, thousands of calls.
"""
import pytest
import torch
import torch.nn.functional as F

import tracejit
from tracejit.codegen import calls

from cases.parity import assert_parity

SINGLE = {"executor_options": {"cpu": {"allow_single_op_fusion": True}}}
ROWS = 5                                                       # of w; the last index is beyond them


def small():
    return torch.arange(20.0).reshape(ROWS, 4) / 7, torch.tensor([0, 1, 2, 7])


def column(i):
    return i.view(4, 1)


GATHERS = {
    "index": lambda w, i: w[i] * 3,
    "first half": lambda w, i: w[i][:2] * 2,
    "nobody reads it": lambda w, i: (w[i] * 1, w * 2)[1],
    "masked": lambda w, i: torch.where(column(i) < 5, w[i] * 2, 0.),
    "embedding": lambda w, i: F.embedding(i, w)[0] + 1,
    "of zeros": lambda w, i: F.embedding(i, torch.zeros(ROWS, 4)) * 2 + w[0],
    "of ones": lambda w, i: F.cross_entropy(torch.ones(4, ROWS), i),
    "of a range": lambda w, i: torch.arange(ROWS)[i] + torch.arange(4),
    "of one row expanded": lambda w, i: w[:1].expand(ROWS, 4)[i] + 1,
    "of one row": lambda w, i: w[:1][i] + 1,
    "in a cat": lambda w, i: torch.cat([w[i] * 2, w])[4:] + 1,
    "expanded and cut": lambda w, i: w.gather(0, column(i).expand(4, 4)).expand(2, 4, 4)[:, 1:3] + 1,
    "flipped and cut": lambda w, i: w.index_select(0, i).flip(0)[2:] * 2,
    "of a sum": lambda w, i: torch.gather(torch.zeros(ROWS, 4) + w[0], 0, column(i))[::2].exp(),
    "summed": lambda w, i: (w[:, :1].gather(0, column(i)) * 0 + 1).sum(0),
    "one element": lambda w, i: w.select_scatter(w[i][3] * 2, 0, 1),
    "target": lambda w, i: F.nll_loss(w[:4].log_softmax(1) * 2, i),
    "negative": lambda w, i: w[i - 9] + 1,
}
DIVISIONS = {
    "floor": lambda w, i: torch.full((4,), 6) // (i - 7) * 2,
    "half of it": lambda w, i: (torch.ones(4, dtype=torch.int64) // (i - 7)).float()[:2] + 1,
    "by the number 0": lambda w, i: (i // 0) * 2,
    "remainder": lambda w, i: torch.full((4,), 6).remainder(i - 7) * 2,
    "by zeros": lambda w, i: (i + 1) // torch.zeros(4, dtype=torch.int64),
    "nobody reads it": lambda w, i: (i // (i - 7), i + 1)[1],
}


@pytest.mark.parametrize("bad, error", [(g, "IndexError") for g in GATHERS.values()] + [(d, "RuntimeError") for d in DIVISIONS.values()],
                         ids=[*GATHERS, *(f"division: {name}" for name in DIVISIONS)])
def test_an_error_comes_after_the_writes_before_it_and_before_those_after_it(bad, error):
    def program(w, i, before, after):
        before.add_(1).mul_(w)
        result = bad(w, i)
        after.add_(1).mul_(w)
        return result
    if error == "IndexError" and any(bad is GATHERS[name] for name in ("expanded and cut", "of a sum", "summed")):
        error = "RuntimeError"                                 # of torch.gather
    assert_parity(program, lambda: [*small(), torch.ones(ROWS, 4), torch.ones(ROWS, 4)], raises=error, jit_options=SINGLE)


@pytest.mark.compiler
@pytest.mark.parametrize("place", [0, 777_777, (1 << 20) - 1])
@pytest.mark.parametrize("kind", ["gather", "division"])
def test_one_bad_element_of_a_million_is_seen_on_any_thread(kind, place, threads):
    def program(x, i, before, after):
        before += 1
        made = x[i] * 2 + before if kind == "gather" else x // i - 1
        after += made
        return made

    def make():
        i = torch.arange(1 << 20) % 1000 + 1
        i[place] = -(1 << 40) if kind == "gather" else 0
        return [torch.arange(1 << 20), i, torch.zeros(1 << 20, dtype=torch.int64), torch.zeros(1 << 20, dtype=torch.int64)]
    jfn = assert_parity(program, make, raises="IndexError" if kind == "gather" else "RuntimeError")
    assert jfn.last_traces[-1].regions


def test_a_kernel_reports_the_error_of_the_program_and_not_a_later_one():
    def program(w, i):
        return w[i] * 2, torch.full((4,), 6) // (i - 7)

    def other_order(w, i):
        return torch.full((4,), 6) // (i - 7), w[i] * 2
    assert_parity(program, small, raises="IndexError", jit_options=SINGLE)
    assert_parity(other_order, small, raises="RuntimeError", jit_options=SINGLE)


@pytest.mark.parametrize("fill", [
    lambda y, value: y.masked_fill(y > 1, value), lambda y, value: y.masked_fill_(y > 1, value) + 1], ids=["made", "in place"])
@pytest.mark.parametrize("dtype, value", [
    (torch.int8, 300), (torch.int8, -1), (torch.uint8, -1), (torch.uint8, -3.5), (torch.int32, float("nan")), (torch.bool, 3.5),
    (torch.float16, 70000.0), (torch.float16, float("-inf")), (torch.float16, 1 << 20), (torch.float32, 1e39), (torch.int64, 2.5)])
def test_filling_with_an_element_that_overflows_raises(fill, dtype, value):
    def program(x, value, before, after):
        before.add_(1).mul_(2)
        result = fill(x + 0, value)
        after.add_(1).mul_(2)
        return result

    def make():
        number = torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else torch.tensor(value)
        return [torch.arange(4).to(dtype), number, torch.ones(4), torch.ones(4)]
    try:
        program(*make())
        error = None
    except RuntimeError:
        error = "RuntimeError"
    assert_parity(program, make, raises=error)


@pytest.mark.parametrize("dtype, value", [(torch.int8, 300), (torch.uint8, -1), (torch.int32, float("inf")), (torch.float16, 70000.0)])
def test_padding_with_a_number_that_overflows_raises(dtype, value):
    assert_parity(lambda x: F.pad(x + 0, (1, 1), value=value), lambda: [torch.arange(4).to(dtype)], raises="RuntimeError")


def test_what_only_the_op_in_place_takes_stays_in_place():
    assert_parity(lambda m: (m | False).masked_fill_(m, 1j), lambda: [torch.arange(4) > 2])


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1e39, 3e9, -7.5])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_a_constant_is_cast_to_integers_as_torch_casts_it(dtype, value):
    def program(x):
        x[1:3] = torch.tensor(value)
        return x + 1
    assert_parity(program, lambda: [torch.arange(4).to(dtype)])


# ------------------------------------------------------------------ sizes

@pytest.fixture(scope="module")
def sparse_memory():
    """2 GB and some of bytes, of which pages exist only where they are touched."""
    return torch.from_numpy(__import__("numpy").zeros(2 ** 31 + 4096, dtype="int8"))


@pytest.mark.compiler
def test_addresses_beyond_32_bits(sparse_memory):
    def program(x, far):
        x.mul_(2).add_(far)
        return x + 1, far.flip(0) * 3

    rows, far = sparse_memory.as_strided((3, 16), (2 ** 30, 1)), sparse_memory[-16:]
    rows.copy_(torch.arange(48).reshape(3, 16))
    far.copy_(torch.arange(16))
    want = [rows.clone(), far.clone()]
    results = program(*want)
    jfn = tracejit.jit(program, fallback="error")
    got = jfn(rows, far)
    assert jfn.last_traces[-1].regions
    assert all(map(torch.equal, [*results, *want], [*got, rows, far]))


@pytest.mark.compiler
def test_a_gather_beyond_32_bits(sparse_memory):
    places = torch.tensor([5, 2 ** 31 + 7, 2 ** 31 + 4095, -1])
    sparse_memory[places] = torch.tensor([1, 2, 3, 4], dtype=torch.int8)
    jfn = tracejit.jit(lambda x, i: x[i] * 2 + 1, fallback="error", **SINGLE)
    assert jfn(sparse_memory, places).tolist() == [3, 5, 9, 9] and jfn.last_traces[-1].regions
    with pytest.raises(IndexError):
        jfn(sparse_memory, places + 4096)


@pytest.mark.compiler
def test_more_calls_than_a_region_holds():
    def program(x):
        for n in range(1100):
            x = x * 0.999 + n
        return x
    jfn = assert_parity(program, lambda: [torch.linspace(-1, 1, 7)], repeat=1)
    assert sum(len(r.subsymbols) for r in jfn.last_traces[-1].regions) == 2200


@pytest.mark.parametrize("program, error", [
    (lambda x: (x.exp() + 1).sum() * 2, None), (lambda x: (x * 2 + 1).sum(0) + 1, None), (lambda x: x.add_(1).mul_(2), None),
    (lambda x: torch.cat([x, x[:, :2] * 2], 1) + 1, None), (lambda x: (x * 2).softmax(1) + 1, None),
    (lambda x: (x + 1).amax(0), "IndexError"), (lambda x: ((x + 1).mean(), (x + 1).prod() * 3), None)],
    ids=["sum", "sum of rows", "in place", "cat", "softmax", "amax", "mean and prod"])
def test_of_no_elements(program, error):
    assert_parity(program, lambda: [torch.ones(0, 5)], raises=error)


def test_what_a_dtype_refuses_depends_on_the_kind_of_number():
    x = torch.arange(4, dtype=torch.uint8)
    for value in (-1.0, -1):
        assert_parity(lambda x: x.clamp(value, 2) + 0, lambda: [x.clone()])
    assert calls.fits(-1, torch.uint8) and not calls.fits(-1.0, torch.uint8)
