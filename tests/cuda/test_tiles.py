"""Slices written from their own neighbours: one kernel of blocks in any order, after one that saves what they read of each other."""
import random
import re

import pytest
import torch

import shim
import tracejit
from proof import ARCHITECTURES, assert_facts, exact, near, needs_nvrtc, prove, thin
from programs import values
from tracejit.codegen import cuda_tiles, tiles
from tracejit.codegen.cuda import LARGE
from tracejit.ir.prims import POSTPONED_COPY

pytestmark = needs_nvrtc


def heat(u):
    u[1:-1, 1:-1] = u[1:-1, 1:-1] + 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])


def with_diagonals(u):
    u[1:-1, 1:-1] = u[:-2, :-2] * 2 - u[2:, 2:] + u[:-2, 2:] * 3 - u[2:, :-2]


def of_a_volume(u):
    v = u.view(8, -1, u.shape[1])
    v[1:-1, 1:-1, 1:-1] += v[:-2, 1:-1, 1:-1] - v[2:, 1:-1, 1:-1] * 2 + v[1:-1, :-2, 1:-1] + v[1:-1, 1:-1, 2:] - v[:-2, 2:, :-2]


def from_above(u):
    u[3:] = u[3:] + u[:-3]


def from_below(u):
    u[:-2].copy_(u[2:] * 2)


def along_rows(u):
    u[:, 2:] = u[:, :-2] * 2


def of_radius_two(u):
    u[2:-2, 2:-2] = u[:-4, 2:-2] + u[4:, 2:-2] + u[2:-2, :-4] - u[2:-2, 4:] + u[1:-3, 3:-1]


def of_neighbours(u):
    v = u.view(-1)
    v[2:-1] = v[:-3] * 0.5 + v[3:] - v[1:-2]


def far_on_one_line(u):
    v = u.view(-1)
    v[40:-7] = v[:-47] - v[47:]


