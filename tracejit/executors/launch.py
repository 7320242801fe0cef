"""A region's compiled kernels as a callable: allocate what it makes, pass pointers, return the results.

What autograd saved must know that it was written: the versions of written arguments go up, as eager's do.
Done by a launcher in C, one for all regions, where torch tells it how to find a tensor's data; else in Python.
"""
from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Optional

import torch
from torch.autograd.graph import increment_version

from ..codegen.kernel import MESSAGES
from ..codegen.sizes import table
from ..codegen.source import ENTRY, Source
from ..errors import TraceError
from ..ir.prims import restride
from ..ir.proxy import TensorProxy
from ..ir.settling import Settling
from ..ir.trace import BoundSymbol
from ..options import check_traces
from ..torch_private import tensor_data_function
from .buffers import as_handed_out, maker
from .kernel_cache import CompilerError, Library, PartInC

_KINDS = {1: IndexError, 2: RuntimeError, 3: RuntimeError, 4: IndexError, 5: RuntimeError, 6: ZeroDivisionError,
          7: ArithmeticError, 8: ZeroDivisionError}
ERRORS = {code: (kind, MESSAGES[code]) for code, kind in _KINDS.items()}
UNLOCKED = 1 << 20           # bytes or operations from which other Python threads may run meanwhile
_CALL = "tj_launch"
LAUNCHER = PartInC(Path(__file__).parent / "launcher.c")


@dataclass(eq=False)
class CompiledRegion:
    """`launch(*args)` runs the region and returns the list of its results; `source`: text, kernels and bytes.

    Calling it verifies first that the arguments are laid out as the kernels take them. What one call shows holds for
    all: layouts are guarded, and a call of torch lays its result out by those of its arguments.
    """

    source: Source
    launch: Callable[..., list]
    region: BoundSymbol
    shown: Optional[BoundSymbol] = None                        # of which the text was written, if not of `region`

    def __call__(self, *given: torch.Tensor) -> list:
        odd = [n for n, (t, p) in enumerate(zip(given, self.region.args)) if not _as_described(t, p)]
        if odd:
            self._copy_from_now_on(odd, given)
        return self.launch(*given)

    def _copy_from_now_on(self, odd: list[int], given: tuple) -> None:
        """Arguments that a call of torch laid out otherwise than described are copied into the layout described."""
        n, launch, args = odd[0], self.launch, self.region.args
        written = {w.storage for w in self.region.written}
        if check_traces() or any(args[n].storage in written for n in odd):
            line = next((str(b.source) for b in self.region.subsymbols if args[n] in b.tensor_args), "")
            raise TraceError(f"{args[n]!r} came as {tuple(given[n].shape)} stride {given[n].stride()}: the call that makes it lays it out "
                             "otherwise than its fake implementation (torch.library.register_fake) tells", where=line)
        self.launch = lambda *now: launch(*(restride(t, args[k].shape, args[k].stride) if k in odd else t for k, t in enumerate(now)))


@dataclass(frozen=True, eq=False)
class OpenRegion:
    """A region compiled for open sizes. `at(region, settling)` is what runs it for some."""

    source: Source
    library: Library
    region: BoundSymbol

    def at(self, region: BoundSymbol, settling: Settling) -> CompiledRegion:
        kernels = tuple(replace(k, **{n: settling.leaf(getattr(k, n)) for n in ("bytes_read", "bytes_written", "operations")})
                        for k in self.source.kernels)
        source = replace(self.source, made={s: settling.leaf(p) for s, p in self.source.made.items()}, kernels=kernels,
                         threads=settling.leaf(self.source.threads), extents=settling.texts)
        made = compiled_region(region, source, self.library, table(self.source.parted.values(source.given, source.extents)))
        made.shown = self.region
        return made


def _as_described(t: torch.Tensor, p: TensorProxy) -> bool:
    return t.dtype is p.dtype and t.shape == p.shape and all(
        s == r for n, s, r in zip(p.shape, p.stride, t.stride()) if n > 1)


def compiled_region(region: BoundSymbol, source: Source, library: Library, sizes: bytes = b"") -> CompiledRegion:
    """sizes: the table that the code of `library` reads, if it does."""
    layout = _Layout(region, source, sizes)
    launch = _launch_in_c(layout, library) if layout.roots_only else None
    return CompiledRegion(source, launch or _launch_in_python(layout, library), region)


_TABLE = -1                  # in the place of a tensor's number: the table of sizes


class _Layout:
    """Tensors by number: the arguments, then what is made.

    buffers: of each pointer that the kernels take, (number of a tensor, bytes before its data) or (_TABLE, address).
    told: the tensors that autograd is told of as written.
    """

    def __init__(self, region: BoundSymbol, source: Source, sizes: bytes) -> None:
        self.args, self.source, self.outputs = region.args, source, region.flat_outputs
        self.made = as_handed_out(source.made, self.outputs)
        self.makers = [maker(p.shape, p.stride, p.dtype) for p in self.made]
        self.proxies = [*self.args, *self.made]
        self.number = self._numbers()                          # by storage
        self.sizes = ctypes.create_string_buffer(sizes, len(sizes)) if sizes else None
        table = _TABLE, ctypes.addressof(self.sizes) if sizes else 0
        self.buffers = [table if b is None else (self.number[b.storage], self._start(b.storage))
                        for b in source.buffers]
        self.told = [self.number[s] for s in dict.fromkeys(w.storage for w in region.told)]
        work = sum(k.bytes_read + k.bytes_written + k.operations for k in source.kernels)
        self.unlocked = work > UNLOCKED

    def _numbers(self) -> dict[int, int]:
        """The first argument that lives in a storage, unless the region makes it."""
        numbers: dict[int, int] = {}
        for n, p in enumerate(self.args):
            numbers.setdefault(p.storage, n)
        return numbers | {p.storage: n for n, p in enumerate(self.made, len(self.args))}

    def _start(self, storage: int) -> int:
        p = self.proxies[self.number[storage]]
        return p.bytes.offset if p.numel else 0

    def is_root(self, o: TensorProxy) -> bool:
        p = self.proxies[self.number[o.storage]]
        return o.storage in self.source.made and (o.shape, o.stride, o.offset) == (p.shape, p.stride, p.offset)

    @property
    def roots_only(self) -> bool:
        """Every result is a tensor that the region makes, not a view, and every tensor tells its address."""
        return all(map(self.is_root, self.outputs)) and all(
            isinstance(p, TensorProxy) and p.numel for p in self.proxies)


