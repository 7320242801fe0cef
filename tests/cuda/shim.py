"""Runs the CUDA C++ of a lowered region on the CPU, under `shim.h`.

    run(lowered, region's arguments) -> the region's results

Every access is checked; threads run in the order numbered, reversed or at random. What each element was loaded and stored
how often is counted.
"""
from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy
import torch

from tracejit.codegen.cuda_source import CudaSource, Launch
from tracejit.executors.cupy import passed
from tracejit.ir.proxy import TensorProxy

HERE = Path(__file__).parent
ORDERS = {"numbered": 0, "reversed": 1, "random": 2}
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-math-errno",
         "-fnon-call-exceptions", "-march=x86-64-v3")
UNDEFINED = ("-fsanitize=shift,bounds,signed-integer-overflow", "-fsanitize-undefined-trap-on-error")


class ShimError(AssertionError):
    """A kernel did what it must not; the message says where."""


class _Buffer(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("loads", ctypes.c_void_p), ("stores", ctypes.c_void_p)]


class _Grid(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint)]


class _Options(ctypes.Structure):
    _fields_ = [("order", ctypes.c_int), ("seed", ctypes.c_uint64)]


# ------------------------------------------------------------ building

def translated(text: str) -> str:
    """Checked types for pointers and shared arrays, and one entry for each kernel."""
    entries = []
    for name, parameters in re.findall(r"__global__ void __launch_bounds__\([\d, ]+\) (\w+)\((.*?)\) \{", text):
        table = re.search(rf"struct {name}_table {{(.*?)}};", text)
        listed = table[1].replace(";", ",").strip(", ") if table else parameters
        types = [re.match(r"(const )?(.*?) (\*?)(?:__restrict__ )?(\w+)(\[\d+\])?$", p).groups() for p in listed.split(", ")]
        checked = [f"{_checked(c, t, star)} {p}{size or ''}" for c, t, star, p, size in types]
        if table:
            text = text.replace(table[0], f"struct {name}_table {{ {'; '.join(checked)}; }};")
            text = re.sub(r"^  (const )?([\w ]+?) \*(?:__restrict__ )?(\w+) = of\.", r"  shim::Pointer<\1\2> \3 = of.", text, flags=re.M)
        else:
            text = text.replace(f"{name}({parameters}) {{", f"{name}({', '.join(checked)}) {{")
        entries.append(_entry(name, types, _synchronizes(text, name), bool(table)))
    text = re.sub(r"__shared__ (\w+(?: \w+)?) (\w+)\[(\d+)\];", r'static shim::Shared<\1, \3> \2("\2");', text)
    text = re.sub(r"\? (a\d+\[|\(i\d+ [<>])", r"? +\1", text)    # the value, not a reference, decides the type of a choice
    head, kernels = text.split('extern "C" __global__', 1)
    return f'{head}{_VECTORS if "tj_vec" in head else ""}#line 1 "kernels"\nextern "C" __global__{kernels}\n' + "\n".join(entries)


_VECTORS = """
template <int N, class T> tj_vec<typename std::remove_const<T>::type, N> tj_read(shim::Pointer<T> p) {
  p.m->check(p.at, N, false);
  tj_vec<typename std::remove_const<T>::type, N> v;
  for (int i = 0; i < N; i++) v.e[i] = p.m->start[p.at + i];
  return v;
}
template <int N, class T, class V> void tj_write(shim::Pointer<T> p, const V &v) {
  p.m->check(p.at, N, true);
  for (int i = 0; i < N; i++) p.m->start[p.at + i] = v.e[i];
}
"""


def _checked(constant: str, t: str, star: str) -> str:
    """The type of a parameter: a pointer whose accesses are checked, or a value."""
    return f"shim::Pointer<{constant or ''}{t}>" if star else t


def _synchronizes(text: str, name: str) -> bool:
    body = text[text.index(f" {name}("):].split('extern "C" __global__')[0]
    return bool(re.search(r"__sync|tj_across|tj_block", body))


