"""What symbols say about memory, against what the ops do: bytes before and after, and results of the functional forms."""
import zlib
from collections import defaultdict

import pytest
import torch
from torch.testing._internal import common_methods_invocations as database
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from tracejit.ir.symbol import SCHEMAS_THAT_LIE, Symbol, aten_symbol

from cases.compare import clone_call, equal_bits
from cases.handmade import aten, call, tensor
from cases.parity import assert_parity

FOREACH = [op for name in ("unary", "binary", "pointwise", "reduce", "other") for op in getattr(database, f"foreach_{name}_op_db")]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def written(b):
    """Names of what a call writes."""
    return [w.name for w in b.written]


def f32(name, storage=None, **layout):
    return tensor(name, (3,), hash(name) % 1000 if storage is None else storage, **layout)


x, y, a, b = (f32(name, n) for n, name in enumerate("xyab"))


# ------------------------------------------------------------------ writes

def test_writes_are_told_by_position():
    assert aten_symbol(aten.add_.Tensor).written((x, x), {}) == (0,)
    assert aten_symbol(aten.add_.Tensor).written((x, y), {"alpha": 2}) == (0,)
    assert written(call(aten.add.Tensor, (x, y))) == []
    assert written(call(aten.copy_.default, (x, y))) == ["x"]


def test_writes_of_out_arguments_and_lists():
    assert written(call(aten.add.out, (x, y), out=a)) == ["a"]
    assert aten_symbol(aten.max.dim_max).written((x, 0), {"max": a, "max_values": b}) == (2, 3)
    assert written(call(aten._foreach_add_.List, ([x, y], [a, b]))) == ["x", "y"]
    assert aten_symbol(aten._foreach_add_.List).written(([x, y], [x, y]), {}) == (0, 1)
    assert written(call(aten._foreach_add.List_out, ([x, y], [x, y]), out=[a, b])) == ["a", "b"]
    assert written(call(aten._fused_sgd_.default, ([x], [y], [a]), weight_decay=0.0)) == ["x", "y", "a"]


def test_positions_count_leaves_of_nested_arguments():
    assert aten_symbol(aten.index_put_.default).written((x, [None, y], a), {}) == (0,)
    assert aten_symbol(aten.cat.out).written(([x, y, a], 0), {"out": b}) == (4,)


def test_batch_norm_writes_its_statistics_in_training_alone():
    stats = (f32("mean", 8), f32("var", 9))
    for training, said in ((True, ["mean", "var"]), (False, [])):
        assert written(call(aten.native_batch_norm.default, (x, None, None, *stats, training, 0.1, 1e-5))) == said
    assert written(call(aten.native_batch_norm.default, (x, None, None, None, None, True, 0.1, 1e-5))) == []


def test_symbol_without_a_schema_writes_what_it_declares():
    assert Symbol("own", print, writes_to=(1,)).written((x, y, a), {}) == (1,)
    assert Symbol("own", print, writes_to=(1,)).written(([x, y], a), {}) == (2,)
    assert Symbol("own", print).written((x,), {}) == ()


def test_custom_op_writes_what_its_schema_says():
    with torch.library._scoped_library("tracejit_test", "FRAGMENT") as library:
        library.define("scale_(Tensor(a!) x, Tensor y, *, Tensor(b!)? out=None) -> ()")
        overload = torch.ops.tracejit_test.scale_.default
        assert aten_symbol(overload).written((x, y), {"out": a}) == (0, 2)
        assert aten_symbol(overload).written((x, y), {"out": None}) == (0,)
        assert aten_symbol(overload).functional() is None and not aten_symbol(overload).pointwise


# ------------------------------------------------------------------ other traits

def test_traits():
    assert aten_symbol(aten.add.Tensor).pointwise and aten_symbol(aten.fill_.Scalar).pointwise and aten_symbol(aten.copy_.default).pointwise
    assert not aten_symbol(aten.cumsum.default).pointwise and not aten_symbol(aten.flip.default).pointwise
    assert aten_symbol(aten.unsqueeze_.default).moves_metadata and aten_symbol(aten.resize_.default).moves_metadata
    assert not aten_symbol(aten.unsqueeze.default).moves_metadata
    assert aten_symbol(aten.bernoulli_.float).random and aten_symbol(aten.native_dropout.default).random
    assert not aten_symbol(aten.add.Tensor).random
    assert aten_symbol(aten.add.Tensor).packet == "add" and aten_symbol(aten.add.Tensor).name == "aten.add.Tensor"
    assert aten_symbol(aten.copy_.default).is_copy and not aten_symbol(aten.copy.default).is_copy


