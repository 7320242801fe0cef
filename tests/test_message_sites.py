"""Every message that the package raises or warns stands in the golden text, or in a list of what no program meets."""
import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, GOLDEN = ROOT / "tracejit", ROOT / "tests" / "golden" / "errors.txt"

# Calls that make a message, with the place of their text among the arguments; a raise of any class is one, too.
MAKERS = {"UnsupportedError": 0, "TraceError": 0, "NoSplit": 0, "StateError": 1, "_misuse": 0, "warn": 0, "refused": 0}

# Functions that return such texts, or "".
TELLERS = {"hindrance", "hidden", "unsupported_tensor", "missing", "replay_reason", "_why_not_found", "_wrong", "_wrong_inside",
           "why_not", "why_not_lowered", "_odd_tensor", "_why_not_computed", "_unfused", "_advice"}

# Classes of which nobody sees the text.
UNSEEN = {
    "CannotLower": "the fuser catches it, and makes smaller regions",
    "Mixed": "the compile catches it, and records once more with one backward pass",
    "EagerRefuses": "the call catches it, and eager raises an error of its own",
    "SystemExit": "the status of the command",
}

# Beginnings of texts that no program meets, and why.
INVARIANTS = {
    "a tensor whose memory layout fake tensors": "fake tensors of this release of torch reproduce all layouts: a proof for others",
    "the call changes ..., which cannot be found again": "a call hands its arguments over, and whatever else is met has a place",
    "... = ... has no text that a script could hold": "a region's reference needs floats, tensors and functions alone",
    "... has no functional form: make it write": "what writes or is opaque is refused before, by its name",
    "code that nobody sees computes with": "function modes see the user's calls, in backward passes too",
    "a fusion region that no executor has compiled": "the executor that claims a region makes its function, or the region is taken apart",
    "backward needs a value that can be neither kept": "what is kept is memory that eager saves, or a copy of the function's own",
    "... was not kept for backward": "the call catches it, and makes the tangents fit",
    "more gradients than before": "the call catches it, and makes the tangents fit",
    "the decomposition of ... makes": "a decomposition that gives other shapes is a fault of its own",
    "set_ to a storage from outside": "storages in a recording stand for memory of its own",
    "as_strided: ... bytes of a storage": "eager raises an error of its own",
    "a result is computed from one that is a view of a view, and not": "a history leads through what is viewed, or is made by strides",
    "it views bytes as another dtype": "a view costs no call, and is not told of",
    "sizes of a tensor are open, of which": "a compile with open sizes that fails is made again without them",
    "sizes that are open": "a compile with open sizes that fails is made again without them",
    "the C compiler fails on sizes that are open": "a compile with open sizes that fails is made again without them",
    "torch asks for ... of a size that is open": "a compile with open sizes that fails is made again without them",
}


def texts(node, constants):
    """The constant parts of a text, `None` for what is filled in; [None] for a text made elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [part for value in node.values for part in texts(value, constants)]
    if isinstance(node, ast.FormattedValue):
        return texts(node.value, constants) if isinstance(node.value, ast.Name) and node.value.id in constants else [None]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return texts(node.left, constants) + texts(node.right, constants)
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".format"):
        return re.sub(r"\{\w*\}", "\0", "".join(t or "\0" for t in texts(node.func.value, constants))).replace("\0", "\1\0\1").split("\1")
    if isinstance(node, ast.Name) and node.id in constants:
        return texts(constants[node.id], {k: v for k, v in constants.items() if k != node.id})
    return [None]


def named(node):
    """The last name of what is called."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def constants_of_the_package():
    """Names at the top of modules that start with what is text."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(
                    node.value, (ast.Constant, ast.JoinedStr, ast.BinOp)):
                found[node.targets[0].id] = node.value
    return found


@lru_cache(None)
def sites():
    """(file:line, class, parts of the text) of each call that makes a message."""
    constants, found = constants_of_the_package(), []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        raised = {id(n.exc) for n in ast.walk(tree) if isinstance(n, ast.Raise)}
        for n in ast.walk(tree):
            if isinstance(n, ast.Call) and (named(n.func) in MAKERS or id(n) in raised) and named(n.func) not in UNSEEN:
                place = MAKERS.get(named(n.func), 0)
                parts = texts(n.args[place], constants) if len(n.args) > place else [None]
                parts = [None if p == "\0" else p for p in parts]
                if any(p and p.strip(" :.()\n") for p in parts):
                    found.append((f"{path.relative_to(ROOT)}:{n.lineno}", named(n.func), parts))
        found += [(f"{path.relative_to(ROOT)}:{n.lineno}", "text", parts) for n, parts in told(tree, constants)]
    return found


def told(tree, constants):
    """What functions that tell a reason return, or keep to return it."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name in TELLERS:
            docstring = getattr(function.body[0], "value", None)
            for n in ast.walk(function):
                if isinstance(n, (ast.JoinedStr, ast.Constant)) and n is not docstring:
                    parts = texts(n, constants)
                    if len("".join(p or "" for p in parts)) > 12:
                        yield n, parts


def pattern(parts):
    """A text with anything for what is filled in."""
    return "".join(".+?" if p is None else re.escape(p) for p in parts)


def plain(parts):
    return "".join("..." if p is None else p for p in parts)


def test_messages_are_found():
    assert len(sites()) > 120


def entries():
    return GOLDEN.read_text().split("\n## ")


def test_every_message_is_in_the_golden_text():
    missing = [(where, kind, plain(parts)) for where, kind, parts in sites()
               if not any(re.search(pattern(parts), entry, re.S) for entry in entries())
               and not any(plain(parts).startswith(start) for start in INVARIANTS)]
    assert not missing, "\n".join(" ".join(m) for m in missing)


@pytest.mark.parametrize("start", INVARIANTS)
def test_an_invariant_is_a_text_of_the_package_and_not_in_the_golden_text(start):
    of = [parts for _, _, parts in sites() if plain(parts).startswith(start)]
    assert of and not any(re.search(pattern(parts), entry, re.S) for parts in of for entry in entries())
