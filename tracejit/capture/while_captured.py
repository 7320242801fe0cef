"""Changes to torch and to the standard library for as long as a capture runs in any thread."""
from __future__ import annotations

import functools
import sys
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from ..errors import UnsupportedError
from ..torch_private import DISTRIBUTED_WRAPPERS
from .lines import user_line


class WhileCaptured:
    """`with changed.on()`: enter it before a profile hook is set, and leave it after that: an interrupt that comes in a hook takes the
    place of the call that the hook was told of, here of the release of the lock."""

    def __init__(self, change: Callable[[], None], undo: Callable[[], None]) -> None:
        self.change, self.undo = change, undo
        self._lock, self._captures = threading.Lock(), 0

    @contextmanager
    def on(self) -> Iterator[None]:
        with self._lock:
            self._captures += 1
            self.change()
        try:
            yield
        finally:
            with self._lock:
                self._captures -= 1
                if not self._captures:
                    self.undo()


@contextmanager
def distributed_wrappers_refused(active: Callable[[], Any]) -> Iterator[None]:
    """A module that is wrapped for several processes runs collectives in hooks that no trace shows. active: what captures in this
    thread, or None."""
    found = [(getattr(sys.modules[module], kind), method) for module, kind, method in DISTRIBUTED_WRAPPERS if module in sys.modules]
    before = [getattr(kind, method) for kind, method in found]
    for (kind, method), original in zip(found, before):
        setattr(kind, method, _refusing(kind.__name__, original, active))
    try:
        yield
    finally:
        for (kind, method), original in zip(found, before):
            setattr(kind, method, original)


def _refusing(name: str, original: Callable, active: Callable[[], Any]) -> Callable:
    @functools.wraps(original)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if active() is None:
            return original(*args, **kwargs)
        raise UnsupportedError(f"{name} runs collectives of its own: jit the module that it wraps instead", where=str(user_line()))
    return refuse
