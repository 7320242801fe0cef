"""The real kernel as a judge: an op run on scratch memory laid out like its arguments.

Fakes accept calls that eager refuses (overlapping writes, dtypes without a kernel), refuse some that it accepts, and
do not know all strides that kernels choose. Zeros of the same layout tell, and no tensor of the user is touched.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Hashable, Iterable, Optional

import torch

from ..errors import UnsupportedError
from ..ir import prims
from ..ir.extents import is_extent, now, settled
from ..ir.proxy import TensorProxy, contiguous_stride, is_racy, layout_is_ambiguous, some_number
from ..ir.symbol import LAYOUTS_THAT_LIE, Symbol
from ..ir.trees import flat_leaves, map_leaves, with_leaves
from ..torch_private import new_fake
from .fakes import real_tensors

_VIEW, _SELECT = torch.ops.aten.view.default, torch.ops.aten.select.int

_TRUSTS_ITS_ARGUMENTS = ("mkldnn_rnn_layer",)          # addresses memory by the numbers and by the workspace that it is given


def _may_run(sym: Symbol) -> bool:
    """May it run on zeros? Operations of the user's own may do anything: they run when the program does."""
    return sym.overload.namespace == "aten" and not sym.packet.startswith(_TRUSTS_ITS_ARGUMENTS)


def layout_is_uncertain(sym: Symbol, tensors: list[TensorProxy]) -> bool:
    """May a kernel choose other strides for its result than fake tensors say?"""
    if not _may_run(sym):
        return False
    if layout_is_ambiguous(tensors) or any(0 in p.shape for p in tensors):
        return True
    odd = any(p.stride != contiguous_stride(p.shape) for p in tensors)
    return odd and (sym.packet in LAYOUTS_THAT_LIE or sym.pointwise and (
        len({p.shape for p in tensors}) > 1 or any(map(_is_taken_for_channels_last, tensors))))


def _is_taken_for_channels_last(p: TensorProxy) -> bool:
    """Fakes give the result of a pointwise call the strides of channels_last where the operand's are those but for sizes of 1."""
    if len(p.shape) != 4 or 1 not in p.shape:
        return False
    _, c, h, w = p.shape
    strides = (h * w * c, 1, w * c, c)
    return p.stride != strides and all(size == 1 or a == b for size, a, b in zip(p.shape, p.stride, strides))


def raise_if_eager_refuses(func: Any, before: list, call: tuple[tuple, dict], written: tuple[int, ...]) -> None:
    """Fakes do not notice overlapping memory: ask the kernel, on scratch memory laid out alike."""
    if is_racy(before, written):
        run_on_scratch(func, before, call)


def raise_if_no_view(func: Any, before: list) -> None:
    """`view` of fakes takes dimensions of size 1 for a licence to merge any others, and `select` a dim that is none: ask the
    real functions, without memory."""
    if func not in (_VIEW, _SELECT):
        return
    t, *rest = before
    if func is _SELECT or 1 in t.shape and t.stride != contiguous_stride(t.shape):
        value = now if func is _SELECT else settled            # which dim it is depends on no size
        with real_tensors():
            func(torch.empty_strided([*map(value, t.shape)], [*map(value, t.stride)], device="meta"),
                 *map(value, rest) if func is _SELECT else [[*map(value, rest)]])


def raise_beyond_storage(nbytes: int, *, self: torch.Tensor, size: Any, stride: Any, storage_offset: Optional[int] = None, **_: Any) -> None:
    """Fakes have no data, and let `as_strided` and its like name memory beyond the `nbytes` of self's storage."""
    offset = self.storage_offset() if storage_offset is None else storage_offset
    needed = (offset + 1 + sum((n - 1) * s for n, s in zip(size, stride))) * self.dtype.itemsize
    if 0 not in size and needed > nbytes:
        raise RuntimeError(f"as_strided: {needed} bytes of a storage of {nbytes}")


