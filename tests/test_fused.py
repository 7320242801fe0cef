"""What fuses and how far; and every op as a kernel of its own, and random programs on threads, mean what eager means.

Transcendentals and sums may differ by rounding, and nothing else. Every trace is checked, and a region that does not
become a kernel is an error.
"""
import functools
import zlib

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal import common_methods_invocations

import test_opinfo
import tracejit
from cases import parity
from cases.compare import call_problems, near, run as run_call
from test_seeds import numbers
from tests.fuzz import programs, run
from tracejit.executors.cpu import CpuExecutor

pytestmark = pytest.mark.compiler

SMALL, LARGE = 100, 10
EVERY_OP = CpuExecutor(allow_single_op_fusion=True)


# ------------------------------------------------------------------ how much is one region

def conv_bias_relu(x, w, b):
    return (F.conv2d(x, w) + b).relu_() + 1


def relu_of_an_argument(a, b):
    return a.relu_() + b.relu()


def read_before_write(a, b):
    c = a + b
    return c.sigmoid().add(c.relu_())


def through_a_flat_view(a, b):
    c = torch.exp(a)
    d = torch.tanh(b)
    e = c.flatten()
    e += d.flatten()
    d.div_(a)
    return c, d, e


def softmax_of_scores(a, b):
    return F.softmax(a * 0.5 + b, -1).mul_(2)


def augmented(a, b):
    a //= 2
    b *= a
    a %= 3
    return a + b


def norm_and_residual(a, b):
    return F.layer_norm(a + b, a.shape[-1:]) * 2


@pytest.mark.parametrize("n", [4, 64])
@pytest.mark.parametrize("program, copies", [
    (conv_bias_relu, 0), (relu_of_an_argument, 1), (read_before_write, 0), (through_a_flat_view, 0), (softmax_of_scores, 0),
    (augmented, 2), (norm_and_residual, 0)], ids=lambda p: getattr(p, "__name__", None))
def test_is_one_region(program, copies, n):
    def make():
        if program is conv_bias_relu:
            return [numbers(2, 3, n, n), numbers(4, 3, 3, 3), numbers(4, 1, 1)]
        return [numbers(n, n) / 64 + .25, numbers(n, n) / 32]
    jfn = parity.assert_parity(program, make)
    final = jfn.last_traces[-1]
    assert len(final.regions) == 1
    assert final.count("copy_") == copies
    outside = [b for b in final.bound_symbols if not b.is_region and not b.is_view]
    assert [b.sym.packet for b in outside] == ["convolution"] * (program is conv_bias_relu)


# ------------------------------------------------------------------ random programs

@pytest.mark.parametrize("part", range(4))
def test_random_programs_mean_what_eager_means(part, threads):
    judged(range(part, SMALL, 4), programs.Options())


@pytest.mark.parametrize("part", range(2))
def test_large_random_programs_mean_what_eager_means(part, threads):
    judged(range(part, LARGE, 2), programs.Options(large=True, max_statements=6))


def judged(indices, options):
    for index in indices:
        program = run.draw(31, index, options)
        outcome = run.judge(program, run.compiler("tracejit"), tolerant=True)
        assert outcome.kind in ("same", "rounded", "unstable"), "\n".join([*outcome.problems[:6], "", program.source])


# ------------------------------------------------------------------ torch's op database

def share(op):
    """One op in sixteen by a stable hash of its name; the full run takes all."""
    return () if zlib.crc32(op.formatted_name.encode()) % 16 == 0 else (pytest.mark.full,)


OPS = [pytest.param(op, dtype, id=f"{op.formatted_name}-{str(dtype).split('.')[1]}", marks=share(op))
       for op in test_opinfo.op_db for dtype in test_opinfo.DTYPES if dtype in op.supported_dtypes("cpu")]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("op, dtype", OPS)
def test_op_is_as_in_eager(op, dtype, monkeypatch):
    monkeypatch.setattr(common_methods_invocations, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs))
    monkeypatch.setattr(tracejit, "jit", functools.partial(tracejit.jit, executors=[EVERY_OP]))
    problems = []
    for args, kwargs in test_opinfo.samples(op, dtype):
        for function in filter(None, (op.op, op.get_inplace())):
            verdict = test_opinfo.judge(function, args, kwargs, op.name not in test_opinfo.VALUES_VARY)
            problems += verdict[0] if verdict is not None else []
    assert not problems, "\n".join(problems[:8])


# ------------------------------------------------------------------ numbers beside tensors

@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.bool, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["add", "mul", "floor_divide", "remainder", "pow", "eq", "lt", "clamp_min", "clamp_max",
                                  "bitwise_left_shift", "bitwise_right_shift", "full_like"])
@pytest.mark.one_in(2)
def test_numbers_out_of_the_range_of_a_dtype(name, dtype):
    op, x = getattr(torch, name), torch.tensor([0, 1, 2, 3, -1, -128, 127, 100, 255, -2 ** 31, 2 ** 62]).to(dtype)
    for number in (0, 8, -1, 255, 300, 2 ** 40, -2 ** 40, 2.5, float("inf"), True):
        call, jitted = ((x,), {}), tracejit.jit(lambda x, number=number: op(x, number), executors=[EVERY_OP], fallback="error")
        problems = call_problems(call, run_call(lambda x: op(x, number), *call), call, run_call(jitted, *call), near)
        assert not problems, f"{number}: {problems}"
