"""Where byte code counts: `base.name += integer`."""
from __future__ import annotations

import dis

from .sites import Argument, pushed

_ASSIGN = ("STORE_FAST", "DELETE_FAST", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME")
_DUPLICATE = ("DUP_TOP", "COPY")
_ADD = ("INPLACE_ADD", "INPLACE_SUBTRACT")
_SWAP = ("ROT_TWO", "SWAP")
_CONSTANT = ("LOAD_CONST", "LOAD_SMALL_INT")


def counting_steps(steps: list[dis.Instruction]) -> dict[int, tuple[Argument, str]]:
    """Index of the load in each `base.name += integer` of straight byte code -> (base, name).

    The base is a variable that the code does not assign.
    """
    assigned = {step.argval for step in steps if step.opname.startswith(_ASSIGN)}
    assigned |= {name for names in assigned if isinstance(names, tuple) for name in names}
    found = {}
    for at in range(1, len(steps) - 5):
        copy, load, constant, add, swap, store = steps[at:at + 6]
        if not (copy.opname in _DUPLICATE and load.opname == "LOAD_ATTR" and store.opname == "STORE_ATTR"):
            continue
        adds = add.opname in _ADD or add.opname == "BINARY_OP" and add.argrepr in ("+=", "-=")
        if adds and swap.opname in _SWAP and constant.opname in _CONSTANT and type(constant.argval) is int:
            base = pushed(steps[:at], 1)[0]
            if base[0] in ("local", "global") and not base[2] and base[1] not in assigned:
                if load.argval == store.argval:
                    found[at + 1] = (base, load.argval)
    return found
