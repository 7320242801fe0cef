"""`x[:, n]` where n is open: torch's indexing takes the value of an integer, its `select` takes an extent."""
from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Optional

import torch

from ..ir.extents import is_extent

_TAKEN = (int, slice, type(None), type(Ellipsis))


def view_of(func: Any, args: tuple, level: AbstractContextManager) -> Optional[torch.Tensor]:
    """What `x[index]` views, or what `x[index] = value` writes; None for other calls and for indices without an open integer.

    level: in which the steps are recorded. IndexError as eager raises it.
    """
    if func not in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
        return None
    x, index = args[0], args[1] if type(args[1]) is tuple else (args[1],)
    if not any(map(is_extent, index)) or not all(is_extent(i) or type(i) in _TAKEN for i in index) or not isinstance(x, torch.Tensor):
        return None
    with level:
        fits = _named(index) <= x.dim() and sum(i is Ellipsis for i in index) <= 1
        return _stepwise(x, index) if fits else None           # which raises


def _stepwise(x: torch.Tensor, index: tuple) -> torch.Tensor:
    dim = 0
    for k, i in enumerate(index):
        if i is Ellipsis:
            dim = x.dim() - _named(index[k + 1:])
        elif i is None:
            x, dim = x.unsqueeze(dim), dim + 1
        elif isinstance(i, int):
            x = x.select(dim, i)
        else:
            x, dim = x[(slice(None),) * dim + (i,)], dim + 1
    return x


def _named(index: tuple) -> int:
    """How many dims these are for."""
    return sum(type(i) is slice or isinstance(i, int) for i in index)
