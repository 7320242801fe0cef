"""The journal of a capture: what persistent Python state was before it, and how the captured function changed
it.

`Journal` keeps a shallow copy of each namespace and container when it is first touched. `writes()` compares
with the present and gives `StateWrite`s, which replay the same change on later calls; `rollback()` undoes it.
Values are compared by identity (plain ones by type and value), never with `==`.
"""
from __future__ import annotations

import collections
from dataclasses import dataclass, replace
from typing import Any, Callable, Hashable, Iterator

from .keys import MISSING, PLAIN, contents, freeze, is_numpy, items_of
from .lines import StateError
from .state import Namespace, NameSlot, root_of
from .stored import Encoder, Old, link, resolve

RESULT = "the result"

# ---------------------------------------------------------------- writes

@dataclass(frozen=True, eq=False)
class StateWrite:
    """One change of state. `how`: attribute, add (to a number), delete, setitem, delitem, items (of a list,
    deque or set); or result, what the call returns, which is no change, but may hold what is stored or was there.

    `slot` is what is assigned or, for the last three, what holds the container. `value` is what is stored:
    the new items for `items`, `[key, value]` when the key is no plain value, None for a deletion. It may hold
    tensors of the capture, new containers, and placeholders, which the caller passes through as opaque
    leaves.
    """

    path: str
    how: str
    slot: Any
    value: Any = None
    key: Any = None
    keyed: bool = False     # `value` is [key, value]

    @property
    def root(self) -> Hashable | None:
        """The label of the argument that is written to, if it is one."""
        return root_of(self.slot)

    def apply(self, materialize: Callable[[Any], Any], roots: Any = None) -> None:
        """Performs this write alone, of the value that `materialize` makes of the captured one."""
        replay([self], [materialize(self.value)], roots)


def replay(writes: list[StateWrite], values: list, roots: Any = None) -> list:
    """Performs `writes` of materialized `values`: what they refer to is looked up before the first one. Returns what is stored."""
    holders = [w.slot.read(roots) if w.how in ("setitem", "delitem", "items") else None for w in writes]
    stored: list = []
    for write, holder, value in zip(writes, holders, values):
        old = list(contents(holder)) if write.how == "items" else []
        stored.append(resolve(value, old, roots))
    made: dict[int, tuple] = {}
    stored = [link(value, stored, made) for value in stored]
    for write, holder, value in zip(writes, holders, stored):
        _perform(write, holder, value, roots)
    return stored


def _perform(write: StateWrite, holder: Any, value: Any, roots: Any) -> None:
    key = write.key
    if write.keyed:
        key, value = value if write.how == "setitem" else (value[0], None)
    if write.how == "add":
        write.slot.write(write.slot.read(roots) + value, roots)
    elif write.how in ("attribute", "delete"):
        write.slot.write(MISSING if write.how == "delete" else value, roots)
    elif write.how == "result":
        return
    elif write.how == "setitem":
        _dict_type(holder).__setitem__(holder, key, value)
    elif write.how == "delitem":
        _dict_type(holder).__delitem__(holder, key)
    else:
        _fill(holder, value)


def _dict_type(holder: dict) -> type:
    """The class whose methods keep `holder` consistent: an OrderedDict has an order of its own."""
    return collections.OrderedDict if isinstance(holder, collections.OrderedDict) else dict


def _fill(holder: Any, values: list) -> None:
    kind = type(holder)
    if issubclass(kind, list):
        list.__setitem__(holder, slice(None), values)
    elif issubclass(kind, dict):
        _dict_type(holder).clear(holder)
        for key, value in values:
            _dict_type(holder).__setitem__(holder, key, value)
    elif issubclass(kind, set):
        set.clear(holder)
        set.update(holder, values)
    elif issubclass(kind, collections.deque):
        collections.deque.clear(holder)
        collections.deque.extend(holder, values)


# ---------------------------------------------------------------- the journal

