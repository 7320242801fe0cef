"""What can be fused: which calls a kernel can compute, and why the others are left to torch."""
from __future__ import annotations

import torch

from ..codegen.calls import Call, call_of
from ..codegen.kernel import DTYPES, HALVES
from ..codegen.ops import compute_dtype, row_of
from ..codegen.values import is_operand
from ..ir.proxy import TensorConstant
from ..ir.trace import BoundSymbol

MOST_CALLS = 2000            # of a region, views not counted


def can_lower(b: BoundSymbol, device: str = "cpu", dialect: str = "") -> bool:
    """Is every element of this call's result known how to compute, and all of it on this type of device?

    dialect: "cpu" or "cuda", of the kernels; by default the device's own.
    """
    return not why_not_lowered(b, device, dialect)


def why_not_lowered(b: BoundSymbol, device: str = "cpu", dialect: str = "") -> str:
    """Why it is not known how to compute the elements of this call's result on this type of device; "" when it is."""
    if b.sym.opaque or b.sym.random:
        return "it draws random numbers" if b.sym.random else "its effects are not all known"
    odd = _odd_tensor(b, device)
    if odd:
        return odd
    if b.sym.is_copy:
        stores = b.tensor_outputs and _can_store(b)
        return "" if stores else "the destination of the copy has another shape or dtype, or overlaps itself or the value"
    if b.written or b.sym.overload is not None and b.sym.overload.namespace != "aten":
        return "it writes memory in a way of its own" if b.written else "no kernel is known for a custom op"
    if not b.tensor_outputs:
        return "it makes no tensor"
    if (dialect or device) != "cpu" and b.sym.numbers:
        return "Python's arithmetic on floats is the host's"
    call = call_of(b)
    if call.is_view:
        same = all(o.dtype is a.dtype for o in b.tensor_outputs for a in b.tensor_args if a.storage == o.storage)
        return "" if same else "it views bytes as another dtype"
    if (dialect or device) != "cpu" and row_of(call) is not None and row_of(call).kind == "scan":
        return f"{call.name} runs along a dim one element after another"
    return _why_not_computed(call)


def _odd_tensor(b: BoundSymbol, device: str) -> str:
    for p in (*b.tensor_args, *b.tensor_outputs):
        if p.number and p not in b.tensor_outputs:             # by value, to any device
            continue
        if p.device.type != device or p.dtype not in DTYPES:
            return f"{p!r} is on {p.device}" if p.dtype in DTYPES else f"no kernels hold {p.dtype}"
        if not p.numel or p.conj or p.neg:
            return f"{p!r} has no elements" if not p.numel else f"{p!r} is conjugated or negated lazily"
    return ""


def _can_store(b: BoundSymbol) -> bool:
    if len(b.tensor_args) != 2:
        return False
    target, value = b.args[0], b.args[1]
    return target.shape == value.shape and target.dtype is value.dtype and not target.bytes.overlaps_itself and (
        target.storage != value.storage or target.same_view(value))


# Kernels compute with a number that is known at run time as with a constant in these; others choose formulas by its value.
_TAKES_NUMBERS = frozenset("add sub rsub mul div addcmul addcdiv lerp fill eq ne lt le gt ge".split())


def _why_not_computed(call: Call) -> str:
    row = row_of(call)
    if not call.bsym.sym.numbers and any(a.number for a in call.tensors) and (call.name not in _TAKES_NUMBERS or call.dtype in HALVES):
        return "a number that is known at run time alone: keep it a tensor, without .item()"
    if row is None:
        return f"no kernel is known for {call.name}"
    if not row.accepts(call):
        return f"kernels for {call.name} do not take these arguments"
    if any(isinstance(a, (TensorConstant, complex)) for a in call.bsym.flat_args) and call.name != "constant":
        return "it takes a constant that has no form in C"
    if any(o.bytes.overlaps_itself for o in call.bsym.tensor_outputs):
        return "elements of its result share memory"
    if row.kind != "elementwise":
        return "" if call.dtype in row.dtypes else f"kernels for {call.name} do not take {call.dtype}"
    if not all(is_operand(call.args[n]) for n in row.inputs) or compute_dtype(row, call) not in row.dtypes:
        return f"kernels for {call.name} do not take these operands or dtypes"
    return "" if _zero_dim_operands_ok(call) else (
        "a half-precision op keeps a 0-dimensional operand at full precision: give it the dtype of the others")


def _zero_dim_operands_ok(call: Call) -> bool:
    """Eager keeps a zero-dimensional operand of another dtype at full precision beside halves, in some ops."""
    dtype = call.dtype
    return not (dtype in (torch.bfloat16, torch.float16) and call.name not in ("_to_copy", "copy", "where", "masked_fill") and any(
        a.shape == () and a.dtype is not dtype and a.dtype.is_floating_point for a in call.tensors))
