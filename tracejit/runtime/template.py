"""What was compiled for open sizes: entries for all sizes for which the relations of the compile hold."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Hashable, Mapping, Optional, Sequence

from ..capture.guards import EntryTable, Guards
from ..capture.inputs import CallInputs
from ..capture.opened import Opened, Opening, OpenSizes
from ..capture.tracer import Capture
from ..errors import UnsupportedError
from ..executors.registry import asked
from ..ir.cached import cached_property
from ..ir.extents import Relations
from ..ir.polynomial import Size
from ..ir.settling import Settling
from ..ir.trace import Trace
from ..options import Options
from .entry import Entry, make_entry


@dataclass(frozen=True, eq=False)
class Template:
    """What `captured` was compiled to."""

    captured: Capture
    final: Trace
    relations: Relations

    @cached_property
    def holds(self) -> Callable[[Mapping[Size, int]], bool]:
        return self.relations.condition()

    def settled(self, values: Sequence[int], inside: bool = False) -> Optional[Trace]:
        """The trace that runs for these sizes, in the order of `Opened.values`; None where the relations do not hold. inside: as of
        `Settling`."""
        sizes = dict(zip(self.relations.sizes, values))
        return Settling(self.relations, sizes, inside).trace(self.final) if self.holds(sizes) else None


class Templates:
    """Of one function."""

    def __init__(self, options: Options) -> None:
        self.options, self.sizes, self.settled = options, OpenSizes(options.dynamic), 0
        self.tables: dict[Hashable, EntryTable] = {}

    def opened(self, call: CallInputs, modes: Hashable) -> Optional[Opened]:
        """The call with its open dims; None if it has none, or if somebody asked takes none."""
        executors = asked(self.options.executors, self.options.executor_options)
        taken = all(e.takes_open_sizes for e in executors) and not self.options.transforms
        return self.sizes.opened(call, modes) if taken else None

    def find(self, opened: Optional[Opened], call: CallInputs) -> tuple[Optional[Entry], Optional[Guards]]:
        """(an entry for the call's sizes, its guards), or (None, None)."""
        table = self.tables.get(opened.key) if opened is not None else None
        templates = table.find(call)[0] if table is not None else None
        for template in templates or ():
            final = template.settled(opened.values)
            if final is not None:
                self.settled += 1
                return make_entry(template.captured, final), template.captured.guards
        return None, None

    def compiled(self, opened: Optional[Opened], call: CallInputs, compile_with: Callable[[Optional[Opening]], tuple[Capture, Any]],
                 failure: type[Exception]) -> tuple[Capture, Any]:
        """What holds for other sizes, too, unless these are needed. `compile_with` lowers what `fits`; it raises UnsupportedError, or
        `failure`."""
        while opened is not None:
            opening = opened.opening(call.tensors)
            relations = opening.relations
            try:
                captured, lowered = compile_with(opening)
            except (UnsupportedError, failure):                # as may be for these sizes alone
                self.sizes.missed(opened)
                break
            if lowered is not None and fits(captured, relations):
                relations.given.clear()
                template = Template(captured, lowered.traces[-1], relations)
                self._add(opened, call, template)
                return captured, replace(lowered, traces=[*lowered.traces[:-1], template.settled(opened.values, inside=True)])
            self.sizes.close(opened, opened.of(relations.needed, relations) or opened.dims)
            opened = self.sizes.opened(call, opened.base[1])
        return compile_with(None)

    def _add(self, opened: Opened, call: CallInputs, template: Template) -> None:
        """Unless one size alone would do."""
        if template.relations.pinned:
            self.sizes.missed(opened)
            return
        table = self.tables.setdefault(opened.key, EntryTable())
        templates = table.find(call)[0]
        if templates is None:
            table.add(replace(template.captured.guards, open=frozenset(opened.tensors)), call, [template])
        else:
            templates.append(template)


def fits(captured: Capture, relations: Relations) -> bool:
    """Can what was captured run for other sizes? Not with gradients, nor where it was needed what a size is."""
    plain = captured.joint is None and not (captured.replay_because or captured.grads or captured.spent or captured.views)
    return plain and not relations.needed and not relations.outlived
