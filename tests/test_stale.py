"""Python values that a function reads may not go stale: after any change the next call is eager's."""
import dataclasses
import functools
import types

import pytest
import torch
import torch.nn.functional as F

import tracejit

from cases.stale import attribute, check_change, x3

ONE = 1
NUMBER, RATE, NAME, TABLE, PAIR, ROWS = 2, 0.5, "relu", {"scale": 3.0}, (1, 2), [1.0, 2.0]
SETTINGS = types.SimpleNamespace(inner=types.SimpleNamespace(gain=2.0, mode="add"))
MODULE = types.ModuleType("settings_module")
MODULE.gain = 2.0
FLAGS = {"plus"}


@dataclasses.dataclass
class Config:
    gain: float = 2.0
    bias: bool = True


CONFIG = Config()


class WithClassAttribute:
    gain = 2.0


def global_name(name):
    return functools.partial(globals().__setitem__, name)


def reads_number(x):
    return x * NUMBER


def reads_rate(x):
    return x * RATE


def reads_name(x):
    return getattr(torch, NAME)(x)


def reads_table(x):
    return x * TABLE["scale"]


def reads_pair(x):
    return x * PAIR[0] + PAIR[1]


def reads_list(x):
    return x * sum(ROWS)


@pytest.mark.parametrize("fn, name, new", [
    (reads_number, "NUMBER", 5), (reads_number, "NUMBER", 2.5), (reads_rate, "RATE", 0.25),
    (reads_name, "NAME", "exp"), (reads_table, "TABLE", {"scale": 4.0}), (reads_pair, "PAIR", (3, 4)),
    (reads_list, "ROWS", [1.0, 2.0, 3.0]),
])
def test_global_rebound(fn, name, new):
    check_change(fn, global_name(name), globals()[name], new)


def test_number_that_changes_only_its_type():
    def fills(x):
        return torch.full((3,), NUMBER)

    check_change(fills, global_name("NUMBER"), 2, 2.0, differs=False)


def test_flag_that_equals_a_number():
    def program(x):
        return x + 1 if ONE is True else x - 1

    check_change(program, global_name("ONE"), 1, True)


def test_dict_entry_changed_in_place():
    check_change(reads_table, functools.partial(TABLE.__setitem__, "scale"), 3.0, 7.0)


def test_dict_that_gains_an_entry():
    def program(x):
        for factor in TABLE.values():
            x = x * factor
        return x

    def write(extra):
        TABLE.update(extra) if extra else TABLE.pop("more", None)

    check_change(program, write, {}, {"more": 2.0})


def test_list_changed_in_place():
    def write(values):
        ROWS[:] = values

    check_change(reads_list, write, [1.0, 2.0], [1.0, 5.0])


def test_list_that_grows():
    def program(x):
        for row in ROWS:
            x = x + row
        return x

    def write(values):
        ROWS[:] = values

    check_change(program, write, [1.0, 2.0], [1.0, 2.0, 3.0])


def test_nested_attribute():
    def program(x):
        return x * SETTINGS.inner.gain if SETTINGS.inner.mode == "mul" else x + SETTINGS.inner.gain

    check_change(program, attribute(SETTINGS.inner, "gain"), 2.0, 5.0)
    check_change(program, attribute(SETTINGS.inner, "mode"), "add", "mul")


def test_intermediate_object_replaced():
    def program(x):
        return x + SETTINGS.inner.gain

    check_change(program, attribute(SETTINGS, "inner"), SETTINGS.inner, types.SimpleNamespace(gain=9.0, mode="add"))


def test_module_attribute():
    def program(x):
        return x * MODULE.gain

    check_change(program, attribute(MODULE, "gain"), 2.0, 3.0)


def test_config_object():
    def program(x):
        return x * CONFIG.gain + (1 if CONFIG.bias else 0)

    check_change(program, attribute(CONFIG, "gain"), 2.0, 3.0)
    check_change(program, attribute(CONFIG, "bias"), True, False)


def test_class_attribute():
    def program(x):
        return x * WithClassAttribute.gain

    thing = WithClassAttribute()

    def through_an_instance(x):
        return x * thing.gain

    for fn in (program, through_an_instance):
        check_change(fn, attribute(WithClassAttribute, "gain"), 2.0, 3.0)


