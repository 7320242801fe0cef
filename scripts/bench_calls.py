"""What a call costs beside its arithmetic: call overhead, first calls, and writes that touch little of a large tensor."""
import statistics
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

from timing import Row, compile_with_inductor, compile_with_tracejit, interleaved, seconds, steady

# -- calls -----------------------------------------------------------------------------------------

def one_op(a, b):
    return a + b


def three_ops(a, b):
    return torch.relu(a + b) * b


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        for name in "abcde":
            setattr(self, name, nn.Parameter(torch.randn(16)))

    def forward(self, x):
        return x * self.a + self.b * self.c + self.d * self.e


def call_overhead(opts):
    def make_args():
        return torch.randn(64), torch.randn(64)

    return [
        steady("2 tensors of 64, 1 op", one_op, make_args, opts, calls=2000),
        steady("2 tensors of 64, 3 ops", three_ops, make_args, opts, calls=2000),
        in_turn("the same in a loop, 1 shape", three_ops, [64] * 64, opts),
        in_turn("the same in a loop, 64 shapes in turn", three_ops, range(32, 96), opts),
        steady("module of 20 blocks, 100 parameters of 16", nn.Sequential(*(Block() for _ in range(20))),
               lambda: (torch.randn(16),), opts, calls=100),
    ]


def in_turn(name, fn, sizes, opts):
    """One call of those on two tensors of each of `sizes`."""
    pairs = [(torch.randn(n), torch.randn(n)) for n in sizes]

    def looped(call):
        def loop():
            for a, b in pairs:
                call(a, b)
        return loop
    ways = [fn, compile_with_tracejit(fn)] + ([compile_with_inductor(fn)] if opts.inductor else [])
    taken = interleaved([looped(call) for call in ways], lambda: (), opts.samples, 20, opts.quantile)
    return Row(name, *(seconds / len(pairs) for seconds in taken))


# -- first calls -----------------------------------------------------------------------------------

def mutating_and_viewing(x, y):
    """About thirty ops: views of views, slice writes, in-place arithmetic on arguments and intermediates."""
    rows, columns = x[:16], x[:, 8:24]
    rows.mul_(0.5).add_(1)
    columns[:, ::2] = y[:, :8]
    h = (x.t() @ y).relu_()
    flat = h.view(-1)
    flat[:64] += flat[64:128]
    h[0] = 0
    left, right = h.chunk(2, dim=1)
    left.sub_(right.mean(1, keepdim=True))
    gate = torch.sigmoid(left).mul_(right.tanh())
    z = torch.cat([gate, left], dim=1).unsqueeze(0).expand(2, -1, -1).clone()
    z[1].transpose(0, 1).clamp_(-1, 1)
    z = z.masked_fill(z > 0.9, 0.0)
    z.select(2, 0).fill_(2)
    y.copy_(z.sum(0)[: y.shape[0], : y.shape[1]])
    return F.softmax(z, dim=-1).mean(0), rows.sum()


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, layers=4, width=128, heads=4, words=1000, context=64):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.layers(x)))


def first_call(name, fn, make_args, repeats, opts):
    """The first call of newly compiled copies; for inductor one, since its caches would answer the second."""
    fn(*make_args())
    eager, jitted = [], []
    for _ in range(repeats):
        eager.append(seconds(fn, make_args()))
        with tempfile.TemporaryDirectory() as kernels:
            jitted.append(seconds(compile_with_tracejit(fn, kernels), make_args()))
    inductor = seconds(compile_with_inductor(fn), make_args()) if opts.inductor else None
    return Row(name, statistics.median(eager), statistics.median(jitted), inductor)


def first_calls(opts):
    def unrelated(x):
        return x.cos().mul_(2)[1:]

    rows = [first_call("very first in the process: imports of torch's own lazy parts", unrelated,
                       lambda: (torch.randn(8),), 1, opts)]
    rows.append(first_call("30 ops that mutate and view", mutating_and_viewing,
                           lambda: (torch.randn(32, 32), torch.randn(32, 32)), 7, opts))
    model = Transformer().eval()
    tokens = torch.randint(1000, (2, 64))
    rows.append(first_call("4-layer transformer, forward", model, lambda: (tokens,), 5, opts))
    rows.append(first_of_each_size("a layer of it, 200 lengths in turn, once each", Layer(64, 4).eval(),
                                   [torch.randn(2, length, 64) for length in range(5, 205)], opts))
    return rows


def first_of_each_size(name, fn, inputs, opts):
    """One call with each of these."""
    def taken(call):
        return seconds(lambda: [call(x) for x in inputs], ())
    taken(fn)
    with tempfile.TemporaryDirectory() as kernels:
        eager, jitted = taken(fn), taken(compile_with_tracejit(fn, kernels))
        return Row(name, eager, jitted, taken(compile_with_inductor(fn)) if opts.inductor else None)


# -- memory ----------------------------------------------------------------------------------------

def add_to_row(x):
    x[0].add_(1)


def write_position(cache, pos, k):
    cache[:, :, pos] = k


def chain(x):
    x.mul_(0.5).add_(1).clamp_(max=1.5).neg_()


def writes(opts):
    def cache_at(pos, *k_shape):
        return lambda: (torch.zeros(1, 8, 8192, 64), pos, torch.randn(k_shape))

    return [
        steady("x[0].add_(1) on 32768 x 1024", add_to_row,
               lambda: (torch.zeros(32768, 1024),), opts, calls=200),
        steady("cache[:, :, pos] = k, 8192 positions, pos a tensor", write_position,
               cache_at(torch.tensor([4095]), 1, 8, 1, 64), opts, calls=200),
        steady("cache[:, :, pos] = k, 8192 positions, pos an int", write_position,
               cache_at(4095, 1, 8, 64), opts, calls=200),
        steady("4 in-place ops on 64 MB", chain, lambda: (torch.randn(16 * 1024 * 1024),), opts, calls=1),
    ]
