"""Numbers: Python floats of the program that are known at run time alone, such as what `item()` reads, or what arithmetic makes of an
integer of Python state that is open.

In a recording a `Number` stands for one. Arithmetic on it is recorded; it goes as a scalar into operations whose elements
it enters. An input can be compared with constants, which entries guard; what else needs a value (a branch, a size, a call
of C code) is refused. In traces a number is a tensor of no dims in float64.
"""
from __future__ import annotations

import dis
import operator
import sys
from types import FrameType
from typing import AbstractSet, Any, Callable, NoReturn, Optional

import torch
from torch.utils._pytree import tree_leaves

from ..errors import UnsupportedError
from ..ir.extents import Node, is_extent
from ..ir.polynomial import Polynomial, Size
from ..ir.prims import NUMBER_OPS
from ..ir.proxy import TensorProxy
from ..ir.symbol import Symbol

_OPERATORS = ("BINARY_", "INPLACE_", "UNARY_")
_FILLS = frozenset("full full_like new_full scalar_tensor".split())
_EXACT = 1 << 53             # no two integers up to here are one float
NEEDS_VALUE = ("the program needs the values of a tensor, which a trace does not have ({}): keep them in tensors (torch.where "
               "instead of `if`, sizes that do not depend on data), or read them outside")


class NumberNode:
    """What torch's C++ code carries of a number from a call to its dispatch.

    emit: records a call of an operation on numbers and gives the number that it makes; refuse: raises for who needs the value.
    value: what an input is at this call; asked: the comparisons (operator, constant) that the program made with it; extent: the integer
    that an input is the float of, which tells how that compares.
    """

    def __init__(self, proxy: TensorProxy, emit: Callable[[Symbol, tuple], TensorProxy], refuse: Callable[[str], NoReturn],
                 value: Optional[float] = None, extent: Any = None) -> None:
        self.proxy, self.emit, self.refuse, self.value, self.extent = proxy, emit, refuse, value, extent
        self.asked: dict[tuple[str, Any], None] = {}

    def is_float(self) -> bool:
        return True

    def is_int(self) -> bool:
        return False

    is_bool = is_constant = is_nested_int = is_int
    is_symbolic = is_float

    def maybe_as_float(self) -> None:
        """No value is known."""

    constant_float = maybe_as_float

    def guard_float(self, *where: Any) -> NoReturn:
        self.refuse("a number as an argument")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse(name)


class Number(torch.SymFloat):
    """Calls itself a float, as what it stands for is one; is none, so that no C code takes its value for known."""

    @property
    def __class__(self) -> type:
        return float

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        self.node.refuse("a number")

    def __hash__(self) -> int:
        self._refuse()

    def __bool__(self) -> bool:
        return self != 0

    __float__ = __int__ = __index__ = __trunc__ = __round__ = __floor__ = __ceil__ = __complex__ = _refuse
    __divmod__ = __rdivmod__ = __mod__ = __rmod__ = _refuse
    __floordiv__ = __rfloordiv__ = __repr__ = __str__ = __format__ = __reduce_ex__ = __copy__ = __deepcopy__ = _refuse
    is_integer = as_integer_ratio = hex = conjugate = _refuse

    def __pos__(self) -> "Number":
        return self

    @property
    def real(self) -> "Number":
        return self


def _operator(sym: Symbol, reflected: bool) -> Callable:
    def method(self: Number, *others: Any) -> Any:
        if any(isinstance(o, torch.Tensor) for o in others):
            return NotImplemented
        operands = [self, *map(_as_float, others)]
        known = all(type(o) in (int, float, bool, Number) for o in operands)
        if not known or not (sym is NUMBER_OPS["abs"] or _is_plain_step(sys._getframe(1))):
            self._refuse()
        return _made(sym, operands[::-1] if reflected else operands, self.node)
    return method


def _made(sym: Symbol, operands: list, node: NumberNode) -> Number:
    """node: of one of the operands."""
    _ask_for_a_float(sym, operands)
    given = tuple(o.node.proxy if type(o) is Number else float(o) for o in operands)
    return Number(NumberNode(node.emit(sym, given), node.emit, node.refuse))


