"""Writes of a captured call to persistent state: seen, undone, and replayed with what the program computed."""
from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import threading
import types
import weakref

import pytest
import torch

import tracejit
from tracejit.capture.collector import collector_paused
from tracejit.capture.journal import replay
from tracejit.capture.locations import KeyReader
from tracejit.capture.reads import StateReads
from tracejit.capture.keys import freeze
from tracejit.errors import UnsupportedError

X = torch.ones(2)
COUNT = 0
LOG: list = []


class Bag:
    def __init__(self, **values):
        self.__dict__.update(values)


class OtherBag(Bag):
    pass


class Slotted:
    __slots__ = ("n", "m")


class Model(torch.nn.Module):
    total = 0

    def __init__(self):
        super().__init__()
        self.step = 0
        self.cache = []
        self.table = {"a": 1, "old": 2}
        self.seen = {1}
        self.recent = collections.deque([1, 2], maxlen=3)
        self.order = collections.OrderedDict(a=1)
        self.lin = torch.nn.Linear(2, 2)
        self.register_buffer("buf", torch.zeros(2))
        self.nested = {"list": [1]}
        self.first, self.second = [1], [2]
        self.gone = 1
        self.bag = Bag(n=1)
        self.slots = Slotted()
        self.slots.n = 1
        self.local = threading.local()
        self.local.count = 1
        self.weak = weakref.WeakKeyDictionary({self.bag: 1})


def m_counter(m, x):
    m.step += 1
    return x * m.step


def m_buffer(m, x):
    m.buf = m.buf + x


def m_append(m, x):
    m.cache.append(x * 2)
    m.cache.append("end")


def m_list_edit(m, x):
    m.cache.insert(0, x + 1)
    m.recent.append(5)


def m_dict(m, x):
    m.table["t"] = x * 3
    m.table["a"] += 1
    del m.table["old"]


def m_set(m, x):
    m.seen.add(7)
    m.seen.discard(1)


def m_ordered(m, x):
    m.order["b"] = [x, 1]


def m_nested(m, x):
    m.nested["list"].append(x)
    m.nested["new"] = {"deep": (x * 5, 1)}


def m_swap(m, x):
    m.first, m.second = m.second, m.first
    m.first.append(3)


def m_same_list(m, x):
    m.left = m.right = [x]


def m_delete(m, x):
    del m.gone


def m_object(m, x):
    m.bag.n = 9
    m.bag.t = x - 1
    m.slots.n = 2
    m.slots.m = "set"


def m_class(m, x):
    type(m).total += 1


def m_global(m, x):
    global COUNT
    COUNT += 1
    LOG.append(COUNT)


def m_setattr(m, x):
    for name in ("one", "two"):
        setattr(m, name, x)


def m_dunder_dict(m, x):
    m.__dict__["direct"] = x


def m_rebind_module(m, x):
    m.alias = m.lin


def m_twice(m, x):
    m.step = 5
    m.step = 6
    m.buf = x
    m.buf = x + 1


def m_known_tensor(m, x):
    m.previous = m.buf


def m_delete_submodule(m, x):
    del m.lin


def m_thread_local(m, x):
    m.local.n = x
    m.local.count += 1


def m_weak_keys(m, x):
    m.weak[m.bag] = x


def m_assign_class(m, x):
    m.bag.__class__ = OtherBag


WRITES = [value for name, value in list(globals().items()) if name.startswith("m_")]


def capture(fn, *args, roots=()):
    reads = StateReads(fn, roots)
    reads.adopt_call((), {})
    with collector_paused(), reads:                            # as in a call: others hang functions on the collector
        fn(*args)
    writes = reads.writes()
    return reads, writes


def view(value, memo=None):
    """A comparable picture of state: tensors by value, objects by their attributes."""
    memo = {} if memo is None else memo
    if isinstance(value, torch.Tensor):
        return ("tensor", value.tolist())
    if id(value) in memo:
        return ("again", memo[id(value)])
    if isinstance(value, dict):
        memo[id(value)] = len(memo)
        return {k if isinstance(k, str) else type(k): view(v, memo) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, collections.deque)):
        memo[id(value)] = len(memo)
        return (type(value), [view(v, memo) for v in value])
    if hasattr(value, "__dict__") and not isinstance(value, (type, types.FunctionType)):
        memo[id(value)] = len(memo)
        return (type(value).__name__, view(vars(value), memo))
    if isinstance(value, weakref.ref):
        return view(value(), memo)
    if isinstance(value, Slotted):
        return (value.n, getattr(value, "m", None))
    return value


def world(m):
    return view(m), COUNT, list(LOG), Model.total


@pytest.fixture
def model():
    global COUNT
    yield Model()
    COUNT = 0
    LOG.clear()
    Model.total = 0


