"""Numbers for objects, which tell them apart for good and keep none of them alive."""
from __future__ import annotations

import functools
import itertools
import weakref
from typing import Any, Hashable


class _Held:
    """Stands for an object that takes no weak reference: who keeps this keeps the object."""

    __slots__ = ("obj", "__weakref__")

    def __init__(self, obj: Any) -> None:
        self.obj = obj


class _Identities:
    """A number for each object, or a `_Held`. Unlike an `id` it is never used again. Nothing is kept alive."""

    def __init__(self) -> None:
        self._next = itertools.count()
        self._weak: dict[int, tuple[weakref.ref, int]] = {}
        self._held: weakref.WeakValueDictionary[int, _Held] = weakref.WeakValueDictionary()

    def __call__(self, obj: Any) -> Hashable:
        number = id(obj)
        found = self._weak.get(number)
        if found is not None and found[0]() is obj:
            return found[1]
        held = self._held.get(number)
        if held is not None:
            return held
        serial = next(self._next)
        try:
            self._weak[number] = (weakref.ref(obj, functools.partial(self._forget, number, serial)), serial)
        except TypeError:
            held = self._held[number] = _Held(obj)
            return held
        return serial

    def _forget(self, number: int, serial: int, _ref: weakref.ref) -> None:
        if self._weak.get(number, (None, None))[1] == serial:
            del self._weak[number]


identity = _Identities()
