"""The CPU fuser: a region becomes C kernels, compiled by the system's compiler.

Without a compiler, or when one fails, regions go to the torch fallback, and one warning says so.
"""
from __future__ import annotations

import warnings
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Callable, Iterator, Optional, Union
from weakref import WeakSet

import torch

from ..codegen.calls import Call, call_of
from ..codegen.cost import length
from ..codegen.kernel import FLOATS, CannotLower
from ..codegen.ops import row_of
from ..codegen.source import Source, Sources
from ..errors import FallbackWarning, UnsupportedError
from ..ir.symbol import Symbol
from ..ir.trace import BoundSymbol
from ..options import check_traces
from .fusible import MOST_CALLS, can_lower, why_not_lowered
from .kernel_cache import CompilerError, HungCompiler, KernelCache, Library, NoCompiler, machine
from .launch import OpenRegion, compiled_region
from .registry import Executor
from .shared_code import Code, SharedCode

LONGEST = 800                # instructions of one region: fifty costly ones take the compiler about half a second


class CpuExecutor(Executor):
    """Fuses calls on CPU tensors.

    allow_single_op_fusion: make a kernel of a region of one call too; None: of one that computes a costly function of floats, as `gelu`.
    kernel_cache: the directory of compiled kernels; None: the user's cache directory.
    max_region_ops: a region has no more calls, views not counted.
    share_code: sizes that have changed are no constants of the compiled code, so that further sizes need no compiler; False: the
        code of each shape is its own, which is faster where short inner loops change their lengths.

    >>> import torch, tracejit
    >>> f = tracejit.jit(torch.relu, executors=[tracejit.CpuExecutor(allow_single_op_fusion=True)])
    >>> f(torch.tensor([-1.0, 1.0])), len(f.kernels)
    (tensor([0., 1.]), 1)
    """

    name = "cpu"
    postpones_copies = True

    def __init__(self, *, allow_single_op_fusion: Optional[bool] = None, kernel_cache: Optional[str] = None,
                 max_region_ops: int = MOST_CALLS, share_code: bool = True) -> None:
        self.allow_single_op_fusion, self.max_region_ops = allow_single_op_fusion, max_region_ops
        self.share_code = self.takes_open_sizes = share_code
        self.cache = KernelCache(kernel_cache)
        self.broken = False                                    # there is no compiler that works: said once
        self.refused: WeakSet[BoundSymbol] = WeakSet()         # calls that the compiler failed on
        self.fast = False
        self.shared, self.sources = SharedCode(), Sources()

    def with_numerics(self, numerics: str) -> CpuExecutor:
        """fast: `a * b + c` may be rounded once, and half-precision values are rounded where they are stored, not at every op."""
        if numerics == "eager":
            return self
        faster = copy(self)
        faster.fast, faster.cache = True, KernelCache(self.cache.disk.wanted, ("-ffp-contract=fast",))
        return faster

    def available(self) -> bool:
        if not self.broken:
            try:
                machine()
            except NoCompiler as error:
                self.broken = True
                _say(error)
        return not self.broken

    def can_execute(self, bsym: BoundSymbol) -> bool:
        return False

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        return not self.broken and bsym not in self.refused and can_lower(bsym)

    def why_not(self, bsym: BoundSymbol) -> str:
        if self.broken:
            return "there is no C compiler that works: install one, or name it in CC"
        failed = bsym.tensor_outputs and any(b.output is bsym.output for b in self.refused)        # another object, once it is placed
        return "the C compiler failed on it, as a warning said" if failed else why_not_lowered(bsym)

    def fuse(self, region: BoundSymbol) -> Optional[BoundSymbol]:
        """The region with a function that runs it, or None."""
        calls = [c for c in map(call_of, (b for b in region.subsymbols if b.tensor_args)) if not c.is_view]
        if self.broken or len(calls) > self.max_region_ops or len(calls) < 2 and not self._fuses_alone(calls):
            return None
        try:
            source = self.sources.source_of(region, self.fast)
        except RecursionError:                                 # a value that hangs on hundreds of others, one on the next: two kernels
            return None
        except CannotLower:
            if check_traces():
                raise
            return None
        if length(source.kernels) > LONGEST and len(region.subsymbols) > 1:
            return None                                        # two kernels compile sooner
        return replace(region, sym=Symbol(region.sym.name, _Uncompiled(source, region.sym.fn)), executor=self.name)

    def _fuses_alone(self, calls: list[Call]) -> bool:
        """Torch's own kernel of a call that memory bounds is as fast, and so are its functions of doubles."""
        if self.allow_single_op_fusion is not None:
            return self.allow_single_op_fusion
        rows = [row_of(c) for c in calls if c.dtype in FLOATS and c.dtype is not torch.float64]
        return any(row is not None and row.heavy for row in rows)

    @contextmanager
    def finishing(self, regions: list[BoundSymbol]) -> Iterator[Callable[[], Optional[list[BoundSymbol]]]]:
        """Compiled, all at a time, from now on. The calls of regions that the compiler fails on are not fused."""
        self.sources.forget()                                  # the next are another program's
        sources = [r.sym.fn.source for r in regions]
        codes = self._codes(regions, sources)
        with self.cache.building([c.body for c in codes]) as built:
            yield lambda: self._compiled(regions, sources, codes, built)

    def _codes(self, regions: list[BoundSymbol], sources: list[Source]) -> list[Code]:
        """The text to compile for each region: extents are read from a table, and so are sizes that have changed."""
        opened = [bool(s.parted.open) or any(p.has_open_sizes for p in (*r.tensor_args, *r.tensor_outputs))
                  for r, s in zip(regions, sources)]
        settled = [(r, s) for r, s, is_open in zip(regions, sources, opened) if not is_open]
        shared = iter(self.shared.codes(*zip(*settled)) if self.share_code and settled else [Code(s.body) for _, s in settled])
        return [Code(s.parted.reading(s.parted.open), given=s.parted.open, open=True) if is_open else next(shared)
                for s, is_open in zip(sources, opened)]

    def _compiled(self, regions: list[BoundSymbol], sources: list[Source], codes: list[Code],
                  built: Callable[[], list]) -> Optional[list[BoundSymbol]]:
        libraries = self._libraries(codes, sources, built())
        failed = [(r, error) for r, error in zip(regions, libraries) if isinstance(error, CompilerError)]
        if not failed:
            made = [replace(s, given=c.given, flags=self.cache.more) for s, c in zip(sources, codes)]
            return [replace(r, sym=Symbol(r.sym.name, OpenRegion(source, library, r) if code.open else
                                          compiled_region(r, source, library, code.sizes)))
                    for r, source, library, code in zip(regions, made, libraries, codes)]
        error = failed[0][1]
        if check_traces():
            raise error
        if any(c.open for c in codes) and not isinstance(error, HungCompiler):
            raise UnsupportedError("the C compiler fails on sizes that are open") from error
        self.broken = self.broken or isinstance(error, HungCompiler) or not self.cache.compiler_works()
        self.refused.update(b for r, _ in failed for b in r.subsymbols if not call_of(b).is_view)
        _say(error, next((f" (for {b.source})" for b in failed[0][0].subsymbols if b.source.file), ""))
        return None

    def _libraries(self, codes: list[Code], sources: list[Source],
                   libraries: list[Union[Library, CompilerError]]) -> list[Union[Library, CompilerError]]:
        """Of each text. One that reads sizes and fails, where the compiler wants a constant, is compiled with them as constants."""
        failed = [n for n, (c, made) in enumerate(zip(codes, libraries))
                  if c.sizes and isinstance(made, CompilerError) and not isinstance(made, HungCompiler)]
        if failed and not check_traces():
            with self.cache.building([sources[n].body for n in failed]) as built:
                again = built()
            for n, library in zip(failed, again):
                self.shared.refuse(codes[n])
                codes[n], libraries[n] = Code(sources[n].body), library
        return libraries


@dataclass(frozen=True, eq=False)
class _Uncompiled:
    """In the place of a region's function, until all are compiled."""

    source: Source = field(repr=False)
    refuse: Callable[..., list]

    def __call__(self, *tensors: torch.Tensor) -> list:
        return self.refuse(*tensors)


def _say(error: Exception, where: str = "") -> None:
    advice = "" if isinstance(error, NoCompiler) else (
        "\nIts calls run as ops of torch. Another compiler is named in CC, another directory in XDG_CACHE_HOME")
    warnings.warn(f"no CPU kernels: {error}{where}{advice}", FallbackWarning, stacklevel=2)