@pytest.mark.parametrize("fn", WRITES, ids=lambda f: f.__name__)
def test_writes_are_undone_and_replayed(model, fn):
    start = world(model)
    reads, writes = capture(functools.partial(fn, model), X)
    after = world(model)
    assert after != start and writes
    reads.rollback()
    assert world(model) == start
    replay(writes, [w.value for w in writes])
    assert world(model) == after


@pytest.mark.parametrize("fn", WRITES, ids=lambda f: f.__name__)
def test_rollback_after_an_error(model, fn):
    def failing(m, x):
        fn(m, x)
        raise ValueError("stop")
    start = world(model)
    reads = StateReads(functools.partial(failing, model))
    with pytest.raises(ValueError), reads:
        functools.partial(failing, model)(X)
    reads.rollback()
    assert world(model) == start


def test_values_go_through_materialize(model):
    reads, writes = capture(functools.partial(m_nested, model), X)
    reads.rollback()

    def fresh(value):
        if isinstance(value, torch.Tensor):
            return value + 100
        if isinstance(value, (list, tuple)):
            return type(value)(map(fresh, value))
        return {k: fresh(v) for k, v in value.items()} if isinstance(value, dict) else value
    for write in writes:
        write.apply(fresh)
    assert model.nested["list"][1].tolist() == [101, 101] and model.nested["new"]["deep"][0].tolist() == [105, 105]


def test_replay_writes_to_the_container_that_is_there_now(model):
    reads, writes = capture(functools.partial(m_append, model), X)
    reads.rollback()
    old, model.cache = model.cache, []
    replay(writes, [w.value for w in writes])
    assert old == [] and len(model.cache) == 2


def test_one_new_list_stored_twice_is_one_list_after_a_replay(model):
    reads, writes = capture(functools.partial(m_same_list, model), X)
    reads.rollback()
    replay(writes, [copy.copy(w.value) if isinstance(w.value, list) else w.value for w in writes])
    assert model.left is model.right


def test_closure_cell_and_function_attribute(model):
    n = 0

    def fn(x):
        nonlocal n
        n += 1
        fn.calls = n
        return x
    reads, writes = capture(fn, X)
    reads.rollback()
    assert n == 0 and not hasattr(fn, "calls")
    replay(writes, [w.value for w in writes])
    assert n == 1 and fn.calls == 1


def test_module_attribute():
    module = types.ModuleType("settings")
    module.N = 1

    def fn(x):
        module.N += 1
    reads, writes = capture(fn, X)
    reads.rollback()
    assert module.N == 1
    replay(writes, [w.value for w in writes])
    assert module.N == 2


def test_optimizer_state_under_tensor_keys():
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    opt = torch.optim.SGD([p], lr=0.1, momentum=0.9)
    reads, writes = capture(opt.step)
    assert len(opt.state) == 1
    reads.rollback()
    assert len(opt.state) == 0
    assert any(w.keyed and w.value[0] is p for w in writes)
    replay(writes, [w.value for w in writes])
    assert opt.state[p]["momentum_buffer"].tolist() == [1, 1]
    again, more = capture(opt.step)
    assert not any(w.keyed for w in more)


def test_attributes_of_argument_tensors():
    t, other = torch.ones(2), torch.ones(2)
    t.tag = other.tag = 1

    def fn(x):
        x.tag = x.tag + 1
        x.note = "n"
        return x
    reads = StateReads(fn)
    reads.watch_tensor(t, "x")
    reads.adopt_call((t,), {})
    with reads:
        fn(t)
    writes = reads.writes()
    reads.rollback()
    assert t.tag == 1 and not hasattr(t, "note")
    location = next(l for l in reads.locations if l.path == "x.tag")
    assert location.key([other]) == location.expected and location.key() != location.expected
    replay(writes, [w.value for w in writes], [other])
    assert (other.tag, other.note, t.tag) == (2, "n", 1)


def test_argument_containers():
    items = [1]

    def fn(cache, x):
        cache.append(x)
    reads, writes = capture(fn, items, X, roots=[(items, "cache")])
    reads.rollback()
    assert items == [1] and writes[0].root == "cache"
    other = [1]
    replay(writes, [w.value for w in writes], {"cache": other})
    assert items == [1] and len(other) == 2 and other[1] is X


def test_objects_of_the_call_are_not_state(model):
    def fn(x):
        class Local:
            def __init__(self):
                self.n = 1
        o = Local()
        o.n += model.step
        parts = [x]
        parts.append(x)
        o.parts = parts
        return o
    reads, writes = capture(fn, X)
    assert writes == []


def test_a_changed_order_cannot_be_replayed(model):
    model.order["z"] = 1


    def fn(x):
        model.order.move_to_end("a")
    reads = StateReads(fn)
    with reads:
        fn(X)
    with pytest.raises(UnsupportedError, match="order of closure model.order"):
        reads.writes()
    reads.rollback()
    assert list(model.order) == ["a", "z"]


