"""Values of Python state as keys: equal for values that a trace cannot tell apart, and for no others.

Nothing here keeps the user's modules, objects or tensors alive, and nothing runs the user's code: no `==`, no hash, no
property, no `__getattr__`.
"""
from __future__ import annotations

import array
import collections
import gc
import sys
import threading
import types
from typing import Any, Hashable, Iterable

import torch

from ..errors import UnsupportedError
from ..ir.extents import Given
from .identity import identity
from .numbers import Number


_STAND_INS = frozenset({Number, Given})           # for numbers of a capture: told by what they stand for


class _Marker:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


MISSING = _Marker("MISSING")
TENSOR = _Marker("TENSOR")

PLAIN = frozenset({
    int, bool, str, bytes, type(None), type(...), type(NotImplemented), range, torch.dtype, torch.device,
    torch.Size, torch.layout, torch.memory_format, float, complex, Number, Given,
})
CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
VIEWS = (types.MappingProxyType, *(type(view) for made in ({}, collections.OrderedDict()) for view in (
    made.keys(), made.values(), made.items())))
_BOUND = (types.BuiltinMethodType, types.MethodWrapperType)
_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
BUFFERS = (bytearray, array.array, memoryview)
HEAP_TYPE = 1 << 9
_DEEPEST = 40
_LARGEST_ARRAY = 1 << 16


def is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor; asks the type alone, which no mode and no proxy class can see."""
    return issubclass(type(value), torch.Tensor)


def is_container(value: Any) -> bool:
    return issubclass(type(value), CONTAINERS) and type(value) is not torch.Size


def is_numpy(value: Any) -> bool:
    """A numpy array or scalar: memory or a number, not an object with attributes."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(type(value), (numpy.ndarray, numpy.generic))


def bound_to(value: Any) -> Any:
    """The object whose method in C this is: `items.append`; MISSING for others, and for functions, which module or extension
    they may be of: those of pybind11 are bound to a record of what they call, which Python does not see into."""
    owner = value.__self__ if type(value) in _BOUND else MISSING
    kind = type(owner)
    return MISSING if owner is None or issubclass(kind, (type, types.ModuleType)) or kind.__module__ == "pybind11_builtins" else owner


def is_contents(value: Any) -> bool:
    """Is this nothing but what it holds, which may change: not told by its identity?"""
    kind = type(value)
    return (is_container(value) or kind in VIEWS or issubclass(kind, BUFFERS) or is_numpy(value) or bound_to(value) is not MISSING
            or bool(hidden(value)))


def is_iterator(value: Any) -> bool:
    """A generator, or an iterator in C: reading moves it, and where it stands cannot be seen or put back."""
    kind = type(value)
    return kind in _GENERATORS or not kind.__flags__ & HEAP_TYPE and hasattr(kind, "__next__")


def hidden(value: Any) -> str:
    """Why what the value holds cannot be seen, and what to do instead; "" if it can."""
    kind = type(value)
    if is_iterator(value):
        return f"a {kind.__name__} that was made before the call is used: make it inside, or pass its items"
    if any(base.__module__ == "_ctypes" for base in kind.__mro__):
        return f"memory of ctypes ({kind.__name__}) is used: use it outside, and pass what it gives"
    if is_numpy(value) and value.dtype.hasobject:
        return "a numpy array of objects is used: keep them in a list"
    return ""


def instance_dict(obj: Any) -> Any:
    """`obj.__dict__` past any override of attribute access; None where there is none."""
    try:
        return base_of(type(obj)).__getattribute__(obj, "__dict__")
    except (AttributeError, TypeError):
        return None


def base_of(kind: type) -> type:
    """The base class that gives `__dict__`: a class has a view of it, a thread's local object one per thread."""
    return type if issubclass(kind, type) else threading.local if issubclass(kind, threading.local) else object


def is_placed(kind: type) -> bool:
    """Objects that take no weak reference, and are nothing but their attributes: told by place and `id`.

    The attributes that are read are guarded from the place on, so another object at the same address is as good. Those of classes of
    the standard library, which fills them in as it goes, are not.
    """
    return kind.__weakrefoffset__ == 0 and kind not in PLAIN and not kind.__itemsize__ and all(
        base in _ATTRIBUTES_ALONE or "__slots__" in vars(base) and base.__module__ not in sys.stdlib_module_names
        for base in kind.__mro__)


_ATTRIBUTES_ALONE = (object, types.SimpleNamespace)


def freeze(value: Any, depth: int = 0) -> Hashable:
    """A hashable stand-in for `value`: equal for values that a trace cannot tell apart, and for no others."""
    kind = type(value)
    if kind in PLAIN:
        return (kind, repr(value)) if kind is float or kind is complex else (kind, value.node if kind in _STAND_INS else value)
    if issubclass(kind, torch.Tensor):
        return TENSOR
    if issubclass(kind, CONTAINERS):
        return _freeze_container(value, kind, depth)
    return _freeze_other(value, kind, depth)


def _freeze_container(value: Any, kind: type, depth: int) -> Hashable:
    if depth > _DEEPEST:
        raise UnsupportedError(f"a {kind.__name__} that is read contains itself, or is nested too deep: "
                               "pass what is needed of it")
    if issubclass(kind, dict):
        items = tuple((freeze_key(k), freeze(v, depth + 1)) for k, v in items_of(value))
        if issubclass(kind, collections.defaultdict):
            return (kind, items, freeze(value.default_factory))
        return (kind, items)
    items = tuple(freeze(v, depth + 1) for v in contents(value))
    return (kind, items, value.maxlen) if issubclass(kind, collections.deque) else (kind, items)


def freeze_key(key: Any) -> Hashable:
    return identity(key) if is_tensor(key) else freeze(key)


def _freeze_other(value: Any, kind: type, depth: int) -> Hashable:
    if kind is types.MethodType:
        return (kind, identity(value.__self__), identity(value.__func__))
    if bound_to(value) is not MISSING:
        return (kind, value.__name__, freeze(value.__self__, depth + 1))
    if why := hidden(value):
        raise UnsupportedError(why)
    if kind is slice:
        return (kind, freeze(value.start), freeze(value.stop), freeze(value.step))
    if kind in VIEWS:
        return (kind, *(freeze(inner, depth + 1) for inner in gc.get_referents(value)))
    if issubclass(kind, BUFFERS):
        return (kind, bytes(value))
    if is_numpy(value):
        if value.nbytes > _LARGEST_ARRAY:
            raise UnsupportedError(f"a numpy array of {value.nbytes} bytes is read from outside the call: "
                                   "pass a tensor instead")
        return (kind, str(value.dtype), value.shape, value.tobytes())
    return ("object", id(value), identity(kind)) if is_placed(kind) else ("object", identity(value))


def contents(value: Any) -> Iterable[Any]:
    """The items of a container as the base class iterates them: for a dict its values."""
    for base in CONTAINERS:
        if issubclass(type(value), base):
            return [item for _, item in items_of(value)] if base is dict else base.__iter__(value)
    return ()


def items_of(value: dict) -> Any:
    """The items of any dict, from the class that keeps their order: an OrderedDict has one of its own."""
    kind = collections.OrderedDict if issubclass(type(value), collections.OrderedDict) else dict
    return kind.items(value)


def safe_key(value: Any) -> Hashable:
    """`freeze` for a check at a call: what cannot be frozen equals nothing."""
    try:
        return MISSING if value is MISSING else freeze(value)
    except UnsupportedError:
        return object()
