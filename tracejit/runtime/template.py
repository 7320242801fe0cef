"""What was compiled for open sizes: entries for all sizes for which the relations of the compile hold."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Callable, Hashable, Mapping, Optional, Sequence

from ..capture.changing import Places
from ..capture.counts import Counts
from ..capture.guards import EntryTable, Guards
from ..capture.inputs import CallInputs
from ..capture.keys import freeze
from ..capture.opened import MOST_TRIES, Opened, Opening, OpenSizes
from ..capture.tracer import Capture
from ..errors import UnsupportedError
from ..executors.registry import asked
from ..ir.cached import cached_property
from ..ir.extents import is_extent
from ..ir.polynomial import Polynomial, Size
from ..ir.proxy import TensorProxy
from ..ir.settling import Settling
from ..ir.trees import flat_leaves
from ..options import Options
from .entry import Entry

MOST_SETTLED = 1 << 10       # values of integers of state that an entry keeps programs for
FEW = 2                      # values that an integer of state may have: each is a constant of an entry, which C finds


@dataclass(frozen=True, eq=False)
class Template:
    """What `captured` was compiled to: `lowered`, with the sizes of `opening`."""

    captured: Capture
    lowered: Any
    opening: Opening

    @cached_property
    def holds(self) -> Callable[[Mapping[Size, int]], bool]:
        return self.opening.relations.condition()

    def counts(self, values: Sequence[int]) -> Optional[Counts]:
        """Whether it holds for these sizes of arguments, in the order of `Opened.values`, depends on these; None where no integer of
        state is open."""
        return Counts(self.opening.places, self.holds, dict(zip(self.opening.relations.sizes, values))) if self.opening.places else None

    def entry(self, values: Sequence[int]) -> tuple[Optional[Any], Guards]:
        """(an entry for these sizes of arguments, and the state as it is now; None where the relations do not hold; its guards)."""
        counts = self.counts(values)
        if counts is not None:
            return SettledEntries(self, counts) if counts.hold() else None, replace(self.captured.guards, counts=counts)
        sizes = dict(zip(self.opening.relations.sizes, values))
        return self.settled(sizes)[0] if self.holds(sizes) else None, self.captured.guards

    def settled(self, sizes: Mapping[Size, int], filled: tuple = ()) -> tuple[Entry, list[Polynomial]]:
        """(an entry for these sizes, the extents that it has the values of). filled: outputs that are not among these."""
        final, settling = self.lowered.traces[-1], Settling(self.opening.relations, sizes)
        apart = dict(filled)
        outputs = [0 if k in apart else o for k, o in enumerate(final.output)]
        trace = settling.trace(final.replace(output=tuple(outputs)))
        return Entry(self.captured, trace, self.lowered.backward, bool(self.lowered.replayed), filled), settling.met

    def shown(self, sizes: Mapping[Size, int]) -> Any:
        """The traces, the last one with these sizes."""
        final = Settling(self.opening.relations, sizes, inside=True).trace(self.lowered.traces[-1])
        return replace(self.lowered, traces=[*self.lowered.traces[:-1], final])


class SettledEntries:
    """An entry for all values of integers of Python state: it has programs for the latest. Where the values enter nothing but floats
    and what is stored or returned, one is for all."""

    ready = False                                              # C does not run it

    def __init__(self, template: Template, counts: Counts) -> None:
        self.template, self.counts = template, counts
        self.met: Optional[list[Polynomial]] = None
        self.entries: dict[tuple, Entry] = {}
        output = template.lowered.traces[-1].output
        self.filled = tuple((k, self._value(o.node.p)) for k, o in enumerate(output) if is_extent(o))

    def _value(self, p: Polynomial) -> Callable[[], int]:
        return lambda: p.at(self.counts.now())

    def run(self, inputs: list, call: CallInputs) -> Any:
        sizes = self.counts.now()
        key = tuple([p.at(sizes) for p in self.met]) if self.met is not None else None
        entry = self.entries.pop(key, None)
        if entry is None:
            entry, met = self.template.settled(sizes, self.filled)
            self.met = [p for p in met if p.sizes & self.counts.places.keys()]
            key = tuple([p.at(sizes) for p in self.met])
            while len(self.entries) >= MOST_SETTLED:
                self.entries.pop(next(iter(self.entries)), None)
        self.entries[key] = entry
        return entry.run(inputs, call)


class Templates:
    """Of one function."""

    def __init__(self, options: Options) -> None:
        self.options, self.sizes, self.settled = options, OpenSizes(options.dynamic), 0
        self.tables: dict[Hashable, EntryTable] = {}
        self._values: dict[Hashable, set] = {}                 # by place: integers that stood there at compiles
        self._tries: Counter[Hashable] = Counter()             # by place: compiles that hold for one integer there after all

    @cached_property
    def taken(self) -> bool:
        """Does everybody asked take open sizes?"""
        executors = asked(self.options.executors, self.options.executor_options)
        return all(e.takes_open_sizes for e in executors) and not self.options.transforms

    def opened(self, call: CallInputs, modes: Hashable) -> Optional[Opened]:
        """The call with its open dims; None if it has none."""
        return self.sizes.opened(call, modes) if self.taken else None

    def places(self, table: Optional[EntryTable], sizes: Optional[Opened], call: CallInputs, opened: dict, closed: set) -> Places:
        """As `Places.of`, of the entries of such calls and of those that differ in open sizes alone; without integers where these are
        constants."""
        tables = table, self.tables.get(sizes.key) if sizes is not None else None
        places = Places.of([group for t in tables if t is not None for group in t.groups.values()], call, opened, closed)
        for p in places.integers:
            self._values.setdefault(p.ident, set()).update((p.expected, freeze(p.read())))
        constant = not self.taken or self.sizes.dynamic is False
        return places.without({p.ident for p in places.integers if constant or len(self._values[p.ident]) <= FEW})

    def find(self, opened: Optional[Opened], call: CallInputs) -> tuple[Optional[Any], Optional[Guards]]:
        """(an entry for the call's sizes, its guards), or (None, None)."""
        table = self.tables.get(opened.key) if opened is not None else None
        templates = table.find(call)[0] if table is not None else None
        for template in templates or ():
            entry, guards = template.entry(opened.values)
            if entry is not None:
                self.settled += 1
                return entry, guards
        return None, None

    def compiled(self, opened: Optional[Opened], call: CallInputs, places: Places, closed: set[Hashable],
                 compile_with: Callable[[Places, Optional[Opening]], tuple[Capture, Any]], failure: type[Exception]) -> tuple[Capture, Any, Any]:
        """(what was captured and to what it was lowered, for other sizes, too, unless these are needed; an entry for this call).

        `compile_with` lowers what `fits`; it raises UnsupportedError, or `failure`. closed: places of integers whose values are needed.
        """
        while True:
            places = places.without(closed)
            opening = Opening.of(opened, call.tensors, places.integers)
            try:
                captured, lowered = compile_with(places, opening)
            except (UnsupportedError, failure):                # as may be for these sizes alone
                if opened is None:
                    raise
                self.sizes.missed(opened)
                opened = None
                continue
            if opening is None:
                return captured, lowered, Entry(captured, lowered.traces[-1], lowered.backward, bool(lowered.replayed))
            if lowered is not None and fits(captured, opening):
                return self._made(opened, call, Template(captured, lowered, opening), closed)
            opened = self._close(opened, call, opening, closed)

    def _close(self, opened: Optional[Opened], call: CallInputs, opening: Opening, closed: set[Hashable]) -> Optional[Opened]:
        """What was needed is a constant from now on; if it is not told what was, sizes of arguments are, and then integers of state."""
        needed = opening.relations.needed
        dims = opened.of(needed, opening.relations) if opened is not None else set()
        state = {place.ident for size, place in opening.places.items() if size in needed}
        if not dims and not state:
            dims, state = (opened.dims, state) if opened is not None else (dims, {place.ident for place in opening.places.values()})
        closed |= state
        if opened is None:
            return None
        self.sizes.close(opened, dims)
        return self.sizes.opened(call, opened.base[1])

    def _made(self, opened: Optional[Opened], call: CallInputs, template: Template, closed: set[Hashable]) -> tuple[Capture, Any, Any]:
        """Kept for other sizes of arguments, unless one alone would do."""
        relations, values = template.opening.relations, opened.values if opened is not None else ()
        relations.given.clear()
        entry, guards = template.entry(values)
        pinned = relations.pinned
        self._tries.update(once := [place.ident for size, place in template.opening.places.items() if size in pinned])
        closed.update(ident for ident in once if self._tries[ident] >= MOST_TRIES)
        if opened is not None and pinned - template.opening.places.keys():
            self.sizes.missed(opened)
        elif opened is not None:
            table = self.tables.setdefault(opened.key, EntryTable())
            templates = table.find(call)[0]
            if templates is None:
                table.add(replace(template.captured.guards, open=frozenset(opened.tensors)), call, [template])
            else:
                templates.append(template)
        return replace(template.captured, guards=guards), template.shown({**relations.sizes}), entry


def fits(captured: Capture, opening: Opening) -> bool:
    """Can what was captured run for other sizes? Not with gradients, unless floats of them are all that it takes; nor where it was needed
    what a size is."""
    plain = captured.joint is None and not (captured.replay_because or captured.grads or captured.spent or captured.views)
    return (plain or not _takes_sizes(captured)) and not opening.relations.needed and not opening.relations.outlived


def _takes_sizes(captured: Capture) -> bool:
    """Is a size in the program, beside what it stores and returns?"""
    traces = [captured.calls, captured.ops if captured.joint is None else captured.joint.ops]
    return any(is_extent(x) or isinstance(x, TensorProxy) and x.has_open_sizes
               for trace in traces for b in trace.bound_symbols for x in flat_leaves((b.args, b.kwargs, b.output)))
