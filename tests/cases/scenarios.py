"""Programs that build their own world: what they show of it jitted, beside what they show in eager."""
import itertools
import operator

import torch

import tracejit

from . import harness
from .compare import equal_bits, near, rounds


def snapshot(obj):
    """What there is to see of an object: each tensor's value, layout and gradient, and each plain value."""
    return [(path, _tensor(leaf), _tensor(leaf.grad) if leaf.is_leaf and leaf.grad is not None else None)
            if isinstance(leaf, torch.Tensor) else (path, type(leaf), repr(leaf))
            for path, leaf in harness.leaves(obj, "")]


def _tensor(t):
    value = t.detach().resolve_conj().resolve_neg().clone()
    value = torch.view_as_real(value) if value.is_complex() else value
    return (t.dtype, tuple(t.shape), t.stride(), t.requires_grad, t.is_leaf, value)


def agree(a, b, same):
    """Are two snapshots equal, their tensors by `same`?"""
    if isinstance(a, torch.Tensor):
        return same(a, b)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(agree(x, y, same) for x, y in zip(a, b))
    return a == b


def observe(program, wrap, look=lambda: None):
    """What the program shows, at each of which `look` is called, and the generator's state."""
    torch.manual_seed(0)
    seen = []

    def see(*objects):
        for obj in objects:
            look()
            seen.append(snapshot(obj))
    program(wrap, see)
    return seen + [torch.get_rng_state().tolist()]


def assert_same(program, executors=None):
    """Jitted by these executors (None: the default ones); to the bit where no kernel rounds in its own way."""
    want = observe(program, lambda fn: fn)
    made = []

    def wrap(fn):
        made.append(tracejit.jit(fn, fallback="error", executors=executors))
        return made[-1]
    exact = []
    got = observe(program, wrap, lambda: exact.append(not any(map(rounds, made))))
    assert len(want) == len(got)
    for at, (w, g, same_bits) in enumerate(zip(want, got, [*itertools.accumulate(exact, operator.and_), True])):
        assert agree(w, g, equal_bits if same_bits else near), f"what was seen at step {at} differs: {w} became {g}"


def attempt(fn, *args):
    """The result, or the class of the error."""
    try:
        return fn(*args)
    except tracejit.UnsupportedError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error).__name__