def _entry(name: str, types: list, synchronizes: bool, table: bool) -> str:
    """Buffers come by parameter, then by copy; a value as memory that holds it."""
    lines = []
    for n, (c, t, star, p, _) in enumerate(types):
        if not star:
            wrong = f'return snprintf(message, 400, "{p} takes %d bytes, and %d are passed", (int)sizeof({t}), (int)at.bytes)'
            lines += [f"{t} *m{n} = ({t} *)alloca(grid.y * sizeof({t}));",
                      f"for (unsigned c = 0; c < grid.y; c++) {{ shim::Buffer &at = b[{n} * grid.y + c]; "
                      f"if (at.bytes != sizeof({t})) {wrong}; m{n}[c] = *({t} *)at.start; }}"]
            continue
        kind = f"shim::Memory<{c or ''}{t}>"
        memory = f"{{({c or ''}{t} *)at.start, at.bytes / (int64_t)sizeof({t}), &at, shim::shadows_of(at, sizeof({t})), \"{p}\"}}"
        lines += [f"{kind} *m{n} = ({kind} *)alloca(grid.y * sizeof({kind}));",
                  f"for (unsigned c = 0; c < grid.y; c++) {{ shim::Buffer &at = b[{n} * grid.y + c]; m{n}[c] = {memory}; }}"]
    if table:
        lines.append(f"{name}_table of = {{}};")
        lines += [f"for (unsigned c = 0; c < grid.y; c++) of.{p}[c] = {f'{{&m{n}[c], 0}}' if star else f'm{n}[c]'};"
                  for n, (_, _, star, p, _) in enumerate(types)]
        lines.append("void *a[] = {&of};")
        given = f"*({name}_table *)a[0]"
    else:
        lines.append(f"void *a[] = {{{', '.join(f'm{n}' for n in range(len(types)))}}};")
        given = ", ".join(f"{_checked(c, t, star)}{{(const shim::Memory<{c or ''}{t}> *)a[{n}], 0}}" if star else f"*({t} *)a[{n}]"
                          for n, (c, t, star, _, _) in enumerate(types))
    body = "\n  ".join(lines)
    return f"""extern "C" int launch_{name}(shim::Buffer *b, shim::Id grid, unsigned width, const shim::Options *o, char *message) {{
  {body}
  return shim::launch("{name}", {int(synchronizes)}, [](void **a) {{ {name}({given}); }}, a, grid, width, *o, message, shim::shared_arrays);
}}"""


@lru_cache(None)
def _directory() -> Path:
    found = Path(tempfile.gettempdir()) / f"tracejit-shim-{os.getuid()}"
    found.mkdir(mode=0o700, exist_ok=True)
    return found


@lru_cache(None)
def _header() -> Path:
    """The header and what runs threads, compiled once."""
    text, runtime = (HERE / "shim.h").read_text(), (HERE / "shim.cpp").read_text()
    key = hashlib.sha256("".join([text, runtime, *FLAGS, *UNDEFINED]).encode()).hexdigest()[:16]
    own = _directory() / key
    own.mkdir(exist_ok=True)
    header, library = own / "shim.h", own / "libshim.so"
    if not library.exists():
        _write(header, text)
        _write(own / "shim.cpp", runtime)
        _gcc(*UNDEFINED, "-x", "c++-header", str(header), made=own / "shim.h.gch")
        _gcc("-shared", "-x", "c++", str(own / "shim.cpp"), made=library)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return header


def _write(path: Path, text: str) -> None:
    own = path.with_name(f"{path.name}.{os.getpid()}")
    own.write_text(text)
    os.replace(own, path)


