"""What a frame reads whatever its locals are: globals, imports, closure cells, defaults."""
from __future__ import annotations

import builtins
import logging
import os
import sys
import types
from typing import Any, Callable

from ..errors import UnsupportedError
from .cached_results import CACHED_FUNCTION
from .explore import Explorer, leads_on
from .frames import CodeFacts, functions_of, imported_modules
from .known import KnownState, class_attributes, is_library_module
from .parts import default_slots
from .keys import HEAP_TYPE, MISSING, PLAIN, is_container, is_tensor
from .state import CellSlot, CodeSlot, NameSlot


class FrameReader:
    """Registers these reads, and returns the values that lead on."""

    def __init__(self, state: KnownState, explore: Explorer) -> None:
        self.state, self.explore = state, explore
        self.nested: set[int] = set()                     # code whose functions the call itself makes
        self.entered: dict[tuple[int, int], types.CodeType] = {}          # by code and globals

    def enter(self, frame: types.FrameType, code: CodeFacts, values: Any,
              is_new_class: Callable[[type], bool]) -> list:
        """What the code can reach by itself: globals, imports, its function's closure cells and defaults."""
        space = frame.f_globals
        roots = self.read_globals(code, space)
        first = (id(code.code), id(space))
        if first not in self.entered:
            self.entered[first] = code.code
            self._find_function(code, values, is_new_class)
            self.nested.update(id(c) for c in code.code.co_consts if isinstance(c, types.CodeType))
        roots += self.read_imports(code, space)
        for function in self.state.functions.get(id(code.code), ()):
            roots += self._read_function(code, function)
        return roots

    def read_imports(self, code: CodeFacts, space: dict) -> list:
        """The user's modules among those that the code imports, as far as they are loaded."""
        roots = []
        for module in imported_modules(code, space.get("__package__")) if code.imports else ():
            if is_library_module(module):
                self.explore.read_library(code, module)
            else:
                self.state.adopt(module, module.__name__, None)
                roots.append(module)
        return roots

    def read_globals(self, code: CodeFacts, space: dict) -> list:
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
                if "random" in code.names and value is sys.modules.get("numpy"):
                    raise UnsupportedError("the call draws random numbers from numpy: draw with torch, or outside")
                if leads:
                    roots.append(value)
            elif value is MISSING and not code.library:
                self._read_builtin(space, name)
            if not leads and issubclass(type(value), types.ModuleType):
                self.explore.read_library(code, value)
            elif not leads and issubclass(type(value), logging.Logger):
                for _, _, method, _ in class_attributes(type(value), code.names, False):
                    if type(method) is CACHED_FUNCTION:          # warning_once
                        self.state.adopt(method, name, None)
        return roots

    def _read_builtin(self, space: dict, name: str) -> None:
        """A name that is no global, and none of Python's own: a global of that name may be made, and who put it there may change it."""
        own = vars(builtins)
        if issubclass(type(own.get(name, MISSING)), (type, types.BuiltinFunctionType)):
            return                                             # checks of each `len` would take longer than they are worth
        for names in (space, own):
            if not self.state.registered((id(names), name)):
                value = names.get(name, MISSING)
                slot = NameSlot(self.state.space_of(names), name)
                self.state.register((id(names), name), slot, f"global {name}", value, self.state.journal.slot_before((id(names), name), value))

    def read_environment(self, values: dict) -> None:
        """A look-up of this frame of `os.environ`."""
        environment, name = values.get("self"), values.get("key")
        if environment is os.environ and type(name) is str:
            names, encoded = environment._data, environment.encodekey(name)
            slot = NameSlot(self.state.space_of(names), encoded)
            value = names.get(encoded, MISSING)
            self.state.register((id(names), encoded), slot, f"environment {name}", value, value)

    def _read_function(self, code: CodeFacts, function: types.FunctionType) -> list:
        roots = []
        if not code.library:
            space = self.state.objects[id(function)].space
            self.state.register_slot(CodeSlot(space), f"code of {function.__name__}")
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            slot = CellSlot(cell)
            self.state.journal.add_slot(("cell", id(cell)), slot, f"closure {name}")
            value = self.state.register_slot(slot, f"closure {name}")
            if "random" in code.names and value is sys.modules.get("numpy"):
                raise UnsupportedError("the call draws random numbers from numpy: draw with torch, or outside")
            roots.append(value)
        roots += [self.state.register_slot(slot, f"default of {function.__name__}") for slot in default_slots(function) if slot.read()]
        return roots

    def _find_function(self, code: CodeFacts, values: Any, is_new_class: Callable[[type], bool]) -> None:
        """The function of a frame when no name has led to it: a method, an operator, of unknown origin."""
        name = code.code.co_name
        first = values.get(code.first_argument) if code.first_argument else None
        if first is not None and type(first) not in PLAIN and not is_tensor(first):
            kind = first if issubclass(type(first), type) else type(first)
            if kind.__flags__ & HEAP_TYPE and not is_new_class(kind):
                self.explore.register_method(kind, name)
        number = id(code.code)
        if number in self.state.functions or number in self.nested or not code.code.co_freevars:
            return
        for function in functions_of(code.code):
            self.state.adopt(function, function.__name__, None)
