"""Rows too long to be kept: two reductions in one pass, where the second is of distances from the first.

    max, then sum of exp(x - max)           the sum so far is scaled whenever the maximum so far grows
    sum, then sum of (x - mean) squared     each chunk's own mean and squares join those so far, as Chan's formula has it

A row is read once for both, and once more for what needs them. Each thread has its part of the row; parts meet as in any row.
"""
from __future__ import annotations

from typing import Callable, Optional

import torch

from .c import Block, Writer
from .cuda_schedules import Lanes
from .kernel import Expr, Kernel, Reduction, Stage


class Online:
    """first, second: the reductions; mean: the expression that second takes distances from, of a sum."""

    def __init__(self, first: Reduction, second: Reduction, mean: Optional[Expr] = None) -> None:
        self.first, self.second, self.mean = first, second, mean


def online(k: Kernel) -> Optional[Online]:
    """The two reductions of a kernel's first stages that one pass makes; None when they are of another form."""
    if len(k.stages) < 2 or k.stages[0].stores or k.stages[1].stores or len(k.stages[1].reductions) != 1:
        return None
    (second,) = k.stages[1].reductions
    e = second.value
    if second.kind != "sum" or not e.args:
        return None
    distance = e.args[0]
    if distance.op != "sub" or not (e.op == "exp" or e.op == "mul" and e.args[1] is distance):
        return None
    point = _origin(distance.args[1])
    total = point if e.op == "exp" else _origin(point.args[0]) if _is_mean(point, k.inner_size) else None
    if total is None or total.op != "reduced" or total.extra not in k.stages[0].reductions:
        return None
    first = total.extra
    if first.kind != ("max" if e.op == "exp" else "sum") or _origin(first.value) is not _origin(distance.args[0]):
        return None
    return Online(first, second, None if e.op == "exp" else distance.args[1])


def _is_mean(e: Expr, count: int) -> bool:
    return e.op == "div" and e.args[1].op == "const" and e.args[1].extra == count


def _origin(e: Expr) -> Expr:
    """What a value is that casts only widened."""
    wide = (torch.float32, torch.float64)
    while e.op == "cast" and e.dtype in wide and e.args[0].dtype.is_floating_point and (
            e.dtype.itemsize >= e.args[0].dtype.itemsize):
        e = e.args[0]
    return e


class Pass:
    """Writes the pass of a pair: what a thread does before its chunks, with each, and after them."""

    def __init__(self, w: Writer, k: Kernel, pair: Online, lanes: Lanes, loads: list[Expr]) -> None:
        """loads: those that both reductions need."""
        self.w, self.k, self.pair, self.lanes, self.loads = w, k, pair, lanes, loads
        self.a, self.b = pair.first.number, pair.second.number
        self.type = w.d.register[pair.second.dtype]
        self.exp = w.d.function("exp", w.d.letter[self.type])

    def before(self) -> list[str]:
        return [f"{self.type} u{self.b} = 0, n{self.b} = 0;"] if self.pair.mean is not None else []

    def chunk(self, block: Block, fold: Callable[[list[Reduction], dict[int, str]], Callable[[], None]]) -> None:
        """fold(reductions, into): what `Lanes.write` is told to do; into w0, w1, ... but for those that `into` names."""
        names = {e: f"v{e.number}" for e in self.loads}
        block += [f"tj_vec<{self.lanes.memory(e)}, {self.lanes.chunk.width}> {n};" for e, n in names.items()]
        first, second = self.k.stages[:2]
        own = {} if self.pair.mean is None else {n: f"c{n}" for n in (self.a, self.b)}         # of this chunk
        self.lanes.kept, self.lanes.filled, self.lanes.bound = {}, names, {}
        block += [*self._begin(), "{", self._lanes(first, fold(first.reductions, own)), "}"]
        self.lanes.kept, self.lanes.filled = names, {}
        if self.pair.mean is not None:
            self.lanes.bound = {self.pair.mean: f"m{self.a}"}
        block += [*self._middle(), self._lanes(second, fold(second.reductions, own)), "}", *self._end()]
        self.lanes.bound = {}

    def _lanes(self, stage: Stage, fold: Callable[[], None]) -> Block:
        inside = Block()
        self.lanes.write(inside, stage.roots, [], fold)
        return inside

    def _begin(self) -> list[str]:
        a, b, t = self.a, self.b, self.type
        return [f"const {t} b{a} = w{a};"] if self.pair.mean is None else [f"{t} c{a} = 0, c{b} = 0;"]

    def _middle(self) -> list[str]:
        """An infinite maximum has no distances: of -inf nothing was added yet, and inf makes the sum NaN in the end."""
        a, b, t = self.a, self.b, self.type
        if self.pair.mean is not None:
            return [f"const {t} m{a} = c{a} / {self.lanes.chunk.width};", "{"]
        return [f"const {t} r{a} = w{a};", f"if (b{a} != r{a}) w{b} *= {self.exp}(b{a} - r{a});", f"if (!isinf(r{a})) {{"]

    def _end(self) -> list[str]:
        """u: the mean of the n chunks so far; w: the squares of their distances from it."""
        a, b, t = self.a, self.b, self.type
        return [] if self.pair.mean is None else [
            f"w{a} += c{a}; n{b} += 1;", f"const {t} d{a} = m{a} - u{b}, q{b} = 1 / n{b};", f"u{b} += d{a} * q{b};",
            f"w{b} += c{b} + d{a} * d{a} * ({self.lanes.chunk.width} * (1 - q{b}));"]

    # ------------------------------------------------------------ parts of a row

    def between(self, count: str) -> list[str]:
        """Once the first reduction's result is known, of `count` elements: this thread's part of the second becomes what it is of
        that."""
        a, b, t = self.a, self.b, self.type
        if self.pair.mean is None:
            return [f"if (w{a} != r{a}) w{b} *= {self.exp}(w{a} - r{a});"]
        return [f"const {t} e{b} = u{b} - r{a} / {count};", f"w{b} += {self.lanes.chunk.width} * n{b} * (e{b} * e{b});"]

    def of_part(self, first: str, second: str, count: str) -> list[str]:
        """Adds to w what `count` elements reduced to by themselves, once the first reduction's result is known."""
        a, b, t = self.a, self.b, self.type
        if self.pair.mean is None:
            return [f"w{b} += {first} == r{a} ? {second} : {second} * {self.exp}({first} - r{a});"]
        return [f"const {t} e{b} = {first} / {count} - r{a} / {self.row_size};", f"w{b} += {second} + {count} * (e{b} * e{b});"]

    @property
    def row_size(self) -> str:
        return self.w.d.literal(float(self.k.inner_size), self.pair.second.dtype)

    def after(self, value: str) -> str:
        """The second reduction's result."""
        nan = self.w.d.literal(float("nan"), self.pair.second.dtype)           # an infinite value lies nowhere from itself
        return f"isinf(r{self.a}) ? {nan} : {value}" if self.pair.mean is None else value