def test_a_value_that_contains_itself_cannot_be_replayed(model):
    def fn(x):
        inner = []
        inner.append(inner)
        model.loop = inner
    reads = StateReads(fn)
    with reads:
        fn(X)
    with pytest.raises(UnsupportedError, match="contains itself"):
        reads.writes()
    reads.rollback()
    assert not hasattr(model, "loop")


def test_numpy_memory_is_put_back_and_refused():
    numpy = pytest.importorskip("numpy")
    a = numpy.zeros(3)

    def fn(x):
        a[0] += 1
    reads = StateReads(fn)
    with reads:
        fn(X)
    with pytest.raises(UnsupportedError, match="memory of closure a"):
        reads.writes()
    reads.rollback()
    assert a.tolist() == [0, 0, 0]


def test_plain_value_assigned_again_is_no_write(model):
    def fn(x):
        model.gone = 10 ** 3 - 999
        model.flag = model.lin
    model.gone, model.flag = 1, model.lin
    assert capture(fn, X)[1] == []
    assert freeze(float("nan")) == freeze(float("nan")) and freeze(0.0) != freeze(-0.0)


@dataclasses.dataclass(eq=False)
class State:
    x: object
    step: int = 0
    parts: list = dataclasses.field(default_factory=list)


def test_arguments_that_the_caller_takes_apart():
    def program(state, *rest, table=None):
        state.x = state.x * 2
        state.step += 1
        state.parts.append(state.x)
        rest[0].append(state.x)
        table["new"] = state.x
    first = (State(X), [1]), {"table": {}}
    second = (State(X + 1), [1]), {"table": {}}
    reads = StateReads(program)
    reads.adopt_call(*first)
    with reads:
        program(*first[0], **first[1])
    writes = reads.writes()
    values = [w.value for w in writes]
    reads.rollback()
    assert not any(l.path.startswith(("state", "rest", "table")) for l in reads.locations)
    assert first[0][0].x is X and first[0][0].step == 0 and first[0][0].parts == []
    assert first[0][1] == [1] and first[1] == {"table": {}}
    replay(writes, values, {"args": second[0], "kwargs": second[1]})
    state, rest, table = *second[0], second[1]["table"]
    assert state.step == 1 and state.parts[0] is state.x is rest[1] is table["new"]
    assert first[0][0].step == 0 and first[1] == {"table": {}}


def test_writes_to_arguments_of_which_nothing_was_said_are_refused():
    def attribute(state):
        state.step += 1

    def item(parts):
        parts.append(1)
    for fn, argument in ((attribute, State(X)), (item, [])):
        reads = StateReads(fn)
        with reads:
            fn(argument)
        with pytest.raises(UnsupportedError):
            reads.writes()
        reads.rollback()
        assert argument == [] or argument.step == 0


def test_a_weak_reference_made_by_the_call_cannot_be_stored():
    values, bag = weakref.WeakValueDictionary(), Bag()

    def fn(x):
        values["bag"] = bag
        return x
    with pytest.raises(UnsupportedError, match="KeyedRef"):
        tracejit.jit(fn, fallback="error")(X)
    assert not values


def test_replaced_code_is_put_back_and_refused():
    def helper(x):
        return x
    code = helper.__code__

    def fn(x):
        helper.__code__ = (lambda x: x * 3).__code__
        return helper(x)
    with pytest.raises(UnsupportedError, match="type code"):
        tracejit.jit(fn, fallback="error")(X)
    assert helper.__code__ is code


# ---------------------------------------------------------------- counters

def count_only(m, x):
    m.step += 1
    return x


def count_and_read(m, x):
    m.step += 1
    return x * m.step


def count_and_read_elsewhere(m, x):
    count_only(m, x)
    return read_step(m, x)


def read_step(m, x):
    return x * m.step


def count_and_assign(m, x):
    m.step -= 2
    m.step = 7


def count_and_getattr(m, x):
    m.step += 1
    return x * m.step


def count_and_vars(m, x):
    m.step += 1
    return x * len(vars(m))


def count_twice(m, x):
    m.step += 1
    count_only(m, x)
    for _ in range(3):
        m.step -= 10


@pytest.mark.parametrize("fn, counter", [
    (count_only, True), (count_twice, True), (count_and_read, False), (count_and_read_elsewhere, False),
    (count_and_assign, False), (count_and_getattr, False), (count_and_vars, False)])
def test_a_counter_is_guarded_by_value_only_if_it_is_used(model, fn, counter):
    call = functools.partial(fn, model)
    reads, writes = capture(call, X)
    reads.rollback()
    reader = KeyReader(reads.locations)
    token = reader.register()
    assert reader() == token
    start, model.step = model.step, 100
    assert (reader() == token) == counter
    model.step = float(start)
    assert reader() is None
    model.step = start
    fn(model, X)
    want, model.step = model.step, start
    replay(writes, [w.value for w in writes])
    assert model.step == want
    if counter:
        replay(writes, [w.value for w in writes])
        assert model.step == 2 * want - start
