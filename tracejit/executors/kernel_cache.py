"""Compiled kernels: built by the system's C compiler, kept on disk, loaded once.

The key is source, flags, compiler version and processor. The directory is the user's alone (0700); one that others may
write is not loaded from. Files appear by rename, so that many processes may share them; each ends with a checksum of
itself, and one that does not match is built again.
"""
from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import threading
from functools import lru_cache
from pathlib import Path
from typing import Optional

from ..options import cache_home, compiler_command

TIMEOUT = 120                # seconds that the compiler may take
FLAGS = ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-march=native", "-fno-math-errno", "-fno-trapping-math",
         "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-fopenmp-simd", "-fPIC", "-shared", "-w", "-nostartfiles",
         "-nostdlib")
CHECKSUM = 32


class CompilerError(Exception):
    """No compiler, or one that failed or took too long; the message names the source file that was kept."""


class NoCompiler(CompilerError):
    """There is none, or it does not even tell its version."""


@lru_cache(None)
def compiler() -> tuple[str, ...]:
    """The command of the C compiler, from CC or the first of cc, gcc, clang that exists."""
    named = compiler_command().split()
    for candidate in ([named] if named else [["cc"], ["gcc"], ["clang"]]):
        if candidate and shutil.which(candidate[0]):
            return (shutil.which(candidate[0]), *candidate[1:])
    raise NoCompiler(f"no C compiler: {' '.join(named) or 'cc, gcc, clang'} not found")


@lru_cache(None)
def _machine() -> str:
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


def default_directory() -> Path:
    return Path(cache_home()) / "tracejit" / "kernels"


class KernelCache:
    """Compiled texts under `directory`; without one that is safe, under a private temporary one."""

    def __init__(self, directory: Optional[str | os.PathLike] = None) -> None:
        self.wanted = Path(directory) if directory is not None else default_directory()
        self._directory: Optional[Path] = None
        self._loaded: dict[str, ctypes.CDLL] = {}
        self._lock = threading.Lock()
        self.built = 0

    @property
    def directory(self) -> Path:
        if self._directory is None:
            self._directory = self.wanted if _make_private(self.wanted) else Path(tempfile.mkdtemp(prefix="tracejit-"))
        return self._directory

    def load(self, text: str, optimize: tuple[str, ...] = ()) -> ctypes.CDLL:
        """The shared object of a C text. Raises CompilerError."""
        flags = (*FLAGS, *width_flags(), *optimize)
        key = hashlib.sha256("\n".join([text, *flags, _machine()]).encode()).hexdigest()[:32]
        with self._lock:
            if key not in self._loaded:
                path = self.directory / f"{key}.so"
                if not _is_whole(path):
                    self._build(path, text, flags)
                self._loaded[key] = self._open(path, text, flags)
            return self._loaded[key]

    def _open(self, path: Path, text: str, flags: tuple[str, ...]) -> ctypes.CDLL:
        try:
            return ctypes.CDLL(str(path))
        except OSError:                                        # built elsewhere, or damaged in a way that the sum does not show
            self._build(path, text, flags)
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise CompilerError(f"a compiled kernel does not load: {error}") from error

    def _build(self, path: Path, text: str, flags: tuple[str, ...]) -> None:
        source = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.c")
        made = source.with_suffix(".tmp")
        source.write_text(text)
        command = [*compiler(), *flags, str(source), "-o", str(made), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompilerError(f"{error}; the source is {source}") from error
        if done.returncode or not made.exists():
            raise CompilerError(f"{' '.join(command)} failed; the source is {source}:\n{done.stderr[-2000:]}")
        content = made.read_bytes()
        with open(made, "ab") as out:
            out.write(hashlib.sha256(content).digest())
        os.replace(made, path)
        os.replace(source, path.with_suffix(".c"))
        self.built += 1


def _make_private(directory: Path) -> bool:
    """Make the directory; is it the user's alone?"""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(directory, os.W_OK)


def _is_whole(path: Path) -> bool:
    """Does the file exist, belong to the user, and match its checksum?"""
    try:
        if path.stat().st_uid != os.getuid():
            return False
        content = path.read_bytes()
    except OSError:
        return False
    return len(content) > CHECKSUM and hashlib.sha256(content[:-CHECKSUM]).digest() == content[-CHECKSUM:]
