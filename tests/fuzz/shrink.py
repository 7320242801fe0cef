"""Makes a failing program smaller: drop statements, results and calls, or put a value's source for it."""
from __future__ import annotations

import re
from dataclasses import replace
from typing import Callable, Iterator

from tests.fuzz.observe import mentions
from tests.fuzz.programs import Program, Statement

NAME = re.compile(r"(?<![\w.'])(v\d+b?|[abcdwW])(?!\w)")


def shrink(program: Program, fails: Callable[[Program], bool], attempts: int = 400) -> Program:
    """The smallest program found that still fails, within a number of attempts."""
    found = True
    while found:
        found = False
        for smaller in simpler(program):
            attempts -= 1
            if attempts < 0:
                return program
            if fails(smaller):
                program, found = smaller, True
                break
    return program


def simpler(program: Program) -> Iterator[Program]:
    """Programs that are one step smaller, the largest steps first."""
    for i in range(len(program.calls) - 1, -1, -1):
        if len(program.calls) > 1:
            yield replace(program, calls=_without_call(program, i))
    for i in range(len(program.statements) - 1, -1, -1):
        yield _without_statement(program, i)
        yield from _substituted(program, i)
    for i in range(len(program.results)):
        yield replace(program, results=program.results[:i] + program.results[i + 1:])
    for i, call in enumerate(program.calls):
        for j in range(len(call.after)):
            shorter = replace(call, after=call.after[:j] + call.after[j + 1:])
            yield replace(program, calls=program.calls[:i] + (shorter,) + program.calls[i + 1:])
    for i in range(len(program.outer)):
        if not any(mentions(s.text, program.outer[i].split(" = ")[0]) for s in program.statements):
            yield replace(program, outer=program.outer[:i] + program.outer[i + 1:])


def _without_call(program: Program, i: int):
    """Without a call; what it set up stays, because later calls may use it."""
    calls = list(program.calls)
    gone = calls.pop(i)
    if i < len(calls):
        calls[i] = replace(calls[i], setup=gone.setup + calls[i].setup)
    return tuple(calls)


def _without_statement(program: Program, i: int) -> Program:
    """Without a statement and all that uses what it defined."""
    lost, kept = set(program.statements[i].defines), []
    for s in program.statements[:i] + program.statements[i + 1:]:
        if any(mentions(s.text, name) for name in lost) and not set(s.defines) & lost:
            lost |= set(s.defines)
        else:
            kept.append(s)
    results = tuple(r for r in program.results if not any(mentions(r, name) for name in lost))
    return replace(program, statements=tuple(kept), results=results)


def _substituted(program: Program, i: int) -> Iterator[Program]:
    """Without a statement, with one of the names it reads in the place of the name it defines."""
    gone = program.statements[i]
    if len(gone.defines) != 1:
        return
    for source in dict.fromkeys(n for n in NAME.findall(gone.text) if n not in gone.defines):
        def swap(text: str) -> str:
            return re.sub(rf"(?<![\w.']){gone.defines[0]}(?!\w)", source, text)
        others = program.statements[:i] + program.statements[i + 1:]
        rest = tuple(Statement(swap(s.text), s.defines) for s in others)
        yield replace(program, statements=rest, results=tuple(swap(r) for r in program.results))
