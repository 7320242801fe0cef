"""Programs that people run, as the benchmark measures them: `WORKLOADS`, each with its inputs."""
from dataclasses import dataclass
from typing import Callable, Optional

import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

ROWS, COLUMNS = 4096, 1024
BIG = 16 << 20               # elements: 64 MB of float32


@dataclass(frozen=True)
class Workload:
    """make: the arguments. moved: bytes that must move when that is not every argument and result once."""
    name: str
    fn: Callable
    make: Callable[[], tuple]
    moved: Optional[int] = None


WORKLOADS: list[Workload] = []


def least_bytes(workload, before, after, result):
    """Bytes that must move: arguments as they were before the call, its result, and arguments that it wrote to, by their values."""
    if workload.moved is not None:
        return workload.moved
    before, after = tree_leaves(before), tree_leaves(after)
    written = [a for a, b in zip(after, before) if isinstance(a, torch.Tensor) and not bool(((a == b) | (a != a) & (b != b)).all())]
    return sum(t.nbytes for t in [*before, *written, *tree_leaves(result)] if isinstance(t, torch.Tensor))


def workload(name, make, moved=None):
    def register(fn):
        WORKLOADS.append(Workload(name, fn, make, moved))
        return fn
    return register


def r(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def many(*shape, count=100):
    return [torch.randn(*shape) for _ in range(count)]


# -- activations -----------------------------------------------------------------------------------

@workload("swiglu", lambda: (r(ROWS, COLUMNS), r(ROWS, COLUMNS)))
def swiglu(gate, up):
    return F.silu(gate) * up


@workload("bias+gelu", lambda: (r(ROWS, COLUMNS), r(COLUMNS)))
@workload("bias+gelu bf16", lambda: (r(ROWS, COLUMNS, dtype=torch.bfloat16), r(COLUMNS, dtype=torch.bfloat16)))
def bias_gelu(x, bias):
    return F.gelu(x + bias)


@workload("dropout arithmetic", lambda: (r(ROWS, COLUMNS), torch.rand(ROWS, COLUMNS), r(ROWS, COLUMNS)))
def dropout(x, noise, residual):
    return x * (noise > 0.1).to(x.dtype) * (1 / 0.9) + residual


@workload("sigmoid/digamma alternating", lambda: (torch.rand(256, COLUMNS) + 1,))
def alternating(x):
    for _ in range(3):
        x = torch.digamma(torch.sigmoid(x * 0.5 + 0.25) * 2 + 1) + 1
    return x


# -- norms and softmax -----------------------------------------------------------------------------

@workload("rms_norm", lambda: (r(ROWS, COLUMNS), r(COLUMNS)))
def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


@workload("residual+layer_norm", lambda: (r(ROWS, COLUMNS), r(ROWS, COLUMNS), r(COLUMNS), r(COLUMNS)))
def residual_layer_norm(x, y, weight, bias):
    h = x + y
    return h, F.layer_norm(h, (COLUMNS,), weight, bias)


@workload("masked softmax", lambda: (r(8, 8, 256, 256), torch.rand(8, 1, 256, 256) > 0.2))
def masked_softmax(scores, mask):
    return torch.softmax((scores * 0.125).masked_fill(~mask, float("-inf")), -1)


@workload("softmax bf16", lambda: (r(ROWS, COLUMNS, dtype=torch.bfloat16),))
def softmax_bf16(x):
    return torch.softmax(x * 0.125, -1)


@workload("var_mean of rows", lambda: (r(ROWS, COLUMNS), r(ROWS, COLUMNS)))
def var_mean(x, y):
    return torch.var_mean(x - y, dim=1)


# -- attention -------------------------------------------------------------------------------------

@workload("rotary embedding", lambda: (r(4, 16, 512, 64), r(4, 16, 512, 64), r(512, 64), r(512, 64)))
def rotary(q, k, cos, sin):
    def turned(x):
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat((-right, left), -1) * sin
    return turned(q), turned(k)


@workload("KV-cache write and attention",
          lambda: (r(1, 8, 1024, 64), r(1, 8, 1024, 64), r(1, 8, 1, 64), r(1, 8, 1, 64), r(1, 8, 1, 64)),
          moved=8 * 4 * 64 * (2 * 512 + 6))
def kv_cache(keys, values, q, k, v):
    keys[:, :, 511:512] = k
    values[:, :, 511:512] = v
    scores = q @ keys[:, :, :512].transpose(-1, -2) * 0.125
    return torch.softmax(scores, -1) @ values[:, :, :512]


# -- losses ----------------------------------------------------------------------------------------

@workload("cross entropy", lambda: (r(2048, 4096), torch.randint(4096, (2048,))))
def cross_entropy(logits, target):
    return F.cross_entropy(logits, target)


@workload("one-hot loss", lambda: (r(2048, COLUMNS), torch.randint(COLUMNS, (2048,))))
def one_hot_loss(logits, target):
    wanted = (torch.arange(COLUMNS) == target[:, None]).to(logits.dtype)
    return ((torch.sigmoid(logits) - wanted) ** 2).mean(1)


@workload("gather loss", lambda: (r(2048, 4096), torch.randint(4096, (2048,))))
def gather_loss(logits, target):
    return torch.logsumexp(logits, 1) - logits.gather(1, target[:, None]).squeeze(1)


@workload("embedding+scale", lambda: (r(50000, 256), torch.randint(50000, (8192,)), r(8192, 256)),
          moved=4 * 3 * 256 * 8192)
def embedding(table, index, positions):
    return F.embedding(index, table) * 16 + positions


# -- optimizers ------------------------------------------------------------------------------------

def adam_step(p, g, m, v):
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


@workload("Adam, one of 4M", lambda: (r(1 << 22), r(1 << 22), r(1 << 22), r(1 << 22).abs()))
def adam_large(p, g, m, v):
    adam_step(p, g, m, v)


@workload("Adam, 100 of 1024", lambda: (many(1024), many(1024), many(1024), [t.abs() for t in many(1024)]))
def adam_many(params, grads, means, squares):
    torch._foreach_mul_(means, 0.9)
    torch._foreach_add_(means, grads, alpha=0.1)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, grads, grads, value=0.001)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_add_(roots, 1e-8)
    torch._foreach_addcdiv_(params, means, roots, value=-1e-3)


