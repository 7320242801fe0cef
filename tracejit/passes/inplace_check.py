"""The in-place checker: an independent proof that the final trace keeps the order of memory accesses.

In: the final trace, and the trace before executors claimed, merged or moved anything. Out: the final trace, unchanged.
Guaranteed, else InplaceCopyError with the op, the argument, the region and the user's line:
  - every read of memory sees the writes that it saw in the reference, and overlapping writes keep their order;
  - inside a fusion region, memory that the region writes is read only index for index: by pointwise ops whose result
    has the shape of what is read, down to the write; or row by row: reductions over one set of dims may read it, and what they
    make may meet the elements of its own row again. A kernel loads all that a row needs before it stores there.
  - two writes of one region overlap only if they are the same view;
  - a postponed `copy_` stands last in its region and is its only write: it may overwrite whatever that region reads.
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
            raise InplaceCopyError(f"a write is lost: {bound_symbol_text(op)}\nA transform or an executor must keep it",
                                   where=str(op.source))
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
    raise InplaceCopyError(f"the order of memory accesses changed: {bound_symbol_text(op)}\nThis call {what}: "
                           "a transform or an executor must keep that (disable_inplace_copy_check=True skips this proof)",
                           where=str(op.source))


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
    postponed = [sub for sub in region.subsymbols if sub.sym.postponed]
    if postponed and (postponed != [region.subsymbols[-1]] or len(region.written) > 1):
        _refuse(region, postponed[0], postponed[0].written[0], "is postponed, but not the last and only write")
    if written and not postponed:
        _check_reads(region, written)


_RELABELS = frozenset({RESTRIDE, EXACT_COPY})
Dims = tuple[Optional[int], ...]              # the dim of the memory that each dim of a value follows, or None
Ties = dict[TensorProxy, Dims]                # by the written memory that a value is made from


def _check_reads(region: BoundSymbol, written: dict[int, list[TensorProxy]]) -> None:
    """Values made from memory that the region writes may be used only at the index, or in the row, at which they were read.

    written: what the region writes, by storage."""
    tied: dict[TensorProxy, Ties] = {}
    reduced: dict[TensorProxy, frozenset[int]] = {}            # the dims over which memory is reduced
    for sub in region.subsymbols:
        read, made = sub.reads, {}
        for a in read:
            hit = next((w for w in written.get(a.storage, ()) if overlaps(a.bytes, w.bytes)), None)
            if hit is not None and not a.same_view(hit):
                _refuse(region, sub, a, f"overlaps {hit.name}, which the region writes, but is another view")
            for memory, dims in ({hit: tuple(range(len(a.shape)))} if hit is not None else tied.get(a, {})).items():
                dims = _followed(sub, a, memory, dims, reduced)
                dims = dims and _merged(dims, made.get(memory, dims))
                if dims is None:
                    _refuse(region, sub, memory, "is written in the region and read other than index for index")
                made[memory] = dims
        if made:
            tied.update((o, made) for o in sub.tensor_outputs if o not in sub.tensor_args)
        for a in (a for a in sub.tensor_args if a in tied and a not in read and a not in sub.written):
            for o in (o for o in sub.tensor_outputs if o.storage == a.storage):        # `fill` and the like take only its shape
                seen = {memory: _seen_through(a, o, dims) for memory, dims in tied[a].items()}
                if None in seen.values():
                    _refuse(region, sub, next(iter(seen)), "is written in the region and read through a view of its value")
                tied[o] = seen


def _followed(sub: BoundSymbol, a: TensorProxy, memory: TensorProxy, dims: Dims, reduced: dict) -> Optional[Dims]:
    """The dims that a result follows when `sub` reads `a`; None when an iteration needs other rows of the memory than its own."""
    rank, made = len(memory.shape), sub.written[0] if sub.written else sub.tensor_outputs[0] if sub.tensor_outputs else None
    if made is not None and made.numel == a.numel == memory.numel == 1:        # there is one iteration
        return (None,) * len(made.shape)
    if sub.sym.reduces:
        over = _reduced_dims(sub, len(a.shape))
        in_place = len(dims) == rank and all(d in (k, None) for k, d in enumerate(dims))
        those = frozenset(k for k in over if a.shape[k] > 1)
        if a is not sub.tensor_args[0] or not in_place or reduced.setdefault(memory, those) != those:
            return None
        kept = len(sub.tensor_outputs[0].shape) == rank
        return tuple(None if k in over else d for k, d in enumerate(dims) if kept or k not in over)
    if made is None or not (sub.sym.pointwise or sub.sym.is_copy or sub.sym in _RELABELS):
        return None
    found = (None,) * (len(made.shape) - len(a.shape)) + tuple(d if n > 1 else None for d, n in zip(dims, a.shape))
    if len(made.shape) != rank:                              # a value of one element a row
        rows = memory in reduced and made.shape == a.shape and not reduced[memory] & set(found)
        in_order = [d for d in found if d is not None]
        return found if rows and in_order == sorted(in_order) else None
    free = reduced.get(memory, frozenset())
    at_its_own = all(n == 1 or d == k or d is None and k in free for k, (d, n) in enumerate(zip(found, made.shape)))
    return found if at_its_own else None


def _merged(one: Dims, other: Dims) -> Optional[Dims]:
    if len(one) != len(other) or any(None not in (d, e) and d != e for d, e in zip(one, other)):
        return None
    return tuple(e if d is None else d for d, e in zip(one, other))


def _reduced_dims(sub: BoundSymbol, rank: int) -> set[int]:
    """What the argument called `dim` says; all dims without one."""
    at = next((k for k, argument in enumerate(sub.sym.overload._schema.arguments) if argument.name == "dim"), len(sub.args))
    dim = sub.args[at] if at < len(sub.args) else sub.kwargs.get("dim")
    dims = [dim] if isinstance(dim, int) else dim or range(rank)
    return {d % rank for d in dims} if rank else set()


def _seen_through(a: TensorProxy, o: TensorProxy, dims: Dims) -> Optional[Dims]:
    """The dims that a view of a value follows, told by strides; None when it leaves elements out or reads them otherwise."""
    of_stride = {s: k for k, (n, s) in enumerate(zip(a.shape, a.stride)) if n > 1}
    walked = [(n, s) for n, s in zip(o.shape, o.stride) if n > 1 and s]
    if (o.reading, o.offset) != (a.reading, a.offset) or len(of_stride) != sum(n > 1 for n in a.shape) or any(
            s not in of_stride or a.shape[of_stride[s]] != n for n, s in walked):
        return None
    return tuple(dims[of_stride[s]] if n > 1 and s else None for n, s in zip(o.shape, o.stride))


def _refuse(region: BoundSymbol, sub: BoundSymbol, argument: TensorProxy, why: str) -> None:
    raise InplaceCopyError(f"in region {region.sym.name}: {bound_symbol_text(sub)}: {argument.name} {why}. "
                           "Split the region, or go through a temporary (disable_inplace_copy_check=True skips this proof)",
                           where=str(sub.source))
