"""The programs of the CPU fuser's tests, with CUDA kernels: compiled by NVRTC, run on the shim, asserted as there."""
import pytest

import regions
import test_cpu_kernels
import test_fused
import test_opinfo
from on_shim import ShimExecutor
from proof import needs_nvrtc
from test_codegen import *  # noqa: F403  the tests themselves
from test_cpu_kernels import (  # noqa: F401
    test_columns_are_walked_together_and_shared_among_threads, test_sums_of_few_columns, test_transposes_by_tiles)
from test_fused import *  # noqa: F403
from tracejit.executors import registry

pytestmark = needs_nvrtc
del test_scans, test_scans_between_reductions  # noqa: F821  no CUDA kernel runs along a dim one element after another
del test_fast_numerics_round_less  # noqa: F821  CUDA kernels have eager's numerics alone


@pytest.fixture(autouse=True)
def on_the_shim(monkeypatch, full):
    for module in (regions, test_cpu_kernels):
        monkeypatch.setattr(module, "CpuExecutor", ShimExecutor)
    monkeypatch.setattr(test_fused, "EVERY_OP", ShimExecutor(allow_single_op_fusion=True))
    monkeypatch.setitem(registry._registered, "cpu", ShimExecutor())
    monkeypatch.setattr(test_opinfo, "ALL", False)             # a few samples of each op: each is a kernel to compile
    monkeypatch.setattr(test_fused, "SMALL", 100 if full else 4)
