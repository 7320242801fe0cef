"""The dependence graph of a trace as a picture: data edges, memory edges, regions as boxes.

Drawn by graphviz where its `dot` program is there, else by matplotlib; `.networkx` is the graph itself.
"""
from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Iterator

from ..errors import TraceError
from ..ir.cached import cached_property
from ..ir.trace import BoundSymbol, Trace
from ..partition.dependence import dependence

_MEMORY = ("raw", "war", "waw", "fence")
_STYLES = {"data": ("#57606a", "solid"), "memory": ("#cf222e", "dashed"), "order": ("#8250df", "dotted")}
_FILL = {"cpu": "#dafbe1", "cupy": "#fbefff", "torch": "#f6f8fa"}


@dataclass(frozen=True)
class TraceGraph:
    """The calls of a trace, those of regions one by one, and what orders them.

    `networkx`: a DiGraph over positions with node attributes `call` and `region` (its name, or "") and edge attributes
    `kind` (data; raw, war, waw or fence: memory; else another order) and `apart` (the two may not share a kernel).
    """

    trace: Trace

    @cached_property
    def networkx(self) -> Any:
        import networkx as nx                                  # takes a third of a second
        calls, regions = [], []
        for b in self.trace.bound_symbols:
            inner = b.subsymbols if b.is_region else (b,)
            calls += inner
            regions += [b.sym.name if b.is_region else ""] * len(inner)
        graph = nx.DiGraph()
        for n, (call, region) in enumerate(zip(calls, regions)):
            graph.add_node(n, call=call, region=region)
        for n, before in enumerate(dependence(self.trace.replace(bound_symbols=tuple(calls))).before):
            graph.add_edges_from((m, n, {"kind": edge.kind, "apart": edge.apart}) for m, edge in before.items())
        return graph

    @property
    def dot(self) -> str:
        """The graph in graphviz' language."""
        return "\n".join(["digraph trace {", "rankdir=TB; node [shape=box, style=filled, fontname=monospace, fontsize=10];",
                          *self._nodes(), *self._edges(), "}"])

    def _nodes(self) -> Iterator[str]:
        boxes: dict[str, list[str]] = {}
        for n, data in self.networkx.nodes(data=True):
            call = data["call"]
            fill = "#fff3d6" if call.sym.is_copy else _FILL.get("cpu" if data["region"] else call.executor, "#ffffff")
            node = f'n{n} [label="{_label(call)}", tooltip="{_quoted(str(call))}", fillcolor="{fill}"];'
            boxes.setdefault(data["region"], []).append(node)
        yield from boxes.pop("", [])
        for name, nodes in boxes.items():
            yield f'subgraph "cluster_{name}" {{ label="{name}"; fontname=monospace; fontsize=10; {" ".join(nodes)} }}'

    def _edges(self) -> Iterator[str]:
        for a, b, data in self.networkx.edges(data=True):
            colour, line = _STYLES[edge_class(data["kind"])]
            yield f'n{a} -> n{b} [color="{colour}", style={line}, tooltip="{data["kind"]}"];'

    def svg(self) -> str:
        """The picture as SVG, the same for the same trace. TraceError when neither graphviz nor matplotlib is installed."""
        if shutil.which("dot"):
            drawn = subprocess.run(["dot", "-Tsvg"], input=self.dot, capture_output=True, text=True, check=True).stdout
            return re.sub("<!--.*?-->\n*", "", drawn, flags=re.S)
        return _matplotlib_svg(self.networkx)

    def save(self, path: Any) -> Path:
        """Write the picture (`.svg`) or graphviz' text (`.dot`) to `path`."""
        path = Path(path)
        path.write_text(self.dot if path.suffix == ".dot" else self.svg())
        return path

    def __repr__(self) -> str:
        return f"<graph of {self.trace!r}>"

    def _repr_html_(self) -> str:
        drawn = self.svg()
        return f'<div style="overflow:auto;max-height:80vh;background:#fff">{drawn[drawn.index("<svg"):]}</div>'


def edge_class(kind: str) -> str:
    """data, memory or order."""
    return kind if kind == "data" else "memory" if kind in _MEMORY else "order"


def _label(b: BoundSymbol) -> str:
    made = ", ".join(o.name for o in b.tensor_outputs if o not in b.tensor_args)
    target = b.written[0].name if b.written else ""
    return _quoted(f"{made or target} = {b.sym.packet or b.sym.name}" + (f"\\n{b.source.short}" if b.source.file else ""))


def _quoted(text: str) -> str:
    return text.replace('"', "'")


def _matplotlib_svg(graph: Any) -> str:
    """Layers by longest path, one region's calls beside each other."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        raise TraceError("a picture of a trace needs graphviz (its `dot` program) or matplotlib: pip install matplotlib; "
                         "without them, `trace.graph().networkx` is the graph and `.dot` its text") from None
    import networkx as nx
    for layer, nodes in enumerate(nx.topological_generations(graph)):
        for n in nodes:
            graph.nodes[n]["layer"] = -layer
    place = nx.multipartite_layout(graph, subset_key="layer", align="horizontal")
    layers = 1 - min((d["layer"] for _, d in graph.nodes(data=True)), default=0)
    figure = Figure(figsize=(9, max(2, 0.7 * layers)))
    FigureCanvasSVG(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    for kind, (colour, line) in _STYLES.items():
        chosen = [(a, b) for a, b, d in graph.edges(data=True) if edge_class(d["kind"]) == kind]
        nx.draw_networkx_edges(graph, place, chosen, ax=axes, edge_color=colour, style=line, node_size=900, arrowsize=8)
    names = list(dict.fromkeys(d["region"] for _, d in graph.nodes(data=True) if d["region"]))
    for n, d in graph.nodes(data=True):
        fill = "#fff3d6" if d["call"].sym.is_copy else "#dafbe1" if d["region"] else "#f6f8fa"
        text = _label(d["call"]).replace("\\n", "\n") + (f"\n{d['region']}" if d["region"] else "")
        edge = f"C{names.index(d['region'])}" if d["region"] else "#57606a"
        axes.text(*place[n], text, ha="center", va="center", fontsize=7, family="monospace",
                  bbox={"boxstyle": "round", "facecolor": fill, "edgecolor": edge})
    axes.set_axis_off()
    out = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "trace"}):     # text as text; names of parts that stay
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
