"""A call that takes gradients itself, such as a whole training step.

Its backward pass is part of the recording: what is left to tell is the `.grad` of leaves, and what became of results whose
history was used up.
"""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from ..errors import UnsupportedError
from ..ir import prims
from ..torch_private import run_backward, unseen_by_function_modes
from .joint import NoSplit

USED_UP = "Trying to backward through the graph a second time"


def refuse_hidden_hooks(level: Any, tensors: list[torch.Tensor]) -> None:
    """NoSplit where code of the user's runs in the backward pass: it is not watched there, and fakes do not carry it."""
    if level.calls_back or level.hooked or level.checkpointed:
        line = level.calls_back or next((level.asked_at[id(t)] for t in level.hooked), "")
        raise NoSplit("the backward pass within the call runs code of the user's: call backward outside", where=line)
    if any(has_hooks(t) for t in tensors if t.requires_grad):
        raise NoSplit("an argument has a hook: call backward outside")


def has_hooks(t: torch.Tensor) -> bool:
    return bool(t._backward_hooks or getattr(t, "_post_accumulate_grad_hooks", None))


def used_up(outputs: list, inputs: list[torch.Tensor], line: Callable[[torch.Tensor], str]) -> tuple[int, ...]:
    """The results that carry history of which autograd has freed what it kept. NoSplit for one that can still be used.

    line: where a result is made.
    """
    leaves = tuple(t for t in inputs if t.requires_grad)
    given = {id(t) for t in inputs}
    found = []
    for k, o in enumerate(outputs):
        if isinstance(o, torch.Tensor) and o.requires_grad and id(o) not in given:
            if o.grad_fn is None or not leaves:
                raise NoSplit("a result requires gradients without a history: detach it", where=line(o))
            try:
                run_backward((o,), (torch.empty_like(o),), True, False, leaves, allow_unreachable=True, accumulate_grad=False)
            except RuntimeError as error:
                if USED_UP not in str(error):
                    raise NoSplit(f"a result can give no gradients: detach it. Autograd says: {error}", where=line(o)) from error
                found.append(k)
            else:
                raise NoSplit("a result still carries gradients: detach it", where=line(o))
    return tuple(found)


class RecordedNode:
    """`grad_fn` of what a recording has made: it has a name, and takes hooks."""

    def __init__(self, level: Any, fake: torch.Tensor) -> None:
        self._level, self._of = level, fake

    @classmethod
    def of(cls, level: Any, fake: torch.Tensor) -> Optional["RecordedNode"]:
        return None if fake.grad_fn is None else cls(level, fake)

    def name(self) -> str:
        with unseen_by_function_modes():
            return self._of.grad_fn.name()

    def register_hook(self, hook: Callable) -> Any:
        return self._registered(prims.register_node_hook, hook)

    def register_prehook(self, hook: Callable) -> Any:
        return self._registered(prims.register_node_prehook, hook)

    def _registered(self, register: Callable, hook: Callable) -> Any:
        with unseen_by_function_modes():
            return self._level.call(register, (self._of, hook), {})

    def _refuse(self, *args: Any) -> Any:
        raise UnsupportedError("of a node of autograd's graph a trace has the name alone, and takes its hooks: ask for more outside",
                               where=str(self._level.source()))

    __eq__ = __hash__ = __repr__ = __str__ = __getattr__ = _refuse
