"""The collector of cyclic garbage."""
from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Iterator


@contextmanager
def collector_paused() -> Iterator[None]:
    """Inside, nothing is collected: callbacks and finalizers are not the program's, and a collection costs a tenth of a second
    where much is loaded."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()
