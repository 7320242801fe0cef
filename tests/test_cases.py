"""Programs that were once wrong in some compiler, and programs that mutate and alias: all as eager."""
import dataclasses

import pytest

import tracejit

from cases import adversarial, harness
from cases import adversarial_state, reported_aliasing, reported_state  # noqa: F401  (importing registers programs)
from cases.broken_compilers import BROKEN_COMPILERS
from cases.compare import rounds

REPORTED = 32
ADVERSARIAL = 67

adversarial.register()
every_executor = pytest.mark.parametrize("executors", [None, ["torch"]], ids=["fused", "torch"])

# Programs whose Python decides on, or returns, values that only exist at run time: eager is the answer.
HOST_READS = {
    "ms-batchnorm-cumulative": "momentum=None divides by float(num_batches_tracked)",
    "adv-branch_on_value": "branches on x.sum() > 3",
    "adv-numpy_escape": "computes in numpy",
    "adv-python_list": "returns .tolist() and float(v) of tensors",
}


def problems(case, executors, repeat=1):
    """What tells the jitted program from eager; rounding does not where kernels round."""
    made = []

    def transform(fn):
        made.append(tracejit.jit(fn, fallback="silent" if case.id in HOST_READS else "error", executors=executors))
        return made[0]
    want, got = harness.observe(case, repeat=repeat), harness.observe(case, transform, repeat)
    found = harness.diff(case, want, got)
    if found and rounds(made[0]):
        return harness.diff(dataclasses.replace(case, rtol=max(case.rtol, 1e-6), atol=max(case.atol, 1e-7)), want, got)
    return found


def test_every_program_is_here():
    ids = list(harness.REGISTRY)
    assert sum(i.startswith("adv-") for i in ids) == ADVERSARIAL
    assert sum(not i.startswith("adv-") for i in ids) == REPORTED
    assert set(HOST_READS) <= set(ids)


@pytest.mark.parametrize("name", list(harness.REGISTRY))
def test_eager_is_as_the_case_declares(name):
    case = harness.REGISTRY[name]
    one, two = harness.observe(case), harness.observe(case)
    assert harness.diff(case, one, two) == [], "eager is not deterministic"
    errors = {record["error"] for record in one if record["error"]}
    if case.raises:
        assert errors == {case.raises}
    elif not name.startswith("adv-"):
        assert not errors
        assert not case.grad or any(g is not None for record in one for g in record["grads"].values())


@every_executor
@pytest.mark.parametrize("name", list(harness.REGISTRY))
def test_is_indistinguishable_from_eager(name, executors):
    assert problems(harness.REGISTRY[name], executors) == []


@every_executor
@pytest.mark.parametrize("name", list(harness.REGISTRY))
def test_cached_path_is_indistinguishable_from_eager(name, executors):
    assert problems(harness.REGISTRY[name], executors, repeat=3) == []


@pytest.mark.parametrize("broken", BROKEN_COMPILERS, ids=lambda broken: broken.__name__)
def test_harness_notices_a_broken_compiler(broken):
    reported = [case for name, case in harness.REGISTRY.items() if not name.startswith("adv-")]
    assert any(harness.diff(case, harness.observe(case), harness.observe(case, broken)) for case in reported)


def test_some_broken_compiler_is_noticed_by_most_cases():
    reported = [case for name, case in harness.REGISTRY.items() if not name.startswith("adv-")]
    noticed = sum(any(harness.diff(case, harness.observe(case), harness.observe(case, broken))
                      for broken in BROKEN_COMPILERS) for case in reported)
    assert noticed >= 0.8 * len(reported)
