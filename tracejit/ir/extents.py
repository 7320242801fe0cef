"""Extents: integers that follow from open sizes, such as `x.shape[0] * 2 + 1`.

An `Extent` is a polynomial over open sizes, with the value that it has in the call which is compiled. Arithmetic makes extents; whoever
compares one is told how it compares now, and the `Relations` of the compile note what was told. What is made of extents holds for all
sizes for which the relations hold. Who takes the value itself pins the sizes to what they are now.

For torch an extent is a `SymInt`. For the program it calls itself an int (`Given`), as what it stands for is one.
"""
from __future__ import annotations

import math
import operator
import sys
from typing import Any, Callable, Iterable, Mapping, NoReturn, Optional, Union
from weakref import ref

import torch

from ..errors import UnsupportedError
from .polynomial import LARGEST, Polynomial, Size, condition, decided, pinned

LONGEST = (1 << 63) - 1      # of C's long


class Relations:
    """What one compile assumes of the sizes that it leaves open.

    sizes: each with its value in this call; needed: those of which somebody took the value; asked: (polynomial, is it asked whether it
    is 0 or whether it is positive) -> the answer; texts: polynomials that stand in the text of kernels, by number; given: the integers
    that the program had; floats: what makes numbers of extents, while such a program is captured.
    """

    def __init__(self, sizes: Mapping[Size, int]) -> None:
        self.sizes, self.needed = dict(sizes), set[Size]()
        self.asked: dict[tuple[Polynomial, bool], bool] = {}
        self.texts: dict[Polynomial, int] = {}
        self.given: list[ref] = []
        self.floats: Any = None

    def ask(self, p: Polynomial, zero: bool, value: int) -> bool:
        """Is p, which is `value` now, 0 (zero), or is it positive?"""
        known = decided(p, zero)
        return self.asked.setdefault((p, zero), value == 0 if zero else value > 0) if known is None else known

    @property
    def pinned(self) -> set[Size]:
        """Sizes for which only one value will do."""
        return {size for (p, zero), outcome in self.asked.items() if zero and outcome and (size := pinned(p)) is not None} | self.needed

    @property
    def outlived(self) -> bool:
        """Has the program an integer still that it was given?"""
        return any(given() is not None for given in self.given)

    def condition(self) -> Callable[[Mapping[Size, int]], bool]:
        return condition(self.asked)

    def within(self, p: Polynomial, value: int, most: int) -> bool:
        """Is it, or its negative, no larger than `most`?"""
        bound = Polynomial.of(most + 1)
        return p.most <= most or self.ask(bound - p, False, most + 1 - value) and self.ask(bound + p, False, most + 1 + value)

    def text(self, p: Polynomial, value: int) -> str:
        """What stands for the number in the text of a kernel."""
        number = self.texts.setdefault(p, len(self.texts))
        return f"@{number}@" if self.within(p, value, LARGEST) or not self.within(p, value, LONGEST) else f"@{number}@l"


class Node:
    """What torch's C++ code carries of an extent."""

    __slots__ = ("p", "value", "relations")

    def __init__(self, p: Polynomial, value: int, relations: Relations) -> None:
        self.p, self.value, self.relations = p, value, relations

    def compares(self, other: "Node", name: str) -> bool:
        p, value = self.p - other.p, self.value - other.value
        if name in ("eq", "ne"):
            return self.relations.ask(p, True, value) is (name == "eq")
        if name in ("gt", "le"):
            return self.relations.ask(p, False, value) is (name == "gt")
        return self.relations.ask(-p, False, -value) is (name == "lt")

    def guard_int(self, file: str = "", line: int = 0) -> int:
        """The value: from here on, no other will do. A remainder is the same for many sizes."""
        if self.p.remainders:
            self.compares(self.wrap_int(self.value), "eq")
        elif self.p.constant is None:
            self.relations.needed |= self.p.sizes
        return self.value

    int_ = guard_int

    def guard_float(self, file: str = "", line: int = 0) -> float:
        return float(self.guard_int())

    def is_int(self) -> bool:
        return True

    has_hint = is_int

    def is_float(self) -> bool:
        return False

    is_bool = is_nested_int = is_constant = is_float
    is_symbolic = is_float                                     # of no expression that torch knows

    def nested_int(self) -> None:
        """It is none."""

    constant_int = constant_bool = nested_int

    def maybe_as_int(self) -> Optional[int]:
        return self.p.constant

    def clone(self) -> "Node":
        return self

    def wrap_int(self, n: int) -> "Node":
        return Node(Polynomial.of(n), n, self.relations)

    def neg(self) -> "Node":
        return Node(-self.p, -self.value, self.relations)

    def sym_min(self, other: "Node") -> "Node":
        return other if other.compares(self, "lt") else self

    def sym_max(self, other: "Node") -> "Node":
        return other if other.compares(self, "gt") else self

    def sym_sum(self, others: list) -> "Node":
        made = others[0]
        for other in others[1:]:
            made = made.add(other)
        return made

    def str(self) -> str:
        return repr(self.p)

    _graph_repr = str

    def __getattr__(self, name: str) -> NoReturn:
        """What else torch may ask, no polynomial tells."""
        if not name.startswith("__"):
            self.guard_int()
        return _unknown(name)


