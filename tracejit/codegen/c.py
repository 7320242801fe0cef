"""Kernel IR -> C: expressions, scopes and loops. The schedules are in `schedules.py`, the spellings in a dialect.

The innermost loop is the vector loop. It is cut where a predicate on its variable changes, and doubled where one on an
outer variable does, so that the common case carries no mask. What does not vary with it is computed before it.
"""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from .dialect import UNSIGNED, Dialect
from .index import Bounds, Gathered, Index, Quotient, Var, atoms, bounds
from .kernel import Expr, Kernel, Store, below, closure, negated, never_positive, truth, variables

MOST_CUTS = 10
MOST_VERSIONS = 4            # predicates on outer variables that double a loop
SHORT = 4                    # loops below this many iterations are left to the unroller


class Block(list):
    """Lines and nested blocks."""

    def text(self, depth: int = 0) -> list[str]:
        out = []
        for part in self:
            out += part.text(depth + 1) if isinstance(part, Block) else ["  " * depth + part]
        return out


class Writer:
    """Writes the body of one kernel."""

    def __init__(self, kernel: Kernel, dialect: Dialect) -> None:
        self.k, self.d = kernel, dialect
        self.by_number = {e.number: e for e in kernel.expressions}
        self.pointers = {b: f"a{n}" for n, b in enumerate(kernel.buffers)}
        self.scopes: list[tuple[dict[Expr, str], Block]] = []
        self.moving: set[Var] = set()                          # variables of the innermost loop
        self.lanes = False                                     # reductions are arrays over columns
        self.within: dict[Var, Bounds] = {}
        self.assumed: dict[Expr, bool] = {}
        self.special: dict[Expr, str] = {}                     # row buffers, tiles, and what was loaded as a vector
        self.sources: dict[Expr, str] = {}                     # where loads find their element, if not in their buffer
        self.places: dict[Store, str] = {}                     # where a value waits to be stored as part of a vector
        self._moves: dict[Expr, bool] = {}
        self._quiet: dict[tuple[Expr, torch.dtype], bool] = {}

    # ------------------------------------------------------------ expressions

    def moves(self, e: Expr) -> bool:
        """Does it change from one iteration of the innermost loop to the next?"""
        stack, seen = [e], []
        while stack:                                           # arguments first, without recursion
            x = stack[-1]
            if x in self._moves:
                stack.pop()
                continue
            waiting = [a for a in x.args if a not in self._moves]
            if waiting:
                stack += waiting
                continue
            own = bool(variables(x) & self.moving) or self.lanes and x.op == "reduced" or x.op == "running"
            self._moves[x] = own or any(self._moves[a] for a in x.args)
            seen.append(stack.pop())
        return self._moves[e]

    def at_loop(self, moving: set[Var], lanes: bool = False) -> None:
        self.moving, self.lanes, self._moves = moving, lanes, {}

    def truth(self, e: Expr) -> Optional[bool]:
        if e in self.assumed:
            return self.assumed[e]
        if e.op == "not" and e.args[0] in self.assumed:
            return not self.assumed[e.args[0]]
        if e.op == "and":
            a, b = self.truth(e.args[0]), self.truth(e.args[1])
            return False if a is False or b is False else True if a and b else None
        return truth(e, self.within) if e.dtype is torch.bool and e.op in ("inside", "not") else None

    def _parts(self, e: Expr) -> tuple[Expr, ...]:
        """The arguments that its text needs under what is known of predicates."""
        if e in self.special or e.op in ("const", "reduced") or self.truth(e) is not None:
            return ()
        if e.op == "select" and self.truth(e.args[0]) is not None:
            return (e.args[1] if self.truth(e.args[0]) else e.args[2],)
        if e.op == "load" and e.extra[2] is not None:
            known = self.truth(e.extra[2])
            return () if known is False else e.args[:-1] if known else e.args
        return e.args

    def name(self, root: Expr) -> str:
        """The C name of a value; declares what it needs, each in the scope where it is constant."""
        needed, stack = set(), [root]
        while stack:
            e = stack.pop()
            if e not in needed and self._known(e) is None:
                needed.add(e)
                stack += self._parts(e)
        for e in sorted(needed, key=lambda e: e.number):
            self._declare(e)
        return self._known(root)

    def _known(self, e: Expr) -> Optional[str]:
        if e.op == "const":
            return self.d.literal(e.extra, e.dtype)
        if e.op == "reduced":
            return f"r{e.extra.number}" + ("[q]" if self.lanes else "")
        t = self.truth(e)
        if t is not None:
            return str(int(t))
        if e.op == "select" and e not in self.special and self.truth(e.args[0]) is not None:
            return self._known(e.args[1] if self.truth(e.args[0]) else e.args[2])
        for names, _ in reversed(self.scopes):
            if e in names:
                return names[e]
        return None

    def _declare(self, e: Expr) -> None:
        if self._known(e) is not None:
            return
        text = self.special.get(e) or self.text(e)
        innermost = e in self.special or self.moves(e) or len(self.scopes) == 1
        names, block = self.scopes[-1 if innermost else -2]
        names[e] = f"t{e.number}"
        block.append(f"const {self.d.register[e.dtype]} t{e.number} = {text};")

    def text(self, e: Expr) -> str:
        if e.op == "load":
            return self._load(e)
        if e.op == "index":
            return self.index(e.extra)
        if e.op == "inside":
            return self._inside(*e.extra)
        a = [self._known(x) for x in e.args]
        if e.op == "checked":
            size, error, wraps = e.extra
            return self.d.checked(a[0], size, wraps, error, a[1] if len(a) > 1 else "1")
        if e.op == "nonzero":
            return self.d.nonzero(a[0], self.d.letter[self.d.register[e.dtype]], a[1] if len(a) > 1 else "1")
        if e.op == "running":
            return f"(run{e.number} {'+=' if e.extra == 'sum' else '*='} {a[0]})"
        if e.op == "cast":
            return self._cast(e, a[0])
        if e.op == "round":
            return (self.d.round_quiet if self.quiet(e.args[0], e.dtype) else self.d.round)(e.dtype, a[0])
        operand = self.d.register[e.args[0].dtype if e.dtype is torch.bool and e.args else e.dtype]
        kind = self.d.letter[operand]
        op = self.d.not_positive.get(e.op, e.op) if kind == "f" and e.args and never_positive(e.args[0]) else e.op
        if kind in "fd" and (apart := negated(e)) is not None:
            op, a = "neg_apart", [self._known(apart)]
        suffix, unsigned = "f" if kind == "f" else "", UNSIGNED.get(operand, operand)
        return self.d.spelling(op, kind).format(*a, m=self.d.math, f=suffix, s=kind, u=unsigned)

    def quiet(self, e: Expr, dtype: torch.dtype) -> bool:
        """Do all NaNs of a value come from arithmetic or from elements of this half type?"""
        key = e, dtype
        if key not in self._quiet:
            self._quiet[key] = all(x.op != "load" or x.dtype is dtype or not x.dtype.is_floating_point
                                   for x in closure([e]))
        return self._quiet[key]

    def _cast(self, e: Expr, a: str) -> str:
        source = e.args[0].dtype
        if e.dtype is torch.bool:
            return f"{a} != 0"
        if source.is_floating_point and not e.dtype.is_floating_point:
            return f"tj_to_{self.d.letter[self.d.register[e.dtype]]}_{self.d.letter[self.d.register[source]]}({a})"
        if source is torch.bool:                               # compilers do not vectorize conversions of _Bool well
            one = self.d.literal(1.0 if e.dtype.is_floating_point else 1, e.dtype)
            return f"{a} ? {one} : 0"
        back = e.dtype.is_floating_point and e.args[0].op == "cast" and e.args[0].args[0].dtype.is_floating_point
        if back and not source.is_floating_point:              # compilers make it one truncation: it keeps zero's sign
            return f"{a} == 0 ? 0 : ({self.d.register[e.dtype]}){a}"
        return f"({self.d.register[e.dtype]}){a}"

    def _load(self, e: Expr) -> str:
        buffer, index, guard = e.extra
        known = True if guard is None else self.truth(guard)
        if known is False:
            return "0"
        if self.k.buffers[buffer].number and self.d.numbers_by_value:
            return self.pointers[buffer]
        at = self.d.load(e.dtype, self.sources.get(e) or f"{self.pointers[buffer]}[{self.index(index)}]")
        return at if known else f"({self._known(guard)} ? {at} : 0)"

    def _inside(self, index: Index, low: int, high: int) -> str:
        first, last = bounds(index, self.within)
        at = self.index(index)
        return " & ".join([f"({at} >= {low})"] * (first < low) + [f"({at} < {high})"] * (last >= high)) or "1"

    def index(self, index: Index) -> str:
        parts = [self._atom(a) if c == 1 else f"{self._atom(a)}*{c}" for a, c in index.terms]
        if index.constant or not parts:
            parts.append(str(index.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def _atom(self, a: Any) -> str:
        if isinstance(a, Var):
            return f"i{a.number}"
        if isinstance(a, Gathered):
            return self.name(self.by_number[a.expression])
        at, sign = self.index(a.index), bounds(a.index)[0] < 0
        if isinstance(a, Quotient):
            return f"tj_floor_quotient({at}, {a.divisor})" if sign else f"(({at})/{a.divisor})"
        return f"tj_floor_remainder({at}, {a.divisor})" if sign else f"(({at})%{a.divisor})"

    def stores(self, stores: list[Store]) -> None:
        """All values first, then all stores: a kernel may read what it overwrites."""
        lines = []
        for s in stores:
            value = s.value.args[0] if s.value.op == "round" and s.value not in self.special else s.value
            name = self.name(value)
            lines.append((s, name))
        for s, name in lines:
            place = self.places.get(s) or f"{self.pointers[s.buffer]}[{self.index(s.index)}]"
            store = self.d.store_quiet if self.quiet(s.value, s.value.dtype) else self.d.store
            self.scopes[-1][1].append(f"{place} = {store(s.value.dtype, name)};")

    # ------------------------------------------------------------ loops

    def straight(self, block: Block, body: Callable[[], None]) -> None:
        """Code that runs once where `block` stands."""
        self.at_loop(set())
        self.scopes = [({}, block)]
        body()
        self.scopes = []

    def rows(self, block: Block, loops: list[Var], body: Callable[[Block], None],
             low: str = "lo", high: str = "hi") -> None:
        """One linear range over `loops`, the last fastest: indices are counted up, not divided out each time."""
        if not loops:
            block.append(f"for (i64 o = {low}; o < {high}; o++) {{")
        step = 1
        for v in reversed(loops):
            left = f"({low})/{step}" if step != 1 else low
            block.append(f"i64 i{v.number} = {left}" + (f" % {v.size};" if v is not loops[0] else ";"))
            step *= max(v.size, 1)
        if loops:
            block.append(f"for (i64 o = {low}; o < {high}; o++) {{")
        inside = Block()
        body(inside)
        for depth, v in enumerate(reversed(loops)):
            if v is loops[0]:
                inside.append(f"i{v.number}++;" + " }" * depth)
            else:
                inside.append(f"if (++i{v.number} == {v.size}) {{ i{v.number} = 0;")
        block += [inside, "}"]

    def nested(self, block: Block, loops: list[Var], body: Callable[[Block], None]) -> None:
        for v in loops:
            block.append(f"for (i64 i{v.number} = 0; i{v.number} < {v.size}; i{v.number}++) {{")
            block.append(Block())
            block, outer = block[-1], block
            outer.append("}")
        body(block)

    def vector_loop(self, block: Block, v: Var, roots: list[Expr], body: Callable[[], None], clause: str = "",
                    shared: Optional[tuple[str, str]] = None) -> None:
        """`body` writes one iteration. shared: C texts of the range, when it is not the whole of v."""
        self.at_loop({v})
        for choice in self._choices(v, roots):
            p = choice
            if p is None:
                return self._cut_loop(block, v, roots, body, clause, shared)
            self.scopes = [({}, block)]
            block.append(f"if ({self.name(p)}) {{")
            for value in (True, False):
                version = Block()
                before = dict(self.within), dict(self.assumed)
                self._assume(p, value)
                self.vector_loop(version, v, roots, body, clause, shared)
                self.within, self.assumed = before
                block.append(version)
                block.append("} else {" if value else "}")
            return

    def _choices(self, v: Var, roots: list[Expr]) -> list[Optional[Expr]]:
        """The first undecided predicate that the loop can be doubled for, or None."""
        if v.size >= 16 and len(self.assumed) < MOST_VERSIONS:
            for e in sorted({e for r in roots for e in below(r)}, key=lambda e: e.number):
                if e.op == "inside" and self.truth(e) is None and not self.moves(e) and not any(
                        isinstance(a, Gathered) for a in atoms(e.extra[0])):
                    return [e]
        return [None]

    def _assume(self, p: Expr, value: bool) -> None:
        self.assumed[p] = value
        index, low, high = p.extra
        if len(index.terms) == 1 and isinstance(index.terms[0][0], Var) and index.terms[0][1] == 1:
            v, c = index.terms[0][0], index.constant
            first, last = self.within.get(v, (0, v.size - 1))
            if value:
                self.within[v] = max(first, low - c), min(last, high - 1 - c)
            elif low - c <= first:
                self.within[v] = high - c, last
            elif high - 1 - c >= last:
                self.within[v] = first, low - 1 - c

    def _cut_loop(self, block: Block, v: Var, roots: list[Expr], body: Callable, clause: str,
                  shared: Optional[tuple]) -> None:
        outer = self.within.get(v)
        for first, end in self._segments(v, roots):
            self.within[v] = (first, end - 1)
            low, high = str(first), str(end)
            if shared is not None:
                low = shared[0] if first == 0 else f"({shared[0]} > {first} ? {shared[0]} : {first})"
                high = shared[1] if end == v.size else f"({shared[1]} < {end} ? {shared[1]} : {end})"
            before, loop = Block(), Block()                    # each part of the range has names of its own
            self.scopes = [({}, before), ({}, loop)]
            body()
            scans = any(e.op == "running" for r in roots for e in below(r))
            if self.d.vector_pragma and not scans and (shared is not None or end - first >= SHORT):
                before.append(self.d.vector_pragma + clause)
            before += [f"for (i64 i{v.number} = {low}; i{v.number} < {high}; i{v.number}++) {{", loop, "}"]
            block += ["{", before, "}"]
            self.scopes = []
        if outer is None:
            self.within.pop(v, None)
        else:
            self.within[v] = outer

    def _segments(self, v: Var, roots: list[Expr]) -> list[Bounds]:
        edges = {0, v.size}
        for e in {e for r in roots for e in below(r)}:
            if e.op == "inside" and len(e.extra[0].terms) == 1 and e.extra[0].terms[0][0] == v:
                index, low, high = e.extra
                c = index.terms[0][1]
                for limit in (low, high):
                    d = limit - index.constant
                    edges.add(-(-d // c) if c > 0 else -d // -c + 1)
        edges = sorted(x for x in edges if 0 <= x <= v.size)
        return list(zip(edges, edges[1:])) if 2 < len(edges) <= MOST_CUTS else [(0, v.size)]
