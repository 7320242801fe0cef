"""Histories that autograd makes anew: of views whose base was written since.

On real tensors such a history is that of `as_strided`, whose gradient is laid out as the base is; fakes run the view's own calls
again, whose gradient is laid out as these leave it. Here the gradient is laid out as on real tensors.
"""
from __future__ import annotations

from typing import Any, Callable, Iterable

import torch
from torch.autograd.graph import get_gradient_edge

from ..torch_private import unseen_by_function_modes
from .histories import UNTOLD, history


class Remade:
    """Of the views of one recording: the version of the base at which each history was made. under: ids of the bases to whose
    histories those made anew lead; lost: was there one that fakes could not make, as of a view of a leaf that itself views what
    has none?"""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}                    # by id(fake)
        self.under: set[int] = set()
        self.lost = False

    def made(self, leaves: Iterable[Any]) -> None:
        """Note the views among the results of a call."""
        for t in leaves:
            if isinstance(t, torch.Tensor) and t.requires_grad and t._is_view():
                self._versions.setdefault(id(t), t._version)

    def met(self, leaves: Iterable[Any]) -> None:
        """The views among them are used as they are now."""
        for t in leaves:
            if id(t) in self._versions and self._versions[id(t)] != t._version:
                self._versions[id(t)] = t._version
                self.under.add(id(t._base))
                self.lost = self.lost or not t._base.requires_grad
                _lay_out(t)


def _lay_out(view: torch.Tensor) -> None:
    """The gradient that its history passes to that of the base gets the strides of the base."""
    base, node = view._base, history(view)
    if node in (None, UNTOLD) or _reading(view) != _reading(base):
        return                                                 # as of real views of complex memory, on real tensors, too
    edge = get_gradient_edge(base)
    end = (edge.node, edge.output_nr)
    while node is not None and end not in node.next_functions:
        node = node.next_functions[0][0] if node.next_functions else None
    if node is not None:                                       # a call on lists gives what it writes a history of its own
        node.register_hook(_strided_like(base.stride(), node.next_functions.index(end)))


def _strided_like(stride: tuple[int, ...], place: int) -> Callable[[tuple, tuple], tuple]:
    """A hook of a node that lays out one of the gradients that it passes on."""
    def hook(gradients: tuple, _: tuple) -> tuple:
        g = gradients[place]
        if g is None or g.stride() == stride or not g.numel():
            return gradients
        with unseen_by_function_modes():
            laid_out = torch.empty_strided(g.shape, stride, dtype=g.dtype, device=g.device).copy_(g)
        return (*gradients[:place], laid_out, *gradients[place + 1:])
    return hook


def _reading(t: torch.Tensor) -> tuple:
    return t.dtype, t.is_conj(), t.is_neg()
