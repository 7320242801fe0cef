"""What tracejit made of a call: regions, what runs one by one and why, copies, guards, and what to change."""
from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Iterator, Sequence

from ..executors.registry import Executor
from ..ir.trace import BoundSymbol, Trace, walk
from .html import folded, framed, trace_html
from .kernels import Kernel, in_bytes, in_time, kernels_of, moved

MOST_OPEN = 20               # a longer part of a page is folded at first


@dataclass(frozen=True)
class Unfused:
    """Calls of one op that PyTorch runs one by one: how many, why, and the user's lines."""

    op: str
    count: int
    why: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Copy:
    """A write to memory that the caller sees: into what, how much, and the mutation that caused it."""

    destination: str
    nbytes: int
    cause: str
    fused: bool


@dataclass(frozen=True, eq=False)
class Explanation:
    """`str` gives text, a notebook shows tables. `traces`: one per stage; empty when the call ran eagerly.

    eager: why the call ran eagerly, "" when it did not; replayed: why it runs as recorded, call by call. guards: the Python state
    that the compiled entry assumes.
    """

    name: str
    eager: str
    traces: tuple[Trace, ...]
    kernels: tuple[Kernel, ...]
    unfused: tuple[Unfused, ...]
    copies: tuple[Copy, ...]
    guards: tuple[str, ...]
    entries: int
    seconds: dict[str, float] = field(default_factory=dict)    # of a launch, by kernel
    replayed: str = ""

    @property
    def advice(self) -> list[str]:
        """What to change, the most important first."""
        return list(_advice(self))

    def tables(self) -> Iterator[tuple[str, tuple[str, ...], list[tuple]]]:
        """(title, columns, rows) of each table that is not empty."""
        yield "kernels", ("kernel", "lines", "moves", "time", "GB/s"), [self._kernel_row(k) for k in self.kernels]
        yield "one by one", ("op", "calls", "why", "lines"), [(u.op, u.count, u.why, ", ".join(u.lines)) for u in self.unfused]
        yield "writes", ("to", "size", "because of", "in a kernel"), [
            (c.destination, in_bytes(c.nbytes), c.cause, "yes" if c.fused else "no") for c in self.copies]
        yield "guards", ("assumes",), [(g,) for g in self.guards]
        yield "stages", ("stage", "calls", "ms"), [
            (t.stage, len(t.bound_symbols), f"{t.seconds * 1e3:.1f}") for t in self.traces]
        yield "advice", ("what to change",), [(a,) for a in self.advice]

    def _kernel_row(self, k: Kernel) -> tuple:
        took = self.seconds.get(k.name, 0.0)
        speed = f"{(k.bytes_read + k.bytes_written) / took / 1e9:.1f}" if took else ""
        return k.name, ", ".join(k.lines), moved(k), in_time(took) if took else "", speed

    @property
    def summary(self) -> str:
        if self.eager:
            return f"runs eagerly: {self.eager}"
        if self.replayed:
            return f"runs as recorded, call by call: {self.replayed}"
        single = _counted(sum(u.count for u in self.unfused), "call")
        return (f"{_counted(len(self.kernels), 'kernel')}, {single} one by one, {_counted(len(self.copies), 'write')}, "
                f"{_counted(self.entries, 'compiled entry', 'compiled entries')}")

    def __str__(self) -> str:
        parts = [f"{self.name}: {self.summary}"]
        for title, columns, rows in self.tables():
            if rows:
                parts += ["", title, *_aligned(columns, rows)]
        return "\n".join(parts)

    def __repr__(self) -> str:
        return f"<explanation of {self.name}: {self.summary}>"

    def _repr_html_(self) -> str:
        body = [_section(title, len(rows), _html_table(columns, rows)) for title, columns, rows in self.tables() if rows]
        sources = [folded(f"source of {k.name}: {', '.join(k.lines)}", f"<pre>{escape(k.source)}</pre>")
                   for k in self.kernels if k.shows_source]
        body += [_section("sources", len(sources), "".join(sources))] if sources else []
        body += [trace_html(t) for t in self.traces[-1:]]
        return framed(self.name, self.summary, body)


def explanation(name: str, eager: str, traces: Sequence[Trace], executors: Sequence[Executor], guards: Sequence[str],
                entries: int, measure: bool, replayed: str) -> Explanation:
    """From what one compile left. measure: time every kernel on made-up inputs."""
    kernels = tuple(kernels_of(list(traces)))
    final = traces[-1].bound_symbols if traces and not (eager or replayed) else ()
    seconds = {k.name: k.seconds() for k in kernels if k.shows_source} if measure else {}
    return Explanation(name, eager, tuple(traces), kernels, tuple(_unfused(final, executors)), tuple(_copies(final)),
                       tuple(guards), entries, seconds, replayed)


def _unfused(calls: Sequence[BoundSymbol], executors: Sequence[Executor]) -> Iterator[Unfused]:
    found: dict[tuple[str, str], list[BoundSymbol]] = {}
    for b in calls:
        if b.is_region or not b.reads and not b.written and b.tensor_args:     # a view costs no kernel
            continue
        why = next(filter(None, (e.why_not(b) for e in executors)), "nothing beside it to share a kernel with")
        found.setdefault((b.sym.name, why), []).append(b)
    for (op, why), same in sorted(found.items(), key=lambda item: -len(item[1])):
        yield Unfused(op, len(same), why, tuple(dict.fromkeys(b.source.short for b in same if b.source.file)))


def _copies(calls: Sequence[BoundSymbol]) -> Iterator[Copy]:
    inside = {id(s) for b in calls if b.is_region for s in b.subsymbols}
    for b in walk(tuple(calls)):
        if b.written and not b.is_region:
            for w in b.written:
                cause = "  ".join(filter(None, (b.comment, b.source.short)))
                yield Copy(repr(w), w.numel * w.dtype.itemsize, cause or b.sym.name, id(b) in inside)


def _advice(e: Explanation) -> Iterator[str]:
    if e.eager:
        yield f"the call cannot be captured, so nothing is compiled: {e.eager}"
    if e.replayed:
        yield f"the call runs as recorded, so nothing is fused: {e.replayed}"
    if e.entries > 8:
        yield f"{e.entries} entries: arguments or state keep changing; `cache_info().retraces` says which"
    for u in e.unfused:
        if u.count >= 4:
            yield f"{u.op} runs {u.count} times one by one ({', '.join(u.lines[:3])}): {u.why}"
    if e.traces and not (e.kernels or e.eager or e.replayed):
        yield "nothing is fused: see `one by one` for the reasons"


def _aligned(columns: tuple[str, ...], rows: list[tuple]) -> list[str]:
    table = [columns, *(tuple(map(str, r)) for r in rows)]
    widths = [max(len(r[n]) for r in table) for n in range(len(columns))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(r, widths)).rstrip() for r in table]


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _section(title: str, count: int, content: str) -> str:
    return folded(f"{title} ({count})", content, unfolded=count <= MOST_OPEN)


def _html_table(columns: tuple[str, ...], rows: list[tuple]) -> str:
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    lines = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in r) + "</tr>" for r in rows)
    return f"<table><tr>{head}</tr>{lines}</table>"
