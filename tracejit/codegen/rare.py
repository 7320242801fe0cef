"""Kernels with functions that are cheap but for rare arguments: at first as if there were none, which is watched.

Angles beyond 2^18 (of doubles: 2^26; of tangents of floats: 2^39) and quotients beyond 2^52 are rare; without them sines take far less
time, remainders a twentieth. Where there was one, the kernel runs once more in full. One that overwrites what it reads is run without
its stores first, to see.
"""
from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Callable

from .kernel import Kernel

FAR = 64                                                       # the code that a kernel returns in place of an error's
_STORE = re.compile(r"\s*a\d+\[[^=;]*\] = [^;]*;")
_LOAD = re.compile(r"\s*const \w[\w ]* t\d+ = [^;]*;|\s*\w[\w ]* \*a\d+ = p\[\d+\];")


@lru_cache(None)
def _rare() -> re.Pattern:
    """Calls of functions of which the C here has another that only watches for rare arguments, of floats, doubles or both."""
    paths = sorted(Path(__file__).parent.glob("*.c"))
    text = "\n".join(line for path in paths for line in path.read_text().split("\n") if "(u32 *far" in line)     # few of thousands
    found = {name + kind.replace("##s", "[fd]") for name, kind in re.findall(r"\btj_(\w+_)near_(##s|\w)\(u32 \*far", text)}
    return re.compile(rf"\btj_({'|'.join(sorted(found))})\(")


def near_then_full(kernel: Kernel, function: Callable[[Callable[[list[str]], list[str]]], str]) -> str:
    """The text of a kernel. function: gives it, with the lines of what its threads run turned by the argument."""
    full, near = function(lambda lines: lines), function(_watched)
    if near == full:
        return full
    written = _written_and_read(kernel)
    trial = _Trial(written)
    parts = {"near": near, "full": full} | ({"trial": function(trial.turned)} if written else {})
    if not trial.possible:
        return full
    choice = ["static int NAME(int nt, void *const *p) {", f"  int bad = NAME_{'trial' if written else 'near'}(nt, p);",
              f"  return bad == {FAR} ? NAME_full(nt, p) : {'NAME_near(nt, p)' if written else 'bad'};", "}"]
    return "\n".join([*(re.sub(r"\bNAME", f"NAME_{part}", text) for part, text in parts.items()), *choice])


def _written_and_read(kernel: Kernel) -> set[str]:
    """The pointers to memory that the kernel both reads and writes."""
    read = {kernel.buffers[e.extra[0]].storage for e in kernel.expressions if e.op == "load"}
    both = read & {b.storage for b in kernel.buffers.values() if b.written}
    return {f"a{n}" for n, b in enumerate(kernel.buffers.values()) if b.storage in both}


class _Trial:
    """Takes the stores out of functions. possible: is what is computed without them what will be stored? In one loop, each element is
    read before it is written."""

    def __init__(self, written: set[str]) -> None:
        self.mentioned = re.compile(rf"\b({'|'.join(sorted(written))})\b" if written else "(?!)")
        self.loops, self.possible = 0, True

    def turned(self, lines: list[str]) -> list[str]:
        stored = False
        for line in lines:
            stored |= bool(_STORE.fullmatch(line))
            understood = _STORE.fullmatch(line) or _LOAD.fullmatch(line) and not stored
            self.possible &= bool(understood or not self.mentioned.search(line))
        self.loops += sum("#pragma omp simd" in line for line in lines)
        self.possible &= self.loops <= 1
        return _watched([line for line in lines if not _STORE.fullmatch(line)])


def _near(call: re.Match) -> str:
    name, kind = call[1].rsplit("_", 1)
    return f"tj_{name}_near_{kind}(&far, "


def _watched(lines: list[str]) -> list[str]:
    """The lines of a function with `int *err`, its first and last among them."""
    if not any(map(_rare().search, lines)):
        return lines
    body = [line + " reduction(|:far)" if "#pragma omp simd" in line else _rare().sub(_near, line) for line in lines[1:-1]]
    return [lines[0], "  u32 far = 0;", *body, f"  if (far) *err = {FAR};", lines[-1]]
