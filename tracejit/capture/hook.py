"""The profile hook of the thread, which watches the user's frames during a capture."""
from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Any, Iterator


def set_profile(hook: Any) -> None:
    """Puts back what `sys.getprofile()` returned."""
    if sys.getprofile() is hook:
        return
    if hook is None or callable(hook):
        sys.setprofile(hook)
    elif hasattr(hook, "enable"):                              # cProfile is no callable hook
        hook.enable()


@contextmanager
def unprofiled() -> Iterator[None]:
    """Inside, the profile hook that watches the user's frames is off: what runs here is torch and tracejit."""
    hook = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        set_profile(hook)
