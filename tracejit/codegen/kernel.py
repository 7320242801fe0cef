"""Kernel IR: loops over expressions.

    kernel     ::= buffers  outer loops  inner loops  schedule  stage*
    stage      ::= reduction*  store*  after*          # one pass over the inner loops; `after`: stores once per outer iteration
    expression ::= load(buffer, index [, guard]) | const | index | inside(index, low, high) | reduced(reduction) | running(expression)
                 | checked(expression) | select(condition, yes, no) | op(expression, ...)

Expressions are interned: identity is equality. bf16 and f16 values live in float registers that always hold a rounded
value; rounding is an explicit op.
"""
from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, Union

import torch

from ..ir.extents import is_extent
from .index import Bounds, Gathered, Index, Var, atoms, bounds

if TYPE_CHECKING:
    from .tiles import Tiled

HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.float32, torch.float64, *HALVES)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)

# Primitives that cost many operations.
HEAVY = frozenset("""exp exp2 expm1 log log2 log10 log1p sin cos tan tanh erf erfc sigmoid silu gelu gelu_tanh pow number_pow
    softplus elu atan atan2 remainder fmod silu_backward gelu_backward gelu_tanh_backward asin acos sinh cosh asinh acosh
    atanh""".split())


# What a kernel reports, by the number that it returns.
ERRORS = {"IndexError": 1, "RuntimeError": 2, "ZeroDivisionError": 3, "Target": 4, "Probability": 5, "division": 6, "power": 7,
          "reciprocal": 8}
MESSAGES = {1: "index out of range in self",
            2: "index is out of bounds",
            3: "ZeroDivisionError",
            4: "Target is out of bounds.",
            5: "all elements of input and target should be between 0 and 1",
            6: "float division by zero",
            7: "a power of numbers is out of range, or complex: keep them tensors, without .item()",
            8: "0.0 cannot be raised to a negative power"}


class CannotLower(Exception):
    """These calls are not one kernel; `position` is that of the call that stands in the way, when it is known."""

    def __init__(self, why: str, position: Optional[int] = None) -> None:
        super().__init__(why)
        self.position = position


@dataclass(frozen=True)
class Buffer:
    """Memory of one storage under one dtype. Index 0 is the storage's first element, whatever is passed."""

    name: str
    storage: int
    dtype: torch.dtype
    written: bool = False
    number: bool = False                 # a Python float


@dataclass(eq=False)
class Expr:
    number: int
    op: str
    args: tuple["Expr", ...]
    dtype: torch.dtype
    extra: Any = None

    @property
    def index(self) -> Optional[Index]:
        """The index that it holds, if any."""
        if self.op == "load":
            return self.extra[1]
        return self.extra if self.op == "index" else self.extra[0] if self.op == "inside" else None


@dataclass(eq=False)
class Reduction:
    number: int
    kind: str                            # sum prod max min any all
    value: Expr
    dtype: torch.dtype                   # of the accumulator
    stage: int = 0


@dataclass(eq=False)
class Store:
    buffer: str
    index: Index
    value: Expr
    full: bool                           # once per inner iteration, or once per outer one
    position: int                        # of the call in the region
    stage: int = 0


@dataclass(frozen=True, eq=False)
class Postponed:
    """A store to memory that the kernel reads at other indices. Its values wait where `waiting` stores them, until no row that
    is computed later reads what they overwrite: a row reads what up to `behind` rows before it and `ahead` rows after it write."""

    store: Store
    waiting: Store
    row: Var
    length: int                          # steps of `row` that are one row
    behind: int
    ahead: int
    saved: int = 0                       # bytes that are copied before they are overwritten


@dataclass
class Stage:
    reductions: list[Reduction] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    after: list[Store] = field(default_factory=list)

    @property
    def roots(self) -> list[Expr]:
        return [r.value for r in self.reductions] + [s.value for s in self.stores]


