"""A region's C or CUDA text as people read it: names of the program, and its lines above what they became.

The text that is compiled has neither, so that equal kernels of different programs are one. Here the region is lowered
again, and what its values were read for tells which variable of the text is which result.
"""
from __future__ import annotations

import itertools
import linecache
import re
from typing import Mapping, Union

from ..ir.trace import NOWHERE, BoundSymbol, SourceLine
from .cpu import with_helpers
from .cuda_source import CudaSource, cuda_source
from .kernel import Expr, Kernel
from .sizes import parted
from .source import Source, source_of
from .values import Values

Names = Mapping[str, str]
_VARIABLE = re.compile(r"\b(?:row|[tra])\d+\b")            # what the writer calls rows, values, reductions and pointers
_GIVEN = re.compile(r"given\d+")                          # and what it reads from the table of sizes
_DECLARED = re.compile(r"\s*const [\w ]+ ([tr]\d+) = ")
_KEYWORDS = frozenset("""and asm auto bool break case catch char class const continue default delete do double else enum
    explicit export extern false float for friend goto if inline int long mutable namespace new not operator or private
    protected public register restrict return short signed sizeof static struct switch template this throw true try typedef
    typename union unsigned using virtual void volatile while xor""".split())


def readable(region: BoundSymbol, source: Union[Source, CudaSource], variables: Names) -> str:
    """The text of `source`, which reads the table of sizes where the machine code does, with what the table holds as comments.

    variables: what the program calls results, by their names in the trace.
    """
    values: dict[int, Values] = {}

    def note(kernel: Kernel, made: Values) -> None:
        values[id(kernel)] = made
    if isinstance(source, Source):
        again: Union[Source, CudaSource] = source_of(region, source.fast, note)
    else:
        again = cuda_source(region, source.aligned, note)
    text = source.body if isinstance(source, Source) else source.text
    for function, kernel in again.functions.items():
        text = text.replace(function, _Function(region, kernel, values[id(kernel)], variables).written(function), 1)
    return with_helpers(parted(text).reading(source.given, told=source.sizes)) if isinstance(source, Source) else text


class _Function:
    """The text of one kernel."""

    def __init__(self, region: BoundSymbol, kernel: Kernel, values: Values, variables: Names) -> None:
        self.region, self.kernel, self.variables = region, kernel, variables
        self.lines: dict[str, SourceLine] = {}                 # by variable of the text
        self.wanted: dict[str, str] = {}
        made = values.computed()
        for e in kernel.expressions:
            known = made.get(e)
            if known is not None:
                call, result = known
                self.lines[_variable(e)] = call.bsym.source
                self.wanted[_variable(e)] = variables.get(result.name, result.name)
        for n, b in enumerate(kernel.buffers.values()):
            self.wanted[f"a{n}"] = self._pointer(b.storage)

    def _pointer(self, storage: int) -> str:
        """An argument's name; that of a result, with `_out`."""
        argument = next((p.name for p in self.region.args if p.storage == storage), None)
        result = next((o.name for b in self.region.subsymbols for o in b.tensor_outputs if o.storage == storage), "memory")
        return argument or f"{self.variables.get(result, result)}_out"

    def written(self, text: str) -> str:
        """The text with other names, and with lines of the program."""
        used = dict.fromkeys(_VARIABLE.findall(text))
        beside = "".join(part for part in re.split(r"\n(?=\w)", text) if _VARIABLE.search(part))      # in the same functions
        taken = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", beside)) - set(used) | _KEYWORDS
        names: dict[str, str] = {}
        for old in sorted(used, key=lambda v: ("atr".index(v[0]), v not in self.wanted, v.startswith("row"), v)):
            names[old] = _free(self._name(old, names), taken)
            taken.add(names[old])
        lines = self._with_lines(text.split("\n"))
        return "\n".join(line if comment else _VARIABLE.sub(lambda m: names[m[0]], line) for line, comment in lines)

    def _name(self, old: str, names: Names) -> str:
        if old in self.wanted:
            return self.wanted[old]
        if old.startswith("row"):
            value = names.get(f"t{old[3:]}", old[3:])
            return f"{value}_row"
        return f"e{old[1:]}" if old[0] == "t" else old

    def _with_lines(self, text: list[str]) -> list[tuple[str, bool]]:
        """Lines, and comments (True): each group of declarations below the line of the program that it is of."""
        found: list[tuple[str, bool]] = []
        waiting: list[str] = []                                # declared for what comes next
        now = NOWHERE
        for line in text:
            declared = _DECLARED.match(line)
            source = self.lines.get(declared[1]) if declared else None
            if declared and source is None:
                waiting.append(line)
                continue
            if source is not None and source != now and source.file:
                found.append((f"{line[:len(line) - len(line.lstrip())]}// {_told(source)}", True))
            now = source or NOWHERE
            found += [(w, False) for w in (*waiting, line)]
            waiting = []
        return found + [(w, False) for w in waiting]


def _variable(e: Expr) -> str:
    return f"r{e.extra.number}" if e.op == "reduced" else f"t{e.number}"


def _told(source: SourceLine) -> str:
    """`model.py:19  y = x + 1`"""
    text = linecache.getline(source.file, source.line).strip().rstrip("\\")
    return f"{source.short}  {text}".rstrip()


def _free(wanted: str, taken: set[str]) -> str:
    """The name, or with a number behind it."""
    wanted = wanted if wanted.isascii() and not _GIVEN.fullmatch(wanted) else "value"
    numbered = (f"{wanted}_{n}" for n in itertools.count(2))
    return next(name for name in itertools.chain([wanted], numbered) if name not in taken)
