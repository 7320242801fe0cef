"""The CPU dialect: plain scalar C with `#pragma omp simd`, no headers, threads of torch's own OpenMP runtime."""
from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Callable

import torch

from .rare import near_then_full
from .c import Block
from .dialect import Dialect
from .kernel import Kernel
from .schedules import Body, Writer, write

GRAIN = 768 << 10            # bytes and operations from which a second thread is worth it
MOST_THREADS = 64
PRELUDES = ("prelude.c", "functions.c", "doubles.c")


class CpuDialect(Dialect):
    memory = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "u16", torch.float16: "u16",
              torch.int64: "i64", torch.int32: "int", torch.int16: "short", torch.int8: "signed char",
              torch.uint8: "u8", torch.bool: "u8"}
    register = {**memory, torch.bfloat16: "float", torch.float16: "float", torch.bool: "_Bool"}
    letter = {"float": "f", "double": "d", "i64": "l", "int": "i", "short": "h", "signed char": "b", "u8": "u",
              "_Bool": "B"}
    vector_pragma = "#pragma omp simd"
    transposes = {1: "tj_transpose_bytes", 2: "tj_transpose_halves", 4: "tj_transpose_words"}
    stream = "tj_stream"
    prefetch = "tj_prefetch({})"
    index_type = "i64"
    math = "__builtin_"
    not_positive = {"exp": "exp_low"}

    def function(self, op: str, kind: str) -> str:
        """The inline vector code for it, where the preludes have it, or else the C library's."""
        own = f"tj_{op}_{kind}"
        return own if any(own in names for names, _ in _prelude(*PRELUDES)[1]) else super().function(op, kind)

    def load(self, dtype: torch.dtype, at: str) -> str:
        spelled = {torch.bfloat16: "tj_from_bf16({})", torch.float16: "tj_from_f16({})", torch.bool: "({} != 0)"}
        return spelled.get(dtype, "{}").format(at)

    def store(self, dtype: torch.dtype, value: str) -> str:
        return {torch.bfloat16: f"tj_to_bf16({value})", torch.float16: f"tj_to_f16({value})"}.get(dtype, value)

    def store_quiet(self, dtype: torch.dtype, value: str) -> str:
        return f"tj_to_bf16_quiet({value})" if dtype is torch.bfloat16 else self.store(dtype, value)

    def round_quiet(self, dtype: torch.dtype, value: str) -> str:
        return f"tj_round_bf16_quiet({value})" if dtype is torch.bfloat16 else self.round(dtype, value)

    def round(self, dtype: torch.dtype, value: str) -> str:
        return f"tj_round_bf16({value})" if dtype is torch.bfloat16 else f"tj_round_f16({value})"


CPU = CpuDialect()


@dataclass(frozen=True)
class Function:
    """C text of one kernel, the same for equal kernels whatever their buffers are; `buffers` in its pointers' order."""

    text: str
    buffers: tuple[str, ...]
    schedule: str
    threads: int


def function_of(kernel: Kernel) -> Function:
    """`static int NAME(int nt, void *const *p)`: the name is filled in later."""
    w, body = write(kernel, CPU)
    pointers = _pointers(kernel, w)

    def text(turned: Callable[[list[str]], list[str]]) -> str:
        lines = []
        for n, block in enumerate(body.blocks):
            head = f"static void NAME_range{n}(void *const *p, i64 lo, i64 hi, char *part, char *done, int *err) {{"
            lines += turned([head, *Block([pointers, block, _streams_end(block)]).text(), "}"])
        return "\n".join(lines + _task(body) + _entry(kernel, w, body, pointers))
    return Function(near_then_full(kernel, text), tuple(kernel.buffers), kernel.schedule, most_threads(kernel, body))


def _streams_end(block: Block) -> Block:
    """Other threads see what was streamed."""
    return Block(["tj_stream_end();"] if any(CPU.stream + "(" in line for line in block.text()) else [])


