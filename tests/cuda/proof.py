"""What is shown of a lowered program without a device: NVRTC's words on its kernels, and what they compute on the CPU shim."""
from __future__ import annotations

import re

import pytest
import torch

import shim
import tracejit
from tracejit.executors import nvrtc

ARCHITECTURES = ("sm_80", "sm_90")
needs_nvrtc = pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")


def thin(values, every):
    """Parameters of which the ordinary run takes one in `every`; the full run takes all."""
    return [v if n % every == 0 else pytest.param(v, marks=pytest.mark.full) for n, v in enumerate(values)]


def cloned(args):
    """Copies that alias and are laid out as `args` are."""
    storages = {}
    def copy(t):
        if not isinstance(t, torch.Tensor):
            return t
        s = t.untyped_storage()
        made = storages.setdefault(s.data_ptr(), s.clone())
        return torch.empty(0, dtype=t.dtype).set_(made, t.storage_offset(), t.shape, t.stride())
    return torch.utils._pytree.tree_map(copy, args)


def flat(x):
    return [t for t in torch.utils._pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]


def assert_facts(kernel, arch="sm_90"):
    return assert_compiled(kernel.code, kernel.compiled(arch))


def assert_compiled(code, compiled):
    """No spills, no stack, no local memory, no double precision without doubles; of pointwise kernels, half of the threads that
    a multiprocessor holds have room.

    CUDA's own sin, cos and tan keep the digits of pi that they reduce huge arguments by on a stack, and multiply them in double.
    """
    facts = nvrtc.facts_of(compiled)
    doubles = bool(re.search(r"double|\b(sin|cos|tan)f\(", code.text.split('extern "C" __global__', 1)[1]))
    for launch in code.launches:
        f = facts[launch.name]
        assert f.spills == 0 and (doubles or f.stack == f.local == 0), f
        assert doubles or not f.doubles, f
        assert f.shared <= 48 << 10
        blocks = min(65536 // (-(-f.registers // 8) * 8 * launch.block), (227 << 10) // max(f.shared, 1))
        pointwise = f"__launch_bounds__({launch.block}, 4) {launch.name}(" in code.text
        assert not pointwise or doubles or blocks * launch.block >= 1024, f
    return facts


def assert_counts(lowered, counts):
    """Each element that is stored is stored once, by one kernel; what a kernel loads full-size it loads once."""
    for counted in counts:
        for key, stores in counted.stores.items():
            assert isinstance(key, str) or int(stores.max()) <= 1, f"{key} is stored {int(stores.max())} times"


def prove(fn, *args, kernels=None, orders=("random",), close=None, facts=True, whole=True, **options):
    """Lower, compile, run on the shim, compare with eager: results and what was written to arguments.

    close: how to compare, by default within a few units in the last place. whole: nothing is left to torch.
    """
    close = close or near
    lowered = tracejit.lower(fn, *cloned(args), **options)
    if kernels is not None:
        assert sum(len(k.launches) for k in lowered.kernels) == kernels, [k.launches for k in lowered.kernels]
    if whole:
        left = [b.sym.name for b in lowered.traces[-1].bound_symbols if not b.is_region and not _is_view(b)]
        assert lowered.kernels and not left, f"left to torch: {left}"
    if facts:
        for k in lowered.kernels:
            for arch in ARCHITECTURES:
                assert_facts(k, arch)
    expected_args = cloned(args)
    with torch.no_grad():
        expected = flat(fn(*expected_args))
    for order in orders:
        given = cloned(args)
        results, counts = shim.run(lowered, flat(given), order)
        for got, want in zip(flat(results), expected, strict=True):
            close(got, want)
        for got, want in zip(flat(given), flat(expected_args), strict=True):
            close(got, want)
    assert_counts(lowered, counts)
    return lowered, counts


def _is_view(b):
    return not b.written and all(o.storage in {a.storage for a in b.tensor_args} for o in b.tensor_outputs)


def near(got, want):
    assert got.dtype is want.dtype and got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=_TOLERANCE.get(got.dtype, 0), atol=1e-6 if got.dtype.is_floating_point else 0, equal_nan=True)


def summed(got, want):
    """Sums in another order: as far from eager's as float's precision makes them, measured by the largest."""
    assert got.dtype is want.dtype and got.shape == want.shape
    if not got.dtype.is_floating_point:
        return exact(got, want)
    scale = float(want.double().nan_to_num(0, 0, 0).abs().max()) if want.numel() else 0
    torch.testing.assert_close(got, want, rtol=4 * _TOLERANCE[got.dtype], atol=_TOLERANCE[got.dtype] * max(scale, 1), equal_nan=True)


def exact(got, want):
    assert got.dtype is want.dtype and got.shape == want.shape
    got, want = got.contiguous().reshape(-1), want.contiguous().reshape(-1)
    nan = want.isnan()
    assert torch.equal(got.isnan(), nan) and torch.equal(got[~nan].view(torch.uint8), want[~nan].view(torch.uint8)), (got, want)


_TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-12, torch.bfloat16: 2 ** -7, torch.float16: 2 ** -10}
