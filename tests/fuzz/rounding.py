"""Which differences are rounding: for compilers that compute transcendentals and sums in an order of their own.

A program is run again in eager while the results of its inexact operations are moved by an ulp or two. What moves with
them is not defined to the last bit, so a compiler may differ there about as much; everything else must be exact.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterator, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.fuzz.observe import Frozen, Moment, differences, observe, value_difference

INEXACT = frozenset("""exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh
    erf erfc sigmoid silu gelu softplus elu mish celu selu logsumexp _softmax _log_softmax sum mean prod var std var_mean
    std_mean norm linalg_vector_norm native_layer_norm native_group_norm native_batch_norm _fused_rms_norm pow
    _native_batch_norm_legit log_sigmoid_forward glu mse_loss binary_cross_entropy_with_logits nll_loss_forward logaddexp
    _softmax_backward_data _log_softmax_backward_data gelu_backward silu_backward nansum rsqrt sqrt xlogy
    special_xlog1py""".split())
DISAGREE_AT_NAN = ("hardshrink_backward", "softshrink_backward", "hardswish_backward")    # eager's vectors and its scalars
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
TRIES = 6
ULPS, RELATIVE = 4, 1e-6     # always allowed where anything inexact ran: ulps of a value, share of the tensor's largest
OVERFLOWN = 1 / 20           # where so many values of a tensor may be infinite or not, where they lie is open, too: they may have been sorted
MARGIN = 8                   # how much further than the moved runs a compiler may be


class Moved(TorchDispatchMode):
    """Moves results of inexact operations by up to `ulps`; with seed 0 to what float64 gives. `seen`: has any run?"""

    def __init__(self, seed: int, ulps: int = 2) -> None:
        super().__init__()
        self.seed, self.generator, self.ulps, self.seen = seed, torch.Generator().manual_seed(seed), ulps, False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket.__name__
        name, listed = packet.removeprefix("_foreach_").rstrip("_"), packet.startswith("_foreach_")
        inexact, contracted = name in INEXACT, _scales_halves(args, kwargs)
        exact = _in_double(func, args, kwargs) if inexact and self.seed == 0 or contracted else []
        terms = _terms(func, args, kwargs)
        odd = args[1].isnan() if name in DISAGREE_AT_NAN else None
        out = func(*args, **kwargs)
        made = tree_leaves(args[0] if listed and out is None else out)
        for n, t in enumerate(made):
            if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel():
                self.seen |= inexact or contracted
                if exact:                                      # eager's vectors scale halves as float64 does, its scalars do not
                    self._replace(t, exact[n], 0.5 if contracted else 1.0)
                elif inexact:
                    self._move(t, terms if n == 0 else None)
                if torch.Tag.pointwise in func.tags or listed or name == "floor_divide" or _casts(name, t, args):
                    self._other_nans(t)
                if name in ("softshrink", "minimum", "maximum"):       # -0.0 from eager's scalars, 0.0 from its vectors
                    self._turn(t, t == 0)
                if odd is not None and odd.any():
                    self.seen = True
                    share = (0.0, 1.0, float("nan"))[self.seed % 3]
                    self._replace(t, torch.where(odd, args[0] * share, t.detach()), 1.0)
                if name == "gelu":                             # of infinity it is NaN in some of eager's code, not in all
                    t.nan_to_num_(nan=float("inf"), posinf=float("inf"), neginf=-float("inf"))
        return out

    def _replace(self, t: torch.Tensor, exact: torch.Tensor, share: float) -> None:
        chosen = torch.rand(t.shape, generator=self.generator) < share
        t.detach().copy_(torch.where(chosen, exact.to(t.dtype), t.detach()))

    def _turn(self, t: torch.Tensor, where: torch.Tensor) -> None:
        """Signs that are nobody's promise."""
        if where.any():
            self.seen = True
            sign = torch.randint(0, 2, t.shape, generator=self.generator).to(t.dtype) * 2 - 1
            t.detach().copy_(torch.where(where, t.detach().copysign(sign), t.detach()))

    def _other_nans(self, t: torch.Tensor) -> None:
        """The bits of a NaN, which show where its bytes are seen under another dtype, are nobody's promise."""
        nan = t.isnan()
        if nan.any():                                          # the runs have their own
            self.seen = True
            integer = INTEGERS[t.element_size()]
            inf = torch.full((), float("inf"), dtype=t.dtype).view(integer)
            quiet = torch.full((), float("nan"), dtype=t.dtype).view(integer)
            bits = (inf + 1, quiet, torch.full_like(inf, torch.iinfo(integer).max))[self.seed % 3].view(t.dtype)
            t.detach().copy_(torch.where(nan, bits.copysign(bits.new_full((), 1 if self.seed < 3 else -1)), t.detach()))

    def _move(self, t: torch.Tensor, terms: Optional[torch.Tensor]) -> None:
        steps = torch.randint(-self.ulps, self.ulps + 1, t.shape, generator=self.generator).double()
        unit = torch.finfo(t.dtype).eps * t.detach().double().abs()
        if terms is not None:                                  # halves are added up as floats
            unit += min(torch.finfo(t.dtype).eps, torch.finfo(torch.float32).eps) * terms.double()
        moved = t.detach().double() + steps * unit
        moved = torch.where((unit != 0) & unit.isfinite(), moved, t.detach().double())
        if terms is not None and terms.isinf().any():          # any of these, as the order of the terms has it
            self.seen = True
            chosen = torch.randint(0, 3, t.shape, generator=self.generator) if self.seed > 2 else torch.full(t.shape, self.seed)
            for n, value in enumerate((float("nan"), float("inf"), -float("inf"))):
                moved[terms.isinf() & (chosen == n)] = value
        t.detach().copy_(moved)