@workload("SGD+momentum, one of 4M", lambda: (r(1 << 22), r(1 << 22), r(1 << 22)))
def sgd_large(p, g, m):
    m.mul_(0.9).add_(g)
    p.add_(m, alpha=-0.01)


@workload("SGD+momentum, 100 of 1024", lambda: (many(1024), many(1024), many(1024)))
def sgd_many(params, grads, momenta):
    for p, g, m in zip(params, grads, momenta):
        sgd_large(p, g, m)


@workload("EMA over 64 of 64x64", lambda: (many(64, 64, count=64), many(64, 64, count=64)))
def ema(averages, values):
    for a, v in zip(averages, values):
        a.mul_(0.99).add_(v, alpha=0.01)


# -- memory ----------------------------------------------------------------------------------------

@workload("one row of 32768x1024", lambda: (torch.zeros(32768, COLUMNS),), moved=2 * 4 * COLUMNS)
def one_row(x):
    x[5].add_(1)


@workload("heat stencil, slice assignment", lambda: (torch.rand(2050, 2050),), moved=2 * 4 * 2050 * 2050)
def heat(u):
    u[1:-1, 1:-1] = u[1:-1, 1:-1] + 0.1 * (
        u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])
    return u


@workload("image u8 NHWC -> f32 NCHW", lambda: (torch.randint(0, 255, (16, 224, 224, 3), dtype=torch.uint8),
                                               r(3, 1, 1), r(3, 1, 1).abs() + 1))
def normalize_image(image, mean, std):
    return ((image.permute(0, 3, 1, 2).float() / 255 - mean) / std).contiguous()


@workload("pointwise chain, 64 MB", lambda: (r(BIG),))
def chain(x):
    return ((((x * 1.1 + 0.5).relu() - 0.25).abs() * 0.75).clamp(max=3.0) + x) * 0.5 * x


@workload("in-place chain, 64 MB", lambda: (r(BIG),), moved=2 * 4 * BIG)
def chain_in_place(x):
    x.mul_(0.5).add_(1).clamp_(max=1.5).neg_()


@workload("transpose+add", lambda: (r(2048, 2048), r(2048, 2048)))
@workload("transpose+add bf16", lambda: (r(2048, 2048, dtype=torch.bfloat16), r(2048, 2048, dtype=torch.bfloat16)))
def transpose_add(x, y):
    return (x.t() + y) * 2


@workload("NaN masking", lambda: (torch.where(torch.rand(ROWS, COLUMNS) < 0.1, torch.nan, r(ROWS, COLUMNS)),))
def nan_masking(x):
    known = ~torch.isnan(x)
    return torch.where(known, x, 0.0).sum(1) / known.sum(1)


@workload("boolean logic", lambda: (r(ROWS, COLUMNS), r(ROWS, COLUMNS)))
def boolean_logic(x, y):
    return ((x > 0) & (y > 0)) | ((x < -1) ^ (y < -1))


# -- reductions ------------------------------------------------------------------------------------

@workload("sum of rows", lambda: (r(ROWS, COLUMNS), r(ROWS, COLUMNS)))
def row_sum(x, y):
    return (x * y).sum(1)


@workload("sum of columns", lambda: (r(ROWS, COLUMNS), r(ROWS, COLUMNS)))
def column_sum(x, y):
    return (x * y).sum(0)


@workload("sum of few columns", lambda: (r(1 << 20, 4), r(1 << 20, 4)))
def few_columns(x, y):
    return (x * y).sum(0)


@workload("sum of all", lambda: (r(BIG // 2).abs(), r(BIG // 2).abs()))
def full_sum(x, y):
    return (x * y).sum()


@workload("argmax of rows", lambda: (r(ROWS, COLUMNS), r(ROWS, COLUMNS)))
def row_argmax(x, y):
    return (x * y).argmax(1)


# -- calls -----------------------------------------------------------------------------------------

@workload("tiny: 2 tensors of 64, 3 ops", lambda: (r(64), r(64)))
def tiny(x, y):
    return torch.relu(x + y) * y


@workload("small: 6 tensors of 32x32", lambda: tuple(many(32, 32, count=6)))
def small(a, b, c, d, e, f):
    return torch.tanh(a * b + c) * d, (e - f).abs().sum(1)
