"""What of the operations that programs use most the CPU fuser takes: all but those listed, each with a reason."""
import pytest
import torch
import torch.nn.functional as F

import tracejit
from cases.compare import call_problems, clone_call, near, run
from tracejit.executors.cpu import CpuExecutor

EVERY_OP = CpuExecutor(allow_single_op_fusion=True)
aten = torch.ops.aten


def tensors():
    """x, y: f32; h: bf16; m: bool; i: i64 below 64; image: f32 NCHW."""
    torch.manual_seed(0)
    return {"x": torch.randn(33, 64), "y": torch.rand(33, 64), "h": torch.randn(33, 64).bfloat16(), "m": torch.rand(33, 64) > 0.5,
            "i": torch.randint(0, 64, (33, 64)), "image": torch.randn(2, 8, 6, 6)}


def adam(t):
    p, g, m, v, n = t.x, t.y, t.x * 0, t.x * 0, torch.tensor(1.0)
    torch._fused_adam_([p], [g], [m], [v], [], [n], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)
    return m, v


def rotary_in_place(t):
    a, b = t.x[:, :32], t.x[:, 32:]
    c, s = t.y[:, :32], t.y[:, 32:]
    left, right = a * c - b * s, b * c + a * s
    t.x[:, :32] = left
    t.x[:, 32:] = right
    return t.x


def running_statistics(t):
    mean, var = torch.zeros(8), torch.ones(8)
    return F.batch_norm(t.image, mean, var, t.x[0, :8], t.x[1, :8], True), mean, var


def set_where(t):
    t.x[t.m] = 0.5
    return t.x


def set_rows(t):
    t.x[t.m[:, 0]] = t.y[0].clone()
    return t.x


def clip(t):
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in (t.x, t.y)]))
    scale = torch.clamp(1 / (norm + 1e-6), max=1.0)
    torch._foreach_mul_([t.x, t.y], scale)
    return norm


