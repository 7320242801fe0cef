"""State that a jitted function reaches where no Python runs that could be watched: caches, and objects of C.

Each case makes (f, change, state) anew: f(x) is called, change(k) comes before call k, state() tells what f may have changed.
"""
from __future__ import annotations

import array
import contextvars
import ctypes
import enum
import fractions
import functools
import gc
import hashlib
import math
import os
import pathlib
import queue
import re
import struct
import tempfile
import threading
import types
import warnings
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tracejit

EAGERS, REFUSED = [], []


def nothing(*_):
    return None


def kept(hits=0):
    """The case compiles; of five calls, so many are found."""
    return lambda make: EAGERS.append((make, hits)) or make


def refused(message):
    return lambda make: REFUSED.append((make, message)) or make


def shown(value):
    """Two values that print alike are alike here: results, tensors, numbers and containers of these."""
    return repr(value)


def calls(f, change, state):
    """What five calls give, and the state after each."""
    told = []
    for k in range(5):
        change(k)
        told.append((shown(f(torch.ones(3) * (k + 1))), shown(state())))
    return told


@pytest.mark.parametrize("make, hits", EAGERS, ids=lambda m: getattr(m, "__name__", ""))
def test_each_call_is_eagers(make, hits):
    want = calls(*make())
    f, change, state = make()
    jitted = tracejit.jit(f, fallback="error")
    assert calls(jitted, change, state) == want
    assert jitted.cache_info().hits >= hits


@pytest.mark.parametrize("make, message", REFUSED, ids=lambda m: getattr(m, "__name__", ""))
def test_what_cannot_be_watched_is_refused_and_runs_eagerly(make, message):
    want = calls(*make())
    f, change, state = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tracejit.FallbackWarning)
        assert calls(tracejit.jit(f), change, state) == want
    f, change, state = make()
    change(0)
    with pytest.raises(tracejit.UnsupportedError, match=message):
        tracejit.jit(f, fallback="error")(torch.ones(3))


# ------------------------------------------------------------ functions under lru_cache

def cache_of(make, *args, size=None, before=True):
    found = functools.lru_cache(size)(make)
    if before:
        found(*args)
    return found


@pytest.mark.parametrize("before", [True, False])
def test_an_object_from_a_cache_is_read_as_it_is_now(before):
    def make():
        cached = cache_of(lambda: SimpleNamespace(n=1), before=before)
        return (lambda x: x * cached().n), (lambda k: setattr(cached(), "n", k) if k > 1 else None), nothing
    test_each_call_is_eagers(make, 0)


@kept(hits=3)
def attributes_of_an_object_from_a_cache_are_written():
    cached = cache_of(lambda: SimpleNamespace(a=0))
    return (lambda x: setattr(cached(), "a", x * 2)), nothing, lambda: cached().a


@kept(hits=3)
def attributes_of_an_object_that_the_first_call_puts_into_a_cache_are_written():
    cached = cache_of(lambda: SimpleNamespace(a=0), before=False)
    return (lambda x: setattr(cached(), "a", x * 2)), nothing, lambda: cached().a


@kept()
def a_list_from_a_cache_is_written_and_read():
    cached = cache_of(lambda: [1])

    def f(x):
        cached().append(2)
        return x * len(cached())
    return f, lambda k: k == 3 and cached().clear(), cached


@kept()
def a_list_that_the_first_call_puts_into_a_cache_is_written():
    cached = cache_of(lambda n: [n], before=False)

    def f(x):
        cached(1).append(2)
        return x * 2
    return f, nothing, lambda: cached(1)


@kept(hits=3)
def a_dict_from_a_bounded_cache_gets_a_tensor():
    cached = cache_of(lambda n: {}, 1, size=8)

    def f(x):
        cached(1)["a"] = x * 2
        return x + 1
    return f, nothing, lambda: cached(1)


@kept(hits=3)
def tensors_from_a_cache_are_inputs():
    cached = cache_of(lambda n: (torch.arange(n) + 1., torch.ones(n)), 3, size=2)

    def f(x):
        scale, shift = cached(3)
        shift.add_(1)
        return x * scale + shift

    def change(k):
        if k == 2:
            cached(3)[0].mul_(2)
        if k == 3:
            cached.cache_clear()
    return f, lambda k: change(k) or cached(3), lambda: cached(3)


@kept(hits=2)
def a_module_from_a_cache_is_a_module():
    def layer():
        torch.manual_seed(0)
        return torch.nn.Linear(3, 3)
    cached = cache_of(layer)

    def change(k):
        if k == 2:
            cached().weight.data.mul_(2)
        if k == 3:
            cached().weight = torch.nn.Parameter(torch.ones(3, 3))
    return (lambda x: cached()(x).detach()), change, lambda: cached().weight