class Answer:
    """What torch's C++ code carries of the outcome of a comparison."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value

    def guard_bool(self, file: str = "", line: int = 0) -> bool:
        return self.value

    expect_true = guard_size_oblivious = guard_or_false = guard_or_true = statically_known_true = guard_bool
    bool_ = constant_bool = maybe_as_bool = guard_bool

    def is_bool(self) -> bool:
        return True

    is_constant = has_hint = is_bool

    def is_int(self) -> bool:
        return False

    is_float = is_nested_int = is_symbolic = is_int

    def clone(self) -> "Answer":
        return self

    def wrap_bool(self, value: bool) -> "Answer":
        return Answer(value)

    def sym_and(self, other: "Answer") -> "Answer":
        return Answer(self.value and other.value)

    def sym_or(self, other: "Answer") -> "Answer":
        return Answer(self.value or other.value)

    def sym_not(self) -> "Answer":
        return Answer(not self.value)

    and_, or_ = sym_and, sym_or

    def __getattr__(self, name: str) -> NoReturn:
        return _unknown(name)


def _unknown(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise UnsupportedError(f"torch asks for {name} of a size that is open: dynamic=False compiles for each size")


class Extent(torch.SymInt):
    """One that compiles compute with: equal polynomials are one key, and its text is for kernels."""

    @property
    def __class__(self) -> type:
        return int

    def __hash__(self) -> int:
        return hash(self.node.p)

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        return self.node.guard_int()

    __int__ = __trunc__ = __round__ = __floor__ = __ceil__ = __index__

    def __float__(self) -> float:
        return float(int(self))

    __sym_float__ = __float__

    def __complex__(self) -> complex:
        return complex(int(self))

    def __repr__(self) -> str:
        return repr(self.node.p)

    def __str__(self) -> str:
        return self.node.relations.text(self.node.p, self.node.value)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __pos__(self) -> "Extent":
        return self

    def __neg__(self) -> Union["Extent", int]:
        return _made(type(self), self.node.neg())

    def __abs__(self) -> Union["Extent", int]:
        return self if self >= 0 else -self

    def __divmod__(self, other: Any) -> tuple:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple:
        return other // self, other % self


class Given(Extent):
    """One that the program has. Nothing shows that it is no int, unless its value is taken."""

    def __hash__(self) -> int:
        return hash(int(self))

    def __repr__(self) -> str:
        return repr(int(self))

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return int, (int(self),)


def _made(kind: type, node: Node) -> Union[Extent, int]:
    n = node.p.constant
    if n is not None:
        return n
    made = kind(node)
    if kind is Given:
        node.relations.given.append(ref(made))
    return made


def is_extent(x: Any) -> bool:
    return issubclass(type(x), torch.SymInt) and type(x.node) is Node


def as_extent(x: Any) -> Any:
    """An integer that torch or the program has, or a slice of such, as compiles compute with it; anything else as it is."""
    if type(x) is slice:
        return slice(as_extent(x.start), as_extent(x.stop), as_extent(x.step))
    return _made(Extent, x.node) if type(x) is not Extent and is_extent(x) else x


def as_extents(numbers: Iterable[Any]) -> tuple:
    return tuple([as_extent(n) for n in numbers])


def as_given(x: Any) -> Any:
    """What torch made, as the program sees it: an extent, or the sizes of a tensor."""
    if type(x) is torch.Size:
        return torch.Size([as_given(n) for n in x]) if any(map(is_extent, x)) else x
    return _made(Given, x.node) if is_extent(x) and type(x) is not Given else x


def now(x: Any) -> Any:
    """The value of an integer in this call, for who does not depend on it; anything else as it is."""
    return x.node.value if is_extent(x) else x


def as_long(x: Any) -> Any:
    """An integer that C's long holds for all sizes, or its value: C++ raises for what is longer. Anything else as it is."""
    return int(x) if is_extent(x) and not x.node.relations.within(x.node.p, x.node.value, LONGEST) else x


