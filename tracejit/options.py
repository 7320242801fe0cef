"""Options of `jit`, and the only place that reads environment variables."""
from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any, Callable, Mapping, Optional

FALLBACKS = ("warn", "error", "silent")
NUMERICS = ("eager", "fast")
RECOMPUTE = ("fused", "never", "always")


@dataclass(frozen=True)
class Options:
    """What a user can choose. Unknown names and values are errors, never ignored.

    executors: names or `Executor` objects, asked in this order; the torch fallback is always last.
    executor_options: arguments of executors, by name: `{"cpu": {"allow_single_op_fusion": True}}`.
    disable_inplace_copy_check: skip the proof that the final trace keeps the order of memory accesses.
    fallback: what happens when a call cannot be captured: "warn" (eager, one warning per cause), "silent", "error".
    numerics: "eager" (the same bits wherever eager's are defined) or "fast": kernels may round `a * b + c` once, and round
        half-precision values where they are stored, not at every op; no further from exact results than eager, but for a bit.
    recompute: what the backward pass computes again instead of keeping it: what costs nothing inside a kernel ("fused"),
        nothing ("never"), or whatever spares memory ("always").
    transforms: functions Trace -> Trace, applied in order to the functionalized trace.
    dynamic: which sizes of arguments, and integers, compiles leave open, so that what is compiled holds for others, too: those that
        have changed, and those marked by `mark_dynamic` (None), all (True) or none (False).
    name: how the function is called in traces and messages; default: its own name.
    """

    executors: Optional[tuple] = None
    executor_options: Optional[Mapping[str, Mapping[str, Any]]] = None
    disable_inplace_copy_check: bool = False
    fallback: str = "warn"
    numerics: str = "eager"
    recompute: str = "fused"
    transforms: tuple[Callable, ...] = ()
    dynamic: Optional[bool] = None
    name: Optional[str] = None


def make_options(given: dict[str, Any]) -> Options:
    """Options from keyword arguments. TypeError names what is unknown or has the wrong type or value."""
    known = {f.name for f in fields(Options)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise TypeError(f"tracejit.jit() got an unknown option {unknown[0]!r}; options are {', '.join(sorted(known))}")
    for name in ("executors", "transforms"):
        if isinstance(given.get(name), list):
            given = {**given, name: tuple(given[name])}
    options = Options(**given)
    values = {"fallback": FALLBACKS, "numerics": NUMERICS, "recompute": RECOMPUTE, "disable_inplace_copy_check": (True, False),
              "dynamic": (None, True, False)}
    for name, allowed in values.items():
        value = getattr(options, name)
        if value not in allowed:
            raise TypeError(f"tracejit.jit() option {name}={value!r}: expected one of {', '.join(map(repr, allowed))}")
    if not isinstance(options.executor_options or {}, Mapping):
        raise TypeError("tracejit.jit() option executor_options: expected a mapping from an executor's name to its options")
    if not isinstance(options.transforms, tuple) or not all(map(callable, options.transforms)):
        raise TypeError("tracejit.jit() option transforms: expected a sequence of functions Trace -> Trace")
    return options


def check_traces() -> bool:
    """TRACEJIT_CHECK=1: verify the trace after every stage."""
    return os.environ.get("TRACEJIT_CHECK", "0") not in ("", "0")


def compiler_command() -> str:
    """CC: the C compiler, with arguments, that makes CPU kernels; by default the first of cc, gcc, clang."""
    return os.environ.get("CC", "")


def cache_home() -> str:
    """XDG_CACHE_HOME, or ~/.cache: where compiled kernels are kept."""
    return os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")


def cache_limit() -> int:
    """TRACEJIT_CACHE_MIB=n: bytes that the files of compiled kernels may take; by default 1024 MiB."""
    return int(os.environ.get("TRACEJIT_CACHE_MIB", "") or 1024) << 20


def cuda_home() -> str:
    """CUDA_HOME or CUDA_PATH: an installation of CUDA to look into for NVRTC and headers; by default Python's packages."""
    return os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or ""


def log_topics() -> frozenset[str]:
    """TRACEJIT_LOG: comma-separated topics (recompiles, fallback, kernels, bandwidth, profiler, internal)."""
    return frozenset(t for t in os.environ.get("TRACEJIT_LOG", "").split(",") if t)


def fuel() -> float:
    """TRACEJIT_FUEL=n: the first n regions of a compile become kernels, the calls of all others run one by one."""
    text = os.environ.get("TRACEJIT_FUEL", "")
    return int(text) if text else float("inf")
