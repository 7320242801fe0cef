"""What a code object can read and write, and whose code it is: facts that depend on nothing but the code.

`facts(code)` is computed once per code object. WATCH is code whose reads are guarded (the user's,
site-packages, and the stateful parts of torch: modules, optimizers, scalers); GLUE is library code that
may read the attributes of an object that watched code hands to it (copy, dataclasses, checkpoint); SKIP is
everything that cannot matter: torch below its public functions, the import system, and tracejit itself.
"""
from __future__ import annotations

import dis
import gc
import os
import sys
import sysconfig
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import torch

from ..ir.trace import SourceLine
from .counting import counting_steps
from .sites import FILLER, Argument, pushed

SKIP, GLUE, WATCH = 0, 1, 2

# Attributes that give all attributes of an object, and makers of objects that read attributes by name.
_DICT_NAMES = frozenset({"__dict__", "__getstate__", "__reduce__", "__reduce_ex__", "__slots__"})
_READER_NAMES = frozenset({"attrgetter", "methodcaller"})
# A frame that may catch a failed look-up depends on what is absent, too.
_ABSENCE_NAMES = frozenset({
    "AttributeError", "Exception", "BaseException", "KeyError", "LookupError", "NameError", "suppress"})

_TORCH = os.path.dirname(torch.__file__) + os.sep
_SELF = str(Path(__file__).resolve().parents[1]) + os.sep
_TORCH_WATCHED = tuple(_TORCH + part for part in (
    "nn/modules/", "nn/utils/", "nn/parallel/", "optim/", "distributions/", "amp/", "cpu/amp/", "cuda/amp/", "ao/",
    "utils/data/", "autograd/grad_mode.py", "quasirandom.py", "_functorch/make_functional.py"))
_TORCH_GLUE = tuple(_TORCH + part for part in (
    "random.py", "utils/checkpoint.py", "utils/weak.py", "func/", "nn/"))
_STDLIB = tuple({sysconfig.get_paths()["stdlib"] + os.sep, sysconfig.get_paths()["platstdlib"] + os.sep})
# Parts of the standard library that read files or clocks for their own ends, never for the program's values.
_STDLIB_SKIPPED = ("importlib", "warnings", "linecache", "tokenize", "traceback", "codecs", "abc", "typing",
                   "re", "encodings", "ast", "dis", "opcode", "types")
_WEAK_FILES = ("weakref.py", "_weakrefset.py", "weak.py")      # containers of weak references, in Python
_QUIET_FILES = ("contextlib.py", "functools.py", "enum.py", "operator.py", "numbers.py",
                "_tensor.py")
_DEEP_FILES = ("copy.py", "dataclasses.py", "copyreg.py", "pprint.py")
# Modules whose generated code (dataclasses, exec) is no more the user's than they are.
_GENERATED_SKIPPED = ("torch", __name__.split(".")[0])
_QUIET_SITE = ("numpy", "scipy", "sympy", "mpmath", "_pytest", "pluggy", "networkx",
               "typing_extensions.py")


@dataclass(frozen=True)
class CodeFacts:
    """Static facts of one code object; `code` is kept so that its id stays taken."""

    code: types.CodeType
    kind: int
    library: bool                          # torch's own: its functions and classes are not guarded
    names: tuple[str, ...] = ()            # attributes it may load
    globals: tuple[str, ...] = ()          # globals it may load
    stored: frozenset[str] = frozenset()   # attributes it may assign or delete
    stored_globals: frozenset[str] = frozenset()
    imports: tuple[tuple[int, str], ...] = ()
    absent: tuple[str, ...] = ()           # attributes that it may notice to be missing
    counts: tuple[tuple[Argument, str], ...] = ()          # `base.name += integer`, for which alone it loads
    assigned: frozenset[str] = frozenset() # attributes it may assign otherwise
    whole: tuple[Argument, ...] = ()       # objects of which it may read all attributes
    looks_up: bool = False                 # a `__getattr__`-like method: the name is its second argument
    supers: bool = False
    types: bool = False                    # may reach the class of an object
    makes: str = ""                        # "self": it initialises that; "result": it returns a new object
    first_argument: str | None = None
    quiet: bool = False                    # library code that reads nothing of the objects it is given
    deep: bool = False                     # library code that descends into the objects it is given
    weak: bool = False                     # a method of a container of weak references


_MAKERS = ("__new__", "copy", "deepcopy", "_reconstruct", "replace", "__copy__", "__deepcopy__")
known_facts: dict[int, CodeFacts] = {}