@kept(hits=2)
def a_cleared_cache_asks_the_function_again():
    scale = SimpleNamespace(n=1)
    cached = cache_of(lambda: scale.n)

    def change(k):
        scale.n = k
        if k == 2:
            cached.cache_clear()
    return (lambda x: x * cached()), change, nothing


@kept(hits=4)
def a_number_that_left_a_full_cache_is_the_same_number():
    cached = cache_of(lambda n: n * 2, 1, size=2)

    def change(k):
        cached(k + 10)
        cached(k + 20)
    return (lambda x: x * cached(1)), change, nothing


@kept()
def a_cached_method_a_property_and_a_static_method_are_caches():
    class Model:
        @functools.lru_cache(None)
        def item(self, n):
            return SimpleNamespace(v=n)

        @property
        @functools.lru_cache(None)
        def own(self):
            return SimpleNamespace(v=1)

        @staticmethod
        @functools.lru_cache
        def common():
            return [3]
    model = Model()
    model.item(2), model.own, model.common()

    def change(k):
        model.item(2).v, model.own.v = k, k * 2
        model.common().append(k)
    return (lambda x: x * model.item(2).v + model.own.v + len(model.common())), change, nothing


@kept()
def two_caches_of_one_method_are_two():
    class Layer:
        def __init__(self):
            self.get = functools.lru_cache(None)(self._get)

        def _get(self, n):
            return [n]
    a, b = Layer(), Layer()

    def f(x):
        a.get(1).append(1)
        b.get(1).append(2)
        b.get(1).append(3)
        return x * len(b.get(1))
    return f, nothing, lambda: (a.get(1), b.get(1))


@kept(hits=4)
def what_a_cached_function_returns_past_its_cache_is_the_calls_own():
    cached = cache_of(lambda n: [n], 1)

    def f(x):
        made = cached.__wrapped__(1)
        made.append(3)
        return x * len(made)
    return f, nothing, lambda: cached(1)


@refused("would keep a tensor of the capture")
def an_object_with_a_tensor_is_made_by_the_first_call():
    cached = cache_of(lambda: SimpleNamespace(w=torch.ones(3)), before=False)
    return (lambda x: x * cached().w), nothing, lambda: cached().w


@refused("fills the cache of closure cached in a way that cannot be watched")
def a_function_of_c_under_a_cache():
    cached = cache_of(torch.ones, before=False)
    return (lambda x: x * cached(3)), nothing, lambda: cached(3)


class Count:
    def __init__(self):
        self.n = 0


@refused("fills the cache of closure cached in a way that cannot be watched")
def a_class_under_a_cache():
    cached = cache_of(Count, before=False)

    def f(x):
        cached().n += 1
        return x * cached().n
    return f, nothing, lambda: cached().n


@refused("depends on or acts upon the world outside: cache_clear")
def the_function_clears_a_cache():
    cached = cache_of(lambda n: [n], 1)

    def f(x):
        cached.cache_clear()
        return x * len(cached(1))
    return f, nothing, lambda: cached(1)


# ------------------------------------------------------------ objects of C that lead to others

