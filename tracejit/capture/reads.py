"""Which Python state outside its arguments does a call read and write?

During a capture the user's function runs once. `StateReads` watches its Python frames through a profile hook: before
the body of a frame runs, every place that its code can name is registered as a `Location` with the value it holds,
and copied into a journal. An entry guarded on the locations never runs stale; the journal undoes and replays writes.
Guaranteed: nothing of the user's code is run by looking, and no tensor is touched but by `is`, `id` and `type`.
"""
from __future__ import annotations

import enum
import functools
import io
import os
import random
import sys
import types
from typing import Any, Callable, Iterable

import torch

from ..errors import UnsupportedError
from .explore import Explorer, leads_on
from .frames import GLUE, SKIP, WATCH, CodeFacts, facts, functions_of, imported_modules, known_facts, where
from .journal import PLACEHOLDERS, StateWrite
from .known import CACHED_FUNCTION, HEAP_TYPE, Known, KnownState, is_library_module
from .locations import Location
from .sites import attribute_at, evaluate
from .state import MISSING, PLAIN, CellSlot, GetSlot, ItemSlot, Namespace, NameSlot, contents, instance_dict, is_container, is_tensor

_BY_NAME = (getattr, hasattr, setattr, delattr)
_BY_NAME_IDS = frozenset(map(id, _BY_NAME))
_ALL_NAMES_IDS = frozenset(map(id, (vars, dir)))
_IMPURE_IDS = frozenset(map(id, (print, input, open, exec, eval, globals, breakpoint)))
_IMPURE_MODULES = frozenset({"time", "posix", "nt", "_io", "_socket", "_posixsubprocess", "select", "_random", "fcntl",
                             "secrets"})
_HARMLESS = frozenset({"fspath", "getpid", "sched_getaffinity", "cpu_count"})
_SERIALIZERS = frozenset({"_pickle", "_json", "_struct", "marshal", "_copy"})
_OPAQUE = (torch._C._FunctionBase, enum.Enum, BaseException)
_GETATTR = torch.nn.Module.__getattr__.__code__
_SETATTR = torch.nn.Module.__setattr__.__code__
_DELATTR = torch.nn.Module.__delattr__.__code__
_ENVIRON_CODES = frozenset({id(type(os.environ).__getitem__.__code__)})


