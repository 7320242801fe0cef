"""What symbols say about memory, against what the ops of torch's database do to bytes."""
import os
import zlib
from collections import defaultdict

import pytest
import torch
from torch.testing._internal import common_methods_invocations as database
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from tracejit.ir.symbol import SCHEMAS_THAT_LIE, aten_symbol

from cases.compare import clone_call, equal_bits
from cases.handmade import aten
from cases.parity import assert_parity

FOREACH_KINDS = ("unary", "binary", "pointwise", "reduce", "other")
FOREACH = [op for kind in FOREACH_KINDS for op in getattr(database, f"foreach_{kind}_op_db")]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")



def raw(t):
    """Every byte of a storage."""
    storage = t.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),)).clone()


class Watch(TorchDispatchMode):
    """Sees each ATen call of a program, and what it does to bytes that its symbol says it does not write."""

    def __init__(self):
        super().__init__()
        self.lies, self.different = defaultdict(int), defaultdict(list)
        self.compared, self.not_pointwise = set(), defaultdict(list)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        flat, _ = tree_flatten((args, kwargs))
        tensors = [t for t in flat if isinstance(t, torch.Tensor)]
        if func.namespace != "aten" or any(
            t.layout != torch.strided or t.device.type != "cpu" for t in tensors
        ):
            return func(*args, **kwargs)
        symbol = aten_symbol(func)
        positions = symbol.written(args, kwargs)
        homes = {flat[i].untyped_storage()._cdata for i in positions if isinstance(flat[i], torch.Tensor)}
        others = [(t, raw(t)) for t in tensors if t.untyped_storage()._cdata not in homes]
        before = clone_call(args, kwargs)
        result = func(*args, **kwargs)
        self.lies[str(func)] += sum(not torch.equal(raw(t), bytes_before) for t, bytes_before in others)
        if positions and symbol.functional() is not None:
            self.compare(symbol.functional(), before, [flat[i] for i in positions], str(func))
        fresh = (
            isinstance(result, torch.Tensor)
            and result.numel() > 1
            and not any(t.is_conj() or t.is_neg() for t in tensors)
        )
        if fresh and symbol.pointwise and not positions and not symbol.random:
            self.shuffle(func, flat, tree_flatten((args, kwargs))[1], result)
        return result

    def compare(self, plain, call_before, targets, name):
        args, kwargs = call_before
        known = {a.name for a in plain.overload._schema.arguments}
        results = tree_leaves(plain.overload(*args, **{k: v for k, v in kwargs.items() if k in known}))
        self.compared.add(name)
        for t, r in zip(targets, results, strict=True):
            if t.shape != r.shape or not equal_bits(t, r.to(t.dtype)):
                self.different[name].append(
                    f"{t.dtype} {tuple(t.shape)} by {plain.name}: {r.dtype} {tuple(r.shape)}"
                )

    def shuffle(self, func, flat, spec, result):
        """Elements in another order give the results in that order."""
        order = torch.randperm(result.numel())
        shuffled = [
            (
                t.expand(result.shape).reshape(-1)[order].reshape(result.shape)
                if isinstance(t, torch.Tensor)
                else t
            )
            for t in flat
        ]
        args, kwargs = tree_unflatten(shuffled, spec)
        again = func(*args, **kwargs)
        if not torch.allclose(again.reshape(-1), result.reshape(-1)[order], rtol=1e-3, equal_nan=True):
            self.not_pointwise[str(func)].append(tuple(result.shape))


def with_out(function, dtype=None):
    """`function(..., out=)`; `dtype` of the out argument where it is floating, else that of the result."""

    def call_out(*args, **kwargs):
        def place(t):
            wider = dtype is not None and t.is_floating_point()
            return torch.zeros_like(t, dtype=dtype if wider else t.dtype)

        return function(*args, **kwargs, out=tree_map(place, function(*args, **kwargs)))

    return call_out


