"""NVRTC, NVIDIA's run-time compiler, called through ctypes: it needs neither a driver nor a device.

Found among the wheels of PyPI (`nvidia-cuda-nvrtc-cu12`, which torch's CUDA builds bring along), else where the system's
loader finds it. The same options hold in tests and in production.
"""
from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Iterator, Optional

from ..options import cuda_home

# Each operation is rounded as eager's kernels round it: no contraction, no flushing of denormals, exact division and roots.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--ptxas-options=-v")


class NvrtcError(Exception):
    """NVRTC refused a text; the message is its log."""


class NoNvrtc(NvrtcError):
    """There is no NVRTC, or it lacks CUDA's headers."""


@dataclass(frozen=True)
class Compiled:
    """What NVRTC makes of a text for one architecture. log: ptxas' words on registers, memory and spills."""

    cubin: bytes
    ptx: str
    log: str


def _packages() -> Iterator[Path]:
    """The directories of NVIDIA's wheels: `nvidia/cuda_nvrtc`, `nvidia/cu13`, ..."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(p for p in Path(place).iterdir() if p.is_dir())


@lru_cache(None)
def _library() -> ctypes.CDLL:
    found = [str(f) for p in _packages() for f in sorted((p / "lib").glob("libnvrtc.so*")) if "builtins" not in f.name
             and "alt" not in f.name]
    if cuda_home():
        found += [str(f) for f in sorted((Path(cuda_home()) / "lib64").glob("libnvrtc.so*"))]
    system = ctypes.util.find_library("nvrtc")
    for path in [*found, *([system] if system else [])]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise NoNvrtc("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12")


@lru_cache(None)
def include_directory() -> str:
    """Where cuda_fp16.h and cuda_bf16.h are."""
    places = [p / "include" for p in _packages()]
    cupy = importlib.util.find_spec("cupy")
    if cupy is not None and cupy.origin:
        places += sorted((Path(cupy.origin).parent / "_core" / "include" / "cupy" / "_cuda").glob("cuda-*"), reverse=True)
    places += [Path(cuda_home() or "/usr/local/cuda") / "include", Path(sys.prefix) / "include"]
    for place in places:
        if (place / "cuda_fp16.h").exists() and (place / "cuda_bf16.h").exists():
            return str(place)
    raise NoNvrtc("CUDA's headers are not installed: pip install nvidia-cuda-runtime-cu12")


@lru_cache(None)
def version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def is_available() -> bool:
    try:
        version(), include_directory()
    except NoNvrtc:
        return False
    return True


def options_for(arch: str) -> tuple[str, ...]:
    """arch: such as "sm_90"."""
    if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
        raise ValueError(f"arch={arch!r}: expected the name of an architecture such as 'sm_90'")
    return (f"--gpu-architecture={arch}", *OPTIONS)


def compile_text(text: str, arch: str) -> Compiled:
    """Raises NvrtcError with NVRTC's log."""
    lib, program = _library(), ctypes.c_void_p()
    options = [*options_for(arch), f"--include-path={include_directory()}"]
    lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"tracejit.cu", 0, None, None)
    try:
        table = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        failed = lib.nvrtcCompileProgram(program, len(options), table)
        log = _got(lib, program, "ProgramLog").rstrip(b"\0").decode()
        if failed:
            raise NvrtcError(log)
        return Compiled(_got(lib, program, "CUBIN"), _got(lib, program, "PTX").rstrip(b"\0").decode(), log)
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _got(lib: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(lib, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


# ------------------------------------------------------------ what a text was compiled to

@dataclass(frozen=True)
class Facts:
    """Of one function: registers of a thread, bytes of shared memory of a block, bytes of stack and spills of a thread, and the
    bytes of each access to global memory that its text holds."""

    registers: int
    shared: int
    stack: int
    spills: int
    loads: tuple[int, ...]
    stores: tuple[int, ...]
    local: int                           # accesses to local memory
    doubles: int                         # operations in double precision


def facts_of(compiled: Compiled) -> dict[str, Facts]:
    """By function, from PTX and ptxas' log."""
    logs = dict(re.findall(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", compiled.log, re.S))
    found = {}
    for name, body in re.findall(r"\.entry\s+(\w+)\s*\((.*?)\n\}", compiled.ptx, re.S):
        log = logs.get(name, "")
        found[name] = Facts(_number(r"Used (\d+) registers", log), _number(r"(\d+) bytes smem", log),
                            _number(r"(\d+) bytes stack", log), _number(r"(\d+) bytes spill stores", log),
                            _accesses("ld", body), _accesses("st", body), len(re.findall(r"\b(?:ld|st)\.local", body)),
                            len(re.findall(r"\b(?:add|sub|mul|fma|div|sqrt|rcp|setp[.\w]*|cvt[.\w]*)\.[\w.]*f64", body)))
    return found


def _number(pattern: str, text: str) -> int:
    found: Optional[re.Match] = re.search(pattern, text)
    return int(found[1]) if found else 0


def _accesses(kind: str, body: str) -> tuple[int, ...]:
    found = []
    for spelled in re.findall(rf"\b{kind}\.(?:volatile\.|relaxed\.)?global([\w.]*)\s", body):
        lanes, width = re.search(r"\.v(\d)", spelled), re.search(r"[a-z](\d+)$", spelled)
        found.append(int(width[1]) // 8 * (int(lanes[1]) if lanes else 1))
    return tuple(found)
