"""What fakes import without need: `torch._dynamo`, `torch.fx.experimental.symbolic_shapes` and, through it, `sympy`.

Their imports take longer than most captures, and fakes whose sizes are plain integers use next to nothing of them. Until
somebody uses more, a module stands in their place whose body has not run. It knows the few names that torch's own code asks
for on the way; any other name, or the same name asked for by other code than torch's, runs the body, in the same module.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import operator
import sys
import threading
from types import ModuleType
from typing import Any, Callable

import torch
from torch._guards import Source
from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["defer_imports", "converted"]

_DYNAMO, _ORIGINS, _SHAPES = "torch._dynamo", "torch._dynamo.source", "torch.fx.experimental.symbolic_shapes"
_FUNCTIONS = "torch.utils._sympy.functions"
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _Making(threading.local):
    fakes = False


_making = _Making()


class _Deferred(ModuleType):
    """A module whose body has not run. It does, in this very object, when something is asked of it that only the body defines."""

    def __getattr__(self, name: str) -> Any:
        stand_ins = _STAND_INS[self.__name__]
        if name in stand_ins and _deferred(self) and _suffices(self, sys._getframe(1)):
            return stand_ins[name]
        package = vars(self)["__spec__"].submodule_search_locations
        if name.startswith("__") and not (name == "__path__" and package):     # asked of all modules
            raise AttributeError(name)
        _run_body(self)
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("config", "__spec__"):                 # `config`: from the import of torch._dynamo.config
            _run_body(self)
        object.__setattr__(self, name, value)


def _deferred(module: ModuleType) -> bool:
    return type(module) is _Deferred and not vars(module)["_runs"]


def _suffices(module: ModuleType, frame: Any) -> bool:
    """Does torch ask, about tensors whose sizes are all plain?"""
    plain = module.__name__ != _ORIGINS or _making.fakes or isinstance(sys.modules.get(_SHAPES), _Deferred)
    return plain and frame.f_globals.get("__name__", "").partition(".")[0] == "torch"


def _run_body(module: ModuleType) -> None:
    """Runs the body that was put off, once; nobody sees a half of it but the body itself."""
    if outer := sys.modules.get(module.__name__.rpartition(".")[0]):
        _run_body(outer)
    fields = vars(module)
    with fields.get("_lock", contextlib.nullcontext()):
        if not _deferred(module):
            return
        fields["_runs"] = True
        for name in fields.pop("_until_then"):
            del fields[name]
        if (places := fields["__spec__"].submodule_search_locations) is not None:
            fields["__path__"] = places
        try:
            fields["__spec__"].loader.exec_module(module)
        except BaseException:
            sys.modules.pop(module.__name__, None)
            raise
        del fields["_runs"], fields["_lock"]
        object.__setattr__(module, "__class__", ModuleType)


def _shell(name: str, **until_then: Any) -> ModuleType:
    """Stands for a module from now on; `until_then` are attributes that it has until its body runs."""
    spec = importlib.util.find_spec(name)
    shell = _Deferred(name)
    vars(shell).update(__spec__=spec, __loader__=spec.loader, __file__=spec.origin, __package__=spec.parent, _runs=False,
                       _lock=threading.RLock(), _until_then=list(until_then), **until_then)
    sys.modules[name] = shell
    package, _, last = name.rpartition(".")
    if package:
        vars(sys.modules[package])[last] = shell
    return shell


def defer_imports() -> None:
    """Puts off the imports that this module is about, those that have not happened."""
    if _DYNAMO not in sys.modules:
        _defer_dynamo()
    if _SHAPES not in sys.modules and "sympy" not in sys.modules and importlib.util.find_spec("sympy"):
        for name in ("sympy", _FUNCTIONS, _SHAPES):
            _shell(name)


def _defer_dynamo() -> None:
    """Fakes read settings of `torch._dynamo.config`; their kernels switch the package off around themselves; and they are
    told where they come from, in its terms."""
    package = _shell(_DYNAMO, disable=_disable)
    vars(package)["__path__"] = package.__spec__.submodule_search_locations
    try:
        importlib.import_module("torch._dynamo.config")
        _shell(_ORIGINS)
    finally:
        del vars(package)["__path__"]                          # other submodules need the body


def _disable(fn: Any = None, recursive: bool = True, *, wrapping: bool = True, **options: Any) -> Any:
    """`torch._dynamo.disable` as torch asks for it, for functions of its own: nothing to switch off as long as the package's
    body has not run. A decorator of the user's is the real one."""
    package = sys.modules[_DYNAMO]
    if wrapping or not _deferred(package):
        _run_body(package)
        return package.disable(fn, recursive, wrapping=wrapping, **options)
    chosen = fn

    def disabled(*args: Any, **kwargs: Any) -> Any:
        nonlocal chosen
        if chosen is fn and not _deferred(package):
            chosen = package.disable(fn, recursive, wrapping=False, **options)
        return chosen(*args, **kwargs)
    return disabled


