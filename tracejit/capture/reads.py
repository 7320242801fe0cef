"""Which Python state outside its arguments does a call read and write?

During a capture the user's function runs once. `StateReads` watches its Python frames through a profile hook:
before the body of a frame runs, every place that its code can name is registered as a `Location` with the
value it holds, and copied into a journal. An entry guarded on the locations never runs stale; the journal
undoes and replays writes. Guaranteed: nothing of the user's code is run by looking, and no tensor is touched
but by `is`, `id` and `type`.
"""
from __future__ import annotations

import enum
import functools
import inspect
import operator
import os
import sys
import types
import weakref
from typing import Any, Callable, Iterable

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..errors import UnsupportedError
from .counters import Counters
from .explore import Explorer, leads_on
from .frame_reads import FrameReader
from .frames import GLUE, SKIP, WATCH, CodeFacts, facts, is_torchs_look, known_facts, watched_above, where
from .hook import set_profile
from .impure import has_hidden_state, is_impure, refused
from .journal import StateWrite
from .known import Known, KnownState
from .lines import StateError, read_at, written_at
from .locations import Location
from .sites import attribute_at, evaluate
from .keys import HEAP_TYPE, MISSING, PLAIN, contents, instance_dict, is_container, is_contents, is_tensor
from .stored import PLACEHOLDERS
from .state import GetSlot, ItemSlot, RootSlot

_BY_NAME = (getattr, hasattr, setattr, delattr)
_BY_NAME_IDS = frozenset(map(id, _BY_NAME))
_ALL_NAMES_IDS = frozenset(map(id, (vars, dir)))
_SERIALIZERS = frozenset({"_pickle", "_json", "_struct", "marshal", "_copy"})
_WEAK_CONTAINERS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet, WeakIdKeyDictionary)
_OPAQUE = (torch.autograd.function.FunctionCtx, enum.Enum, BaseException)
_GETATTR = torch.nn.Module.__getattr__.__code__
_SETATTR = torch.nn.Module.__setattr__.__code__
_DELATTR = torch.nn.Module.__delattr__.__code__
_ENVIRON_CODES = frozenset({id(type(os.environ).__getitem__.__code__)})


