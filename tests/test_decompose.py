"""Decompositions: the numbers, dtypes, strides and errors of the composite operation."""
import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import tracejit
import tracejit.passes.decompose as passes
from tracejit.ir.check import check_trace
from tracejit.ir.proxy import TensorProxy, proxy_of
from tracejit.ir.symbol import aten_symbol
from tracejit.ir.trace import BoundSymbol, Modes, Trace
from tracejit.passes.decompose import decompose, unroll
from tracejit.runtime.program import Program

aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALVES)


class Recorder(TorchDispatchMode):
    """Real calls, and the bound symbols that they are."""

    def __init__(self):
        super().__init__()
        self.calls, self.proxies, self.storages, self.alive = [], {}, {}, []

    def proxy(self, t):
        if not isinstance(t, torch.Tensor):
            return t
        if id(t) not in self.proxies:
            self.alive.append(t)
            storage = self.storages.setdefault(t.untyped_storage()._cdata, len(self.storages))
            self.proxies[id(t)] = proxy_of(f"t{len(self.proxies)}", t, storage)
        return self.proxies[id(t)]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        flat_args, flat_kwargs = tree_map(self.proxy, (args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        self.calls.append(BoundSymbol(aten_symbol(func), flat_args, flat_kwargs, tree_map(self.proxy, out)))
        return out


def tensors(tree):
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def record(fn, args):
    with torch.no_grad(), Recorder() as recorder:
        inputs = tuple(recorder.proxy(t) for t in tensors(args))
        results = tuple(recorder.proxy(t) for t in tensors(fn(*args)))
    return Trace("recorded", inputs, tuple(recorder.calls), results, notes={"modes": Modes(grad=False)})


def clone(tree):
    return tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, tree)


def both(fn, *args, stage=decompose):
    """What eager and the decomposed trace return and leave in the arguments, and the trace."""
    trace = check_trace(stage(record(fn, clone(args))))
    mine, theirs = clone(args), clone(args)
    with torch.no_grad():
        want = [*tensors(fn(*theirs)), *tensors(theirs)]
        got = [*Program(trace).run(*tensors(mine)), *tensors(mine)]
    for w, g in zip(want, got):
        assert (w.dtype, w.shape, w.stride()) == (g.dtype, g.shape, g.stride())
    return want, got, trace


def same(fn, *args, stage=decompose):
    want, got, trace = both(fn, *args, stage=stage)
    for w, g in zip(want, got):
        assert torch.equal(w, g) or torch.equal(w.nan_to_num(7), g.nan_to_num(7)) and torch.equal(w.isnan(), g.isnan())
    return trace


def accurate(fn, *args, steps=2):
    """No further from the float64 result than eager, give or take `steps` roundings of the largest value."""
    want, got, trace = both(fn, *args)
    exact = tensors(fn(*tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, args)))
    for w, g, e in zip(want, got, exact):
        assert torch.equal(w.isnan(), g.isnan())
        error, allowed = (g.double() - e).abs(), (w.double() - e).abs()
        step = torch.finfo(w.dtype).eps * e.abs().nan_to_num(0, 0, 0).max()
        assert error.nan_to_num(0, 0).max() <= allowed.nan_to_num(0, 0).max() + steps * step
    return trace


@pytest.fixture(params=DTYPES, ids=lambda d: str(d)[6:])
def dtype(request):
    torch.manual_seed(0)
    return request.param


def randn(*shape, dtype, scale=3.0):
    return (torch.randn(shape) * scale).to(dtype)


def special(dtype):
    x = randn(33, 64, dtype=dtype)
    x[0, :5] = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])
    return x


