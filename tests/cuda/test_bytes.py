"""What the kernels of the benchmark's workloads move: arguments and results once, or a reason why not."""
import pytest

import cuda_facts
from proof import needs_nvrtc, thin
from workloads import WORKLOADS

pytestmark = needs_nvrtc

MORE = {                                                       # and why
    "sigmoid and digamma, alternating": "torch computes digamma",
    "sigmoid/digamma alternating": "torch computes digamma",
    **dict.fromkeys((w.name for w in cuda_facts.LONGER), "longer than what a block holds"),
}


@pytest.mark.parametrize("workload", thin([*cuda_facts.HEADLINES, *WORKLOADS, *cuda_facts.HELD, *cuda_facts.LONGER], 9), ids=lambda w: w.name)
def test_kernels_move_the_least(workload):
    found = cuda_facts.facts(workload, "sm_90")
    assert found["spills"] == 0 and found["regions"]
    assert found["bytes"] <= 1.05 * found["least"] or workload.name in MORE
