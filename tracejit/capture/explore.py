"""Following names: which persistent values can code read that uses these names and starts from these objects?

Every attribute chain that code can spell is made of names in its `co_names`. So from the objects that a frame
starts with, all of its names are followed through all objects that are met, until nothing new is found. This
knows more chains than the code has, never fewer, and needs no understanding of the byte code.
"""
from __future__ import annotations

import contextvars
import functools
import gc
import logging
import operator
import types
import weakref
from typing import Any, Hashable, Iterable

import torch

from ..errors import UnsupportedError
from .cached_results import CACHED_FUNCTION
from .frames import CodeFacts
from .keys import HEAP_TYPE, MISSING, PLAIN, VIEWS, bound_to, contents, hidden, instance_dict, is_container
from .known import (DESCRIPTORS, OPERATORS, Known, KnownState, class_attributes,
                    is_library_class, is_library_module, is_reader, is_torch_class, names_of_reader)
from .parts import behind, context_slot, default_slots, getter_slots, member_slots
from .state import CellSlot, GetSlot, NameSlot, SpaceSlot
from .warned import without_hearing

_LARGEST_FRESH = 1024     # items looked at in a container that the call itself made
_CONTAINER_CLASSES = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
_DEAD_ENDS = (types.BuiltinFunctionType, logging.Logger, *OPERATORS)
_NUMBERS_AND_TEXTS = (bool, int, float, str)
_REPLACEABLE = (types.FunctionType, types.BuiltinFunctionType, type)
Names = tuple[str, ...]
# (namespace or None, name, value): a value that leads on, and where to look for it again.
Step = tuple[Any, str, Any]