FUSED = {
    # pointwise
    "arithmetic": lambda t: (t.x + t.y * 2 - 1) / (t.y + 1), "bf16": lambda t: (t.h * 2 + 1).relu() * t.h, "powers": lambda t: (t.y ** 2.5, 2.0 ** t.x, t.y ** t.x),
    "rounding": lambda t: (t.x // 0.3, t.x % 0.3, torch.fmod(t.x, 0.3), t.h // 0.3, t.h % t.h.abs().add(1), torch.div(t.h, 3, rounding_mode="trunc")),
    "comparisons": lambda t: (t.x > t.y) & ~t.m | (t.i == 3), "where": lambda t: torch.where(t.m, t.x, 0.0).masked_fill(t.x > 1, -1.0),
    "activations": lambda t: (F.silu(t.x), F.gelu(t.x), F.gelu(t.x, approximate="tanh"), F.elu(t.x), F.softplus(t.x), F.mish(t.x), F.hardswish(t.x),
                              F.logsigmoid(t.x), F.selu(t.x), F.glu(t.x), F.leaky_relu(t.x), F.hardsigmoid(t.x), F.relu6(t.x), F.prelu(t.x, t.y[0, :1])),
    "shrinks": lambda t: (F.hardshrink(t.x), F.softshrink(t.x), F.threshold(t.x, 0.1, 0.2), F.tanhshrink(t.x), F.softsign(t.x)),
    "specials": lambda t: (torch.xlogy(t.x, t.y), t.y.logit(0.1), torch.sinc(t.x), torch.logaddexp(t.x, t.y), t.x.nan_to_num(), torch.special.entr(t.y)),
    "pairs": lambda t: (torch.fmax(t.x, t.y), torch.fmin(t.x, t.y), torch.copysign(t.x, t.y), torch.atan2(t.x, t.y), torch.hypot(t.x, t.y),
                        torch.heaviside(t.x, t.y), torch.lerp(t.x, t.y, 0.3), torch.addcmul(t.x, t.y, t.x)),
    "rotary in place": rotary_in_place, "dropout's arithmetic": lambda t: aten.native_dropout_backward(t.x, t.m, 2.0),
    # reductions
    "sums": lambda t: (t.x.sum(), t.x.mean(0), t.x.var(1), t.x.std(), torch.std_mean(t.x, 1), torch.var_mean(t.x, 0), t.x.prod(1)),
    "extremes": lambda t: (t.x.amax(1), t.x.max(1), t.x.min(0), t.x.argmax(), t.x.argmin(1), torch.aminmax(t.x), t.m.any(1), t.m.all()),
    "norms": lambda t: (t.x.norm(), t.x.norm(1, 1), t.x.norm(dim=0), torch.norm(t.x, 3, -1), torch.linalg.vector_norm(t.x, 3, 0), torch.dist(t.x, t.y), F.normalize(t.x), t.x.logsumexp(1)),
    "softmaxes": lambda t: (F.softmax(t.x, -1), F.log_softmax(t.x, 0), F.softmin(t.x, 1), aten._safe_softmax(t.x, 1)),
    "normalisations": lambda t: (F.layer_norm(t.x, (64,), t.x[0], t.y[0]), F.rms_norm(t.x, (64,), t.y[0]), F.group_norm(t.image, 4), F.instance_norm(t.image),
                                 F.batch_norm(t.image, t.x[0, :8], t.y[0, :8])),
    "running statistics": running_statistics, "cumulated": lambda t: (F.layer_norm(t.y[:1].cumsum(1), (64,)), t.x.cumsum(1), t.y.cumprod(0), (t.m.long().cumsum(-1) - 1).masked_fill(~t.m, 1)),
    "cosine": lambda t: F.cosine_similarity(t.x, t.y), "similarity": lambda t: F.pairwise_distance(t.x, t.y),
    # losses and backwards
    "losses": lambda t: (F.mse_loss(t.x, t.y), F.l1_loss(t.x, t.y), F.smooth_l1_loss(t.x, t.y), F.huber_loss(t.x, t.y), F.kl_div(t.x, t.y, reduction="batchmean"),
                         F.binary_cross_entropy(t.y, t.y), F.binary_cross_entropy_with_logits(t.x, t.y), F.soft_margin_loss(t.x, t.y.sign())),
    "cross entropy": lambda t: (F.cross_entropy(t.x, t.i[:, 0]), F.cross_entropy(t.x, t.i[:, 0], label_smoothing=0.1), F.cross_entropy(t.x, t.y)),
    "segmentation": lambda t: F.cross_entropy(t.image, t.i[:2, :36].reshape(2, 6, 6) % 8),
    "activation backwards": lambda t: (aten.silu_backward(t.y, t.x), aten.gelu_backward(t.y, t.x), aten.mish_backward(t.y, t.x), aten.hardswish_backward(t.y, t.x),
                                       aten.tanh_backward(t.y, t.x), aten.sigmoid_backward(t.y, t.x), aten.threshold_backward(t.y, t.x, 0)),
    "row backwards": lambda t: (aten._softmax_backward_data(t.y, t.x, 1, torch.float32), aten._log_softmax_backward_data(t.y, t.x, 1, torch.float32),
                                aten.native_layer_norm_backward(t.y, t.x, [64], t.x[:, :1].clone(), t.y[:, :1].clone(), t.x[0], t.x[1], [True] * 3)),
    "norm backwards": lambda t: (aten.native_group_norm_backward(t.image, t.image * 2, t.x[:2, :4].clone(), t.y[:2, :4].clone(), t.x[0, :8], 2, 8, 36, 4, [True] * 3),
                                 aten.native_batch_norm_backward(t.image, t.image * 2, t.x[0, :8], None, None, t.x[1, :8], t.y[1, :8], True, 1e-5, [True] * 3)),
    "loss backwards": lambda t: (aten.mse_loss_backward(t.x[0, 0], t.x, t.y, 1), aten.smooth_l1_loss_backward(t.x[0, 0], t.x, t.y, 1, 1.0),
                                 aten.nll_loss_backward(t.x[0, 0], t.x, t.i[:, 0], t.y[0], 1, -100, t.y[0, 0]),
                                 aten.binary_cross_entropy_backward(t.x[0, 0], t.y, t.y)),
    # movement
    "views": lambda t: t.x.t()[3:, ::2].unsqueeze(1).expand(-1, 3, -1) + 1, "joined": lambda t: (torch.cat([t.x, t.y], 1), torch.stack([t.x, t.y]), torch.roll(t.x, 3, 1)),
    "padded": lambda t: (F.pad(t.x, (1, 2), value=3.0), F.pad(t.image, (1, 2, 3, 0), "reflect"), F.pad(t.image, (1, 2, 3, 0), "replicate"),
                         F.pad(t.image, (1, 2, 3, 0), "circular")),
    "turned": lambda t: (t.x.flip(0), t.x.rot90(), t.x.tril(), t.x.triu(1), t.x.repeat(2, 3), torch.diag_embed(t.x[0]), t.x.trace()),
    "enlarged": lambda t: (F.interpolate(t.image, scale_factor=2), F.pixel_shuffle(t.image, 2), F.pixel_unshuffle(t.image, 3), F.channel_shuffle(t.image, 2)),
    "picked": lambda t: (t.x[t.i[:, 0] % 33], t.x.gather(1, t.i), t.x.index_select(1, t.i[0]), F.embedding(t.i, t.x.t()), t.x[..., t.i[0]]),
    "made": lambda t: (torch.arange(64) + t.i, torch.zeros(64) + t.x, torch.full((64,), 2.0) + t.x, torch.ones_like(t.x) + t.x, torch.eye(64)[:33] + t.x),
    "written": lambda t: (t.x.slice_scatter(t.y[:, :5], 1, 3, 8), t.x.select_scatter(t.y[0], 0, 1), t.x.diagonal_scatter(t.y[0, :33])),
    "set where": set_where, "set rows": set_rows,
    # lists and optimizers
    "foreach": lambda t: torch._foreach_add(torch._foreach_mul([t.x, t.y], 2), [t.y, t.x]), "foreach norms": lambda t: torch._foreach_norm([t.x, t.y]),
    "adam": adam, "clip": clip,
}
# What is left to torch, and why.
OUTSIDE = {
    "aten.mm.default": (lambda t: t.x @ t.y.t(), "torch's matrix products are the library's"),
    "aten.convolution.default": (lambda t: F.conv2d(t.image, t.image), "the same"),
    "aten.sort.default": (lambda t: t.x.sort(1), "no iteration space"), "aten.topk.default": (lambda t: t.x.topk(3), "no iteration space"),
    "aten.scatter.src": (lambda t: (t.x + 1).scatter(1, t.i, t.y), "stores at places that data say"),
    "aten.scatter_add.default": (lambda t: (t.x + 1).scatter_add(1, t.i, t.y), "stores at places that data say"),
    "aten.index_add.default": (lambda t: (t.x + 1).index_add(0, t.i[:5, 0] % 33, t.y[:5]), "stores at places that data say"),
    "aten.index_copy.default": (lambda t: (t.x + 1).index_copy(0, t.i[:1, 0] % 33, t.y[:1]), "stores at places that data say"),
    "aten.index_put.default": (lambda t: (t.x + 1).index_put((t.i[:5, 0] % 33,), t.y[:5]), "stores at places that data say"),
    "aten.max_pool2d_with_indices.default": (lambda t: F.max_pool2d(t.image, 2), "windows that overlap"),
    "aten.avg_pool2d.default": (lambda t: F.avg_pool2d(t.image, 2), "windows that overlap"),
    "aten.upsample_bilinear2d.default": (lambda t: F.interpolate(t.image, scale_factor=2, mode="bilinear"), "weights of eager's own"),
    "aten.bucketize.Tensor": (lambda t: torch.bucketize(t.x, t.y[0].sort()[0]), "a search"),
    "aten.digamma.default": (lambda t: torch.digamma(t.y), "no primitive"), "aten.lgamma.default": (lambda t: torch.lgamma(t.y), "no primitive"),
    "aten.erfinv.default": (lambda t: torch.erfinv(t.y), "no primitive"), "aten.linspace.default": (lambda t: torch.linspace(0, 1, 64) + t.x, "eager's own steps"),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (lambda t: F.scaled_dot_product_attention(*[t.image] * 3), "the library's"),
}


class Arguments:
    def __init__(self, given):
        self.__dict__.update(given)


def left_alone(jitted):
    """Calls outside kernels that make or write elements."""
    calls = jitted.last_traces[-1].bound_symbols
    return [b.sym for b in calls if not b.is_region and not b.is_view and (b.tensor_outputs or b.written)]


def call(fn):
    def program(**given):
        return fn(Arguments(given))
    return program, ((), tensors())


@pytest.mark.parametrize("name", FUSED)
def test_is_fused_and_as_in_eager(name):
    program, arguments = call(FUSED[name])
    jitted = tracejit.jit(program, executors=[EVERY_OP], fallback="error")
    first, second = clone_call(*arguments), clone_call(*arguments)
    problems = call_problems(first, run(program, *first), second, run(jitted, *second), near)
    assert not problems, problems[:5]
    left = [s.name for s in left_alone(jitted)]
    assert not left, left


@pytest.mark.parametrize("name", OUTSIDE)
def test_is_left_to_torch(name):
    """Once it is fused, it belongs in the other table."""
    program, arguments = call(OUTSIDE[name][0])
    jitted = tracejit.jit(program, executors=[EVERY_OP], fallback="error")
    jitted(**arguments[1])
    assert name in [s.overload.name().replace("::", ".") + (".default" if "." not in s.overload.name() else "") for s in left_alone(jitted)]


def test_a_gather_whose_indices_torch_makes_stands_after_them():
    x = torch.randn(5, 7)
    jitted = tracejit.jit(lambda x: x.tanh().gather(1, x.tanh().argsort(1)), executors=["cpu"], fallback="error")
    torch.testing.assert_close(jitted(x), x.sort(1)[0].tanh())


def test_a_masked_write_into_elements_that_share_memory_stays_torchs():
    def fill(t):
        t[t > 0] = 1
    x, y = (torch.arange(-4.0, 4).as_strided((4, 4), (2, 0)) for _ in range(2))
    tracejit.jit(fill, executors=["cpu"], fallback="error")(x)
    fill(y)
    assert torch.equal(x, y)


@pytest.mark.parametrize("make", [
    lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True), lambda ps: torch.optim.SGD(ps, lr=0.1, foreach=True),
    lambda ps: torch.optim.RMSprop(ps, lr=0.1), lambda ps: torch.optim.Adam(ps, lr=0.1, fused=True),
    lambda ps: torch.optim.AdamW(ps, lr=0.1, fused=True)], ids=["sgd", "foreach sgd", "rmsprop", "fused adam", "fused adamw"])
