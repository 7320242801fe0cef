"""Why a function was compiled again: one line with what changed, from what and to what; one warning when it goes on."""
import gc
import warnings
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import tracejit
from tracejit.capture.retraces import MANY


def lines(jfn):
    return [line.split(": ", 1)[1] for line in jfn.cache_info().retraces]


@dataclass
class Options:
    scale: float
    name: str


def function(x, y=None, n=1, *, extra=None):
    return x * n if y is None else x + y


X = torch.ones(3)
CALLS = {
    "shape": (lambda f: [f(X), f(torch.ones(4))], "x.shape changed from [3] to [4]"),
    "dtype": (lambda f: [f(X), f(X.double())], "x.dtype changed from torch.float32 to torch.float64"),
    "stride": (lambda f: [f(torch.ones(2, 2)), f(torch.ones(2, 2).t())], "x.stride() changed from [2, 1] to [1, 2]"),
    "offset": (lambda f: [f(torch.ones(4)[:3]), f(torch.ones(4)[1:])], "x.storage_offset() changed from 0 to 1"),
    "requires_grad": (lambda f: [f(X), f(X.clone().requires_grad_())], "x.requires_grad changed from False to True"),
    "int": (lambda f: [f(X, n=2), f(X, n=3)], "n changed from 2 to 3"),
    "string": (lambda f: [f(X, extra="a"), f(X, extra="b")], "extra changed from 'a' to 'b'"),
    "float": (lambda f: [f(X, None, 0.5), f(X, None, 0.25)], "n changed from 0.5 to any float"),
    "default": (lambda f: [f(X), f(X, n=5)], "n changed from nothing to 5"),
    "another argument": (lambda f: [f(X), f(X, X.clone())], "y changed from nothing to a tensor of shape [3]"),
    "one tensor twice": (lambda f: [f(X, X.clone()), f(X, X)], "y changed from a tensor of shape [3] to the tensor that x is"),
    "item": (lambda f: [f(X, extra={"a": [1, 2]}), f(X, extra={"a": [1, 3]})], "extra['a'][1] changed from 2 to 3"),
    "length": (lambda f: [f(X, extra=[[1], [2]]), f(X, extra=[[1], [2], [3]])], "len(extra) changed from 2 to 3"),
    "dataclass": (lambda f: [f(X, extra=Options(1.0, "a")), f(X, extra=Options(1.0, "b"))], "extra, part 1 changed from 'a' to 'b'"),
    "mode": (lambda f: [f(X), torch.no_grad()(f)(X)], "grad mode changed from True to False"),
    "most alike": (lambda f: [f(X), f(torch.ones(2, 5), n=7), f(X, n=2)], "n changed from nothing to 2"),
    "two": (lambda f: [f(X, n=1), f(torch.ones(5), n=2)], "x.shape changed from [3] to [5]; n changed from 1 to 2"),
}


@pytest.mark.parametrize("calls, line", CALLS.values(), ids=CALLS)
def test_what_changed_among_the_arguments(calls, line):
    jfn = tracejit.jit(function, fallback="error")
    calls(jfn)
    assert lines(jfn)[-1] == line and str(jfn.cache_info()).endswith(f": {line}")


def test_another_object_is_told():
    jfn = tracejit.jit(function, fallback="error")
    kept = [object(), object()]
    for o in kept:
        jfn(X, extra=o)
    assert lines(jfn) == [f"extra changed from the object at {id(kept[0]):#x} to the object at {id(kept[1]):#x}"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k, self.cfg, self.w = 1, {"a": [1, 2], "b": "x"}, nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.k + self.cfg["a"][1] + self.w.sum() + len(self.cfg["b"])


STATE = {
    "number": (lambda m: setattr(m, "k", 2), "self.k changed from 1 to 2"),
    "item": (lambda m: m.cfg["a"].__setitem__(1, 5), "self.cfg['a'][1] changed from 2 to 5"),
    "length": (lambda m: m.cfg.update(a=[1, 2, 3]), "self.cfg['a'] changed from a list of 2 to a list of 3"),
    "text": (lambda m: m.cfg.update(b="yy"), "self.cfg['b'] changed from 'x' to 'yy'"),
    "parameter": (lambda m: setattr(m, "w", nn.Parameter(torch.ones(5))), "self.w.shape changed from [3] to [5]"),
    "frozen": (lambda m: m.w.requires_grad_(False), "self.w.requires_grad changed from True to False"),
}


@pytest.mark.parametrize("change, line", STATE.values(), ids=STATE)
def test_what_changed_of_the_state(change, line):
    model = Net()
    jfn = tracejit.jit(model, fallback="error")
    jfn(X)
    change(model)
    jfn(X)
    assert lines(jfn) == [line]


def test_a_call_that_finds_an_entry_tells_nothing_and_clearing_forgets():
    jfn = tracejit.jit(function, fallback="error")
    for _ in range(3):
        jfn(X)
    assert jfn.cache_info().retraces == ()
    jfn(X, n=2)
    assert jfn.cache_info().retraces == ("entry 2: n changed from nothing to 2",)
    jfn.cache_clear()
    jfn(X)
    assert jfn.cache_info().retraces == ()


def warned(call, times):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(times):
            call(n)
    return [w for w in caught if issubclass(w.category, tracejit.RetraceWarning)]


def test_one_warning_names_what_keeps_changing_and_the_way_out():
    jfn = tracejit.jit(function, fallback="error", dynamic=False)
    assert not warned(lambda n: jfn(torch.ones(n + 1), n=int(n == 3)), MANY)
    (warning,) = warned(lambda n: jfn(torch.ones(n + 20), n=0), MANY)
    assert str(warning.message).startswith("function was compiled 9 times; x.shape keeps changing (8 times, at last from [8] to [20]): pad")
    assert warning.filename == __file__


def test_an_object_made_anew_for_each_call_is_warned_of():
    jfn = tracejit.jit(function, fallback="error")
    kept = [object() for _ in range(MANY + 1)]
    (warning,) = warned(lambda n: jfn(X, extra=kept[n]), MANY + 1)
    assert "extra keeps changing" in str(warning.message) and "make it once" in str(warning.message)


def test_a_float_that_changes_is_not_warned_of():
    jfn = tracejit.jit(function, fallback="error")
    assert not warned(lambda n: jfn(X, n=n / 8), 3 * MANY) and jfn.cache_info().entries == 2


def test_the_log_has_the_line(monkeypatch, capsys):
    monkeypatch.setenv("TRACEJIT_LOG", "recompiles")
    jfn = tracejit.jit(function, fallback="error")
    jfn(X), jfn(X, n=4)
    assert capsys.readouterr().err == ("tracejit: function compiled for entry 1: first call\n"
                                       "tracejit: function compiled for entry 2: n changed from nothing to 4\n")


def test_nothing_of_a_call_is_kept_for_its_telling():
    model, x, o = Net(), torch.ones(3), Options(1.0, "a")
    jfn = tracejit.jit(lambda m, x, o: m(x) * o.scale, fallback="error")
    watched = [weakref.ref(v) for v in (model, model.w, x)]
    jfn(model, x, o), jfn(model, torch.ones(4)[:3], o)
    del model, x, o
    gc.collect()
    assert [w() for w in watched] == [None] * 3
