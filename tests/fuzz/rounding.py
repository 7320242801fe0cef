"""Which differences are rounding: for compilers that compute transcendentals and sums in an order of their own.

A program is run again in eager while the results of its inexact operations are moved by an ulp or two. What moves with
them is not defined to the last bit, so a compiler may differ there about as much; everything else must be exact.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.fuzz.observe import Frozen, Moment, observe

INEXACT = frozenset("""exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh
    erf erfc sigmoid silu gelu softplus elu mish celu selu logsumexp _softmax _log_softmax sum mean prod var std var_mean
    std_mean norm linalg_vector_norm native_layer_norm native_group_norm native_batch_norm _fused_rms_norm pow
    _native_batch_norm_legit log_sigmoid_forward glu mse_loss binary_cross_entropy_with_logits nll_loss_forward logaddexp
    _softmax_backward_data _log_softmax_backward_data gelu_backward silu_backward nansum reciprocal rsqrt""".split())
TRIES = 6
ULPS, RELATIVE = 4, 1e-6     # always allowed where anything inexact ran: ulps of a value, share of the tensor's largest
MARGIN = 8                   # how much further than the moved runs a compiler may be


class Moved(TorchDispatchMode):
    """Moves results of inexact operations by up to `ulps`. `seen`: has any run?"""

    def __init__(self, seed: int, ulps: int = 2) -> None:
        super().__init__()
        self.generator, self.ulps, self.seen = torch.Generator().manual_seed(seed), ulps, False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__.rstrip("_") in INEXACT:
            for t in tree_leaves(out):
                if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel():
                    self.seen = True
                    self._move(t)
        return out

    def _move(self, t: torch.Tensor) -> None:
        steps = torch.randint(-self.ulps, self.ulps + 1, t.shape, generator=self.generator)
        t.detach().mul_(1 + steps * torch.finfo(t.dtype).eps)


def moved_runs(make: Callable) -> list[list[Moment]]:
    """Runs of a program with moved results; empty when nothing inexact ran."""
    runs = []
    for seed in range(TRIES):
        mode = Moved(seed)

        def transform(program: Callable, mode: Moved = mode) -> Callable:
            def run(*arguments: Any) -> Any:
                with mode:
                    return program(*arguments)
            return run
        moments = observe(make, transform)
        if not mode.seen:
            return []
        runs.append(moments)
    return runs


def forgiven(want: list[Moment], got: list[Moment], make: Callable) -> list[Moment]:
    """`got`, with every value that differs by rounding alone replaced by eager's."""
    runs = moved_runs(make)
    if not runs:
        return got
    return [dataclasses.replace(g, leaves={path: _leaf(w.leaves.get(path), leaf, [r[n].leaves.get(path) for r in runs if n < len(r)])
                                           for path, leaf in g.leaves.items()}) if n < len(want) else g
            for n, (w, g) in enumerate(zip(want, got))] + got[len(want):]


def _leaf(want: Any, got: Any, moved: list[Any]) -> Any:
    if not isinstance(want, Frozen) or not isinstance(got, Frozen) or want.value.shape != got.value.shape or (
            want.value.dtype is not got.value.dtype):
        return got
    others = [m.value for m in moved if isinstance(m, Frozen) and m.value.shape == want.value.shape and m.value.dtype is want.value.dtype]
    return dataclasses.replace(got, value=torch.where(allowed(want.value, got.value, others), want.value, got.value))


def allowed(want: torch.Tensor, got: torch.Tensor, moved: list[torch.Tensor]) -> torch.Tensor:
    """Where `got` is as near to `want` as the moved runs are. Values that are not numbers differ nowhere or everywhere."""
    if not want.is_floating_point():
        return torch.full_like(want, any(not torch.equal(m, want) for m in moved), dtype=torch.bool)
    a, b = want.double(), got.double()
    finite = a.isfinite()
    unsteady = any(bool((m.isfinite() != finite).any()) for m in moved)
    if unsteady:
        return torch.ones_like(finite)
    largest = float(a[finite].abs().max()) if finite.any() else 0.0
    reach = max((float((m.double() - a)[finite].abs().max()) for m in moved), default=0.0) if finite.any() else 0.0
    eps = torch.finfo(want.dtype).eps
    near = (a - b).abs() <= torch.clamp(ULPS * eps * a.abs(), min=max(RELATIVE * largest, MARGIN * reach))
    return near & finite & b.isfinite()