def test_instance_attribute_that_shadows_the_class():
    thing = WithClassAttribute()

    def program(x):
        return x * thing.gain

    def write(value):
        thing.__dict__.update(gain=value) if value else thing.__dict__.pop("gain", None)

    check_change(program, write, None, 5.0)


def test_property_and_method_of_an_object():
    class Schedule:
        def __init__(self):
            self.base = 1.0

        @property
        def rate(self):
            return self.base * 2

        def at(self, t):
            return self.base * t

    schedule = Schedule()

    def program(x):
        return x * schedule.rate + schedule.at(3)

    check_change(program, attribute(schedule, "base"), 1.0, 4.0)


def test_closure_cell():
    gain = 2.0

    def program(x):
        return x * gain

    def write(value):
        nonlocal gain
        gain = value

    check_change(program, write, 2.0, 3.0)


def test_closure_of_a_helper():
    gain = 2.0

    def helper(x):
        return x * gain

    def program(x):
        return helper(x) + 1

    def write(value):
        nonlocal gain
        gain = value

    check_change(program, write, 2.0, 3.0)


def test_helper_function_rebound():
    SETTINGS.helper = torch.neg

    def program(x):
        return SETTINGS.helper(x)

    check_change(program, attribute(SETTINGS, "helper"), torch.neg, torch.abs)
    one, two = lambda x: x + 1, lambda x: x + 2  # noqa: E731
    SETTINGS.helper = one
    check_change(program, attribute(SETTINGS, "helper"), one, two)


def test_global_function_rebound():
    def program(x):
        return helper_for_rebinding(x)

    check_change(program, global_name("helper_for_rebinding"), helper_for_rebinding, torch.neg)


def helper_for_rebinding(x):
    return x * 3


def test_default_argument():
    def program(x, gain=2.0):
        return x * gain

    check_change(program, attribute(program, "__defaults__"), (2.0,), (3.0,))


def test_keyword_only_default():
    def program(x, *, gain=2.0):
        return x * gain

    check_change(program, attribute(program, "__kwdefaults__"), {"gain": 2.0}, {"gain": 3.0})


def test_mutable_default():
    def program(x, gains=[2.0]):  # noqa: B006
        return x * sum(gains)

    def write(values):
        program.__defaults__[0][:] = values

    check_change(program, write, [2.0], [2.0, 3.0])


def test_tensor_default_written_between_calls():
    def program(x, bias=torch.zeros(3)):
        return x + bias

    check_change(program, program.__defaults__[0].fill_, 0.0, 4.0)


def test_partial_arguments():
    def program(x, gain, bias=0.0):
        return x * gain + bias

    box = {"gain": 2.0}
    jitted = {g: tracejit.jit(functools.partial(program, gain=g, bias=1.0), fallback="error") for g in (2.0, 3.0)}
    for gain in (2.0, 3.0, 2.0):
        box["gain"] = gain
        assert torch.equal(jitted[gain](x3()), program(x3(), gain, 1.0))
    mutable = functools.partial(program, gain=2.0)
    jfn = tracejit.jit(mutable, fallback="error")
    assert torch.equal(jfn(x3()), program(x3(), 2.0))
    mutable.keywords["gain"] = 5.0
    assert torch.equal(jfn(x3()), program(x3(), 5.0))
    assert torch.equal(jfn(x3(), gain=7.0), program(x3(), 7.0))


def test_partial_over_a_tensor():
    bias = torch.ones(3)
    partial = functools.partial(torch.add, bias)
    check_change(lambda x: partial(x), bias.fill_, 1.0, 4.0)


def test_environment_read_through_a_global_set():
    def program(x):
        return x + 1 if "plus" in FLAGS else x - 1

    def write(on):
        FLAGS.add("plus") if on else FLAGS.discard("plus")

    check_change(program, write, True, False)


def test_functional_namespace_patched():
    original = F.relu

    def program(x):
        return F.relu(x)

    check_change(program, attribute(F, "relu"), original, torch.neg)
