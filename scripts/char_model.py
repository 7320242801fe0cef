"""A small character transformer that decodes with a key/value cache, preallocated and written in place."""
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Pre-norm attention and MLP, once for whole sequences and once for a single position with a cache."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def split_heads(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        return qkv.permute(2, 0, 3, 1, 4).unbind(0)

    def finish(self, x, attended):
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def forward(self, x, bias):
        q, k, v = self.split_heads(x)
        return self.finish(x, F.scaled_dot_product_attention(q, k, v, attn_mask=bias))

    def step(self, x, bias, pos, keys, values):
        q, k, v = self.split_heads(x)
        keys[:, :, pos] = k
        values[:, :, pos] = v
        scores = (q @ keys.transpose(-2, -1)).mul_(q.shape[-1] ** -0.5).add_(bias)
        return self.finish(x, scores.softmax(-1) @ values)


class CharTransformer(nn.Module):
    """Attention scores fall with distance, in each head at its own rate (ALiBi)."""

    def __init__(self, characters, width=128, heads=4, layers=2):
        super().__init__()
        self.width, self.heads = width, heads
        self.characters = nn.Embedding(characters, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)
        self.register_buffer("slopes", 0.25 ** torch.arange(heads).view(-1, 1, 1))
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def bias(self, queries, length):
        """What is added to the scores of `queries` (positions) against 0 ... length - 1; -inf: not yet."""
        distance = torch.arange(length) - queries[:, None]
        return (self.slopes * distance).masked_fill_(distance > 0, float("-inf"))

    def forward(self, tokens):
        """Scores of the next character at every position of `tokens` [batch, length]."""
        length = tokens.shape[1]
        x, bias = self.characters(tokens), self.bias(torch.arange(length), length)
        for block in self.blocks:
            x = block(x, bias)
        return self.head(self.norm(x))

    def new_cache(self, context):
        """Keys and values of every layer, with room for `context` positions."""
        shape = (1, self.heads, context, self.width // self.heads)
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in self.blocks]

    def decode_step(self, token, pos, cache):
        """The character after `token` [1, 1] at `pos` [1]; writes the cache there and moves `pos` on.

        `pos` is a tensor, so that one program serves all positions; an int would be a constant of each.
        """
        x, bias = self.characters(token), self.bias(pos, cache[0][0].shape[2])
        for block, (keys, values) in zip(self.blocks, cache):
            x = block.step(x, bias, pos, keys, values)
        pos.add_(1)
        return self.head(self.norm(x)).argmax(-1)