@dataclass
class Kernel:
    """schedule: pointwise | row | column | whole | scan (as row, one element after another)."""

    buffers: dict[str, Buffer]
    outer: list[Var]                     # outermost first
    inner: list[Var]                     # pointwise: the vector loop; row and whole: the reduced loops; column: the reduced rows
    schedule: str
    stages: list[Stage]
    expressions: list[Expr]              # arguments first
    kept: dict[Expr, int] = field(default_factory=dict)      # row buffers: expression -> the stage that fills it
    tile: Optional[tuple[Var, Var]] = None                    # square tile for loads whose order disagrees with the stores'
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_again: int = 0                 # of bytes_read: those that a later pass over a row reads anew
    operations: int = 0
    checks: bool = False                 # may report an error
    postponed: Optional[Union[Postponed, Tiled]] = None       # pointwise alone
    same_as: Optional["Kernel"] = None   # equal up to the names of buffers, and rendered as that one

    @property
    def stores_full(self) -> list[Store]:
        """Those made once per inner iteration."""
        return [s for stage in self.stages for s in stage.stores]

    @property
    def every_store(self) -> list[Store]:
        return [s for stage in self.stages for s in (*stage.stores, *stage.after)]

    @property
    def outer_size(self) -> int:
        return math.prod(v.size for v in self.outer)

    @property
    def inner_size(self) -> int:
        return math.prod(v.size for v in self.inner)


class Expressions:
    """Interning builder; folds what predicates and casts of constants need. rounds: half-precision values are, op by op."""

    def __init__(self, rounds: bool = True) -> None:
        self.rounds = rounds
        self.table: dict[tuple, Expr] = {}
        self.all: list[Expr] = []

    def node(self, op: str, args: tuple[Expr, ...], dtype: torch.dtype, extra: Any = None) -> Expr:
        told = ("float", repr(extra)) if isinstance(extra, float) else ("bool", extra) if isinstance(extra, bool) else extra
        key = (op, tuple(a.number for a in args), dtype, told)
        if key not in self.table:
            self.table[key] = Expr(len(self.all), op, tuple(args), dtype, extra)
            self.all.append(self.table[key])
        return self.table[key]

    def const(self, value: Any, dtype: torch.dtype) -> Expr:
        if is_extent(value) and dtype not in (torch.bool, *HALVES) and (dtype.is_floating_point or value <= torch.iinfo(dtype).max):
            return self.node("const", (), dtype, value)
        if dtype is torch.bool:
            return self.node("const", (), dtype, bool(value))
        if dtype.is_floating_point:
            return self.node("const", (), dtype, _rounded(float(value), dtype))
        bits = 8 * dtype.itemsize
        value = int(value) & ((1 << bits) - 1)
        return self.node("const", (), dtype, value - (1 << bits) if dtype.is_signed and value >> (bits - 1) else value)

    def cast(self, e: Expr, dtype: torch.dtype) -> Expr:
        """As `Tensor.to`: halves are rounded."""
        if e.dtype is dtype:
            return e
        if e.op == "const":                                    # C does not define all casts of floats to integers: as torch has them
            truncates = isinstance(e.extra, float) and not dtype.is_floating_point
            return self.const(torch.tensor(e.extra, dtype=e.dtype).to(dtype).item() if truncates else e.extra, dtype)
        return self.rounded(self.node("cast", (e,), dtype))

    def rounded(self, e: Expr) -> Expr:
        exact = e.op in ("load", "const", "round") or e.op == "cast" and e.args[0].dtype in (torch.bool, torch.int8, torch.uint8)
        return e if e.dtype not in HALVES or exact or not self.rounds else self.node("round", (e,), e.dtype)

    def both(self, p: Optional[Expr], q: Optional[Expr]) -> Optional[Expr]:
        if p is None or q is None or p is q:
            return p or q
        return self.node("and", (p, q), torch.bool)

    def inside(self, index: Index, low: int, high: int) -> Expr:
        """low <= index < high."""
        first, last = bounds(index)
        if first >= low and last < high:
            return self.const(True, torch.bool)
        if last < low or first >= high:
            return self.const(False, torch.bool)
        return self.node("inside", self.gathered(index), torch.bool, (index, low, high))

    def position(self, index: Index) -> Expr:
        return self.node("index", self.gathered(index), torch.int64, index)

    def gathered(self, *indices: Index) -> tuple[Expr, ...]:
        """The loaded values that indices hold."""
        return tuple(self.all[a.expression] for i in indices for a in atoms(i) if isinstance(a, Gathered))


