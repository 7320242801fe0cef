"""Compare a compiler with eager on random programs.

    python -m tests.fuzz.run --n 10000 --seed 0 --jobs 2
    python -m tests.fuzz.run --only 1234            one program: its source, and how the compiler differs
    python -m tests.fuzz.run --compiler identity    eager against itself: the programs must be deterministic

Exits with 1 if any program differs or was refused, and prints the first ten, made smaller, as
Python that can be pasted into a test.
"""
from __future__ import annotations

import argparse
import concurrent.futures
import functools
import importlib
import multiprocessing
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator

import torch
from tqdm import tqdm

from tests.fuzz import observe, programs, rounding
from tests.fuzz.shrink import shrink

SHOWN = 10


@dataclass(frozen=True)
class Outcome:
    kind: str                       # "same", "rounded", "different", "unsupported"; "unstable" if eager is
    problems: tuple[str, ...] = ()
    eager_error: bool = False
    index: int = -1


def compiler(name: str) -> Callable:
    """A function that compiles a function: `tracejit`, `tracejit:EXECUTOR`, `identity`, or `module:attribute`."""
    if name == "identity":
        return lambda fn: fn
    if name == "tracejit" or name.startswith("tracejit:"):
        import tracejit
        executors = name.split(":")[1:] or None
        return functools.partial(tracejit.jit, fallback="error", executors=executors)
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def judge(program: programs.Program, compile_function: Callable, tolerant: bool = False) -> Outcome:
    """Run a program in eager and compiled. tolerant: differences that are rounding are none."""
    make = programs.load(program.source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = observe.observe(make)
        got = observe.observe(make, compile_function)
        erred = any(m.error is not None for m in want if m.label.startswith("call"))
        refused = [str(m.error) for m in got if type(m.error).__name__ == "UnsupportedError"]
        if refused:
            return Outcome("unsupported", (refused[0],), erred)
        problems = observe.differences(want, got)
        if problems and tolerant:
            problems = observe.differences(want, rounding.forgiven(want, got, make))
            if not problems:
                return Outcome("rounded", (), erred)
        if not problems:
            return Outcome("same", (), erred)
        if any(observe.differences(want, observe.observe(make)) for _ in range(3)):
            return Outcome("unstable", (), erred)
    return Outcome("different", tuple(problems), erred)


def fails_like(kind: str, compile_function: Callable, tolerant: bool = False) -> Callable[[programs.Program], bool]:
    def fails(program: programs.Program) -> bool:
        try:
            return judge(program, compile_function, tolerant).kind == kind
        except (NameError, UnboundLocalError, SyntaxError):     # the shrinker cut what the caller still uses
            return False
    return fails


def draw(seed: int, index: int, options: programs.Options) -> programs.Program:
    return programs.build(programs.random_genome(seed, index, options), options)


def judge_many(indices: list[int], arguments: argparse.Namespace) -> list[Outcome]:
    """The work of one process."""
    torch.set_num_threads(arguments.threads)
    options, compile_function = options_of(arguments), compiler(arguments.compiler)
    outcomes = []
    for index in indices:
        found = judge(draw(arguments.seed, index, options), compile_function, arguments.tolerance)
        outcomes.append(Outcome(found.kind, found.problems, found.eager_error, index))
    return outcomes


def options_of(arguments: argparse.Namespace) -> programs.Options:
    return programs.Options(large=arguments.large, grad=arguments.grad, branches=arguments.branches,
                            max_statements=arguments.statements, sizes=arguments.sizes)


def results(arguments: argparse.Namespace) -> Iterator[Outcome]:
    size = 4 if arguments.large else 20
    indices = list(range(arguments.start, arguments.start + arguments.n))
    chunks = [indices[i:i + size] for i in range(0, len(indices), size)]
    if arguments.jobs == 1:
        for chunk in chunks:
            yield from judge_many(chunk, arguments)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
        for outcomes in pool.map(functools.partial(judge_many, arguments=arguments), chunks):
            yield from outcomes


def summarize(outcomes: Iterable[Outcome], total: int) -> tuple[Counter, list[Outcome], Counter]:
    """How many of each kind, the outcomes to show, and why programs were refused."""
    counts: Counter = Counter()
    reasons: Counter = Counter()
    bad = []
    often = 0.2 if sys.stderr.isatty() else 20.0        # a log needs fewer lines than a terminal
    with tqdm(total=total, unit="program", smoothing=0.05, mininterval=often) as bar:
        for outcome in outcomes:
            counts[outcome.kind] += 1
            counts["errors in eager"] += outcome.eager_error
            if outcome.kind == "unsupported":
                reasons[outcome.problems[0].splitlines()[0][:110]] += 1
            if outcome.kind in ("different", "unstable"):
                bad.append(outcome)
            if outcome.kind not in ("same", "rounded"):
                bar.write(f"program {outcome.index}: {outcome.kind}", file=sys.stderr)
            bar.set_postfix(different=counts["different"], unsupported=counts["unsupported"], refresh=False)
            bar.update()
    return counts, bad, reasons


def show(index: int, arguments: argparse.Namespace, smaller: bool = True) -> None:
    """Print one program, made smaller if it fails."""
    compile_function = compiler(arguments.compiler)
    program = draw(arguments.seed, index, options_of(arguments))
    outcome = judge(program, compile_function, arguments.tolerance)
    if smaller and outcome.kind in ("different", "unsupported"):
        program = shrink(program, fails_like(outcome.kind, compile_function, arguments.tolerance))
        outcome = judge(program, compile_function, arguments.tolerance)
    print(f"\n# program {index} of seed {arguments.seed}: {outcome.kind}")
    for problem in outcome.problems[:5]:
        print("#   " + problem[:300].replace("\n", "\n#   "))
    print(program.source)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--n", type=int, default=1000, help="number of programs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="index of the first program")
    parser.add_argument("--only", type=int, help="replay this program and print it")
    parser.add_argument("--whole", action="store_true", help="with --only: print the program as drawn")
    parser.add_argument("--large", action="store_true", help="shapes beyond the caches")
    parser.add_argument("--grad", action="store_true", help="arguments that require grad, and backward")
    parser.add_argument("--branches", action="store_true", help=".item(), branches on values, checkpoint")
    parser.add_argument("--sizes", action="store_true", help="calls with arguments of other sizes")
    parser.add_argument("--statements", type=int, default=12, help="at most so many statements")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tolerance", action="store_true", help="differences that are rounding are none")
    parser.add_argument("--compiler", default="tracejit", help="tracejit, tracejit:EXECUTOR, identity or module:attribute")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    if arguments.only is not None:
        show(arguments.only, arguments, smaller=not arguments.whole)
        return 0
    counts, bad, reasons = summarize(results(arguments), arguments.n)
    unstable = [o.index for o in bad if o.kind == "unstable"]
    bad = [o for o in bad if o.kind == "different"]
    for outcome in bad[:SHOWN]:
        show(outcome.index, arguments)
    print(f"{arguments.n} programs: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    for reason, n in reasons.most_common(20):
        print(f"  {n:5d} unsupported: {reason}")
    if unstable:
        print("eager differs from itself:", *unstable)
    if bad:
        print("different:", " ".join(str(o.index) for o in bad))
    return 1 if bad or (reasons and not arguments.branches) else 0


if __name__ == "__main__":
    sys.exit(main())