def facts(frame: types.FrameType) -> CodeFacts:
    """The facts of the frame's code, remembered by identity: hashing a code object hashes its byte code."""
    code = frame.f_code
    found = known_facts.get(id(code))
    if found is None:
        found = known_facts[id(code)] = _find_facts(code, str(frame.f_globals.get("__name__")))
    return found


def is_library_file(filename: str | None) -> bool:
    """Is this torch, the standard library, numpy or the like: a module whose attributes are not guarded?"""
    return not filename or is_torch_file(filename) or _code_kind(filename) != WATCH


def is_torch_file(filename: str) -> bool:
    return filename.startswith(_TORCH)


def where(frame: types.FrameType | None) -> str:
    """`file:line` of the nearest frame of the user's; of the nearest watched one when there is no other."""
    nearest = ""
    while frame is not None:
        known = facts(frame)
        if known.kind == WATCH:
            nearest = nearest or str(SourceLine(frame.f_code.co_filename, frame.f_lineno))
            if not known.library and f"{os.sep}site-packages{os.sep}" not in frame.f_code.co_filename:
                return str(SourceLine(frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return nearest


def watched_above(frame: types.FrameType, outside: types.FrameType | None) -> Iterator[tuple[CodeFacts, types.FrameType]]:
    """The watched frames in which `frame` runs, up to `outside`."""
    outer = frame.f_back
    while outer is not None and outer is not outside:
        known = facts(outer)
        if known.kind == WATCH:
            yield known, outer
        outer = outer.f_back


def _is_of_paths(filename: str) -> bool:
    """A module behind `os.path`; some are frozen into Python."""
    name = os.path.basename(filename).strip("<>").removeprefix("frozen ").removesuffix(".py")
    return name in ("genericpath", "posixpath", "ntpath") and filename.startswith(("<frozen", *_STDLIB))


def is_torchs_look(frame: types.FrameType) -> bool:
    """Does torch look at files here, through `os.path` and for its own ends?"""
    if not _is_of_paths(frame.f_code.co_filename):
        return False
    while facts(frame).kind == GLUE:
        frame = frame.f_back
    return facts(frame).kind == SKIP


def _code_kind(filename: str) -> int:
    if filename in ("<frozen os>", "<frozen _collections_abc>") or _is_of_paths(filename):
        return GLUE
    if filename.startswith("<"):
        return SKIP if filename.startswith(("<frozen", "<__array", "<state check>")) else WATCH
    if filename.startswith(_SELF):
        return SKIP
    if filename.startswith(_TORCH):
        if filename.startswith(_TORCH_WATCHED):
            return WATCH
        return GLUE if filename.startswith(_TORCH_GLUE) else SKIP
    for mark in ("site-packages", "dist-packages"):
        _, found, rest = filename.partition(f"{os.sep}{mark}{os.sep}")
        if found:
            return GLUE if rest.split(os.sep)[0] in _QUIET_SITE else WATCH
    if filename.startswith(_STDLIB):
        rest = next(filename[len(root):] for root in _STDLIB if filename.startswith(root))
        return SKIP if rest.split(os.sep)[0].removesuffix(".py") in _STDLIB_SKIPPED else GLUE
    return WATCH


def _find_facts(code: types.CodeType, module: str) -> CodeFacts:
    kind = _code_kind(code.co_filename)
    if code.co_filename.startswith("<") and module.split(".")[0] in _GENERATED_SKIPPED:
        kind = SKIP
    library = code.co_filename.startswith(_TORCH)
    first = code.co_varnames[0] if code.co_argcount else None
    file = os.path.basename(code.co_filename)
    quiet = kind == GLUE and file in _QUIET_FILES or "logging" in code.co_filename
    makes = "self" if code.co_name == "__init__" else "result" if code.co_name in _MAKERS else ""
    if kind != WATCH:
        return CodeFacts(code, kind, library, first_argument=first, quiet=quiet, makes=makes,
                         deep=file in _DEEP_FILES, weak=kind == GLUE and file in _WEAK_FILES)
    steps = [step for step in dis.get_instructions(code) if step.opname not in FILLER]
    counts = counting_steps(steps)
    loaded, global_names, stored, stored_globals, imports = _names_of(code, steps, counts)
    looks_up = code.co_name in ("__getattr__", "__getattribute__") and code.co_argcount == 2
    return CodeFacts(
        code, kind, library, tuple(loaded), tuple(global_names), frozenset(stored), frozenset(stored_globals),
        tuple(imports), _absent_names(code, steps, loaded), tuple(counts.values()),
        _assigned_names(steps, counts), _whole_objects(steps), looks_up,
        "super" in code.co_names, bool({"type", "__class__"} & set(code.co_names)), makes, first)


def _assigned_names(steps: list[dis.Instruction], counts: dict) -> frozenset[str]:
    counted = {at + 4 for at in counts}
    return frozenset(step.argval for at, step in enumerate(steps)
                     if step.opname in ("STORE_ATTR", "DELETE_ATTR") and at not in counted)


def _names_of(code: types.CodeType, steps: list[dis.Instruction],
              counts: dict) -> tuple[dict, dict, set, set, list]:
    """Attributes loaded, globals loaded, attributes stored, globals stored, modules imported."""
    loaded: dict[str, None] = {}
    global_names: dict[str, None] = {}
    stored, stored_globals = set(), set()
    imports: list[tuple[int, str]] = []
    for at, step in enumerate(steps):
        op, name = step.opname, step.argval
        if op in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"):
            global_names[name] = None
        elif op in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "DELETE_NAME"):
            stored_globals.add(name)
        elif op == "IMPORT_NAME":
            level = steps[at - 2].argval if at > 1 else 0
            imports.append((level if isinstance(level, int) else 0, name))
        elif op in ("STORE_ATTR", "DELETE_ATTR"):
            stored.add(name)
        elif op == "MATCH_CLASS":
            for constant in code.co_consts:
                if isinstance(constant, tuple):
                    loaded.update((text, None) for text in constant if isinstance(text, str))
        elif isinstance(name, str) and step.opcode in dis.hasname and at not in counts:
            loaded[name] = None
    if any(step.opname == "DELETE_ATTR" for step in steps):
        loaded.update((name, None) for name in stored)
    if _READER_NAMES & set(code.co_names):
        texts = [text for text in code.co_consts if isinstance(text, str)]
        loaded.update((name, None) for text in texts for name in text.split("."))
    return loaded, global_names, stored, stored_globals, imports


def _absent_names(code: types.CodeType, steps: list[dis.Instruction], loaded: dict) -> tuple[str, ...]:
    """The attributes loaded inside `try` blocks, if a failed look-up may be caught."""
    names = [step.opname for step in steps]
    bare = any(pair == ("PUSH_EXC_INFO", "POP_TOP") for pair in zip(names, names[1:]))
    bare = bare or any(names[at:at + 3] == ["POP_TOP"] * 3 for at in range(len(names)))     # Python 3.10
    if not bare and not _ABSENCE_NAMES & set(code.co_names):
        return ()
    entries = getattr(dis.Bytecode(code), "exception_entries", None)
    if entries is None or "suppress" in code.co_names:
        return tuple(loaded)
    handlers = {step.offset for step in steps if step.opname == "PUSH_EXC_INFO"}
    ranges = [(entry.start, entry.end) for entry in entries if entry.target in handlers]
    return tuple(dict.fromkeys(step.argval for step in steps if step.opname in _ATTRIBUTE_LOADS
                               and any(start <= step.offset < end for start, end in ranges)))


_ATTRIBUTE_LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "DELETE_ATTR")


def _whole_objects(steps: list[dis.Instruction]) -> tuple[Argument, ...]:
    """The objects whose `__dict__` or the like the code loads."""
    found = []
    for at, step in enumerate(steps):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval in _DICT_NAMES:
            found += pushed(steps[:at], 1)
    return tuple(found)


def imported_modules(known: CodeFacts, package: str | None) -> list[types.ModuleType]:
    """The modules that this code's import statements name, as far as they are loaded."""
    found = []
    for level, name in known.imports:
        parts = (package or "").split(".")
        prefix = ".".join(parts[:len(parts) - level + 1]) if level else ""
        full = f"{prefix}.{name}" if prefix and name else prefix or name
        pieces = full.split(".")
        for count in range(1, len(pieces) + 1):
            module = sys.modules.get(".".join(pieces[:count]))
            if isinstance(module, types.ModuleType):
                found.append(module)
    return found


def functions_of(code: types.CodeType) -> list[types.FunctionType]:
    """The functions that run this code, by a search of the heap: for those that nothing known leads to."""
    return [f for f in gc.get_referrers(code) if type(f) is types.FunctionType and f.__code__ is code]
