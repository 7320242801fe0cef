"""`torch.compile(model, backend="tracejit")`: Dynamo's front end, tracejit behind it."""
from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

from ..api import jit


def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable:
    """A Dynamo backend: what Dynamo found to be one graph is captured, functionalized and fused by tracejit.

    The graph mutates as the user's program does; tracejit keeps eager's meaning of that. `options` are those of
    `tracejit.jit`, given as `torch.compile(..., options={...})`.
    """
    return jit(graph.forward, name="graph", **(options.get("options") or {}))