@pytest.mark.parametrize("op, dtypes, raises", [
    (aten.index.Tensor, [torch.float32, torch.int64], True), (aten.gather.default, [torch.float32, torch.int64], True),
    (aten.embedding.default, [torch.float32, torch.int64], True), (aten._index_put_impl_.default, [torch.float32, torch.int64], True),
    (aten.remainder.Tensor, [torch.int64], True), (aten.remainder.Tensor, [torch.float32], False),
    (aten.div.Tensor_mode, [torch.int32], True), (aten.div.Tensor, [torch.float32, torch.float64], False),
    (aten.linalg_cholesky_ex.default, [torch.float32], True), (aten.multinomial.default, [torch.float32], True),
    (aten.add.Tensor, [torch.int64], False), (aten.mm.default, [torch.float32], False), (aten.clone.default, [torch.bool], False)])
def test_may_raise_on_values(op, dtypes, raises):
    assert aten_symbol(op).may_raise(dtypes) == raises


def ints(*values):
    return torch.tensor(values)


def floats(*values):
    return torch.tensor([float(v) for v in values])


F = torch.nn.functional
RAISES = {
    "index": (lambda t, i: t[i], lambda: (floats(1, 2), ints(7))),
    "gather": (lambda t, i: t.gather(0, i), lambda: (floats(1, 2), ints(7))),
    "integer division": (lambda t, u: t // u, lambda: (ints(1), ints(0))),
    "bernoulli": (torch.bernoulli, lambda: (floats(3),)),
    "multinomial": (lambda p: torch.multinomial(p, 1), lambda: (floats(-3, 1),)),
    "cholesky": (torch.linalg.cholesky, lambda: (-torch.eye(2),)),
    "scatter_reduce": (lambda t, i, s: t.scatter_reduce(0, i, s, "sum"), lambda: (floats(1, 2), ints(7), floats(1))),
    "put": (lambda t, i, s: t.put(i, s), lambda: (floats(1, 2), ints(7), floats(1))),
    "masked_scatter": (torch.masked_scatter, lambda: (floats(0, 0, 0), ints(1, 1, 1).bool(), floats(1))),
    "histc": (torch.histc, lambda: (floats(1, "inf"),)),
    "histogram": (lambda t: torch.histogram(t, 4).hist, lambda: (floats(1, "inf"),)),
    "histogramdd": (lambda t: torch.histogramdd(t, [2, 2]).hist, lambda: (torch.full((2, 2), float("inf")),)),
    "poisson": (torch.poisson, lambda: (floats(-1),)),
    "normal": (lambda s: torch.normal(0.0, s), lambda: (floats(-1),)),
    "max_unpool2d": (lambda t, i: F.max_unpool2d(t, i, 2), lambda: (torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), 99))),
    "multi_margin_loss": (F.multi_margin_loss, lambda: (torch.ones(2, 3), ints(5, 7))),
    "multilabel_margin_loss": (F.multilabel_margin_loss, lambda: (torch.ones(2, 3), torch.full((2, 3), 9))),
    "binary_cross_entropy": (F.binary_cross_entropy, lambda: (floats(3, 3), floats(1, 1))),
    "searchsorted": (lambda s, v, o: torch.searchsorted(s, v, sorter=o), lambda: (floats(1, 2), floats(1), ints(7, 9))),
}


@pytest.mark.parametrize("name", RAISES)
def test_an_op_that_raises_on_values_shows_the_writes_before_it(name):
    op, make_args = RAISES[name]

    def program(memory, *args):
        memory.add_(1)
        result = op(*args)
        memory.mul_(4)
        return result

    with pytest.raises(Exception) as info:
        program(floats(0), *make_args())
    assert_parity(program, lambda: (floats(0), *make_args()), raises=info.type.__name__)