def _fail(code: int) -> None:
    kind, message = ERRORS[code]
    raise kind(message)


# ------------------------------------------------------------ in C

_FUNCTIONS = ("entry", "data", "threads", "fail", "changed")
_COUNTS = ("arguments", "made", "buffers", "results", "unlocked", "writes")
_ARRAYS = ("buffer", "offset", "result", "written", "makers", "maker_arguments", "maker_counts")


class _Descriptor(ctypes.Structure):
    """`Region` of launcher.c."""

    _fields_ = [*((n, ctypes.c_void_p) for n in _FUNCTIONS), *((n, ctypes.c_long) for n in _COUNTS),
                *((n, ctypes.c_void_p) for n in _ARRAYS)]


@lru_cache(None)
def _launcher() -> Optional[ctypes.CDLL]:
    """The compiled launcher; None where torch does not say how to find a tensor's data."""
    if tensor_data_function is None:
        return None
    try:
        return LAUNCHER.load()
    except CompilerError:
        return None


def _launch_in_c(layout: _Layout, library: Library) -> Optional[Callable[..., list]]:
    launcher = _launcher()
    if launcher is None:
        return None
    arguments = [_objects(args) for _, args in layout.makers]
    arrays = {
        "buffer": _longs([n for n, _ in layout.buffers]),
        "offset": _longs([start for _, start in layout.buffers]),
        "result": _longs([layout.number[o.storage] for o in layout.outputs]),
        "written": _longs(layout.told),
        "makers": _objects([function for function, _ in layout.makers]),
        "maker_arguments": _pointers([ctypes.addressof(a) for a in arguments]),
        "maker_counts": _longs([len(args) for _, args in layout.makers]),
    }
    descriptor = _Descriptor(
        entry=ctypes.cast(library[ENTRY], ctypes.c_void_p).value, data=tensor_data_function,
        threads=id(torch.get_num_threads) if layout.source.threads > 1 else None, fail=id(_fail),
        changed=id(increment_version), arguments=len(layout.args), made=len(layout.made), buffers=len(layout.buffers),
        results=len(layout.outputs), unlocked=layout.unlocked, writes=len(layout.told),
        **{name: ctypes.addressof(array) for name, array in arrays.items()})
    owned = (ctypes.addressof(descriptor), descriptor, arrays, arguments, layout.makers, library, layout.sizes)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes, make.restype = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p], ctypes.py_object
    return make(ctypes.addressof(ctypes.c_char.in_dll(launcher, _CALL)), owned, None)


def _longs(values: list[int]) -> ctypes.Array:
    return (ctypes.c_long * max(len(values), 1))(*values)


def _objects(values: Any) -> ctypes.Array:
    """Addresses of objects that somebody else keeps alive."""
    return _pointers(list(map(id, values)))


def _pointers(addresses: list[int]) -> ctypes.Array:
    return (ctypes.c_void_p * max(len(addresses), 1))(*addresses)


# ------------------------------------------------------------ in Python

def _launch_in_python(layout: _Layout, library: Library) -> Callable[..., list]:
    entry = library[ENTRY]
    entry.restype, entry.argtypes = ctypes.c_int, [ctypes.c_int, ctypes.c_void_p]
    scope: dict[str, Any] = {
        "entry": entry, "threads": torch.get_num_threads, "fail": _fail, "changed": increment_version,
        "Table": ctypes.c_void_p * max(len(layout.buffers), 1), "sizes": layout.sizes}      # sizes: kept alive
    lines = [f"def launch({', '.join(f'x{n}' for n in range(len(layout.args)))}):"]
    for n, (function, arguments) in enumerate(layout.makers, len(layout.args)):
        scope[f"make{n}"], scope[f"layout{n}"] = function, arguments
        lines.append(f"    x{n} = make{n}(*layout{n})")
    pointers = ", ".join(_address(layout, n, start) for n, start in layout.buffers)
    if pointers:
        lines.append(f"    bad = entry(threads(), Table({pointers}))")
        lines += ["    if bad:", "        fail(bad)"]
    if layout.told:
        lines.append(f"    changed(({', '.join(f'x{n}' for n in layout.told)},))")
    lines.append(f"    return [{', '.join(_result(o, layout) for o in layout.outputs)}]")
    exec(compile("\n".join(lines), "<launch>", "exec"), scope)
    return scope["launch"]


def _address(layout: _Layout, n: int, start: int) -> str:
    if n == _TABLE:
        return str(start)
    holder = f"x{n}" if layout.proxies[n].numel else f"x{n}.untyped_storage()"
    return f"{holder}.data_ptr() - {start}" if start else f"{holder}.data_ptr()"


def _result(o: TensorProxy, layout: _Layout) -> str:
    """A tensor that is made, or a view of it or of an argument."""
    n = layout.number[o.storage]
    if layout.is_root(o):
        return f"x{n}"
    return f"x{n}.as_strided({o.shape}, {o.stride}, x{n}.storage_offset() + {o.offset - layout.proxies[n].offset})"
