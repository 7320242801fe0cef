"""The CUDA dialect: CUDA C++ for NVRTC, one or more `__global__` functions a kernel.

Everything up to the renderer is the CPU's: kernel IR, op table, expressions. Spellings that differ, and what a thread, a
warp and a block do (`cuda_schedules`, `cuda_rows`, `cuda_columns`, `cuda_tiles`), are the dialect's own.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Optional

import torch

from .dialect import Dialect, literal
from .index import Index, Quotient, Remainder, bounds
from .kernel import MESSAGES, Buffer, Kernel
from .lower import Sharing
from .primitives import PRIMITIVES

PARAMETER_BYTES = 4096       # of a launch, on every device and driver
SHARING = Sharing(few_rows=128, long_row=1 << 14, again=(32, 1 << 16), tiles=True)        # of a device with more than a hundred multiprocessors
_SPECIAL = {torch.float32: ("__int_as_float(0x7fffffff)", "__int_as_float(0x7f800000)"),
            torch.float64: ("__longlong_as_double(0x7fffffffffffffffLL)", "__longlong_as_double(0x7ff0000000000000LL)")}


class CudaDialect(Dialect):
    """index_type: `int` where no index and no count of threads reaches 2^31."""

    memory = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "u16", torch.float16: "u16", torch.int64: "i64",
              torch.int32: "int", torch.int16: "short", torch.int8: "signed char", torch.uint8: "u8", torch.bool: "u8"}
    register = {**memory, torch.bfloat16: "float", torch.float16: "float", torch.bool: "bool"}
    letter = {"float": "f", "double": "d", "i64": "l", "int": "i", "short": "h", "signed char": "b", "u8": "u", "bool": "B"}
    numbers_by_value = True
    primitives = {
        **PRIMITIVES, "rsqrt": "rsqrt{f}({0})", "isinf.real": "isinf({0})", "isfinite.real": "isfinite({0})",
        "add.int": "({w}){0} + ({w}){1}", "sub.int": "({w}){0} - ({w}){1}", "mul.int": "({w}){0} * ({w}){1}",      # integers wrap
        "neg.int": "0 - ({w}){0}", "abs.int": "({0} < 0 ? 0 - ({w}){0} : ({w}){0})",
    }

    def __init__(self, index_type: str) -> None:
        self.index_type = index_type

    def spelling(self, op: str, kind: str) -> str:
        """NVRTC takes it that signed sums do not overflow, and would make `x + 1 > x` true."""
        return super().spelling(op, kind).replace("{w}", "u64" if kind == "l" else "u32")

    def load(self, dtype: torch.dtype, at: str) -> str:
        spelled = {torch.bfloat16: f"tj_from_bf16({at})", torch.float16: f"tj_from_f16({at})", torch.bool: f"({at} != 0)"}
        return spelled.get(dtype, at)

    def store(self, dtype: torch.dtype, value: str) -> str:
        return {torch.bfloat16: f"tj_to_bf16({value})", torch.float16: f"tj_to_f16({value})"}.get(dtype, value)

    def round(self, dtype: torch.dtype, value: str) -> str:
        return f"tj_round_bf16({value})" if dtype is torch.bfloat16 else f"tj_round_f16({value})"

    def literal(self, value: Any, dtype: torch.dtype) -> str:
        if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
            nan, inf = _SPECIAL[torch.float64 if dtype is torch.float64 else torch.float32]
            return nan if value != value else inf if value > 0 else f"(-{inf})"
        return literal(value, self.register[dtype])

    def checked(self, index: str, size: int, wraps: bool, error: int, valid: str) -> str:
        return f'tj_checked({index}, {size}, {int(wraps)}, {valid}, "{MESSAGES[error]}")'

    def nonzero(self, divisor: str, kind: str, valid: str) -> str:
        """As in eager on a device, nobody is told."""
        return divisor


SMALL, LARGE = CudaDialect("int"), CudaDialect("i64")


@dataclass(frozen=True)
class Parameter:
    """A pointer to memory of a buffer, or to scratch memory of `count` elements that the launches of a region share; or the value
    of a Python float."""

    ctype: str
    name: str
    constant: bool
    buffer: Optional[Buffer] = None
    count: int = 0

    @property
    def number(self) -> bool:
        return self.buffer is not None and self.buffer.number

    @property
    def text(self) -> str:
        if self.number:
            return f"const {self.ctype} {self.name}"
        return f"const {self.ctype} *__restrict__ {self.name}" if self.constant else f"{self.ctype} *{self.name}"


@dataclass(frozen=True)
class Function:
    """One `__global__` function and its launch, `grid` blocks of `block` threads. bounds: those that ptxas is told."""

    bounds: str
    body: str
    parameters: tuple[Parameter, ...]
    grid: int
    block: int

    def text(self, name: str, table: int) -> str:
        """table: of how many equal kernels one launch may take the pointers, as a table; 0: of one, as parameters."""
        head = f'extern "C" __global__ void __launch_bounds__({self.bounds}) {name}'
        if not table:
            return f"{head}({', '.join(p.text for p in self.parameters)}) {{\n{self.body}\n}}"
        rows = " ".join(f"{'const ' if p.constant and not p.number else ''}{p.ctype} {'' if p.number else '*'}{p.name}[{table}];"
                        for p in self.parameters)
        own = "\n".join(f"  {p.text} = of.{p.name}[blockIdx.y];" for p in self.parameters)
        return f"struct {name}_table {{ {rows} }};\n{head}(const __grid_constant__ {name}_table of) {{\n{own}\n{self.body}\n}}"

    @property
    def most(self) -> int:
        """Equal kernels that one launch takes."""
        return PARAMETER_BYTES // (8 * len(self.parameters))


def dialect_of(k: Kernel) -> CudaDialect:
    """32-bit indices where every index, and every sum on the way to it, fits."""
    return SMALL if max(_reach(k), 1) < 1 << 30 else LARGE


def _reach(k: Kernel) -> int:
    found = k.outer_size * k.inner_size
    for index in (*(s.index for s in k.every_store), *(e.index for e in k.expressions if e.index is not None)):
        found = max(found, _largest(index))
    return found


def _largest(index: Index) -> int:
    """A bound of every partial sum."""
    total = abs(index.constant)
    for a, c in index.terms:
        low, high = bounds(Index(0, ((a, 1),)))
        total += max(abs(low), abs(high)) * abs(c)
        if isinstance(a, (Quotient, Remainder)):
            total = max(total, _largest(a.index))
    return total


def narrow(k: Kernel) -> None:
    """Sums that the table makes in double for the CPU, which has it for nothing, are made in float; Python's floats are rounded
    to it before they are passed."""
    k.buffers = {n: replace(b, dtype=torch.float32) if b.number else b for n, b in k.buffers.items()}
    for e in k.expressions:
        if e.dtype is torch.float64:
            e.dtype = torch.float32
        if e.op == "reduced" and e.extra.dtype is torch.float64:
            e.extra.dtype = torch.float32


def parameters_of(k: Kernel, names: dict[str, str], d: CudaDialect) -> list[Parameter]:
    return [Parameter(d.memory[b.dtype], names[b.name], not b.written, b) for b in k.buffers.values()]