# ------------------------------------------------------------------ the op database

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
        if func.namespace != "aten" or any(t.layout != torch.strided or t.device.type != "cpu" for t in tensors):
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
        fresh = isinstance(result, torch.Tensor) and result.numel() > 1 and not any(t.is_conj() or t.is_neg() for t in tensors)
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
                self.different[name].append(f"{t.dtype} {tuple(t.shape)} by {plain.name}: {r.dtype} {tuple(r.shape)}")

    def shuffle(self, func, flat, spec, result):
        """Elements in another order give the results in that order."""
        order = torch.randperm(result.numel())
        shuffled = [t.expand(result.shape).reshape(-1)[order].reshape(result.shape) if isinstance(t, torch.Tensor) else t for t in flat]
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
                except Exception:  # whatever eager refuses is no call to compare: dtypes of out=, in-place shapes
                    continue
                with watch, torch.no_grad():
                    function(*args, **kwargs)


PARTS = 8


@pytest.fixture(scope="module")
def watched():
    """A stable eighth of the database under one watch for the tests below (the whole of it in the full run)."""
    import os
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
    assert len(watched.compared) > 60


def test_pointwise_ops_work_element_by_element(watched):
    assert dict(watched.not_pointwise) == {}


BATCH = (torch.randn(2, 3, 4), None, None)
STATISTICS_OPS = {
    "native_batch_norm": lambda mean, var: aten.native_batch_norm.default(*BATCH, mean, var, True, 0.1, 1e-5),
    "native_batch_norm.out": lambda mean, var: aten.native_batch_norm.out(
        *BATCH, mean, var, True, 0.1, 1e-5, out=torch.empty(2, 3, 4), save_mean=torch.empty(3), save_invstd=torch.empty(3)),
    "batch_norm_update_stats": lambda mean, var: aten.batch_norm_update_stats.default(BATCH[0], mean, var, 0.1),
    "batch_norm_update_stats.out": lambda mean, var: aten.batch_norm_update_stats.out(
        BATCH[0], mean, var, 0.1, out0=torch.empty(3), out1=torch.empty(3)),
    "_native_batch_norm_legit": lambda mean, var: aten._native_batch_norm_legit.default(*BATCH, mean, var, True, 0.1, 1e-5),
    "_batch_norm_with_update": lambda mean, var: aten._batch_norm_with_update.default(*BATCH, mean, var, 0.1, 1e-5),
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
        marked = [arg.name for arg in overload._schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]
        assert not {"running_mean", "running_var"} & set(marked)


# ------------------------------------------------------------------ functional forms of all of ATen

def overloads():
    for name in dir(aten):
        packet = getattr(aten, name)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            yield from (getattr(packet, o) for o in packet.overloads())


def test_functional_form_takes_the_same_arguments_and_returns_one_fresh_result_a_write():
    found = 0
    for overload in overloads():
        plain = aten_symbol(overload).functional()
        own = overload._schema
        marked = [arg for arg in own.arguments if arg.alias_info is not None and arg.alias_info.is_write]
        if plain is None or not marked:
            continue
        found += 1
        schema = plain.overload._schema
        assert [arg.name for arg in schema.arguments] == [arg.name for arg in own.arguments if not (arg.kwarg_only and arg in marked)]
        assert [str(r.type) for r in schema.returns] == [str(arg.type) for arg in marked], overload
        assert not any(item.alias_info for item in (*schema.arguments, *schema.returns)), overload
        assert not aten_symbol(overload).random
    assert found > 900


@pytest.mark.parametrize("name", ["sum", "mean", "nansum", "cumsum", "cumprod"])
def test_wider_out_argument_widens_the_accumulation(name):
    def program(t):
        out = torch.zeros((1, 1) if name in ("sum", "mean", "nansum") else (1, 1000), dtype=torch.float64)
        getattr(torch, name)(t, 1, **({"keepdim": True} if out.numel() == 1 else {}), out=out)
        return out * 1

    torch.manual_seed(0)
    sample = torch.rand(1, 1000)
    assert_parity(program, lambda: (sample.clone(),))
