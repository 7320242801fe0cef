"""A random program as data: parameters, statements, results and calls; from bytes, and out as Python text.

A `Genome` is what is drawn (by `random` or by hypothesis): a few byte strings, one for each statement and
call. `build` reads the choices off those bytes. It runs every statement in eager as it goes, so that shapes
and dtypes are known and nearly every statement makes sense. Fewer and smaller bytes mean simpler programs,
which is what lets hypothesis shrink them.
"""
from __future__ import annotations

import linecache
import random
import textwrap
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

import torch
from hypothesis import strategies as st

from tests.fuzz import observe

STATEMENT_BYTES, CALL_BYTES, HEAD_BYTES, TAIL_BYTES = 28, 40, 48, 40


@dataclass(frozen=True)
class Options:
    """What programs may contain."""
    large: bool = False         # shapes beyond the L2 cache and beyond one thread's share
    grad: bool = False          # arguments that require grad, and backward passes
    branches: bool = False      # what a tracer cannot always follow: `.item()`, branches on tensor values, checkpoint
    max_statements: int = 12
    sizes: bool = False         # calls with arguments of other sizes


@dataclass(frozen=True)
class Statement:
    text: str
    defines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    setup: tuple[str, ...]          # the caller's lines that make the arguments
    arguments: tuple[str, ...]      # expressions, one for each parameter
    after: tuple[str, ...] = ()     # what the caller does with the result, named `result`


@dataclass(frozen=True)
class Program:
    parameters: tuple[str, ...]
    outer: tuple[str, ...]          # lines that make the closure and global tensors
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    calls: tuple[Call, ...]

    @property
    def source(self) -> str:
        return render(self)


@dataclass(frozen=True)
class Genome:
    head: bytes
    statements: tuple[bytes, ...]
    calls: tuple[bytes, ...]
    tail: bytes


@dataclass
class Tape:
    """Reads choices off bytes. Past the end every choice is the first one."""
    data: bytes
    position: int = 0

    def below(self, n: int) -> int:
        width = 1 if n <= 32 else 2
        piece = self.data[self.position:self.position + width]
        self.position += width
        return int.from_bytes(piece, "big") % n if n > 0 else 0

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]

    def weighted(self, table: Sequence[tuple[int, Any]]) -> Any:
        at = self.below(sum(weight for weight, _ in table))
        for weight, value in table:
            if at < weight:
                return value
            at -= weight
        raise ValueError("an empty table")


@dataclass
class Scope:
    """The names a statement may use, bound to the tensors they held when the program was built."""
    namespace: dict[str, Any]
    options: Options
    tensors: list[str] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    fixed: set[str] = field(default_factory=set)    # names that an assignment would make local
    tape: Tape = field(default_factory=lambda: Tape(b""))

    def value(self, expression: str) -> Any:
        return eval(expression, self.namespace)

    @property
    def largest(self) -> int:
        return 5_000_000 if self.options.large else 700


def random_genome(seed: int, index: int, options: Options) -> Genome:
    """The genome of program `index`; the same for the same seed and options."""
    rng = random.Random(f"{seed}/{index}")
    statements = rng.randint(2, options.max_statements)
    calls = rng.choice((3, 3, 4, 5) if options.sizes else (1, 2, 2, 2, 3, 3))
    return Genome(rng.randbytes(HEAD_BYTES), tuple(rng.randbytes(STATEMENT_BYTES) for _ in range(statements)),
                  tuple(rng.randbytes(CALL_BYTES) for _ in range(calls)), rng.randbytes(TAIL_BYTES))


def genomes(options: Options = Options()) -> st.SearchStrategy[Genome]:
    """The hypothesis strategy for the same genomes."""
    def chunk(size):
        return st.binary(min_size=size, max_size=size)

    # Lists are mostly short: three in a row make longer programs than one.
    part = st.lists(chunk(STATEMENT_BYTES), max_size=max(options.max_statements // 3, 1))
    statements = st.tuples(part, part, part).map(lambda parts: tuple(sum(parts, [])))
    calls = st.lists(chunk(CALL_BYTES), min_size=1, max_size=3).map(tuple)
    return st.builds(Genome, chunk(HEAD_BYTES), statements, calls, chunk(TAIL_BYTES))


def build(genome: Genome, options: Options = Options()) -> Program:
    """The program that a genome describes."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _build(genome, options)


def _build(genome: Genome, options: Options) -> Program:
    from tests.fuzz import arguments, statements        # they use this module's classes
    head = Tape(genome.head)
    signature = arguments.draw_signature(head, options)
    calls = tuple(arguments.draw_call(signature, Tape(data), number, options)
                  for number, data in enumerate(genome.calls))
    scope = arguments.first_scope(signature, calls[0], options)
    body: list[Statement] = []
    for data in genome.statements:
        scope.tape = Tape(data)
        drawn = statements.draw_statement(scope)
        if drawn is not None:
            body.append(drawn)
    results = statements.draw_results(scope, Tape(genome.tail))
    used = "\n".join([s.text for s in body] + list(results))
    outer = tuple(line for name, line in signature.outer if observe.mentions(used, name))
    return Program(signature.parameters, outer, tuple(body), results, calls)


def render(program: Program) -> str:
    """Python text that defines `make()`, which returns the function and its caller; see `observe.check`."""
    captured = [line.split(" = ")[0] for line in program.outer]
    lines = ["def make():"]
    if "W" in captured:
        lines.append("    global W")
    lines += [f"    {line}" for line in program.outer]
    lines += ["", f"    def program({', '.join(program.parameters)}):"]
    lines += [textwrap.indent(s.text, " " * 8) for s in program.statements]
    lines += [f"        return {_results(program.results)}", "", "    def caller(call):"]
    written = [line.split(" = ")[0] for call in program.calls for line in call.after]
    rebound = [name for name in captured if name in written]
    lines += [f"        {'global' if name == 'W' else 'nonlocal'} {name}" for name in rebound]
    lines += [f"        call.watch({name}={name})" for name in captured]
    for number, call in enumerate(program.calls):
        lines += [f"        {line}" for line in call.setup]
        result = f"result{number} = " if call.after else ""
        lines.append(f"        {result}call({', '.join(call.arguments)})")
        after = [line for line in call.after if line[1] not in " [" or line[0] in captured]
        lines += [f"        {line.replace('result', f'result{number}')}" for line in after]
    return "\n".join(lines + ["", "    return program, caller", ""])


def _results(results: tuple[str, ...]) -> str:
    return results[0] if len(results) == 1 else ", ".join(results) or "None"


def load(source: str) -> Callable:
    """The `make` of a rendered program. Tracebacks and tracers find its lines through `linecache`."""
    filename = "<random program>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace = {"torch": torch, "data": observe.data, "__name__": "random_program"}
    exec(compile(source, filename, "exec"), namespace)
    return namespace["make"]
