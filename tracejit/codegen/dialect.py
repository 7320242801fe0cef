"""What C-like languages differ in: how types, primitives, numbers and the folds of reductions are spelled."""
from __future__ import annotations

import math
from typing import Any

import torch

from ..ir.extents import is_extent
from .kernel import Reduction
from .primitives import ARITY, PRIMITIVES


class Dialect:
    """Spellings of one C-like language: a table for types and one for primitives."""

    memory: dict[torch.dtype, str] = {}                        # how an element lies in memory
    register: dict[torch.dtype, str] = {}                      # the type that computes with it
    letter: dict[str, str] = {}                                # register type -> suffix of helper functions
    primitives: dict[str, str] = PRIMITIVES
    math: str = ""                                             # what the names of C's mathematical functions begin with
    not_positive: dict[str, str] = {}                          # functions of floats that are cheaper where x <= 0
    vector_pragma: str = ""
    transposes: dict[int, str] = {}                            # an element's bytes -> (from, step, to, width)
    stream: str = ""                                           # (to, from, bytes): stores past the caches
    prefetch: str = ""                                         # asks for the line of an address
    index_type: str = "long long"
    numbers_by_value: bool = False                             # a Python float is a parameter, not memory

    def load(self, dtype: torch.dtype, at: str) -> str:
        return at

    def store(self, dtype: torch.dtype, value: str) -> str:
        return value

    def round(self, dtype: torch.dtype, value: str) -> str:
        return value

    def literal(self, value: Any, dtype: torch.dtype) -> str:
        return literal(value, self.register[dtype])

    def checked(self, index: str, size: int, wraps: bool, error: int, valid: str) -> str:
        """A gathered index, which reports an error where it is out of bounds and the load is `valid`."""
        return f"tj_checked({index}, {size}, {int(wraps)}, {error}, {valid}, err)"

    def nonzero(self, divisor: str, kind: str, valid: str) -> str:
        """A divisor that reports an error where it is zero and the division is `valid`."""
        return f"tj_nonzero_{kind}({divisor}, {valid}, err)"

    def store_quiet(self, dtype: torch.dtype, value: str) -> str:
        """As `store`, of a value whose NaNs have no bits that the half type lacks."""
        return self.store(dtype, value)

    def round_quiet(self, dtype: torch.dtype, value: str) -> str:
        return self.round(dtype, value)

    def spelling(self, op: str, kind: str) -> str:
        """The template of a primitive for a register type of this letter: `abs.int` goes before `abs`."""
        known = self.primitives.get(f"{op}.{'real' if kind in 'fd' else 'int'}") or self.primitives.get(op)
        if known is not None:
            return known.replace("{exp}", self.function("exp", kind)) if "{exp}" in known else known
        return f"{self.function(op, kind)}({', '.join(f'{{{n}}}' for n in range(ARITY.get(op, 1)))})"

    def function(self, name: str, kind: str) -> str:
        """A function of the C library."""
        return f"{self.math}{name}{'f' if kind == 'f' else ''}"


UNSIGNED = {"int": "u32", "i64": "u64", "short": "u16", "signed char": "u8", "u8": "u8"}
LOWEST = {"i64": "(-0x7fffffffffffffffl - 1)", "int": "(-0x7fffffff - 1)", "short": "-32768", "signed char": "-128",
          "u8": "0", "_Bool": "0"}
HIGHEST = {"i64": "0x7fffffffffffffffl", "int": "0x7fffffff", "short": "32767", "signed char": "127", "u8": "255",
           "_Bool": "1"}


def literal(value: Any, ctype: str) -> str:
    if is_extent(value):
        return f"(({ctype}){value})"
    if ctype in ("float", "double"):
        suffix = "f" if ctype == "float" else ""
        if value != value:
            return f'__builtin_nan{suffix}("")'
        value = torch.tensor(value, dtype=torch.float32).item() if suffix else value
        if math.isinf(value):
            return f"({'-' if value < 0 else ''}__builtin_inf{suffix}())"
        text = value.hex() if value else repr(value)
        return f"({text}{suffix})" if text.startswith("-") else f"{text}{suffix}"
    value = int(value)
    if ctype == "i64":
        return LOWEST["i64"] if value == -(1 << 63) else f"({value}l)" if value < 0 else f"{value}l"
    return LOWEST["int"] if value == -(1 << 31) else f"({value})" if value < 0 else str(value)


# ------------------------------------------------------------ folding

FIRST = {"sum": "0", "prod": "1", "any": "0", "all": "1"}
FOLD = {"sum": "{0} += {1};", "prod": "{0} *= {1};", "any": "{0} |= {1};", "all": "{0} &= {1};",
        "max": "{0} = {1} > {0} ? {1} : {0};", "min": "{0} = {1} < {0} ? {1} : {0};"}
CLAUSE = {"sum": "+", "prod": "*", "any": "|", "all": "&", "max": "max", "min": "min"}


def loses_nan(r: Reduction) -> bool:
    """A vector max or min forgets NaN: a flag travels beside it."""
    return r.kind in ("max", "min") and r.dtype.is_floating_point


def first_value(r: Reduction, ctype: str) -> str:
    if r.kind in FIRST:
        return FIRST[r.kind]
    if ctype in ("float", "double"):
        return f"{'-' if r.kind == 'max' else ''}__builtin_inf()"
    return (LOWEST if r.kind == "max" else HIGHEST)[ctype]


def finished(r: Reduction, value: str, flag: str) -> str:
    return f'{flag} ? __builtin_nan("") : {value}' if loses_nan(r) else value
