"""A program that mutates, as a `torch.fx.GraphModule` that does not: for exporters and importers of pure graphs."""
from __future__ import annotations

import operator
from typing import Any, Callable, Optional

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_map

from ..capture.guards import ARGUMENT
from ..capture.inputs import CallInputs
from ..capture.tracer import Capture, capture
from ..errors import UnsupportedError
from ..ir import prims
from ..ir.proxy import TensorConstant, TensorProxy, contiguous_stride
from ..ir.trace import BoundSymbol, Trace
from ..passes.write_backs import write_backs_last
from ..pipeline import FUNCTIONAL, run_stages
from ..runtime.program import stack_level

aten = torch.ops.aten


def functional_trace(fn: Callable, call: CallInputs, name: str) -> tuple[Capture, Trace]:
    """The recording of a call, and its functional form: no call writes but the `copy_` into inputs at the end.

    UnsupportedError where there is none; nothing was run.
    """
    with torch.no_grad():
        captured = capture(fn, call, name)
    for warned in captured.warned:
        warned.raise_anew(stack_level)
    if captured.effects:
        raise UnsupportedError(f"{name} stores something in Python state, which a graph cannot "
                               f"({captured.effects[0].write.path}): return it")
    number = next((b for b in captured.ops.bound_symbols if b.sym.numbers), None)
    if number is not None:
        raise UnsupportedError("a number that is known at run time has no form in a graph of ATen ops: "
                               "keep it a tensor, without .item()", where=str(number.source))
    traces = [captured.ops]
    run_stages((("write_backs_last", write_backs_last), *FUNCTIONAL), traces)
    return captured, _writes_last(traces[-1])


def _writes_last(trace: Trace) -> Trace:
    """The same calls, those that write inputs last: nothing reads an input that was written."""
    homes = {p.storage for p in trace.inputs}
    pure, writes, done = [], [], set()
    for b in trace.bound_symbols:
        if b.sym.is_copy and b.args[0].storage in homes:
            writes.append(b)
            done.add(b.args[0].storage)
        elif b.written or b.sym.opaque or any(a.storage in done for a in b.tensor_args):
            raise UnsupportedError(f"{b.sym.name} has no functional form: make it write a tensor of the function's own",
                                   where=str(b.source))
        else:
            pure.append(b)
    return trace.replace(bound_symbols=(*pure, *writes))


def graph_module(fn: Callable, captured: Capture, trace: Trace, call: CallInputs, write_backs: bool) -> GraphModule:
    """The trace as a graph: one placeholder per tensor argument, in order; parameters, buffers and other state as attributes.

    write_backs: end with the `copy_` into the arguments that were written; else return their new values after the results,
    and list the names of their placeholders in `meta["written"]`.
    """
    names = _state_names(fn)
    writer = _Writer(trace)
    inputs: list[TensorProxy] = []
    tensors = captured.guards.inputs(call)
    for p, source, tensor in zip(trace.inputs, captured.guards.sources, tensors):
        if source.kind == ARGUMENT:
            writer.nodes[p] = writer.graph.placeholder(p.name)
        else:
            inputs.append(p)
            writer.attribute(p, names.get(id(tensor), f"state_{p.name}"), tensor)
    written = writer.run(write_backs)
    results = tuple(map(writer.result, trace.output[:captured.results]))
    writer.graph.output(results if not written else (*results, *(value for _, value in written)))
    made = GraphModule(writer.attributes, writer.graph, class_name=f"Functional_{trace.name}")
    made.meta["written"] = tuple(p.name for p, _ in written)
    return made.eval()


def _state_names(fn: Callable) -> dict[int, str]:
    """Of a module: what its parameters and buffers are called."""
    if not isinstance(fn, torch.nn.Module):
        return {}
    return {id(t): name for name, t in (*fn.named_parameters(), *fn.named_buffers())}