# Eager's kernels are IEEE arithmetic, or share the transcendental with the plain op.
EXACT = {
    "hardtanh": lambda x, y: F.hardtanh(x), "relu6": lambda x, y: F.relu6(x), "hardsigmoid": lambda x, y: F.hardsigmoid(x),
    "hardswish": lambda x, y: F.hardswish(x), "leaky_relu": lambda x, y: F.leaky_relu(x, 0.1),
    "sigmoid_backward": lambda x, y: aten.sigmoid_backward(y, x), "tanh_backward": lambda x, y: aten.tanh_backward(y, x),
    "threshold_backward": lambda x, y: aten.threshold_backward(y, x, 0),
    "hardtanh_backward": lambda x, y: aten.hardtanh_backward(y, x, -1.0, 1.0),
    "leaky_relu_backward": lambda x, y: aten.leaky_relu_backward(y, x, 0.1, False),
    "hardsigmoid_backward": lambda x, y: aten.hardsigmoid_backward(y, x),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, -math.inf),
    "dropout_backward": lambda x, y: aten.native_dropout_backward(x, y > 0, 2.0),
    "max": lambda x, y: x.max(), "max_dim": lambda x, y: x.max(1), "min_dim": lambda x, y: x.min(0, True),
    "aminmax": lambda x, y: torch.aminmax(x),
    "count_nonzero": lambda x, y: x.count_nonzero(1), "mean": lambda x, y: x.mean(-1), "mean_all": lambda x, y: x.mean(),
    "mse_loss": lambda x, y: F.mse_loss(x, y), "mse_loss_none": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "stack": lambda x, y: torch.stack([x, y], 1), "roll": lambda x, y: x.roll((2, -3), (0, 1)), "roll_flat": lambda x, y: x.roll(5),
    "tril": lambda x, y: x.tril(2), "triu": lambda x, y: x.triu(-1), "repeat": lambda x, y: x.repeat(2, 1, 3),
    "slice_backward": lambda x, y: aten.slice_backward(x, [33, 100], 1, 10, 74, 1),
    "select_backward": lambda x, y: aten.select_backward(x, [33, 5, 64], 1, 2),
    "zeros_like": lambda x, y: torch.zeros_like(x.t()), "new_full": lambda x, y: x.new_full((3,), 2.0) + x[1, 0],
    "hardshrink": lambda x, y: F.hardshrink(x, 0.3), "softshrink": lambda x, y: F.softshrink(x, 0.3),
    "threshold": lambda x, y: F.threshold(x, 0.3, -0.7), "shrink_backward": lambda x, y: aten.softshrink_backward(y, x, 0.3),
    "nan_to_num": lambda x, y: x.nan_to_num(), "nan_to_num_to": lambda x, y: x.nan_to_num(0.1, 2.0, -0.0),
    "heaviside": lambda x, y: torch.heaviside(x, y),
    "fmax": lambda x, y: torch.fmax(x, y), "fmin": lambda x, y: torch.fmin(y, x),
    "isposinf": lambda x, y: x.isposinf(), "isneginf": lambda x, y: x.isneginf(),
    "floor_division": lambda x, y: x // y, "trunc_division": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor_by_a_number": lambda x, y: x // 0.3, "trunc_by_one": lambda x, y: torch.div(x, y[0, 0], rounding_mode="trunc"),
    "diag_embed": lambda x, y: torch.diag_embed(x[:3], 1, 0, 2), "rot90": lambda x, y: x.rot90(), "rot_back": lambda x, y: x.rot90(-1),
    "pixel_shuffle": lambda x, y: F.pixel_shuffle(x[:32].view(2, 16, 8, 8), 2), "rot180": lambda x, y: x.rot90(2),
    "pixel_unshuffle": lambda x, y: F.pixel_unshuffle(x[:32].view(2, 16, 8, 8), 4),
    "reflection_pad1d": lambda x, y: F.pad(x, (3, 5), "reflect"), "replication_pad1d": lambda x, y: F.pad(x, (3, 0), "replicate"),
    "reflection_pad2d": lambda x, y: F.pad(x[None], (3, 5, 0, 2), "reflect"),
    "replication_pad3d": lambda x, y: F.pad(x[:32].view(2, 4, 4, 8, 8), (3, 5, 1, 2, 0, 1), "replicate"),
    "upsample_nearest2d": lambda x, y: F.interpolate(x[:32].view(2, 4, 16, 16), scale_factor=(2, 3)),
    "upsample_nearest1d": lambda x, y: F.interpolate(x[None], 64 * 7), "prelu": lambda x, y: F.prelu(x, y[0, :1]),
    "diagonal_backward": lambda x, y: aten.diagonal_backward(x[0, :8], [10, 9], 1, 0, 1),
    "norm_0": lambda x, y: torch.norm(x, 0, 1), "cross_entropy_backward": lambda x, y: aten.nll_loss_backward(
        y[0, 0], x, (torch.arange(33) * 7) % 64, y[1], 1, 7, y[2, 2]),
    "deg2rad": lambda x, y: torch.deg2rad(x), "rad2deg": lambda x, y: torch.rad2deg(x),
    "bce_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=y[0]),
}
# A transcendental or a long sum inside: as accurate as eager.
CLOSE = {
    "silu": lambda x, y: F.silu(x), "silu_backward": lambda x, y: aten.silu_backward(y, x),
    "logit": lambda x, y: torch.logit(y.sigmoid()), "logit_eps": lambda x, y: torch.logit(x, 0.1),
    "logit_backward": lambda x, y: aten.logit_backward(y, x.sigmoid(), 0.1), "xlogy": lambda x, y: torch.xlogy(x, y.abs()),
    "xlog1py": lambda x, y: torch.special.xlog1py(x, y.abs()), "entr": lambda x, y: torch.special.entr(x.abs()),
    "sinc": lambda x, y: torch.sinc(x), "logaddexp": lambda x, y: torch.logaddexp(x, y),
    "gelu": lambda x, y: F.gelu(x), "gelu_tanh": lambda x, y: F.gelu(x, approximate="tanh"),
    "gelu_backward": lambda x, y: aten.gelu_backward(y, x),
    "gelu_tanh_backward": lambda x, y: aten.gelu_backward(y, x, approximate="tanh"),
    "elu": lambda x, y: F.elu(x, 1.3), "selu": lambda x, y: F.selu(x), "softplus": lambda x, y: F.softplus(x, 2.0, 10.0),
    "mish": lambda x, y: F.mish(x), "logsigmoid": lambda x, y: F.logsigmoid(x), "glu": lambda x, y: F.glu(x),
    "softmax": lambda x, y: F.softmax(x, -1), "softmax_0": lambda x, y: F.softmax(x, 0),
    "log_softmax": lambda x, y: F.log_softmax(x, -1),
    "softmax_backward": lambda x, y: aten._softmax_backward_data(y, x, -1, x.dtype),
    "log_softmax_backward": lambda x, y: aten._log_softmax_backward_data(y, x, -1, x.dtype),
    "logsumexp": lambda x, y: x.logsumexp(0), "norm": lambda x, y: x.norm(),
    "norm_1": lambda x, y: torch.linalg.vector_norm(x, 1, dim=1),
    "layer_norm": lambda x, y: F.layer_norm(x, (64,), y[0], y[1]),
    "rms_norm": lambda x, y: F.rms_norm(x, (64,), y[0], 1e-6),
    "group_norm": lambda x, y: F.group_norm(x.reshape(3, 8, 8, 11), 4, y[0, :8], y[1, :8]),
    "batch_norm_eval": lambda x, y: F.batch_norm(x, y[0], y[1].abs() + 1, y[2], y[3], False),
    "batch_norm_train": lambda x, y: F.batch_norm(x, None, None, y[2], y[3], True),
    "norm_3": lambda x, y: torch.norm(y, 3, 1), "norm_half": lambda x, y: torch.linalg.vector_norm(y, 0.5, dim=0),
    "dist": lambda x, y: torch.dist(x, y), "foreach_norm": lambda x, y: torch._foreach_norm([x, y]),
    "safe_softmax": lambda x, y: aten._safe_softmax(torch.where(torch.arange(33)[:, None] == 3, -math.inf, x), -1),
    "mish_backward": lambda x, y: aten.mish_backward(y, x), "prelu_backward": lambda x, y: aten._prelu_kernel_backward(y, x, y[:1]),
    "log_sigmoid_backward": lambda x, y: aten.log_sigmoid_backward(y, x, aten.log_sigmoid_forward(x)[1]),
    "bce_backward": lambda x, y: aten.binary_cross_entropy_backward(y[0, 0], x.sigmoid(), y.sigmoid(), y[0].abs()),
    "smooth_l1_backward": lambda x, y: aten.smooth_l1_loss_backward(y[0, 0], x, y, 1, 0.7),
    "huber_backward": lambda x, y: aten.huber_loss_backward(x, x, y, 0, 0.7), "soft_margin": lambda x, y: F.soft_margin_loss(y, y.sign()),
    "layer_norm_backward": lambda x, y: aten.native_layer_norm_backward(
        y, x, [64], *aten.native_layer_norm(x, [64], y[0], y[1], 1e-5)[1:], y[0], y[1], [True] * 3),
    "group_norm_backward": lambda x, y: aten.native_group_norm_backward(
        y[:32].view(4, 8, 64), x[:32].view(4, 8, 64), *aten.native_group_norm(x[:32].view(4, 8, 64), y[0, :8], y[1, :8], 4, 8, 64, 2, 1e-5)[1:],
        y[0, :8], 4, 8, 64, 2, [True] * 3),
    "batch_norm_backward": lambda x, y: aten.native_batch_norm_backward(
        y, x, y[0], None, None, *aten.native_batch_norm(x, y[0], y[1], None, None, True, 0.1, 1e-5)[1:], True, 1e-5, [True] * 3),
    "batch_norm_eval_backward": lambda x, y: aten.native_batch_norm_backward(
        y, x, y[0], y[1], y[2].abs() + 1, None, None, False, 1e-5, [True] * 3),
    "segmentation_loss": lambda x, y: F.cross_entropy(x[:32].view(2, 4, 16, 16), (torch.arange(512) % 4).view(2, 16, 16)),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, beta=0.7), "huber": lambda x, y: F.huber_loss(x, y, delta=0.7),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_bits_are_eagers(name, dtype):
    x = special(dtype) if name not in ("count_nonzero", "mean", "mean_all") else randn(33, 64, dtype=dtype)
    trace = same(EXACT[name], x, randn(33, 64, dtype=dtype, scale=1.0))
    assert not any(b.sym.packet == name for b in trace.bound_symbols)


