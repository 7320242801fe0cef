"""Inputs made up for a region: laid out as it takes them, memory shared as in the program, values that its checks accept."""
from __future__ import annotations

import torch

from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol, Trace

_SMALL = 8                   # integers are below it, and below every dimension where they may be indices


def region_trace(region: BoundSymbol) -> Trace:
    """What a region computes, as a trace of its own: runnable Python of the ops it replaces."""
    return Trace("region", tuple(region.args), region.subsymbols, tuple(region.flat_outputs), name=region.sym.name)


def storage_sizes(proxies: tuple[TensorProxy, ...]) -> dict[int, int]:
    """Bytes that each storage must have, by storage id, in order of first appearance."""
    sizes: dict[int, int] = {}
    for p in proxies:
        sizes[p.storage] = max(sizes.get(p.storage, 0), p.bytes.end if p.numel else 0)
    return sizes


def integer_range(region: BoundSymbol) -> tuple[int, int]:
    """low <= n < high: nonzero where that leaves a valid index, since an integer may be a divisor."""
    smallest = min((n for p in region.tensor_args for n in p.shape), default=_SMALL)
    high = max(min(_SMALL, smallest), 1)
    return int(high > 1), high


def sample_inputs(region: BoundSymbol, seed: int = 0) -> list[torch.Tensor]:
    """One tensor per argument of the region."""
    generator = torch.Generator().manual_seed(seed)
    first = {p.storage: p for p in reversed(region.args)}
    bases = {s: _filled(nbytes, first[s].dtype, integer_range(region), generator)
             for s, nbytes in storage_sizes(region.args).items()}
    return [bases[p.storage].view(p.dtype).as_strided(p.shape, p.stride, p.offset) for p in region.args]


def _filled(nbytes: int, dtype: torch.dtype, span: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    count = -(-nbytes // dtype.itemsize)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(count, generator=generator).to(dtype)
    low, high = (0, 2) if dtype is torch.bool else span
    return torch.randint(low, high, (count,), generator=generator).to(dtype)


def copies_sharing_memory(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Copies that share memory among each other as the originals do."""
    storages: dict[int, torch.UntypedStorage] = {}
    made = []
    for t in tensors:
        storage = t.untyped_storage()
        copied = storages.setdefault(storage.data_ptr(), storage.clone()) if storage.nbytes() else storage.clone()
        made.append(t.new_empty(0).set_(copied, t.storage_offset(), t.shape, t.stride()))
    return made
