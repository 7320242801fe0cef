"""The CPU fuser: a region becomes C kernels, compiled by the system's compiler.

Without a compiler, or when one fails, regions go to the torch fallback, and one warning says so.
"""
from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Optional

import torch

from ..codegen.calls import Call, call_of
from ..codegen.kernel import DTYPES, CannotLower
from ..codegen.ops import compute_dtype, row_of
from ..codegen.source import source_of
from ..codegen.values import is_operand
from ..errors import FallbackWarning
from ..ir.proxy import TensorConstant
from ..ir.symbol import Symbol
from ..ir.trace import BoundSymbol
from ..options import check_traces
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


# ------------------------------------------------------------ what can be fused

def can_lower(b: BoundSymbol, device: str = "cpu") -> bool:
    """Is every element of this call's result known how to compute, and all of it on this type of device?"""
    if b.sym.opaque or b.sym.random or not _plain_tensors(b, device):
        return False
    if b.sym.is_copy:
        return _can_store(b)
    if b.written or b.sym.overload is not None and b.sym.overload.namespace != "aten":
        return False
    call = call_of(b)
    if call.is_view:
        return all(o.dtype is a.dtype for o in b.tensor_outputs for a in b.tensor_args if a.storage == o.storage)
    return _can_compute(call)


def _plain_tensors(b: BoundSymbol, device: str) -> bool:
    every = [*b.tensor_args, *b.tensor_outputs]
    return bool(b.tensor_outputs) and all(
        p.device.type == device and p.dtype in DTYPES and p.numel and not p.conj and not p.neg for p in every)


def _can_store(b: BoundSymbol) -> bool:
    if len(b.tensor_args) != 2:
        return False
    target, value = b.args[0], b.args[1]
    return target.shape == value.shape and target.dtype is value.dtype and not target.bytes.overlaps_itself and (
        target.storage != value.storage or target.same_view(value))


def _can_compute(call: Call) -> bool:
    row = row_of(call)
    if row is None or not row.accepts(call):
        return False
    if any(isinstance(a, (TensorConstant, complex)) for a in call.bsym.flat_args) and call.name != "constant":
        return False
    if any(o.bytes.overlaps_itself for o in call.bsym.tensor_outputs):
        return False
    if row.kind == "elementwise":
        return (all(is_operand(call.args[n]) for n in row.inputs) and compute_dtype(row, call) in row.dtypes
                and _zero_dim_operands_ok(call))
    return call.dtype in row.dtypes


def _zero_dim_operands_ok(call: Call) -> bool:
    """Eager keeps a zero-dimensional operand of another dtype at full precision beside halves, in some ops."""
    dtype = call.dtype
    return not (dtype in (torch.bfloat16, torch.float16) and call.name not in ("_to_copy", "copy", "where", "masked_fill") and any(
        a.shape == () and a.dtype is not dtype and a.dtype.is_floating_point for a in call.tensors))
