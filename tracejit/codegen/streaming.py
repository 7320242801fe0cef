"""Stores that pass the caches by, in kernels that move more than the caches hold.

Such a kernel leaves little of its results in a cache for whoever reads them next, while an ordinary store first reads
the line that it overwrites. A loop is cut into chunks; a chunk of each streamed result is gathered in the first-level
cache and goes to memory in whole lines.
"""
from __future__ import annotations

from typing import Callable, Optional

from .c import Block, Writer
from .index import Var
from .kernel import HEAVY, Kernel, Store

LARGE = 32 << 20             # bytes that a kernel moves: the size of a usual last-level cache
CHUNK = 256                  # elements
Range = Optional[tuple[str, str]]


def streamed(w: Writer, k: Kernel, v: Var, stores: list[Store]) -> list[Store]:
    """The stores worth streaming: memory bounds the kernel, and whole lines of a buffer are written once, unread."""
    moved = k.bytes_read + k.bytes_written
    if not w.d.stream or moved <= LARGE or any(e.op in HEAVY for e in k.expressions):
        return []
    loaded = {e.extra[0] for e in k.expressions if e.op == "load"}
    every = [s.buffer for stage in k.stages for s in (*stage.stores, *stage.after)]
    return [s for s in stores if s.full and s.buffer not in loaded and every.count(s.buffer) == 1
            and s.index.affine_in(v) and s.index.coefficient(v) == 1 and v.size >= CHUNK]


def by_chunks(w: Writer, k: Kernel, block: Block, v: Var, stores: list[Store], shared: Range,
              loop: Callable[[Block, Range], None]) -> None:
    """`loop` writes the vector loop over a range of v (all of it: None)."""
    chosen = streamed(w, k, v, stores)
    if not chosen:
        return loop(block, shared)
    low, high = shared or ("0", str(v.size))
    even = shared is None and v.size % CHUNK == 0
    chunk = Block([f"const i64 E = B + {CHUNK}" + (";" if even else f" < {high} ? B + {CHUNK} : {high};")])
    for n, s in enumerate(chosen):
        chunk.append(f"{w.d.memory[s.value.dtype]} O{n}[{CHUNK}] __attribute__((aligned(64)));")
        w.places[s] = f"O{n}[i{v.number} - B]"
    loop(chunk, ("B", "E"))
    for n, s in enumerate(chosen):
        del w.places[s]
        at = f"&{w.pointers[s.buffer]}[{w.index(s.index)}]"
        chunk.append(f"{{ const i64 i{v.number} = B; {w.d.stream}({at}, O{n}, (E - B) * {s.value.dtype.itemsize}); }}")
    block += [f"for (i64 B = {low}; B < {high}; B += {CHUNK}) {{", chunk, "}"]
