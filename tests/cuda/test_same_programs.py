"""The programs of the CPU fuser's tests, with CUDA kernels: compiled by NVRTC, run on the shim, asserted as there."""
import pytest

import regions
from on_shim import ShimExecutor
from proof import needs_nvrtc
from test_codegen import *  # noqa: F403  the tests themselves

pytestmark = needs_nvrtc


@pytest.fixture(autouse=True)
def on_the_shim(monkeypatch):
    monkeypatch.setattr(regions, "CpuExecutor", ShimExecutor)