def run_on_scratch(func: Any, before: list, call: tuple[tuple, dict], tiny: bool = False) -> tuple[list, Any]:
    """Run an op on zeros laid out like its arguments, for the errors that its real kernel raises: (arguments, result).

    tiny: on no more than two elements a dim, to learn which dtypes it takes. (Of one, a variance warns.)
    """
    ends: dict[int, int] = {}
    for p in before:
        if isinstance(p, TensorProxy):
            ends[p.storage] = max(ends.get(p.storage, 0), p.bytes.end)
    with real_tensors():
        raw = {} if tiny else {s: torch.zeros(settled(end) + 16, dtype=torch.uint8) for s, end in ends.items()}

        def scratch(p: Any) -> Any:
            if not isinstance(p, TensorProxy) or p.number:
                return (now if tiny else settled)(some_number(p))
            if tiny:
                return torch.zeros([2 if n >= 2 else n for n in p.shape], dtype=p.dtype)
            shape, stride = [*map(settled, p.shape)], [*map(settled, p.stride)]
            return prims.region_view(raw[p.storage], shape, stride, settled(p.offset), p.dtype, p.conj, p.neg)
        flat = [scratch(p) for p in before]
        args, kwargs = with_leaves(call, flat)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return flat, func(*args, **kwargs)
        generator = torch.get_rng_state()
        try:
            return flat, func(*args, **kwargs)
        finally:
            torch.set_rng_state(generator)


def real_strides(sym: Symbol, before: list, call: tuple[tuple, dict]) -> list[tuple[tuple, tuple]]:
    """(shape, strides) of each tensor that the real kernel makes, on scratch memory."""
    tensors = _tensors(before)
    most = max((p.numel for p in tensors), default=0)
    if not sym.pointwise or any(0 in p.shape or p.numel == most and _is_dense_but_for_ones(p) for p in tensors):
        return _layouts(run_on_scratch(sym.fn, before, call)[1])
    sizes = {n for p in tensors for n in p.shape}
    small = {n: k for k, n in enumerate(sorted(sizes | {1}), 1)}        # 1, 2, 3 ... compare as the sizes do
    shrunk = [_shrunk(p, small, k) if isinstance(p, TensorProxy) and not p.number else p for k, p in enumerate(before)]
    large = {m: n for n, m in small.items()}
    found = [_strides_in_order(shape, stride, tuple(large[n] for n in shape))
             for shape, stride in _layouts(run_on_scratch(sym.fn, shrunk, call)[1])]
    return _layouts(run_on_scratch(sym.fn, before, call)[1]) if None in found else found


def _is_dense_but_for_ones(p: TensorProxy) -> bool:
    """A kernel may keep the strides that such a tensor has in dims of size 1: no smaller one stands for it."""
    large = [(n, s) for n, s in zip(p.shape, p.stride) if n != 1]
    shape, stride = tuple(n for n, _ in large), tuple(s for _, s in large)
    return _strides_in_order(p.shape, p.stride, p.shape) is None and _strides_in_order(shape, stride, shape) is not None


def _tensors(flat: list) -> list[TensorProxy]:
    return [p for p in flat if isinstance(p, TensorProxy) and not p.number]


def _layouts(made: Any) -> list[tuple[tuple, tuple]]:
    return [(tuple(t.shape), t.stride()) for t in flat_leaves((made,)) if isinstance(t, torch.Tensor)]


def _shrunk(p: TensorProxy, small: dict[int, int], storage: int) -> TensorProxy:
    """A tensor of fewer elements whose sizes and strides compare as those of `p`, dense if `p` is."""
    shape = tuple(small[n] for n in p.shape)
    dense = _strides_in_order(p.shape, p.stride, shape)
    stride = dense[1] if dense is not None else _with_gaps(p.stride, shape) if any(map(is_extent, p.stride)) else p.stride
    return replace(p, shape=shape, stride=stride, offset=0, storage=storage)


