"""What a compiled entry assumes beyond the arguments' key, and the tables in which entries are found.

Entries of one arguments' key are grouped by which state they read; within a group the state is one token of a
`KeyReader` and entries are looked up in a dictionary, so the cost of a call does not grow with their number.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Hashable, Optional

import torch

from ..ir.cached import cached_property
from ..ir.proxy import TensorProxy
from ..ir.trace import Trace
from .counts import Counts
from .gradients_inside import has_hooks
from .inputs import CallInputs, StorageKeys
from .locations import KeyReader
from .keys import TENSOR, contents, is_container

ARGUMENT, STATE, GRAD, NUMBER = "argument", "state", "grad", "number"


@dataclass(frozen=True, eq=False)
class InputSource:
    """Where a program input is found: argument `index`, `location` in Python state, `.grad` of input `index`, or a float
    at `location`, or that is computed of integers at such (`counts.FloatOf`)."""

    kind: str
    index: int = 0
    location: Any = None

    @property
    def place(self) -> Hashable:
        return (self.kind, self.index, self.location.ident if self.location is not None else None)

    def fetch(self, call: CallInputs, inputs: list) -> Any:
        if self.kind == ARGUMENT:
            return call.tensors[self.index]
        if self.kind == STATE:
            return self.location.read(call.roots)
        if self.kind == NUMBER:
            value = self.location.read(call.roots)
            return torch.tensor(value, dtype=torch.float64, device="cpu") if type(value) is float else None
        parent = inputs[self.index]
        return parent.grad if isinstance(parent, torch.Tensor) else None


def holds_tensors(key: Hashable) -> bool:
    """Does the key of a location's value stand for a tensor, or a container with one?"""
    return key is TENSOR or type(key) is tuple and any(map(holds_tensors, key))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """A tensor, or those in a container, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in contents(value) for t in tensors_in(item)] if is_container(value) else []


def host_value(what: str, tensor: torch.Tensor) -> Any:
    """The value that a program read of a tensor outside of torch's operations."""
    if what == "version":
        return tensor._version
    if what == "is_view":
        return tensor._is_view()
    if what == "hooks":
        return has_hooks(tensor)
    if what == "data_ptr":
        return tensor.untyped_storage().data_ptr()
    if what == "viewed":                                       # does a view made of it under no_grad require gradients?
        return (tensor if tensor._base is None else tensor._base).requires_grad
    return tensor.grad


def viewed_apart(ops: Trace, tensors: list[torch.Tensor]) -> list[tuple[str, torch.Tensor, None]]:
    """What the host reads of the inputs of which views are made under no_grad, and used with gradients or given to the caller."""
    used = {a for b in ops.bound_symbols if b.modes.grad for a in b.tensor_args} | {o for o in ops.output if isinstance(o, TensorProxy)}
    apart = {o.storage for b in ops.bound_symbols if not (b.modes.grad or b.written) for o in b.tensor_outputs if o in used}
    return [("viewed", t, None) for p, t in zip(ops.inputs, tensors) if p.requires_grad and p.storage in apart]