def _pointers(kernel: Kernel, w: Writer) -> Block:
    out = Block()
    for n, b in enumerate(kernel.buffers.values(), 1):         # the first is the table of sizes
        t = CPU.memory[b.dtype]
        kind = f"{t} *" if b.written else f"const {t} *restrict "
        out.append(f"{kind}{w.pointers[b.name]} = p[{n}];")
    return out


def _task(body: Body) -> list[str]:
    """What each thread does: its share of the units, in whole cache lines where units are elements."""
    lines = ["typedef struct { void *const *p; char *part, *done; int *err; } NAME_args;"]
    u = body.units
    bound = "({u}l < 4096 || {t} == n ? {u}l * {t} / n : {u}l * {t} / n & ~63l)"
    for n, _ in enumerate(body.blocks):
        low, high = (bound.format(u=u, t=t) for t in ("t", "(t + 1)"))
        lines += [f"static void NAME_task{n}(void *q) {{",
                  "  NAME_args *task = q; i64 t = omp_get_thread_num(), n = omp_get_num_threads();",
                  f"  NAME_range{n}(task->p, {low}, {high}, task->part + t * {8 * body.slots}, task->done, task->err); }}"]
    return lines


def work_of(kernel: Kernel) -> int:
    """Bytes and operations: each takes about as long, when a cache holds the bytes."""
    return kernel.bytes_read + kernel.bytes_written + kernel.operations


def most_threads(kernel: Kernel, body: Body) -> int:
    """How many threads have enough to do."""
    return min(1 + work_of(kernel) // GRAIN, body.units, MOST_THREADS)


def _entry(kernel: Kernel, w: Writer, body: Body, pointers: Block) -> list[str]:
    work = most_threads(kernel, body)
    lines = ["static int NAME(int nt, void *const *p) {",
             f"  int bad = 0; nt = nt > {work} ? {work} : nt < 1 ? 1 : nt;"]
    if body.slots:
        lines += [f"  char part[{8 * body.slots * MOST_THREADS}] __attribute__((aligned(64)));",
                  f"  char done[{8 * body.slots}] __attribute__((aligned(64)));"]
        lines += Block([pointers]).text(0)
    else:
        lines.append("  char *part = 0, *done = 0;")
    lines.append("  NAME_args task = {p, part, done, &bad};")
    for n, block in enumerate(body.blocks):
        if len(block):
            lines += [f"  if (nt > 1) GOMP_parallel(NAME_task{n}, &task, nt, 0);",
                      f"  else NAME_range{n}(p, 0, {body.units}, part, done, &bad);"]
        if body.combine and len(body.combine[n]):
            lines += ["  {", *body.combine[n].text(2), "  }"]
    return lines + ["  return bad;", "}"]


# ------------------------------------------------------------ the helpers that a text needs

@lru_cache(None)
def _prelude(*names: str) -> tuple[str, list[tuple[frozenset[str], str]]]:
    """(what every text needs, [(names, text)] of helpers in order): a first chunk, and chunks of the others."""
    chunks = "\n\n".join((Path(__file__).parent / name).read_text() for name in names).split("\n\n")
    helpers = []
    for chunk in chunks[1:]:
        listed = re.findall(r"\btj_\w+", " ".join(re.findall(r"/\*(.*?)\*/", chunk)))
        defined = re.findall(r"^(?:EW [\w ]*?|static const double )\*?(tj_\w+)[\[(]", chunk, re.M)
        helpers.append((frozenset(listed or defined), re.sub(r"\s*/\*.*?\*/", "", chunk)))
    return chunks[0], helpers


@lru_cache(256)
def with_helpers(text: str, *preludes: str) -> str:
    """The text below exactly the helpers that it calls."""
    base, helpers = _prelude(*(preludes or PRELUDES))
    needed, waiting = set(), set(re.findall(r"\btj_\w+", text))
    while waiting:
        name = waiting.pop()
        for n, (names, source) in enumerate(helpers):
            if name in names and n not in needed:
                needed.add(n)
                waiting |= set(re.findall(r"\btj_\w+", source))
    return "\n".join([base, *(helpers[n][1] for n in sorted(needed)), text])