class StateReads:
    """Watches one call. `locations`: what was read; `locate`: where a tensor lives; `writes`, `rollback`: the journal.

    `roots` are objects among the arguments, each with a path for messages. After the `with` block take the result and
    `writes()` first, then `rollback()`.
    """

    def __init__(self, fn: Callable, roots: Iterable[tuple[Any, str]] = ()) -> None:
        self.state = KnownState()
        self.explore = Explorer(self.state)
        self.error: UnsupportedError | None = None
        self._fresh: set[int] = set()                     # ids of objects that the call made; ids of the dead included
        self._provisional: dict[int, Known] = {}          # objects of unknown origin
        self._entered: set[tuple[int, int]] = set()
        self._nested: set[int] = set()                    # code whose functions the call itself makes
        self._extra: dict[int, tuple[str, ...]] = {}      # names that getattr was seen to use, by code
        self._read_whole: dict[int, list] = {}            # objects read by untold names, by code
        self._tensors = 0
        self._hook = self._on_event
        for value, path in roots:
            if is_container(value):
                self.state.adopt_argument(value, path)
            elif id(value) not in self.state.objects:
                self.state.adopt(value, path, None)
        self._adopt_function(fn)

    def _adopt_function(self, fn: Any) -> None:
        while isinstance(fn, functools.partial):
            self.state.adopt(fn.args, "partial.args", GetSlot(fn, "args", lambda f: f.args))
            self.state.adopt(fn.keywords, "partial.keywords", GetSlot(fn, "keywords", lambda f: f.keywords))
            fn = fn.func
        if isinstance(fn, types.MethodType):
            self.state.adopt(fn.__self__, "self", None)
            fn = fn.__func__
        self.state.adopt(fn, "self" if not isinstance(fn, types.FunctionType) else fn.__name__, None)

    # ------------------------------------------------------------ what callers ask

    @property
    def locations(self) -> list[Location]:
        return self.state.locations

    def locate(self, tensor: torch.Tensor) -> Location | None:
        """Where a real tensor outside the arguments was found, by identity; None where it can not be found again."""
        return self.state.locate(tensor)

    def watch_tensor(self, tensor: torch.Tensor, path: str) -> None:
        """Guards and journals Python attributes of an argument tensor. At later calls it is `roots[k]` for call k."""
        self.state.watch_tensor(tensor, path, self._tensors)
        self._tensors += 1

    def knows(self, value: Any) -> bool:
        """Was this object there before the call? Also true for the placeholders in a write's value."""
        known = id(value) in self.state.objects or id(value) in self.state.containers
        return known or type(value) in PLACEHOLDERS

    def writes(self) -> list[StateWrite]:
        """How the call changed the state it met. UnsupportedError for a change that cannot be replayed."""
        found = self.state.journal.writes()
        unknown = {id(record.space): record.path for record in self._provisional.values()}
        for write in found:
            if id(getattr(write.slot, "space", None)) in unknown:
                raise UnsupportedError(f"the call writes to {write.path}, an object of unknown origin")
        return found

    def rollback(self) -> None:
        """Puts all state that the call met back as it was."""
        self.state.journal.rollback()

    # ------------------------------------------------------------ the hook

    def __enter__(self) -> StateReads:
        self._previous = sys.getprofile()
        sys.setprofile(self._hook)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        replaced = self.error is None and sys.getprofile() is not self._hook
        sys.setprofile(None)
        if self._previous is not None:
            if callable(self._previous):
                sys.setprofile(self._previous)
            elif hasattr(self._previous, "enable"):        # cProfile is no callable hook
                self._previous.enable()
        self._settle()
        if self.error is not None and error is not self.error:
            raise self.error from None                     # the user's code caught it
        if replaced and error is None:
            raise UnsupportedError("the call replaces the profile hook")

    def _settle(self) -> None:
        """Objects of unknown origin that have died were the call's own: forget them and what was read of them."""
        self.explore.forget()
        dropped = True
        while dropped:
            dropped = False
            for number, record in list(self._provisional.items()):
                if sys.getrefcount(record.obj) <= 2 and record.space.owner() is record.obj:
                    del self._provisional[number], self.state.objects[number]
                    self.state.forget(record)
                    dropped = True

    def _on_event(self, frame: types.FrameType, event: str, arg: Any) -> None:
        known = known_facts.get(id(frame.f_code)) or facts(frame.f_code)
        try:
            if event == "call":
                if known.kind == WATCH:
                    self._enter(frame, known)
                elif known.kind == GLUE:
                    self._enter_glue(frame, known)
                elif known.makes:
                    self._note_made(frame, known)
            elif event == "c_call":
                if known.kind != SKIP:
                    self._call_c(frame, known, arg)
            elif event == "return" and arg is not None and type(arg) not in PLAIN and known.kind != SKIP:
                self._leave(frame, known, arg)
        except UnsupportedError as e:
            self.error = e if e.where else UnsupportedError(str(e), where=where(frame))
            raise self.error from None

    # ------------------------------------------------------------ frames

    def _enter(self, frame: types.FrameType, code: CodeFacts) -> None:
        if code.code is _GETATTR:
            return self._enter_getattr(frame)
        if code.code is _SETATTR or code.code is _DELATTR:
            return None
        if code.makes == "self":
            self._note_made(frame, code)
        values = frame.f_locals
        roots = self._enter_code(frame, code, values)
        if code.looks_up:
            self._enter_lookup(code, values)
        for value in list(values.values()):
            if type(value) not in PLAIN and self._is_root(value):
                roots.append(value)
        self.explore(code, roots, *self._names(code))
        for argument in code.whole:
            obj = evaluate(frame, argument)
            self.explore(code, roots if obj is MISSING else (obj,), *self._names(code), True)
        return None

    def _enter_lookup(self, code: CodeFacts, values: Any) -> None:
        """A `__getattr__` or `__getattribute__` of a class: the attribute is in its second argument."""
        obj, name = (values.get(argument) for argument in code.code.co_varnames[:2])
        if type(name) is str and self._is_root(obj):
            self.explore.read(code, obj, (name,))

    def _names(self, code: CodeFacts) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names that the code may read, and those that it may find missing."""
        names = code.names + self._extra.get(id(code.code), ())
        return names, code.absent

    def _enter_getattr(self, frame: types.FrameType) -> None:
        """`Module.__getattr__` says exactly what is looked up, and whether it is there."""
        values = frame.f_locals
        obj, name = values["self"], values["name"]
        self._is_root(obj)
        record = self.state.objects.get(id(obj))
        if record is None or type(name) is not str or type(record.names) is not dict:
            return
        for table, space in record.tables.items():
            names = record.names.get(table)
            if issubclass(type(names), dict) and name in names:
                return self.state.register_name(record, space, names, name, names[name])
        for table, space in record.tables.items():
            self.state.register_name(record, space, record.names[table], name, MISSING)
        return self.state.register_name(record, record.space, record.names, name, MISSING)

    def _enter_code(self, frame: types.FrameType, code: CodeFacts, values: Any) -> list:
        """What the code can reach by itself: globals, imports, its function's closure cells and defaults."""
        space = frame.f_globals
        roots = self._read_globals(code, space)
        first = (id(code.code), id(space))
        if first not in self._entered:
            self._entered.add(first)
            self._find_function(frame, code, values)
            self._nested.update(id(c) for c in code.code.co_consts if isinstance(c, types.CodeType))
        for module in imported_modules(code, space.get("__package__")) if code.imports else ():
            if not is_library_module(module):
                self.state.adopt(module, module.__name__, None)
                roots.append(module)
        for function in self.state.functions.get(id(code.code), ()):
            roots += self._read_function(function)
        return roots

    def _read_globals(self, code: CodeFacts, space: dict) -> list:
        roots = []
        for name in code.stored_globals:
            slot = NameSlot(self.state.space_of(space), name)
            self.state.journal.add_slot((id(space), name), slot, f"global {name}")
        for name in code.globals:
            value = space.get(name, MISSING)
            leads = leads_on(value)
            if value is not MISSING and not (code.library and leads and not is_container(value)):
                key = (id(space), name)
                if not self.state.registered(key):
                    before = self.state.journal.slot_before(key, value)
                    slot = NameSlot(self.state.space_of(space), name)
                    self.state.register(key, slot, f"global {name}", value, before)
                if leads:
                    roots.append(value)
        return roots

    def _read_function(self, function: types.FunctionType) -> list:
        roots = []
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            slot = CellSlot(cell)
            self.state.journal.add_slot(("cell", id(cell)), slot, f"closure {name}")
            roots.append(self.state.register_slot(slot, f"closure {name}"))
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                slot = GetSlot(function, name, lambda f, name=name: getattr(f, name))
                roots.append(self.state.register_slot(slot, f"default of {function.__name__}"))
        return roots

    def _find_function(self, frame: types.FrameType, code: CodeFacts, values: Any) -> None:
        """The function object of a frame, when no name has led to it: a method, an operator, or of unknown origin."""
        name = code.code.co_name
        first = values.get(code.first_argument) if code.first_argument else None
        if first is not None and type(first) not in PLAIN and not is_tensor(first):
            kind = first if issubclass(type(first), type) else type(first)
            if kind.__flags__ & HEAP_TYPE:
                self.explore.register_method(kind, name)
        number = id(code.code)
        if number in self.state.functions or number in self._nested or not code.code.co_freevars:
            return
        for function in functions_of(code.code):
            self.state.adopt(function, function.__name__, None)

    def _enter_glue(self, frame: types.FrameType, code: CodeFacts) -> None:
        """Library code called by watched code: it may read all of the objects that it is given."""
        if code.makes:
            self._note_made(frame, code)
        caller = frame.f_back
        if id(code.code) in _ENVIRON_CODES:
            self._read_environment(frame.f_locals)
        elif not code.quiet and caller is not None and (code.deep or facts(caller.f_code).kind == WATCH):
            for value in list(frame.f_locals.values()):
                if type(value) not in PLAIN and not is_tensor(value) and value is not os.environ and self._is_root(value):
                    self.explore.read_all(value)
                    for item in contents(value) if is_container(value) else ():
                        self.explore.read_all(item)

    def _read_environment(self, values: dict) -> None:
        environment, name = values.get("self"), values.get("key")
        if environment is os.environ and type(name) is str:
            names, encoded = environment._data, environment.encodekey(name)
            slot = NameSlot(self.state.space_of(names), encoded)
            value = names.get(encoded, MISSING)
            self.state.register((id(names), encoded), slot, f"environment {name}", value, value)

    def _leave(self, frame: types.FrameType, code: CodeFacts, value: Any) -> None:
        if id(code.code) in self.state.cached_codes and _holds_tensor(value):
            raise UnsupportedError("a function under lru_cache would keep a tensor of the capture")
        if is_tensor(value):
            return
        if code.makes == "result" and id(value) not in self.state.objects:
            self._fresh.add(id(value))
        caller = frame.f_back
        if caller is not None:
            known = facts(caller.f_code)
            if known.kind == WATCH and self._is_root(value):
                self.explore(known, (value,), *self._names(known))

    def _note_made(self, frame: types.FrameType, code: CodeFacts) -> None:
        if code.makes == "self" and code.first_argument:
            obj = frame.f_locals.get(code.first_argument)
            if id(obj) not in self.state.objects:
                self._fresh.add(id(obj))

    def _is_root(self, value: Any) -> bool:
        """Does anything follow from this value? An object of unknown origin is taken for persistent until it dies."""
        number, kind = id(value), type(value)
        if number in self.state.objects or number in self.state.containers:
            return True
        if issubclass(kind, torch.Tensor) or not leads_on(value):
            return False
        if issubclass(kind, types.ModuleType) or issubclass(kind, type):
            if kind is type or issubclass(kind, types.ModuleType) or value.__flags__ & HEAP_TYPE:
                self.state.adopt(value, getattr(value, "__name__", "module"), None)
        elif number not in self._fresh and kind.__flags__ & HEAP_TYPE and not is_container(value) \
                and not issubclass(kind, _OPAQUE):
            self.state.adopt(value, kind.__name__, None)
            if number in self.state.objects:
                self._provisional[number] = self.state.objects[number]
        return True

    # ------------------------------------------------------------ calls of C functions

    def _call_c(self, frame: types.FrameType, code: CodeFacts, function: Any) -> None:
        number = id(function)
        if number in _BY_NAME_IDS:
            if code.kind == WATCH:
                self._call_by_name(frame, code, attribute_at(frame))
        elif number in _ALL_NAMES_IDS:
            if code.kind == WATCH:
                self._call_by_name(frame, code, (attribute_at(frame)[0], None))
        elif number in _IMPURE_IDS or _is_impure(function):
            name = getattr(function, "__name__", "?")
            raise UnsupportedError(f"the call depends on or acts upon the world outside: {name}()")
        elif function.__module__ in _SERIALIZERS and code.kind == WATCH:
            self._call_by_name(frame, code, (MISSING, None))

    def _call_by_name(self, frame: types.FrameType, code: CodeFacts, site: tuple[Any, str | None]) -> None:
        """`getattr(object, name)` and the like. What cannot be told of either means all objects, or all names."""
        obj, name = site
        extra = self._extra.get(id(code.code), ())
        if name is not None and name not in extra:
            self._extra[id(code.code)] = extra + (name,)
        if obj is not MISSING:
            roots = [obj] if self._is_root(obj) else []
        else:
            roots = self._read_globals(code, frame.f_globals)
            roots += [v for v in frame.f_locals.values() if type(v) not in PLAIN and self._is_root(v)]
        for value in roots if name is not None else ():
            if issubclass(type(value), (type, types.ModuleType)) and id(value) in self.state.objects:
                self.explore.journal_name(self.state.objects[id(value)], name)
        if name is None:
            read = self._read_whole.setdefault(id(code.code), [])
            if obj is MISSING:       # perhaps an attribute of what was read so before
                roots += [value for owner in read for value in (instance_dict(owner) or {}).values() if self._is_root(value)]
            self.explore(code, roots, self._names(code)[0], (), True)
            read += roots
        elif obj is not MISSING and roots:
            self.explore.read(code, obj, (name,))
            self.explore(code, roots, self._names(code)[0])
        else:
            self.explore(code, roots, self._names(code)[0], (name,))


def _is_impure(function: Any) -> bool:
    """Clocks, files, processes and random numbers: what it returns or does is not a function of the state."""
    if function.__name__ in _HARMLESS:
        return False
    owner = getattr(function, "__self__", None)
    if function.__module__ in _IMPURE_MODULES:
        return True
    kind = type(owner)
    if issubclass(kind, random.Random) or issubclass(kind, io.IOBase) and kind not in (io.StringIO, io.BytesIO):
        return True
    module = getattr(kind, "__module__", None)
    if isinstance(module, str) and module.startswith("numpy.random"):
        return True
    return owner.__module__ == "datetime" and function.__name__ in ("now", "utcnow", "today") \
        if issubclass(kind, type) else False


def _holds_tensor(value: Any) -> bool:
    return is_tensor(value) or (is_container(value) and any(map(_holds_tensor, contents(value))))
