"""Compiled kernels: built by the system's C compiler, kept on disk, loaded once.

The regions of one program that are not on disk are shared out to as many compilers as there are processors; each compiles its
share as one text, since it takes as long to start as to compile two kernels. The file that it makes appears under the key of each.
The key is source, flags, compiler version and processor. The source of a file stays beside it.
"""
from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, Sequence, Union

from ..codegen.cpu import with_helpers
from ..codegen.source import together
from .compile_lock import compile_lock
from .compiler import FLAGS, Building, CompilerError, HungCompiler, NoCompiler, begin, compiler, machine, machine_flags
from .disk_cache import DiskCache

__all__ = ["CompilerError", "HungCompiler", "KernelCache", "Library", "NoCompiler", "PartInC", "compiler", "machine"]


_lock = compile_lock()        # one for all caches: what a fork waits for lives as long as the process


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _key(text: str, more: tuple[str, ...] = ()) -> str:
    return hashlib.sha256("\n".join([text, *FLAGS, *machine_flags(), *more, machine()]).encode()).hexdigest()[:32]


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


@dataclass(frozen=True)
class _Share:
    """Regions' texts, by key, in one file that a compiler works on."""

    keys: list[str]
    paths: list[Path]
    building: Union[Building, CompilerError]


def _shares(texts: dict[str, str]) -> list[list[str]]:
    """Keys, so that each processor has about as much text."""
    shares: list[list[str]] = [[] for _ in range(min(len(texts), _processors()))]
    sizes = [0] * len(shares)
    for key in sorted(texts, key=lambda k: (-len(texts[k]), k)):
        k = sizes.index(min(sizes))
        shares[k].append(key)
        sizes[k] += len(texts[key])
    return shares


class KernelCache:
    """Compiled texts, kept in a `DiskCache`. more: flags for regions."""

    def __init__(self, directory: Optional[str | os.PathLike] = None, more: tuple[str, ...] = ()) -> None:
        self.more, self.disk = more, DiskCache(directory)
        self._loaded: dict[str, ctypes.CDLL] = {}
        self.built = 0

    def _path(self, key: str) -> Path:
        return self.disk.directory / f"{key}.so"

    def load(self, text: str, more: tuple[str, ...] = ()) -> ctypes.CDLL:
        """The shared object of a C text; `more`: flags for it. Raises CompilerError."""
        key = _key(text, more)
        with _lock:
            if key not in self._loaded:
                path = self._path(key)
                if not self.disk.has(path.name):
                    self._build([path], text, more)
                self._loaded[key] = self._open(path, text, more)
            return self._loaded[key]

    @contextmanager
    def building(self, bodies: Sequence[str]) -> Iterator[Callable[[], list[Union[Library, CompilerError]]]]:
        """Compilers at work on regions' texts (without helpers). The function waits for them, and returns what holds the entry
        of each text, or why it could not be built. A compiler that nobody waits for is stopped."""
        keys = [_key("in company\n" + with_helpers(b), self.more) for b in bodies]     # not those of texts by themselves
        missing = {key: b for key, b in zip(keys, bodies)
                   if key not in self._loaded and not self.disk.has(f"{key}.so")}
        shares: list[_Share] = []

        def wait() -> list[Union[Library, CompilerError]]:
            failed = {key: error for share in shares for key, error in self._failed(share, missing).items()}
            with _lock:
                return [failed[key] if key in failed else self._library(key, b) for key, b in zip(keys, bodies)]
        try:
            for keys_of_share in _shares(missing):
                shares.append(self._begun(keys_of_share, missing))             # an interrupt before the next stops this one
            yield wait
        finally:
            for share in shares:
                if isinstance(share.building, Building):
                    share.building.stop()

    def _library(self, key: str, body: str) -> Union[Library, CompilerError]:
        if key not in self._loaded:
            try:
                self._loaded[key] = self._open(self._path(key), together([(_prefix(key), body)]), self.more)
            except CompilerError as error:
                return error
        return Library(self._loaded[key], _prefix(key))

    def _begun(self, keys: list[str], texts: dict[str, str]) -> _Share:
        paths = [self._path(key) for key in keys]
        try:
            building = begin(paths[0], together((_prefix(key), texts[key]) for key in keys), self.more)
        except CompilerError as error:
            building = error
        return _Share(keys, paths, building)

    def _failed(self, share: _Share, texts: dict[str, str]) -> dict[str, CompilerError]:
        """Of a share that its compiler failed on, each text is tried by itself; those that fail, by key."""
        try:
            if isinstance(share.building, CompilerError):
                raise share.building
            self._keep(share.building, share.paths)
        except HungCompiler as error:
            return dict.fromkeys(share.keys, error)
        except CompilerError as error:
            if len(share.keys) == 1:
                return {share.keys[0]: error}
            return {k: e for key in share.keys for k, e in self._failed(self._begun([key], texts), texts).items()}
        return {}

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
        self._keep(begin(paths[0], text, more), paths)

    def _keep(self, building: Building, paths: Sequence[Path], seconds: Optional[float] = None) -> None:
        """What a compiler makes, when it is done, under these names."""
        building.end(seconds)
        try:
            self.disk.put(building.made, [path.name for path in paths])
            os.replace(building.source, paths[0].with_suffix(".c"))
        except OSError as error:
            raise CompilerError(f"{error}; the source is {building.source}") from error
        finally:
            building.made.unlink(missing_ok=True)
        with _lock:
            self.built += 1


class PartInC:
    """A part of tracejit itself, compiled once for a machine. `begin` starts the compiler and goes on; `load` waits for it."""

    ENOUGH = 2               # seconds that a process which ends waits for it

    def __init__(self, *files: Path, more: tuple[str, ...] = ()) -> None:
        self.files, self.more = files, more
        self._lock = compile_lock()
        self._cache: Optional[KernelCache] = None
        self._path: Optional[Path] = None
        self._building: Optional[Building] = None

    @cached_property
    def text(self) -> str:
        return "".join(file.read_text() for file in self.files)

    def begin(self) -> None:
        """Does nothing the second time, and leaves errors to `load`."""
        with self._lock:
            if self._cache is not None:
                return
            self._cache = KernelCache()
            try:
                self._path = self._cache._path(_key(self.text, self.more))
                if not self._cache.disk.has(self._path.name):
                    self._building = begin(self._path, self.text, self.more)
                    atexit.register(self._end, self.ENOUGH)
            except CompilerError:
                pass

    def ready(self) -> bool:
        """Would `load` not wait for a compiler that works?"""
        building = self._building
        return self._cache is not None and (building is None or building.owner != os.getpid() or not building.running())

    def load(self) -> ctypes.CDLL:
        """The shared object. Raises CompilerError."""
        self.begin()
        self._end()
        return self._cache.load(self.text, self.more)

    def _end(self, seconds: Optional[float] = None) -> None:
        with self._lock:
            building = self._building
            try:
                if building is not None and building.owner == os.getpid():
                    self._cache._keep(building, [self._path], seconds)
            except HungCompiler:
                if seconds is None:                            # `load` does not wait for it twice
                    raise
            except CompilerError:                              # an interrupt reached it, too: `load` tries again, and tells
                pass
            finally:
                self._building = None                          # only now: `ready` is asked without the lock
