"""Nested Python values to flat leaves and back: pytrees, dataclasses and objects that the program itself made."""
from __future__ import annotations

import copyreg
import dataclasses
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.layout,
         torch.memory_format, type(Ellipsis), range, slice)


@dataclass(frozen=True)
class Node:
    """An object with attributes: its type and the structure of its `__dict__` values."""

    type: type
    names: tuple[str, ...]
    children: tuple[Any, ...]            # a Structure each


@dataclass(frozen=True)
class Structure:
    """How leaves become the value again. `nodes[i]` replaces leaf i of the pytree `spec`."""

    spec: TreeSpec
    nodes: tuple[Optional[Node], ...]

    def unflatten(self, leaves: list) -> Any:
        return self._build(iter(leaves))

    def held(self) -> Iterator[Any]:
        """What is no leaf, and is the same whenever this is built: keys, the classes of objects and what fills a defaultdict."""
        pending = [self.spec]
        while pending:
            spec = pending.pop()
            pending += spec.children()
            yield from _in_context(spec.context)
        for node in filter(None, self.nodes):
            yield node.type
            for child in node.children:
                yield from child.held()

    def _build(self, leaves: Any) -> Any:
        return tree_unflatten([next(leaves) if n is None else _rebuild(n, leaves) for n in self.nodes], self.spec)


def _rebuild(node: Node, leaves: Any) -> Any:
    made = copyreg.__newobj__(node.type)
    for name, child in zip(node.names, node.children):
        object.__setattr__(made, name, child._build(leaves))
    return made


def _in_context(context: Any) -> Iterator[Any]:
    if type(context) in (list, tuple, dict):
        for item in context.values() if type(context) is dict else context:
            yield from _in_context(item)
    else:
        yield context


def flatten(value: Any, opens: Callable[[Any], bool]) -> tuple[list, Structure]:
    """(leaves, structure). `opens(x)` says whether an object leaf is taken apart by its attributes."""
    leaves, spec = tree_flatten(value, is_leaf=lambda x: isinstance(x, torch.Size))     # pytree makes Size a tuple
    flat, nodes = [], []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) or isinstance(leaf, PLAIN) or not opens(leaf):
            flat.append(leaf)
            nodes.append(None)
            continue
        children = [flatten(v, opens) for v in vars(leaf).values()]
        nodes.append(Node(type(leaf), tuple(vars(leaf)), tuple(s for _, s in children)))
        flat += [x for part, _ in children for x in part]
    return flat, Structure(spec, tuple(nodes))


def is_dataclass_value(x: Any) -> bool:
    """A dataclass instance that pytree does not open and that keeps its fields in `__dict__`."""
    return dataclasses.is_dataclass(x) and not isinstance(x, type) and hasattr(x, "__dict__")
