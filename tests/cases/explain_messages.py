"""Programs of which `tracejit.explain` says why a call is not fused, and what to change."""
import warnings
from typing import Callable

import torch

import tracejit
from tracejit.executors.cpu import CpuExecutor
from tracejit.executors.cupy import CupyExecutor
from tracejit.executors.fusible import why_not_lowered
from tracejit.inspection.explain import Explanation

from .messages import CASES, Case, use, x
from .rarer_messages import compiled_by


def whole(n: int = 2):
    return torch.arange(1, n + 1)


def unfused(told: Explanation) -> str:
    return "\n".join(f"one by one: {u.op}: {u.why}  {', '.join(u.lines)}".rstrip() for u in told.unfused)


def explained(fn=None, *, args: Callable[[], tuple] = lambda: (x(),), executors=lambda: None):
    """A function with calls that no kernel takes."""
    def listed(fn):
        def told():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                told = tracejit.explain(tracejit.jit(fn, executors=executors()), *args())
            return unfused(told)
        CASES.append(Case(fn.__name__, told, where=False))
        return fn
    return listed(fn) if fn is not None else listed


def on_a_gpu(fn=None, *, args: Callable[[], tuple] = lambda: (x(),)):
    """The same, of CUDA kernels."""
    def listed(fn):
        def told():
            jitted = tracejit.jit(fn, executors=["torch"])
            jitted(*args())
            reasons = [(b, why_not_lowered(b, "cpu", "cuda")) for b in jitted.last_traces[-1].bound_symbols]
            return "\n".join(f"one by one: {b.sym.name}: {why}" for b, why in reasons if why)
        CASES.append(Case(fn.__name__, told, where=False))
        return fn
    return listed(fn) if fn is not None else listed


def advised(fn):
    """Of an explanation, what to change."""
    CASES.append(Case(fn.__name__, lambda: "\n".join(f"advice: {line}" for line in fn().advice), where=False))
    return fn


# ------------------------------------------------------------ what kernels do not compute

@explained
def unfused_random_numbers(x):
    return x * torch.rand(3)


@explained(args=lambda: (x(), x()))
def unfused_set(x, y):
    x.set_(y)


@explained(args=lambda: (x() + 1j,))
def unfused_complex(x):
    return x + 1


@explained
def unfused_of_no_elements(x):
    return x[:0] + 1


@explained(args=lambda: ((x() + 1j).conj().imag,))
def unfused_negated(x):
    return x + 1


@explained
def unfused_assertion(x):
    torch._assert_async(x.sum() > 0)


def overlapping():
    return torch.as_strided(torch.ones(8), (2, 2), (1, 1)), torch.ones(2, 2)


@explained(args=overlapping)
def unfused_copy(x, y):
    x.copy_(y)


@explained(args=overlapping)
def unfused_write(x, y):
    x.mul_(2)


@torch.library.custom_op("tracejit_messages::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


@explained
def unfused_custom_op(x):
    return doubled(x)


@explained(args=lambda: (x(), torch.tensor(2.0)))
def unfused_number(x, y):
    return x.pow(y.item())


@explained
def unfused_sort(x):
    return x.sort()


@explained
def unfused_rounding(x):
    return x.round(decimals=2)


@explained
def unfused_complex_constant(x):
    return x == 1j


@explained
def unfused_memory_that_overlaps(x):
    return torch.empty_strided((3, 3), (0, 1)).fill_(1)


@explained(args=lambda: (x().half(),))
def unfused_product_of_halves(x):
    return x.prod()


@explained(args=lambda: (whole(),))
def unfused_floor_of_integers(x):
    return x.floor()


@explained(args=lambda: (x().half(), torch.tensor(2.0)))
def unfused_half_beside_a_number(x, y):
    return x * y


@explained
def unfused_alone(x):
    return x + 1


def broken(executor):
    executor.broken = True
    return [executor]


@explained(executors=lambda: broken(CupyExecutor()))
def unfused_without_cupy(x):
    return (x + 1) * 2


@explained(executors=lambda: broken(CpuExecutor()))
def unfused_without_a_compiler(x):
    return (x + 1) * 2


class Picky(tracejit.Executor):
    """Fuses nothing but sums."""

    name = "picky"

    def can_execute(self, bsym):
        return False

    def can_fuse(self, bsym):
        return bsym.sym.packet == "add"


@explained(executors=lambda: [Picky()])
def unfused_by_an_executor_of_ones_own(x):
    return (x + 1) * 2


@use
def unfused_where_the_compiler_fails():
    with compiled_by(FAILS_ON_TANH) as executor, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return unfused(tracejit.explain(tracejit.jit(lambda x: x.tanh() * 2, executors=[executor]), x()))


FAILS_ON_TANH = 'for f in "$@"; do case $f in *.c) grep -q tanh $f && exit 1;; esac; done; exec cc "$@"'


@explained(executors=lambda: [CupyExecutor()])
def unfused_on_another_device(x):
    return (x + 1) * 2


@on_a_gpu(args=lambda: (torch.tensor(2.0),))
def unfused_arithmetic_of_python(x):
    return x.item() * 2 + 1


@on_a_gpu
def unfused_scan(x):
    return x.cumsum(0)


# ------------------------------------------------------------ what to change

@advised
def advice_where_nothing_is_fused():
    return tracejit.explain(lambda x: x.sort().values, x())


@advised
def advice_where_nothing_is_captured():
    return tracejit.explain(lambda x: x.tolist(), x())


def hooked(y):
    z = y.sin() * 2
    z.register_hook(lambda g: g)
    return z


@advised
def advice_where_the_call_is_replayed():
    return tracejit.explain(hooked, x().requires_grad_())


@use
def summary_where_the_call_is_replayed():
    return str(tracejit.explain(hooked, x().requires_grad_())).split("\n\nguards")[0]


@advised
def advice_where_one_op_runs_often():
    return tracejit.explain(lambda x: x.sort().values.sort().values.sort().values.sort().values, x())


@advised
def advice_where_entries_are_many():
    jitted = tracejit.jit(lambda x, n: x * n + 1, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(9):
            jitted(x(), str(n) and n)
    return tracejit.explain(jitted, x(), 1)
