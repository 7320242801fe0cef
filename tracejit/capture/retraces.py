"""Why a function was compiled again: what is not as it was for the entry most like the call, and from what value to what.

Only compiles pay for this. Of arguments and state it keeps keys and texts, no tensors and no objects.
"""
from __future__ import annotations

import inspect
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Callable, Hashable, Iterator

import torch

from .guards import GRAD, STATE, Guards
from .inputs import CallInputs, StorageKeys
from .modes import MODES
from .keys import CONTAINERS, MISSING, PLAIN, TENSOR, safe_key
from .structure import flatten, is_dataclass_value

MANY = 8                     # entries of one function that are more than a program needs
_COMPARED = 16               # latest entries that a call is compared with
_CONTAINERS = (list, tuple, dict)
_KEPT = 100                  # latest retraces that are told
_LONGEST = 60                # characters of a value
# The parts of `StorageKeys.tensor_key`, in order of what explains the others, with the way out.
_FIELDS = ((7, "type", ""), (2, "dtype", "convert it before the call"), (6, "device", "move it before the call"),
           (0, "shape", "pad it to a few sizes"), (1, "stride()", "pass it contiguous"), (3, "storage_offset()", "pass a clone"),
           (4, "requires_grad", "settle it before the first call"), (5, "is_leaf", ""), (8, "is_conj()", ""), (9, "is_neg()", ""),
           (10, "is_inference()", ""), (11, "untyped_storage().nbytes()", "pass a clone"), (12, "storage (which tensors share one)", ""))
_WAYS = {"mode": "call it under one mode", "object": "make it once and pass the same one",
         "number": "pass it as a tensor if the program can compute with one", "value": "let it have few values",
         "state": "hold it in a tensor, or settle it before the calls"}


@dataclass(frozen=True)
class Retrace:
    """`what` (an argument, its property, a place of state, a mode) was `before` and is `after`."""

    what: str
    before: str
    after: str
    way_out: str = ""

    def __str__(self) -> str:
        return f"{self.what} changed from {self.before} to {self.after}"


@dataclass(frozen=True)
class _Entry:
    arguments: dict[str, tuple]
    guards: Guards
    state: dict[str, tuple]
    counts: dict[str, tuple]


class Retraces:
    """Of one function. `lines`: the latest retraces, a line each."""

    def __init__(self, parameters: Callable) -> None:
        self._function = parameters
        self._entries: deque[_Entry] = deque(maxlen=_COMPARED)
        self._found: deque[list[Retrace]] = deque(maxlen=_KEPT)
        self._counted: Counter[str] = Counter()
        self.compiles = 0

    def note(self, call: CallInputs, modes: Hashable, guards: Guards) -> str:
        """An entry is made for this call: why, in one line."""
        arguments = {**_described_arguments(self._function, call),
                     **{name: ("mode", value) for name, value in zip(MODES, modes)}}
        causes = min((self._causes(e, call, arguments) for e in reversed(self._entries)), key=len, default=[])
        self._entries.append(_Entry(arguments, guards, _described_state(guards, call), _described_counts(guards)))
        self.compiles += 1
        if self.compiles == 1:
            return "first call"
        self._found.append(causes)
        self._counted.update(c.what for c in causes)
        return _line(causes)

    def _causes(self, before: _Entry, call: CallInputs, arguments: dict[str, tuple]) -> list[Retrace]:
        return (_differences(before.arguments, arguments) or _differences(before.state, _described_state(before.guards, call))
                or _differences(before.counts, _described_counts(before.guards)))

    @property
    def lines(self) -> tuple[str, ...]:
        found = list(self._found)
        return tuple(f"entry {n}: {_line(causes)}" for n, causes in enumerate(found, self.compiles - len(found) + 1))

    def warning(self) -> str:
        """What keeps changing, and the way out."""
        if not self._counted:
            return "`cache_info().retraces` lists the causes"
        what, times = self._counted.most_common(1)[0]
        latest = next(c for causes in reversed(self._found) for c in causes if c.what == what)
        way = f": {latest.way_out}" if latest.way_out else ""
        return (f"{what} keeps changing ({times} times, at last from {latest.before} to {latest.after}){way}. "
                "`cache_info().retraces` lists all")


def _line(causes: list[Retrace]) -> str:
    if not causes:
        return "what the program reads is laid out otherwise, or an entry was forgotten"
    more = f", and {len(causes) - 2} more" if len(causes) > 2 else ""
    return "; ".join(map(str, causes[:2])) + more


# ---------------------------------------------------------------- texts of arguments and state: (kind, key) by path

def _described_arguments(fn: Callable, call: CallInputs) -> dict[str, tuple]:
    named = list(_named(fn, call))
    paths = [path for name, a in named for path in _leaf_paths(name, a)]
    if len(paths) != len(call.leaves):
        paths = [f"argument leaf {n}" for n in range(len(call.leaves))]
    parts, found = iter(call.key[1:]), dict(item for name, a in named for item in _lengths(name, a))
    for path, leaf in zip(paths, call.leaves):
        part = next(parts)
        if isinstance(leaf, torch.Tensor):
            same = type(part) is not tuple
            found[path] = ("value", f"the tensor that {paths[_nth(call, part)]} is") if same else ("tensor", part)
        else:
            next(parts)
            found[path] = _described_leaf(leaf, part)
    if next(parts, None) is not None:
        found["memory of the arguments"] = ("value", "overlapping")
    return found


def _nth(call: CallInputs, number: int) -> int:
    """The leaf at which a tensor comes first."""
    return next(n for n, leaf in enumerate(call.leaves) if leaf is call.tensors[number])


