"""How a function of the user's is called, and where it is."""
from __future__ import annotations

import functools
import keyword
from typing import Callable, Optional

import torch

from ..ir.trace import SourceLine
from .handlers import is_user_file


def name_of(fn: Callable, chosen: Optional[str]) -> str:
    """A name that the text of a trace can give its function."""
    fn = fn.func if isinstance(fn, functools.partial) else fn
    name = chosen or getattr(fn, "__name__", type(fn).__name__)
    if not name.isidentifier() or keyword.iskeyword(name):
        name = "program" if chosen is None else "".join(c if c.isalnum() else "_" for c in f"program_{name}")
    return f"{name}_" if name in ("torch", "inf", "nan", "complex", "slice") else name


def defined_at(fn: Callable) -> str:
    """Where a function of the user's is, for messages that have no line of its own; "" for others."""
    fn = fn.func if isinstance(fn, functools.partial) else getattr(type(fn), "forward", None) if isinstance(fn, torch.nn.Module) else fn
    code = getattr(fn, "__code__", None) or getattr(type(fn).__call__, "__code__", None)
    known = code is not None and is_user_file(code.co_filename)
    return f"{SourceLine(code.co_filename, code.co_firstlineno)}, where {code.co_name} is defined" if known else ""
