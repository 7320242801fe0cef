"""A region's kernels -> CUDA C++ text, and the launches that run it, in order on one stream."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Optional

import torch

from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol
from .batches import batches
from .cpu import with_helpers
from .cuda import SHARING, Function, Parameter, narrow
from .cuda_columns import column, whole
from .cuda_rows import row
from .cuda_schedules import pointwise
from .cuda_tiles import in_tiles
from .kernel import Buffer, Kernel
from .lower import Note
from .nests import Nests


@dataclass(frozen=True)
class Launch:
    """`grid` x `copies` blocks of `block` threads of function `name`: the same work on as many sets of tensors.

    It takes addresses: of a buffer's memory, or (None) of the scratch memory `offset` bytes from its start; and the values of Python
    floats; for each parameter, those of its copies. table: 0: each is an argument; else they are one argument, a table of
    so many a parameter. Index 0 of a buffer is its storage's first element.
    """

    name: str
    grid: int
    block: int
    parameters: tuple[Parameter, ...]
    buffers: tuple[Optional[Buffer], ...]
    offsets: tuple[int, ...]
    copies: int = 1
    table: int = 0


@dataclass(frozen=True)
class CudaSource:
    """`text`: one translation unit; `scratch`: bytes that launches share; `made`: the roots of storages that the region makes.
    aligned: the text takes it that every buffer begins at a multiple of 16 bytes. functions: their texts, with the kernel
    of each."""

    text: str
    launches: tuple[Launch, ...]
    made: dict[int, TensorProxy]
    kernels: tuple[Kernel, ...]
    scratch: int
    checks: bool
    aligned: bool
    functions: dict[str, Kernel]


def cuda_source(region: BoundSymbol, aligned: bool = True, note: Optional[Note] = None) -> CudaSource:
    """Raises CannotLower when some call has no lowering. note: as of `lower`."""
    nests = Nests(region, SHARING, note=note)
    wide = any(p.dtype is torch.float64 for b in region.subsymbols for p in (*b.tensor_args, *b.tensor_outputs)
               if not p.number)
    texts = _Texts(wide, aligned)
    launches = [launch for together in batches([k for _, k in nests.kernels], texts.key)
                for launch in texts.launches(together)]
    kernels = tuple(k for _, k in nests.kernels)
    for k in kernels:
        k.bytes_read += (k.same_as or k).bytes_again
    checks = any(k.checks for k in kernels)
    written = {t.replace("NAME", name): texts.kernels[t] for t, name in texts.names.items()}
    text = "\n\n".join(written)
    return CudaSource("\n".join([*(_where(region) if checks else []), with_helpers(text, "prelude.cu")]), tuple(launches),
                      nests.made_storages, kernels, texts.scratch, checks, aligned, written)


class _Texts:
    """names: of functions, by their text. scratch: bytes that launches share."""

    def __init__(self, wide: bool, aligned: bool) -> None:
        self.wide, self.aligned = wide, aligned
        self.functions: dict[int, tuple[Function, ...]] = {}
        self.names: dict[str, str] = {}
        self.kernels: dict[str, Kernel] = {}
        self.scratch = 0

    def of(self, k: Kernel) -> tuple[Function, ...]:
        original = k.same_as or k
        if id(original) not in self.functions:
            if not self.wide:
                narrow(original)
            self.functions[id(original)] = tuple(_SCHEDULES["tiles" if original.postponed else original.schedule](original, self.aligned))
        return self.functions[id(original)]

    def key(self, k: Kernel) -> tuple[str, ...]:
        """Equal for kernels that differ in nothing but their buffers."""
        return tuple(f.text("NAME", 0) for f in self.of(k))

    def launches(self, together: list[Kernel]) -> Iterator[Launch]:
        """Of equal kernels that do not depend on each other."""
        functions = self.of(together[0])
        most = min(f.most for f in functions)
        table = min(len(together), most) if len(together) > 1 else 0
        for n in range(0, len(together), most):
            for f in functions:
                yield self._launch(f, together[n:n + most], table)

    def _launch(self, f: Function, kernels: list[Kernel], table: int) -> Launch:
        copies, buffers, offsets, used = len(kernels), [], [], 0
        text = f.text("NAME", table)
        name = self.names.setdefault(text, f"k{len(self.names)}")
        self.kernels.setdefault(text, kernels[0].same_as or kernels[0])
        for n, p in enumerate(f.parameters):                   # those of buffers come first, in order
            buffers += [None if p.buffer is None else [*k.buffers.values()][n] for k in kernels]
            size = -(-p.count * 8 // 256) * 256
            offsets += [used + size * c for c in range(copies)]
            used += size * copies
        self.scratch = max(self.scratch, used)
        return Launch(name, f.grid, f.block, f.parameters, tuple(buffers), tuple(offsets), copies, table)


def _where(region: BoundSymbol) -> list[str]:
    """What a failed check names: the user's line."""
    source = next((b.source for b in region.subsymbols if b.source.file), None)
    file = source.file.replace("\\", "/").replace('"', "") if source else "?"
    return [f'#define TJ_FILE "{file}"', f"#define TJ_LINE {source.line if source else 0}",
            f'#define TJ_FUNCTION "{source.function if source else ""}"']


_SCHEDULES = {"pointwise": pointwise, "row": row, "column": column, "whole": whole, "tiles": in_tiles}