class Floats:
    """Makes numbers of integers that are open. sizes: those that integers of Python state are; add: a new input of the program, for the
    float of an integer."""

    def __init__(self, sizes: AbstractSet[Size], add: Callable[[Node], NumberNode]) -> None:
        self.sizes, self.add = sizes, add
        self._made: dict[Polynomial, NumberNode] = {}

    def of(self, node: Node) -> Optional[Number]:
        """Its float; None where its value is needed: sizes of arguments are constants of the program, or open, but no inputs."""
        if not node.p.sizes <= self.sizes or not node.relations.within(node.p, node.value, _EXACT):
            return None
        if node.p not in self._made:
            self._made[node.p] = self.add(node)
        return Number(self._made[node.p])

    def computed(self, op: Callable, operands: list, frame: FrameType) -> Optional[Number]:
        """The float that arithmetic in this frame makes of an integer that is open; None where it makes none, or needs values."""
        sym, whole = NUMBER_OPS.get(op.__name__), [type(o) in (int, bool) or is_extent(o) for o in operands]
        if sym is None or not _is_plain_step(frame) or not all(w or type(o) in (float, Number) for o, w in zip(operands, whole)):
            return None
        if all(whole):                        # the quotient of two is rounded once, and a power most often whole
            if not (op is operator.truediv or op is operator.pow and type(operands[1]) is int and operands[1] < 0):
                return None
            if any(type(o) is int and abs(o) > _EXACT for o in operands):
                return None
        floats = [_as_float(o) for o in operands]
        node = next((o.node for o in floats if type(o) is Number), None)
        return _made(sym, floats, node) if node is not None and not any(map(is_extent, floats)) else None


def _as_float(x: Any) -> Any:
    """An integer that is open, as a number of the program, where it can be one; anything else as it is."""
    floats = x.node.relations.floats if is_extent(x) else None
    made = floats.of(x.node) if floats is not None else None
    return x if made is None else made


def with_floats(sym: Symbol, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments of an operation that computes floats alone, with numbers for integers that are open."""
    kinds = {a.dtype for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)}
    computes = {kind for kind in kinds if kind.is_floating_point}
    if not computes or kinds - computes - {torch.bool} or not (sym.pointwise or sym.packet.startswith("_foreach_")):
        return args, kwargs
    named = {a.name: a for a in sym.overload._schema.arguments}
    scalars = {name for name, a in named.items() if "number" in str(a.type) or str(a.type) == "Tensor"}
    return (tuple(_as_float(a) if name in scalars else a for name, a in zip(named, args)),
            {name: _as_float(a) if name in scalars else a for name, a in kwargs.items()})


def _ask_for_a_float(sym: Symbol, operands: list) -> None:
    """What makes Python's arithmetic raise, or give a complex number, is asked of operands that are inputs, and so guarded."""
    if sym is NUMBER_OPS["truediv"]:
        _insist(operands[1], "ne", 0)
    elif sym is NUMBER_OPS["pow"]:
        base, exponent = operands
        if type(exponent) is Number or exponent < 0:
            _insist(base, "ne", 0)
        if type(exponent) is Number or not float(exponent).is_integer():
            _insist(base, "ge", 0)


def _insist(a: Any, name: str, other: float) -> None:
    """An input that does not compare so is needed as a constant."""
    if type(a) is Number and a.node.value is not None and not _comparison(name)(a, other):
        a._refuse()


def _is_plain_step(frame: FrameType) -> bool:
    """Does the code itself compute? A C function that it calls, such as `sum`, may add floats in a way of its own."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(_OPERATORS)


def _comparison(name: str) -> Callable:
    def method(self: Number, other: Any) -> Any:
        node = self.node
        if isinstance(other, torch.Tensor):
            return NotImplemented
        if node.value is None or type(other) not in (int, float, bool):
            self._refuse()
        if node.extent is not None:
            return getattr(operator, name)(node.extent, other)
        node.asked[name, other] = None
        return getattr(operator, name)(node.value, other)
    return method


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Number, f"__{_name}__", _comparison(_name))
for _name, _sym in NUMBER_OPS.items():
    setattr(Number, f"__{_name}__", _operator(_sym, False))
    if _name not in ("neg", "abs"):
        setattr(Number, f"__r{_name}__", _operator(_sym, True))


def number_of(a: Any) -> Optional[TensorProxy]:
    """The proxy of a number, also as C++ hands it on; None for anything else."""
    return a.node.proxy if issubclass(type(a), torch.SymFloat) and type(a.node) is NumberNode else None


def as_number(a: Any) -> Any:
    """What C++ handed on, as the program sees it."""
    return Number(a.node) if number_of(a) is not None and type(a) is not Number else a


def refuse_unless_elementwise(sym: Symbol, args: tuple, kwargs: dict) -> None:
    """A number may be in an operation where it says nothing about shapes, nor whether it raises or draws.

    An input is guarded to be a value that the elements' dtypes hold, unless it is an operand itself: others raise in eager.
    """
    if not (sym.pointwise or sym.packet.startswith("_foreach_") or sym.packet in _FILLS) or sym.random:
        raise UnsupportedError(NEEDS_VALUE.format(f"a number in {sym.name}"))
    kinds = [a.dtype for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor) and a.is_floating_point()]
    largest = min(torch.finfo(kind).max for kind in kinds or [torch.get_default_dtype()])
    named = zip((a.name for a in sym.overload._schema.arguments), args)
    for a in tree_leaves([value for name, value in (*named, *kwargs.items()) if name not in ("self", "other")]):
        if number_of(a):
            _insist(as_number(a), "le", largest)
            _insist(as_number(a), "ge", -largest)