def of_every_third(u):
    v = u.view(-1)[:u.numel() // 3 * 3].view(-1, 3)[:, 1]
    v[:-9] = v[9:] - v[:-9]


def of_images(u):
    v = u.view(2, -1, u.shape[1])
    v[:, 1:] = v[:, :-1] * 2 + v[:, 1:]


def of_channels(u):
    v = u[:, :u.shape[1] // 3 * 3].unflatten(1, (-1, 3))
    v[:, 1:] = v[:, :-1] * 2 - v[:, 1:]


def of_a_transposed_view(u):
    v = u.t()
    v[1:-1, 2:] = v[:-2, :-2] + v[2:, 1:-1] - v[1:-1, 2:]


def beside_a_result(u):
    difference = u[1:] - u[:-1]
    u[1:] = difference * 2 + u[:-1]
    return difference, u.t()


def read_afterwards(u):
    u[1:] = u[:-1] * 2 + u[1:]
    return u.sum(1), u[5] * 2


def with_edges(u):
    v = u[:, :-1]
    v.copy_(torch.cat([v[:1], v[:-1]]) - torch.nn.functional.pad(v, (-1, 1)))


def of_others(u):
    u[1:, 1:] = torch.where(u[:-1, 1:] > 0, u[1:, :-1] * u[0, 1:], u[:-1, :-1])


PROGRAMS = (heat, with_diagonals, of_a_volume, from_above, from_below, along_rows, of_radius_two, of_neighbours, far_on_one_line,
            of_every_third, of_images, of_channels, of_a_transposed_view, beside_a_result, read_afterwards, with_edges, of_others)
TILES = {"as they are": {}, "small": {"SMALLEST": 256}, "of steps": {"SMALLEST": 2048, "EACH": (1,)}, "narrow": {"SMALLEST": 64, "WARP": 4}}


@pytest.fixture
def small(monkeypatch):
    """Tiles of which small tensors have several."""
    def cut(**changed):
        for name, value in {"FEWEST_TILES": 1 << 30, "WORTH": 0, **changed}.items():
            monkeypatch.setattr(tiles, name, value)
    return cut


def postponed(lowered):
    return [b for r in lowered.traces[-1].regions for b in r.subsymbols if b.sym is POSTPONED_COPY]


def check(fn, u, launches=None, **options):
    lowered, counts = prove(fn, u, close=near if fn is read_afterwards else exact, orders=tuple(shim.ORDERS), **options)
    assert len(postponed(lowered)) == 1
    assert "waiting[" in lowered.kernels[0].source             # no second pass over a temporary
    assert launches is None or len(lowered.kernels[0].launches) == launches
    return lowered.kernels[0], counts[0]


@pytest.mark.parametrize("cut", thin([*TILES][::-1], 3))
@pytest.mark.parametrize("fn", thin(PROGRAMS, 3), ids=lambda f: f.__name__)
def test_neighbours_in_tiles(fn, cut, small):
    small(**TILES[cut])
    check(fn, values((96, 101)), facts=not TILES[cut])


@pytest.mark.parametrize("dtype", thin([torch.float64, torch.uint8, torch.bfloat16, torch.bool, torch.float16, torch.int64, torch.int16], 2), ids=str)
def test_dtypes(dtype, small):
    def shifted(u):
        u[1:-1, :-1] = torch.where(u[2:, 1:] > 0, u[:-2, :-1], u[1:-1, 1:])
    small(**TILES["of steps"])
    check(shifted, values((120, 130), dtype), launches=2)


@pytest.mark.parametrize("shape", thin([(3, 4), (70, 33), (34, 34), (3, 700), (700, 3), (65, 66), (4, 35)], 2), ids=str)
def test_tiny_and_ragged_sizes(shape, small):
    small(**TILES["small"])
    check(heat, values(shape))


def test_a_tile_that_is_all_there_is_has_no_halo():
    kernel, _ = check(heat, values((90, 90)), launches=1)
    assert not kernel.code.scratch and kernel.bytes_read == kernel.bytes_written == 4 * 88 * 88


def test_bytes_of_the_halo_are_counted(small):
    small(**TILES["small"])
    kernel, counts = check(heat, values((130, 130)), launches=2)
    (mine,) = [int(n.sum()) for key, n in counts.stores.items() if not isinstance(key, str)]
    halo = sum(int(n.sum()) for key, n in counts.stores.items() if isinstance(key, str))
    assert mine == 128 * 128 and kernel.bytes_written == 4 * (mine + halo) and kernel.bytes_read == 4 * (mine + 2 * halo)


def test_64_bit_indices(small, monkeypatch):
    def shifted(u):
        u[1:, 1:] = u[:-1, :-1] * 2 - u[1:, 1:]
    small(**TILES["of steps"])
    monkeypatch.setattr(cuda_tiles, "dialect_of", lambda k: LARGE)
    check(shifted, values((120, 130)), launches=2)
    monkeypatch.undo()
    (kernel,) = tracejit.lower(shifted, torch.empty(70_000, 70_000, device="meta")).kernels
    assert "const i64 i" in kernel.code.text and len(kernel.launches) == 2
    for arch in ARCHITECTURES:
        assert_facts(kernel, arch)


def test_what_is_not_near_by_goes_through_a_temporary(small):
    def transposed(u):
        u[:, 1:] = u.t()[:, :-1] + u[:, 1:]
    def far(u):
        u.view(-1)[5_000:] = u.view(-1)[:-5_000] * 2
    def into_the_next_row(u):
        n, m = u.shape
        u[1:-1] = u.view(-1)[m + 1:m + 1 + (n - 2) * m].view(n - 2, m) * 2
    def picked(u):
        u[1:] = u[:-1] + u[(u[:-1, 0] > 0).long()]
    small(**TILES["small"], WORTH=3)
    for fn in (transposed, far, into_the_next_row):
        lowered, _ = prove(fn, values((96, 96)), close=exact, orders=tuple(shim.ORDERS), facts=False)
        assert "waiting[" not in "".join(k.source for k in lowered.kernels)
    lowered = tracejit.lower(picked, values((96, 96)))
    assert "waiting[" not in "".join(k.source for k in lowered.kernels)


@pytest.mark.parametrize("seed", thin(range(64), 16))
def test_random_stencils(seed, small):
    r = random.Random(seed)
    dims = r.randint(1, 3)
    reach, shape = [r.randint(0, 3) for _ in range(dims)], [r.randint(16, {1: 3000, 2: 90, 3: 24}[dims]) for _ in range(dims)]
    offsets = [[r.randint(-n, n) for n in reach] for _ in range(r.randint(1, 4))]
    order, step = r.sample(range(dims), dims), [r.choice([1, 1, 2]) for _ in range(dims)]

    def part(v, at):
        return v[tuple(slice(n + o, size - n + o) for n, o, size in zip(reach, at, v.shape))]

    def stencil(u):
        v = u.permute(order)[tuple(slice(None, None, n) for n in step)]
        part(v, [0] * dims).copy_(sum(part(v, at) * (n + 2) for n, at in enumerate(offsets)))
    small(SMALLEST=r.choice([64, 256, 1024]), EACH=r.choice([(1,), (8, 4, 2, 1)]), WARP=r.choice([1, 8, 32]))
    u = values(tuple(n * s for n, s in zip(shape, step)), r.choice([torch.float32, torch.int64, torch.bfloat16, torch.uint8]), seed)
    prove(stencil, u.permute(order).contiguous().permute([order.index(d) for d in range(dims)]), close=exact, orders=("random", "reversed"),
          facts=False)


# ------------------------------------------------------------ faults

@pytest.fixture
def planted(small):
    """Does the changed text fail?"""
    small(**TILES["of steps"])
    def fails(fn, order, change):
        u = values((120, 130))
        (kernel,) = tracejit.lower(fn, u).kernels
        text = change(kernel.code.text)
        assert text != kernel.code.text and len(kernel.launches) == 2
        with pytest.raises(shim.ShimError, match="a race"):
            shim.run_region(kernel.code, kernel.region, [u], order, text=text)
    return fails


@pytest.mark.parametrize("order", shim.ORDERS)
@pytest.mark.parametrize("fn", [heat, from_above, from_below, of_radius_two, of_a_transposed_view], ids=lambda f: f.__name__)
def test_a_halo_that_is_read_where_it_is_overwritten(fn, order, planted):
    planted(fn, order, lambda text: re.sub(r"\? halo\d \+ \([^?]*?\) : ", "&& 0 ? halo0 + (0) : ", text))


@pytest.mark.parametrize("order", shim.ORDERS)
def test_a_barrier_between_reads_and_writes_that_is_removed(order, planted):
    planted(heat, order, lambda text: text.replace("__syncthreads();", ""))


def test_values_that_wait_too_short(small, monkeypatch):
    small(**TILES["of steps"])
    whole = tiles._waits
    monkeypatch.setattr(tiles, "_waits", lambda *args: (found := whole(*args)) and (found[0], 0))
    with pytest.raises(shim.ShimError, match="a race"):
        check(from_above, values((120, 130)))
