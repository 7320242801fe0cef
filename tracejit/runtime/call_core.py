"""The C call path: a subclass of a Python class whose instances find and run compiled entries in C.

An instance keeps a table of candidates. The key of a call's arguments and modes finds those of its kind, checks of Python
state pick one, and its program runs. What C cannot tell, and what it has not met, goes to `_missed(key, args, kwargs)` of the
Python class; that registers what it finds under `key` (None: C cannot key such a call). So Python alone decides what a call
means: C remembers. Without a compiler, or where `call_layout` finds something else than it expects, the Python class is used.
"""
from __future__ import annotations

import ctypes
import sys
import threading
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import torch

from ..capture.guards import Group
from ..capture.inputs import CallInputs
from ..executors.compile_lock import compile_lock
from ..executors.kernel_cache import CompilerError, PartInC
from ..executors.launch import LAUNCHER
from ..torch_private import LIBRARIES, keyset_of
from .call_layout import CODES, Layout, find_layout, objects_are_plain, probes
from .call_state import Check, Source, State, state_of
from .entry import Entry, trimmed

_LINK = ("-O1", "-fno-tree-vectorize", "-Wl,--no-as-needed", f"-L{LIBRARIES}", "-l:libc10.so")
_MISSED = sys.intern("_missed")
_HERE = Path(__file__).parent
_CORE = PartInC(_HERE / "call_key.c", _HERE / "call_core.c", more=_LINK)
_lock = compile_lock()


class _Value(ctypes.Structure):
    _fields_ = [("origin", ctypes.c_int64), ("index", ctypes.c_int64), ("value", ctypes.c_void_p)]


class _Struct(ctypes.Structure):
    """As `Candidate` in call_core.c."""

    _fields_ = ([(n, ctypes.c_void_p) for n in ("owner", "run", "build", "finish", "names", "checks", "sources",
                                                "others", "arguments", "outputs")]
                + [(n, ctypes.c_int64) for n in ("check_count", "slot_count", "source_count", "other_count",
                                                 "argument_count", "output_count", "single", "result", "alone", "word_count")]
                + [("words", ctypes.c_void_p)])


class Candidate:
    """Owns what one candidate of the table refers to. `source`: the user's line of a program that is one call."""

    __slots__ = ("struct", "parts", "source", "place")

    def __init__(self, place: Any, entry: Entry, state: Optional[State]) -> None:
        self.place, self.parts, self.source, self.struct = place, [entry, state], None, _Struct(owner=id(self))
        self._describe_program(entry)
        self.struct.alone = state is None or state.alone
        if state is not None:
            self._array("checks", Check, state.checks, "check_count")
            self._array("sources", Source, state.sources, "source_count")
            self._array("others", Source, state.others, "other_count")
            self.struct.slot_count = state.slots

    def _array(self, name: str, kind: Any, rows: list, count: str) -> None:
        array = (kind * max(len(rows), 1))(*rows)
        self.parts.append(array)
        setattr(self.struct, name, ctypes.addressof(array))
        setattr(self.struct, count, len(rows))

    def _object(self, name: str, value: Any) -> None:
        self.parts.append(value)
        setattr(self.struct, name, id(value))

    def _describe_program(self, entry: Entry) -> None:
        kinds = {"item": 0, "tuple": 1, "list": 2, "built": 3}
        call = entry.call
        self.struct.result, self.struct.output_count = kinds[entry.result], len(entry.program.outputs)
        self._object("build", entry.build)
        if entry.effects or entry.grads or entry.warned:
            self._object("finish", entry.finish_call)
        elif call is not None:
            self.source, self.struct.single = call.source, call.single
            self._object("run", call.run)
            if call.names:
                self._object("names", call.names)
            self._array("arguments", _Value, [(o, n, id(v)) for o, n, v in call.arguments], "argument_count")
            self._array("outputs", _Value, [(o, n, id(v)) for o, n, v in call.outputs], "output_count")
            self.parts.append(call)
        else:
            self._object("run", entry.direct)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)


