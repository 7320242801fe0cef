"""Autograd, modules, numbers and layouts: program shapes that were once wrong, or crashed, in some PyTorch compiler.

Every case names the public report whose failure it re-creates. The programs are
written afresh here; inputs are small, mostly integer-valued so that results are
exact. Register with harness.case; see harness.py for the options and for what is observed.
"""
import torch
import torch.nn as nn

from .harness import case
from .reported_aliasing import arange


# ========================================================== autograd and in-place (6)

@case(id="ag-leaf-rows-under-no-grad", source="pytorch/pytorch#90844, #95167", kind="autograd-inplace",
      about="rows of a leaf that needs grad are rescaled under no_grad before use; allowed, and "
            "gradients use the new rows",
      grad=True)
def ag_leaf_rows_under_no_grad():
    def fn(w, x):
        with torch.no_grad():
            w[1:].mul_(2)
        w.detach()[0].add_(1)
        return w * w * x

    def make_args():
        return [(arange(6, 3, 2) + 1).requires_grad_(), torch.full((3, 2), 0.5)]
    return fn, make_args


@case(id="ag-mutate-after-detach", source="pytorch/pytorch#128035", kind="autograd-inplace",
      about="detach() is taken of a non-leaf argument which is then scaled in place; gradient must not "
            "be lost and the detached twin follows",
      grad=True)
def ag_mutate_after_detach():
    def fn(a, root):
        before = a.detach()
        a.mul_(4)
        return a * a, before

    def make_args():
        root = (arange(3) + 1).requires_grad_()
        return [root * 3, root]
    return fn, make_args


class _Tally(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, tally):
        tally.add_(1)
        ctx.tally = tally
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        ctx.tally.add_(10)
        return g * ctx.tally, None


@case(id="ag-tally-both-directions", source="pytorch/pytorch#154820", kind="autograd-inplace",
      about="a custom Function bumps a counter once forward and once backward; neither bump may move to "
            "the other side",
      grad=True, multi=True)
def ag_tally_both_directions():
    def fn(x, tally):
        y = _Tally.apply(x * 2, tally)
        return y, tally.clone()

    def make_args():
        tally = torch.zeros(())
        return [[torch.ones(2, requires_grad=True), tally] for _ in range(2)]
    return fn, make_args


@case(id="ag-leaf-in-place-raises", source="Lightning-AI/lightning-thunder#1284", kind="autograd-inplace",
      about="in-place on a leaf that needs grad is an error in eager; compiling must not turn it into a "
            "silent wrong gradient",
      grad=True, raises="RuntimeError")
def ag_leaf_in_place_raises():
    def fn(x):
        x.clamp_(min=0)
        return (x + 1).sum()

    def make_args():
        return [torch.tensor([1.0, -1.0], requires_grad=True)]
    return fn, make_args


# ==================================================================== module state (6)

class _SlotCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.slots = torch.zeros(3)

    def forward(self, value, pos):
        self.slots[pos] = value - self.slots.sum()
        return self.slots[:2]


def _fresh_slots(out, args):
    args[0].slots = torch.full((3,), float(len(out) + 1))
    return out


@case(id="ms-cache-replaced-between-calls", source="pytorch/pytorch#115774", kind="module-state",
      about="a module's cache tensor is written by index and replaced by the caller between calls; the "
            "new object must be used",
      multi=True, after=_fresh_slots)
def ms_cache_replaced_between_calls():
    def fn(mod, value, pos):
        return mod(value, pos)

    def make_args():
        mod = _SlotCache()
        return [[mod, torch.tensor([2.0]), torch.tensor([0])],
                [mod, torch.tensor([5.0]), torch.tensor([1])],
                [mod, torch.tensor([7.0]), torch.tensor([1])]]
    return fn, make_args


def _eval_after_two(out, args):
    if int(args[0].num_batches_tracked) == 2:
        args[0].eval()
    return out


@case(id="ms-batchnorm-cumulative",
      source="pytorch/pytorch#194504; Lightning-AI/lightning-thunder#584", kind="module-state",
      about="BatchNorm averaging over all batches (momentum=None): running buffers and the batch "
            "counter move each call, then eval mode reads them",
      multi=True, grad=True, rtol=1e-5, atol=1e-6, after=_eval_after_two)