def test_optimizer_steps_are_kernels(make):
    torch.manual_seed(0)
    ours, theirs = ([torch.full((7, 9), 0.5 + k).requires_grad_() for k in range(3)] for _ in range(2))
    for p, q in zip(ours, theirs):
        p.grad = torch.randn(7, 9)
        q.grad = p.grad.clone()
    mine, reference = make(ours), make(theirs)
    jitted = tracejit.jit(lambda: mine.step(), executors=["cpu"], fallback="error")
    for _ in range(3):
        jitted()
        reference.step()
    assert not left_alone(jitted)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def through_an_alias(x):
    return aten.relu(x) + aten.sigmoid.default(x)


def by_the_whole_name(x):
    return torch.ops.aten.special_bessel_j0(x) + torch.ops.aten.add.Tensor(x, 1)


def by_a_computed_name(x):
    packet = getattr(torch.ops.aten, "hardswish")
    return getattr(packet, packet.overloads()[0])(x) + torch.ops.prims.sin(x)


def in_place(x):
    torch.ops.aten.mul_.Scalar(x, 2)
    return torch.ops.aten.add.out(x, x, out=torch.empty_like(x)), torch.ops.aten.copy_(x, x + 1)


@pytest.mark.parametrize("fn", [through_an_alias, by_the_whole_name, by_a_computed_name, in_place])
@pytest.mark.parametrize("executor", ["cpu", "torch"])
def test_aten_ops_may_be_called_directly(fn, executor):
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    y.copy_(x)
    jitted = tracejit.jit(fn, executors=[executor], fallback="error")
    torch.testing.assert_close(jitted(x), fn(y))
    assert torch.equal(x, y)


def halves_in_place(x, y):
    x[:, :32] *= 2
    x[:, 32:] += y[:, 32:]


def rows_in_place(x, y):
    x[::2] = x[::2] * y[::2]
    x[1::2].add_(1)


@pytest.mark.parametrize("fn", [halves_in_place, rows_in_place, lambda x, y: rotary_in_place(Arguments({"x": x, "y": y}))],
                         ids=["halves", "rows", "rotary"])
@pytest.mark.parametrize("size", [(33, 64), (2048, 64)], ids=str)
def test_slices_are_written_in_place_without_a_temporary(fn, size):
    x, y = torch.randn(size), torch.randn(size)
    z = x.clone()
    jitted = tracejit.jit(fn, executors=["cpu"], fallback="error")
    jitted(x, y)
    fn(z, y)
    torch.testing.assert_close(x, z, rtol=0, atol=0)
    regions = jitted.last_traces[-1].regions
    assert not left_alone(jitted) and all(not r.sym.fn.source.made for r in regions)