def _rounded(value: float, dtype: torch.dtype) -> float:
    if dtype is torch.float64:
        return value
    return ctypes.c_float(value).value if dtype is torch.float32 else torch.tensor(value, dtype=torch.float64).to(dtype).item()


def closure(roots: list[Expr]) -> list[Expr]:
    """Every expression below the roots, arguments first; those that a reduction folds included."""
    seen: set[Expr] = set()
    found: list[Expr] = []
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        e, done = stack.pop()
        if done:
            found.append(e)
        elif e not in seen:
            seen.add(e)
            stack.append((e, True))
            below = (e.extra.value,) if e.op == "reduced" else e.args
            stack += [(a, False) for a in below if a not in seen]
    return found


def below(root: Expr) -> set[Expr]:
    """The expressions that are computed where `root` is: not those that a reduction folds."""
    seen: set[Expr] = set()
    stack = [root]
    while stack:
        e = stack.pop()
        if e not in seen:
            seen.add(e)
            stack += e.args
    return seen


def truth(e: Expr, within: dict[Var, Bounds]) -> Optional[bool]:
    """What a predicate is for all iterations with the variables `within` these bounds; None when it depends."""
    if e.op == "const":
        return bool(e.extra)
    if e.op == "inside":
        index, low, high = e.extra
        first, last = bounds(index, within)
        return True if first >= low and last < high else False if last < low or first >= high else None
    if e.op == "not":
        t = truth(e.args[0], within)
        return None if t is None else not t
    if e.op == "and":
        a, b = truth(e.args[0], within), truth(e.args[1], within)
        return False if a is False or b is False else True if a and b else None
    return None


def negated(e: Expr) -> Optional[Expr]:
    """What is computed in the kernel and has its sign changed here; None if nothing is. gcc makes -(a * b + c) one step, (-a) * b - c,
    of which a zero has another sign."""
    changed = None
    if e.op == "neg":
        changed = e.args[0]
    elif e.op in ("mul", "div") and e.args[1].op == "const" and e.args[1].extra == -1:
        changed = e.args[0]
    elif e.op == "mul" and e.args[0].op == "const" and e.args[0].extra == -1:
        changed = e.args[1]
    return None if changed is None or changed.op in ("load", "const") else changed


def never_positive(e: Expr) -> bool:
    """Is a float value at most zero, or NaN, whatever is loaded: cut off, a negated magnitude, or less than a maximum?"""
    while e.op == "round":                                     # rounding keeps the order, and zero
        e = e.args[0]
    if e.op == "neg":
        return e.args[0].op == "abs"
    if e.op in ("clamp_max", "clamp_max_number"):
        return e.args[1].op == "const" and e.args[1].extra <= 0
    if e.op != "sub":
        return False
    value, most = map(_exact_origin, e.args)
    return most.op == "reduced" and most.extra.kind == "max" and _exact_origin(most.extra.value) is value


def _exact_origin(e: Expr) -> Expr:
    """What a value is that casts only widened."""
    while e.op == "cast" and e.args[0].dtype in HALVES and e.dtype in FLOATS:
        e = e.args[0]
    return e


def variables(e: Expr) -> set[Var]:
    """Loop variables that its own index holds."""
    return set() if e.index is None else {a for a in atoms(e.index) if isinstance(a, Var)}
