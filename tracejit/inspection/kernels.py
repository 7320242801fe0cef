"""The kernels of a compiled function, for people: source, what they compute, what they move, how long they take."""
from __future__ import annotations

import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Any, Optional

import torch

from ..capture.variables import variables
from ..codegen.cuda_source import CudaSource
from ..codegen.readable import readable
from ..codegen.source import Source
from ..errors import TraceError
from ..ir.cached import cached_property
from ..ir.trace import BoundSymbol, Trace
from .html import framed
from .samples import region_trace, sample_inputs


@dataclass(frozen=True, eq=False)
class Kernel:
    """One fused region as machine code.

    `source` is its text; `bytes_read` and `bytes_written` what one launch must move; `trace` what it computes, as runnable
    Python.

    >>> import torch, tracejit
    >>> f = tracejit.jit(lambda x: torch.relu(x) * 2 + 1, executors=["cpu"])
    >>> _ = f(torch.randn(1024))
    >>> [kernel] = f.kernels
    >>> kernel.executor, kernel.bytes_read, kernel.bytes_written
    ('cpu', 4096, 4096)
    """

    region: BoundSymbol
    program: Optional[Trace] = None      # as recorded: the statements that its results have their names from

    @property
    def name(self) -> str:
        return self.region.sym.name

    @property
    def executor(self) -> str:
        return self.region.executor

    @property
    def _compiled(self) -> Any:
        """Text, kernels and bytes, as the executor keeps them; None for an executor that shows none."""
        return getattr(self.region.sym.fn, "source", None)

    @cached_property
    def source(self) -> str:
        """Its text, with names and lines of the program. What is compiled has neither: equal kernels are one."""
        if not isinstance(self._compiled, (Source, CudaSource)):
            return self._compiled.text if self.shows_source else ""
        return readable(getattr(self.region.sym.fn, "shown", None) or self.region, self._compiled, variables(self.program) if self.program is not None else {})

    @property
    def shows_source(self) -> bool:
        return self._compiled is not None

    @property
    def bytes_read(self) -> int:
        return sum(k.bytes_read for k in self._compiled.kernels) if self._compiled is not None else 0

    @property
    def bytes_written(self) -> int:
        return sum(k.bytes_written for k in self._compiled.kernels) if self._compiled is not None else 0

    @property
    def trace(self) -> Trace:
        return region_trace(self.region)

    @property
    def lines(self) -> list[str]:
        """The user's lines that it runs, `file:line`, in order."""
        return list(dict.fromkeys(b.source.short for b in self.region.subsymbols if b.source.file))

    def __call__(self, *tensors: torch.Tensor) -> list:
        """Run it on tensors laid out as `trace.inputs` say; memory among them is written."""
        return self.region.sym.fn(*tensors)

    def raw_kernel(self) -> list:
        """Of a CUDA kernel: a `cupy.RawKernel` for each of its launches, in order, to be taken away and called elsewhere.

        `region.sym.fn.source.launches` say with which grid, block and buffers. TraceError for a kernel of another device.
        """
        made = getattr(self.region.sym.fn, "raw_kernels", None)
        if made is None:
            raise TraceError(f"kernel {self.name} is of the executor {self.executor!r}: only those of 'cupy', "
                             "for CUDA tensors, are raw kernels")
        return made()

    def seconds(self, samples: int = 11) -> float:
        """Median time of a launch on made-up inputs."""
        tensors = sample_inputs(self.region)
        self(*tensors)
        times = []
        for _ in range(samples):
            start = time.perf_counter()
            self(*tensors)
            times.append(time.perf_counter() - start)
        return median(times)

    def save_repro(self, path: Any) -> Path:
        """Write a script that builds this kernel, runs it on random inputs and compares it with PyTorch's own ops.

        Returns the path. TraceError when the executor shows no C source, or a constant of the region has no text.
        """
        from .repro import repro_script
        if self.executor != "cpu" or self._compiled is None:
            raise TraceError(f"{self.name} runs on executor {self.executor!r}: only kernels in C have a reproduction script")
        path = Path(path)
        path.write_text(repro_script(self.region))
        return path

    def __str__(self) -> str:
        return f"{self.name} ({self.executor}): {', '.join(self.lines)}; {moved(self)}"

    def __repr__(self) -> str:
        return f"<Kernel {self}>"

    def _repr_html_(self) -> str:
        listing = [f"<pre>{escape(str(self.trace))}</pre>", f"<pre>{escape(self.source)}</pre>"]
        return framed(self.name, f"{self.executor}, {moved(self)}", listing)


def moved(kernel: Kernel) -> str:
    return f"reads {in_bytes(kernel.bytes_read)}, writes {in_bytes(kernel.bytes_written)}"


def in_bytes(count: float) -> str:
    """`1.5 MB`: three digits."""
    unit = next((u for u in ("B", "kB", "MB") if count < 1000 or not (count := count / 1000)), "GB")
    return f"{count:.3g} {unit}"


def in_time(seconds: float) -> str:
    """`1.5 us`: three digits."""
    unit, length = next((u for u in (("s", 1), ("ms", 1e-3), ("us", 1e-6)) if seconds >= u[1]), ("us", 1e-6))
    return f"{seconds / length:.3g} {unit}"


def kernels_of(traces: list[Trace]) -> list[Kernel]:
    """Those of the last stage, in the order in which they run."""
    return [Kernel(b, traces[0]) for b in traces[-1].regions] if traces else []