class StateReads:
    """Watches one call: `locations` were read, `locate` finds tensors, `writes` and `rollback` are the
    journal.

    `roots` are objects among the arguments, each with a path for messages. After the `with` block take result and `writes()`, then
    `rollback()`.
    """

    def __init__(self, fn: Callable, roots: Iterable[tuple[Any, str]] = ()) -> None:
        self.state = KnownState()
        self.explore = Explorer(self.state)
        self.counters = Counters(self.state)
        self.frames = FrameReader(self.state, self.explore)
        self.error: UnsupportedError | None = None
        self._outside: types.FrameType | None = None
        self._fresh: set[int] = set()                     # ids of objects that the call made, dead ones too
        self.provisional: dict[int, Known] = {}          # objects of unknown origin, which the call may have made
        self._extra: dict[int, tuple[str, ...]] = {}      # names that getattr was seen to use, by code
        self._read_whole: dict[int, list] = {}            # objects read by untold names, by code
        self._new_classes: set[tuple[Any, Any]] = set()
        self._started = self._replays_arguments = False
        self.asks_classes = ""                             # the user's code that may ask for the class of an object
        self._moved: dict[tuple[int, str], int] = {}
        self._tensors = 0
        self._hook = self._on_event
        for value, path in roots:
            self.state.adopt(value, path, RootSlot(path) if is_contents(value) else None)
            if is_contents(value):
                self.state.register(("root", path), RootSlot(path), path, value, value)
        self._adopt_function(fn)

    def _adopt_function(self, fn: Any) -> None:
        while isinstance(fn, functools.partial):
            for name in ("args", "keywords"):
                self.state.register_slot(GetSlot(fn, name, operator.attrgetter(name)), f"partial.{name}")
            fn = fn.func
        if isinstance(fn, types.MethodType):
            self.state.adopt(fn.__self__, "self", None)
            fn = fn.__func__
        self.state.adopt(fn, "self" if not isinstance(fn, types.FunctionType) else fn.__name__, None)

    def adopt_call(self, args: tuple, kwargs: dict) -> None:
        """The arguments of the call, which the caller guards. Writes to them are replayed on `roots["args"]` and `roots["kwargs"]`."""
        self._replays_arguments = True
        for label, given in (("args", list(enumerate(args))), ("kwargs", list(kwargs.items()))):
            for step, value in given:
                path = step if isinstance(step, str) else f"argument {step}"
                self.state.adopt_argument(value, path, ItemSlot(RootSlot(label), step, label == "kwargs"))

    def _adopt_arguments(self, frame: types.FrameType) -> None:
        """What the first frame is given and nobody knows are arguments, too."""
        code, values = frame.f_code, frame.f_locals
        named = code.co_argcount + code.co_kwonlyargcount
        packed = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        given = [(name, values.get(name)) for name in code.co_varnames[:named]]
        for name in code.co_varnames[named:named + packed]:      # these containers are the call's own
            given += [(name, item) for item in contents(values.get(name))]
        for name, value in given:
            self.state.adopt_argument(value, name, None)

    @property
    def locations(self) -> list[Location]:
        return self.state.locations

    def locate(self, tensor: torch.Tensor) -> Location | None:
        """Where a real tensor outside the arguments was found; None where it cannot be found again."""
        return self.state.locate(tensor)

    def watch_tensor(self, tensor: torch.Tensor, path: str) -> None:
        """Guards and journals the attributes of an argument tensor; the k-th is `roots[k]` at later calls."""
        self.state.watch_tensor(tensor, path, self._tensors)
        self._tensors += 1

    def knows(self, value: Any) -> bool:
        """Was this object there before the call? Also true for the placeholders in a write's value."""
        known = id(value) in self.state.objects and id(value) not in self.state.arguments
        return known and id(value) not in self.provisional or id(value) in self.state.containers or type(value) in PLACEHOLDERS

    def writes(self, result: Any = None) -> list[StateWrite]:
        """How the call changed the state it met, and the result if it shares objects with that. UnsupportedError for a change
        that cannot be replayed."""
        ran = self.frames.entered.values()
        try:
            found = self.state.journal.writes(self._moved, result, self.state.argument_at)
        except StateError as e:
            raise UnsupportedError(str(e), where=written_at(e.path, ran)) from None
        unknown = {id(record.space): record.path for record in self.provisional.values()}
        for write in found:
            space = getattr(write.slot, "space", None)
            lost = space is not None and id(space.owner()) in self.state.arguments and space.via is None
            lost = lost or write.root is not None and not self._replays_arguments
            if lost or id(space) in unknown:
                what = "an attribute of an argument" if lost else "an object of unknown origin"
                raise UnsupportedError(f"the call writes to {write.path}, {what}: return the value instead",
                                       where=written_at(write.path, ran))
        return found

    def watch_again(self, function: Callable[[Callable], Any]) -> Any:
        """`function(hook)`, which runs code of the call that belongs to its backward pass, with the profile hook on meanwhile.
        UnsupportedError if that writes state."""
        moved, before = self._moved, [(w.path, id(w.value)) for w in self.writes()]
        with self:
            sys.setprofile(None)
            try:
                result = function(self._hook)
            finally:
                sys.setprofile(self._hook)
        self._moved = {**self._moved, **moved}
        now = [(w.path, id(w.value)) for w in self.writes()]
        if now != before:
            line = written_at(next((w[0] for w in now if w not in before), ""), self.frames.entered.values())
            raise UnsupportedError("the backward pass writes to Python state: write it outside of the jitted function", where=line)
        return result

    def rollback(self) -> None:
        """Puts all state that the call met back as it was."""
        self.state.journal.rollback()
        for record in self.state.objects.values():
            record.space.release()

    # ------------------------------------------------------------ the hook

    def __enter__(self) -> StateReads:
        self._outside = sys._getframe(1)
        self._previous = sys.getprofile()
        sys.setprofile(self._hook)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        replaced = self.error is None and sys.getprofile() is not self._hook
        sys.setprofile(None)
        set_profile(self._previous)
        self._outside = None
        self._settle()
        self._moved = self.counters.settle()
        try:
            self.state.settle_caches()
        except UnsupportedError as e:
            line = read_at(e.path, self.frames.entered.values()) if isinstance(e, StateError) else ""
            self.error = self.error or UnsupportedError(str(e), where=e.where or line)
        if self.error is not None and error is not self.error:
            raise self.error from None                     # the user's code caught it
        if replaced and error is None:
            raise UnsupportedError("the call replaces the profile hook: set it around the call")

    def _settle(self) -> None:
        """Objects of unknown origin that have died were the call's own: what was read of them goes, too."""
        self.explore.forget()
        dropped = True
        while dropped:
            dropped = False
            for number, record in list(self.provisional.items()):
                if sys.getrefcount(record.obj) <= 2 and record.space.owner() is record.obj:
                    del self.provisional[number], self.state.objects[number]
                    self.state.forget(record)
                    dropped = True

    def _on_event(self, frame: types.FrameType, event: str, arg: Any) -> None:
        known = known_facts.get(id(frame.f_code)) or facts(frame)
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
            elif event == "return" and known.kind != SKIP:
                if arg is not None and type(arg) not in PLAIN:
                    self._leave(frame, known, arg)
                elif known.kind == WATCH and frame.f_code.co_name == "<module>":
                    self._leave_import(frame)
        except UnsupportedError as e:
            line = read_at(e.path, [frame.f_code]) if isinstance(e, StateError) else ""
            self.error = e if e.where else UnsupportedError(str(e), where=line or where(frame))
            raise self.error from None

    # ------------------------------------------------------------ frames

    def _enter(self, frame: types.FrameType, code: CodeFacts) -> None:
        if code.code is _GETATTR:
            return self._enter_getattr(frame)
        if code.code is _SETATTR or code.code is _DELATTR or code.code.co_name == "<module>":
            return None
        if code.makes == "self":
            self._note_made(frame, code)
        if code.types and not (code.library or self.happens_once(frame)):
            self.asks_classes = self.asks_classes or where(frame)
        values = frame.f_locals
        if not code.code.co_flags & inspect.CO_NEWLOCALS:
            self._new_classes.add((frame.f_globals.get("__name__"), code.code.co_name))     # a class body
        roots = self.frames.enter(frame, code, values, self._is_new_class)
        if not self._started:                  # by now defaults that are used are known, and no arguments
            self._started = True
            self._adopt_arguments(frame)
        if code.looks_up:
            self._enter_lookup(code, values)
        for value in list(values.values()):
            if type(value) not in PLAIN and self._is_root(value):
                roots.append(value)
        self.explore(code, roots, *self._names(code))
        self.counters.assign(code.assigned)
        for argument, name in code.counts:
            obj = evaluate(frame, argument)
            if not self.counters.count(obj, name):
                self.explore(code, [obj], (name,))
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

    def _enter_glue(self, frame: types.FrameType, code: CodeFacts) -> None:
        """Library code called by watched code: it may read all of the objects that it is given."""
        if code.makes:
            self._note_made(frame, code)
        caller = frame.f_back
        if id(code.code) in _ENVIRON_CODES:
            self.frames.read_environment(frame.f_locals)
        elif code.weak:
            if caller is not None and facts(caller).kind != SKIP:
                self._read_weak(code, frame.f_locals.get(code.first_argument))
        elif not code.quiet and caller is not None and (code.deep or facts(caller).kind == WATCH):
            for value in list(frame.f_locals.values()):
                if value is os.environ or is_tensor(value) or type(value) in PLAIN:
                    continue
                if self._is_root(value):
                    self.explore.read_all(value)
                    for item in contents(value) if is_container(value) else ():
                        self.explore.read_all(item)

    def _read_weak(self, code: CodeFacts, container: Any) -> None:
        """A weak dictionary or set is Python code around the `data` that it holds."""
        if issubclass(type(container), _WEAK_CONTAINERS) and self._is_root(container):
            self.explore.read(code, container, ("data",))

    def _leave(self, frame: types.FrameType, code: CodeFacts, value: Any) -> None:
        if id(code.code) in self.state.caches.codes:
            self.state.caches.note_made(code.code, value, self.state.adopt)          # state from here on, for all frames
            for known, _ in watched_above(frame, self._outside):
                self.explore(known, (value,), *self._names(known))
        if is_tensor(value):
            return
        if code.makes == "result" and id(value) not in self.state.objects:
            self._fresh.add(id(value))
        caller = frame.f_back
        if caller is not None:
            known = facts(caller)
            if known.kind == WATCH and self._is_root(value):
                self.explore(known, (value,), *self._names(known))

    def _leave_import(self, frame: types.FrameType) -> None:
        """A module was loaded during the call: the frames that import it can read it from here on."""
        for known, outer in watched_above(frame, self._outside):
            if known.imports:
                self.explore(known, self.frames.read_imports(known, outer.f_globals), *self._names(known))

    def _note_made(self, frame: types.FrameType, code: CodeFacts) -> None:
        if code.makes == "self" and code.first_argument:
            obj = frame.f_locals.get(code.first_argument)
            if id(obj) not in self.state.objects:
                self._fresh.add(id(obj))

    def _is_root(self, value: Any) -> bool:
        """Does anything follow from this value? Objects of unknown origin persist till they die."""
        number, kind = id(value), type(value)
        if number in self.state.objects or number in self.state.containers:
            return True
        if issubclass(kind, torch.Tensor) or not leads_on(value):
            return False
        if issubclass(kind, types.ModuleType) or issubclass(kind, type):
            module = issubclass(kind, types.ModuleType)
            if module or value.__flags__ & HEAP_TYPE and not self._is_new_class(value):
                self.state.adopt(value, getattr(value, "__name__", "module"), None)
        elif number not in self._fresh and kind.__flags__ & HEAP_TYPE and not is_container(value) \
                and not issubclass(kind, _OPAQUE):
            self.state.adopt(value, kind.__name__, None)
            if number in self.state.objects:
                self.provisional[number] = self.state.objects[number]
        return True

    def _is_new_class(self, cls: type) -> bool:
        """A class of which nothing is known, and whose body has run during the call."""
        return id(cls) not in self.state.objects and (cls.__module__, cls.__name__) in self._new_classes

    # ------------------------------------------------------------ calls of C functions

    def _call_c(self, frame: types.FrameType, code: CodeFacts, function: Any) -> None:
        number = id(function)
        if number in _BY_NAME_IDS:
            if code.kind == WATCH:
                self._call_by_name(frame, code, attribute_at(frame))
        elif number in _ALL_NAMES_IDS:
            if code.kind == WATCH:
                self._call_by_name(frame, code, (attribute_at(frame)[0], None))
        elif is_impure(function, code.kind == WATCH) or self._was_there(function.__self__) and has_hidden_state(function):
            if not (self.happens_once(frame) or is_torchs_look(frame)):
                raise refused(function)
        elif function.__module__ in _SERIALIZERS and code.kind == WATCH:
            self._call_by_name(frame, code, (MISSING, None))

    def _was_there(self, owner: Any) -> bool:
        return id(owner) in self.state.objects and id(owner) not in self.provisional

    def happens_once(self, frame: types.FrameType | None) -> bool:
        """Within an import, or a function under lru_cache: eager does this once, too, and never again."""
        while frame is not None and frame is not self._outside:
            code = frame.f_code
            if id(code) in self.state.caches.codes or code.co_filename.startswith("<frozen importlib"):
                return True
            frame = frame.f_back
        return False

    def _call_by_name(self, frame: types.FrameType, code: CodeFacts, site: tuple[Any, str | None]) -> None:
        """`getattr(object, name)` and the like: what cannot be told of it means all objects, or all names."""
        obj, name = site
        extra = self._extra.get(id(code.code), ())
        self.counters.assign((name,))
        if name is not None and name not in extra:
            self._extra[id(code.code)] = extra + (name,)
        if obj is not MISSING:
            roots = [obj] if self._is_root(obj) else []
        else:
            roots = self.frames.read_globals(code, frame.f_globals)
            roots += [v for v in frame.f_locals.values() if type(v) not in PLAIN and self._is_root(v)]
        for value in roots if name is not None else ():
            if issubclass(type(value), (type, types.ModuleType)) and id(value) in self.state.objects:
                self.explore.journal_name(self.state.objects[id(value)], name)
        if name is None:
            read = self._read_whole.setdefault(id(code.code), [])
            if obj is MISSING:       # perhaps an attribute of what was read so before
                parts = [value for owner in read for value in (instance_dict(owner) or {}).values()]
                roots += [value for value in parts if self._is_root(value)]
            self.explore(code, roots, self._names(code)[0], (), True)
            read += roots
        elif obj is not MISSING and roots:
            self.explore.read(code, obj, (name,))
            self.explore(code, roots, self._names(code)[0])
        else:
            self.explore(code, roots, self._names(code)[0], (name,))