class Journal:
    """Shallow copies of what a capture has touched, in the order of first touch."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[Namespace, Any, dict, str]] = {}
        self._slots: dict[Hashable, tuple[Any, Any, str]] = {}
        self._containers: dict[int, tuple[Any, Any, Any, str]] = {}   # object, slot, copy, path
        self._buffers: dict[int, tuple[Any, Any, str]] = {}

    def add_names(self, space: Namespace, names: dict, path: str) -> None:
        """An instance `__dict__`, or a table of a module."""
        if id(names) not in self._names:
            self._names[id(names)] = (space, names, dict(names), path)

    def add_slot(self, key: Hashable, slot: Any, path: str) -> None:
        """One global, class attribute, closure cell or `__slots__` member."""
        if key not in self._slots:
            self._slots[key] = (slot, slot.read(), path)

    def add_container(self, value: Any, slot: Any, path: str) -> None:
        if id(value) not in self._containers:
            if issubclass(type(value), dict):
                copy: Any = list(items_of(value))
            else:
                copy = list(contents(value))
            self._containers[id(value)] = (value, slot, copy, path)

    def add_buffer(self, value: Any, path: str) -> None:
        """A bytearray, an array or a numpy array: its bytes can be put back, but a write to it is not replayed."""
        if id(value) not in self._buffers:
            self._buffers[id(value)] = (value, value.copy() if is_numpy(value) else value[:], path)

    def slot_of(self, value: Any) -> Any:
        """The slot that holds this container, if it was there before the call."""
        found = self._containers.get(id(value))
        return found[1] if found is not None and found[0] is value else None

    def before(self, names: dict, name: str, now: Any) -> Any:
        """What `name` was before the call; `now` where the journal has no copy."""
        found = self._names.get(id(names))
        return found[2].get(name, MISSING) if found is not None else now

    def slot_before(self, key: Hashable, now: Any) -> Any:
        """What a single slot was before the call; `now` where the journal has no copy."""
        found = self._slots.get(key)
        return now if found is None else found[1]

    def copy_of(self, names: dict) -> dict:
        found = self._names.get(id(names))
        return names if found is None else found[2]

    def copies(self) -> Iterator[tuple[Namespace, dict, str]]:
        for space, _, copy, path in list(self._names.values()):
            yield space, copy, path

    def drop_names(self, names: Any) -> None:
        """Forgets a namespace: its owner was made by the call."""
        self._names.pop(id(names), None)

    def drop_slot(self, key: Hashable) -> None:
        self._slots.pop(key, None)

    def drop_container(self, value: Any, slot: Any) -> bool:
        """Forgets a container if it was added with this slot, and says so."""
        found = id(value) in self._containers and self._containers[id(value)][1] is slot
        if found:
            del self._containers[id(value)]
        return found

    def writes(self, moved: dict[tuple[int, str], int], result: Any, slot_of: Callable[[Any], Any]) -> list[StateWrite]:
        """The changes since the first touch; of the attributes in `moved`, by how much they are moved. At last the result,
        if it holds something that is stored, that was there before, or that it holds twice.

        slot_of: of an object that is an argument. Raises StateError for a change that cannot be replayed.
        """
        for value, copy, path in self._buffers.values():
            if freeze(value) != freeze(copy):
                raise StateError(path, f"the call writes to the memory of {path}, a {type(value).__name__}: "
                                       "keep such data in a tensor")
        encode = Encoder(lambda value: self.slot_of(value) or slot_of(value), lambda names: id(names) in self._names)
        found: list[StateWrite] = []
        for value, slot, copy, path in self._containers.values():
            found += _container_writes(value, slot, copy, path, encode)
        for slot, value, path, key in self._changed_slots():
            if key in moved:
                found.append(StateWrite(path, "add", slot, moved[key]))
                continue
            if value is MISSING:
                found.append(StateWrite(path, "delete", slot))
                continue
            found.append(StateWrite(path, "attribute", slot, encode(value, path)))
        found.append(StateWrite(RESULT, "result", None, encode(result, RESULT)))
        shared = encode.shared([write.value for write in found])
        found = [replace(write, value=value) for write, value in zip(found, shared)]
        return found if found[-1].value is not result else found[:-1]

    def _changed_slots(self) -> Iterator[tuple[Any, Any, str, Hashable]]:
        for space, names, copy, path in self._names.values():
            for name, value in list(names.items()):
                if _differs(copy.get(name, MISSING), value):
                    yield NameSlot(space, name), value, f"{path}.{name}", (id(names), name)
            for name in copy:
                if name not in names:
                    yield NameSlot(space, name), MISSING, f"{path}.{name}", None
        for slot, old, path in self._slots.values():
            value = slot.read()
            if _differs(old, value):
                yield slot, value, path, None

    def rollback(self) -> None:
        """Puts everything back as it was when first touched."""
        for value, copy, _ in self._buffers.values():
            value[:] = copy
        for value, _, copy, _ in self._containers.values():
            now = list(items_of(value)) if issubclass(type(value), dict) else list(contents(value))
            if not _same_items(copy, now):
                _fill(value, copy)
        for _, names, copy, _ in self._names.values():
            changed = any(names.get(name, MISSING) is not value for name, value in copy.items())
            if changed or len(names) != len(copy):
                names.clear()
                names.update(copy)
        for slot, old, _ in self._slots.values():
            if slot.read() is not old:
                slot.write(old)


def _differs(old: Any, new: Any) -> bool:
    if old is new:
        return False
    return type(old) is not type(new) or type(new) not in PLAIN or freeze(old) != freeze(new)


def _same_items(old: list, new: list) -> bool:
    if len(old) != len(new):
        return False
    return all(a is b or _same_pair(a, b) for a, b in zip(old, new))


def _same_pair(a: Any, b: Any) -> bool:
    """Two (key, value) pairs of a dict."""
    return type(a) is type(b) is tuple and len(a) == len(b) == 2 and a[0] is b[0] and a[1] is b[1]


def _container_writes(value: Any, slot: Any, copy: list, path: str, encode: Encoder) -> list[StateWrite]:
    if issubclass(type(value), dict):
        return _dict_writes(value, slot, copy, path, encode)
    if issubclass(type(value), (tuple, frozenset)) or _same_items(copy, list(contents(value))):
        return []
    if slot is None:
        raise StateError(path, f"the call changes {path}, which cannot be found again: "
                               "keep it in a global, an attribute or an argument")
    where = {id(item): index for index, item in reversed(list(enumerate(copy)))}
    left = {id(item) for item in contents(value)}
    removed = [item for item in copy if id(item) not in left and type(item) not in PLAIN]
    if removed and issubclass(type(value), set):
        raise StateError(path, f"the call removes an object from the set {path}: keep objects in a list or a dict")
    nodes = []
    for item in contents(value):
        known = id(item) in where and type(item) not in PLAIN
        nodes.append(Old(where[id(item)]) if known else encode(item, path))
    return [StateWrite(path, "items", slot, tuple(nodes))]


def _dict_writes(value: dict, slot: Any, copy: list, path: str, encode: Encoder) -> list[StateWrite]:
    now = list(items_of(value))
    if _same_items(copy, now):
        return []
    if slot is None:
        raise StateError(path, f"the call changes {path}, which cannot be found again: "
                               "keep it in a global, an attribute or an argument")
    old = {id(key): item for key, item in copy}
    kept = {id(key) for key, _ in now}
    surviving = [id(key) for key, _ in copy if id(key) in kept]
    if [id(key) for key, _ in now][:len(surviving)] != surviving:
        raise StateError(path, f"the call changes the order of {path}: assign to a key without deleting it before")
    writes = [_key_write(path, "delitem", slot, key, None) for key, _ in copy if id(key) not in kept]
    for key, item in now:
        if id(key) not in old or _differs(old[id(key)], item):
            writes.append(_key_write(path, "setitem", slot, key, encode(item, path)))
    return writes


def _key_write(path: str, how: str, slot: Any, key: Any, value: Any) -> StateWrite:
    path = f"{path}[{key!r}]" if type(key) in PLAIN else f"{path}[...]"
    if type(key) in PLAIN:
        return StateWrite(path, how, slot, value, key)
    return StateWrite(path, how, slot, [key, value], keyed=True)
