"""Memory for what kernels write. Large results on fresh pages cost more in page faults than most kernels take."""
from __future__ import annotations

import ctypes
from typing import Callable, Iterable, Optional

import torch

from ..ir.proxy import TensorProxy
from ..torch_private import empty_strided, storage_use_count

LARGE = 8 << 20              # bytes from which an allocation is likely to be fresh pages
PAGE = 2 << 20
_ADVICE_HUGE_PAGES = 14      # MADV_HUGEPAGE
KEPT_BYTES = 1 << 30         # of dropped results that are kept for the next one of their size
MOST_OF_A_SIZE = 8           # storages that the pool knows, in use or not


def _madvise() -> Optional[Callable]:
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is not None:
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return function


_MADVISE = _madvise()
_pool: dict[int, list[torch.UntypedStorage]] = {}              # by bytes, the newest last; a thread pops what it looks at
_makers: dict[int, int] = {}                                   # how many there are for results of so many bytes


def as_handed_out(made: dict[int, TensorProxy], outputs: Iterable[TensorProxy]) -> list[TensorProxy]:
    """What a region makes, by storage: where the region hands out a view of all of it, with the sizes of that."""
    whole = {o.storage: o for o in outputs if o.storage in made and o.numel == made[o.storage].numel and o.offset == made[o.storage].offset}
    return [whole.get(storage, p) for storage, p in made.items()]


def maker(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> tuple[Callable, tuple]:
    """(function, its arguments): a call returns an uninitialized tensor of this layout.

    A large one takes the storage of a dropped result of its size, whoever made it, and asks for huge pages otherwise.
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
    """Makes large tensors of one layout. The pool keeps storages of a size while somebody makes tensors of that size."""

    def __init__(self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, nbytes: int) -> None:
        self.shape, self.stride, self.dtype, self.nbytes = shape, stride, dtype, nbytes
        _makers[nbytes] = _makers.get(nbytes, 0) + 1

    def take(self) -> torch.Tensor:
        held = _pool.setdefault(self.nbytes, [])
        storage = _idle(held, self.nbytes)
        if storage is not None:
            made = torch.empty(0, dtype=self.dtype).set_(storage, 0, self.shape, self.stride)
            held.append(storage)
            return made
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        advise_huge_pages(made.data_ptr(), self.nbytes)
        del held[:max(len(held) + 1 - MOST_OF_A_SIZE, 0)]      # the oldest are the user's by now
        if sum(n * len(storages) for n, storages in [*_pool.items()]) + self.nbytes <= KEPT_BYTES:
            held.append(made.untyped_storage())
        return made

    def __del__(self) -> None:
        _makers[self.nbytes] -= 1
        if not _makers[self.nbytes]:
            _pool.pop(self.nbytes, None)


def _idle(held: list[torch.UntypedStorage], nbytes: int) -> Optional[torch.UntypedStorage]:
    """The newest of these storages that nobody else holds, taken out of the list."""
    busy, found = [], None
    while held and found is None:
        try:
            storage = held.pop()
        except IndexError:                                     # another thread took it
            break
        if storage_use_count(storage._cdata) == 1 and storage.nbytes() >= nbytes:
            found = storage
        else:
            busy.append(storage)
    held += reversed(busy)
    return found


def advise_huge_pages(address: int, nbytes: int) -> None:
    """Before the first touch: one fault for 2 MB instead of 512."""
    first, last = -(-address // PAGE) * PAGE, (address + nbytes) // PAGE * PAGE
    if _MADVISE is not None and last > first:
        _MADVISE(first, last - first, _ADVICE_HUGE_PAGES)
