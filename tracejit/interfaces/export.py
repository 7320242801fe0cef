"""`tracejit.functionalize`: the public face of the functional graph."""
from __future__ import annotations

import functools
from typing import Any, Callable

import torch

from ..capture.inputs import CallInputs
from ..capture.lines import placing
from .fx import functional_trace, graph_module


def functionalize(fn: Callable, *, write_backs: bool = True) -> Callable[..., torch.fx.GraphModule]:
    """`functionalize(fn)(*args)` is `fn` for such arguments as a graph of ATen ops of which none mutates.

    fn: a function or `nn.Module`. The call only looks at the arguments; nothing runs and nothing is written.

    The graph takes the call's tensors, in order; parameters and buffers of a module are its attributes, under their names;
    other values are constants of the graph. It returns the results as a flat tuple. Arguments, and state, that `fn` writes
    are written at the very end, by one `aten.copy_` each; `write_backs=False` returns their new values after the results
    instead, for formats that have no writes (ONNX), and lists them in `graph.meta["written"]`. Gradients are not recorded.

    Raises `UnsupportedError` when the call cannot be captured, stores tensors in Python state, writes memory that two
    arguments share, or resizes an argument.

    >>> import torch, tracejit
    >>> def f(x):
    ...     x[0] = 1
    ...     return x * 2
    >>> graph = tracejit.functionalize(f)(torch.zeros(3))
    >>> print(*[str(n.target) for n in graph.graph.nodes if n.op == "call_function"])
    aten.clone.default aten.select_scatter.default aten.mul.Tensor aten.copy_.default
    >>> x = torch.zeros(3)
    >>> graph(x), x
    ((tensor([2., 0., 0.]),), tensor([1., 0., 0.]))
    """
    @functools.wraps(fn, updated=())
    def on_arguments(*args: Any, **kwargs: Any) -> torch.fx.GraphModule:
        call = CallInputs(args, kwargs)
        name = getattr(fn, "__name__", type(fn).__name__)
        with placing(fn):
            captured, trace = functional_trace(fn, call, name if name.isidentifier() else "program")
            return graph_module(fn, captured, trace, call, write_backs)
    return on_arguments
