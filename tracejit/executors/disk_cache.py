"""What compilers made, kept on disk for all processes of a user.

The directory is the user's alone (0700): one that others may write is not used, nor is a file in it that others own or may write.
Files appear by rename, so that many processes may share them; each ends with a checksum of itself, and one that does not match
counts as missing. Together they take no more than a bound: when it is passed, those that were not used for the longest time go
until a quarter of it is free, but for the last minute's. A file's time of modification says when it was used, to the hour, which costs the
look that is taken at it anyway. How much there is tells the length of one more file, a byte for each KiB, to which every writer
appends: the directory is read only when the bound is passed.
"""
from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Iterator, Optional, Sequence

from ..options import cache_home, cache_limit

CHECKSUM = 32
LEDGER = "size"
_OURS = re.compile(r"[0-9a-f]{32}(\.\w+)*\.(so|c|cubin|cu|tmp)")
_OBJECT = re.compile(r"[0-9a-f]{32}\.(so|cubin)")
_MINUTE, _HOUR = 60, 3600    # seconds


@dataclass(frozen=True)
class _Stored:
    """One file, under all its names."""

    used: float              # seconds since the epoch
    size: int                # bytes
    names: list[str]


class DiskCache:
    """Files of one directory; without one that is safe, of a private temporary one that this process removes when it ends."""

    def __init__(self, directory: Optional[str | os.PathLike] = None) -> None:
        self.wanted = Path(directory) if directory is not None else Path(cache_home()) / "tracejit" / "kernels"
        self._directory: Optional[Path] = None

    @property
    def directory(self) -> Path:
        if self._directory is None:
            self._directory = self.wanted if _make_private(self.wanted) else _temporary()
        return self._directory

    def has(self, name: str) -> bool:
        return self.content(name) is not None

    def content(self, name: str) -> Optional[bytes]:
        """Of a whole file that nobody else can have written, without its checksum; else None."""
        path = self.directory / name
        try:
            status = path.stat()
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                return None
            content = path.read_bytes()
            if time.time() - status.st_mtime > _HOUR:
                os.utime(path)
        except OSError:
            return None
        whole = len(content) > CHECKSUM and hashlib.sha256(content[:-CHECKSUM]).digest() == content[-CHECKSUM:]
        return content[:-CHECKSUM] if whole else None

    def put(self, made: Path, names: Sequence[str]) -> None:
        """Give a finished file of this directory its checksum, and these names instead of its own. Raises OSError."""
        with open(made, "r+b") as out:
            out.write(hashlib.sha256(out.read()).digest())
            os.fchmod(out.fileno(), 0o700)
            size = out.tell()
        for name in names[1:]:
            _also_at(made, self.directory / name)
        os.replace(made, self.directory / names[0])
        self._account(size)

    def _account(self, size: int) -> None:
        """Note what came in, and make room where it is too much."""
        try:
            ledger = os.open(self.directory / LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError:
            return
        try:
            before = os.fstat(ledger).st_size
            os.write(ledger, bytes(_kib(size)))
            if not before or before + _kib(size) > _kib(cache_limit()):
                fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(ledger, max(_kib(self._trim(cache_limit())), 1))
        except OSError:                                        # a full disk, or another process is at it
            pass
        finally:
            os.close(ledger)

    def _trim(self, limit: int) -> int:
        """Remove what was not used for the longest time; bytes that are left."""
        stored = sorted(self._stored(), key=lambda s: s.used)
        total = sum(s.size for s in stored)
        if total <= limit:
            return total
        for s in stored:
            if total <= limit - limit // 4 or time.time() - s.used < _MINUTE:
                break
            self._remove(s.names)
            total -= s.size
        return total

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                os.unlink(self.directory / name)
            except FileNotFoundError:
                pass

    def _stored(self) -> Iterator[_Stored]:
        """All files of a cache but what somebody is at work on."""
        found: dict[int, _Stored] = {}
        now = time.time()
        with os.scandir(self.directory) as files:
            for file in files:
                if not _OURS.fullmatch(file.name):
                    continue
                try:
                    status = file.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode) and (file.name.count(".") == 1 or now - status.st_mtime > _HOUR):
                    found.setdefault(status.st_ino, _Stored(status.st_mtime, status.st_size, [])).names.append(file.name)
        return iter(found.values())

    def count(self) -> tuple[int, int]:
        """(compiled objects, bytes that they and their sources take)."""
        stored = list(self._stored())
        return sum(bool(_OBJECT.fullmatch(name)) for s in stored for name in s.names), sum(s.size for s in stored)

    def clear(self) -> None:
        """Remove them all. Programs that run keep what they have loaded."""
        for s in list(self._stored()):
            self._remove(s.names)
        self._remove([LEDGER])


def cache_dir() -> Path:
    """The directory in which compiled kernels are kept: `tracejit/kernels` below XDG_CACHE_HOME or ~/.cache, or a temporary
    one for this process where others may write there.

    >>> import tracejit
    >>> tracejit.cache_dir().is_dir()
    True
    """
    return DiskCache().directory


def _kib(size: int) -> int:
    return -(-size // 1024)


def _also_at(made: Path, other: Path) -> None:
    """The file under another name as well; a copy where the file system has no links."""
    link = made.with_suffix(f".{other.stem}.tmp")
    try:
        os.link(made, link)
    except OSError:
        shutil.copy(made, link)
    os.replace(link, other)


def _make_private(directory: Path) -> bool:
    """Make the directory; is it the user's alone?"""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(directory, os.W_OK)


@lru_cache(None)
def _temporary() -> Path:
    made, owner = Path(tempfile.mkdtemp(prefix="tracejit-")), os.getpid()
    atexit.register(lambda: shutil.rmtree(made, ignore_errors=True) if os.getpid() == owner else None)
    return made
