"""Calls that are alike: equal but for which tensors they work on. What is known of one's results holds for the other's."""
from __future__ import annotations

from typing import Hashable, Optional

import torch

from .proxy import TensorProxy

_EXACT = frozenset({int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
_BY_TEXT = frozenset({float, complex})       # NaN is not equal to itself, and 0.0 is to -0.0


def metadata_key(flat: list) -> Optional[Hashable]:
    """What decides on the results' metadata: of tensors their own, and which share memory; of other arguments type and value.

    None when one is of a kind that does not tell (a generator, a constant tensor).
    """
    parts: list[Hashable] = []
    homes: dict[int, int] = {}
    tensors = []
    for a in flat:
        kind = type(a)
        if kind is TensorProxy:
            parts.append((a.shape, a.stride, a.dtype, a.device, a.conj, a.neg, a.requires_grad, a.number))
            homes.setdefault(a.storage, len(homes))
            tensors.append(a)
        elif kind in _EXACT:
            parts.append((kind, a))
        elif kind in _BY_TEXT:
            parts.append((kind, repr(a)))
        else:
            return None
    if len(homes) < len(tensors):
        parts += [(homes[a.storage], a.offset) for a in tensors]
    return tuple(parts)


def structure_key(args: tuple, kwargs: dict) -> Hashable:
    """How a call's flat arguments are put together."""
    return (tuple([len(a) if isinstance(a, (list, tuple)) else -1 for a in args]),
            tuple([(k, len(a) if isinstance(a, (list, tuple)) else -1) for k, a in kwargs.items()]))
