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


@pytest.mark.parametrize("executors", [["cpu"], []], ids=["fused", "torch"])
def test_versions_of_running_statistics_are_eagers(executors):
    """Its batch norm does not raise them, its instance norm does; a write beside it counts."""
    def programs(x, mean, var):
        return torch.nn.functional.batch_norm(x, mean, var, training=True)

    def with_a_write(x, mean, var):
        mean.mul_(2)
        return torch.nn.functional.batch_norm(x, mean, var, training=True)

    def small(x, mean, var):
        return torch.nn.functional.batch_norm(x[:, :1], mean[:1], var[:1], training=True).sum()

    for f in (programs, with_a_write, small, lambda x, mean, var: torch.nn.functional.instance_norm(x, mean, var)):
        compiled, versions, values = tracejit.jit(f, executors=executors, fallback="error"), [], []
        for call in (f, compiled):
            x, mean, var = torch.arange(72.0).reshape(2, 4, 3, 3), torch.zeros(4), torch.ones(4)
            for _ in range(2):
                call(x, mean, var)
            versions.append([t._version for t in (x, mean, var)])
            values.append(torch.stack([mean, var]))
        assert versions[0] == versions[1]
        torch.testing.assert_close(*values)


def test_a_batch_norm_that_stands_first_trains():
    x, eager = torch.randn(2, 4, 3, 3), torch.nn.BatchNorm2d(4)
    compiled = tracejit.jit(torch.nn.BatchNorm2d(4), executors=["cpu"], fallback="error")
    for module in (eager, compiled):
        module(x).square().mean().backward()
    assert eager.weight.grad is not None and compiled.weight.grad is not None
    torch.testing.assert_close(compiled.weight.grad, eager.weight.grad, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(compiled.bias.grad, eager.bias.grad, atol=1e-6, rtol=1e-4)


def by_way_of_data(x):
    x.data.mul_(2)


def by_way_of_a_view_of_data(x):
    x.data[1:].view(-1).add_(1)


def by_way_of_data_in_torch(x):
    x.data.copy_(x.sort().values)
    x.data.t_()


def of_a_view_beside(x):
    y = x[1:]
    y.data.detach().relu_().add_(y.data)


@pytest.mark.parametrize("executors", [["cpu"], []], ids=["fused", "torch"])
@pytest.mark.parametrize("write", [by_way_of_data, by_way_of_a_view_of_data, by_way_of_data_in_torch, of_a_view_beside])
def test_a_write_by_way_of_data_is_not_told(write, executors):
    compiled = tracejit.jit(write, executors=executors, fallback="error")
    for function in (write, compiled, compiled):
        x, weight = torch.arange(16.0).view(4, 4).cos(), torch.ones(4, 4, requires_grad=True)
        y = weight * x
        function(x)
        assert x._version == 0
        y.sum().backward()
        expected = torch.arange(16.0).view(4, 4).cos()
        write(expected)
        assert torch.equal(x, expected) and torch.equal(weight.grad, x)


def test_a_write_both_ways_is_told():
    def program(x):
        x.data.mul_(2)
        x[0].add_(1)
        x.data.mul_(3)

    compiled = tracejit.jit(program, fallback="error")
    for function in (program, compiled, compiled):
        x = torch.ones(4, 4)
        function(x)
        assert x._version > 0 and x[1].tolist() == [6] * 4 and x[0].tolist() == [9] * 4
