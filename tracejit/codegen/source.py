"""A region's kernels -> one C text with one entry, `int tj_region(int threads, void *const *pointers)`."""
from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Hashable, Iterable, Optional, Union

from ..ir.cached import cached_property
from ..ir.proxy import TensorProxy
from ..ir.trace import BoundSymbol
from .batches import batches
from .cpu import MOST_THREADS, Function, function_of, with_helpers, work_of
from .kernel import Buffer, Kernel
from .lower import Note
from .nests import Nests
from .repeats import region_key, renamed
from .sizes import Parted, parted

ENTRY = "tj_region"
BATCH_GRAIN = 4 << 20        # bytes and operations of many small kernels, which gain less from another thread than one large


@dataclass(frozen=True)
class Source:
    """`buffers`: what each pointer of the entry shows, kernel by kernel; index 0 of one is its storage's first element.
    The first of each kernel is None: the table of sizes, of a text that reads them (`codegen.sizes`).
    `made`: the roots of storages that the region makes, results and temporaries."""

    text: str
    body: str                            # the text without the helpers that it calls
    buffers: tuple[Optional[Buffer], ...]
    made: dict[int, TensorProxy]
    kernels: tuple[Kernel, ...]
    checks: bool
    threads: int                         # how many the largest kernel has work for
    functions: dict[str, Kernel]         # their texts, with the kernel of each
    fast: bool = False
    given: frozenset[int] = frozenset()  # positions of the numbers of `body` that the machine code reads from the table of sizes
    extents: tuple[int, ...] = ()        # values of the open ones among them, by number
    flags: tuple[str, ...] = ()          # of the compiler, beside those that all texts have

    @property
    def compiled(self) -> str:
        """The text of the machine code, in which only the names of functions are others: several regions are in one file."""
        return with_helpers(self.parted.reading(self.given)) if self.given else self.text

    @cached_property
    def parted(self) -> Parted:
        """`body` in parts."""
        return parted(self.body)

    @property
    def sizes(self) -> tuple[Union[int, float], ...]:
        """What the table that it reads holds."""
        return self.parted.values(self.given, self.extents)


@dataclass
class Batch:
    """Kernels that are one function and do not depend on each other."""

    name: str
    function: Function
    kernels: list[Kernel]

    @property
    def text(self) -> str:
        return self.function.text.replace("NAME", self.name)

    @property
    def work(self) -> int:
        """Threads' worth of it."""
        return len(self.kernels) * work_of(self.kernels[0]) // BATCH_GRAIN

    @property
    def shared(self) -> bool:
        """Each of its kernels is one thread's work, and together they are more."""
        return len(self.kernels) > 1 and self.function.threads == 1 and self.work > 1

    @property
    def threads(self) -> int:
        return min(self.work, len(self.kernels), MOST_THREADS) if self.shared else self.function.threads


def source_of(region: BoundSymbol, fast: bool = False, note: Optional[Note] = None) -> Source:
    """Raises CannotLower when some call has no lowering. note: as of `lower`."""
    nests = Nests(region, fast=fast, note=note)
    every = _batches([k for _, k in nests.kernels])
    functions = {b.text: b.kernels[0].same_as or b.kernels[0] for b in every}
    kernels = tuple(k for b in every for k in b.kernels)
    body = "\n".join([*functions, *_entry(every)])
    return Source(with_helpers(body), body, _pointers(kernels), nests.made_storages, kernels,
                  any(k.checks for k in kernels), max((b.threads for b in every), default=1),
                  functions, fast)


class Sources:
    """Sources of regions, written once for those that are the same up to the storages that they work on."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Source, list[int], BoundSymbol]] = {}        # the region keeps its constants alive

    def source_of(self, region: BoundSymbol, fast: bool) -> Source:
        """As the function of this name."""
        key, storages = region_key(region)
        known = self._known.get((key, fast))
        if known is None:
            source = source_of(region, fast)
            self._known[key, fast] = source, storages, region
            return source
        source, other = known[0], dict(zip(known[1], storages))
        kernels = tuple(renamed(k, other) for k in source.kernels)
        roots = {o.storage: o for b in reversed(region.subsymbols) for o in b.tensor_outputs}
        return replace(source, kernels=kernels, buffers=_pointers(kernels), made={other[s]: roots[other[s]] for s in source.made})

    def forget(self) -> None:
        self._known.clear()


def _pointers(kernels: Iterable[Kernel]) -> tuple[Optional[Buffer], ...]:
    return tuple(b for k in kernels for b in (None, *k.buffers.values()))


def together(bodies: Iterable[tuple[str, str]]) -> str:
    """One text of several (prefix, body): each body's functions with its prefix."""
    return with_helpers("\n".join(_OWN_NAMES.sub(rf"{prefix}\g<0>", body) for prefix, body in bodies))


_OWN_NAMES = re.compile(rf"\b(?:(?:k|batch)\d+(?:_\w+)?|{ENTRY})\b")


def _batches(kernels: list[Kernel]) -> list[Batch]:
    made: dict[int, Function] = {}
    names: dict[str, str] = {}

    def name_of(k: Kernel) -> str:
        original = k.same_as or k
        if id(original) not in made:
            made[id(original)] = function_of(original)
        text = made[id(original)].text
        return names.setdefault(text, f"k{len(names)}")
    return [Batch(name_of(together[0]), made[id(together[0].same_as or together[0])], together)
            for together in batches(kernels, name_of)]


def _entry(every: list[Batch]) -> list[str]:
    """The entry, below what runs each batch of several kernels."""
    loops, lines, at = [], [f"int {ENTRY}(int nt, void *const *p) {{", "  int bad = 0;"], 0
    for n, b in enumerate(every):
        count, pointers = len(b.kernels), 1 + len(b.function.buffers)
        if count == 1:
            lines.append(f"  bad = {b.name}(nt, p + {at});" + (" if (bad) return bad;" if b.kernels[0].checks else ""))
        else:
            loops += _loop(f"batch{n}", b, count, pointers)
            lines.append(f"  batch{n}(nt, p + {at});")
        at += count * pointers
    return [*loops, *lines, "  return bad;", "}"]


def _loop(name: str, b: Batch, count: int, pointers: int) -> list[str]:
    each = f"{b.name}({{}}, p + i * {pointers});"
    if not b.shared:
        return [f"static void {name}(int nt, void *const *p) {{",
                f"  for (i64 i = 0; i < {count}; i++) {each.format('nt')} }}"]
    return [f"static void {name}_range(void *const *p, i64 lo, i64 hi) {{",
            f"  for (i64 i = lo; i < hi; i++) {each.format(1)} }}",
            f"static void {name}_task(void *p) {{",
            "  i64 t = omp_get_thread_num(), n = omp_get_num_threads();",
            f"  {name}_range(p, {count} * t / n, {count} * (t + 1) / n); }}",
            f"static void {name}(int nt, void *const *p) {{",
            f"  nt = nt > {b.threads} ? {b.threads} : nt;",
            f"  if (nt > 1) GOMP_parallel({name}_task, (void *)p, nt, 0); else {name}_range(p, 0, {count}); }}"]
