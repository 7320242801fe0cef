"""Views of values: replaying view steps, and writing through them.

A view is the recorded call again. A value that is laid out differently from what was recorded is first copied into
the recorded layout: kernels choose their order of additions and of random draws by strides, so this keeps eager's bits.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..ir import prims
from ..ir.proxy import TensorProxy
from ..ir.symbol import aten_symbol
from ..ir.trees import map_leaves
from .alias import Aliases, ViewStep, view_arguments
from .builder import Builder

aten = torch.ops.aten
_AS_STRIDED, _RESHAPE, _DETACH = map(aten_symbol, (aten.as_strided.default, aten.reshape.default, aten.detach.default))
# How a write goes back through a view: by relabelling, by the inverse permutation, or by a scatter.
_RELABEL = frozenset({aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.default,
                      aten.squeeze.dim, aten.squeeze.dims, aten.alias.default, aten.detach.default})
_INVERSE = {aten.t.default: lambda v, args: (aten.t.default, [v]),
            aten.transpose.int: lambda v, args: (aten.transpose.int, [v, *args[1:]]),
            aten.permute.default: lambda v, args: (aten.permute.default, [v, _inverse(args[1])])}
_SCATTER = {aten.slice.Tensor: aten.slice_scatter.default, aten.select.int: aten.select_scatter.default,
            aten.diagonal.default: aten.diagonal_scatter.default}


def _inverse(dims: list[int]) -> list[int]:
    return sorted(range(len(dims)), key=lambda i: dims[i] % len(dims))


class ViewReplay:
    """Emits views into `builder`, each view of a name once."""

    def __init__(self, aliases: Aliases, builder: Builder) -> None:
        self.aliases, self.builder = aliases, builder
        self._made: dict[tuple[TensorProxy, TensorProxy], TensorProxy] = {}

    def replay(self, value: TensorProxy, chain: list[ViewStep]) -> TensorProxy:
        """`chain` of view steps applied to `value`, which stands for the first step's parent."""
        for step in chain:
            value = self.restride(value, step.parent)
            key = (value, step.proxy)
            if key not in self._made:
                self._made[key] = self._step(value, step)
            value = self._made[key]
        return value

    def _step(self, value: TensorProxy, step: ViewStep) -> TensorProxy:
        if step.call is None:
            return self._strided(self.restride(value, step.parent, always=value.offset != step.parent.offset), step)
        args, kwargs = view_arguments(step, value)
        shift = value.bytes.offset - step.parent.bytes.offset

        def here(o: Any) -> Any:
            """A result of the call, where it lies in the storage of `value`; all results are made at once."""
            if not isinstance(o, TensorProxy):
                return o
            self._made[value, o] = replace(o, name=self.builder.new_name(), storage=value.storage,
                                           offset=o.offset + shift // o.dtype.itemsize)
            return self._made[value, o]
        self.builder.bind(step.call.sym, args, kwargs, map_leaves(here, step.call.output))
        return self._made[value, step.proxy]

    def _strided(self, value: TensorProxy, step: ViewStep) -> TensorProxy:
        p, root = step.proxy, step.parent
        if value.requires_grad and step.detached:              # the views that are passed over led no gradients on
            detached = replace(value, name=self.builder.new_name(), requires_grad=False)
            value = self.builder.bind(_DETACH, (value,), {}, detached)
        out = replace(p, name=self.builder.new_name(), storage=value.storage)
        if p.reading != root.reading:
            args = (value, list(p.shape), list(p.stride), p.offset, p.dtype, p.conj, p.neg)
            return self.builder.bind(prims.REGION_VIEW, args, {}, out)
        return self.builder.bind(_AS_STRIDED, (value, list(p.shape), list(p.stride), p.offset), {}, out)

    # ------------------------------------------------------------ layout

    def restride(self, value: TensorProxy, like: TensorProxy, *, always: bool = False) -> TensorProxy:
        """`value` in memory laid out like `like`: itself where it is so already, else a copy."""
        if not always and value.same_layout(like) and value.stride == like.stride:
            return value
        out = replace(like, name=self.builder.new_name(), storage=self.builder.new_storage(), offset=0, conj=False, neg=False)
        return self.builder.bind(prims.RESTRIDE, (value, list(like.shape), list(like.stride)), {}, out)

    # ------------------------------------------------------------ writing

    def scatter(self, base: TensorProxy, root: TensorProxy, written: TensorProxy, value: TensorProxy) -> TensorProxy:
        """`base`, which stands for `root`, with `value` written into the view `written`."""
        if written.same_view(root):
            return value
        chain = self.aliases.chain(written)
        known = (_RELABEL, _INVERSE, _SCATTER)
        if self.aliases.top(written) is root and all(
                s.call is not None and any(s.call.sym.overload in table for table in known) for s in chain):
            return self._put(base, chain, value)
        w = written
        offset = (w.bytes.offset - root.bytes.offset) // w.dtype.itemsize
        args = (self.restride(base, root), value, list(w.shape), list(w.stride), offset, w.dtype, w.conj, w.neg)
        return self.builder.bind(prims.WRITE_REGION, args, {}, self.builder.fresh(root))

    def _put(self, base: TensorProxy, chain: list[ViewStep], value: TensorProxy) -> TensorProxy:
        if not chain:
            return value
        step, rest = chain[0], chain[1:]
        func, args, kwargs = step.call.sym.overload, step.call.args, step.call.kwargs
        if rest:
            value = self._put(self.replay(base, [step]), rest, value)
        if func in _RELABEL:
            return value if value.shape == base.shape else self.builder.call(_RESHAPE, value, list(base.shape))
        if func in _INVERSE:
            inverse, inverse_args = _INVERSE[func](value, args)
            return self.builder.call(aten_symbol(inverse), *inverse_args)
        return self.builder.call(aten_symbol(_SCATTER[func]), base, value, *args[1:], **kwargs)
