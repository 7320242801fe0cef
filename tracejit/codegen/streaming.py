"""What memory is told beforehand: stores that pass the caches by, and rows that are fetched before they are read.

A kernel that moves more than the caches hold leaves little of its results in a cache for whoever reads them next, while
an ordinary store first reads the line that it overwrites. A loop is cut into chunks; a chunk of each streamed result is
gathered in the first-level cache and goes to memory in whole lines.

The processor fetches memory ahead of a loop that reads it, and has nothing to fetch while a later pass works on a row
in the cache. The first costly one of these asks for the next row.
"""
from __future__ import annotations

from typing import Callable, Optional

from .c import Block, Writer
from .index import Var
from .kernel import HEAVY, Kernel, Store, below

LARGE = 32 << 20             # bytes that a kernel moves: the size of a usual last-level cache
CHUNK = 256                  # elements
FAR = 1 << 20                # bytes that a kernel reads: more than a usual second-level cache holds
LINE = 64                    # bytes
ROW = 64 << 10               # bytes of a row of all that is fetched: more would drive out what is in use
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


def fetch_next_row(w: Writer, k: Kernel, n: int, block: Block, part: Range) -> None:
    """In stage n of a row, for a range of the inner variable (all of it: None)."""
    if not w.d.prefetch or k.bytes_read <= FAR or n != _costly_pass(k):
        return
    v, row = k.inner[-1], k.outer[-1]
    far = {(e.extra[0], e.index): e for e in k.expressions if e.op == "load" and not e.args and e.index.affine_in(v)
           and e.index.affine_in(row) and e.index.coefficient(v) == 1 and e.index.coefficient(row)}
    if sum(v.size * e.dtype.itemsize for e in far.values()) > ROW:
        return
    low, high = part or ("0", str(v.size))
    i = f"i{v.number}"
    for e in far.values():
        at = f"{w.pointers[e.extra[0]]}[{w.index(e.index + e.index.coefficient(row))}]"
        block.append(f"for (i64 {i} = {low}; {i} < {high}; {i} += {LINE // e.dtype.itemsize}) {w.d.prefetch.format('&' + at)};")


def _costly_pass(k: Kernel) -> Optional[int]:
    """The first pass over a row in the cache that computes something costly."""
    if len(k.inner) != 1 or not k.outer:
        return None
    for n, stage in enumerate(k.stages[1:], 1):
        again = {e for e, s in k.kept.items() if s < n}
        if any(e.op in HEAVY for root in stage.roots for e in below(root) if e not in again):
            return n
    return None
