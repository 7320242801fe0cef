"""Common subexpression elimination.

In: a functionalized trace. Out: equal calls on equal names computed once. Two reads of memory are equal only when
nothing wrote that storage between them; calls with effects are never merged. Results stay apart where the program
returns them, so no result gains an alias.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Hashable, Optional

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol, Trace
from .dce import has_effect


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
        args, kwargs = tree_map(rename, (b.args, b.kwargs))
        key = _key(b, args, kwargs, version)
        earlier = seen.get(key) if key is not None else None
        escapes = any(o.storage in returned_storages for o in b.tensor_outputs)
        if earlier is not None and not escapes and len(earlier.flat_outputs) == len(b.flat_outputs):
            same.update((o, e) for o, e in zip(b.flat_outputs, earlier.flat_outputs) if isinstance(o, TensorProxy)
                        and isinstance(e, TensorProxy))
            if all(o in same for o in b.tensor_outputs):
                continue
        b = _rebound(b, args, kwargs, rename)
        if key is not None:
            seen.setdefault(key, b)
        for w in b.written:
            version[w.storage] = version.get(w.storage, 0) + 1
        kept.append(b)
    return trace.replace(stage="cse", bound_symbols=tuple(kept), output=tuple(map(rename, trace.output)))


def _rebound(b: BoundSymbol, args: tuple, kwargs: dict, rename: Any) -> BoundSymbol:
    if all(x is y for x, y in zip(tree_leaves((args, kwargs)), b.flat_args)):
        return b
    return replace(b, args=args, kwargs=kwargs, output=tree_map(rename, b.output))


PRINTABLE = (int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _key(b: BoundSymbol, args: tuple, kwargs: dict, version: dict[int, int]) -> Optional[Hashable]:
    if has_effect(b):
        return None
    leaves = tree_leaves((args, kwargs))
    reads = tuple(version.get(a.storage, 0) for a in leaves if isinstance(a, TensorProxy))
    if any(o.storage in {a.storage for a in leaves if isinstance(a, TensorProxy)} for o in b.tensor_outputs):
        reads = ()                                             # a view reads no memory: it is the same at any time
    parts = tuple((type(a), repr(a)) if isinstance(a, PRINTABLE) else id(a) for a in leaves)
    return (b.sym.name, id(b.sym.fn), parts, tuple(kwargs), _shape(args), reads)


def _shape(args: tuple) -> tuple:
    return tuple(len(a) if isinstance(a, (list, tuple)) else -1 for a in args)
