"""A region's kernels -> CUDA C++ text, and the launches that run it, in order on one stream."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import torch

from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol
from .cpu import with_helpers
from .cuda import SHARING, Function, Parameter, narrow
from .cuda_columns import column, whole
from .cuda_rows import row
from .cuda_schedules import pointwise
from .kernel import Buffer, Kernel
from .nests import Nests


@dataclass(frozen=True)
class Launch:
    """`grid` blocks of `block` threads of function `name`. Each parameter takes memory of its buffer, or of the scratch memory
    `offset` bytes from its start. Index 0 of a buffer is its storage's first element."""

    name: str
    grid: int
    block: int
    parameters: tuple[Parameter, ...]
    buffers: tuple[Optional[Buffer], ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class CudaSource:
    """`text`: one translation unit; `scratch`: bytes that launches share; `made`: the roots of storages that the region makes.
    aligned: the text takes it that every buffer begins at a multiple of 16 bytes."""

    text: str
    launches: tuple[Launch, ...]
    made: dict[int, TensorProxy]
    kernels: tuple[Kernel, ...]
    scratch: int
    checks: bool
    aligned: bool


def cuda_source(region: BoundSymbol, aligned: bool = True) -> CudaSource:
    """Raises CannotLower when some call has no lowering."""
    nests = Nests(region, SHARING)
    wide = any(p.dtype is torch.float64 for b in region.subsymbols for p in (*b.tensor_args, *b.tensor_outputs))
    functions: dict[int, list[Function]] = {}
    names: dict[str, str] = {}
    launches, scratch = [], 0
    kernels = [k for _, k in nests.kernels]
    for k in kernels:
        original = k.same_as or k
        if id(original) not in functions:
            if not wide:
                narrow(original)
            functions[id(original)] = _SCHEDULES[original.schedule](original, aligned)
        for f in functions[id(original)]:
            name = names.setdefault(f.text, f"k{len(names)}")
            launch, used = _launch(name, f, original, k)
            launches.append(launch)
            scratch = max(scratch, used)
    text = "\n\n".join(t.replace("NAME", n) for t, n in names.items())
    where = _where(region) if any(k.checks for k in kernels) else []
    return CudaSource("\n".join([*where, with_helpers(text, "prelude.cu")]), tuple(launches), nests.made_storages, tuple(kernels),
                      scratch, any(k.checks for k in kernels), aligned)


def _launch(name: str, f: Function, original: Kernel, k: Kernel) -> tuple[Launch, int]:
    """The launch of a function for kernel k, which is `original` up to the names of buffers; and the scratch bytes it uses."""
    own = dict(zip(original.buffers, k.buffers.values()))
    at, offsets = 0, []
    for p in f.parameters:
        offsets.append(at)
        if p.buffer is None:
            at += -(-p.count * 8 // 256) * 256
    buffers = tuple(own[p.buffer.name] if p.buffer is not None else None for p in f.parameters)
    return Launch(name, f.grid, f.block, f.parameters, buffers, tuple(offsets)), at


def _where(region: BoundSymbol) -> list[str]:
    """What a failed check names: the user's line."""
    source = next((b.source for b in region.subsymbols if b.source.file), None)
    file = source.file.replace("\\", "/").replace('"', "") if source else "?"
    return [f'#define TJ_FILE "{file}"', f"#define TJ_LINE {source.line if source else 0}",
            f'#define TJ_FUNCTION "{source.function if source else ""}"']


_SCHEDULES = {"pointwise": pointwise, "row": row, "column": column, "whole": whole}
