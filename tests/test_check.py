"""The well-formedness check, on traces built by hand that are wrong in one thing each."""
from dataclasses import replace

import pytest
import torch

import tracejit
from tracejit.ir.check import check_trace, neighbours
from tracejit.ir.trace import SourceLine

from cases.handmade import USER, aten, call, copy_, region, tensor, trace

x = tensor("x", (3,), 0)


def chain(count):
    """Calls v0 = x * 2, v1 = v0 * 2, ..., each on a user line of its own."""
    made, last = [], x
    for n in range(count):
        out = tensor(f"v{n}", (3,), 10 + n)
        made.append(call(aten.mul.Tensor, (last, 2), out, source=replace(USER, line=20 + n)))
        last = out
    return made


def refusal(made, where="/home/user/model.py:22"):
    with pytest.raises(tracejit.TraceError) as info:
        check_trace(made)
    assert info.value.where == where and where in str(info.value)
    assert f"stage {made.stage}: " in str(info.value)
    return str(info.value)


def test_well_formed_trace_comes_back():
    calls = chain(5)
    made = trace([x], *calls, copy_(x, calls[-1].output), output=[calls[2].output, x, 3])
    assert check_trace(made) is made


def test_well_formed_region_comes_back():
    calls = chain(3)
    check_trace(trace([x], region("r", *calls), output=[calls[1].output]))


def test_use_before_binding():
    calls = chain(5)
    text = refusal(trace([x], calls[0], calls[2], calls[1], calls[3], calls[4]))
    assert "v1 is used before it is bound" in text


def test_message_shows_two_neighbours_on_each_side_and_marks_the_call():
    calls = chain(6)
    unknown = call(aten.add.Tensor, (x, tensor("nowhere", (3,), 99)), calls[2].output, source=calls[2].source)
    text = refusal(trace([x], *calls[:2], unknown, *calls[3:]))
    assert "nowhere is used before it is bound" in text
    shown = [line for line in text.splitlines() if "torch.ops.aten" in line]
    assert [line[0] for line in shown] == [" ", " ", ">", " ", " "]
    assert [line[2:4] for line in shown] == ["v0", "v1", "v2", "v3", "v4"]
    assert "v2 = torch.ops.aten.add.Tensor(x, nowhere)    # v2: f32[3]  <- model.py:22" in shown[2]


def test_neighbours_at_the_ends():
    made = trace([x], *chain(2))
    assert [line[0] for line in neighbours(made, 0).splitlines()] == [">", " "]
    assert [line[0] for line in neighbours(made, 1).splitlines()] == [" ", ">"]


def test_bound_twice():
    calls = chain(3)
    again = call(aten.add.Tensor, (x, 1), tensor("v0", (3,), 77), source=calls[2].source)
    assert "v0 is bound twice" in refusal(trace([x], calls[0], calls[1], again))


def test_the_very_same_name_bound_again():
    calls = chain(3)
    again = call(aten.add.Tensor, (x, 1), calls[0].output, source=calls[2].source)
    assert "bound twice" in refusal(trace([x], calls[0], calls[1], again))


def test_a_call_that_hands_back_its_argument_binds_nothing():
    check_trace(trace([x], copy_(x, chain(1)[0].args[0]), call(aten.add_.Tensor, (x, 1), x), output=[x]))


def test_input_bound_again():
    bound = call(aten.mul.Tensor, (x, 2), tensor("x", (3,), 55), source=replace(USER, line=22))
    assert "x is bound twice" in refusal(trace([x], bound))


def test_two_inputs_of_one_name():
    with pytest.raises(tracejit.TraceError, match="two inputs are named x"):
        check_trace(trace([x, tensor("x", (3,), 1)]))


def test_two_different_proxies_of_one_name():
    impostor = call(
        aten.mul.Tensor, (tensor("x", (3,), 0), 2), tensor("v", (3,), 5), source=replace(USER, line=22)
    )
    assert "x is another x than the one bound" in refusal(trace([x], impostor))


@pytest.mark.parametrize(
    "result", [tensor("nowhere", (3,), 4), tensor("x", (3,), 0)], ids=["unknown", "another x"]
)
def test_unknown_result(result):
    with pytest.raises(tracejit.TraceError, match=f"stage final: the result {result.name} is bound nowhere"):
        check_trace(trace([x], *chain(2), output=[x, result]))


@pytest.mark.parametrize("wrong", [torch.add, "aten.add", None])
def test_what_is_no_symbol(wrong):
    calls = chain(3)
    broken = replace(calls[2], sym=wrong)
    with pytest.raises(tracejit.TraceError, match="is not a Symbol") as info:
        check_trace(trace([x], *calls[:2], broken))
    assert "v1 = torch.ops.aten.mul.Tensor(v0, 2)" in str(info.value) and "model.py:22" in str(info.value)


def test_symbol_that_cannot_be_called():
    calls = chain(3)
    broken = replace(calls[2], sym=replace(calls[2].sym, fn=None))
    with pytest.raises(tracejit.TraceError, match="is not a Symbol that can be called"):
        check_trace(trace([x], *calls[:2], broken))


@pytest.mark.parametrize(
    "metadata, said",
    [
        ({"stride": (1, 1)}, "v2 has shape"),
        ({"shape": (-1,)}, "v2 has shape"),
        ({"shape": (3.0,)}, "v2 has shape"),
        ({"dtype": float}, "v2 has no dtype"),
    ],
)
def test_metadata_that_no_tensor_has(metadata, said):
    calls = chain(3)
    broken = replace(calls[2], output=replace(calls[2].output, **metadata))
    assert said in refusal(trace([x], *calls[:2], broken))


def test_inside_a_region_names_are_bound_before_they_are_used_too():
    calls = chain(3)
    wrong = region("r", calls[2], calls[1])
    with pytest.raises(tracejit.TraceError):
        check_trace(trace([x], calls[0], wrong))


def test_nowhere_is_a_place():
    broken = call(
        aten.mul.Tensor, (tensor("nowhere", (3,), 9), 2), tensor("v", (3,), 5), source=SourceLine("", 0)
    )
    with pytest.raises(tracejit.TraceError, match="nowhere is used before it is bound") as info:
        check_trace(trace([x], broken))
    assert info.value.where == "" and "\n  at " not in str(info.value)
