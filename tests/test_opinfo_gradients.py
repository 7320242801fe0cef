"""Gradients of every operator of torch's own operator database are eager's, bit for bit, by a forward and a backward trace."""
import os
import zlib

import pytest
import torch
import torch.utils._pytree as pytree
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db

import tracejit

from cases.compare import clone_call, equal_bits

ALL = os.environ.get("TRACEJIT_TEST_ALL") == "1"
SAMPLES_IN_THE_THINNED_RUN = 2
OPS = [op for op in op_db if op.supports_autograd and torch.float32 in op.supported_dtypes("cpu")]

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def random_ops_draw_from_the_default_generator(monkeypatch):
    """The database seeds within each call of a random op; here every run seeds before the call."""
    monkeypatch.setattr(common_methods_invocations, "wrapper_set_seed",
                        lambda op, *args, **kwargs: op(*args, **kwargs))


def marks(op):
    """Five sixths of the ops, chosen by a stable hash of their names, belong to the full run only."""
    return () if zlib.crc32(op.formatted_name.encode()) % 6 == 1 else (pytest.mark.full,)


def samples(op):
    torch.manual_seed(0)
    for i, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=True)):
        if i == SAMPLES_IN_THE_THINNED_RUN and not ALL:
            return
        yield (sample.input, *sample.args), sample.kwargs


def with_gradients(function, args, kwargs):
    """(results, gradients of the arguments, the error): two calls, tangents of two layouts."""
    leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
    torch.manual_seed(1)
    try:
        results = [r for r in pytree.tree_leaves(function(*args, **kwargs)) if isinstance(r, torch.Tensor)]
        outputs = [r for r in results if r.requires_grad]
        tangents = [torch.randn(r.shape[::-1], dtype=r.dtype).permute(*reversed(range(r.dim()))) for r in outputs]
        gradients = torch.autograd.grad(outputs, leaves, tangents, allow_unused=True) if outputs and leaves else ()
    except tracejit.UnsupportedError:
        raise
    except Exception as error:
        return None, None, type(error).__name__
    return results, gradients, None


def problems(want, got):
    if want[2] is not None or got[2] is not None:
        return [] if want[2] == got[2] else [f"{want[2]} became {got[2]}"]
    found = [f"result {i}" for i, (a, b) in enumerate(zip(want[0], got[0], strict=True))
             if a.requires_grad != b.requires_grad or not equal_bits(a.detach(), b.detach())]
    for i, (a, b) in enumerate(zip(want[1], got[1], strict=True)):
        if (a is None) != (b is None):
            found.append(f"gradient {i}: {None if a is None else 'a tensor'} became {None if b is None else 'a tensor'}")
        elif a is not None and (a.layout != b.layout or a.layout is torch.strided and not equal_bits(a.detach(), b.detach())):
            found.append(f"gradient {i}: {a.flatten()[:4].tolist()} became {b.flatten()[:4].tolist()}")
    return found


@pytest.mark.parametrize("op", [pytest.param(op, id=op.formatted_name, marks=marks(op)) for op in OPS])
def test_gradients_are_those_of_eager(op, tally):
    wrong, split, replayed, eager = [], 0, 0, 0

    def program(*args, **kwargs):
        return op.op(*args, **kwargs)

    for args, kwargs in samples(op):
        def fresh():
            return clone_call(args, kwargs)

        want, again = with_gradients(program, *fresh()), with_gradients(program, *fresh())
        if problems(want, again):
            continue                                           # eager does not repeat itself
        jitted = tracejit.jit(program, fallback="error", executors=["torch"])
        try:
            for call in range(2):
                wrong += [f"call {call}: {p}" for p in problems(want, with_gradients(jitted, *fresh()))]
        except tracejit.UnsupportedError:
            eager += 1
            continue
        split += bool(jitted.last_backward_traces)
        replayed += bool(jitted.replayed_because)
    tally("OpInfo gradients, samples", split=split, replayed=replayed, eager=eager)
    assert not wrong, "\n".join(wrong[:4])
