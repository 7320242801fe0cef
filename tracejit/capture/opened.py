"""Sizes that change from call to call: sequence lengths, batches, positions in a cache.

A dim of an argument, or an integer among the arguments, that was seen with two values is open in the next compile: in its place the
capture finds an extent, and what is compiled holds for other values, too. The key of such a call leaves these out.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Hashable, Iterable, Iterator, Mapping, NamedTuple, Optional

import torch

from ..ir.extents import Relations, as_given, extent_of
from ..ir.polynomial import LARGEST, SMALLEST, Polynomial, Size
from .changing import ANY_FLOAT, ANY_INTEGER, replaced_arguments
from .inputs import CallInputs
from .locations import Location

Dim = tuple[int, Any]        # (which of the call's tensors, which of its dims), or (INTEGER, position or name of an argument)
INTEGER = -1
MARK = "_tracejit_open_dims"
MOST_TRIES = 3               # compiles that hold for one size after all, of calls that differ in sizes alone
_SHAPE, _STRIDE, _REST, _BYTES, _STORAGE = 0, 1, slice(2, 11), 11, 12          # of `StorageKeys.tensor_key`


def mark_dynamic(tensor: torch.Tensor, *dims: int) -> None:
    """Let compiles leave these dims open from the first call on: `jit(fn)(tensor)` is then compiled for other sizes, too.

    By default a dim is open once it was seen with two sizes. TypeError for what is no tensor; IndexError for a dim that it does not have.

    >>> import torch, tracejit
    >>> f = tracejit.jit(lambda x: torch.relu(x) * 2)
    >>> for n in (50, 60, 70):
    ...     x = torch.ones(n, 3)
    ...     tracejit.mark_dynamic(x, 0)
    ...     _ = f(x)
    >>> f.cache_info().misses
    1
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"mark_dynamic() takes a tensor, not {type(tensor).__name__}")
    for dim in dims:
        if not -tensor.dim() <= dim < tensor.dim():
            raise IndexError(f"mark_dynamic(): dim {dim} of a tensor of {tensor.dim()} dims")
    setattr(tensor, MARK, getattr(tensor, MARK, frozenset()) | {dim % tensor.dim() for dim in dims})


class Layout(NamedTuple):
    """A dense tensor: its sizes, and its dims from the innermost on."""

    shape: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, part: Any) -> Optional["Layout"]:
        """Of a tensor's part of a key; None unless it fills a storage, and nothing but sizes would tell another such tensor from it."""
        if type(part) is not tuple or type(part[_SHAPE]) is not torch.Size or 0 in part[_SHAPE]:
            return None
        shape, stride, dtype, offset, requires_grad, _, device, kind, conj, neg = part[:10]
        order, step = tuple(sorted(range(len(shape)), key=lambda d: (stride[d], shape[d]))), 1
        for d in order:
            if stride[d] != step:
                return None
            step *= shape[d]
        plain = kind is torch.Tensor and device.type == "cpu" and not (offset or requires_grad or conj or neg)
        return cls(tuple(shape), order) if plain and part[_BYTES] == step * dtype.itemsize else None

    def strides(self, shape: tuple) -> tuple:
        made, step = [0] * len(shape), 1
        for d in self.order:
            made[d] = step
            step = step * shape[d]
        return tuple(made)


