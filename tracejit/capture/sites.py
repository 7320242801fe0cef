"""What is passed at a call or a comparison: the simple loads before it, evaluated without running code of the user's.

Only a refinement: what cannot be told here is taken for anything that the frame holds.
"""
from __future__ import annotations

import dis
import types
from typing import Any

from .keys import MISSING, instance_dict

# Where a value is loaded from, its name there, and the attributes from there on.
Argument = tuple[str, Any, tuple[str, ...]]
UNTOLD: Argument = ("", None, ())
FILLER = frozenset({
    "CACHE", "PRECALL", "EXTENDED_ARG", "NOP", "PUSH_NULL", "KW_NAMES", "COPY_FREE_VARS", "RESUME"})
_LONGEST = 40
_SITES: dict[int, tuple[types.CodeType, dict[int, tuple[Argument, Argument]]]] = {}


def attribute_at(frame: types.FrameType) -> tuple[Any, str | None]:
    """(object, name) of the `getattr`-like call that `frame` makes; MISSING and None where not told."""
    obj, name = _first_two(frame)
    return obj, name if type(name) is str else None


def compared_at(frame: types.FrameType) -> tuple[Any, Any]:
    """(left, right) of the comparison that `frame` makes with an operator; MISSING where not told."""
    compares = frame.f_code.co_code[frame.f_lasti] == dis.opmap["COMPARE_OP"]
    return _first_two(frame) if compares else (MISSING, MISSING)


def _first_two(frame: types.FrameType) -> tuple[Any, Any]:
    found = _SITES.get(id(frame.f_code))
    if found is None:
        found = _SITES[id(frame.f_code)] = (frame.f_code, _find_sites(frame.f_code))
    first, second = found[1].get(frame.f_lasti, (UNTOLD, UNTOLD))
    return evaluate(frame, first), evaluate(frame, second)


def evaluate(frame: types.FrameType, argument: Argument) -> Any:
    """The value of an argument in `frame`, or MISSING."""
    kind, value, attributes = argument
    if kind in ("local", "global"):
        value = (frame.f_locals if kind == "local" else frame.f_globals).get(value, MISSING)
    elif kind == "format":
        parts = [evaluate(frame, part) for part in value]
        return "".join(map(str, parts)) if all(type(part) in (str, int) for part in parts) else MISSING
    elif kind != "const":
        return MISSING
    for name in attributes:
        names = instance_dict(value) if value is not MISSING else None
        value = names.get(name, MISSING) if names is not None else MISSING
        if value is MISSING and type(names) is dict and type(names.get("_modules")) is dict:
            value = names["_modules"].get(name, MISSING)
    return value


def _find_sites(code: types.CodeType) -> dict[int, tuple[Argument, Argument]]:
    """Offset of each call of up to three arguments -> its first two; of each comparison -> its operands."""
    sites: dict[int, tuple[Argument, Argument]] = {}
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if step.opname in ("CALL", "CALL_FUNCTION") and step.arg in (1, 2, 3):
            end = at - 1 if steps[at - 1].opname == "PRECALL" else at
            arguments = pushed(steps[:end], step.arg)
            sites[step.offset] = (arguments[-1], arguments[-2] if step.arg > 1 else UNTOLD)
        elif step.opname == "COMPARE_OP":
            right, left = pushed(steps[:at], 2)
            sites[step.offset] = (left, right)
    return sites


def pushed(steps: list[dis.Instruction], count: int) -> list[Argument]:
    """The last `count` values that straight-line `steps` leave on the stack, the last first."""
    found: list[Argument] = []
    part: list[dis.Instruction] = []
    depth = 0
    for step in reversed(steps[-_LONGEST:]):
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            break
        depth += dis.stack_effect(step.opcode, step.arg)
        if step.opname not in FILLER:
            part.append(step)
        while depth > 0 and part:
            found.append(_argument(part[::-1], depth))
            depth, part = depth - 1, part if depth > 1 else []
        if len(found) >= count:
            break
    return [*found, *[UNTOLD] * count][:count]


def _argument(steps: list[dis.Instruction], which: int) -> Argument:
    """What `steps` compute: one load, then attributes. If two values are loaded, `which` says which."""
    op, value = steps[0].opname, steps[0].argval
    if steps[-1].opname == "BUILD_STRING":
        parts = [step for step in steps[:-1] if step.opname not in ("FORMAT_VALUE", "FORMAT_SIMPLE")]
        return ("format", tuple(_argument([part], 1) for part in parts), ())
    if any(step.opname != "LOAD_ATTR" for step in steps[1:]):
        return UNTOLD
    attributes = tuple(step.argval for step in steps[1:])
    if isinstance(value, tuple) and op.startswith("LOAD_FAST"):
        attributes, value = (attributes if which == 2 else ()), value[which - 1]
    if op.startswith("LOAD_FAST") or op == "LOAD_DEREF":
        return ("local", value, attributes)
    if op in ("LOAD_CONST", "LOAD_SMALL_INT"):
        return ("const", value, attributes)
    return ("global", value, attributes) if op in ("LOAD_GLOBAL", "LOAD_NAME") else UNTOLD
