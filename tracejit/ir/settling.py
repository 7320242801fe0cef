"""A trace that was compiled for open sizes, for some sizes: numbers in the place of extents."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping

from .cached import cached_property
from .extents import Relations, is_extent
from .polynomial import Polynomial, Size
from .proxy import TensorProxy
from .trace import BoundSymbol, Trace


class Settling:
    """sizes: the values for which `relations` hold; inside: settle what regions are made of, too, which is for people."""

    def __init__(self, relations: Relations, sizes: Mapping[Size, int], inside: bool = False) -> None:
        self.relations, self.sizes, self.inside = relations, sizes, inside
        self._values: dict[Polynomial, int] = {}
        self._proxies: dict[TensorProxy, TensorProxy] = {}

    @cached_property
    def texts(self) -> tuple[int, ...]:
        """What stands for the extents in the text of kernels, by number."""
        return tuple(map(self._value, self.relations.texts))

    @property
    def met(self) -> list[Polynomial]:
        """What values were taken of."""
        return list(self._values)

    def _value(self, p: Polynomial) -> int:
        if p not in self._values:
            self._values[p] = p.at(self.sizes)
        return self._values[p]

    def leaf(self, x: Any) -> Any:
        """A number, or a tensor's proxy, for these sizes; anything else as it is."""
        if isinstance(x, TensorProxy):
            if x not in self._proxies:
                shape, stride = (tuple(map(self.leaf, numbers)) for numbers in (x.shape, x.stride))
                self._proxies[x] = replace(x, shape=shape, stride=stride, offset=self.leaf(x.offset))
            return self._proxies[x]
        return self._value(x.node.p) if is_extent(x) else x

    def call(self, b: BoundSymbol) -> BoundSymbol:
        settled, function = b.renamed(self.leaf), b.sym.fn
        if self.inside and b.subsymbols:
            settled = replace(settled, subsymbols=tuple(map(self.call, b.subsymbols)))
        return replace(settled, sym=replace(b.sym, fn=function.at(settled, self))) if hasattr(function, "at") else settled

    def trace(self, trace: Trace) -> Trace:
        """The trace that runs."""
        return trace.replace(inputs=tuple(map(self.leaf, trace.inputs)), output=tuple(map(self.leaf, trace.output)),
                             bound_symbols=tuple(map(self.call, trace.bound_symbols)))
