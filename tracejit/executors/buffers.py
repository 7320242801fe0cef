"""Memory for what kernels write. Large results on fresh pages cost more in page faults than most kernels take."""
from __future__ import annotations

import ctypes
from typing import Callable, Optional

import torch

from ..torch_private import empty_strided, storage_use_count

LARGE = 8 << 20              # bytes from which an allocation is likely to be fresh pages
PAGE = 2 << 20
_ADVICE_HUGE_PAGES = 14      # MADV_HUGEPAGE
KEPT_BYTES = 1 << 30         # of dropped results that all allocators together keep for the next call


def _madvise() -> Optional[Callable]:
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is not None:
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return function


_MADVISE = _madvise()
_kept: dict[int, int] = {}                                     # bytes by allocator


def maker(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> tuple[Callable, tuple]:
    """(function, its arguments): a call returns an uninitialized tensor of this layout.

    A large one takes its last result's storage again once nobody else holds it, and asks for huge pages otherwise.
    """
    nbytes = (1 + sum(s * (n - 1) for s, n in zip(stride, shape))) * dtype.itemsize if all(shape) else 0
    if nbytes < LARGE:
        return (empty_strided, (shape, stride, dtype)) if empty_strided is not None else (_empty, (shape, stride, dtype))
    return _Recycler(shape, stride, dtype, nbytes).take, ()


def allocator(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    """As one function."""
    function, arguments = maker(shape, stride, dtype)
    return lambda: function(*arguments)


def _empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype)


class _Recycler:
    def __init__(self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, nbytes: int) -> None:
        self.shape, self.stride, self.dtype, self.nbytes = shape, stride, dtype, nbytes
        self.held: list[torch.UntypedStorage] = []             # at most one; popped while a thread looks at it

    def take(self) -> torch.Tensor:
        try:
            held = self.held.pop()
        except IndexError:
            held = None
        if held is not None and storage_use_count(held._cdata) == 1 and held.nbytes() >= self.nbytes:
            made = torch.empty(0, dtype=self.dtype).set_(held, 0, self.shape, self.stride)
            self.held.append(held)
            return made
        _kept.pop(id(self), None)                              # the user keeps it: it is not ours to count
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        advise_huge_pages(made.data_ptr(), self.nbytes)
        if sum(_kept.values()) + self.nbytes <= KEPT_BYTES:
            self.held[:] = [made.untyped_storage()]
            _kept[id(self)] = self.nbytes
        return made

    def __del__(self) -> None:
        _kept.pop(id(self), None)


def advise_huge_pages(address: int, nbytes: int) -> None:
    """Before the first touch: one fault for 2 MB instead of 512."""
    first, last = -(-address // PAGE) * PAGE, (address + nbytes) // PAGE * PAGE
    if _MADVISE is not None and last > first:
        _MADVISE(first, last - first, _ADVICE_HUGE_PAGES)
