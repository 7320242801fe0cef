"""What symbols say: effects read from schemas, errors on values, functional forms."""
import pytest
import torch

from tracejit.ir.symbol import Symbol, aten_symbol
from tracejit.ir.torch_names import _plain_name, torch_name

from cases.handmade import aten, call, tensor
from cases.parity import assert_parity

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def written(b):
    """Names of what a call writes."""
    return [w.name for w in b.written]


def f32(name, storage=None, **layout):
    return tensor(name, (3,), 100 + sum(map(ord, name)) if storage is None else storage, **layout)


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
        assert (
            written(call(aten.native_batch_norm.default, (x, None, None, *stats, training, 0.1, 1e-5)))
            == said
        )
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
    assert (
        aten_symbol(aten.add.Tensor).pointwise
        and aten_symbol(aten.fill_.Scalar).pointwise
        and aten_symbol(aten.copy_.default).pointwise
    )
    assert not aten_symbol(aten.cumsum.default).pointwise and not aten_symbol(aten.flip.default).pointwise
    assert (
        aten_symbol(aten.unsqueeze_.default).moves_metadata
        and aten_symbol(aten.resize_.default).moves_metadata
    )
    assert not aten_symbol(aten.unsqueeze.default).moves_metadata
    assert aten_symbol(aten.bernoulli_.float).random and aten_symbol(aten.native_dropout.default).random
    assert not aten_symbol(aten.add.Tensor).random
    assert (
        aten_symbol(aten.add.Tensor).packet == "add"
        and aten_symbol(aten.add.Tensor).name == "aten.add.Tensor"
    )
    assert aten_symbol(aten.copy_.default).is_copy and not aten_symbol(aten.copy.default).is_copy


@pytest.mark.parametrize(
    "op, dtypes, raises",
    [
        (aten.index.Tensor, [torch.float32, torch.int64], True),
        (aten.gather.default, [torch.float32, torch.int64], True),
        (aten.embedding.default, [torch.float32, torch.int64], True),
        (aten._index_put_impl_.default, [torch.float32, torch.int64], True),
        (aten.remainder.Tensor, [torch.int64], True),
        (aten.remainder.Tensor, [torch.float32], False),
        (aten.div.Tensor_mode, [torch.int32], True),
        (aten.div.Tensor, [torch.float32, torch.float64], False),
        (aten.linalg_cholesky_ex.default, [torch.float32], True),
        (aten.multinomial.default, [torch.float32], True),
        (aten.add.Tensor, [torch.int64], False),
        (aten.mm.default, [torch.float32], False),
        (aten.clone.default, [torch.bool], False),
    ],
)
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
    "scatter_reduce": (
        lambda t, i, s: t.scatter_reduce(0, i, s, "sum"),
        lambda: (floats(1, 2), ints(7), floats(1)),
    ),
    "put": (lambda t, i, s: t.put(i, s), lambda: (floats(1, 2), ints(7), floats(1))),
    "masked_scatter": (torch.masked_scatter, lambda: (floats(0, 0, 0), ints(1, 1, 1).bool(), floats(1))),
    "histc": (torch.histc, lambda: (floats(1, "inf"),)),
    "histogram": (lambda t: torch.histogram(t, 4).hist, lambda: (floats(1, "inf"),)),
    "histogramdd": (lambda t: torch.histogramdd(t, [2, 2]).hist, lambda: (torch.full((2, 2), float("inf")),)),
    "poisson": (torch.poisson, lambda: (floats(-1),)),
    "normal": (lambda s: torch.normal(0.0, s), lambda: (floats(-1),)),
    "max_unpool2d": (
        lambda t, i: F.max_unpool2d(t, i, 2),
        lambda: (torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), 99)),
    ),
    "multi_margin_loss": (F.multi_margin_loss, lambda: (torch.ones(2, 3), ints(5, 7))),
    "multilabel_margin_loss": (F.multilabel_margin_loss, lambda: (torch.ones(2, 3), torch.full((2, 3), 9))),
    "binary_cross_entropy": (F.binary_cross_entropy, lambda: (floats(3, 3), floats(1, 1))),
    "searchsorted": (
        lambda s, v, o: torch.searchsorted(s, v, sorter=o),
        lambda: (floats(1, 2), floats(1), ints(7, 9)),
    ),
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
        assert [arg.name for arg in schema.arguments] == [
            arg.name for arg in own.arguments if not (arg.kwarg_only and arg in marked)
        ]
        assert [str(r.type) for r in schema.returns] == [str(arg.type) for arg in marked], overload
        assert not any(item.alias_info for item in (*schema.arguments, *schema.returns)), overload
        assert not aten_symbol(overload).random
    assert found > 500


@pytest.mark.parametrize("name", ["sum", "mean", "nansum", "cumsum", "cumprod"])
def test_wider_out_argument_widens_the_accumulation(name):
    def program(t):
        out = torch.zeros((1, 1) if name in ("sum", "mean", "nansum") else (1, 1000), dtype=torch.float64)
        getattr(torch, name)(t, 1, **({"keepdim": True} if out.numel() == 1 else {}), out=out)
        return out * 1

    torch.manual_seed(0)
    sample = torch.rand(1, 1000)
    assert_parity(program, lambda: (sample.clone(),))


def test_functions_have_the_names_that_torch_gives_them():
    functions = torch.overrides._get_overridable_functions()[1]
    told = {theirs: _plain_name(func) for func, theirs in functions.items()}
    others = {"torch.nn.functional._sym_int", "torch.spmm", "torch.hspmm", "torch.sspaddmm", "torch.nn.functional._Any"}     # one of several
    assert {theirs for theirs, ours in told.items() if ours not in (theirs, None)} <= others
    common = ["torch.relu", "torch.nn.functional.gelu", "torch.Tensor.add", "torch.Tensor.__getitem__", "torch.Tensor.shape.__get__"]
    assert [told[name] for name in common] == common
    assert torch_name(torch.linalg.inv) == "torch.linalg.inv" and torch_name(written) is None
