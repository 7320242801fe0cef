"""Trace -> Python text that runs: what is printed is what the runtime compiles.

Constants that have no literal form are bound in the scope under a name of their own.
"""
from __future__ import annotations

import enum
import functools
import itertools
import keyword
import math
import textwrap
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch
from torch.utils._pytree import tree_map

from .extents import is_extent
from .proxy import TensorConstant, TensorProxy
from .symbol import Symbol
from .torch_names import torch_name
from .trace import BoundSymbol, Modes, Trace

WIDTH = 120                  # columns of a line
OWN_NAMES = frozenset(("torch", "inf", "nan", "complex", "slice"))      # that the text of any program may use
_LITERALS = (bool, int, str, bytes, type(None), type(Ellipsis))
_TORCH_LITERALS = (torch.dtype, torch.layout, torch.memory_format)


@dataclass
class Scope:
    """Names that the text uses besides its own. called: what is called for a function, by a name bound here; None: the function itself,
    by its public path."""

    names: dict[str, Any] = field(default_factory=lambda: {"torch": torch, "inf": math.inf, "nan": math.nan})
    taken: dict[int, str] = field(default_factory=dict)
    reserved: frozenset[str] = frozenset()
    called: Optional[Callable[[Callable], Callable]] = None

    def bind(self, value: Any, hint: str, plain: bool = False) -> str:
        """A name for `value`; plain: `hint` itself where it is free."""
        if id(value) not in self.taken:
            candidates = itertools.chain([hint] if plain else [], (f"{hint}_{n}" for n in itertools.count()))
            name = next(c for c in candidates if c not in self.names and c not in self.reserved)
            self.names[name], self.taken[id(value)] = value, name
        return self.taken[id(value)]


def function_name(fn: Callable, chosen: Optional[str] = None) -> str:
    """What the text of a program calls its function: chosen, or else the name of `fn`, as far as Python takes it."""
    fn = fn.func if isinstance(fn, functools.partial) else fn
    name = chosen or getattr(fn, "__name__", type(fn).__name__)
    if not name.isidentifier() or keyword.iskeyword(name):
        name = "program" if chosen is None else "".join(c if c.isalnum() else "_" for c in f"program_{name}")
    return f"{name}_" if name in OWN_NAMES else name


def looks_internal(name: str) -> bool:
    """Names that intermediates get: t12, v3."""
    return name[0] in "tv" and name[1:].isdigit()


@dataclass(frozen=True, eq=False)
class _Float:
    """A number where the text needs the Python float that it is."""

    proxy: TensorProxy

    @classmethod
    def of(cls, x: Any) -> Any:
        return cls(x) if isinstance(x, TensorProxy) and x.number else x


def value_text(x: Any, scope: Scope) -> str:
    """An argument or output as Python text."""
    if isinstance(x, _Float):
        return f"{x.proxy.name}.item()"
    if isinstance(x, TensorProxy):
        return x.name
    if isinstance(x, TensorConstant):
        return scope.bind(x.value, "data")
    if type(x) in (list, tuple, torch.Size):
        inner = ", ".join(value_text(e, scope) for e in x)
        text = f"[{inner}]" if type(x) is list else f"({inner}{',' * (len(x) == 1)})"
        return f"torch.Size({text})" if type(x) is torch.Size else text
    if type(x) is dict and all(isinstance(k, str) for k in x):
        return "{" + ", ".join(f"{k!r}: {value_text(v, scope)}" for k, v in x.items()) + "}"
    if type(x) is slice:
        return f"slice({value_text(x.start, scope)}, {value_text(x.stop, scope)}, {value_text(x.step, scope)})"
    if isinstance(x, enum.Enum):
        return scope.bind(x, "const")
    if x is Ellipsis:
        return "..."
    if type(x) is complex:
        return f"complex({x.real!r}, {x.imag!r})"              # repr loses the sign of a zero, and has no name for infj
    if type(x) in _LITERALS or type(x) is float or is_extent(x):
        return repr(x)
    if isinstance(x, _TORCH_LITERALS):
        return str(x)
    if isinstance(x, torch.device):
        return f"torch.device({str(x)!r})"
    if isinstance(x, torch._ops.OpOverload) and not keyword.iskeyword(x._overloadname):
        return f"torch.ops.{x.namespace}.{x.overloadpacket.__name__}.{x._overloadname}"
    return scope.bind(x, "const")