def forms(op):
    yield op.op
    if op.get_inplace() is not None:
        yield op.get_inplace()
    if op.supports_out:
        yield from (with_out(op.op), with_out(op.op, torch.float64))


def observe(op, watch, samples=3):
    """All forms of an op, on a few samples, under `watch`; calls that eager refuses are left out."""
    for dtype in (torch.float32, torch.int64):
        if dtype not in op.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        for _, sample in zip(range(samples), op.sample_inputs("cpu", dtype)):
            for function in forms(op):
                args, kwargs = clone_call((sample.input, *sample.args), sample.kwargs)
                try:
                    function(*clone_call(args, kwargs)[0], **kwargs)
                except (
                    Exception
                ):  # whatever eager refuses is no call to compare: dtypes of out=, in-place shapes
                    continue
                with watch, torch.no_grad():
                    function(*args, **kwargs)


PARTS = 8


@pytest.fixture(scope="module")
def watched():
    """A stable eighth of the database under one watch (the whole of it in the full run)."""
    watch = Watch()
    for op in [*database.op_db, *FOREACH]:
        whole = os.environ.get("TRACEJIT_TEST_ALL") == "1" or "batch_norm" in op.name
        if whole or zlib.crc32(op.formatted_name.encode()) % PARTS == 0:
            observe(op, watch)
    return watch


def test_no_schema_of_the_database_lies_beyond_the_table(watched):
    assert {name: count for name, count in watched.lies.items() if count} == {}


def test_functional_form_computes_what_the_op_writes(watched):
    assert dict(watched.different) == {}
    assert len(watched.compared) > 50


def test_pointwise_ops_work_element_by_element(watched):
    assert dict(watched.not_pointwise) == {}


BATCH = (torch.randn(2, 3, 4), None, None)
STATISTICS_OPS = {
    "native_batch_norm": lambda mean, var: aten.native_batch_norm.default(*BATCH, mean, var, True, 0.1, 1e-5),
    "native_batch_norm.out": lambda mean, var: aten.native_batch_norm.out(
        *BATCH,
        mean,
        var,
        True,
        0.1,
        1e-5,
        out=torch.empty(2, 3, 4),
        save_mean=torch.empty(3),
        save_invstd=torch.empty(3),
    ),
    "batch_norm_update_stats": lambda mean, var: aten.batch_norm_update_stats.default(
        BATCH[0], mean, var, 0.1
    ),
    "batch_norm_update_stats.out": lambda mean, var: aten.batch_norm_update_stats.out(
        BATCH[0], mean, var, 0.1, out0=torch.empty(3), out1=torch.empty(3)
    ),
    "_native_batch_norm_legit": lambda mean, var: aten._native_batch_norm_legit.default(
        *BATCH, mean, var, True, 0.1, 1e-5
    ),
    "_batch_norm_with_update": lambda mean, var: aten._batch_norm_with_update.default(
        *BATCH, mean, var, 0.1, 1e-5
    ),
}


@pytest.mark.parametrize("name", STATISTICS_OPS)
def test_ops_that_update_statistics_say_so(name):
    watch = Watch()
    with watch, torch.no_grad():
        STATISTICS_OPS[name](torch.zeros(3), torch.ones(3))
    assert {k: n for k, n in watch.lies.items() if n} == {}


@pytest.mark.parametrize("name", STATISTICS_OPS)
def test_statistics_are_updated_in_their_place_in_the_program(name):
    def program(mean, var):
        before = mean * 2
        STATISTICS_OPS[name](mean, var)
        own = torch.zeros(3)
        STATISTICS_OPS[name](own, var)
        return before, mean * 2, own

    assert_parity(program, lambda: (torch.zeros(3), torch.ones(3)))


def test_table_of_lies_holds_only_lies():
    for overload in SCHEMAS_THAT_LIE:
        marked = [
            arg.name
            for arg in overload._schema.arguments
            if arg.alias_info is not None and arg.alias_info.is_write
        ]
        assert not {"running_mean", "running_var"} & set(marked)