def _terms(func: Any, args: tuple, kwargs: dict) -> Optional[torch.Tensor]:
    """What is added up, without signs, for results that are a small difference of large terms: infinite where finite terms
    overflow. None for other operations."""
    name = func.overloadpacket.__name__
    if name not in ("sum", "mean") or not args[0].is_floating_point():
        return None
    large = args[0].detach().double().abs().nan_to_num_(0.0, posinf=0.0)
    terms = func(large, *args[1:], **kwargs | ({"dtype": torch.float64} if "dtype" in kwargs else {}))
    count = args[0].numel() / max(terms.numel(), 1) if name == "mean" else 1
    most = torch.finfo(torch.float64 if args[0].dtype is torch.float64 else torch.float32).max
    return terms.masked_fill_(terms * count > most, float("inf"))


def _casts(name: str, made: torch.Tensor, args: tuple) -> bool:
    source = {"copy": 1, "_to_copy": 0}.get(name)
    return source is not None and args[source].dtype is not made.dtype


def _scales_halves(args: tuple, kwargs: dict) -> bool:
    """Is it `a + alpha * b` of halves?"""
    return "alpha" in kwargs and all(isinstance(a, torch.Tensor) and a.dtype in (torch.bfloat16, torch.float16) for a in args[:2])


def _in_double(func: Any, args: tuple, kwargs: dict) -> list[Any]:
    """The results of a call in float64, on copies of its arguments."""
    def wide(a: Any) -> Any:
        return a.detach().to(torch.float64, copy=True) if isinstance(a, torch.Tensor) and a.is_floating_point() else a
    args = tree_map(wide, args)
    out = func(*args, **kwargs)
    return tree_leaves(args[0] if out is None else out)


def moved_runs(make: Callable) -> Iterator[list[Moment]]:
    """Runs of a program with moved results, one after another; none when nothing inexact ran."""
    for seed in range(TRIES):
        mode = Moved(seed)

        def transform(program: Callable, mode: Moved = mode) -> Callable:
            def run(*arguments: Any) -> Any:
                with mode:
                    return program(*arguments)
            return run
        moments = observe(make, transform, around=mode)
        if not mode.seen:
            return
        yield moments


def forgiven(want: list[Moment], got: list[Moment], make: Callable) -> list[Moment]:
    """`got`, with every value that differs by rounding alone replaced by eager's."""
    runs: list[list[Moment]] = []
    judged = got
    for moments in moved_runs(make):
        runs.append(moments)
        judged = [_moment(w, g, [r[n] for r in runs if n < len(r)]) for n, (w, g) in enumerate(zip(want, got))]
        judged += got[len(want):]
        if not differences(want, judged):                      # further runs would only allow more
            break
    return judged


def _moment(want: Moment, got: Moment, moved: list[Moment]) -> Moment:
    leaves = {path: _leaf(want.leaves.get(path), leaf, [m.leaves.get(path) for m in moved]) for path, leaf in got.leaves.items()}
    return dataclasses.replace(got, leaves=leaves)


def _leaf(want: Any, got: Any, moved: list[Any], terms: float = 0.0) -> Any:
    """terms: how large what was added up to the values may have been."""
    if not isinstance(want, Frozen) or not isinstance(got, Frozen) or want.value.shape != got.value.shape or (
            want.value.dtype is not got.value.dtype):
        return got
    moved = [m for m in moved if isinstance(m, Frozen)]
    if "gradient" in got.facts:                                # they add up from ones, and may cancel to what rounding leaves of them
        gradients = [f.facts.get("gradient") for f in (want, got, *moved)]
        got = dataclasses.replace(got, facts=got.facts | {"gradient": _leaf(*gradients[:2], gradients[2:], 1.0)})
    if not value_difference(want.value, got.value):
        return got
    others = [m.value for m in moved if m.value.shape == want.value.shape and m.value.dtype is want.value.dtype]
    return dataclasses.replace(got, value=torch.where(allowed(want.value, got.value, others, terms), want.value, got.value))


def allowed(want: torch.Tensor, got: torch.Tensor, moved: list[torch.Tensor], terms: float) -> torch.Tensor:
    """Where `got` is as near to `want` as the moved runs are."""
    if not want.is_floating_point():
        return torch.full_like(want, any(not torch.equal(m, want) for m in moved), dtype=torch.bool)
    a, b = want.double(), got.double()
    finite = a.isfinite()
    unsteady, reach = torch.zeros_like(finite), 0.0
    for m in (m.double() for m in moved):
        also = m.isfinite()
        unsteady |= (also != finite) | ~finite & (m != a) & ~(m.isnan() & a.isnan())
        reach = max(reach, _largest((m - a).masked_fill(~(finite & also), 0)))
    if unsteady.numel() and unsteady.double().mean() > OVERFLOWN:
        return torch.ones_like(unsteady)
    least = max(RELATIVE * max(_largest(a.masked_fill(~finite, 0)), terms), MARGIN * reach)
    near = (a - b).abs() <= torch.clamp(ULPS * torch.finfo(want.dtype).eps * a.abs(), min=least)
    return unsteady | near & finite & b.isfinite() | ((_bits(want) - _bits(got)).abs() <= ULPS)


def _bits(t: torch.Tensor) -> torch.Tensor:
    """As integers. Neighbours are infinity and a NaN that no arithmetic makes, where a half of other bytes is seen."""
    return t.contiguous().view(INTEGERS[t.element_size()]).long()


def _largest(t: torch.Tensor) -> float:
    return float(t.abs().max()) if t.numel() else 0.0