def _described_leaf(leaf: Any, kind: type) -> tuple:
    if kind.__name__ == "AnyFloat":
        return ("number", "any float")
    if kind in PLAIN or isinstance(leaf, slice):
        return ("number" if kind in (int, float, complex) else "value", _short(repr(leaf)))
    return ("object", f"the {kind.__name__} at {id(leaf):#x}")


def _named(fn: Callable, call: CallInputs) -> Iterator[tuple[str, Any]]:
    """The arguments, each with the name of its parameter."""
    try:
        names = [p.name for p in inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn).parameters.values()
                 if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    except (TypeError, ValueError):
        names = []
    yield from ((names[n] if n < len(names) else f"arg{n}", a) for n, a in enumerate(call.args))
    yield from call.kwargs.items()


def _leaf_paths(path: str, value: Any) -> Iterator[str]:
    if type(value) in _CONTAINERS:
        for step, item in _steps(path, value):
            yield from _leaf_paths(step, item)
        return
    leaves = len(flatten(value, is_dataclass_value)[0])
    yield from [path] if leaves == 1 else (f"{path}, part {n}" for n in range(leaves))


def _lengths(path: str, value: Any) -> Iterator[tuple[str, tuple]]:
    """Of the containers in an argument."""
    if type(value) in _CONTAINERS:
        yield f"len({path})", ("value", str(len(value)))
        for step, item in _steps(path, value):
            yield from _lengths(step, item)


def _steps(path: str, container: Any) -> Iterator[tuple[str, Any]]:
    for step, item in container.items() if type(container) is dict else enumerate(container):
        yield f"{path}[{step!r}]" if type(step) in (int, str) else f"{path}[...]", item


def _described_state(guards: Guards, call: CallInputs) -> dict[str, tuple]:
    """What the program of an entry read, as it is now."""
    found: dict[str, tuple] = {location.path: ("state", location.key(call.roots)) for location in guards.locations}
    storages, inputs, paths = StorageKeys(), [], []
    for s in guards.sources:
        value = s.fetch(call, inputs)
        path = s.location.path if s.kind == STATE else f"{paths[s.index]}.grad" if s.kind == GRAD else f"tensor {s.index}"
        inputs.append(value)
        paths.append(path)
        if s.kind in (STATE, GRAD):
            tensor = isinstance(value, torch.Tensor)
            found[path] = ("tensor", storages.tensor_key(value)) if tensor else ("state", type(value))
    return found


def _described_counts(guards: Guards) -> dict[str, tuple]:
    """Integers of state that an entry leaves open, as they are now: what it assumes of them may hold no more."""
    places = guards.counts.places.values() if guards.counts is not None else ()
    return {place.path: ("state", safe_key(place.read())) for place in places}


# ---------------------------------------------------------------- differences

def _differences(before: dict[str, tuple], now: dict[str, tuple]) -> list[Retrace]:
    nothing = ("value", "nothing")
    paths = [path for path in {**now, **before} if before.get(path) != now.get(path)]
    resized = tuple(path[4:-1] + "[" for path in paths if path.startswith("len("))
    return [_difference(path, before.get(path, nothing), now.get(path, nothing)) for path in paths
            if not path.removeprefix("len(").startswith(resized)]


def _difference(path: str, before: tuple, now: tuple) -> Retrace:
    if before[0] == now[0] == "tensor":
        return _tensor_difference(path, before[1], now[1])
    if before[0] == now[0] == "state":
        return _state_difference(path, before[1], now[1])
    return Retrace(path, _text(before), _text(now), _WAYS.get(now[0], ""))


def _tensor_difference(path: str, before: tuple, now: tuple) -> Retrace:
    if len(before) == len(now) == len(_FIELDS):
        for n, name, way in _FIELDS:
            if before[n] != now[n]:
                return Retrace(f"{path}.{name}", _plain(before[n]), _plain(now[n]), way)
    return Retrace(f"the kind of tensor {path}", _short(str(before[0])), _short(str(now[0])))


def _state_difference(path: str, before: Any, now: Any) -> Retrace:
    """Of two keys (`state.freeze`): the first item that differs, in containers of one size."""
    containers = type(before) is type(now) is tuple and before[0] is now[0] and before[0] in CONTAINERS
    if containers and len(before[1]) == len(now[1]):
        for n, (a, b) in enumerate(zip(before[1], now[1])):
            if a != b and before[0] is not dict:
                return _state_difference(f"{path}[{n}]", a, b)
            if a != b and a[0] == b[0]:
                return _state_difference(f"{path}[{_frozen(a[0])}]", a[1], b[1])
    old, new = _frozen(before), _frozen(now)
    return Retrace(path, old, new if new != old else "another", _WAYS["state"])


def _frozen(key: Any) -> str:
    """The value that a key stands for."""
    if key is MISSING:
        return "nothing"
    if key is TENSOR:
        return "a tensor"
    if type(key) is not tuple or not key:
        return "an object"
    kind = key[0]
    if kind in (float, complex):
        return key[1]
    if kind in PLAIN:
        return _short(repr(key[1]))
    if not isinstance(kind, type):
        return "an object"
    return f"a {kind.__name__}" + (f" of {len(key[1])}" if kind in CONTAINERS else "")


def _text(described: tuple) -> str:
    kind, key = described
    if kind == "tensor":
        return f"a tensor of shape {_plain(key[0])}"
    return _frozen(key) if kind == "state" else _short(str(key))


def _plain(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else _short(str(value))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST - 3] + "..."