@pytest.mark.parametrize("name", CLOSE)
def test_no_further_from_the_exact_result_than_eager(name, dtype):
    accurate(CLOSE[name], randn(33, 64, dtype=dtype), randn(33, 64, dtype=dtype, scale=1.0))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(reduction, weighted, dtype):
    target = torch.randint(0, 64, (33,))
    target[3] = -100
    weight = torch.rand(64).to(dtype) if weighted else None
    fn = (lambda x, t, w: F.cross_entropy(x, t, w, reduction=reduction)) if weighted else (
        lambda x, t: F.cross_entropy(x, t, reduction=reduction))
    args = (randn(33, 64, dtype=dtype), target, *([weight] if weighted else []))
    trace = accurate(fn, *args)
    assert any(b.sym.name == "nll_loss_gather" for b in trace.bound_symbols)


@pytest.mark.parametrize("bad", [64, -1])
def test_a_target_out_of_bounds_raises_what_eager_raises(bad):
    x, target = torch.randn(4, 64), torch.tensor([0, 1, bad, 3])
    trace = decompose(record(lambda x, t: F.nll_loss(x, t), (x, torch.zeros(4, dtype=torch.int64))))
    with pytest.raises(IndexError, match=f"Target {bad} is out of bounds"):
        F.nll_loss(x, target)
    with pytest.raises(IndexError, match=f"Target {bad} is out of bounds"):
        Program(trace).run(x, target)


