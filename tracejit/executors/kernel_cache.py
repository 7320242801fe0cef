"""Compiled kernels: built by the system's C compiler, kept on disk, loaded once.

The regions of one program that are not on disk are shared out to as many compilers as there are processors; each compiles its
share as one text, since it takes as long to start as to compile two kernels. The file that it makes appears under the key of each.
The key is source, flags, compiler version and processor. The source of a file stays beside it.
"""
from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional, Sequence, Union

from ..codegen.source import Source, together
from ..options import compiler_command
from .disk_cache import DiskCache

TIMEOUT = 120                # seconds that the compiler may take
FLAGS = ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-march=native", "-fno-math-errno", "-fno-trapping-math",
         "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-fopenmp-simd", "-fPIC", "-shared", "-w", "-nostartfiles",
         "-nostdlib")


class CompilerError(Exception):
    """No compiler, or one that failed or took too long; the message names the source file that was kept."""


class NoCompiler(CompilerError):
    """There is none, or it does not even tell its version."""


class HungCompiler(CompilerError):
    """It did not end in TIMEOUT seconds."""


@lru_cache(None)
def compiler() -> tuple[str, ...]:
    """The command of the C compiler, from CC or the first of cc, gcc, clang that exists."""
    named = compiler_command().split()
    for candidate in ([named] if named else [["cc"], ["gcc"], ["clang"]]):
        if candidate and shutil.which(candidate[0]):
            return (shutil.which(candidate[0]), *candidate[1:])
    raise NoCompiler(f"no C compiler: {' '.join(named) or 'cc, gcc, clang'} not found. Install one, or name it in CC")


@lru_cache(None)
def machine() -> str:
    """What compiled code depends on besides its source: compiler version and processor."""
    command = compiler()
    try:
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NoCompiler(f"{' '.join(command)} --version failed: {error}") from error
    flags = next((line for line in _cpuinfo().splitlines() if line.startswith(("flags", "Features"))), "")
    return f"{command}\n{version}\n{platform.machine()}\n{flags}"


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else platform.processor()


def width_flags() -> tuple[str, ...]:
    """Whole vector registers where the processor has wide ones."""
    return ("-mprefer-vector-width=512",) if "avx512f" in _cpuinfo() else ()


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _key(text: str, more: tuple[str, ...] = ()) -> str:
    return hashlib.sha256("\n".join([text, *FLAGS, *width_flags(), *more, machine()]).encode()).hexdigest()[:32]


def _prefix(key: str) -> str:
    """Of the names of a region's functions, so that several can be in one file."""
    return f"r{key}_"


@dataclass(frozen=True)
class Library:
    """The functions of one region in a loaded file: `library["tj_region"]`."""

    loaded: ctypes.CDLL
    prefix: str

    def __getitem__(self, name: str) -> Any:
        return self.loaded[self.prefix + name]


class KernelCache:
    """Compiled texts, kept in a `DiskCache`. more: flags for regions."""

    def __init__(self, directory: Optional[str | os.PathLike] = None, more: tuple[str, ...] = ()) -> None:
        self.more, self.disk = more, DiskCache(directory)
        self._loaded: dict[str, ctypes.CDLL] = {}
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self.built = 0

    def _path(self, key: str) -> Path:
        return self.disk.directory / f"{key}.so"

    def load(self, text: str, more: tuple[str, ...] = ()) -> ctypes.CDLL:
        """The shared object of a C text; `more`: flags for it. Raises CompilerError."""
        key = _key(text, more)
        with self._lock:
            if key not in self._loaded:
                path = self._path(key)
                if not self.disk.has(path.name):
                    self._build([path], text, more)
                self._loaded[key] = self._open(path, text, more)
            return self._loaded[key]

    def load_regions(self, sources: Sequence[Source]) -> list[Union[Library, CompilerError]]:
        """What holds the entry of each, or why it could not be built. Raises NoCompiler."""
        keys = [_key("in company\n" + s.text, self.more) for s in sources]   # not those of texts by themselves
        missing = {key: s for key, s in zip(keys, sources)
                   if key not in self._loaded and not self.disk.has(f"{key}.so")}
        failed = self._build_shares(missing)
        with self._lock:
            return [failed[key] if key in failed else self._library(key, s) for key, s in zip(keys, sources)]

    def _library(self, key: str, source: Source) -> Union[Library, CompilerError]:
        if key not in self._loaded:
            try:
                self._loaded[key] = self._open(self._path(key), together([(_prefix(key), source.body)]), self.more)
            except CompilerError as error:
                return error
        return Library(self._loaded[key], _prefix(key))

    def _build_shares(self, missing: dict[str, Source]) -> dict[str, CompilerError]:
        """Build these; those that fail, by key. A share that fails is built again one by one."""
        shares: list[list[str]] = [[] for _ in range(min(len(missing), _processors()))]
        sizes = [0] * len(shares)
        for key in sorted(missing, key=lambda k: (-len(missing[k].body), k)):
            k = sizes.index(min(sizes))
            shares[k].append(key)
            sizes[k] += len(missing[key].body)
        if not shares:
            return {}

        def build(share: list[str]) -> dict[str, CompilerError]:
            try:
                paths = [self._path(key) for key in share]
                self._build(paths, together((_prefix(key), missing[key].body) for key in share), self.more)
            except HungCompiler as error:
                return dict.fromkeys(share, error)
            except CompilerError as error:
                return {share[0]: error} if len(share) == 1 else {k: e for key in share for k, e in build([key]).items()}
            return {}
        if len(shares) == 1:
            return build(shares[0])
        with ThreadPoolExecutor(len(shares)) as pool:
            return {k: e for failed in pool.map(build, shares) for k, e in failed.items()}

    def compiler_works(self) -> bool:
        """Can anything at all be compiled?"""
        try:
            self.load(f"int tj_works_{os.getpid()}(void) {{ return 1; }}")
        except CompilerError:
            return False
        return True

    def _open(self, path: Path, text: str, more: tuple[str, ...] = ()) -> ctypes.CDLL:
        try:
            return ctypes.CDLL(str(path))
        except OSError:                                        # built elsewhere, or damaged in a way that the sum does not show
            self._build([path], text, more)
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise CompilerError(f"a compiled kernel does not load: {error}") from error

    def _build(self, paths: Sequence[Path], text: str, more: tuple[str, ...] = ()) -> None:
        """Compile a text into one file with all these names."""
        source = paths[0].with_suffix(f".{os.getpid()}.{threading.get_ident()}.c")
        made = source.with_suffix(".tmp")
        command = [*compiler(), *FLAGS, *width_flags(), *more, str(source), "-o", str(made), "-lm"]
        try:
            source.parent.mkdir(mode=0o700, parents=True, exist_ok=True)       # somebody may have removed it
            source.write_text(text)
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
            if done.returncode or not made.exists():
                raise CompilerError(f"{' '.join(command)} failed; the source is {source}:\n{done.stderr[-2000:]}")
            self.disk.put(made, [path.name for path in paths])
            os.replace(source, paths[0].with_suffix(".c"))
        except (OSError, subprocess.TimeoutExpired) as error:
            kind = HungCompiler if isinstance(error, subprocess.TimeoutExpired) else CompilerError
            raise kind(f"{error}; the source is {source}") from error
        finally:
            made.unlink(missing_ok=True)
        with self._counting:
            self.built += 1
