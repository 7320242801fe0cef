"""`functools.cached_property` without the lock that Python 3.11 and older take for each value.

A value may be computed twice where two threads race; the last one stays, as in Python 3.12.
"""
from __future__ import annotations

from typing import Any, Callable, Generic, Optional, TypeVar

T = TypeVar("T")


class cached_property(Generic[T]):
    """A property that is computed when it is first read, and then kept in the instance's `__dict__`."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function, self.name, self.__doc__ = function, function.__name__, function.__doc__

    def __get__(self, instance: Any, owner: Optional[type] = None) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.function(instance)
        return value
