"""What rules say of the results of calls is what eager's are, for sizes, layouts and dtypes of all kinds."""
import contextlib
import itertools

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import tracejit
from tracejit.ir import results
from tracejit.ir.proxy import proxy_of
from tracejit.ir.symbol import aten_symbol

SAMPLES = 3
aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Compared(TorchDispatchMode):
    """Runs calls on real tensors, and compares their results with what is told of them."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False             # otherwise every dispatch goes through torch._dynamo.disable

    def __init__(self):
        super().__init__()
        self.told = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        storages = {t.untyped_storage()._cdata: n for n, t in enumerate(given) if isinstance(t, torch.Tensor)}
        rule = results.told(aten_symbol(func), *tree_map(
            lambda t: proxy_of("", t, storages[t.untyped_storage()._cdata]) if isinstance(t, torch.Tensor) else t, (args, kwargs)))
        out = func(*args, **kwargs)
        made = [] if aten_symbol(func).returns_self else tree_leaves((out,), is_leaf=lambda x: x is None)
        if rule is not None and rule.results is not None:
            self.told += 1
            assert rule.results == [o if o is None else (tuple(o.shape), o.stride(), o.dtype) for o in made], func
            assert not {o.untyped_storage()._cdata for o in made if o is not None} & set(storages), func
        elif rule is not None:
            rule.note(made)
        return out


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(results, "_dtypes", {})


def described(op):
    """Does a rule tell of one of its overloads?"""
    packet = getattr(torch.ops.aten, op.aten_name, None)
    return packet is not None and any(results._rule(aten_symbol(getattr(packet, o))) for o in packet.overloads())


DESCRIBED = [op for op in op_db if described(op)]


@pytest.mark.parametrize("part", range(4))
def test_what_is_told_of_torchs_operators_is_eagers(part):
    compared = Compared()
    for op in DESCRIBED[part::4]:
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), SAMPLES):
            for again in (sample, sample.transform(twice)):
                with compared, contextlib.suppress(RuntimeError, IndexError, ValueError):     # twice as large, they may not go together
                    op(again.input, *again.args, **again.kwargs)
    assert compared.told > len(DESCRIBED) / 4


def twice(t):
    return t.repeat(2, *[1] * (t.dim() - 1)).contiguous() if isinstance(t, torch.Tensor) and t.dim() else t


def pairs():
    """Operands of many shapes, dtypes and layouts, and numbers."""
    shapes = [(3, 4), (4,), (1, 4), (3, 1), (), (2, 3, 4), (5, 4), (1, 1)]
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool]
    made = [torch.ones(s, dtype=d) for s in shapes for d in dtypes] + [torch.ones(4, 3).t(), torch.ones(3, 8)[:, ::2]]
    yield from itertools.product(made, [*made, 2, 2.0, True])


@pytest.mark.parametrize("func", [aten.add.Tensor, aten.lt.Tensor, aten.add_.Tensor, aten.copy_.default], ids=str)
def test_promotion_and_refusals_do_not_depend_on_sizes(func):
    compared = Compared()
    for a, b in pairs():
        with compared, contextlib.suppress(RuntimeError):
            func(a.clone(), torch.tensor(b) if func is aten.copy_.default else b)
    assert compared.told > 500


def rows(n, *dtypes):
    for dtype in dtypes:
        x, w = torch.ones(n, 3, 8, dtype=dtype), torch.ones(8, dtype=dtype)
        yield from ((x, w), (x, None), (x.transpose(0, 1), w), (x, w.float()))


def test_norms_copies_and_products_are_told():
    compared = Compared()
    for n in (2, 5, 1):
        for (x, w), mask in itertools.product(rows(n, torch.float32, torch.bfloat16), itertools.product((True, False), repeat=3)):
            with compared, contextlib.suppress(RuntimeError):  # a gradient of a weight that there is not
                y, mean, rstd = aten.native_layer_norm(x, [8], w, w, 1e-5)
                aten.native_layer_norm_backward(y, x, [8], mean, rstd, w, w, mask)
        for bias, right in itertools.product((torch.ones(n + 1), torch.ones(n, 1), torch.ones(())), (torch.ones(3, n + 1), torch.ones(n + 1, 3).t())):
            with compared:
                aten.addmm(bias, torch.ones(n, 3), right)
                for form in (torch.contiguous_format, torch.preserve_format, None):
                    aten.clone(right, memory_format=form)
                    aten._to_copy(right, dtype=torch.float64, memory_format=form)
                aten.mm(right.t(), torch.ones(4, 3).t())
                aten.bmm(torch.ones(2, n, 3), right.expand(2, -1, -1))
                grad = aten._softmax(right.contiguous(), 1, False)
                aten._softmax_backward_data(grad, grad, 0, torch.float32)
                aten.tril(right.contiguous(), 1)
    assert compared.told > 50


def test_a_second_length_is_told_without_a_run(monkeypatch):
    block = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).eval()
    jitted = tracejit.jit(block, executors=["cpu"], fallback="error")
    with torch.no_grad():
        jitted(torch.ones(2, 3, 8))
        monkeypatch.setattr(results.Told, "note", lambda *args: pytest.fail("a call was run"))
        torch.testing.assert_close(jitted(torch.ones(2, 5, 8)), block(torch.ones(2, 5, 8)))


def test_a_kind_whose_rule_does_not_hold_is_always_run():
    sym = aten_symbol(aten.add.Tensor)
    x = proxy_of("x", torch.ones(3), 0)
    rule = results.told(sym, (x, x), {})
    rule.note([torch.ones(4)])
    assert rule.results is None
    rule.note([torch.ones(3)])
    assert rule.results is None
