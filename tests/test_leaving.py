"""What leaves a call, in its result or in what it stores, is what eager leaves."""
import collections
import dataclasses
import functools
import types

import pytest
import torch

import tracejit


class Items(list):
    pass


class Text(str):
    pass


class Slotted:
    __slots__ = ("value", "__dict__")

    def __init__(self, value):
        self.value = value


class Held:
    def __init__(self, value):
        self.value = value

    def get(self):
        return self.value


class Failed(Exception):
    pass


def text_with(value):
    text = Text("text")
    text.value = value
    return text


def class_over(value):
    class Local:
        inner = value
    return Local


MADE = {
    "closure": (lambda y: lambda: y, lambda r: r()),
    "function with a default": (lambda y: (lambda z=y: z), lambda r: r()),
    "partial": (lambda y: functools.partial(torch.abs, y), lambda r: r()),
    "method of a tensor": (lambda y: y.abs, lambda r: r()),
    "method of a list": (lambda y: [y].copy, lambda r: r()[0]),
    "method of an object": (lambda y: Held(y).get, lambda r: r()),
    "frozenset": (lambda y: frozenset([y]), lambda r: next(iter(r))),
    "key": (lambda y: {y: 1}, lambda r: next(iter(r))),
    "slice": (lambda y: slice(y, None), lambda r: r.start),
    "exception": (lambda y: Failed(y), lambda r: r.args[0]),
    "subclass of list": (lambda y: Items([y]), lambda r: r[0]),
    "subclass of dict": (lambda y: collections.Counter(a=y), lambda r: r["a"]),
    "subclass of str": (text_with, lambda r: r.value),
    "object with slots": (Slotted, lambda r: r.value),
    "class": (class_over, lambda r: r.inner),
    "object of a class of the call": (lambda y: class_over(y)(), lambda r: r.inner),
    "default of a dict": (lambda y: collections.defaultdict(lambda: y), lambda r: r["new"]),
}


@pytest.mark.parametrize("made, opened", MADE.values(), ids=MADE)
def test_what_the_call_makes_of_tensors_holds_those_of_its_call(made, opened):
    compiled = tracejit.jit(lambda x: made(x * 2), fallback="silent")
    for value in (1.0, 2.0):
        held = opened(compiled(torch.full((2,), value)))
        assert type(held) is torch.Tensor and held.tolist() == [2 * value] * 2
    with pytest.raises(tracejit.UnsupportedError, match="leaves it"):
        tracejit.jit(lambda x: made(x * 2), fallback="error")(torch.ones(2))


def test_a_function_that_the_call_makes_counts_for_itself():
    def program(x):
        count = []

        def counted():
            count.append(x.shape[0])
            return len(count)
        return counted

    compiled = tracejit.jit(program, fallback="silent")
    assert [compiled(torch.ones(2))() for _ in range(3)] == [1, 1, 1]


def test_functions_and_classes_that_were_there_before_leave_as_they_are():
    class Enclosing:
        pass

    def program(x):
        made = Enclosing()
        made.value = x * 2
        return made, Enclosing, text_with, torch.nn.functional.relu, torch.add, len, types.SimpleNamespace(a=x + 1), {torch.float32: x}

    compiled = tracejit.jit(program, fallback="error")
    for _ in range(2):
        made, *others, namespace, _ = compiled(torch.ones(2))
        assert type(made) is Enclosing and made.value.tolist() == [2, 2] and namespace.a.tolist() == [2, 2]
        assert others == [Enclosing, text_with, torch.nn.functional.relu, torch.add, len]


class Bare:
    pass


def bare(value):
    made = Bare()
    made.value = value
    return made


def test_an_object_from_a_helper_is_made_anew_at_each_call():
    compiled = tracejit.jit(lambda x: bare(x * 2), fallback="error")
    first, second = compiled(torch.ones(2)), compiled(torch.full((2,), 2.0))
    assert first is not second and first.value.tolist() == [2, 2] and second.value.tolist() == [4, 4]


@dataclasses.dataclass
class Pair:
    left: object
    right: object


def twice(made):
    return made, made


def appended(items):
    made = [items[0] * 2]
    items.append(made)
    made.append(3)
    return made


def stored(pair):
    pair.right = {"sum": pair.left.sum()}
    return [pair.right, pair.right]


def held(x):
    made = Held([x * 2])
    return made, made.value


HISTORY = [torch.zeros(2)]


def kept(x):
    HISTORY[:] = [x * 2]
    return HISTORY


def stored_tuple(items):
    items.append((items[0] * 2, [items[0]]))
    return items[-1], items[-1][1], (items[-1],)


SHARED = {
    "tuple put into an argument": (stored_tuple, lambda n: [torch.ones(n)], lambda r, a: r[0] is a[1] is r[2][0] and r[1] is a[1][1]),
    "tuple that holds a list twice": (lambda x: twice(twice([x * 2])), torch.ones, lambda r, a: r[0] is r[1] and r[0][0] is r[1][1]),
    "new list": (lambda x: twice([x * 2]), torch.ones, lambda r, a: r[0] is r[1]),
    "new dict": (lambda x: [*twice({"y": x * 2})], torch.ones, lambda r, a: r[0] is r[1]),
    "new object": (lambda x: twice(Held(x * 2)), torch.ones, lambda r, a: r[0] is r[1]),
    "list of an object": (held, torch.ones, lambda r, a: r[0].value is r[1]),
    "argument": (lambda items: [items.append(items[0] * 2), items][1], lambda n: [torch.ones(n)], lambda r, a: r is a),
    "within an argument": (lambda items: {"k": items[1]}, lambda n: [torch.ones(n), [torch.ones(n)]], lambda r, a: r["k"] is a[1]),
    "object argument": (lambda pair: pair, lambda n: Pair(torch.ones(n), 0), lambda r, a: r is a),
    "list put into an argument": (appended, lambda n: [torch.ones(n)], lambda r, a: r is a[1] and r[1] == 3),
    "dict put into an argument": (stored, lambda n: Pair(torch.ones(n), 0), lambda r, a: r[0] is r[1] is a.right),
    "global": (kept, torch.ones, lambda r, a: r is HISTORY and r[0].tolist() == (a * 2).tolist()),
}


@pytest.mark.parametrize("program, given, shares", SHARED.values(), ids=SHARED)
def test_containers_and_objects_are_the_same_where_eager_returns_the_same(program, given, shares):
    compiled = tracejit.jit(program, fallback="error")
    results = []
    for _ in range(3):
        argument = given(2)
        results.append(compiled(argument))
        assert shares(results[-1], argument)
    assert program is kept or results[1] is not results[2]


def test_an_object_of_the_call_that_leads_back_to_itself_is_not_captured():
    def program(x):
        made = Held(x * 2)
        made.itself = made
        return made

    with pytest.raises(tracejit.UnsupportedError, match="shares a Held"):
        tracejit.jit(program, fallback="error")(torch.ones(2))
