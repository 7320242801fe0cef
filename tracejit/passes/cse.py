"""Common subexpression elimination.

In: a functionalized trace. Out: equal calls on equal names computed once. Two reads of memory are equal only when
nothing wrote that storage between them; calls with effects are never merged. Results stay apart where the program
returns them, so no result gains an alias, and so does new memory that is written later.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Collection, Hashable, Optional

import torch

from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol, Trace


def cse(trace: Trace) -> Trace:
    version: dict[int, int] = {}                               # writes so far, by storage
    seen: dict[Hashable, BoundSymbol] = {}
    same: dict[TensorProxy, TensorProxy] = {}
    returned = set(trace.tensor_results)
    returned_storages = {o.storage for o in returned}
    kept = []

    def rename(x: Any) -> Any:
        return same.get(x, x) if isinstance(x, TensorProxy) else x

    for b in trace.bound_symbols:
        if any(a in same for a in b.tensor_args):
            b = b.renamed(rename)
        key = None if _makes(b, trace.written_storages) else _key(b, version)
        earlier = seen.get(key) if key is not None else None
        escapes = any(o.storage in returned_storages for o in b.tensor_outputs)
        if earlier is not None and not escapes and len(earlier.flat_outputs) == len(b.flat_outputs):
            same.update((o, e) for o, e in zip(b.flat_outputs, earlier.flat_outputs) if isinstance(o, TensorProxy)
                        and isinstance(e, TensorProxy))
            if all(o in same for o in b.tensor_outputs):
                continue
        if key is not None:
            seen.setdefault(key, b)
        for w in b.written:
            version[w.storage] = version.get(w.storage, 0) + 1
        kept.append(b)
    kept = [replace(b, modes=b.modes._replace(again=False)) if b.modes.again else b for b in kept]
    return trace.replace(stage="cse", bound_symbols=tuple(kept), output=tuple(map(rename, trace.output)))


def _makes(b: BoundSymbol, storages: Collection[int]) -> bool:
    """Is one of these storages new with this call?"""
    found = {o.storage for o in b.tensor_outputs}.intersection(storages)
    return bool(found) and not found <= {a.storage for a in b.tensor_args}


PRINTABLE = (int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _key(b: BoundSymbol, version: dict[int, int]) -> Optional[Hashable]:
    if b.has_effect:
        return None
    storages = [a.storage for a in b.tensor_args]
    reads = tuple(version.get(s, 0) for s in storages)
    if any(o.storage in storages for o in b.tensor_outputs):
        reads = ()                                             # a view reads no memory: it is the same at any time
    parts = tuple([(type(a), repr(a)) if isinstance(a, PRINTABLE) else id(a) for a in b.flat_args])
    shape = tuple([len(a) if isinstance(a, (list, tuple)) else -1 for a in b.args])
    return (b.sym.name, id(b.sym.fn), parts, tuple(b.kwargs), shape, reads, b.modes.again)