def ms_batchnorm_cumulative():
    def fn(bn, x):
        return bn(x) * x

    def make_args():
        bn = nn.BatchNorm1d(3, momentum=None)
        return [[bn, arange(12, 4, 3) ** 2], [bn, 7 - arange(12, 4, 3)], [bn, arange(6, 2, 3)]]
    return fn, make_args


class _TiedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.emb.weight
        with torch.no_grad():
            self.emb.weight.copy_(arange(15, 5, 3) - 7)

    def forward(self, ids):
        return self.head(self.emb(ids))


@case(id="ms-tied-weights",
      source="pytorch/pytorch#114743; Lightning-AI/lightning-thunder#257", kind="module-state",
      about="embedding and output layer share one parameter; one leaf, gradients from both uses added",
      grad=True)
def ms_tied_weights():
    def fn(mod, ids):
        return mod(ids).square()

    def make_args():
        return [_TiedHead(), torch.tensor([[1, 4], [0, 1]])]
    return fn, make_args


@case(id="ms-train-step-momentum", source="pytorch/torchdynamo#953, #1301", kind="module-state",
      about="a whole training step inside one function: zero_grad, backward, SGD with momentum; weights "
            "and momentum buffers advance",
      multi=True, rtol=1e-5, atol=1e-6)
def ms_train_step_momentum():
    def fn(model, opt, x, y):
        opt.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    def make_args():
        model = nn.Linear(2, 1)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[0.5, -0.25]]))
            model.bias.fill_(0.125)
        opt = torch.optim.SGD(model.parameters(), lr=0.0625, momentum=0.5)
        x = arange(6, 3, 2) - 2
        return [[model, opt, x, torch.ones(3, 1)] for _ in range(3)]
    return fn, make_args


# ======================================================= numerics of fused kernels (5)

@case(id="nm-nan-through-bounds", source="pytorch/pytorch#93784, #64334, #118266, #186281", kind="numerics",
      about="NaN in either operand survives relu, clamp, minimum and maximum, wins amax/argmax, and "
            "integer clamps promote")
def nm_nan_through_bounds():
    def fn(a, b, k):
        s = a + b * 0
        return {"relu": torch.relu(a), "clamp": a.clamp(-1, 2), "floor": a.clamp_min(0.5),
                "cap": torch.clamp(a, max=b), "maximum": torch.maximum(a, b),
                "minimum": torch.minimum(a, b),
                "times_zero": s, "amax": a.amax(), "argmax": a.argmax(), "not_less": ~(a < b),
                "int_floor": k.clamp_min(0.5)}

    def make_args():
        nan, inf = float("nan"), float("inf")
        return [torch.tensor([1.0, nan, -3.0, inf, -inf, 0.5]),
                torch.tensor([nan, 0.0, -2.0, 1.0, 0.0, nan]), torch.tensor([-1, 0, 2])]
    return fn, make_args


@case(id="nm-division-family", source="pytorch/pytorch#37103 (TorchScript fuser), #197895", kind="numerics",
      about="floor and trunc division, remainder and fmod for mixed signs, floats just under a whole "
            "quotient, integers")
def nm_division_family():
    def fn(a, b, i, j):
        return {"floor": a // b, "rem": torch.remainder(a, b), "fmod": torch.fmod(a, b),
                "trunc": torch.div(a, b, rounding_mode="trunc"),
                "ifloor": i // j, "irem": i % j, "ifmod": torch.fmod(i, j),
                "itrunc": torch.div(i, j, rounding_mode="trunc"), "itrue": i / j, "by_py": i // -3,
                "rem_py": i % -3}

    def make_args():
        return [torch.tensor([1.0, 0.5, 6.0, -7.5, -0.75, 5.25]),
                torch.tensor([0.1, 0.1, 0.2, 2.0, -1.5, -2.0]),
                torch.tensor([-7, 7, -7, 7, -8], dtype=torch.int32),
                torch.tensor([2, -2, -2, 3, 3], dtype=torch.int32)]
    return fn, make_args


