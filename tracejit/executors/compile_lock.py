"""One compile at a time in a process, and none that is cut in half by a fork."""
from __future__ import annotations

import os
import threading
from typing import Any


class CompileLock:
    """A reentrant lock, held with `with`. A thread that forks waits until no other thread holds it: while one captures, the
    function's state holds stand-ins, calls are kept out of C, and the collector is off, and in a child no thread would end that.

    A capture that itself waits for the thread that forks would never end: after LONGEST_WAIT seconds the fork goes on, and
    the child has a lock of its own.
    """

    LONGEST_WAIT = 60

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held = threading.local()
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork_in_parent, after_in_child=self._after_fork_in_child)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        self._lock.release()

    def _before_fork(self) -> None:
        self._held.by_fork = self._lock.acquire(timeout=self.LONGEST_WAIT)

    def _after_fork_in_parent(self) -> None:
        if self._held.by_fork:
            self._lock.release()

    def _after_fork_in_child(self) -> None:
        if self._held.by_fork:
            self._lock.release()
        else:
            self._lock = threading.RLock()