_VALUES = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Writer:
    """Turns calls into nodes; `attributes` become those of the module."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.graph = trace, Graph()
        self.used = {*trace.tensor_results, *(a for b in trace.bound_symbols for a in b.tensor_args)}
        self.nodes: dict[TensorProxy, Node] = {}
        self.attributes: dict[str, Any] = {}

    def attribute(self, p: TensorProxy, name: str, tensor: torch.Tensor) -> None:
        self.attributes[name] = tensor
        self.nodes[p] = self.graph.get_attr(name)

    def value(self, x: Any) -> Any:
        """An argument of a call: names become nodes, tensors of the program attributes."""
        if isinstance(x, TensorProxy):
            return self.nodes[x]
        if isinstance(x, TensorConstant):
            name = f"constant_{len(self.attributes)}"
            self.attributes[name] = x.value
            return self.graph.get_attr(name)
        return x

    def result(self, x: Any) -> Any:
        if isinstance(x, (TensorProxy, TensorConstant, *_VALUES)):
            return self.value(x)
        raise UnsupportedError(f"a result that is a {type(x).__name__} has no functional form: return tensors and numbers")

    def run(self, write_backs: bool) -> list[tuple[TensorProxy, Node]]:
        """The calls. Returns what is not written back: (input, new value)."""
        written = []
        for b in self.trace.bound_symbols:
            if b.sym.is_copy and not write_backs:
                written.append((b.args[0], self.value(b.args[1])))
                continue
            node = self.call(b)
            if b.source.file:
                node.meta["stack_trace"] = f'File "{b.source.file}", line {b.source.line}, in {b.source.function or "<module>"}'
            self.name(b, node)
        return written

    def call(self, b: BoundSymbol) -> Node:
        """The node of a call; tracejit's own operations are told in ATen."""
        if b.sym.overload is not None:
            return self.node(b.sym.overload, *b.args, **b.kwargs)
        made = _FORMS[b.sym](self, *b.args, **b.kwargs) if b.sym in _FORMS else None
        if made is None:
            raise UnsupportedError(f"{b.sym.name} of {b.comment or 'this call'} has no functional form in ATen: "
                                   "call it outside of what is exported", where=str(b.source))
        return made

    def node(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return self.graph.call_function(target, *tree_map(self.value, (tuple(args), kwargs)))

    def name(self, b: BoundSymbol, node: Node) -> None:
        if isinstance(b.output, TensorProxy):
            self.nodes.setdefault(b.output, node)
        elif isinstance(b.output, (list, tuple)):
            for n, o in enumerate(b.output):
                if o in self.used:
                    self.nodes[o] = self.graph.call_function(operator.getitem, (node, n))


def _clone(writer: _Writer, t: Any) -> Node:
    return writer.node(aten.clone.default, t)


def _restride(writer: _Writer, t: TensorProxy, size: list, stride: list) -> Node:
    """Into a dense layout by a contiguous copy with the dims in the order of their strides; else just a copy."""
    order = sorted(range(len(size)), key=lambda d: (-stride[d], d))
    dense = contiguous_stride(tuple(size[d] for d in order)) == tuple(stride[d] for d in order)
    if not dense:
        return _clone(writer, t)
    if order == sorted(order):
        return writer.node(aten.clone.default, t, memory_format=torch.contiguous_format)
    copied = writer.node(aten.clone.default, writer.node(aten.permute.default, t, order), memory_format=torch.contiguous_format)
    return writer.node(aten.permute.default, copied, [order.index(d) for d in range(len(order))])


def _write_region(writer: _Writer, base: TensorProxy, value: TensorProxy, size: list, stride: list, offset: int,
                  dtype: torch.dtype, conj: bool, neg: bool) -> Optional[Node]:
    plain = dtype is base.dtype and not conj and not neg
    return writer.node(aten.as_strided_scatter.default, base, value, size, stride, offset) if plain else None


def _region_view(writer: _Writer, base: TensorProxy, size: list, stride: list, offset: int, dtype: torch.dtype, conj: bool,
                 neg: bool) -> Optional[Node]:
    plain = dtype is base.dtype and not conj and not neg
    return writer.node(aten.as_strided.default, base, size, stride, offset) if plain else None


def _on_copy(writer: _Writer, op: Any, written: tuple, fresh: tuple, *args: Any, **kwargs: Any) -> Optional[Node]:
    functional = _RETURNS_WHAT_IT_WRITES.get(op)
    return writer.node(functional, *args, **kwargs) if functional is not None and len(written) == 2 else None


# Twins of ops that write without saying so in their schema: they return the fresh results, then what would be written.
_RETURNS_WHAT_IT_WRITES = {aten.native_batch_norm.default: aten._native_batch_norm_legit_functional.default}
_FORMS: dict[Any, Callable] = {
    prims.CONSTANT: _clone,
    prims.EXACT_COPY: _clone,
    prims.RESTRIDE: _restride,
    prims.WRITE_REGION: _write_region,
    prims.REGION_VIEW: _region_view,
    prims.ON_COPY: _on_copy,
}
