"""`tracejit.Fusion`: what is defined call by call is one kernel, shared by equal definitions; errors say what to do."""
import pytest
import torch

import tracejit

pytestmark = pytest.mark.compiler


def relu_of(ndim=2, dtype=torch.float32):
    with tracejit.Fusion() as f:
        x = f.tensor(ndim=ndim, dtype=dtype)
        f.output(f.ops.relu(x))
    return f


def line_of(mark):
    with open(__file__) as file:
        [line] = [n for n, text in enumerate(file, 1) if text.rstrip().endswith(f"# {mark}")]
    return f"test_fusion.py:{line}"


# ------------------------------------------------------------ what it computes

def test_a_pointwise_definition_is_one_region_for_every_shape():
    with tracejit.Fusion() as f:
        x, y, s = f.tensor(ndim=2), f.tensor(ndim=1), f.scalar(float)
        z = f.ops.relu(f.ops.add(x, y, alpha=2))
        f.output(f.ops.mul(z, s))
    for rows in (3, 5):
        x, y = torch.randn(8, rows).t(), torch.randn(8)
        assert torch.equal(f(x, y, 3), torch.relu(torch.add(x, y, alpha=2)) * 3.0)
        assert [b.is_region for b in f.last_traces[-1].bound_symbols] == [True]
    assert len(f.kernels) == 1 and f.cache_info().fallbacks == 0


def test_a_single_call_is_a_kernel():
    f = relu_of()
    assert torch.equal(f(torch.ones(2, 3)), torch.ones(2, 3)) and len(f.kernels) == 1


