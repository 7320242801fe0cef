"""A region's kernels -> one C text with one entry, `int tj_region(int threads, void *const *pointers)`."""
from __future__ import annotations

from dataclasses import dataclass


from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol
from .cpu import Function, function_of, with_helpers
from .kernel import Buffer, Kernel
from .nests import Nests

ENTRY = "tj_region"


@dataclass(frozen=True)
class Source:
    """`buffers`: what each pointer of the entry shows; index 0 of a buffer is its storage's first element.
    `made`: the roots of storages that the region makes, results and temporaries."""

    text: str
    buffers: tuple[Buffer, ...]
    made: dict[int, TensorProxy]
    kernels: tuple[Kernel, ...]
    checks: bool
    threads: int                         # how many the largest kernel has work for


def source_of(region: BoundSymbol) -> Source:
    """Raises CannotLower when some call has no lowering."""
    nests = Nests(region)
    kernels = [k for _, k in nests.kernels]
    functions = [function_of(k) for k in kernels]
    buffers: dict[str, Buffer] = {}
    for k in kernels:
        for b in k.buffers.values():
            if b.name not in buffers or b.written:
                buffers[b.name] = b
    names: dict[str, str] = {}
    texts = []
    for f in functions:
        if f.text not in names:
            names[f.text] = f"k{len(names)}"
            texts.append(f.text.replace("NAME", names[f.text]))
    text = with_helpers("\n".join([*texts, *_entry(kernels, functions, names, list(buffers))]))
    return Source(text, tuple(buffers.values()), nests.made_storages, tuple(kernels), any(k.checks for k in kernels),
                  max((f.threads for f in functions), default=1))


def _entry(kernels: list[Kernel], functions: list[Function], names: dict[str, str], buffers: list[str]) -> list[str]:
    lines = [f"int {ENTRY}(int nt, void *const *p) {{", "  int bad = 0;"]
    for k, f in zip(kernels, functions):
        pointers = ", ".join(f"p[{buffers.index(b)}]" for b in f.buffers)
        lines.append(f"  {{ void *const q[] = {{{pointers or '0'}}}; bad = {names[f.text]}(nt, q); {'if (bad) return bad; ' if k.checks else ''}}}")
    return lines + ["  return bad;", "}"]