class Core:
    """The loaded library. `key_of(*args, **kwargs)`: the key of a call as bytes, None when C cannot tell."""

    def __init__(self, library: ctypes.PyDLL, layout: Layout) -> None:
        self.library = library
        layout.trimmed, layout.name_missed = id(trimmed), id(_MISSED)
        ctypes.memmove(ctypes.addressof(Layout.in_dll(library, "tj_layout")), ctypes.addressof(layout), ctypes.sizeof(layout))
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.argtypes, make.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p], ctypes.py_object
        self.key_of: Callable[..., Optional[bytes]] = make(ctypes.addressof(ctypes.c_char.in_dll(library, "tj_key")), None, None)
        self.capturing = ctypes.c_int.in_dll(library, "tj_capturing")
        library.tj_new_table.argtypes, library.tj_hits.argtypes = [ctypes.py_object, ctypes.c_long], [ctypes.py_object]
        library.tj_add.argtypes = [ctypes.py_object, ctypes.c_char_p, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        library.tj_assumed.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p, ctypes.c_long]
        for name in ("tj_new_table", "tj_hits", "tj_add", "tj_assumed"):
            getattr(library, name).restype = ctypes.c_long

    def agrees(self) -> bool:
        """Are tensors of known fields read as Python reads them? For a thread without modes."""
        key = self.words(None)
        if key is None:
            return False
        Layout.in_dll(self.library, "tj_layout").no_autocast = key[2]
        return all(self.words(t) == [*key[:3], _ONE_ARGUMENT, *_expected_words(t)] for t in [*probes(), *_with_history()])

    def words(self, argument: Any) -> Optional[list[int]]:
        key = self.key_of(argument)
        return None if key is None else memoryview(key).cast("Q").tolist()


_ONE_ARGUMENT = 14 | 1 << 8


def _with_history() -> list[torch.Tensor]:
    leaf = torch.ones(2, dtype=torch.float32, requires_grad=True)
    return [leaf, leaf * 2, leaf[1:], leaf.detach(), torch.nn.Parameter(leaf.detach()) * 2]


def _expected_words(t: torch.Tensor) -> list[int]:
    grad = (3 if t.is_leaf else 1) if t.requires_grad else 0
    kind = 1 | (type(t) is torch.nn.Parameter) << 4 | grad << 5 | t.dim() << 8 | CODES[t.dtype] << 24
    return [kind, keyset_of(t).raw_repr(), t.storage_offset(), t.untyped_storage().nbytes(), *t.shape, *t.stride()]


_loaded: list[Optional[Core]] = []
_captures = 0                                                  # that run now


def core() -> Optional[Core]:
    """Compiled once for a machine and release of torch, loaded once in a process; None: calls stay in Python."""
    with _lock:
        if not _loaded:
            found: list[Optional[Core]] = []
            looking = threading.Thread(target=lambda: found.append(_core()))   # no mode of the caller's is on there
            looking.start()
            looking.join()
            _loaded.append(found[0] if found else None)
            _tell_captures()
        return _loaded[0]


def _core() -> Optional[Core]:
    layout = find_layout()
    if layout is None:
        return None
    try:
        library = _CORE.load()
    except CompilerError:
        return None
    made = Core(ctypes.PyDLL(library._name), layout)
    return made if made.agrees() else None


# ------------------------------------------------------------ instances

class _Member(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("type", ctypes.c_int), ("offset", ctypes.c_ssize_t), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p)]


class _Slot(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_int), ("value", ctypes.c_void_p)]


class _Spec(ctypes.Structure):
    """As `PyType_Spec` in Python's headers, as the two above are `PyMemberDef` and `PyType_Slot`."""

    _fields_ = [("name", ctypes.c_char_p), ("size", ctypes.c_int), ("item_size", ctypes.c_int), ("flags", ctypes.c_uint),
                ("slots", ctypes.c_void_p)]


_MEMBERS, _OBJECT_EX, _SSIZE, _READ_ONLY = 72, 16, 19, 1
_DEFAULT, _VECTORCALL, _BASETYPE = 1 << 18, 1 << 11, 1 << 10
_FIELDS = 16                                                   # bytes: what calls it, its table


_specs: list[tuple] = []


