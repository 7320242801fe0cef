"""What autograd saved is refused after a jitted call has written it, however the write was compiled."""
import pytest
import torch

import tracejit


def fused(x):
    x.add_(1).mul_(2)


def through_a_view(x):
    x[1:].mul_(3)


def by_torch(x):
    x.copy_(x.sort().values)


def nothing_new(x):
    x.copy_(x)


def no_elements(x):
    x[:0].add_(1)


def metadata(x):
    x.t_()


WRITES = (fused, through_a_view, by_torch, nothing_new, no_elements, metadata)


@pytest.mark.parametrize("executors", [["cpu"], []], ids=["fused", "torch"])
@pytest.mark.parametrize("write", WRITES)
def test_a_saved_tensor_that_a_jitted_call_writes_is_refused(write, executors):
    compiled = tracejit.jit(write, executors=executors, fallback="error")
    for _ in range(3):
        saved, weight = torch.randn(4, 4), torch.ones(4, 4, requires_grad=True)
        loss = (weight * saved).sum()
        compiled(saved)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def reads(x):
    return x * 2 + 1


def test_what_is_only_read_keeps_its_version():
    compiled, x = tracejit.jit(reads, executors=["cpu"], fallback="error"), torch.randn(8)
    for _ in range(3):
        compiled(x)
    assert x._version == 0


def test_inference_tensors_have_no_version_and_are_written_all_the_same():
    with torch.inference_mode():
        compiled, x = tracejit.jit(fused, executors=["cpu"], fallback="error"), torch.zeros(8)
        for _ in range(3):
            compiled(x)
        assert x[0] == 14
