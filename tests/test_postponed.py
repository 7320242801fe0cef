"""Slices written from their own neighbours: one kernel without a temporary, every row written when nobody reads it any more."""
import pytest
import torch

import tracejit
from tracejit.ir.prims import POSTPONED_COPY
from tracejit.passes.inplace_check import inplace_check


def heat(u):
    u[1:-1, 1:-1] = u[1:-1, 1:-1] + 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])


def from_above(u):
    u[3:] = u[3:] + u[:-3]


def from_below(u):
    u[:-2].copy_(u[2:] * 2)


def from_both(u):
    u[2:-1] = u[:-3] - u[3:] + u[1:-2]


def along_rows(u):
    u[:, 2:] = u[:, :-2] * 2


def of_a_slab(u):
    v = u.view(-1, 4, u.shape[1] // 4)
    v[1:, 1:] = v[:-1, :-1] + v[1:, 1:]


def of_neighbours(u):
    v = u.view(-1)
    v[2:-1] = v[:-3] * 0.5 + v[3:] - v[1:-2]


def of_every_third(u):
    v = u.view(-1)[:, None].view(-1, 3)[:, 1]
    v[:-9] = v[9:] - v[:-9]


def of_images(u):
    v = u.view(3, 500, -1)
    v[:, 1:] = v[:, :-1] * 2 + v[:, 1:]


def of_channels(u):
    v = u.view(2, 3, -1)
    v[..., :-1] = v[..., 1:] * 2 - v[..., :-1]


def of_large_slabs(u):
    v = u.view(70, 50, -1)[..., :500]
    v[:, 1:, 1:] += v[:, :-1, :-1] * 3


def read_afterwards(u):
    u[1:] = u[:-1] * 2 + u[1:]
    return u.sum(1), u[5] * 2


def beside_a_result(u):
    difference = u[1:] - u[:-1]
    u[1:] = difference * 2 + u[:-1]
    return difference


PROGRAMS = (heat, from_above, from_below, from_both, along_rows, of_a_slab, of_neighbours, of_every_third, of_images, of_channels,
            of_large_slabs, read_afterwards, beside_a_result)


def run(fn, u, threads=1):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return fn(u), u
    finally:
        torch.set_num_threads(before)


def check(fn, u, threads=1):
    """The kernels, of which the first postpones what it writes."""
    compiled = tracejit.jit(fn, fallback="error")
    for _ in range(2):
        (expected, memory), (found, written) = run(fn, u.clone(), threads), run(compiled, u.clone(), threads)
        torch.testing.assert_close(written, memory, rtol=0, atol=0)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    return compiled


def postponed(compiled):
    return [b for r in compiled.last_traces[-1].regions for b in r.subsymbols if b.sym is POSTPONED_COPY]


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_rows_beyond_the_cache_and_one_threads_share(fn, threads):
    compiled = check(fn, torch.randn(1500, 1400), threads)
    assert len(postponed(compiled)) == 1
    assert "places" in compiled.kernels[0].source              # no second pass, but a few rows that wait
    assert not [b for b in compiled.last_traces[-1].bound_symbols if b.sym.is_copy]


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.bool))
def test_dtypes(dtype):
    def shifted(u):
        u[1:-1, :-1] = torch.where(u[2:, 1:] > 0, u[:-2, :-1], u[1:-1, 1:])
    check(shifted, (torch.randn(300, 70) * 9).to(dtype), 2)


@pytest.mark.parametrize("rows", (64, 65, 71, 90, 128))
@pytest.mark.parametrize("behind, ahead", ((0, 0), (3, 0), (0, 4), (2, 5), (7, 1)))
def test_shares_that_hold_few_rows(rows, behind, ahead):
    """16 threads' worth of work on up to 16 threads: shares hardly larger than what they read of each other."""
    def reach(u):
        n = u.shape[0]
        u[behind:n - ahead, 1:] = u[:n - behind - ahead, :-1] + u[behind + ahead:, 1:] + u[behind:n - ahead, :-1]
    for threads in (1, 5, 16):
        check(reach, torch.randn(rows, 20_000), threads)


@pytest.mark.parametrize("size", (64 * 2048, 64 * 2048 + 1, 150_001))
@pytest.mark.parametrize("behind, ahead", ((1, 0), (0, 1), (2047, 2050), (5000, 1)))
def test_shares_of_neighbours(size, behind, ahead):
    def reach(u):
        u[behind:size - ahead] = u[:size - behind - ahead] * 0.5 + u[behind + ahead:] + u[behind:size - ahead]
    for threads in (1, 5, 16):
        check(reach, torch.randn(size), threads)


def test_what_is_not_in_rows_goes_through_a_temporary():
    def transposed(u):
        u[:, 1:] = u.t()[:, :-1] + u[:, 1:]
    def far(u):
        u.view(-1)[50_000:] = u.view(-1)[:-50_000] * 2
    for fn in (transposed, far):
        compiled = check(fn, torch.randn(300, 300), 2)
        assert "places" not in "".join(k.source for k in compiled.kernels)


def test_a_value_that_is_needed_is_whole():
    def returned(u):
        value = u[1:] + u[:-1]
        u[1:] = value
        return value
    assert not postponed(check(returned, torch.randn(300, 300)))


def test_what_is_read_before_the_write_keeps_its_place():
    def between(u, v):
        value = u[1:] + u[:-1]
        largest = torch.linalg.vector_norm(u.t() @ u)          # no kernel: it stands between the value and the write
        u[1:] = value
        return largest, v

    u = torch.randn(300, 300)
    mine, eager = u.clone(), u.clone()
    expected, found = between(eager, 1), tracejit.jit(between, fallback="error")(mine, 1)
    torch.testing.assert_close((mine, found), (eager, expected))


def test_an_index_out_of_range_leaves_memory_alone():
    def gathers(u, index):
        u[1:] = u[:-1] + u[index]
    compiled, u = tracejit.jit(gathers, fallback="error"), torch.randn(100, 40)
    good, bad = torch.arange(99), torch.full((99,), 200)
    for index in (good, bad, good):
        mine, eager = u.clone(), u.clone()
        raised = []
        for fn, memory in ((gathers, eager), (compiled, mine)):
            try:
                fn(memory, index)
            except IndexError as error:
                raised.append(type(error))
        assert len(raised) in (0, 2) and torch.equal(mine, eager)


def test_the_checker_wants_a_postponed_copy_last():
    def double(u):
        u[1:] = u[:-1] * 2
    compiled = check(double, torch.randn(100, 40))
    final = compiled.last_traces[-1]
    region = final.regions[0]
    first = [b for b in region.subsymbols if b.sym is POSTPONED_COPY] + [b for b in region.subsymbols if b.sym is not POSTPONED_COPY]
    moved = type(region)(region.sym, region.args, {}, region.output, region.source, tuple(first), region.modes, region.executor)
    with pytest.raises(tracejit.InplaceCopyError, match="postponed"):
        inplace_check(final.replace(bound_symbols=(moved,)), final)
