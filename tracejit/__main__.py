"""`python -m tracejit explain module:function [expression]`: what tracejit makes of a call, as text or as a page.

`python -m tracejit cache [--clear]`: where compiled kernels are kept, how many, and the bytes that they take.
"""
from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any, Optional, Sequence

import torch

from .api import explain
from .executors.disk_cache import DiskCache
from .inspection.html import page


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command; returns its exit status. A wrong name or expression ends it with a message and status 2."""
    parser = argparse.ArgumentParser(prog="python -m tracejit",
                                     description="Look at what tracejit makes of a function, and at what it keeps.")
    commands = parser.add_subparsers(dest="command", required=True)
    explaining = commands.add_parser("explain", help="compile a function, call it once, and tell what became of it")
    explaining.add_argument("function", help="module:function, or module:object.attribute")
    explaining.add_argument("arguments", nargs="?", default="", help="Python text of the call's arguments, with `torch` and the "
                            "module's own names: 'torch.randn(4), scale=2'")
    explaining.add_argument("--html", type=Path, help="write a page here instead of printing")
    keeping = commands.add_parser("cache", help="print the directory of compiled kernels, their number and their bytes")
    keeping.add_argument("--clear", action="store_true", help="remove them")
    given = parser.parse_args(arguments)
    return _cache(given.clear) if given.command == "cache" else _explain(given, parser)


def _cache(clear: bool) -> int:
    disk = DiskCache()
    objects, size = disk.count()
    if clear:
        disk.clear()
    print(f"{disk.directory}: {objects} compiled objects, {size} bytes{', removed' if clear else ''}")
    return 0


def _explain(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        function, scope = _find(given.function)
        args, kwargs = eval(f"(lambda *args, **kwargs: (args, kwargs))({given.arguments})", scope)
    except (ImportError, AttributeError, NameError, SyntaxError, TypeError) as error:
        parser.error(f"{type(error).__name__}: {error}")
    told = explain(function, *args, **kwargs)
    if given.html is None:
        print(told)
    else:
        given.html.write_text(page(given.function, told._repr_html_()))
    return 0


def _find(path: str) -> tuple[Any, dict[str, Any]]:
    """(the function, the names that its arguments may use); modules of the current directory are found."""
    name, _, attribute = path.partition(":")
    if not attribute:
        raise AttributeError(f"{path!r} is not of the form module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = importlib.import_module(name)
    scope = {"torch": torch, **vars(found)}
    for part in attribute.split("."):
        found = getattr(found, part)
    return found, scope


if __name__ == "__main__":
    raise SystemExit(main())