def _gcc(*arguments: str, made: Path) -> None:
    own = made.with_name(f"{made.name}.{os.getpid()}.tmp")
    done = subprocess.run(["g++", *FLAGS, *arguments, "-o", str(own)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    os.replace(own, made)


@lru_cache(256)
def library(text: str) -> ctypes.CDLL:
    header = _header()
    whole = translated(re.sub(r"#include <cuda_\w+\.h>\n", "", text))
    key = hashlib.sha256((str(header) + whole).encode()).hexdigest()[:24]
    made = _directory() / f"{key}.so"
    if not made.exists():
        source = made.with_suffix(".cpp")
        _write(source, whole)
        _gcc(*UNDEFINED, "-shared", "-include", str(header), str(source), made=made)
    return ctypes.CDLL(str(made))


# ------------------------------------------------------------ running

@dataclass
class Counts:
    """How often each element of a storage was loaded and stored, over all launches; by storage and dtype."""

    loads: dict = field(default_factory=dict)
    stores: dict = field(default_factory=dict)


def run_region(code: CudaSource, region, args, order="numbered", seed=1, text=None) -> tuple[list[torch.Tensor], Counts]:
    """The region's results for these arguments, which are CPU tensors laid out as its proxies say. What it writes, it writes."""
    storages: dict[int, torch.UntypedStorage | float] = {}
    for p, t in zip(region.args, args):
        if isinstance(p, TensorProxy):
            storages.setdefault(p.storage, t.item() if p.number else t.untyped_storage())
    for s, root in code.made.items():
        t = torch.empty_strided(root.shape, root.stride, dtype=root.dtype)
        t.untyped_storage().copy_(torch.UntypedStorage(t.untyped_storage().nbytes()).fill_(0xff))
        storages[s] = t.untyped_storage()
    scratch = torch.full((max(code.scratch, 16),), 0xff, dtype=torch.uint8)
    counts = Counts()
    for launch in code.launches:
        _launch(library(text or code.text), launch, storages, scratch, counts, order, seed)
    return [torch.empty(0, dtype=o.dtype).set_(storages[o.storage], o.offset, o.shape, o.stride) for o in region.tensor_outputs], counts


def _launch(lib, launch: Launch, storages, scratch, counts: Counts, order, seed) -> None:
    table, keep = (_Buffer * len(launch.buffers))(), []
    for n, (b, offset) in enumerate(zip(launch.buffers, launch.offsets)):
        p = launch.parameters[n // launch.copies]
        if p.number:
            (value,) = passed([storages[b.storage]], replace(launch, parameters=(p,)))
            keep.append(numpy.array(value))
            table[n] = _Buffer(keep[-1].ctypes.data, keep[-1].nbytes, None, None)
            continue
        if b is not None:
            storage = storages[b.storage]
            start, nbytes, size, key = storage.data_ptr(), storage.nbytes(), b.dtype.itemsize, (b.storage, b.dtype)
        else:
            start, nbytes, size, key = scratch.data_ptr() + offset, p.count * 8, 1, f"{p.name} at {offset}"
        loads = counts.loads.setdefault(key, torch.zeros(nbytes // size, dtype=torch.int16))
        stores = counts.stores.setdefault(key, torch.zeros(nbytes // size, dtype=torch.int16))
        keep += [loads, stores]
        table[n] = _Buffer(start, nbytes, loads.data_ptr(), stores.data_ptr())
    message = ctypes.create_string_buffer(512)
    options = _Options(ORDERS[order], seed)
    failed = lib[f"launch_{launch.name}"](table, _Grid(launch.grid, launch.copies), ctypes.c_uint(launch.block), ctypes.byref(options), message)
    if failed:
        raise ShimError(message.value.decode())


def run(lowered, args, order="numbered", seed=1) -> tuple[list[torch.Tensor], list[Counts]]:
    """A whole lowered program on CPU tensors: regions on the shim, calls between them by torch. Its flat outputs, and what
    each region counted."""
    values, counts = dict(zip(lowered.traces[-1].inputs, args)), []

    def value(a):
        return values[a] if isinstance(a, TensorProxy) else a.value.clone() if hasattr(a, "value") else (
            torch.device("cpu") if isinstance(a, torch.device) else a)
    for b in lowered.traces[-1].bound_symbols:
        given, named = b.arguments([value(a) for a in b.flat_args])
        if b.is_region and b.executor == "cupy":
            made, counted = run_region(b.sym.fn.source, b, given, order, seed)
            counts.append(counted)
        else:
            made = b.sym.fn(*given, **named) if b.sym.overload is None else b.sym.overload(*given, **named)
            made = torch.utils._pytree.tree_leaves(made)
        for o, m in zip(b.flat_outputs, made):
            if isinstance(o, TensorProxy):
                values[o] = m
    return [value(o) for o in lowered.traces[-1].output], counts
