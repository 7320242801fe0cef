"""Where C finds what it reads of tensors and of the thread: found by looking at tensors whose fields are known.

`find_layout()` gives the filled `Layout`, or None when something is not where it is looked for, not to be told apart, or
when this Python runs without its lock: then calls stay in Python.
"""
from __future__ import annotations

import ctypes
import sys
import sysconfig
from typing import Any, Callable, Iterable, Optional

import torch

from ..torch_private import FUNCTIONS, exported, keyset_of

_OBJECTS = ("tensor", "parameter", "integer", "floating", "boolean", "string", "tuple", "list", "dict", "dtype", "device",
            "name_type", "name_index", "name_grad", "name_factory", "trimmed", "name_missed")
_OFFSETS = ("in_object", "keyset", "storage", "sizes", "offset", "dtype_at", "meta", "bytes", "data", "dict_version", "hooks_begin", "hooks_end")
_BITS = ("plain", "inference", "views", "no_autocast")


class Layout(ctypes.Structure):
    """As `tj_layout` in call_key.c: objects, functions, byte offsets, bits of dispatch keysets."""

    _fields_ = ([(n, ctypes.c_void_p) for n in (*_OBJECTS, *FUNCTIONS)] + [(n, ctypes.c_int64) for n in _OFFSETS]
                + [(n, ctypes.c_uint64) for n in _BITS])


def find_layout() -> Optional[Layout]:
    """All but `trimmed`, `name_missed` and `no_autocast`."""
    found = Layout()
    if not objects_are_plain() or keyset_of is None:
        return None
    for name, symbol in FUNCTIONS.items():
        address = exported(symbol)
        if address is None:
            return None
        setattr(found, name, address)
    objects = (torch.Tensor, torch.nn.Parameter, int, float, bool, str, tuple, list, dict, torch.dtype, torch.device,
               *map(sys.intern, ("type", "index", "grad", "default_factory")))
    for name, obj in zip(_OBJECTS, objects):
        setattr(found, name, id(obj))
    for name, offset in {**_tensor_offsets(), **_hook_offsets(found.saved_hooks)}.items():
        if offset is None:
            return None
        setattr(found, name, offset)
    found.dict_version = _version_offset() or 0
    return found if _keysets(found) else None


def objects_are_plain() -> bool:
    """An object is its reference count and then its type, and one thread runs at a time.

    Builds of Python for debugging assert of a class called in C that it says itself how Python calls it.
    """
    if hasattr(sys, "gettotalrefcount"):
        return False
    if sysconfig.get_config_var("Py_GIL_DISABLED") or sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    return all(_word(id(x) + 8) == id(type(x)) for x in (1.5, "text", torch.zeros(1), torch.float32, [1]))


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _half(address: int) -> int:
    return ctypes.c_uint16.from_address(address).value


# ------------------------------------------------------------ tensors

CODES = {torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
          torch.float64: 7, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15}


def probes() -> list[torch.Tensor]:
    """Tensors of 0 to 8 dims, all of different sizes, strides, offsets and dtypes."""
    made = [torch.zeros(40 + 3 * n, dtype=dtype)[n:] for n, dtype in enumerate(CODES)]
    for dims in range(9):
        whole = torch.zeros([2 + (3 * n + dims) % 5 for n in range(dims)], dtype=torch.float32)
        made += [whole, whole.permute(tuple(reversed(range(dims)))), torch.nn.Parameter(whole)]
        if dims:
            made += [whole[1:], whole.narrow(dims - 1, 1, 1), whole[:1].expand([7, *whole.shape[1:]]), whole[:0]]
    flat = torch.zeros(30, dtype=torch.float32)
    return [*made, flat.as_strided((2, 3), (11, 4), 5), flat.clone().requires_grad_(), flat.view(5, 6).mT]


def _only(places: Iterable[int]) -> Optional[int]:
    found = list(places)
    return found[0] if len(found) == 1 else None


def _place(tensors: list, base: Callable, test: Callable, limit: int, step: int = 8) -> Optional[int]:
    """The one offset below `limit` at which `test(address, tensor)` holds for all tensors."""
    places = list(range(0, limit, step))
    for t in tensors:
        start = base(t)
        places = [n for n in places if test(start + n, t)]
    return _only(places)


