"""Kernels with sines: at first as if every angle were below 2^39, which takes a third of the time and is watched.

Where one was not, the kernel runs once more in full. It must not have overwritten what it reads.
"""
from __future__ import annotations

import re
from typing import Callable

from .kernel import Kernel

FAR = 64                                                       # the code that a kernel returns in place of an error's
_ANGLES = re.compile(r"\btj_(sin|cos|tan)_f\(")


def near_then_full(kernel: Kernel, function: Callable[[Callable[[list[str]], list[str]]], str]) -> str:
    """The text of a kernel. function: gives it, with the lines of what its threads run turned by the argument."""
    full = function(lambda lines: lines)
    near = function(_watched) if not _overwrites_what_it_reads(kernel) else full
    if near == full:
        return full
    choice = ["static int NAME(int nt, void *const *p) {", "  int bad = NAME_near(nt, p);",
              f"  return bad == {FAR} ? NAME_full(nt, p) : bad;", "}"]
    return "\n".join([_renamed(near, "NAME_near"), _renamed(full, "NAME_full"), *choice])


def _overwrites_what_it_reads(kernel: Kernel) -> bool:
    read = {kernel.buffers[e.extra[0]].storage for e in kernel.expressions if e.op == "load"}
    return any(b.written and b.storage in read for b in kernel.buffers.values())


def _watched(lines: list[str]) -> list[str]:
    """The lines of a function with `int *err`, its first and last among them."""
    if not any(map(_ANGLES.search, lines)):
        return lines
    body = [line + " reduction(|:far)" if "#pragma omp simd" in line else _ANGLES.sub(r"tj_\1_near_f(&far, ", line) for line in lines[1:-1]]
    return [lines[0], "  u32 far = 0;", *body, f"  if (far) *err = {FAR};", lines[-1]]


def _renamed(text: str, name: str) -> str:
    return re.sub(r"\bNAME", name, text)
