"""What a recording hands out for objects that lie outside of torch's operations: a storage, a node of autograd's graph."""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from ..errors import UnsupportedError
from ..ir import prims
from ..ir.extents import as_given
from ..torch_private import unseen_by_function_modes
from .lines import user_line


def is_set_to(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Fakes have no memory to compare: same storage, same metadata."""
    return (a.untyped_storage()._cdata, a.shape, a.stride(), a.storage_offset()) == (
        b.untyped_storage()._cdata, b.shape, b.stride(), b.storage_offset())


class RecordedStorage:
    """What `untyped_storage()` gives in a recording: its size can be asked and changed, its memory is not there."""

    def __init__(self, level: Any, fake: torch.Tensor) -> None:
        self._level, self._of = level, fake

    def nbytes(self) -> int:
        with unseen_by_function_modes():
            return as_given(self._of.untyped_storage().nbytes())

    size = __len__ = nbytes

    def resize_(self, nbytes: int) -> "RecordedStorage":
        self._level.resize_storage(self._of, nbytes)
        return self

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(f"untyped_storage().{name} needs real memory: do it outside of the jitted function", where=str(user_line()))


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