def _tensor_offsets() -> dict[str, Optional[int]]:
    tensors = probes()
    def impl(t: torch.Tensor) -> int:
        return t._cdata
    def storage(t: torch.Tensor) -> int:
        return t.untyped_storage()._cdata
    return {
        "in_object": _place(tensors, id, lambda a, t: _word(a) == t._cdata, 48),
        "keyset": _place(tensors, impl, lambda a, t: _word(a) == keyset_of(t).raw_repr(), 192),
        "storage": _place(tensors, impl, lambda a, t: _word(a) == t.untyped_storage()._cdata, 192),
        "sizes": _place(tensors, impl, _has_sizes, 192),
        "offset": _place(tensors, impl, lambda a, t: _word(a) == t.storage_offset(), 192),
        "dtype_at": _place([t for t in tensors if t.dtype in CODES], impl, lambda a, t: _half(a) == CODES[t.dtype], 200, 2),
        "meta": _meta_offset(),
        "bytes": _place(tensors, storage, lambda a, t: _word(a) == t.untyped_storage().nbytes(), 96),
        "data": _place(tensors, storage, lambda a, t: _word(a) == t.untyped_storage().data_ptr(), 24),
    }


def _has_sizes(address: int, t: torch.Tensor) -> bool:
    dims = t.dim()
    if _word(address) != dims:
        return False
    size = address + 8 if dims <= 5 else _word(address + 8)
    stride = size + 8 * (5 if dims <= 5 else dims)
    return (size > 4096 and [_word(size + 8 * n) for n in range(dims)] == list(t.shape)
            and [_word(stride + 8 * n) for n in range(dims)] == list(t.stride()))


def _meta_offset() -> Optional[int]:
    """The autograd metadata: no pointer before a tensor first requires gradients, one after that."""
    places = []
    tensors = [torch.zeros(n, dtype=torch.float32) for n in range(1, 6)]
    before = [[_word(t._cdata + n) for n in range(0, 160, 8)] for t in tensors]
    for t in tensors:
        t.requires_grad_()
    after = [[_word(t._cdata + n) for n in range(0, 160, 8)] for t in tensors]
    for n in range(20):
        if all(b[n] == 0 and a[n] > 4096 for b, a in zip(before, after)):
            places.append(8 * n)
    return _only(places)


def _keysets(found: Layout) -> bool:
    """The keysets of plain tensors, of those of inference mode, and the bits of conjugate and negative views."""
    def bits(t: torch.Tensor) -> int:
        return keyset_of(t).raw_repr()
    z = torch.zeros(2, dtype=torch.complex64)
    with torch.inference_mode():
        found.inference = bits(torch.zeros(2, dtype=torch.float32))
    found.plain = bits(torch.zeros(2, dtype=torch.float32))
    found.views = bits(z.conj()) ^ bits(z) | bits(z.conj().imag) ^ bits(z.imag)
    return bits(z) == found.plain and bits(z.conj().imag) & ~found.views == found.plain


# ------------------------------------------------------------ dictionaries

def _version_offset() -> Optional[int]:
    """Where a dictionary holds a number that every change makes another one, in all dictionaries; None: nowhere.

    From 3.13 on, an attribute may be written past the dictionary that shows it.
    """
    if sys.version_info >= (3, 13):
        return None
    names = [{f"name{n}": object() for n in range(5)} for _ in range(4)]
    def numbers(at: int) -> list[int]:
        return [_word(id(d) + at) for d in names]
    places = []
    for at in (24, 16):
        seen = [numbers(at)]
        for change in (lambda d: d.update(name1=object()), lambda d: d.update(new=1), lambda d: d.pop("new"), dict.clear,
                       lambda d: d.setdefault("name0", 2), lambda d: d.__setitem__("name0", 3), lambda d: d.__delitem__("name0")):
            list(map(change, names))
            seen.append(numbers(at))
        reads = numbers(at)
        for d in names:
            d.get("name0"), list(d), d == {}, d.copy()
        every = [n for row in seen for n in row]
        if len(set(every)) == len(every) and 0 not in every and numbers(at) == reads:
            places.append(at)
        names = [{f"name{n}": object() for n in range(5)} for _ in range(4)]
    return _only(places)


# ------------------------------------------------------------ hooks on saved tensors

def _hook_offsets(function: int) -> dict[str, Optional[int]]:
    """Begin and end of the thread's stack of hooks: equal iff there are none."""
    state = ctypes.CFUNCTYPE(ctypes.c_void_p)(function)
    def words() -> list[int]:
        address = state()
        return [_word(address + 8 * n) for n in range(10)]
    depths = [words()]
    for _ in range(2):
        hooks = torch.autograd.graph.saved_tensors_hooks(_same, _same)
        with hooks:
            depths.append(words())
            with torch.autograd.graph.saved_tensors_hooks(_same, _same):
                depths.append(words())
        depths.append(words())
    none, one, two, again, *_ = depths
    ends = [n for n in range(10) if 0 < one[n] - none[n] == two[n] - one[n] and none[n] == again[n] == depths[-1][n]]
    begins = [n for n in range(10) if ends and len({w[n] for w in depths}) == 1 and none[n] == none[ends[0]] and n != ends[0]]
    if len(ends) != 1 or not begins:
        return {"hooks_begin": None, "hooks_end": None}
    return {"hooks_begin": begins[0], "hooks_end": ends[0]}


def _same(x: Any) -> Any:
    return x