class Opening(NamedTuple):
    """What a capture finds in the place of open sizes. shapes: (shape, strides) of tensors, by id; integers: arguments, by step; places:
    of Python state, by the size that the integer there is."""

    shapes: dict[int, tuple[tuple, tuple]]
    integers: dict[Any, Polynomial]
    places: Mapping[Size, Location]
    relations: Relations

    @classmethod
    def of(cls, opened: Optional["Opened"], tensors: list, places: Iterable[Location]) -> Optional["Opening"]:
        """None where nothing is open."""
        state = {Size(f"n{k}", None): place for k, place in enumerate(places)}
        if opened is None and not state:
            return None
        sizes = {Size(f"s{n}"): value for n, value in enumerate(opened.values)} if opened is not None else {}
        relations = Relations({**sizes, **{size: place.read() for size, place in state.items()}})
        shapes, integers = opened.given(tensors, list(sizes), relations) if opened is not None else ({}, {})
        return cls(shapes, integers, state, relations)

    @property
    def state(self) -> list[Any]:
        """What stands at the places of state."""
        return [as_given(extent_of(Polynomial.of(size), self.relations)) for size in self.places]

    def into(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments that the program gets."""
        given = {step: as_given(extent_of(p, self.relations)) for step, p in self.integers.items()}
        return tuple(given.get(k, a) for k, a in enumerate(args)), {k: given.get(k, a) for k, a in kwargs.items()}


@dataclass(frozen=True)
class Opened:
    """A call with some sizes open. key: what else it tells; base: what it tells beside all sizes; dims: the open ones, by which of
    `values` each has: dims of one size are one, integers are not."""

    key: Hashable
    base: Hashable
    layouts: dict[int, Layout]
    dims: dict[Dim, int]
    values: tuple[int, ...]

    @property
    def tensors(self) -> set[int]:
        """Which of the call's have open dims."""
        return {k for k, _ in self.dims if k != INTEGER}

    def given(self, tensors: list, sizes: list[Size], relations: Relations) -> tuple[dict, dict]:
        """(shapes, integers) of `Opening`."""
        every, shapes = list(map(Polynomial.of, sizes)), {}
        for k in self.tensors:
            layout = self.layouts[k]
            shape = tuple(extent_of(every[self.dims[k, d]], relations) if (k, d) in self.dims else n for d, n in enumerate(layout.shape))
            shapes[id(tensors[k])] = shape, layout.strides(shape)
        return shapes, {step: every[n] for (k, step), n in self.dims.items() if k == INTEGER}

    def of(self, sizes: set[Size], relations: Relations) -> set[Dim]:
        """The dims that have these sizes."""
        numbers = {n for n, size in enumerate(relations.sizes) if size in sizes}
        return {dim for dim, n in self.dims.items() if n in numbers}


@dataclass
class _Seen:
    """Of calls that differ in sizes alone: the first one's, dims that have changed since, and those that stay closed."""

    first: dict[Dim, int]
    changed: set[Dim] = field(default_factory=set)
    closed: set[Dim] = field(default_factory=set)
    tries: int = 0


class OpenSizes:
    """Which sizes of a function's arguments change. dynamic: as the option of `jit`."""

    def __init__(self, dynamic: Optional[bool]) -> None:
        self.dynamic = dynamic
        self._seen: dict[Hashable, _Seen] = {}

    def opened(self, call: CallInputs, modes: Hashable) -> Optional[Opened]:
        """The call with its open dims; None if it has none."""
        if self.dynamic is False:
            return None
        layouts, integers = dict(_layouts(call)), _integers(call)
        every = {(k, d): n for k, layout in layouts.items() for d, n in enumerate(layout.shape)} | integers
        base = (_key(call, layouts, integers, None), modes)
        seen = self._seen.setdefault(base, _Seen(every))
        seen.changed.update(dim for dim, n in every.items() if seen.first[dim] != n)
        marked = {(k, d) for k in layouts for d in getattr(call.tensors[k], MARK, ())}
        wanted = (every.keys() if self.dynamic else seen.changed | marked) - seen.closed
        sizes = {dim: n for dim, n in every.items() if dim in wanted and SMALLEST <= n <= LARGEST}
        if not sizes:
            return None
        of_dims = tuple(dict.fromkeys(n for (k, _), n in sizes.items() if k != INTEGER))
        apart = [dim for dim in sizes if dim[0] == INTEGER]
        dims = {dim: len(of_dims) + apart.index(dim) if dim in apart else of_dims.index(n) for dim, n in sizes.items()}
        return Opened((_key(call, layouts, apart, dims), modes), base, layouts, dims, (*of_dims, *map(sizes.get, apart)))

    def close(self, opened: Opened, dims: Iterable[Dim]) -> None:
        """What is compiled with these open would hold for one size alone."""
        self._seen[opened.base].closed |= set(dims)

    def missed(self, opened: Opened) -> None:
        """What was compiled holds for this size alone, by chance as it may be."""
        seen = self._seen[opened.base]
        seen.tries += 1
        if seen.tries >= MOST_TRIES:
            self.close(opened, opened.dims)


def _key(call: CallInputs, layouts: dict[int, Layout], integers: Iterable[Dim], dims: Optional[dict[Dim, int]]) -> Hashable:
    """The call's key without these integers; of dims that are open, which of the values each has. dims None: without all sizes."""
    if integers:
        args, kwargs = replaced_arguments(call, {**dict.fromkeys(call.open, ANY_FLOAT), **{step: ANY_INTEGER for _, step in integers}})
        call = CallInputs(args, kwargs)
    made, k = [], -1
    for part in call.key:
        if _is_tensor(part):
            k += 1
            if k in layouts:
                shape, order = layouts[k]
                sizes = len(shape) if dims is None else tuple(("open", dims[k, d]) if (k, d) in dims else n for d, n in enumerate(shape))
                part = (sizes, order, *part[_REST], part[_STORAGE])
        made.append(part)
    return tuple(made)


def _integers(call: CallInputs) -> dict[Dim, int]:
    return {(INTEGER, step): a for step, a in (*enumerate(call.args), *call.kwargs.items()) if type(a) is int}


def _is_tensor(part: Any) -> bool:
    return type(part) is tuple and len(part) > _STORAGE and type(part[_SHAPE]) is torch.Size


def _layouts(call: CallInputs) -> Iterator[tuple[int, Layout]]:
    """Of tensors that alone lie in their storages, by which of the call's they are."""
    parts = [part for part in call.key if _is_tensor(part)]
    if len(parts) != len(call.tensors) or "overlapping storages" in call.key:
        return
    storages = [part[_STORAGE] for part in parts]
    for k, part in enumerate(parts):
        layout = Layout.of(part) if storages.count(part[_STORAGE]) == 1 else None
        if layout is not None:
            yield k, layout