def test_ops_give_as_many_values_as_their_schemas_say():
    with tracejit.Fusion() as f:
        x = f.tensor(ndim=2)
        variance, mean = f.ops.var_mean(x, [1], keepdim=True)
        value, where = f.ops.max(x, 1)
        halves = f.ops.split(x, 2, 1)
        for v in (f.ops.sub(x, mean), variance, value, where, f.ops.max(x), halves[1], f.ops.cat([halves[1], x], 1)):
            f.output(v)
    x = torch.randn(3, 4)
    v, m = torch.var_mean(x, [1], keepdim=True)
    expected = (x - m, v, *torch.max(x, 1), x.max(), x[:, 2:], torch.cat([x[:, 2:], x], 1))
    for a, b in zip(f(x), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_an_output_into_an_input_is_written_there_where_it_stands():
    with tracejit.Fusion() as f:
        x, y = f.tensor(ndim=1), f.tensor(ndim=1)
        f.output(f.ops.add(x, y), into=x)
        f.output(f.ops.mul(x, 2))
    x, y = torch.ones(3), torch.arange(3.0)
    assert f(x, y).tolist() == [2, 4, 6] and x.tolist() == [1, 2, 3]
    assert len(f.kernels) == 1 and f.last_traces[-1].count("copy_") == 1


def test_what_only_writes_returns_nothing():
    with tracejit.Fusion() as f:
        x = f.tensor(ndim=1)
        f.ops.relu_(f.ops.select(x, 0, 1))
    x = -torch.ones(3)
    assert f(x) is None and x.tolist() == [-1, 0, -1]


def test_gradients_are_eagers():
    with tracejit.Fusion() as f:
        x = f.tensor(ndim=1)
        f.output(f.ops.mul(f.ops.sin(x), x))
    x, same = (torch.arange(3.0).requires_grad_() for _ in range(2))
    f(x).sum().backward()
    (same.sin() * same).sum().backward()
    torch.testing.assert_close(x.grad, same.grad)


# ------------------------------------------------------------ records

def test_equal_definitions_share_their_kernels_whatever_their_names():
    f = relu_of()
    with tracejit.Fusion() as g:
        other_name = g.tensor(ndim=2)
        y = g.ops.relu(other_name)
        g.output(y)
    f(torch.ones(2, 7)), g(torch.ones(2, 7))
    assert f.kernels[0].region is g.kernels[0].region and f.cache_info() == g.cache_info()


@pytest.mark.parametrize("number", [1.0, True, 2])
def test_definitions_that_differ_in_a_constant_or_an_option_share_nothing(number):
    def times(n, **options):
        with tracejit.Fusion(**options) as f:
            f.output(f.ops.mul(f.tensor(ndim=1, dtype=torch.int64), n))
        return f
    x = torch.arange(3)
    for a, b in ((times(1), times(number)), (times(1), times(1, numerics="fast"))):
        assert a(x).dtype is (x * 1).dtype and b(x).dtype is (x * (number if a.options == b.options else 1)).dtype
        assert a.kernels[0].region is not b.kernels[0].region


def test_it_prints_as_the_program_with_the_users_names_and_lines():
    with tracejit.Fusion("scaled") as f:
        x = f.tensor(ndim=2, dtype=torch.bfloat16)
        scale = f.scalar(float)
        scaled = f.ops.mul(x, scale)                           # multiplied
        f.output(scaled, into=x)                               # written
        f.output(f.ops.sum(scaled, [0], dtype=torch.float32))  # summed
    assert str(f) == f"""\
# x: torch.bfloat16 of 2 dims
# scale: a Python float
def scaled(x, scale):
    t0 = torch.ops.aten.mul(x, scale)    # {line_of('multiplied')}
    torch.ops.aten.copy_(x, t0)    # {line_of('written')}
    t2 = torch.ops.aten.sum(t0, [0], dtype=torch.float32)    # {line_of('summed')}
    return t2
"""
    f(torch.ones(2, 2, dtype=torch.bfloat16), 2)
    assert set(f.kernels[0].lines) == {line_of("multiplied"), line_of("written"), line_of("summed")}


# ------------------------------------------------------------ errors

def error_of(kind, fn):
    with pytest.raises(kind) as info:
        fn()
    return str(info.value)


@pytest.mark.parametrize("args", [(torch.ones(2),), (torch.ones(2, 2, dtype=torch.float64),), (1.0,)],
                         ids=["dims", "dtype", "no tensor"])
def test_an_argument_that_is_not_as_defined_is_refused(args):
    message = error_of(TypeError, lambda: relu_of()(*args))
    assert "argument 0" in message and "torch.float32 of 2 dims (test_fusion.py:" in message and "convert it" in message


@pytest.mark.parametrize("kind, bad", [(int, 1.0), (int, True), (bool, 1), (float, True), (float, "text")])
def test_a_number_of_another_type_is_refused(kind, bad):
    with tracejit.Fusion() as f:
        f.output(f.ops.mul(f.tensor(ndim=1), f.scalar(kind)))
    assert f"a Python {kind.__name__}" in error_of(TypeError, lambda: f(torch.ones(2), bad))


def test_another_number_of_arguments_is_refused():
    assert "takes 1 arguments" in error_of(TypeError, lambda: relu_of()())


def test_an_op_that_does_not_exist_is_named_with_the_nearest_that_does():
    with tracejit.Fusion() as f:
        x = f.tensor(ndim=1)
        assert "'rellu'" in (message := error_of(AttributeError, lambda: f.ops.rellu)) and "'relu'" in message
        assert not hasattr(f.ops, "no_op_is_called_so")
        f.output(x)


def test_a_call_that_no_schema_takes_shows_the_schemas():
    with tracejit.Fusion() as f:
        x = f.tensor(ndim=1)
        for call in (lambda: f.ops.relu(3), lambda: f.ops.relu(x, x), lambda: f.ops.relu(x, inplace=True), f.ops.relu):
            assert "aten::relu(Tensor self) -> Tensor" in error_of(tracejit.TraceError, call)
        f.output(x)


def test_values_of_others_are_refused_with_the_line():
    with tracejit.Fusion() as other:
        strange = other.tensor(ndim=1)
        other.output(strange)
    with tracejit.Fusion() as f:
        x = f.tensor(ndim=1)
        for call in (lambda: f.output(strange), lambda: f.output(torch.ones(1)), lambda: f.output(x, into=strange),
                     lambda: f.ops.add(x, strange), lambda: f.ops.cat([x, torch.ones(1)]), lambda: x[0]):
            message = error_of(tracejit.TraceError, call)
            assert "\n  at " in message and "test_fusion.py:" in message
        f.output(x)


def test_a_definition_is_written_inside_of_its_block_and_called_after_it():
    f = relu_of()
    assert "define another" in error_of(tracejit.TraceError, lambda: f.tensor(ndim=1))
    assert "make another" in error_of(tracejit.TraceError, f.__enter__)
    assert "with tracejit.Fusion()" in error_of(tracejit.TraceError, lambda: tracejit.Fusion().scalar())
    with tracejit.Fusion() as g:
        x = g.tensor(ndim=1)
        assert "after its `with` block" in error_of(tracejit.TraceError, lambda: g(torch.ones(1)))
        g.output(x)


def test_a_definition_without_outputs_is_refused():
    def forgets_its_output():
        with tracejit.Fusion() as f:
            f.ops.relu(f.tensor(ndim=1))
    assert "f.output(value)" in error_of(tracejit.TraceError, forgets_its_output)


@pytest.mark.parametrize("options", [{"fulgraph": True}, {"name": "not a name"}, {"numerics": "sloppy"}])
def test_wrong_options_are_refused_where_they_are_given(options):
    assert next(iter(options)) in error_of(TypeError, lambda: tracejit.Fusion(**options))


def test_an_exception_in_the_block_is_the_users():
    with pytest.raises(ZeroDivisionError), tracejit.Fusion() as f:
        f.output(f.ops.mul(f.tensor(ndim=1), 1 / 0))
