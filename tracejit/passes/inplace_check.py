"""The in-place checker: an independent proof that the final trace keeps the order of memory accesses.

In: the final trace, and the trace before executors claimed, merged or moved anything. Out: the final trace, unchanged.
Guaranteed, else InplaceCopyError with the op, the argument, the region and the user's line:
  - every read of memory sees the writes that it saw in the reference, and overlapping writes keep their order;
  - inside a fusion region, memory that the region writes is read only index for index: by pointwise ops whose result
    has the shape of what is read, down to the write; and two writes of one region overlap only if they are the same view.
"""
from __future__ import annotations

from typing import Any, Iterator, Optional

from ..errors import InplaceCopyError
from ..ir.memory import overlaps
from ..ir.prims import EXACT_COPY, RESTRIDE
from ..ir.printer import bound_symbol_text
from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol, Trace


def inplace_check(final: Trace, reference: Trace) -> Trace:
    for region in final.regions:
        _check_region(region)
    expected, found = _accesses(reference), _accesses(final)
    names = {key: op.sym.name for accesses in (found, expected) for (key, _), (op, _) in accesses.items()}
    for key, (op, writes) in found.items():
        if key in expected and set(writes) != set(expected[key][1]):
            _fail(op, expected[key][1], writes, names)
    for key, (op, _) in expected.items():
        if key[1] in op.written and key not in found:
            raise InplaceCopyError(f"a write is lost: {bound_symbol_text(op)}", where=str(op.source))
    return final


def leaves(trace: Trace) -> Iterator[tuple[BoundSymbol, Optional[BoundSymbol]]]:
    """Calls in the order in which they take effect, and the region that holds them."""
    for b in trace.bound_symbols:
        if b.is_region:
            yield from ((sub, b) for sub in b.subsymbols)
        else:
            yield b, None


# ---------------------------------------------------------------- order against the reference

def _accesses(trace: Trace) -> dict[Any, tuple[BoundSymbol, list]]:
    """For each access to memory, told apart by what it makes or writes: the earlier writes that meet it, in order."""
    so_far: dict[int, list[tuple[Any, TensorProxy]]] = {}
    found: dict[Any, tuple[BoundSymbol, list]] = {}
    for b, _ in leaves(trace):
        key = _identity(b)
        for a in {*b.reads, *b.written}:
            met = [k for k, w in so_far.get(a.storage, ()) if overlaps(w.bytes, a.bytes)]
            found[(key, a)] = (b, met)
        for w in b.written:
            so_far.setdefault(w.storage, []).append((key, w))
    return found


def _identity(b: BoundSymbol) -> Any:
    made = [o for o in b.tensor_outputs if o not in b.tensor_args]
    return made[0] if made else tuple(b.tensor_args)


def _fail(op: BoundSymbol, expected: list, found: list, names: dict[Any, str]) -> None:
    lost = [k for k in expected if k not in found]
    early = [k for k in found if k not in expected]
    what = (f"must come after the write {_name(lost[0], names)}" if lost else
            f"must come before the write {_name(early[0], names)}" if early else "sees two writes in another order")
    raise InplaceCopyError(f"the order of memory accesses changed: {bound_symbol_text(op)} {what}", where=str(op.source))


def _name(key: Any, names: dict[Any, str]) -> str:
    return key.name if isinstance(key, TensorProxy) else f"{names.get(key, '')}({', '.join(p.name for p in key)})"


# ---------------------------------------------------------------- inside a region

def _check_region(region: BoundSymbol) -> None:
    written: dict[int, list[TensorProxy]] = {}                 # by storage
    for sub in region.subsymbols:
        for w in sub.written:
            if w.bytes.overlaps_itself:
                _refuse(region, sub, w, "writes memory that overlaps itself")
            others = written.setdefault(w.storage, [])
            for other in others:
                if overlaps(w.bytes, other.bytes) and not w.same_view(other):
                    _refuse(region, sub, w, f"overlaps {other.name}, which the region writes too")
            others.append(w)
    if written:
        _check_reads(region, written)


def _check_reads(region: BoundSymbol, written: dict[int, list[TensorProxy]]) -> None:
    """Values made from memory that the region writes may be used only at the index at which they were read.

    written: what the region writes, by storage."""
    tied: dict[TensorProxy, TensorProxy] = {}                  # value -> the written memory that it was read from
    for sub in region.subsymbols:
        read = sub.reads
        for a in read:
            hit = next((w for w in written.get(a.storage, ()) if overlaps(a.bytes, w.bytes)), None)
            if hit is not None and not a.same_view(hit):
                _refuse(region, sub, a, f"overlaps {hit.name}, which the region writes, but is another view")
            origin = a if hit is not None else tied.get(a)
            if origin is None:
                continue
            if not _index_for_index(sub, a):
                _refuse(region, sub, origin, "is written in the region and read other than index for index")
            tied.update((o, origin) for o in sub.tensor_outputs if o not in sub.tensor_args)
        shown = {o.storage for o in sub.tensor_outputs}
        for a in (a for a in sub.tensor_args if a in tied and a not in read):
            if a not in sub.written and a.storage in shown:    # `fill` and the like take nothing but its shape
                _refuse(region, sub, tied[a], "is written in the region and read through a view of its value")


def _index_for_index(sub: BoundSymbol, a: TensorProxy) -> bool:
    target = sub.written[0] if sub.written else sub.tensor_outputs[0] if sub.tensor_outputs else None
    return target is not None and target.shape == a.shape and (
        sub.sym.pointwise or sub.sym.packet == "copy_" or sub.sym in (RESTRIDE, EXACT_COPY))


def _refuse(region: BoundSymbol, sub: BoundSymbol, argument: TensorProxy, why: str) -> None:
    raise InplaceCopyError(f"in region {region.sym.name}: {bound_symbol_text(sub)}: {argument.name} {why}. "
                           "Split the region, or go through a temporary (disable_inplace_copy_check=True skips this proof)",
                           where=str(sub.source))
