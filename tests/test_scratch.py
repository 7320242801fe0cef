"""What is asked of real kernels at capture is asked on little memory, with the same answers."""
import itertools
import random

import pytest
import torch

import tracejit
from tracejit.capture import scratch
from tracejit.ir.proxy import proxy_of
from tracejit.ir.symbol import aten_symbol

aten = torch.ops.aten


def laid_out(shape, rng):
    """A tensor of this shape, its dims in some order in memory, some of them sliced, expanded or of an odd stride."""
    order = list(range(len(shape)))
    rng.shuffle(order)
    gaps = [rng.choice([0, 0, 0, 1, 3]) for _ in shape]
    t = torch.zeros([shape[d] + gaps[d] for d in order])
    for k, d in enumerate(order):
        t = t.narrow(k, rng.randrange(gaps[d] + 1), shape[d])
    t = t.permute([order.index(d) for d in range(len(shape))])
    if rng.random() < 0.3:
        d = rng.randrange(len(shape))
        t = t.narrow(d, 0, 1).expand(shape) if rng.random() < 0.5 else t.narrow(d, 0, 1)
    return t


@pytest.mark.parametrize("op", [aten.add.Tensor, aten.div.Tensor, aten.copysign.Tensor, aten.logical_and.default,
                                aten.xlogy.Tensor])
def test_strides_of_results_are_those_of_the_real_kernel_whatever_the_layout(op):
    rng = random.Random(0)
    for _ in range(300):
        shape = [rng.choice([1, 2, 5, 5, 7]) for _ in range(rng.choice([1, 2, 3, 4]))]
        tensors = [laid_out(shape, rng) for _ in range(2)]
        before = [proxy_of(f"t{k}", t, k) for k, t in enumerate(tensors)]
        wanted = op(*tensors)
        assert scratch.real_strides(aten_symbol(op), before, (tuple(before), {})) == [(tuple(wanted.shape), wanted.stride())], [
            (t.shape, t.stride()) for t in tensors]


def test_a_capture_of_large_slices_takes_little_memory(monkeypatch):
    taken, zeros = [], torch.zeros
    monkeypatch.setattr(scratch.torch, "zeros", lambda *size, **options: taken.append(zeros(*size, **options)) or taken[-1])
    x, y = torch.ones(512, 1024), torch.ones(600, 512)
    def f(x, y):
        return (x[:, :512].t() * y[::2].narrow(0, 0, 1).t() + x[:, 512:].t()) * 2
    assert torch.equal(tracejit.jit(f, fallback="error")(x, y), f(x, y))
    raw = [t.nbytes for t in taken if t.dtype == torch.uint8]
    assert raw and max(raw) < 1 << 14


def test_dense_strides_are_told_for_other_sizes():
    for order in itertools.permutations(range(3)):
        t = torch.empty([(4, 1, 3)[d] for d in order]).permute([order.index(d) for d in range(3)])
        _, stride = scratch._strides_in_order(tuple(t.shape), t.stride(), (20, 1, 30))
        larger = torch.empty([(20, 1, 30)[d] for d in order]).permute([order.index(d) for d in range(3)])
        assert stride[0] == larger.stride(0) and stride[2] == larger.stride(2)
    assert scratch._strides_in_order((4, 3), (6, 1), (4, 3)) is None


def test_a_fake_that_tells_other_dims_than_the_kernel_makes_is_not_believed():
    """torch's decomposition of the loss gives the loss of a single row a dim."""
    target = torch.tensor([1, -1, 0])
    eager, jitted = torch.randn(2, 3)
    eager.requires_grad_(), jitted.copy_(eager.detach()).requires_grad_()

    def loss(x):
        return torch.nn.functional.multilabel_margin_loss(x, target, reduction="none") * 2
    with pytest.warns(tracejit.FallbackWarning, match="multilabel_margin_loss_forward.default makes a tensor of 1 dims"):
        result = tracejit.jit(loss)(jitted)
    torch.testing.assert_close(result, loss(eager))
    result.backward()
    loss(eager).backward()
    torch.testing.assert_close(jitted.grad, eager.grad)


def test_a_gradient_that_the_kernel_leaves_out_is_no_other_tensor():
    weight = torch.ones(8, requires_grad=True)                 # the one that is asked for, of three
    jitted = tracejit.jit(lambda x, mean, var, w: torch.nn.functional.batch_norm(x, mean, var, w, training=True), fallback="error")
    jitted(torch.randn(4, 8, 5), torch.zeros(8), torch.ones(8), weight)
    assert jitted.replayed_because == ""


def test_a_result_has_the_dtype_that_the_kernel_gives():
    """torch's fakes say int64 of a boolean tensor to the power of True."""
    x = torch.tensor([True, False])
    jitted = tracejit.jit(lambda x: torch.pow(x, True), fallback="error")
    assert jitted(x).dtype is torch.pow(x, True).dtype is jitted.last_traces[-1].tensor_results[0].dtype
    assert tracejit.jit(lambda x: torch.pow(x, 1), fallback="error")(x).dtype is torch.pow(x, 1).dtype


def test_strides_over_an_empty_view_name_memory_beyond_it():
    memory = torch.arange(16)
    found = tracejit.jit(lambda x: x.as_strided((2, 2), (1, 2)), fallback="error")(memory.as_strided((0, 0), (1, 1)))
    assert found.tolist() == [[0, 2], [1, 3]] and found.data_ptr() == memory.data_ptr()