def callable_text(fn: Callable, name: str, scope: Scope) -> str:
    """How the text calls `fn`: by its public path where that resolves to it, else by a name bound in the scope."""
    if scope.called is not None:
        return scope.bind(scope.called(fn), name.replace("::", "_").replace(".", "_"), plain=True)
    if isinstance(fn, torch._ops.OpOverload) and not keyword.iskeyword(fn._overloadname):
        return value_text(fn, scope)
    path = public_path(fn)
    return path if path else scope.bind(fn, name.replace("::", "_").replace(".", "_"), plain=True)


def public_path(fn: Callable) -> str:
    """`torch.nn.functional.gelu` for that very function, "" when there is no such path."""
    own = f"torch.{getattr(fn, '__name__', '')}"              # before other names of the same function, as spmm for mm
    path = own if _leads_to(own, fn) else torch_name(fn) or ""
    return path if path.startswith("torch.") and _leads_to(path, fn) else ""


def _leads_to(path: str, fn: Callable) -> bool:
    found: Any = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
    return found is fn or found == fn


def call_text(b: BoundSymbol, scope: Scope) -> str:
    opened = not b.sym.numbers and not b.is_region
    args, kwargs = (tree_map(_Float.of, (b.args, b.kwargs)) if opened and any(a.number for a in b.tensor_args) else (b.args, b.kwargs))
    parts = [value_text(a, scope) for a in args]
    parts += [f"{k}={value_text(v, scope)}" for k, v in kwargs.items() if not keyword.iskeyword(k)]
    parts += [f"**{{{k!r}: {value_text(v, scope)}}}" for k, v in kwargs.items() if keyword.iskeyword(k)]     # random_(from=)
    return f"{callable_text(b.sym.fn, b.sym.name, scope)}({', '.join(parts)})"


def pattern_text(output: Any) -> str:
    """The assignment target for an output pytree: constants and dropped outputs become `_`."""
    if isinstance(output, TensorProxy):
        return output.name
    if isinstance(output, (list, tuple)):
        parts = [pattern_text(o) for o in output]
        return "[" + ", ".join(parts) + "]" if any(p != "_" for p in parts) else "_"
    return "_"


def statement_text(b: BoundSymbol, scope: Scope) -> str:
    """`t0 = torch.add(x, y)`: no target when the call hands back only names that exist already."""
    known = isinstance(b.output, TensorProxy) and b.output in b.tensor_args
    target = "_" if known else pattern_text(b.output)
    return call_text(b, scope) if target == "_" else f"{target} = {call_text(b, scope)}"


def bound_symbol_text(b: BoundSymbol) -> str:
    """One call with its metadata and the user's line, for messages; whatever else stands in its place, as it is."""
    if not isinstance(b, BoundSymbol) or not isinstance(b.sym, Symbol):
        return repr(b)
    shapes = ", ".join(map(repr, b.tensor_outputs))
    where = "  ".join(filter(None, (b.comment, b.source.short)))
    return f"{statement_text(b, Scope())}" + (f"    # {shapes}" if shapes else "") + (f"  <- {where}" if where else "")


def last_uses(trace: Trace, handed_over: bool = False) -> dict[int, list[str]]:
    """Statement index -> names that nothing reads after it. Inputs are the caller's and outlive the program, unless they are
    handed over."""
    keep = set(trace.tensor_results) | set(() if handed_over else trace.inputs)
    last: dict[TensorProxy, int] = {}
    for n, b in enumerate(trace.bound_symbols):
        last.update((p, n) for p in (*b.tensor_args, *b.tensor_outputs) if p not in keep)
    dying: dict[int, list[str]] = {}
    for p, n in last.items():
        dying.setdefault(n, []).append(p.name)
    return dying


