"""Names that are missing, and what C says of functions, classes and exceptions, do not go stale."""
import builtins
import contextlib
import functools
import inspect
import sys

import pytest
import torch

import tracejit

from cases.stale import x3


class Plain:
    pass


class Base:
    pass


class Derived(Base):
    pass


class OnDemand(type):
    def __getattr__(cls, name):
        return 3.0


class Answering(metaclass=OnDemand):
    pass


def named():
    """one"""


REFUSAL = ValueError(2.0)


def tries_class(x):
    try:
        return x * Plain.gain
    except AttributeError:
        return x + 1


def tries_global(x):
    try:
        return x * NOT_THERE_YET
    except NameError:
        return x + 1


def put(names, name, value):
    """Puts a name into a module or a class; leaving takes it out again."""
    @contextlib.contextmanager
    def change():
        missing = object()
        before = vars(names).get(name, missing)
        setattr(names, name, value)
        try:
            yield
        finally:
            delattr(names, name) if before is missing else setattr(names, name, before)
    return change


@contextlib.contextmanager
def new_global():
    globals()["NOT_THERE_YET"] = 7
    try:
        yield
    finally:
        del globals()["NOT_THERE_YET"]


def attribute(owner, name, new):
    @contextlib.contextmanager
    def change():
        before = getattr(owner, name)
        setattr(owner, name, new)
        try:
            yield
        finally:
            setattr(owner, name, before)
    return change


CHANGES = {
    "attribute that a class gets": (lambda x: x + 1 if hasattr(Plain, "gain") else x - 1, put(Plain, "gain", 2.0)),
    "default of a missing attribute": (lambda x: x * getattr(Plain, "gain", 5.0), put(Plain, "gain", 2.0)),
    "attribute that a base class gets": (lambda x: x * getattr(Derived, "gain", 5.0), put(Base, "gain", 2.0)),
    "attribute error that goes": (tries_class, put(Plain, "gain", 2.0)),
    "attribute that a metaclass made up": (lambda x: x * Answering.gain, put(Answering, "gain", 2.0)),
    "name error that goes": (tries_global, new_global),
    "name among the builtins": (lambda x: x * put_there, attribute(builtins, "put_there", 7.0)),    # noqa: F821
    "name of a function": (lambda x: x * len(named.__name__), attribute(named, "__name__", "another")),
    "text of a function": (lambda x: x * len(named.__doc__), attribute(named, "__doc__", "another")),
    "name of a class": (lambda x: x * len(Plain.__name__), attribute(Plain, "__name__", "Another")),
    "bases of a class": (lambda x: x * len(Derived.__bases__[0].__name__), attribute(Derived, "__bases__", (Plain,))),
    "arguments of an exception": (lambda x: x * REFUSAL.args[0], attribute(REFUSAL, "args", (5.0,))),
}


@pytest.mark.parametrize("program, change", CHANGES.values(), ids=CHANGES)
def test_each_call_is_eagers(program, change, monkeypatch):
    monkeypatch.setattr(builtins, "put_there", 3.0, raising=False)
    compiled = tracejit.jit(program, fallback="error")
    before = program(x3())
    assert torch.equal(compiled(x3()), before)
    with change():
        after = program(x3())
        assert not torch.equal(before, after), "the change has no effect in eager"
        assert torch.equal(compiled(x3()), after)
    assert torch.equal(compiled(x3()), before)
    assert compiled.cache_info().hits == 1                     # the entry of the first call


def test_a_limit_is_the_librarys_own_business_and_not_the_users():
    def unwrapped(x):
        return x * len(inspect.unwrap(wrapped).__name__)

    @functools.wraps(unwrapped)
    def wrapped(x):
        return x
    assert torch.equal(tracejit.jit(unwrapped, fallback="error")(torch.ones(2)), torch.full((2,), 9.0))
    with pytest.raises(tracejit.UnsupportedError, match="getrecursionlimit"):
        tracejit.jit(lambda x: x * sys.getrecursionlimit(), fallback="error")(torch.ones(2))
