"""Every operator of torch's own operator database, and its in-place variant, means what eager means."""
import os
import zlib

import pytest
import torch
import torch.utils._pytree as pytree
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db

import tracejit

from cases.compare import call_problems, clone_call, equal_bits, in_float64, near, near_or_nearer, rounds, run

ALL = os.environ.get("TRACEJIT_TEST_ALL") == "1"
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
SAMPLES_IN_THE_THINNED_RUN = 2

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about the samples themselves

# Ops whose result, or whose course, depends on what is in a tensor: they run in eager. {op: reason}
FALLS_BACK = {
    "nonzero": "result shape depends on data",
    "argwhere": "result shape depends on data",
    "masked_select": "result shape depends on data",
    "unique": "result shape depends on data",
    "unique_consecutive": "result shape depends on data",
    "item": "returns a Python number",
    "equal": "returns a Python bool",
    "cov": "branches on the sum of the weights",
    "corrcoef": "branches on the sum of the weights",
    "narrow": "a start that is a tensor is read on the host",
    "nn.functional.one_hot": "counts the classes by the largest value",
    "sparse.sampled_addmm": "sparse tensors",
    "sparse.mm": "sparse tensors",
    "combinations": "selects by a mask",
    "bincount": "result shape depends on data",
    "to_sparse": "sparse tensors",
    "nn.functional.gaussian_nll_loss": "checks on the host that no variance is negative",
    "linalg.lstsq": "the shape of the residuals depends on the rank",
    "allclose": "returns a Python bool",
    "addbmm": "the in-place form resizes its input, which fake tensors refuse",
    "tensor_split": "indices that are a tensor are read on the host",
    "__getitem__": "a boolean mask selects as many elements as it holds",
    "repeat_interleave": "result shape depends on how often each element is repeated, a tensor",
    "nn.functional.ctc_loss": "lengths that are tensors are read on the host",
}

# Everything but the values is compared: the op leaves memory uninitialised, or (lstsq) LAPACK's last bit
# depends on where its workspace happens to lie.
VALUES_VARY = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
               "resize_", "resize_as_", "linalg.lstsq"}


def marks(op):
    """Eight ninths of the ops, chosen by a stable hash of their names, belong to the full run only."""
    return () if zlib.crc32(op.formatted_name.encode()) % 9 == 0 else (pytest.mark.full,)


OP_AND_DTYPE = [pytest.param(op, dtype, id=f"{op.formatted_name}-{str(dtype).split('.')[1]}", marks=marks(op))
                for op in op_db for dtype in DTYPES if dtype in op.supported_dtypes("cpu")]
ERROR_OPS = [pytest.param(op, id=op.formatted_name, marks=marks(op))
             for op in op_db if op.error_inputs_func is not None]


@pytest.fixture(autouse=True)
def random_ops_draw_from_the_default_generator(monkeypatch):
    """The database seeds within each call of a random op; here every run() seeds before the call."""
    monkeypatch.setattr(common_methods_invocations, "wrapper_set_seed",
                        lambda op, *args, **kwargs: op(*args, **kwargs))


def samples(op, dtype):
    """The op's sample calls as (args, kwargs)."""
    torch.manual_seed(0)
    for i, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
        if i == SAMPLES_IN_THE_THINNED_RUN and not ALL:
            return
        yield (sample.input, *sample.args), sample.kwargs


def program_for(function):
    def program(*args, **kwargs):
        return function(*args, **kwargs)
    return program


def jitted_calls(function, args, kwargs):
    """Two calls of one jitted function, the second served from its cache; why it fell back, if it did; do kernels round?

    With fallback="error" a refusal must have touched nothing, so the same arguments then go to eager.
    """
    strict = tracejit.jit(program_for(function), fallback="error")
    calls = [clone_call(args, kwargs) for _ in range(2)]
    outcomes = []
    for call in calls:
        outcome = run(strict, *call)
        if isinstance(outcome[1], tracejit.UnsupportedError):
            reason = str(outcome[1])
            silent = tracejit.jit(program_for(function), fallback="silent")
            return calls, [run(silent, *call) for call in calls], reason, False
        outcomes.append(outcome)
    return calls, outcomes, None, rounds(strict)


def judge(function, args, kwargs, compare_values):
    """(problems, reason for falling back or None), or None if eager itself is not deterministic."""
    call = clone_call(args, kwargs)
    want = run(function, *call)
    if compare_values and not eager_repeats_itself(function, args, kwargs, call, want):
        return None
    calls, outcomes, reason, rounding = jitted_calls(function, args, kwargs)
    compare_values = compare_values and (near if rounding else equal_bits)

    def problems_by(agree):
        return [f"{which}: {p}" for which, got_call, got in zip(("first call", "second call"), calls, outcomes, strict=True)
                for p in call_problems(call, want, got_call, got, agree)]
    problems = problems_by(compare_values)
    if problems and compare_values is near:
        exact = in_float64((args, kwargs))
        problems = problems_by(near_or_nearer(call, want, exact, run(function, *exact)))
    if reason is None and want[1] is None and _is_own_input(call, want) and not _is_own_input(calls[0], outcomes[0]):
        problems.append("the result is no longer the input itself")
    return problems, reason


def eager_repeats_itself(function, args, kwargs, call, want):
    again = clone_call(args, kwargs)
    return not call_problems(call, want, again, run(function, *again))


def eager_accepts(function, args, kwargs):
    return run(function, *clone_call(args, kwargs))[1] is None


def _is_own_input(call, outcome):
    return any(outcome[0] is leaf for leaf in pytree.tree_leaves(call) if isinstance(leaf, torch.Tensor))


def describe(args, kwargs):
    def short(leaf):
        return (f"{str(leaf.dtype).split('.')[1]}{list(leaf.shape)}{list(leaf.stride())}"
                if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided else leaf)
    return f"{pytree.tree_map(short, (args, kwargs))}"[:400]


@pytest.mark.parametrize("op, dtype", OP_AND_DTYPE)
def test_op_is_as_in_eager(op, dtype, tally):
    counts = {"calls": 0, "passed": 0, "fell_back": 0, "nondeterministic": 0}
    problems, reasons = [], {}
    for args, kwargs in samples(op, dtype):
        for function in filter(None, (op.op, op.get_inplace())):
            name = getattr(function, "__name__", op.name)
            counts["calls"] += 1
            verdict = judge(function, args, kwargs, op.name not in VALUES_VARY)
            if verdict is None:
                counts["nondeterministic"] += 1
                continue
            found, reason = verdict
            if reason is not None and eager_accepts(function, args, kwargs):
                counts["fell_back"] += 1
                reasons.setdefault(reason, describe(args, kwargs))
            counts["passed"] += not found
            problems += [f"{name}{describe(args, kwargs)}\n    {p}" for p in found]
    tally(f"opinfo {str(dtype).split('.')[1]}", **counts)
    share = counts["fell_back"] / max(counts["calls"], 1)       # some ops have thousands of samples, others one
    tally("opinfo, each op and dtype counted once", calls=1, passed=int(not problems), fell_back=share)
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems[:8])
    assert not reasons or op.name in FALLS_BACK, f"falls back: {reasons}"


@pytest.mark.parametrize("op", ERROR_OPS)
def test_bad_input_raises_as_in_eager(op):
    problems = []
    torch.manual_seed(0)
    for error_input in op.error_inputs("cpu"):
        sample = error_input.sample_input
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        found, _ = judge(op.op, args, kwargs, False)
        problems += [f"{op.name}{describe(args, kwargs)}\n    {p}" for p in found]
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems[:8])