@kept(hits=2)
def a_method_of_a_list_and_one_of_a_dict():
    items, names = [0], {"n": 1}
    pop, push, get = items.pop, items.append, names.get

    def f(x):
        was = pop()
        push(1 - was)
        return x * was + get("n")
    return f, lambda k: names.update(n=k // 4), lambda: items


@kept()
def a_method_of_a_dict_stores_a_tensor():
    made = {}
    put = made.__setitem__
    return (lambda x: put("y", x * 2)), nothing, lambda: made


@kept(hits=4)
def a_method_of_a_tensor():
    weight = torch.ones(3)
    add = weight.add_
    return (lambda x: add(x) * 2), nothing, lambda: weight


@kept(hits=2)
def attribute_access_as_a_method_of_an_object():
    class Holder:
        n = 1
    holder = Holder()
    get, put = holder.__getattribute__, holder.__setattr__

    def f(x):
        put("n", 1 - get("n"))
        return x * holder.n
    return f, nothing, lambda: holder.n


@kept(hits=2)
def values_and_keys_of_a_dict():
    held, key = [0], SimpleNamespace(n=0)
    values, names = {"a": held}.values(), {HashedByPlace(key): 1}

    def f(x):
        for value in values:
            value[0] = 1 - value[0]
        for name in names:
            x = x * name.inner.n
        return x
    return f, lambda k: setattr(key, "n", k // 4), lambda: held


class HashedByPlace:
    def __init__(self, inner):
        self.inner = inner


@kept(hits=2)
def a_cell_and_the_cell_of_a_function():
    cell, inner = types.CellType(1), 0

    def get():
        return inner

    def f(x):
        cell.cell_contents = 1 - cell.cell_contents
        get.__closure__[0].cell_contents = 1 - get.__closure__[0].cell_contents
        return x * cell.cell_contents
    return f, nothing, lambda: (cell.cell_contents, get())


@kept(hits=2)
def defaults_are_assigned():
    def scaled(x, by=1):
        return x * by

    def f(x):
        scaled.__defaults__ = (1 - scaled.__defaults__[0],)
        return scaled(x)
    return f, nothing, lambda: scaled.__defaults__


@kept(hits=2)
def a_list_in_a_partial():
    def scaled(count, x):
        count[0] = 1 - count[0]
        return x * count[0]
    found = functools.partial(scaled, [0])
    return (lambda x: found(x)), nothing, lambda: found.args


@kept(hits=2)
def a_context_variable_is_set():
    variable = contextvars.ContextVar("variable", default=1)

    def f(x):
        variable.set(1 - variable.get())
        return x * variable.get()
    return f, lambda k: None if k else variable.set(1), variable.get


@kept()
def a_metaclass_has_attributes():
    class Meta(type):
        n = 1

    class Model(metaclass=Meta):
        pass
    return (lambda x: x * Model.n), lambda k: setattr(Meta, "n", k), nothing


@kept()
def a_number_of_a_library_is_replaced():
    return (lambda x: x * math.tau), lambda k: setattr(math, "tau", k if k < 4 else math.pi * 2), nothing


@kept()
def an_event_is_set_between_calls():
    event = threading.Event()
    return (lambda x: x * 2 if event.is_set() else x), lambda k: event.set() if k % 2 else event.clear(), nothing


def test_a_fraction_at_the_address_of_one_that_is_gone_is_another():
    held = SimpleNamespace(by=None)
    jitted = tracejit.jit(lambda x: x * float(held.by), fallback="error")
    for k in range(8):
        held.by = None
        held.by = fractions.Fraction(k)
        assert jitted(torch.ones(3)).tolist() == [k] * 3


@kept(hits=4)
def methods_of_values_in_c_are_called():
    layout, pattern = struct.Struct("<i"), re.compile("a+")
    return (lambda x: x * layout.unpack(b"\3\0\0\0")[0] * len(pattern.findall("abaa"))), nothing, nothing


@refused("the memory of closure numbers, a array")
def an_array_is_written():
    numbers = array.array("i", [0, 2])

    def f(x):
        numbers[0] ^= 1
        return x * numbers[0]
    return f, nothing, lambda: numbers


@refused("the memory of closure view, a bytearray")
def a_view_of_bytes_is_written():
    data = bytearray(b"abc")
    view = memoryview(data)

    def f(x):
        view[0] ^= 1
        return x * 2
    return f, nothing, lambda: data


@refused(r"memory of ctypes \(c_int\) is used")
def memory_of_ctypes_is_written():
    number = ctypes.c_int(0)

    def f(x):
        number.value += 1
        return x * number.value
    return f, nothing, lambda: number.value


@refused("a numpy array of objects is used")
def an_array_of_objects_is_read():
    found = np.array([[1], 2], dtype=object)

    def f(x):
        found[0].append(1)
        return x * len(found[0])
    return f, nothing, lambda: found[0]


@pytest.mark.parametrize("hold", [lambda i: {"a": i}.get, lambda i: functools.partial(next, i), lambda i: i.__next__])
def test_an_iterator_in_something_else_is_refused(hold):
    found = hold(iter([1, 2, 3]))
    with pytest.raises(tracejit.UnsupportedError, match="made before"):
        tracejit.jit(lambda x: (x, found), fallback="error")(torch.ones(3))


@refused("depends on or acts upon the world outside: stat")
def a_file_may_be_there():
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / "flag"
    name = str(path)

    def f(x, keep=folder):
        return x * 2 if os.path.exists(name) else x
    return f, lambda k: k == 2 and path.touch(), nothing


@refused("depends on or acts upon the world outside: put")
def a_queue_of_c_is_filled():
    waiting = queue.SimpleQueue()
    return (lambda x: (waiting.put(1), x * 2)[1]), nothing, waiting.qsize


@refused("depends on or acts upon the world outside: update")
def a_hash_is_fed():
    seen = hashlib.sha256()
    return (lambda x: (seen.update(b"a"), x * 2)[1]), nothing, seen.hexdigest


@refused("depends on or acts upon the world outside: run")
def a_context_runs_a_function():
    context, variable = contextvars.copy_context(), contextvars.ContextVar("variable", default=1)

    def step():
        variable.set(variable.get() + 1)
        return variable.get()
    return (lambda x: x * context.run(step)), nothing, lambda: context.get(variable)


@refused("depends on or acts upon the world outside: start_")
def a_thread_is_started():
    found = []

    def f(x):
        thread = threading.Thread(target=lambda: found.append(1))
        thread.start()
        thread.join()
        return x * 2
    return f, nothing, lambda: found


# ------------------------------------------------------------ arguments

def appended(x, push):
    push(len(x))
    return x * 2


def summed(x, numbers):
    return x * float(sum(numbers))


def grown(x, found):
    found.add(len(found) + 1)
    return x * len(found)


def read(x, names):
    return x * names["n"]


def argument_cases():
    """(name, function, argument, change, state), made anew."""
    items, names, found, numbers = [], {"n": 1}, {1}, np.ones(2)
    ints, data, proxied = array.array("i", [0, 1]), bytearray(b"ab"), {"n": 0}
    yield "method of a list", appended, items.append, nothing, lambda: items
    yield "values", summed, names.values(), lambda k: names.update(n=k), nothing
    yield "set", grown, found, nothing, lambda: found
    yield "numpy", summed, numbers, lambda k: numbers.__setitem__(0, k), nothing
    yield "array", summed, ints, lambda k: ints.__setitem__(0, k), nothing
    yield "view of bytes", summed, memoryview(data), lambda k: data.__setitem__(0, k), nothing
    yield "proxy", read, types.MappingProxyType(proxied), lambda k: proxied.update(n=k), nothing


@pytest.mark.parametrize("number", range(len(list(argument_cases()))), ids=[case[0] for case in argument_cases()])
def test_what_an_argument_holds_is_what_it_holds_now(number):
    def told(compile):
        _, f, argument, change, state = list(argument_cases())[number]
        jitted = compile(f)
        return calls(lambda x: jitted(x, argument), change, state)
    assert told(lambda f: tracejit.jit(f, fallback="error")) == told(lambda f: f)


@pytest.mark.parametrize("wrap", [lambda i: i, lambda i: [i], lambda i: {"i": i}])
def test_an_iterator_among_the_arguments_is_refused_before_it_moves(wrap):
    numbers = iter([1, 2, 3])
    with pytest.raises(tracejit.UnsupportedError, match="argument 0, a list_iterator that was made before it"):
        tracejit.jit(lambda x, i: (x, i), fallback="error")(torch.ones(3), wrap(numbers))
    assert next(numbers) == 1


class Mode(enum.Enum):
    ONE = 1
    TWO = 2


class Linked:
    def __init__(self):
        self.me, self.n = self, 3


def test_arguments_that_lead_back_to_themselves():
    jitted = tracejit.jit(lambda x, mode, linked: x * mode.value * linked.me.n, fallback="error")
    linked = Linked()
    for mode in (Mode.ONE, Mode.TWO, Mode.ONE):
        assert jitted(torch.ones(3), mode, linked).tolist() == [mode.value * 3] * 3
    assert jitted.cache_info().hits == 1


def test_a_dict_that_gets_its_first_tensor_is_no_reason_to_compile_at_every_call():
    made = {}

    def f(x):
        made["y"] = x * 2
        return x + 1
    jitted = tracejit.jit(f, fallback="error")
    for _ in range(5):
        jitted(torch.ones(3))
    assert (jitted.cache_info().hits, jitted.cache_info().misses) == (3, 2)


@pytest.mark.parametrize("hold", [HashedByPlace, lambda inner: [inner], lambda inner: SimpleNamespace(inner=inner),
                                  lambda inner: (inner, torch.ones(3))])
def test_what_left_a_cache_is_gone(hold):
    cached = cache_of(lambda: hold(HashedByPlace(2)))
    jitted = tracejit.jit(lambda x: (cached(), x * 2)[1], fallback="error")
    for _ in range(4):
        jitted(torch.ones(3))
    inner = weakref.ref(cached()[0] if isinstance(cached(), (list, tuple)) else cached().inner)
    cached.cache_clear()
    gc.collect()
    assert inner() is None and jitted.cache_info().hits == 3
