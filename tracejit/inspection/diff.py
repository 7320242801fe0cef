"""What a pass changed: two traces side by side as a unified diff."""
from __future__ import annotations

import difflib
from dataclasses import dataclass
from html import escape
from typing import Iterator

from ..ir.printer import trace_text
from ..ir.trace import Trace
from .html import framed

_CLASSES = {"+": "add", "-": "del"}


@dataclass(frozen=True)
class TraceDiff:
    """The lines in which `after` differs from `before`, with `context` lines around each; empty when none does.

    `str` gives a unified diff; a notebook shows it coloured.
    """

    before: Trace
    after: Trace
    context: int = 2

    @property
    def lines(self) -> list[str]:
        """Of the diff, its two heading lines first; the traces' own headings are left out."""
        old, new = (trace_text(t).splitlines()[1:] for t in (self.before, self.after))
        return list(difflib.unified_diff(old, new, self.before.stage, self.after.stage, n=self.context, lineterm=""))

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __bool__(self) -> bool:
        return bool(self.lines)

    @property
    def _counts(self) -> str:
        added, removed = (sum(line[:1] == s for line in self.lines[2:]) for s in "+-")
        return f"+{added} \u2212{removed} lines"

    def __repr__(self) -> str:
        return f"<diff {self.before.stage} \u2192 {self.after.stage}: {self._counts}>"

    def _repr_html_(self) -> str:
        return framed(f"{self.before.stage} \u2192 {self.after.stage}", self._counts, self._rows())

    def _rows(self) -> Iterator[str]:
        for line in self.lines[2:]:
            yield f'<div class="row line {_CLASSES.get(line[0], "note")}"><span class="code">{escape(line)}</span></div>'