def _with_gaps(stride: tuple, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in the order of these, for dims that do not lie side by side."""
    found, step = [0] * len(stride), 1
    for d in sorted((d for d, s in enumerate(stride) if s != 0), key=lambda d: (stride[d], shape[d])):
        found[d] = step = step + (step == 1 and stride[d] != 1)
        step = step * shape[d] + 1
    return tuple(found)


def _strides_in_order(shape: tuple, stride: tuple, wanted: tuple) -> Optional[tuple[tuple, tuple]]:
    """`wanted`, and strides for it in the order of a dense tensor's dims; None when the tensor is not dense."""
    found, step, wanted_step = [0] * len(shape), 1, 1
    for d in sorted(range(len(shape)), key=lambda d: (stride[d], shape[d])):
        if stride[d] != step:
            return None
        found[d] = wanted_step
        step, wanted_step = step * shape[d], wanted_step * wanted[d]
    return wanted, tuple(found)


def _kind(a: Any) -> Hashable:
    """Of an argument that is no tensor; a number that may choose among results, or that some dtype does not hold, is one of its own."""
    if is_extent(a):
        return int
    return (type(a), a) if type(a) in (bool, int, float) and not 2 < a < 128 else type(a)


# Signatures that the real kernels are known to take, with the dtypes of the results where fakes tell others.
_taken: dict[Hashable, Optional[tuple[Optional[torch.dtype], ...]]] = {}


def _ask(sym: Symbol, before: list, call: tuple[tuple, dict]) -> Any:
    """What it makes of a few elements of each; where it dislikes that, and a pointwise op does not by its nature, of all of them."""
    try:
        return run_on_scratch(sym.fn, before, call, tiny=True)[1]
    except NotImplementedError:
        raise                                                  # no kernel for these dtypes, whatever the sizes
    except (RuntimeError, ValueError, TypeError, IndexError):
        dislikes_zeros = sym.may_raise([torch.int64])
        rare = any(isinstance(a, TensorProxy) and (a.dtype.is_complex or a.dtype is torch.bool or 0 in a.shape) for a in before)
        if not dislikes_zeros and (sym.pointwise or rare or sym.packet.startswith("_foreach")):
            return run_on_scratch(sym.fn, before, call)[1]
    return None


def as_kernel_says(sym: Symbol, before: list, call: tuple[tuple, dict], out: Any) -> Any:
    """`out`, what fakes make of a call, of the dtypes that the real kernel gives. Fakes take dtypes that it refuses, and scalars that
    these do not hold, and some tell another number of dims: ask it once for each op and dtypes."""
    if not _may_run(sym) or sym.over_storage or any(isinstance(a, (torch.Generator, torch.UntypedStorage)) for a in before):
        return out
    key = (sym.overload, tuple((a.dtype, len(a.shape), 0 in a.shape) if isinstance(a, TensorProxy) else _kind(a) for a in map(some_number, before)))
    if key not in _taken:
        with real_tensors():
            state = torch.get_rng_state() if sym.random else None
        try:
            made = _ask(sym, before, call)
        finally:
            if state is not None:
                with real_tensors():
                    torch.set_rng_state(state)
        _taken[key] = _other_dtypes(sym, zip(flat_leaves((out,)), flat_leaves((made,))))     # of few elements it may make fewer
    dtypes = _taken[key]
    if dtypes is None:
        return out
    real = {id(t): dtype for t, dtype in zip(flat_leaves((out,)), dtypes) if dtype is not None}
    return map_leaves(lambda t: _of_dtype(t, real[id(t)]) if id(t) in real else t, out)


def _other_dtypes(sym: Symbol, results: Iterable[tuple[Any, Any]]) -> Optional[tuple[Optional[torch.dtype], ...]]:
    """Of results as told and as they are: the real dtypes, unless all are as told. UnsupportedError for another number of dims."""
    found, same = [], True
    for told, real in results:
        both = isinstance(told, torch.Tensor) and isinstance(real, torch.Tensor)
        if both and told.dim() != real.dim():
            raise UnsupportedError(f"fake tensors say that {sym.name} makes a tensor of {told.dim()} dims, and it makes one of {real.dim()}: "
                                   "call it outside of the jitted function")
        found.append(real.dtype if both else None)
        same = same and (not both or told.dtype is real.dtype)
    return None if same else tuple(found)


def _of_dtype(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return t if t.dtype is dtype else new_fake(t.fake_mode, t.shape, t.stride(), dtype, t.device)


def order_shows(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do the strides of a comparison's result depend on which operand comes first?"""
    with real_tensors():
        x, y = (torch.empty_strided(t.shape, t.stride()) for t in (a, b))
        return (x == y).stride() != (y == x).stride()
