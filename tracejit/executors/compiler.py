"""The system's C compiler: which it is, and one run of it."""
from __future__ import annotations

import os
import platform
import shutil
import subprocess
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Optional, Sequence

from ..options import compiler_command

TIMEOUT = 120                # seconds that the compiler may take
FLAGS = ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-march=native", "-fno-math-errno", "-fno-trapping-math",
         "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-fopenmp-simd", "-fPIC", "-shared", "-w", "-nostartfiles",
         "-nostdlib", "-pipe")


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
        raise NoCompiler(f"{' '.join(command)} --version failed: {error} Name another compiler in CC") from error
    flags = next((line for line in _cpuinfo().splitlines() if line.startswith(("flags", "Features"))), "")
    return f"{command}\n{version}\n{platform.machine()}\n{flags}"


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else platform.processor()


@lru_cache(None)
def machine_flags() -> tuple[str, ...]:
    """Whole vector registers where the processor has wide ones. gcc's PRE makes jumps of selects, which its vectorizer does not take;
    and gcc 12 takes some functions with vectorized stores for pure, and leaves their calls out."""
    wide = ("-mprefer-vector-width=512",) if "avx512f" in _cpuinfo() else ()
    return wide if "clang" in machine() else (*wide, "-fno-tree-pre", "-fno-ipa-pure-const", "-fno-ipa-modref")


def compile_command(more: Sequence[str] = ()) -> list[str]:
    """What compiles a text, without its files; more: flags. Raises NoCompiler."""
    return [*compiler(), *FLAGS, *machine_flags(), *more]


@dataclass(frozen=True)
class Building:
    """A compiler at work on the text in `source`; it writes `made`."""

    source: Path
    made: Path
    process: subprocess.Popen
    owner: int                           # process that started it: a fork of that cannot wait for it

    def running(self) -> bool:
        return self.process.poll() is None

    def end(self, seconds: Optional[float] = None) -> None:
        """Wait until the object is there, by default for TIMEOUT seconds. Raises CompilerError."""
        try:
            errors = self.process.communicate(timeout=TIMEOUT if seconds is None else seconds)[1]
        except subprocess.TimeoutExpired as error:
            raise HungCompiler(f"{error}; the source is {self.source}") from error
        finally:
            if self.process.returncode is None:                # too late, or interrupted
                self.stop()
        if self.process.returncode or not self.made.exists():
            self.made.unlink(missing_ok=True)
            raise CompilerError(f"{' '.join(self.process.args)} failed; the source is {self.source}:\n{errors[-2000:]}")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        self.made.unlink(missing_ok=True)


class _Compiler(subprocess.Popen):
    """A process that does not go on where an interrupt comes while it is started: nobody would know of it."""

    def __init__(self, command: list[str]) -> None:
        try:
            super().__init__(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        except KeyboardInterrupt:
            if getattr(self, "pid", None) is not None:         # it runs already
                self.kill()
                self.wait()
            raise


def begin(path: Path, text: str, more: tuple[str, ...] = ()) -> Building:
    """Start the compiler on a text, the object of which is to be at `path` in the end; more: flags. Raises CompilerError."""
    source = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.c")
    made = source.with_suffix(".tmp")
    command = [*compile_command(more), str(source), "-o", str(made), "-lm"]
    try:
        source.parent.mkdir(mode=0o700, parents=True, exist_ok=True)       # somebody may have removed it
        source.write_text(text)
        started = _Compiler(command)
    except KeyboardInterrupt:
        made.unlink(missing_ok=True)
        raise
    except OSError as error:
        raise CompilerError(f"{error}; the source is {source}") from error
    return Building(source, made, started, os.getpid())
