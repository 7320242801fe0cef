"""Proxies: the names of a trace, with the metadata of what they stand for."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from .cached import cached_property
from .extents import as_extent, as_extents, is_extent
from .memory import ByteRegion, byte_region, overlaps


@dataclass(frozen=True, eq=False)
class TensorProxy:
    """One tensor under one metadata: `unsqueeze_` gives the same object a new proxy.

    Two proxies share memory iff they have the same `storage`; `offset` and `stride` (both in elements) and `shape` say
    which part of it. Proxies compare by identity.
    """

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    storage: int
    offset: int = 0
    conj: bool = False
    neg: bool = False
    requires_grad: bool = False
    number: bool = False                 # a Python float of the program, held as a tensor of no dims in float64

    @cached_property
    def bytes(self) -> ByteRegion:
        return byte_region(self.offset, self.shape, self.stride, self.dtype.itemsize)

    @property
    def reading(self) -> tuple:
        """How the bytes are read: equal bytes read differently are not equal values."""
        return (self.dtype, self.conj, self.neg)

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def has_open_sizes(self) -> bool:
        """Is a size, a stride or the offset an `Extent`?"""
        return any(map(is_extent, (*self.shape, *self.stride, self.offset)))

    def same_view(self, other: "TensorProxy") -> bool:
        """The same bytes of a storage, in the same order, read the same way."""
        return self.bytes == other.bytes and self.reading == other.reading

    def same_layout(self, other: "TensorProxy") -> bool:
        """Same dtype, shape and strides (where they matter): a view step recorded on one holds on the other."""
        return (self.reading == other.reading and self.shape == other.shape
                and (not self.numel or all(n == 1 or s == t for n, s, t in zip(self.shape, self.stride, other.stride))))

    def describe(self) -> str:
        """`f32[2, 3]`, with strides when they are not those of a contiguous tensor; `float` for a number."""
        if self.number:
            return "float"
        text = f"{DTYPE_NAMES.get(self.dtype, str(self.dtype).removeprefix('torch.'))}{list(self.shape)}"
        return text if self.stride == contiguous_stride(self.shape) else f"{text} stride {list(self.stride)}"

    def __repr__(self) -> str:
        return f"{self.name}: {self.describe()}"


@dataclass(frozen=True, eq=False)
class TensorConstant:
    """A tensor made by the program from Python data, such as `torch.tensor([1., 2.])`: cloned wherever it is used."""

    value: torch.Tensor

    def __repr__(self) -> str:
        return f"constant {tuple(self.value.shape)}"


DTYPE_NAMES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
               torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8",
               torch.bool: "bool", torch.complex64: "c64", torch.complex128: "c128"}


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides (in elements) of a contiguous tensor of this shape."""
    stride, step = [], 1
    for n in reversed(shape):
        stride.append(step)
        step *= max(n, 1)
    return tuple(reversed(stride))


def layout_is_ambiguous(tensors: list[TensorProxy]) -> bool:
    """Do kernels and their descriptions without data disagree on the strides of a result?

    They do where a dimension of size 1, or a tensor without elements, has other strides than a contiguous tensor's,
    and where operands of one shape are laid out differently.
    """
    layouts: dict[tuple[int, ...], tuple[int, ...]] = {}
    for p in tensors:
        if layouts.setdefault(p.shape, p.stride) != p.stride:
            return True
        if 0 in p.shape and p.stride != contiguous_stride(p.shape):
            return True
        step = 1
        for n, s in zip(reversed(p.shape), reversed(p.stride)):
            if n == 1 and s != step:
                return True
            step = s * n
    return False


def proxy_of(name: str, tensor: torch.Tensor, storage: int) -> TensorProxy:
    """The proxy for `tensor` (real, fake or meta) as it is now."""
    return TensorProxy(name, as_extents(tensor.shape), as_extents(tensor.stride()), tensor.dtype, tensor.device, storage,
                       as_extent(tensor.storage_offset()), tensor.is_conj(), tensor.is_neg(), tensor.requires_grad)


def some_number(x: Any) -> Any:
    """For runs without data: a Python float in the place of a number, anything else as it is."""
    return 0.5 if isinstance(x, TensorProxy) and x.number else x


def is_proxy(x: Any) -> bool:
    return isinstance(x, TensorProxy)


def is_racy(args: list, written: tuple[int, ...]) -> bool:
    """Is memory read while it is written, other than index for index, or written twice?

    A call that writes several tensors (a foreach op) writes them one after another: whatever meets one of them counts.
    """
    of_storage: dict[int, list[tuple[int, TensorProxy]]] = {}
    for j, a in enumerate(args):
        if isinstance(a, TensorProxy):
            of_storage.setdefault(a.storage, []).append((j, a))
    for i in written:
        w = args[i]
        if w.bytes.overlaps_itself:
            return True
        for j, a in of_storage[w.storage]:
            if j != i and overlaps(a.bytes, w.bytes) and (len(written) > 1 or not a.same_view(w) or a.stride != w.stride):
                return True
    return False
