"""One compile at a time in a process, and none that is cut in half by a fork."""
from __future__ import annotations

import os
import threading
import time
from typing import Any

LONGEST_WAIT = 60            # seconds that a fork waits
_every: list["CompileLock"] = []
_fork = threading.local()    # .holds: those that the thread which forks took for it


class CompileLock:
    """A reentrant lock, held with `with`, that lives as long as the process. A thread that forks waits until no other thread holds
    any: while one captures, the function's state holds stand-ins, calls are kept out of C, and the collector is off, and in a child
    no thread would end that.

    A capture that itself waits for the thread that forks would never end: after LONGEST_WAIT seconds the fork goes on, and
    the child has locks of its own instead of those that are held.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _every.append(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *error: Any) -> None:
        self.lock.release()


def _take(deadline: float) -> list[CompileLock]:
    """All of them, or those that are free at the deadline. It waits for one at a time and holds none meanwhile: who has that one may
    need the others to go on."""
    wanted = None
    while True:
        held = [wanted] if wanted is not None and wanted.lock.acquire(timeout=max(0.0, deadline - time.monotonic())) else []
        busy = []
        for one in _every:
            if one not in held:
                (held if one.lock.acquire(blocking=False) else busy).append(one)
        if not busy or time.monotonic() >= deadline:
            return held
        for one in held:
            one.lock.release()
        wanted = busy[0]


def _before_fork() -> None:
    _fork.holds = _take(time.monotonic() + LONGEST_WAIT)


def _after_fork_in_parent() -> None:
    for one in _fork.holds:
        one.lock.release()


def _after_fork_in_child() -> None:
    for one in _every:
        if one in _fork.holds:
            one.lock.release()
        else:
            one.lock = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