def test_channels_last_results_keep_their_strides():
    x = torch.randn(3, 8, 5, 7).to(memory_format=torch.channels_last)
    accurate(lambda x, w: F.batch_norm(x, None, None, w, w, True), x, torch.randn(8))
    accurate(lambda x, w: F.group_norm(x, 4, w, w), x, torch.randn(8))


def test_batch_norm_updates_its_statistics_once():
    args = torch.randn(6, 8, 5), torch.zeros(8), torch.ones(8), torch.randn(8), torch.randn(8)
    want, got, trace = both(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True, 0.1), *args, stage=unroll)
    assert trace.count("copy_") == 2 and not trace.count("native_batch_norm")
    for w, g in zip(want, got):
        torch.testing.assert_close(w, g, rtol=2e-6, atol=2e-6)


def test_dropout_draws_what_eager_draws():
    x = torch.randn(100)
    trace = decompose(record(lambda x: aten.native_dropout(x, 0.3, True), (x,)))
    torch.manual_seed(5)
    want = aten.native_dropout(x, 0.3, True)
    torch.manual_seed(5)
    got = Program(trace).run(x)
    assert all(torch.equal(w, g) for w, g in zip(want, got)) and trace.count("native_dropout") == 0


# ---------------------------------------------------------------- lists of tensors

def parameters():
    torch.manual_seed(1)
    lists = [[torch.randn(13, 7), torch.randn(1000)] for _ in range(3)]
    return [*lists, [torch.rand(13, 7), torch.rand(1000)], [torch.tensor(2.0), torch.tensor(3.0)]]


def foreach_adam(params, grads, averages, squares, steps):
    torch._foreach_add_(steps, 1)
    torch._foreach_lerp_(averages, grads, 0.1)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, grads, grads, value=0.001)
    root = torch._foreach_sqrt(squares)
    torch._foreach_div_(root, [0.3, 0.4])
    torch._foreach_add_(root, 1e-8)
    torch._foreach_addcdiv_(params, averages, root, [-0.1, -0.2])
    return torch._foreach_maximum(params, 0.1)


def fused_sgd(params, grads, buffers, squares, steps):
    torch._fused_sgd_(params, grads, buffers, weight_decay=0.1, momentum=0.9, lr=0.1, dampening=0.1, nesterov=True,
                      maximize=False, is_first_step=False)


def fused_adam(params, grads, averages, squares, steps):
    torch._fused_adam_(params, grads, averages, squares, [], steps, lr=0.01, beta1=0.9, beta2=0.999, weight_decay=0.1,
                       eps=1e-8, amsgrad=False, maximize=False)


