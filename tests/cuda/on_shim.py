"""An executor that runs the CUDA kernels of CPU tensors on the shim: in `jit`, in the place of the CPU's."""
from __future__ import annotations

from dataclasses import replace

from torch.autograd.graph import increment_version

import shim
from proof import ARCHITECTURES, assert_compiled
from tracejit.codegen.kernel import CannotLower
from tracejit.executors import nvrtc
from tracejit.executors.cupy import kernels_of
from tracejit.executors.fusible import MOST_CALLS, can_lower
from tracejit.executors.launch import ERRORS
from tracejit.executors.registry import Executor
from tracejit.ir.symbol import Symbol


class ShimExecutor(Executor):
    """Every kernel is compiled for each architecture too, and what ptxas says of it is asserted."""

    name = "shim"
    max_region_ops = MOST_CALLS
    passes_over_long_rows = postpones_copies = True

    def __init__(self, *, allow_single_op_fusion=False, order="random", **options):
        self.allow_single_op_fusion, self.order = allow_single_op_fusion, order
        self.sources = []

    def can_execute(self, bsym):
        return False

    def can_fuse(self, bsym):
        return can_lower(bsym, dialect="cuda")

    def fuse(self, region):
        if len(region.subsymbols) == 1 and not self.allow_single_op_fusion:
            return None
        try:
            source = kernels_of(region)
        except CannotLower:
            return None
        if source is None:
            return None
        for arch in ARCHITECTURES:
            assert_compiled(source, nvrtc.compile_text(source.text, arch))
        self.sources.append(source)

        written = {w.storage for w in region.written}

        def run(*args):
            try:
                made = shim.run_region(source, region, args, self.order)[0]
                increment_version([t for t, p in zip(args, region.args) if p.storage in written])
                return made
            except shim.ShimError as error:
                for kind, message in ERRORS.values():          # a trap of the device is eager's error here
                    if message in str(error) or message == "ZeroDivisionError" and "integer division by zero" in str(error):
                        raise kind(message) from error
                raise
        run.source = source
        return replace(region, sym=Symbol(region.sym.name, run), executor=self.name)
