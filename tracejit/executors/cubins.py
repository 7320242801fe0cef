"""Compiled CUDA kernels on disk: cubins by source, options, architecture and NVRTC's version, each with its source beside it."""
from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Optional

from . import nvrtc
from .disk_cache import DiskCache


class CubinCache:
    """Cubins, kept in a `DiskCache`."""

    def __init__(self, directory: Optional[str | os.PathLike] = None) -> None:
        self.disk = DiskCache(directory)
        self._lock = threading.Lock()
        self.built = 0

    def _path(self, text: str, arch: str) -> Path:
        key = hashlib.sha256("\n".join([text, *nvrtc.options_for(arch), str(nvrtc.version())]).encode()).hexdigest()[:32]
        return self.disk.directory / f"{key}.cubin"

    def plain_file(self, text: str, arch: str) -> Path:
        """The cubin alone in a file, for who loads files."""
        path = self._path(text, arch).with_suffix(".plain.cubin")
        made = _unfinished(path)
        made.write_bytes(self.load(text, arch))
        os.replace(made, path)
        return path

    def load(self, text: str, arch: str) -> bytes:
        """The cubin of a text. Raises NvrtcError, which names the source file that was kept."""
        path = self._path(text, arch)
        with self._lock:
            found = self.disk.content(path.name)
            return found if found is not None else self._build(path, text, arch)

    def _build(self, path: Path, text: str, arch: str) -> bytes:
        source = path.with_suffix(".cu")
        source.write_text(text)
        try:
            cubin = nvrtc.compile_text(text, arch).cubin
        except nvrtc.NvrtcError as error:
            raise type(error)(f"{error}; the source is {source}") from error
        made = _unfinished(path)
        made.write_bytes(cubin)
        self.disk.put(made, [path.name])
        self.built += 1
        return cubin


def _unfinished(path: Path) -> Path:
    """A name beside it for this thread alone."""
    return path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