def _fields_at(base: type) -> int:
    """Bytes before the fields that C adds to instances of `base`."""
    return -(-base.__basicsize__ // 8) * 8


@lru_cache(None)
def called_in_c(base: type) -> type:
    """A subclass of `base` whose instances can be called in C, or `base` itself. What C needs is compiled from now on."""
    if not objects_are_plain():
        return base
    LAUNCHER.begin()
    _CORE.begin()
    at = _fields_at(base)
    members = (_Member * 3)(_Member(b"__vectorcalloffset__", _SSIZE, at, _READ_ONLY), _Member(b"_table", _OBJECT_EX, at + 8))
    slots = (_Slot * 2)(_Slot(_MEMBERS, ctypes.addressof(members)))
    spec = _Spec(f"{base.__module__}.{base.__name__}".encode(), at + _FIELDS, 0, _DEFAULT | _VECTORCALL | _BASETYPE,
                 ctypes.addressof(slots))
    make = ctypes.pythonapi.PyType_FromSpecWithBases
    make.argtypes, make.restype = [ctypes.c_void_p, ctypes.py_object], ctypes.py_object
    made = make(ctypes.addressof(spec), base)
    made.__qualname__, made.__doc__ = base.__qualname__, base.__doc__
    _specs.append((members, slots, spec))                      # releases before 3.11 read the name there
    return made


class Calls:
    """What one instance has registered."""

    def __init__(self, function: Any) -> None:
        self.held: dict[int, Candidate] = {}                   # by address
        self.places: dict[Any, int] = {}                       # address by (key, entry)
        self.in_c, self.waits = False, "_table" in vars(type(function))
        self.attach(function)

    def attach(self, function: Any) -> None:
        """Calls of it go to C from now on, if what does that is compiled."""
        if not self.waits or not _CORE.ready():
            return
        with _lock:
            if self.waits and core() is not None:
                self.in_c = core().library.tj_new_table(function, _fields_at(type(function).__base__)) == 0
            self.waits = False

    def register(self, function: Any, key: bytes, group: Group, call: CallInputs, inputs: list, entry: Entry) -> None:
        """From now on a call of this key in the present state runs `entry` in C."""
        if not entry.ready or not self._is_worth_it(entry, group):
            return
        before = group.guards.tensor_values(call, inputs)
        state = None
        if not group.guards.plain:
            state = state_of(group, call.roots)
            if state is None:
                return
        place = (key, entry)
        made = Candidate(place, entry, state)
        if state is not None:
            self._assume(made, call.tensors)
            moved = not made.struct.words or group.guards.tensor_values(call, inputs) != before
            if moved or not _is_found(group, state, before, entry):
                return
        with _lock:
            self._file(function, made)

    def _is_worth_it(self, entry: Entry, group: Group) -> bool:
        """A check of state is written when a state comes again; anew when values came anew."""
        entry.seen += 1
        return group.guards.plain or entry.seen == 1 or entry.seen % 16 == 0

    def _assume(self, made: Candidate, tensors: list) -> None:
        room = 4096 * (1 + made.struct.source_count)
        words, arguments = (ctypes.c_uint64 * room)(), (ctypes.py_object * max(len(tensors), 1))(*tensors)
        count = core().library.tj_assumed(made.address, arguments, len(tensors), words, room)
        if count >= 0:
            kept = (ctypes.c_uint64 * max(count, 1))(*words[:count])
            made.parts.append(kept)
            made.struct.words, made.struct.word_count = ctypes.addressof(kept), count

    def _file(self, function: Any, made: Candidate) -> None:
        self.held[made.address] = made
        old = core().library.tj_add(function, made.place[0], len(made.place[0]) // 8, made.address, self.places.get(made.place))
        gone = self.held.pop(old, None) if old > 0 else made if old < 0 else None
        if gone is not None:
            self.places.pop(gone.place, None)
        if old >= 0:
            self.places[made.place] = made.address


def _is_found(group: Group, state: State, values: Any, entry: Entry) -> bool:
    """Is `entry` the one for the state that the checks were made of?"""
    token = group.reader.token(state.keys) if group.guards.locations else 0
    return token is not None and group.entries.get((token, values)) is entry


def hits(function: Any, calls: Calls) -> int:
    return core().library.tj_hits(function) if calls.in_c else 0


def _tell_captures() -> None:
    if _loaded and _loaded[0] is not None:
        _loaded[0].capturing.value = _captures


@contextmanager
def paused() -> Iterator[None]:
    """During a capture calls go to Python, which makes them part of the program that is captured."""
    global _captures
    with _lock:
        _captures += 1
        _tell_captures()
    try:
        yield
    finally:
        with _lock:
            _captures -= 1
            _tell_captures()
