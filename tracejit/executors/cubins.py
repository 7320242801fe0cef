"""Compiled CUDA kernels on disk: cubins by source, options, architecture and NVRTC's version, in a directory that only the
user can write; each file ends with a checksum of itself, and one that does not match is built again.
"""
from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Optional

from ..options import cache_home
from . import nvrtc
from .kernel_cache import CHECKSUM, _is_whole, _make_private


class CubinCache:
    """Cubins under `directory`; without one that is safe, under a private temporary one."""

    def __init__(self, directory: Optional[str | os.PathLike] = None) -> None:
        self.wanted = Path(directory) if directory is not None else Path(cache_home()) / "tracejit" / "cubins"
        self._directory: Optional[Path] = None
        self._lock = threading.Lock()
        self.built = 0

    @property
    def directory(self) -> Path:
        if self._directory is None:
            self._directory = self.wanted if _make_private(self.wanted) else Path(tempfile.mkdtemp(prefix="tracejit-"))
        return self._directory

    def _path(self, text: str, arch: str) -> Path:
        key = hashlib.sha256("\n".join([text, *nvrtc.options_for(arch), str(nvrtc.version())]).encode()).hexdigest()[:32]
        return self.directory / f"{key}.cubin"

    def plain_file(self, text: str, arch: str) -> Path:
        """The cubin alone in a file, for who loads files."""
        path = self._path(text, arch).with_suffix(".plain.cubin")
        path.write_bytes(self.load(text, arch))
        return path

    def load(self, text: str, arch: str) -> bytes:
        """The cubin of a text. Raises NvrtcError, which names the source file that was kept."""
        path = self._path(text, arch)
        with self._lock:
            if not _is_whole(path):
                self._build(path, text, arch)
            return path.read_bytes()[:-CHECKSUM]

    def _build(self, path: Path, text: str, arch: str) -> None:
        source = path.with_suffix(".cu")
        source.write_text(text)
        try:
            cubin = nvrtc.compile_text(text, arch).cubin
        except nvrtc.NvrtcError as error:
            raise type(error)(f"{error}; the source is {source}") from error
        made = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
        made.write_bytes(cubin + hashlib.sha256(cubin).digest())
        os.replace(made, path)
        self.built += 1
