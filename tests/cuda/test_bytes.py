"""What the kernels of the benchmark's workloads move: arguments and results once, or a reason why not."""
import sys
from pathlib import Path

import pytest

from proof import needs_nvrtc, thin

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import cuda_facts
from workloads import WORKLOADS

pytestmark = needs_nvrtc

MORE = {                                                       # and why
    "sigmoid and digamma, alternating": "torch computes digamma",
    "sigmoid/digamma alternating": "torch computes digamma",
    "Adam, 100 of 1024": "the steps of an update on lists of tensors are kernels of their own",
    "SGD+momentum, 100 of 1024": "the steps of an update on lists of tensors are kernels of their own",
    "heat stencil, slice assignment": "neighbours read what would be overwritten",
}


@pytest.mark.parametrize("workload", thin([*cuda_facts.HEADLINES, *WORKLOADS], 9), ids=lambda w: w.name)
def test_kernels_move_the_least(workload):
    found = cuda_facts.facts(workload, "sm_90")
    assert found["spills"] == 0 and found["regions"]
    assert found["bytes"] <= 1.05 * found["least"] or workload.name in MORE