def settled(x: Any) -> Any:
    """An integer, or the sizes of a tensor, with the values that they have now; anything else as it is."""
    if type(x) is torch.Size:
        return torch.Size([settled(n) for n in x]) if any(map(is_extent, x)) else x
    return x.node.guard_int() if is_extent(x) else x


def extent_of(p: Polynomial, relations: Relations) -> Union[Extent, int]:
    return _made(Extent, Node(p, p.at(relations.sizes), relations))


def _operand(own: Node, other: Any) -> Optional[Node]:
    """The node of an integer; None for what is none."""
    if type(other) is int or type(other) is bool:
        return own.wrap_int(int(other))
    return other.node if is_extent(other) else None


_POLYNOMIALS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod}
_OF_VALUES = ("truediv", "pow", "lshift", "rshift", "and_", "or_", "xor")       # of which no polynomial tells


def _node_method(op: Callable) -> Callable:
    def method(self: Node, other: Node) -> Node:
        if op in (operator.floordiv, operator.mod):
            other.compares(self.wrap_int(0), "eq")             # whether it raises is asked
        return Node(op(self.p, other.p), op(self.value, other.value), self.relations)
    return method


def _with_value(x: Any) -> Any:
    return int(x) if type(x) is not int and is_extent(x) else x


def _operator(op: Callable, method_of_node: Optional[Callable], reflected: bool) -> Callable:
    def method(self: Extent, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        node = _operand(self.node, other)
        if node is None or method_of_node is None:
            operands, floats = [other, self] if reflected else [self, other], self.node.relations.floats
            made = floats.computed(op, operands, sys._getframe(1)) if floats is not None else None
            return op(*map(_with_value, operands)) if made is None else made
        return _made(type(self), method_of_node(node, self.node) if reflected else method_of_node(self.node, node))
    return method


def _comparison(name: str) -> Callable:
    def method(self: Extent, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        node = _operand(self.node, other)
        if node is not None:
            return self.node.compares(node, name)
        if type(other) is float:
            return _compares_with_float(self.node, other, name)
        return getattr(operator, name)(int(self), other) if type(other) is complex else NotImplemented
    return method


def _compares_with_float(node: Node, other: float, name: str) -> bool:
    """As Python compares an integer with a float: exactly."""
    if not math.isfinite(other):
        return getattr(operator, name)(0, other)
    if name in ("eq", "ne") and not other.is_integer():
        return name == "ne"
    return node.compares(node.wrap_int(math.ceil(other) if name in ("lt", "ge") else math.floor(other)), name)


for _name, _op in _POLYNOMIALS.items():
    setattr(Node, _name, _node_method(_op))
Node.int_floordiv = Node.floordiv
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Node, _name, lambda self, other, name=_name: Answer(self.compares(other, name)))
    setattr(Extent, f"__{_name}__", _comparison(_name))
for _name in (*_POLYNOMIALS, *_OF_VALUES):
    for _reflected in (False, True):
        setattr(Extent, f"__{'r' * _reflected}{_name.strip('_')}__",
                _operator(getattr(operator, _name), vars(Node).get(_name) if _name in _POLYNOMIALS else None, _reflected))
