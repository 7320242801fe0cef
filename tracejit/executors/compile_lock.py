"""One compile at a time in a process, and none that is cut in half by a fork."""
from __future__ import annotations

import os
import threading
import time
from typing import Any

LONGEST_WAIT = 60            # seconds that a fork waits
_every: list[Any] = []
_fork = threading.local()    # .holds: those that the thread which forks took for it


def compile_lock() -> Any:
    """A reentrant lock that lives as long as the process. A thread that forks waits until no other thread holds any: while one
    captures, the function's state holds stand-ins, calls are kept out of C, and the collector is off, and in a child no thread would
    end that.

    A capture that itself waits for the thread that forks would never end: after LONGEST_WAIT seconds the fork goes on, and
    those that are held are free in the child. A lock in C: an interrupt does not come between `with` and its release.
    """
    lock = threading.RLock()
    _every.append(lock)
    return lock


def _take(deadline: float) -> list[Any]:
    """All of them, or those that are free at the deadline. It waits for one at a time and holds none meanwhile: who has that one may
    need the others to go on."""
    wanted = None
    while True:
        held = [wanted] if wanted is not None and wanted.acquire(timeout=max(0.0, deadline - time.monotonic())) else []
        busy = []
        for one in _every:
            if one not in held:
                (held if one.acquire(blocking=False) else busy).append(one)
        if not busy or time.monotonic() >= deadline:
            return held
        for one in held:
            one.release()
        wanted = busy[0]


def _before_fork() -> None:
    _fork.holds = _take(time.monotonic() + LONGEST_WAIT)


def _after_fork_in_parent() -> None:
    for one in _fork.holds:
        one.release()


def _after_fork_in_child() -> None:
    for one in _every:
        if one in _fork.holds:
            one.release()
        else:
            one._at_fork_reinit()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