@dataclass(frozen=True, eq=False)
class Guards:
    """sources: one per program input; locations: the state that was read; host_reads: (what, input index); open: arguments of which the
    key of the call tells all but sizes that are open; counts: the integers of state that are."""

    sources: tuple[InputSource, ...]
    locations: tuple[Any, ...]
    host_reads: tuple[tuple[str, int], ...]
    open: frozenset[int] = frozenset()
    counts: Optional[Counts] = None

    @cached_property
    def places(self) -> Hashable:
        """Entries with equal places read the same state, and tensors at the same of them: they share one group."""
        read = tuple((loc.ident, holds_tensors(loc.expected)) for loc in self.locations)
        return (tuple(s.place for s in self.sources), read, self.host_reads, self.counts)

    @cached_property
    def arguments_alone(self) -> bool:
        """The inputs are the arguments, in order."""
        return all(s.kind == ARGUMENT and s.index == i for i, s in enumerate(self.sources))

    @cached_property
    def plain(self) -> bool:
        """Nothing but the arguments is assumed, and they are the inputs."""
        return not (self.locations or self.host_reads) and self.arguments_alone

    @cached_property
    def other_places(self) -> list:
        """Places that hold tensors, besides those where inputs are found."""
        sources = {s.location.ident for s in self.sources if s.location is not None}
        return [loc for loc in self.locations if loc.ident not in sources and holds_tensors(loc.expected)]

    def inputs(self, call: CallInputs) -> Optional[list]:
        """The program inputs of a call, or None when one is no tensor any more."""
        found: list = []
        for s in self.sources:
            t = s.fetch(call, found)
            if not isinstance(t, torch.Tensor):
                return None
            found.append(t)
        return found

    def tensor_values(self, call: CallInputs, inputs: list) -> Hashable:
        """What is assumed of the inputs that are no arguments, and what was read of inputs by the host."""
        values: list = []
        if len(inputs) > len(call.tensors):
            storages = StorageKeys()
            keys = [storages.tensor_key(t) for t in inputs]
            values += [key[-1] if k in self.open else key for k, key in enumerate(keys)]       # which storage it is in
            values.append(storages.overlap())
        if len(inputs) > len(call.tensors) or self.other_places:
            seen = [*inputs, *(t for place in self.other_places for t in tensors_in(place.read(call.roots)))]
            first: dict[int, int] = {}                         # which of the places hold one and the same tensor
            values += [first.setdefault(id(t), len(first)) for t in seen]
        return tuple(values + [host_value(what, inputs[i]) for what, i in self.host_reads])


class Group:
    """Entries that read the same places."""

    def __init__(self, guards: Guards) -> None:
        self.guards, self.reader = guards, KeyReader(guards.locations)
        self.through_arguments = any(location.root is not None for location in guards.locations)
        self.entries: dict[Hashable, Any] = {}

    def find(self, call: CallInputs) -> tuple[Any, list]:
        if self.guards.plain:
            return self.entries[None], call.tensors
        token = 0
        if self.guards.counts is not None and not self.guards.counts.hold():
            return None, []
        if self.guards.locations:
            token = self.reader(call.roots if self.through_arguments else None)
        inputs = None
        if token is not None:
            inputs = call.tensors if self.guards.arguments_alone else self.guards.inputs(call)
        if inputs is None:
            return None, []
        return self.entries.get((token, self.guards.tensor_values(call, inputs))), inputs

    def add(self, guards: Guards, call: CallInputs, entry: Any) -> list:
        """File an entry under the state that its capture met; returns the program inputs."""
        inputs = guards.inputs(call)
        key = None
        if not guards.plain:
            expected = tuple(location.expected for location in guards.locations)
            token = self.reader.register(expected) if expected else 0
            key = (token, guards.tensor_values(call, inputs))
        self.entries[key] = entry
        return inputs


@dataclass
class EntryTable:
    """The entries of one arguments' key."""

    groups: dict[Hashable, Group] = field(default_factory=dict)

    def find(self, call: CallInputs) -> tuple[Any, list, Optional[Group]]:
        """(entry, program inputs, the entry's group), or (None, [], None)."""
        for group in list(self.groups.values()):               # another thread may add one meanwhile
            entry, inputs = group.find(call)
            if entry is not None:
                return entry, inputs, group
        return None, [], None

    def add(self, guards: Guards, call: CallInputs, entry: Any) -> list:
        group = self.groups.get(guards.places)
        if group is None:
            group = self.groups[guards.places] = Group(guards)
        return group.add(guards, call, entry)

    def describe(self) -> list[str]:
        """The Python state that the entries assume, in the user's terms."""
        return [location.path for group in list(self.groups.values()) for location in group.guards.locations]

    def __len__(self) -> int:
        return sum(len(group.entries) for group in list(self.groups.values()))
