"""The CPU fuser: a region becomes C kernels, compiled by the system's compiler.

Without a compiler, or when one fails, regions go to the torch fallback, and one warning says so.
"""
from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Optional

from ..codegen.calls import call_of
from ..codegen.kernel import CannotLower
from ..codegen.source import source_of
from ..errors import FallbackWarning
from ..ir.symbol import Symbol
from ..ir.trace import BoundSymbol
from ..options import check_traces
from .fusible import can_lower, why_not_lowered
from .kernel_cache import CompilerError, KernelCache, NoCompiler
from .launch import compiled_region
from .registry import Executor


class CpuExecutor(Executor):
    """Fuses calls on CPU tensors.

    allow_single_op_fusion: make a kernel of a region of one call too.
    kernel_cache: the directory of compiled kernels; None: the user's cache directory.
    max_region_ops: a region has no more calls, views not counted.
    """

    name = "cpu"

    def __init__(self, *, allow_single_op_fusion: bool = False, kernel_cache: Optional[str] = None,
                 max_region_ops: int = 2000) -> None:
        self.allow_single_op_fusion, self.max_region_ops = allow_single_op_fusion, max_region_ops
        self.cache = KernelCache(kernel_cache)
        self.broken = False                                    # there is no compiler: said once

    def can_execute(self, bsym: BoundSymbol) -> bool:
        return False

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        return not self.broken and can_lower(bsym)

    def why_not(self, bsym: BoundSymbol) -> str:
        return "there is no C compiler" if self.broken else why_not_lowered(bsym)

    def fuse(self, region: BoundSymbol) -> Optional[BoundSymbol]:
        """The region with a function that runs it, or None."""
        if self.broken or len(region.subsymbols) == 1 and not self.allow_single_op_fusion:
            return None
        if sum(not call_of(b).is_view for b in region.subsymbols) > self.max_region_ops:
            return None
        try:
            source = source_of(region)
            library = self.cache.load(source.text)
        except CannotLower:
            if check_traces():
                raise
            return None
        except CompilerError as error:
            self.broken = self.broken or isinstance(error, NoCompiler)
            if check_traces() and not self.broken:
                raise
            where = next((str(b.source) for b in region.subsymbols if b.source.file), "")
            warnings.warn(f"no CPU kernels: {error} {f'(for {where})' if where else ''}", FallbackWarning, stacklevel=2)
            return None
        run = compiled_region(region, source, library)
        return replace(region, sym=Symbol(region.sym.name, run), executor=self.name)