def fused_adamw(params, grads, averages, squares, steps):
    torch._fused_adamw_(params, grads, averages, squares, [], steps, lr=0.01, beta1=0.9, beta2=0.999, weight_decay=0.1,
                        eps=1e-8, amsgrad=False, maximize=True)


def test_foreach_ops_are_their_plain_ops():
    trace = same(foreach_adam, *parameters(), stage=lambda t: decompose(unroll(t)))
    assert not any("_foreach" in b.sym.name for b in trace.bound_symbols)


def test_of_items_of_a_list_that_are_alike_the_first_tells_of_all(monkeypatch):
    run, decomposed = [], passes._decomposed
    monkeypatch.setattr(passes, "_decomposed", lambda b, *args: run.append(b.sym.packet) or decomposed(b, *args))

    def f(tensors, others):
        torch._foreach_mul_(tensors, others)
        torch._foreach_addcmul_(tensors, others, [tensors[3], *tensors[1:]], value=0.5)

    def make():
        tensors = [torch.arange(1.0, n + 1) for n in (3, 4, 3, 3, 3)] + [torch.arange(1.0, 7)[::2]]
        return tensors, [*[t + 1 for t in tensors[:4]], *tensors[4:]]
    ours, theirs = make(), make()
    tracejit.jit(f, executors=["cpu"], fallback="error")(*ours)
    f(*theirs)
    assert all(map(torch.equal, ours[0], theirs[0]))
    assert run == 4 * ["_foreach_mul_"] + 5 * ["_foreach_addcmul_"]        # shapes, strides, and which tensors are one


@pytest.mark.parametrize("step", [fused_sgd, fused_adam, fused_adamw])
def test_fused_optimizer_steps(step):
    want, got, trace = both(step, *parameters(), stage=unroll)
    assert not any("_fused" in b.sym.name for b in trace.bound_symbols)
    for w, g in zip(want, got):                                # the last few elements: eager's scalar loop rounds otherwise
        torch.testing.assert_close(w, g, rtol=4e-7, atol=4e-7)


# ---------------------------------------------------------------- what stays

def test_what_has_no_rule_or_is_declined_stays():
    for fn in (lambda x: x @ x.t(), lambda x: x.sort(0)[0], lambda x: F.softmax(x[0, 0], 0)):
        trace = record(fn, (torch.randn(4, 4),))
        names = [b.sym.name for b in trace.bound_symbols]
        assert [b.sym.name for b in decompose(trace).bound_symbols] == names


def test_names_do_not_clash_with_those_of_the_program():
    trace = record(F.silu, (torch.randn(4),))
    d1 = TensorProxy("d1", (4,), (1,), torch.float32, torch.device("cpu"), 0)
    b = trace.bound_symbols[0]
    trace = trace.replace(inputs=(d1,), bound_symbols=(BoundSymbol(b.sym, (d1,), {}, b.output),))
    check_trace(decompose(trace))


@pytest.mark.parametrize("ord", [2, 3, 0.5, 1, 0, float("inf")])
@pytest.mark.parametrize("value", [1e30, 1e-42, -3.0, float("nan"), float("-inf")])
def test_a_norm_of_one_element_is_its_magnitude(ord, value):
    for x, dim in ((torch.full((1,), value), None), (torch.full((2, 1), value), 1), (torch.tensor(value), None)):
        def norm(x):
            return torch.linalg.vector_norm(x, ord, dim=dim) + 0
        torch.testing.assert_close(tracejit.jit(norm, fallback="error")(x), norm(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("ord", [2, 3, 0.5, 1, 0, float("inf"), -float("inf")])
def test_a_norm_along_a_dim_that_is_not_there(ord):
    for value, dim in ((1e30, 0), (1e-42, -1), (-3.0, 0), (2.0, [0])):
        def norm(x):
            return torch.linalg.vector_norm(x, ord, dim=dim, keepdim=True) + 0
        torch.testing.assert_close(tracejit.jit(norm, fallback="error")(torch.tensor(value)), norm(torch.tensor(value)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_norms_of_rows_of_one_and_of_many(dtype):
    for shape in ((70_000, 1), (300, 700)):
        x = (torch.randn(shape, dtype=torch.float64) * 100).to(dtype)

        def norm(x):
            return torch.linalg.vector_norm(x, dim=1) * 1
        torch.testing.assert_close(tracejit.jit(norm, fallback="error")(x), norm(x), rtol=4 * torch.finfo(dtype).eps, atol=0)