class Explorer:
    """Follows names through a `KnownState`, and remembers for each (code, object) what it found."""

    def __init__(self, state: KnownState) -> None:
        self.state = state
        self._seen: dict[Hashable, tuple[int, list[Step]]] = {}
        self._class_names: dict[Hashable, list] = {}

    def __call__(self, code: CodeFacts, roots: Iterable[Any], names: Names, absent: Names = (),
                 everything: bool = False) -> None:
        """`absent`: names that the code may notice to be missing. `everything`: all names may be read."""
        stack, done, more = list(roots), {}, []
        while stack:
            obj = stack.pop()
            if id(obj) in done or type(obj) in PLAIN:
                continue
            done[id(obj)] = obj
            stack += self._follow(code, obj, names, absent)
            if everything:
                more += self.read_all(obj)
            if is_reader(obj):                       # names are called by it, of objects already seen as well
                new = [name for name in names_of_reader(obj) if name not in names]
                if new:
                    names, stack, done = (*names, *new), [*stack, *done.values()], {}
        if more:
            self(code, [value for value in more if id(value) not in done], names, absent)

    def read(self, code: CodeFacts, obj: Any, names: Names) -> None:
        """Reads `names` of one object, or finds them missing, and follows nothing."""
        record = self.state.objects.get(id(obj))
        key = (id(code.code), id(obj), names)
        if record is not None and key not in self._seen:
            self._seen[key] = (0, self._scan(code, record, names, names))

    def read_library(self, code: CodeFacts, module: types.ModuleType) -> None:
        """The functions, classes and plain values that code takes from a library's module: somebody may replace them."""
        key = (id(code.code), id(module))
        if key in self._seen:
            return
        self._seen[key] = (0, [])
        names = instance_dict(module)
        for name in code.names:
            value = without_hearing(names.get(name, MISSING))
            if issubclass(type(value), _REPLACEABLE) or type(value) in _NUMBERS_AND_TEXTS and not name.startswith("__"):
                key = (id(names), name)
                if not self.state.registered(key):
                    slot = NameSlot(self.state.space_of(module), name)
                    self.state.register(key, slot, f"{names.get('__name__')}.{name}", value, value)
            elif issubclass(type(value), types.ModuleType) and value is not module:
                self.read_library(code, value)

    def forget(self) -> None:
        """Lets go of the values that were followed."""
        self._seen.clear()

    def _follow(self, code: CodeFacts, obj: Any, names: Names, absent: Names) -> list:
        found: list = []
        if is_container(obj):
            if id(obj) in self.state.containers or len(obj) <= _LARGEST_FRESH:
                found = [item for item in contents(obj) if leads_on(item)]
                found += [key for key in dict.keys(obj) if leads_on(key)] if issubclass(type(obj), dict) else []
            if is_library_class(type(obj)):
                return found
        record = self.state.objects.get(id(obj))
        if record is None:
            return found + _parts(obj, names)
        key = (id(code.code), id(obj), names, absent)
        seen = self._seen.get(key)
        size = len(record.names) if record.names is not None else 0
        if type(obj) is CACHED_FUNCTION:
            size += obj.cache_info().currsize
        if seen is not None and seen[0] == size:
            for at, (space, name, value) in enumerate(seen[1]):
                if space is not None and space.get(name) is not value:
                    seen[1][at] = (space, name, space.get(name))
            return found + [value for _, _, value in seen[1]]
        steps = self._scan(code, record, names, absent)
        self._seen[key] = (size, steps)
        return found + [value for _, _, value in steps]

    # ------------------------------------------------------------ one object

    def _scan(self, code: CodeFacts, record: Known, names: Names, absent: Names) -> list[Step]:
        """Registers those of `names` that the object has, and returns the values that lead on."""
        kind = type(record.obj)
        if issubclass(kind, type):
            return self._scan_class(code, record, names, absent)
        steps: list[Step] = [(None, "", value) for value in self._behind(record, names)]
        if type(record.names) is dict:
            for name in names:
                if name in record.names:
                    value = record.names[name]
                    self.state.register_name(record, record.space, record.names, name, value)
                    if leads_on(value):
                        steps.append((record.names, name, value))
            if "_modules" in record.tables:
                steps += self._scan_children(record, names)
        if kind is types.ModuleType or issubclass(kind, types.ModuleType):
            for name in code.stored:
                self.journal_name(record, name)
            self._register_absent(record, absent)
        else:
            steps += self._scan_type(code, record, names, absent)
        return steps

    def journal_name(self, record: Known, name: str) -> None:
        """The code may assign an attribute of a class or module, whose namespaces are not copied whole."""
        if not (issubclass(type(record.obj), type) and is_library_class(record.obj)):
            slot = NameSlot(record.space, name)
            self.state.journal.add_slot((id(record.obj), "class", name), slot, f"{record.path}.{name}")

    def _scan_children(self, record: Known, names: Names) -> list[Step]:
        space, table = record.tables["_modules"], record.names["_modules"]
        if issubclass(type(record.obj), _CONTAINER_CLASSES):     # its items are used under no name
            names = tuple(table)
        found = [name for name in names if name in table]
        for name in found:
            self.state.register_name(record, space, table, name, table[name])
        return [(table, name, table[name]) for name in found]

    def _behind(self, record: Known, names: Names) -> list:
        """What an object leads to other than by its attributes."""
        obj, kind = record.obj, type(record.obj)
        if issubclass(kind, torch.jit.ScriptModule):
            raise UnsupportedError(f"the state of {record.path}, a TorchScript module, cannot be watched: "
                                   "use the module that was scripted")
        if kind is types.MethodType:
            return [obj.__self__]
        if kind is functools.partial:
            return [self.state.register_slot(GetSlot(obj, name, operator.attrgetter(name)), f"{record.path}.{name}")
                    for name in ("func", "args", "keywords")]
        if kind in VIEWS or bound_to(obj) is not MISSING:
            inner = behind(obj)
            return [inner] + ([] if is_container(inner) else self.read_all(inner))
        if kind is types.CellType:
            return [self.state.register_slot(CellSlot(obj), record.path)]
        if kind is types.FunctionType:
            return self._parts_of_function(obj, names)
        if kind in DESCRIPTORS:
            return [part for name in DESCRIPTORS[kind] if leads_on(part := getattr(obj, name))]
        if kind is CACHED_FUNCTION:
            return self.state.caches.look(record, self.state.adopt)
        if kind is weakref.ref:
            return [self.state.register_slot(GetSlot(obj, "()", _referent), f"{record.path}()")]
        if kind is contextvars.ContextVar:
            return [self.state.register_slot(context_slot(obj), f"{record.path}.get()")]
        return []

    def _parts_of_function(self, function: types.FunctionType, names: Names) -> list:
        """Its defaults and cells, where the code may ask for them."""
        cells = list(function.__closure__ or ()) if "__closure__" in names else []
        for name, cell in zip(function.__code__.co_freevars, cells):
            self.state.adopt(cell, f"closure {name}", None)
        slots = [slot for slot in default_slots(function) if slot.name in names]
        return cells + [self.state.register_slot(slot, f"default of {function.__name__}") for slot in slots]

    # ------------------------------------------------------------ classes

    def _scan_type(self, code: CodeFacts, record: Known, names: Names, absent: Names) -> list[Step]:
        """What its class gives an object: `__slots__` members, class attributes, methods, properties."""
        kind, steps, given = type(record.obj), self._read_getters(code, record, names), set()
        members = member_slots(record)
        self.state.register_class(record)
        for name in names:
            if name in members:
                self.state.chain(record)
                steps.append((None, name, self.state.register_slot(members[name], f"{record.path}.{name}")))
        for cls, name, value, library in self._attributes(code, kind, names):
            given.add(name)
            own = type(record.names) is dict and name not in record.names
            if own and (not library or name == "forward") and not hasattr(type(value), "__set__"):
                self.state.register_name(record, record.space, record.names, name, MISSING)
            if not library:
                self._register_class(cls, kind, name, value)
                steps.append((None, name, value))
        if code.types and kind.__flags__ & HEAP_TYPE:
            self.state.adopt(kind, kind.__qualname__, None)
            steps.append((None, "__class__", kind))
        # Module.__getattr__ tells what it does not find; only a getattr asks a tensor for what is not there.
        guarded = absent is not code.absent or not (issubclass(kind, torch.Tensor) or is_torch_class(kind))
        if absent and guarded and not issubclass(kind, torch.nn.Module):
            missing = [name for name in absent if name not in given and name not in members]
            self._register_absent(record, missing)
            for name in missing:
                self._register_class(object, kind, name, MISSING)
        return [step for step in steps if leads_on(step[2])]

    def _attributes(self, code: CodeFacts, kind: type, names: Names) -> list:
        key = (id(code.code), id(kind), names)
        found = self._class_names.get(key)
        if found is None:
            found = self._class_names[key] = class_attributes(kind, names, code.supers)
        return found

    def _register_absent(self, record: Known, names: Iterable[str]) -> None:
        for name in names if type(record.names) is dict else ():
            if name not in record.names:
                self.state.register_name(record, record.space, record.names, name, MISSING)

    def _scan_class(self, code: CodeFacts, record: Known, names: Names, absent: Names) -> list[Step]:
        cls = record.obj
        for name in code.stored:
            self.journal_name(record, name)
        steps: list[Step] = self._read_getters(code, record, names)
        of_metaclass = [] if type(cls) is type else class_attributes(type(cls), names, code.supers)
        for owner, name, value, library in class_attributes(cls, names, code.supers) + of_metaclass:
            if not library:
                self._register_class(owner, cls if owner in cls.__mro__ else type(cls), name, value)
                if leads_on(value):
                    steps.append((None, name, value))
        for name in () if is_library_class(cls) else absent:
            if not hasattr(type(cls), name) and all(name not in vars(base) for base in cls.__mro__):
                self._register_class(object, cls, name, MISSING)
        return steps

    def _read_getters(self, code: CodeFacts, record: Known, names: Names) -> list[Step]:
        """What C keeps of functions, classes and exceptions, and hands out under a name that the user's code spells."""
        kind, library = type(record.obj), issubclass(type(record.obj), type) and is_library_class(record.obj)
        if code.library or library or not issubclass(kind, (types.FunctionType, type, BaseException)):
            return []
        slots = getter_slots(record, names).items()
        return [(None, name, self.state.register_slot(slot, f"{record.path}.{name}")) for name, slot in slots]

    def _register_class(self, owner: type, kind: type, name: str, value: Any) -> None:
        """Class attribute `name`, found in `owner` on the way through the classes of `kind`."""
        for cls in kind.__mro__:
            key = (id(cls), "class", name)
            wanted = cls is owner and value is not MISSING or not is_library_class(cls)
            if wanted and not self.state.registered(key):
                held = value if cls is owner else MISSING
                before = self.state.journal.slot_before(key, held)
                slot = NameSlot(self.state.space_of(cls), name)
                self.state.register(key, slot, f"{cls.__qualname__}.{name}", held, before)
            if cls is owner:
                return

    def register_method(self, kind: type, name: str) -> None:
        """A method that runs though no name calls it: an operator, `__call__`, a property."""
        for cls, _, value, library in class_attributes(kind, (name,), True):
            if not library:
                self._register_class(cls, kind, name, value)
            self.state.adopt(value, f"{cls.__qualname__}.{name}", None)

    # ------------------------------------------------------------ all attributes

    def read_all(self, obj: Any) -> list:
        """Something may read any attribute, also one that is not there; returns what the attributes hold."""
        record = self.state.objects.get(id(obj))
        if record is None or issubclass(type(obj), (types.ModuleType, types.FunctionType)):
            return []
        for name, slot in () if is_library_class(type(obj)) else member_slots(record).items():
            self.state.chain(record)
            self.state.register_slot(slot, f"{record.path}.{name}")
        names = record.names
        if type(names) is not dict:
            return []
        for name, value in list(names.items()):
            if not hidden(value):           # that it is there is no sign that it is read
                self.state.register_name(record, record.space, names, name, value)
        copy = self.state.journal.copy_of(names)
        whole = SpaceSlot(record.space)
        self.state.register((id(names), "all"), whole, f"{record.path}.__dict__", copy, copy, record)
        return [value for value in names.values() if leads_on(value)]


def leads_on(value: Any) -> bool:
    """May code read anything from this value?"""
    kind = type(value)
    if kind in PLAIN or value is MISSING or issubclass(kind, _DEAD_ENDS) and bound_to(value) is MISSING:
        return False
    if issubclass(kind, torch.Tensor):
        return bool(instance_dict(value))
    return not (issubclass(kind, types.ModuleType) and is_library_module(value))


def _referent(ref: weakref.ref) -> Any:
    return ref()


def _parts(obj: Any, names: Names) -> list:
    """What an object that the call itself made leads to; it is not guarded, what it holds may be."""
    kind = type(obj)
    if kind is types.MethodType:
        return [obj.__self__, obj.__func__]
    if kind is functools.partial:
        return [obj.func, obj.args, obj.keywords]
    if not kind.__flags__ & HEAP_TYPE and hasattr(kind, "__next__"):
        return gc.get_referents(obj)     # an iterator over a container
    found = instance_dict(obj)
    if type(found) is not dict:
        return []
    return [found[name] for name in names if name in found and leads_on(found[name])]
