"""What the program's own variables are called that hold the results of a trace, as far as its text tells."""
from __future__ import annotations

import ast
import linecache
from functools import lru_cache

from ..ir.trace import BoundSymbol, Trace


def variables(program: Trace) -> dict[str, str]:
    """By the names of results: of the variable that a statement assigns what its last call made.

    program: the first stage, where each call is the one that the program makes.
    """
    found: dict[str, str] = {}
    calls = program.bound_symbols
    for n, b in enumerate(calls):
        following = calls[n + 1].source if n + 1 < len(calls) else None
        statement = _statements(b.source.file).get(b.source.line) if b.source.file else None
        if statement is None or following == b.source or not _is_of(statement.value, b):
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        results = b.tensor_outputs
        if len(targets) == len(results) and not set(results) & set(b.tensor_args):
            found.update((r.name, t.id) for r, t in zip(results, targets) if isinstance(t, ast.Name))
    return found


def _is_of(value: ast.AST, b: BoundSymbol) -> bool:
    """Is the outermost operation of this expression the call? `x * y` is `Tensor.mul` or `Tensor.__rmul__`."""
    called = (b.comment or b.sym.name).rsplit(".", 1)[-1]
    if isinstance(value, ast.Call):
        return getattr(value.func, "attr", getattr(value.func, "id", None)) == called
    if isinstance(value, ast.BinOp):
        return type(value.op).__name__.lower()[:3] in called
    return isinstance(value, ast.Subscript) and called == "__getitem__"


@lru_cache(64)
def _statements(file: str) -> dict[int, ast.Assign]:
    """Assignments to one target, by their lines; none where the file is no Python."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    kinds = (ast.Assign, ast.AnnAssign, ast.NamedExpr)
    return {line: node for node in ast.walk(tree)
            if isinstance(node, kinds) and node.value and len(getattr(node, "targets", [0])) == 1
            for line in range(node.lineno, node.end_lineno + 1)}
