"""A call that takes gradients itself, such as a whole training step.

Its backward pass is part of the recording: what is left to tell is the `.grad` of leaves, and what became of results whose
history was used up.
"""
from __future__ import annotations

from typing import Any, Callable

import torch

from ..torch_private import run_backward
from .joint import NoSplit

USED_UP = "Trying to backward through the graph a second time"


def refuse_hidden_hooks(level: Any, tensors: list[torch.Tensor]) -> None:
    """NoSplit where code of the user's runs in the backward pass: it is not watched there, and fakes do not carry it."""
    if level.calls_back or level.hooked:                       # what checkpoint runs again was watched before
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