@case(id="nm-weak-scalars",
      source="Lightning-AI/lightning-thunder#1239, #833, #1952; pytorch/pytorch#185605, #94010",
      kind="numerics",
      about="result types when 0-dim tensors and Python numbers meet tensors of another kind or width")
def nm_weak_scalars():
    def fn(x, h, i, d, k):
        return {"div_double0": x / d, "bf16_double0": h + d, "int_times_float": i * 2.5,
                "int_true_div": i / 2,
                "int_int0": i + k, "int_float0": i + d, "where_py": torch.where(x > 0, -0.5, 0.25),
                "where_mixed": torch.where(x > 0, x, d), "bool_plus_int": (x > 0) + 2,
                "bool_plus_float": (x > 0) * 1.5,
                "pow_int": i ** 2, "pow_float": h ** 2.0, "rsub": 1 - i, "zero_dims": d + k,
                "maximum0": torch.maximum(h, d.to(torch.float32)),
                "cumsum": i.cumsum(0), "half_int": h * i[:3]}

    def make_args():
        return [torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, 1.5, -2.0], dtype=torch.bfloat16),
                torch.tensor([1, -2, 3, 100], dtype=torch.int8), torch.tensor(0.25, dtype=torch.float64),
                torch.tensor(5)]
    return fn, make_args


@case(id="nm-rounding-kept",
      source="pytorch/pytorch#183607, #179561, #189799, #183606, #154703", kind="numerics",
      about="half precision overflows and rounds at each step, explicit down-casts are real, signed "
            "zeros are kept, long sums do not drift",
      rtol=1e-5, signed_zero=True)
def nm_rounding_kept():
    def fn(x, tiny, z, ones16, tenths):
        h = x.to(torch.float16)
        return {"overflow": (h * h).to(torch.float32),
                "round_trip": x.to(torch.bfloat16).to(torch.float32) - x,
                "absorbed": (tiny + 1) - 1, "plus_zero": 1 / (torch.ceil(z) + 0.0), "minus": 1 / -z,
                "frac": 1 / torch.frac(z), "count16": (ones16 * 1).sum(),
                "mean16": (ones16 + 1).mean(), "long": (tenths + 0).sum()}

    def make_args():
        return [torch.tensor([300.0, 5000.0, 0.1, -1.0009765625]),
                torch.tensor([2.0 ** -9, 0.25], dtype=torch.bfloat16),
                torch.tensor([-0.5, 0.0, -0.0, -0.9]), torch.ones(4096, dtype=torch.float16),
                torch.full((1 << 20,), 0.1)]
    return fn, make_args


# ============================================================ shapes and strides (4)


@case(id="ly-empty-and-zero-dim", source="pytorch/pytorch#110056, #95370, #102546, #115931", kind="layout",
      about="assignment to an empty slice, reductions of an empty tensor, reductions and in-place on "
            "0-dim, 0-dim index")
def ly_empty_and_zero_dim():
    def fn(pair, none, lone, table, row):
        pair[1:-1] = 0
        none.add_(1)
        lone[...] = lone.mean(0) + 1
        table.index_copy_(0, torch.tensor(1), row)
        return (pair * 2, none.sum(0), none.sum(1), none.prod(), none.argmin(1).view(0, 3),
                lone.sum(-1), lone.amax(0), torch.cat([none, table]))

    def make_args():
        return [torch.ones(2), torch.zeros(0, 3), torch.tensor(3.0), torch.zeros(2, 3),
                torch.full((1, 3), 5.0)]
    return fn, make_args


@case(id="ly-channels-last-restride", source="pytorch/pytorch#174963, #130394", kind="layout",
      about="as_strided on an intermediate exposes its real memory order for a channels_last input; "
            "output strides too",
      check_strides=True)
def ly_channels_last_restride():
    def fn(img):
        rolled = torch.roll(img, 1, 0)
        scaled = img * 2
        out = torch.empty_strided((2, 3), (8, 1), dtype=img.dtype)
        out[:] = scaled[:, :, 0, 0]
        return rolled.as_strided((3, 4), (5, 1), 2), scaled.as_strided((4,), (3,)), scaled, out

    def make_args():
        return [arange(48, 2, 3, 2, 4, dtype=torch.int64).to(memory_format=torch.channels_last)]
    return fn, make_args