class _Origin(Source):
    """Where a tensor comes from that is made a fake: nothing asks, where shapes are constants."""

    _name_template = "input"


_ORIGIN = _Origin()


def converted(mode: FakeTensorMode, real: torch.Tensor) -> torch.Tensor:
    """The fake for a tensor, under the memo of its mode, without what its origin would import."""
    _making.fakes = True
    try:
        return mode.from_tensor(real, source=_ORIGIN, trace=False)
    finally:
        _making.fakes = False


# ------------------------------------------------------------ answers about plain numbers

def _of_plain_numbers(name: str, answer: Callable) -> Callable:
    """A function of `symbolic_shapes` as it answers as long as no number is symbolic; else it is the module's own."""
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, _SYMBOLIC) and x.node.is_symbolic() for arg in args for x in (arg if isinstance(arg, (tuple, list, torch.Size)) else (arg,))):
            return getattr(importlib.import_module(_SHAPES), name)(*args, **kwargs)
        return answer(*args, **kwargs)
    return stand_in


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, (tuple, list)) and isinstance(y, (tuple, list)):
        return len(x) == len(y) and all(map(_equal, x, y))
    return x == y


_ANSWERS: dict[str, Callable] = {
    **dict.fromkeys(("expect_true", "guard_bool", "guard_int", "guard_or_false", "guard_or_true", "guard_scalar",
                     "guard_size_oblivious", "guarding_hint_or_throw", "statically_known_true"), lambda x: x),
    **dict.fromkeys(("is_nested_int", "is_symbolic", "has_free_unbacked_symbols"), lambda x: False),
    **dict.fromkeys(("_iterate_exprs", "_iterate_nodes", "free_unbacked_symbols"), lambda x: ()),
    "has_guarding_hint": lambda x: True,
    "compute_unbacked_bindings": lambda shape_env, *args, **kwargs: None,
    "sym_and": lambda *conditions: functools.reduce(operator.and_, conditions),
    "sym_or": lambda *conditions: functools.reduce(operator.or_, conditions),
    "sym_eq": _equal,
}
_STAND_INS: dict[str, dict[str, Any]] = {
    _DYNAMO: {"graph_break": lambda msg="": None},             # optimizers ask for one around their steps
    _ORIGINS: {"AttrSource": lambda base, name: base, "ConstantSource": lambda name: _ORIGIN,
               "RandomValueSource": type("RandomValueSource", (Source,), {})},
    "sympy": {"Basic": type("Basic", (), {})},                 # of which nothing is an instance yet
    _FUNCTIONS: {"Max": type("Max", (), {})},
    _SHAPES: {"GuardOnDataDependentSymNode": type("GuardOnDataDependentSymNode", (RuntimeError,), {}),
              **{name: _of_plain_numbers(name, answer) for name, answer in _ANSWERS.items()}},
}
