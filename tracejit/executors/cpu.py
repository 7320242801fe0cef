"""The CPU fuser: a region becomes C kernels, compiled by the system's compiler.

Without a compiler, or when one fails, regions go to the torch fallback, and one warning says so.
"""
from __future__ import annotations

import ctypes
import warnings
from dataclasses import replace
from typing import Any, Callable, Optional

import torch

from ..codegen.calls import Call, call_of
from ..codegen.kernel import DTYPES, CannotLower
from ..codegen.ops import compute_dtype, row_of
from ..codegen.source import ENTRY, Source, source_of
from ..codegen.values import is_operand
from ..errors import FallbackWarning, TraceError
from ..ir.prims import restride
from ..ir.proxy import TensorConstant, TensorProxy
from ..ir.symbol import Symbol
from ..ir.trace import BoundSymbol
from ..options import check_traces
from .buffers import allocator
from .kernel_cache import CompilerError, KernelCache, NoCompiler
from .registry import Executor

ERRORS = {1: (IndexError, "index out of range in self"), 2: (RuntimeError, "index is out of bounds"),
          3: (RuntimeError, "ZeroDivisionError")}


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
        run = runner(region, source, library)
        return replace(region, sym=Symbol(region.sym.name, run), executor=self.name)


# ------------------------------------------------------------ what can be fused

def can_lower(b: BoundSymbol) -> bool:
    """Is every element of this call's result known how to compute?"""
    if b.sym.opaque or b.sym.random or not _plain_tensors(b):
        return False
    if b.sym.is_copy:
        return _can_store(b)
    if b.written or b.sym.overload is not None and b.sym.overload.namespace != "aten":
        return False
    call = call_of(b)
    if call.is_view:
        return all(o.dtype is a.dtype for o in b.tensor_outputs for a in b.tensor_args if a.storage == o.storage)
    return _can_compute(call)


def _plain_tensors(b: BoundSymbol) -> bool:
    every = [*b.tensor_args, *b.tensor_outputs]
    return bool(b.tensor_outputs) and all(
        p.device.type == "cpu" and p.dtype in DTYPES and p.numel and not p.conj and not p.neg for p in every)


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


# ------------------------------------------------------------ calling

def runner(region: BoundSymbol, source: Source, library: ctypes.CDLL) -> Callable[..., list]:
    """A function of the region's tensors that returns the list of its results."""
    entry = library[ENTRY]
    entry.restype, entry.argtypes = ctypes.c_int, [ctypes.c_int, ctypes.c_void_p]
    args = region.args
    arg_of = {}
    for n, a in enumerate(args):
        if isinstance(a, TensorProxy):
            arg_of.setdefault(a.storage, n)
    unsettled = [*range(len(args))]
    written = {w.storage for w in region.written}
    scope: dict[str, Any] = {"entry": entry, "threads": torch.get_num_threads, "fail": _fail, "unsettled": unsettled,
                             "settled": lambda *given: _settled(args, written, unsettled, given),
                             "Table": ctypes.c_void_p * max(len(source.buffers), 1)}
    names = [f"x{n}" for n in range(len(args))]
    lines = [f"def run({', '.join(names)}):"]
    if names:
        lines.append(f"    if unsettled: {', '.join(names)}, = settled({', '.join(names)})")
    for storage, root in source.made.items():
        scope[f"new_{storage}"] = allocator(root.shape, root.stride, root.dtype)
        lines.append(f"    s{storage} = new_{storage}()")
    pointers = []
    for b in source.buffers:
        made = source.made.get(b.storage)
        shown = args[arg_of[b.storage]] if made is None else made
        holder, offset = names[arg_of[b.storage]] if made is None else f"s{b.storage}", shown.bytes.offset
        if not shown.numel:                                    # a tensor without elements does not tell its address
            holder, offset = f"{holder}.untyped_storage()", 0
        pointers.append(f"{holder}.data_ptr()" + (f" - {offset}" if offset else ""))
    if pointers:
        lines.append(f"    bad = entry(threads(), Table({', '.join(pointers)}))")
        if source.checks:
            lines += ["    if bad:", "        fail(bad)"]
    lines.append(f"    return [{', '.join(_result(o, source, args, arg_of, names) for o in region.flat_outputs)}]")
    exec(compile("\n".join(lines), f"<{region.sym.name}>", "exec"), scope)
    run = scope["run"]
    run.source = source                                        # text, kernels and bytes, for whoever asks
    return run


def _result(o: TensorProxy, source: Source, args: tuple, arg_of: dict[int, int], names: list[str]) -> str:
    """A made storage's root, or a view of it or of an argument."""
    if o.storage in source.made:
        root = source.made[o.storage]
        if (o.shape, o.stride, o.offset) == (root.shape, root.stride, root.offset):
            return f"s{o.storage}"
        return f"s{o.storage}.as_strided({o.shape}, {o.stride}, {o.offset - root.offset})"
    n = arg_of[o.storage]
    return f"{names[n]}.as_strided({o.shape}, {o.stride}, {names[n]}.storage_offset() + {o.offset - args[n].offset})"


def _settled(proxies: tuple, written: set[int], unsettled: list[int], given: tuple) -> list[torch.Tensor]:
    """The arguments, laid out as the kernel takes them. What the first call shows holds for all: layouts are guarded, and
    a call of torch lays its result out by those of its arguments. Names in `unsettled` what must be copied each time."""
    odd = [n for n in unsettled if given[n].dtype is not proxies[n].dtype or given[n].shape != proxies[n].shape
           or any(s != t for k, s, t in zip(proxies[n].shape, proxies[n].stride, given[n].stride()) if k > 1)]
    if odd and (check_traces() or any(proxies[n].storage in written for n in odd)):
        raise TraceError(f"{proxies[odd[0]]!r} came as {given[odd[0]].shape} stride {given[odd[0]].stride()}")
    unsettled[:] = odd
    return [restride(t, p.shape, p.stride) if n in odd else t for n, (t, p) in enumerate(zip(given, proxies))]


def _fail(code: int) -> None:
    kind, message = ERRORS[code]
    raise kind(message)


