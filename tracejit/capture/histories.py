"""Autograd histories, as a recording meets them: where an argument came from, and how results hang together.

In: tensors with history (fakes). Out: plain answers about the graph of nodes above them; nothing is changed in it.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Iterator, Optional

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

UNTOLD = "untold"


def history(t: torch.Tensor) -> Any:
    """`grad_fn`; UNTOLD for a view whose history autograd refuses to tell, or cannot make anew, since its base was written."""
    try:
        return t.grad_fn
    except (RuntimeError, IndexError):
        return UNTOLD


@dataclass(frozen=True)
class Start:
    """An argument's autograd state as the call met it. edge: where its gradient went, unless it is a leaf or a view."""

    requires_grad: bool
    history: Any
    edge: Optional[GradientEdge]

    @classmethod
    def of(cls, fake: torch.Tensor) -> "Start":
        inner = fake.requires_grad and not fake._is_view() and not fake.is_leaf
        return cls(fake.requires_grad, history(fake), get_gradient_edge(fake) if inner else None)

    def differs(self, fake: torch.Tensor) -> bool:
        return (self.requires_grad, self.history) != (fake.requires_grad, history(fake))


MADE_HERE = Start(False, None, None)


def nodes(*ends: Any) -> Iterator[Any]:
    """The nodes of a history, down from its ends, each once."""
    seen = set(ends) - {None}
    todo = list(seen)
    while todo:
        node = todo.pop()
        yield node
        following = {f for f, _ in node.next_functions if f is not None} - seen
        seen |= following
        todo += following


def leads_to(end: Any, edge: GradientEdge) -> bool:
    return any((edge.node, edge.output_nr) in node.next_functions for node in nodes(end))


def shown_leaves(results: list) -> tuple[set[int], set[int]]:
    """Ids of the results that are tensors, and of the leaves to which those that are views lead."""
    tensors = [t for t in results if isinstance(t, torch.Tensor)]
    ends = {history(t) for t in tensors if t.requires_grad and t._is_view()} - {None, UNTOLD}
    return {id(t) for t in tensors}, {id(node.variable) for node in nodes(*ends) if hasattr(node, "variable")}


def computed_from(results: list[torch.Tensor]) -> list[set[int]]:
    """For each result, the others that it is computed from."""
    own = {(r.grad_fn, r.output_nr): n for n, r in enumerate(results) if r.grad_fn is not None}
    return [{own[edge] for node in nodes(r.grad_fn) for edge in node.next_functions if edge in own} for r in results]


def reached(results: list[torch.Tensor], came: list) -> list[set]:
    """For each result the nodes of its history, down to the inputs (`came`) and other results."""
    ends = {edge_of(t) for t in (*came, *results)}
    return [_nodes_until(ends, r.grad_fn) for r in results]


def led_to(histories: list[set], targets: dict[int, Any]) -> list[frozenset[int]]:
    """For each history the targets, tensors or edges, to which it leads."""
    leaves = {id(t): k for k, t in targets.items() if isinstance(t, torch.Tensor) and t.is_leaf}
    ends = {edge_of(t): k for k, t in targets.items() if k not in leaves.values()}

    def target(edge: tuple) -> Optional[int]:
        variable = getattr(edge[0], "variable", None)          # of the node at a leaf; to ask the leaf for its node makes one
        return ends.get(edge) if variable is None else leaves.get(id(variable))
    return [frozenset({target(edge) for node in history for edge in node.next_functions} - {None}) for history in histories]


def groups(histories: list[set]) -> list[int]:
    """A number for each result, the same where histories meet. Who asks for the gradient of a result, or frees what it has kept
    for it, must not be led to others."""
    number = list(range(len(histories)))
    owner: dict[Any, int] = {}
    for n, history in enumerate(histories):
        for m in {number[owner.setdefault(node, n)] for node in history}:
            number = [n if k == m else k for k in number]
    return number


@functools.lru_cache(None)
def _saved_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


def _saved(node: Any) -> list[torch.Tensor]:
    if is_packed(node):
        return []
    if isinstance(node, torch.autograd.function.FunctionCtx):
        return list(node.saved_tensors)
    values = [getattr(node, name) for name in _saved_names(type(node))]
    return [t for v in values for t in (v if isinstance(v, tuple) else (v,)) if isinstance(t, torch.Tensor)]


