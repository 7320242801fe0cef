"""What may leave a call, in its result or in what it stores: tensors, plain values, objects that their attributes make up,
and what was there before the call. Whatever else the call makes would be the same object after every call."""
from __future__ import annotations

import sys
import types
from typing import Any, Optional

import torch
from torch.utils._pytree import tree_leaves

from ..errors import UnsupportedError
from ..ir.trace import BoundSymbol
from .fakes import is_fake
from .stand_ins import RecordedStorage
from .known import OPERATORS
from .numbers import Number
from .reads import StateReads
from .structure import PLAIN

_BY_NAME = (type, types.FunctionType)
_APART = (*_BY_NAME, types.ModuleType, types.BuiltinFunctionType, torch.Size, torch.nn.Module, torch.Generator, RecordedStorage, *OPERATORS)


def is_opened(x: Any, reads: StateReads) -> bool:
    """An object that the call made, and that is made anew of its attributes."""
    if not hasattr(x, "__dict__") or isinstance(x, _APART) or reads.knows(x) or not _is_made_of_attributes(type(x)):
        return False
    return id(x) not in reads.provisional or any(is_fake(t) for t in tree_leaves(vars(x)))


def refuse_to_leave(x: Any, reads: StateReads) -> None:
    """UnsupportedError unless x, which is neither a tensor nor opened, may be the same in all results."""
    if not _may_leave(x, reads):
        kind = "Tensor" if isinstance(x, torch.Tensor) else type(x).__name__
        raise UnsupportedError(f"an object of type {kind} made by the function leaves it: return the tensors that it holds")


def _may_leave(x: Any, reads: StateReads) -> bool:
    if isinstance(x, slice):
        return all(_may_leave(part, reads) for part in (x.start, x.stop, x.step))
    if type(x) in (tuple, frozenset):                          # a key
        return all(_may_leave(item, reads) for item in x)
    if isinstance(x, types.BuiltinFunctionType) and (x.__self__ is None or isinstance(x.__self__, (type, types.ModuleType))):
        return True
    if isinstance(x, _BY_NAME) and _is_named(x) or isinstance(x, (torch.Size, types.ModuleType, *OPERATORS)):
        return True
    if isinstance(x, type) and any(type(known.obj) is x and reads.knows(known.obj) for known in reads.state.objects.values()):
        return True                                            # the class of an object that was there before
    return type(x) is Number or isinstance(x, PLAIN) and not getattr(x, "__dict__", None) or reads.knows(x)


def _is_named(x: Any) -> bool:
    """Is this a class or a function that its module holds by its name, as pickle asks?"""
    found: Any = sys.modules.get(x.__module__)
    for name in x.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is x


def _is_made_of_attributes(kind: type) -> bool:
    """Does `__dict__` hold all of such an object: no items, no slots, nothing that its class keeps in C?"""
    if kind is types.SimpleNamespace:
        return True
    for base in kind.__mro__[:-1]:
        made = vars(base).get("__new__")
        if made is not None and not isinstance(made, staticmethod):
            return False
        if any(isinstance(member, types.MemberDescriptorType) for member in vars(base).values()):
            return False
    return True


def raises_after_a_move(calls: list[BoundSymbol], of_inputs: set[int]) -> Optional[BoundSymbol]:
    """The call that may raise on values and comes after an input's metadata moved, which an error would show to who is outside."""
    moved = False
    for b in calls:
        if moved and b.sym.may_raise([a.dtype for a in b.tensor_args]):
            return b
        moved = moved or b.sym.moves_metadata and any(p.storage in of_inputs for p in b.written)
    return None
