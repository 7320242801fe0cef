"""Traces as HTML for notebooks: a folding, coloured listing with the user's lines.

Every name tells on hover its dtype, shape, strides and storage; regions fold; `copy_` is marked, since it is where memory
changes. Colours follow the reader's theme: the browser's, or that of JupyterLab and VS Code.
"""
from __future__ import annotations

import re
from html import escape
from typing import Iterable, Iterator

from ..ir.printer import Scope, statement_text
from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol, Trace, walk

_NAME = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*(?![\w'\"=])")
_KNOWN_COLOURS = ("cpu", "cupy", "torch")
_LIGHT = {"bg": "#ffffff", "fg": "#1f2328", "dim": "#59636e", "line": "#d8dee4", "head": "#f6f8fa", "cpu": "#1a7f37",
          "cupy": "#8250df", "torch": "#8c959f", "other": "#0969da", "copy": "#fff3d6", "add": "#dafbe1", "del": "#ffe2e0"}
_DARK = {"bg": "#0d1117", "fg": "#e6edf3", "dim": "#9da7b1", "line": "#30363d", "head": "#161b22", "cpu": "#3fb950",
         "cupy": "#bc8cff", "torch": "#6e7681", "other": "#58a6ff", "copy": "#3b2e10", "add": "#12361f", "del": "#4a1d1b"}
_RULES = """
.tj{background:var(--tj-bg);color:var(--tj-fg);border:1px solid var(--tj-line);border-radius:6px;font-size:12px;
 line-height:1.5;max-width:100%;overflow:hidden;margin:4px 0;text-align:left}
.tj summary{cursor:pointer}
.tj .fold{margin:4px 10px;overflow-x:auto}
.tj .fold>:not(summary){margin-left:0}
.tj .fold .fold{margin-left:12px}
.tj .head{background:var(--tj-head);padding:4px 10px;font-weight:600;overflow-wrap:anywhere}
.tj .head span,.tj .note{color:var(--tj-dim);font-weight:400}
.tj .body{max-height:70vh;overflow:auto;padding:4px 0;container-type:inline-size}
.tj .tj{margin:4px 10px}
.tj .tj .body{max-height:none}
.tj .row{display:grid;grid-template-columns:3.2em minmax(0,1fr) minmax(0,15em) minmax(0,12em);gap:0 10px;padding:0 10px;
 border-left:4px solid transparent;font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.tj .row>*{overflow-wrap:anywhere;white-space:pre-wrap}
.tj .num,.tj .shape,.tj .where{color:var(--tj-dim)}
.tj .num{text-align:right;user-select:none}
.tj details.region>summary{list-style:none}
.tj details.region>summary .num::before{content:"\\25B8 "}
.tj details.region[open]>summary .num::before{content:"\\25BE "}
.tj .inner .code{padding-left:18px}
.tj .line{grid-template-columns:minmax(0,1fr)}
@container (max-width:640px){.tj .row:not(.line){grid-template-columns:3.2em minmax(0,1fr) auto}
 .tj .row:not(.line) .code{grid-column:2/4} .tj .shape{grid-column:2} .tj .where{grid-column:3}}
.tj .copy{background:var(--tj-copy)}
.tj .add{background:var(--tj-add)}
.tj .del{background:var(--tj-del)}
.tj abbr{text-decoration:none;border-bottom:1px dotted var(--tj-dim);cursor:help}
.tj table{border-collapse:collapse;margin:4px 10px;color:inherit}
.tj td,.tj th{border:1px solid var(--tj-line);padding:2px 8px;text-align:left;background:var(--tj-bg)}
.tj th{white-space:nowrap}
.tj pre{background:var(--tj-head);color:inherit;padding:6px 10px;margin:4px 10px;overflow:auto;max-height:50vh}
"""


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--tj-{name}:{value};" for name, value in colours.items())


STYLE = "\n".join([
    "<style>", f".tj{{{_variables(_LIGHT)}}}", f"@media (prefers-color-scheme:dark){{.tj{{{_variables(_DARK)}}}}}",
    f'[data-jp-theme-light="true"] .tj,body.vscode-light .tj{{{_variables(_LIGHT)}}}',
    f'[data-jp-theme-light="false"] .tj,body.vscode-dark .tj,[data-theme="dark"] .tj{{{_variables(_DARK)}}}',
    _RULES, *(f".tj .row.{name}{{border-left-color:var(--tj-{name})}}" for name in (*_KNOWN_COLOURS, "other")), "</style>"])


def framed(title: str, note: str, body: Iterable[str], *, unfolded: bool = True) -> str:
    """A box with a heading that folds what is in it."""
    return (f'{STYLE}<div class="tj"><details{" open" * unfolded}><summary class="head">{escape(title)} '
            f'<span>{escape(note)}</span></summary><div class="body">{"".join(body)}</div></details></div>')


def folded(title: str, content: str, *, unfolded: bool = False) -> str:
    """A part of a box, below a line that folds it."""
    return f'<details class="fold"{" open" * unfolded}><summary class="note">{escape(title)}</summary>{content}</details>'


def page(title: str, content: str) -> str:
    """A whole document, which is as long as what is in it."""
    return (f'<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
            f"<style>body{{font-family:system-ui,sans-serif}}.tj .body.body{{max-height:none}}</style>{content}")


def trace_html(trace: Trace) -> str:
    """The whole trace as one box: inputs, calls with regions folded, results."""
    took = [f"{trace.seconds * 1e3:.1f} ms"] if trace.seconds else []
    return framed(trace.stage, ", ".join([*trace.facts(), *took]), _rows(trace))


def _rows(trace: Trace) -> Iterator[str]:
    names = {p.name: p for b in walk(trace.bound_symbols) for p in (*b.tensor_args, *b.tensor_outputs)}
    names.update((p.name, p) for p in trace.inputs)
    for p in trace.inputs:
        yield _row("", _marked(p.name, names), p.describe(), "input")
    scope = Scope(reserved=frozenset(names))
    for n, b in enumerate(trace.bound_symbols, 1):
        yield _call(b, str(n), names, scope)
    results = ", ".join(o.name if isinstance(o, TensorProxy) else repr(o) for o in trace.output)
    yield _row("", f"return {_marked(results, names)}", "", "")


def _call(b: BoundSymbol, number: str, names: dict[str, TensorProxy], scope: Scope) -> str:
    colour = b.executor if b.executor in _KNOWN_COLOURS else "other" if b.executor else ""
    shapes = ", ".join(o.describe() for o in b.tensor_outputs)
    where = escape(f"{b.comment} {b.source}".strip())
    tip = f'<abbr title="{where}">{escape(b.source.short)}</abbr>' if b.source.file else ""
    row = _row(f"{colour} copy" if b.sym.is_copy else colour, _marked(statement_text(b, scope), names), shapes, tip, number)
    if not b.subsymbols:
        return row
    inner = "".join(_call(s, "", names, scope) for s in b.subsymbols)
    return f'<details class="region"><summary>{row}</summary><div class="inner">{inner}</div></details>'


def _row(kind: str, code: str, shape: str, where: str, number: str = "") -> str:
    return (f'<div class="row {kind}"><span class="num">{number}</span><span class="code">{code}</span>'
            f'<span class="shape">{escape(shape)}</span><span class="where">{where}</span></div>')


def _marked(text: str, names: dict[str, TensorProxy]) -> str:
    """Program text as HTML, where every name of a tensor tells what it stands for."""
    parts, end = [], 0
    for found in _NAME.finditer(text):
        p = names.get(found[0])
        if p is not None:
            parts += [escape(text[end:found.start()]), f'<abbr title="{escape(_described(p))}">{found[0]}</abbr>']
            end = found.end()
    return "".join(parts) + escape(text[end:])


def _described(p: TensorProxy) -> str:
    flags = " conj" * p.conj + " neg" * p.neg + " requires_grad" * p.requires_grad
    return f"{p.dtype} {list(p.shape)} stride {list(p.stride)} on {p.device}, storage {p.storage} offset {p.offset}{flags}"