def is_packed(node: Any) -> bool:
    """Do hooks hold what it keeps? To ask for that runs code: checkpoint's runs a function again."""
    if isinstance(node, torch.autograd.function.FunctionCtx):
        try:
            packed = [node._raw_saved_tensors]
        except RuntimeError:                                   # it has been freed
            return False
    else:
        packed = [getattr(node, "_raw" + name, ()) for name in _saved_names(type(node))]
    return any(getattr(p, "unpack_hook", None) is not None for part in packed for p in (part if isinstance(part, tuple) else (part,)))


def saved_by(node: Any) -> list[torch.Tensor]:
    """The tensors that a node keeps for its backward pass; none if one was written since, as that pass will say."""
    try:
        return _saved(node)
    except RuntimeError:
        return []


def checked_by(node: Any) -> list[torch.Tensor]:
    """Those of which the backward pass minds that they are written, whether it reads them or not: torch's own nodes unpack all that
    they keep, a node of the user's what its backward asks for. RuntimeError where that pass raises, wherever it leads: one was
    written since, or there is no derivative."""
    if node.name() == "torch::autograd::NotImplemented":
        raise RuntimeError("the derivative of a call is not implemented")
    return [] if isinstance(node, torch.autograd.function.FunctionCtx) else _saved(node)


def runs_once(node: Any) -> bool:
    """Does a second backward pass through it raise, unless the graph is retained?"""
    return is_packed(node) or node.name() == "torch::autograd::CopySlices" or bool(saved_by(node))


def kept_as_made(ends: dict[tuple, int], history: set) -> tuple[int, ...]:
    """Those of the `ends`, by their edges, that a later node of a history keeps: autograd minds that they are detached in place."""
    readers = [node for node in history if ends and any(edge in ends for edge in node.next_functions)]
    found = {ends.get(edge_of(t)) for node in readers for t in saved_by(node)}
    return tuple(sorted(found - {None}))


def sharing(histories: list[set]) -> tuple[frozenset[int], ...]:
    """For each history those, itself among them, with which it shares a node that runs once."""
    once = functools.lru_cache(None)(runs_once)
    return tuple(frozenset(m for m, other in enumerate(histories) if any(map(once, own & other))) for own in histories)


def edge_of(t: Any) -> tuple:
    """Of a tensor that is no leaf, or a `GradientEdge`."""
    return (t.grad_fn, t.output_nr) if isinstance(t, torch.Tensor) else (t.node, t.output_nr)


def _nodes_until(ends: set[tuple], node: Any) -> set:
    seen = {node} - {None}
    todo = list(seen)
    while todo:
        following = {f for f, k in todo.pop().next_functions if f is not None and (f, k) not in ends and not hasattr(f, "variable")}
        todo += following - seen
        seen |= following
    return seen


def stage_numbers(before: list[set[int]], groups: list[int]) -> tuple[int, ...]:
    """For each result the number of its stage: those before it have a lower one."""
    depth: dict[int, int] = {}
    for n in sorted(range(len(before)), key=lambda n: len(before[n])):        # what it is computed from comes first
        depth[n] = 1 + max((depth.get(m, 0) for m in before[n]), default=-1)
    found = sorted({(depth[n], groups[n]) for n in depth})
    return tuple(found.index((depth[n], groups[n])) for n in range(len(before)))


def summand_counts(results: list[torch.Tensor], targets: dict[int, Any]) -> dict[int, int]:
    """How many gradients autograd adds up for each target, a tensor or an edge: the edges that lead to it."""
    tensors = {target: t for target, t in targets.items() if isinstance(t, torch.Tensor)}
    edges: dict[Any, int] = {(t.node, t.output_nr): target for target, t in targets.items() if target not in tensors}
    edges.update(((t.grad_fn, t.output_nr), target) for target, t in tensors.items() if t.grad_fn is not None)
    leaves = {id(t): target for target, t in tensors.items() if t.is_leaf}
    found: dict[int, int] = {}
    for edge in (edge for node in nodes(*(r.grad_fn for r in results)) for edge in node.next_functions):
        leaf = getattr(edge[0], "variable", None)              # of the node that accumulates its gradient
        target = edges.get(edge) if leaf is None else leaves.get(id(leaf))
        if target is not None:
            found[target] = found.get(target, 0) + 1
    return found
