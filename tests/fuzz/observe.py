"""Everything a caller can see of a program's run, and how two runs differ.

A program is given as `make()`, which returns `(program, caller)`: the function, and what its caller does.
The caller makes arguments, calls through the observer it is given, and may write into arguments and results
between calls. `make` is called once for each run, so that the runs share no tensor.
"""
from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import torch

SPECIALS = (float("nan"), float("inf"), -float("inf"), -0.0)


def data(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of small values, fixed by the seed; one seed in four has NaN, infinities and -0.0 in it."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0 if dtype == torch.uint8 else -4, 9, shape, generator=generator, dtype=dtype)
    value = torch.randn(shape, generator=generator, dtype=dtype if dtype != torch.bfloat16 else torch.float32)
    if seed % 4 == 3 and value.numel() and not dtype.is_complex:
        flat = value.view(-1)
        for n, special in enumerate(SPECIALS):
            flat[(7 * n + seed) % flat.numel()] = special
    return value.to(dtype)


def mentions(text: str, name: str) -> bool:
    """Whether a text uses a name."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) is not None


@dataclass(frozen=True)
class Frozen:
    """What can be seen of one tensor by itself."""
    facts: dict[str, Any]
    value: torch.Tensor


@dataclass
class Moment:
    """What can be seen at one point of a run: after a call, after a write by the caller, or at the end."""
    label: str
    leaves: dict[str, Any]
    sharing: dict[str, Any]
    generator: torch.Tensor
    error: BaseException | None = None


@dataclass
class Observer:
    """Passed to a program's `caller` as `call`. Keeps all tensors alive, so that addresses are distinct."""
    function: Callable
    watched: dict[str, Any] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    calls: int = 0
    around: AbstractContextManager = field(default_factory=nullcontext)    # backward passes

    def __call__(self, *arguments: Any) -> Any:
        number, self.calls = self.calls, self.calls + 1
        result, error = None, None
        try:
            result = self.function(*arguments)
        except Exception as raised:  # its class is part of what is compared, whatever it is
            error = raised
        names = {f"argument{number}.{i}": a for i, a in enumerate(arguments)} | {f"result{number}": result}
        self.watched |= names
        self._record(f"call {number}", names, error)
        return result

    def watch(self, **tensors: torch.Tensor) -> None:
        """Compare these too: memory that arguments are views of, closure tensors, leaves."""
        for name, tensor in tensors.items():
            self.watched[name if name not in self.watched else f"{name}*{self.calls}"] = tensor

    def poke(self, result: Any, number: int) -> None:
        """The caller writes into one tensor of a result."""
        tensors = [leaf for _, leaf in leaves_of(result, "") if isinstance(leaf, torch.Tensor)]
        if not tensors:
            return
        target, error = tensors[number % len(tensors)], None
        try:
            with torch.no_grad():
                target.logical_not_() if target.dtype == torch.bool else target.add_(1)
        except RuntimeError as raised:
            error = raised
        self._record(f"write into result {self.calls - 1}", {}, error)

    def backward(self, result: Any, way: str = "together") -> None:
        """Run backward from what is differentiable in a result; gradients show on the leaves.

        way: "together", from the sum of all; "each", one after another; "twice"; "hooks", from the last alone, with hooks on all;
        "written", from each after the first was written; "overwritten", from each after the arguments were; "detached", from each
        after these were detached in place; "retained", from the last, which leaves gradients of all; "among", the gradients of the
        others from the last; "asked", those of the arguments from the sum of all.
        """
        tensors = [leaf for _, leaf in leaves_of(result, "") if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        tensors = list({id(t): t for t in tensors}.values())
        called: list[int] = []
        found: Any = []
        error = None
        try:
            for n, t in enumerate(tensors if way == "hooks" else ()):
                t.register_hook(lambda g, n=n: called.append(n) if g is not None else None)      # a sibling's, as of split and sort
            with torch.no_grad():
                tensors[0].add_(1) if way == "written" and tensors else None
            arguments = [t for name, value in self.watched.items() if name.startswith("argument") for _, t in leaves_of(value, "")]
            arguments = [t for t in arguments if isinstance(t, torch.Tensor)]
            for t in arguments if way == "detached" else ():
                t.detach_() if not t._is_view() and not t.is_leaf else None
            with torch.no_grad():
                for t in arguments if way == "overwritten" else ():
                    t.add_(1) if t.is_floating_point() else None
            for t in tensors if way == "retained" else ():
                t.retain_grad()
            with self.around:
                if way == "among" and len(tensors) > 1:
                    found = torch.autograd.grad(_losses(tensors, way)[-1], tensors[:-1], allow_unused=True)
                if way == "asked":
                    targets = [t for t in {id(t): t for t in arguments}.values() if t.requires_grad]
                    found = torch.autograd.grad(_losses(tensors, way)[0], targets, allow_unused=True) if tensors and targets else []
                for loss in () if way in ("among", "asked") else _losses([t for t in tensors if t.requires_grad], way):
                    loss.backward()
            found = [t.grad for t in tensors] if way == "retained" else found
        except RuntimeError as raised:
            error = raised
        if tensors:
            self._record(f"backward {self.calls - 1}", {"hooks called": sorted(called), "gradients": found}, error)

    def finish(self) -> list[Moment]:
        self._record("the end", {}, None)
        return self.moments

    def _record(self, label: str, names: dict[str, Any], error: BaseException | None) -> None:
        others = {name: value for name, value in self.watched.items()
                  if label == "the end" or not name.startswith(("argument", "result"))}
        seen = names | others
        named = [item for name, value in self.watched.items() for item in leaves_of(value, name)]
        frozen = {path: freeze(leaf) for name, value in seen.items() for path, leaf in leaves_of(value, name)}
        related = sharing(named) | same_containers(self.watched)
        self.moments.append(Moment(label, frozen, related, torch.get_rng_state(), error))


def _losses(tensors: list[torch.Tensor], way: str) -> list[torch.Tensor]:
    terms = [torch.view_as_real(t).sum() if t.is_complex() else t.sum() for t in tensors]
    if way in ("each", "written", "overwritten", "detached"):
        return terms
    if way in ("hooks", "retained", "among"):
        return terms[-1:]
    return [sum(terms[1:], terms[0])] * (2 if way == "twice" else 1) if terms else []


def leaves_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The tensors and plain values in nested containers, with their paths, and each container's type."""
    if isinstance(value, (list, tuple)):
        yield f"{path}#", type(value).__name__
        for i, item in enumerate(value):
            yield from leaves_of(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        yield f"{path}#", (type(value).__name__, list(value))
        for key, item in value.items():
            yield from leaves_of(item, f"{path}[{key!r}]")
    else:
        yield path, value


def freeze(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    facts = {"type": type(leaf), "dtype": leaf.dtype, "shape": tuple(leaf.shape), "stride": leaf.stride(),
             "requires_grad": leaf.requires_grad, "is_conj": leaf.is_conj(), "is_neg": leaf.is_neg()}
    try:
        facts["is_leaf"] = leaf.is_leaf
    except RuntimeError as error:       # autograd refuses a view whose base was written under it
        return Frozen(facts | {"refused": type(error)}, torch.empty(0))
    if leaf.requires_grad and leaf.is_leaf:
        facts["gradient"] = None if leaf.grad is None else freeze(leaf.grad)
    detached = leaf.detach().resolve_conj().resolve_neg()
    return Frozen(facts, detached.clone(memory_format=torch.contiguous_format))


def sharing(named: list[tuple[str, Any]]) -> dict[str, Any]:
    """For each tensor: the first that is the same object, the first with the same storage object, and the
    first whose memory overlaps it, at what distance in bytes. Equal iff all pairs are related alike."""
    tensors = [(path, t, t.untyped_storage()) for path, t in named if isinstance(t, torch.Tensor)]
    spans = sorted({(s.data_ptr(), s.data_ptr() + s.nbytes()) for _, _, s in tensors if s.nbytes()})
    starts: dict[tuple[int, int], int] = {}
    group, end = 0, -1
    for span in spans:
        if span[0] >= end:
            group, end = span[0], span[1]
        end = max(end, span[1])
        starts[span] = group
    objects: dict[int, str] = {}
    storages: dict[int, str] = {}
    memories: dict[int, tuple[str, int]] = {}
    related = {}
    for path, tensor, storage in tensors:
        same_object = objects.setdefault(id(tensor), path)
        same_storage = storages.setdefault(storage._cdata, path)
        start = starts.get((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        address = storage.data_ptr() + tensor.storage_offset() * tensor.element_size()
        first, origin = memories.setdefault(start, (path, address)) if start is not None else (path, address)
        related[path] = (f"object of {same_object}", f"storage of {same_storage}",
                         f"memory of {first} {address - origin:+d} bytes")
    return related


def same_containers(watched: dict[str, Any]) -> dict[str, Any]:
    """For each list and dict: the first that is the same object."""
    first: dict[int, str] = {}
    related = {}
    pending = list(watched.items())
    while pending:
        path, value = pending.pop(0)
        if isinstance(value, (list, dict)):
            related[f"{path}#"] = (f"object of {first.setdefault(id(value), path)}",)
        if isinstance(value, (list, tuple, dict)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            pending += [(f"{path}[{key!r}]", item) for key, item in items]
    return related


def observe(make: Callable, transform: Callable | None = None, seed: int = 5, around: AbstractContextManager = nullcontext()) -> list[Moment]:
    """Run a program, compiled by `transform` if given, and return everything that could be seen. around: backward passes."""
    program, caller = make()
    observer = Observer(transform(program) if transform else program, around=around)
    torch.manual_seed(seed)
    caller(observer)
    return observer.finish()


def differences(want: list[Moment], got: list[Moment]) -> list[str]:
    """What tells `got` from `want`, in words; empty when a caller could not tell the two runs apart."""
    problems = []
    for a, b in zip(want, got):
        if not isinstance(b.error, type(a.error)):
            return problems + [f"{a.label}: {_error(a.error)} became {_error(b.error)}"]
        if a.label.startswith("backward") and a.error is not None:
            return problems                                    # which gradients were there by then is nobody's promise
        if a.error is not None and a.leaves.get("n[0]") != b.leaves.get("n[0]"):
            return problems                                    # writes to Python state before an error: docs/in_place.md
        problems += [f"{a.label}: {p}" for p in _leaf_differences(a.leaves, b.leaves)]
        if a.sharing != b.sharing and list(a.sharing) == list(b.sharing):
            problems += [f"{a.label}: {path}: {x} became {y}" for path in a.sharing
                         for x, y in zip(a.sharing[path], b.sharing[path]) if x != y]
        if not torch.equal(a.generator, b.generator):
            problems.append(f"{a.label}: generator state differs")
        if problems:
            return problems
    if [m.label for m in want] != [m.label for m in got]:
        problems.append(f"{[m.label for m in want]} became {[m.label for m in got]}")
    return problems


def check(make: Callable, transform: Callable) -> None:
    """For a regression test: paste a program's `make` and assert that it means the same compiled."""
    problems = differences(observe(make), observe(make, transform))
    assert not problems, "\n".join(problems)


def _error(error: BaseException | None) -> str:
    return "no error" if error is None else f"{type(error).__name__}({str(error).splitlines()[:1]})"


def _leaf_differences(want: dict[str, Any], got: dict[str, Any]) -> list[str]:
    if list(want) != list(got):
        return [f"structure {list(want)} became {list(got)}"]
    return [f"{path}: {p}" for path in want for p in _difference(want[path], got[path])]


def _difference(a: Any, b: Any) -> list[str]:
    if not (isinstance(a, Frozen) and isinstance(b, Frozen)):
        return [] if type(a) is type(b) and a == b else [f"{a!r} became {b!r}"]
    facts = [f"{k} {a.facts[k]} became {b.facts.get(k)}" for k in a.facts
             if k != "gradient" and a.facts[k] != b.facts.get(k)]
    if not facts and "gradient" in a.facts:
        facts = [f"gradient: {p}" for p in _difference(a.facts["gradient"], b.facts["gradient"])]
    return facts or value_difference(a.value, b.value)


def value_difference(a: torch.Tensor, b: torch.Tensor) -> list[str]:
    """How two tensors of one shape and dtype differ in value, in words: at most one line."""
    bits_a, bits_b = a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)
    if torch.equal(bits_a, bits_b):
        return []
    a, b = a.reshape(-1), b.reshape(-1)
    if a.is_complex():
        a, b = torch.view_as_real(a).reshape(-1), torch.view_as_real(b).reshape(-1)
    wrong = a != b
    if a.is_floating_point():       # zeros of different sign are different, NaN is NaN whatever its bits
        wrong = (wrong | ((a == 0) & (torch.signbit(a) != torch.signbit(b)))) & ~(a.isnan() & b.isnan())
    if not wrong.any():
        return []
    at = int(wrong.nonzero()[0])
    rtol = 1e-2 if a.dtype == torch.bfloat16 else 1e-5
    close = a.is_floating_point() and torch.allclose(a, b, rtol=rtol, atol=1e-6, equal_nan=True)
    note = " (rounding)" if close else ""
    return [f"{int(wrong.sum())} of {a.numel()} values differ{note}, the first at {at}: "
            f"{a[at:at + 4].tolist()} became {b[at:at + 4].tolist()}"]