def mode_contexts(modes: Modes, base: Modes) -> list[str]:
    """The `with` contexts that turn `base` into `modes`."""
    contexts = []
    if modes.inference != base.inference:
        contexts.append(f"torch.inference_mode({modes.inference})")
    if modes.grad != base.grad and not (modes.inference and not base.inference):
        contexts.append(f"torch.set_grad_enabled({modes.grad})")
    if modes.autocast != base.autocast:
        device, dtype, cache = modes.autocast or base.autocast
        contexts.append(f"torch.autocast({device!r}, dtype={dtype}, enabled={modes.autocast is not None}, "
                        f"cache_enabled={cache})")
    return contexts


def trace_source(trace: Trace, *, annotate: bool = True, handed_over: bool = False,
                 called: Optional[Callable] = None) -> tuple[str, dict[str, Any], dict[int, BoundSymbol]]:
    """(text, scope, calls): `exec(text, scope)` defines the function `trace.name`, taking the inputs and returning the
    flat outputs; `calls` says which call stands on a line (counted from 1).

    annotate: add the user's lines and metadata as comments. handed_over: it takes one list of the inputs, and empties it, so that
    each is gone after its last use. called: as in `Scope`; each call stands on the same lines.
    """
    reserved = {p.name for b in trace.bound_symbols for p in b.tensor_outputs} | {p.name for p in trace.inputs} | {trace.name}
    scope, base, calls = Scope(reserved=frozenset(reserved), called=called), trace.notes.get("modes", Modes()), {}
    lines, dying, current = [_signature(trace)], last_uses(trace, handed_over), base
    if handed_over:
        lines = [f"def {trace.name}(inputs):", f"    [{', '.join(p.name for p in trace.inputs)}] = inputs", "    inputs.clear()"]
    for n, b in enumerate(trace.bound_symbols):
        if b.modes != current:
            lines += [f"    with {c}:" for c in [", ".join(mode_contexts(b.modes, base))] if c]
            current = b.modes
        indent = "    " if not mode_contexts(current, base) else "        "
        statement = _wrapped(indent, statement_text(b, scope), _annotation(b, trace, n) if annotate else "", b.is_region)
        calls.update((lines[0].count("\n") + len(lines) + 1 + k, b) for k in range(len(statement)))
        lines += statement
        if annotate:
            lines += [f"{indent}    # {statement_text(s, scope)}" for s in b.subsymbols]
        if n in dying:
            lines.append(f"{indent}del {', '.join(dying[n])}")
    lines.append(f"    return {value_text(tuple(map(_Float.of, trace.output)), scope)}")
    return "\n".join(lines) + "\n", scope.names, calls


def _signature(trace: Trace) -> str:
    names = textwrap.wrap(", ".join(p.name for p in trace.inputs), 100, break_long_words=False)
    return f"def {trace.name}({(chr(10) + '      ').join(names)}):"


def _wrapped(indent: str, statement: str, annotation: str, is_region: bool) -> list[str]:
    """A line; that of a region with many arguments or results as several."""
    line = indent + statement + annotation
    if not is_region or len(line) <= WIDTH:
        return [line]
    whole = {"width": WIDTH, "break_long_words": False, "break_on_hyphens": False}
    lines = textwrap.wrap(statement.replace(" = ", "\0=\0"), initial_indent=indent, subsequent_indent=indent + "      ", **whole)
    note = textwrap.wrap(annotation.strip(" #"), initial_indent=f"{indent}    # ", subsequent_indent=f"{indent}    # ", **whole)
    return [line.replace("\0", " ") for line in lines] + note


def _annotation(b: BoundSymbol, trace: Trace, n: int) -> str:
    shapes = ", ".join(o.describe() for o in b.tensor_outputs)
    before = trace.bound_symbols[n - 1] if n else None
    same = before is not None and before.source == b.source and before.comment == b.comment
    where = "" if same else "  ".join(filter(None, (b.comment, b.source.short)))
    note = "  ".join(filter(None, (shapes, where)))
    return f"    # {note}" if note else ""


def trace_text(trace: Trace) -> str:
    """The whole trace as runnable Python with a heading that says which stage it is."""
    inputs = "".join(f"# {p.name}: {p.describe()}\n" for p in trace.inputs)
    made = f" from {trace.previous}" if trace.previous else ""
    return f"# {trace.stage}{made}\n{inputs}{trace_source(trace)[0]}"
