"""A program with a backward pass: its forward and backward programs, connected by one `torch.autograd.Function`.

What backward reads is kept by `save_for_backward`, so a write to it in between raises as in eager. The first backward with
tangents of a new layout, or without one of them, records and compiles a program for that.
"""
from __future__ import annotations

import weakref
from typing import Any, Callable, Iterable, Optional, Sequence

import torch

from ..capture.fakes import AsItCame, may_take_history
from ..capture.gradients_inside import USED_UP, has_hooks
from ..capture.joint import Joint, Layout, NoSplit
from ..errors import EagerRefuses, UnsupportedError
from ..executors.compile_lock import compile_lock
from ..ir.proxy import TensorProxy
from ..ir.trace import Trace
from ..torch_private import autocast_is_on, bare_apply, graph_is_kept, node_of_its_own, set_versions
from .program import Program, Replayed

_lock = compile_lock()


class Differentiable:
    """`run(*inputs)` -> the flat results of the program, with gradients.

    forward: gives the results, then what backward keeps, then what it only has to find unwritten; backward: the other half
    (`pipeline.Backward`); recorded: the program as the user called it, replayable under autograd.
    """

    def __init__(self, forward: Program, backward: Any, recorded: Trace) -> None:
        self.program, self.joint, self.recorded = forward, backward.joint, recorded
        self.run, self.forward, self.has_regions = self._run, forward.run, forward.has_regions
        self.results, self.kept, self.outputs = self.joint.results, backward.kept, recorded.output
        self.differentiable = self.joint.differentiable
        shared = {o.storage for o in (*forward.inputs, *forward.outputs[:self.results]) if isinstance(o, TensorProxy)}
        private = {n for n, o in enumerate(forward.outputs[self.results:]) if isinstance(o, TensorProxy) and o.storage not in shared}
        self.parts = [Part(part, self.joint, backward.again, private) for part in backward.parts][::-1]      # forward order
        self._place_views()
        self.written, self.viewed = tuple(self.joint.rebased.values()), self.joint.recording.viewed
        self.late = {t for n, p in enumerate(self.parts) for t in p.targets
                     if t in self.joint.severed or any(t in q.rebased.values() for q in self.parts[:n])}
        self.in_part = tuple(dict.fromkeys(t for p in self.parts for t in p.in_part))
        self.positions = self._positions(recorded)
        self.repeatable = _repeatable(self.joint.ops)
        self._replay: Optional[Program] = None

    def _place_views(self) -> None:
        """Each result that is a view, and that others are computed from, is made by autograd before the first part after it."""
        views = self.joint.recording.inner_views
        for n in sorted(views, key=self.joint.stages.__getitem__):
            source = views[n].source
            part = next(p for p in self.parts if p.stage > self.joint.stages[n])
            part.views.append((n, source if source >= 0 else -1 - self.differentiable.index(-1 - source), views[n].maker()))

    def _positions(self, recorded: Trace) -> list[tuple[int, int]]:
        """(output, differentiable result): where an object stands twice in the output, it is one result."""
        objects = [id(recorded.output[k]) for k in self.differentiable if k < len(recorded.output)]
        return [(k, objects.index(id(o))) for k, o in enumerate(recorded.output) if id(o) in objects]

    def _run(self, *inputs: torch.Tensor) -> tuple:
        views = [k for k in self.written if inputs[k]._is_view()]
        alone = all([k not in self.viewed and may_take_history(inputs[k]) for k in views])
        noticed = any([inputs[k].retains_grad for k in self.written]) or any([_noticed(inputs[k]) for k in self.in_part])
        if noticed or not alone:
            found = self.replay.run(*inputs)                   # autograd takes these to a new history for ops alone, or refuses to
            return Replayed(found) if self.joint.recording.views else found
        call = Call(self, inputs, views)
        made: dict[Any, Any] = {}                              # results by their number, and what makers of views called
        came = {k: AsItCame.apply(inputs[k]) for k in self.late.union(views)}
        for k in self.joint.severed:
            inputs[k].detach_()
        if self.parts[0].views:                                # of what the program leaves: autograd tells views by versions
            with torch.no_grad():
                call.run()
        for part in self.parts:
            for n, source, make in part.views:
                made[n] = make(inputs[source] if source >= 0 else made[-1 - source], made)
            written = [inputs[k] for k in part.rebased.values() if k not in views]
            targets = [made[-1 - t] if t < 0 else came.get(t, inputs[t]) for t in part.targets] or [_NOTHING]
            if written and call.outputs is not None:
                _before_it_is_dirty(*written)
            results = _apply(call, part, *targets, *written)
            if len(results) > 1:                               # autograd calls hooks of the results that are reached, not of all
                results = map(node_of_its_own, results)
            made.update(zip(part.tangents, results))
            for n in [n for n, k in part.rebased.items() if k in views]:
                made[n] = _attached(inputs[part.rebased[n]], made[n])
            if part.inner:
                call.ctx.inner = [weakref.ref(made[n]) for n in part.inner]
            if part.held:
                call.ctx.held = [weakref.ref(made[-1 - t] if t < 0 else inputs[t]) for t, _ in part.held]
            if part.several:
                call.ctx.versions = [t._version for t in call.ctx.watched]
        for n in self.joint.retained:
            made[n].retain_grad()
        outputs, call.outputs, call.extra, call.ctx = call.outputs, None, (), None
        for position, n in self.positions:
            outputs[position] = made[n]
        return tuple(outputs)

    @property
    def replay(self) -> Program:
        """The recorded program, call by call."""
        if self._replay is None:
            self._replay = Program(self.recorded)
        return self._replay

    def one_call(self, plain: bool) -> None:
        """It is more than a region."""

    def direct(self) -> Callable:
        """`run` for after a first one, which verifies how the arguments of regions are laid out."""
        self.forward = self.program.direct()
        return self._run

    def differentiable_gradients(self, part: "Part", inputs: list, versions: list[int], tangents: tuple) -> list:
        """Gradients that carry history themselves: the recorded program once more, under autograd."""
        if not self.repeatable:
            raise UnsupportedError("a second derivative of a program that writes its arguments or draws random numbers: "
                                   "compute it with the function that was jitted")
        if any(t < 0 for t in part.targets):
            raise UnsupportedError("a second derivative of results that are computed from each other: "
                                   "compute it with the function that was jitted")
        if any(t is None or t._version != v for t, v in zip(inputs, versions)):
            raise UnsupportedError("a second derivative needs the arguments of the call, and one is gone or was written: "
                                   "keep them as they came")
        with torch.enable_grad():
            own = [t.view_as(t) if t.requires_grad else t for t in inputs]     # so that hooks of the caller's run once
            outputs = self.replay.run(*own)
            present = [(outputs[self.differentiable[n]], t) for n, t in zip(part.tangents, tangents) if t is not None]
            targets = list(dict.fromkeys(part.targets))
            found = dict(zip(targets, torch.autograd.grad([r for r, _ in present], [own[k] for k in targets],
                                                          [t for _, t in present], create_graph=True, allow_unused=True)))
            return [found.pop(k, None) for k in part.targets]                  # the sum, where there are several


class Part:
    """The backward pass of some of the results: a program for each layout of their tangents that was met.

    rebased: the results that are arguments, and which input each is; in_part: the inputs to which not all of the results lead; own, shared: what is kept of memory that nobody else has, and
    of other memory, and where they stand among `kept`.
    """

    def __init__(self, made: Any, joint: Joint, again: Callable[[int, tuple[Layout, ...]], Any], private: set[int]) -> None:
        self.kept, self.checked, self.tangents = made.half.kept, made.half.checked, made.half.tangents
        self.targets = tuple(joint.targets[t] for t in made.half.targets)
        self.stage, self.again = joint.stages[self.tangents[0]], again
        self.views: list[tuple[int, int, Callable]] = []       # (result, source, maker) of what autograd makes before it
        self.own = [(n, k) for n, k in enumerate(self.kept) if k in private]
        self.shared = [(n, k) for n, k in enumerate(self.kept) if k not in private]
        self.rebased = {n: k for n, k in joint.rebased.items() if n in self.tangents}
        self.inner = joint.inner if len(set(joint.stages)) == 1 else ()
        held = [(t, n) for n in self.tangents for t in joint.recording.held[n]]
        self.held = [(t, self.bits(n for u, n in held if u == t)) for t in dict.fromkeys(t for t, _ in held)]
        self.several = len(self.tangents) > 1
        self.in_part = [t for t in dict.fromkeys(self.targets) if t >= 0 and any(t not in joint.recording.led_to[n] for n in self.tangents)]
        self.sharing = [self.bits(joint.recording.sharing[n]) for n in self.tangents]
        readers = [self.bits(tangents) for tangents in made.half.readers]
        self.readers = [readers[n] for n, _ in self.shared] + readers[len(self.kept):]
        self.once = bool(self.own) or any(self.sharing)
        self.every: tuple[Layout, ...] = tuple(t.stride for t in joint.tangents)
        self.proxies = [joint.tangents[n] for n in self.tangents]
        self.layouts: tuple[Layout, ...] = tuple(p.stride for p in self.proxies)
        self.order = made.half.targets
        self.programs: dict[tuple[Layout, ...], Callable] = {self.layouts: self._verifying(Program(made.traces[-1], True), self.layouts)}

    def bits(self, results: Iterable[int]) -> int:
        """Those among its own."""
        return sum(1 << self.tangents.index(n) for n in set(results) if n in self.tangents)

    def merged(self, own: list, shared: tuple) -> list:
        kept: list = [None] * len(self.kept)
        for tensors, places in ((own, self.own), (shared, self.shared)):
            for t, (n, _) in zip(tensors, places):
                kept[n] = t
        return kept

    def gradients(self, kept: list, tangents: tuple) -> tuple:
        """`kept` is emptied: each tensor is freed after its last use."""
        layouts = tuple([None if t is None else t.stride() for t in tangents])
        run = self.programs.get(layouts)
        if run is None:
            run = self._other(layouts)
        kept += [_ABSENT if t is None else t for t in tangents]
        if not autocast_is_on():
            return run(kept)
        with torch.autocast("cpu", enabled=False):
            return run(kept)

    def _other(self, layouts: tuple[Layout, ...]) -> Callable:
        """A program for other tangents; where none can be made, the one there is, on tangents made to fit."""
        with _lock:
            if layouts not in self.programs:
                now = dict(zip(self.tangents, layouts))
                try:
                    made = self.again(self.stage, tuple(now.get(n, s) for n, s in enumerate(self.every)))
                    self.programs[layouts] = self._fewer(made, layouts)
                except (NoSplit, UnsupportedError, EagerRefuses):
                    self.programs[layouts] = self._fitting
            return self.programs[layouts]

    def _fewer(self, made: Any, layouts: tuple[Layout, ...]) -> Callable:
        """It may take less of what is kept, and give fewer gradients."""
        run = self._verifying(Program(made.traces[-1], True), layouts)
        if made.half.kept == self.kept and made.half.targets == self.order:
            return run
        taken = [self.kept.index(n) for n in made.half.kept]
        given = _places(self.order, made.half.targets)
        count = len(self.kept)

        def fewer(inputs: list) -> tuple:
            inputs[:count] = [inputs[n] for n in taken]
            out = run(inputs)
            return tuple([None if n is None else out[n] for n in given])
        return fewer

    def _verifying(self, program: Program, layouts: tuple[Layout, ...]) -> Callable:
        """The program, verified at its first run and direct after that."""
        if not program.has_regions:
            return program.run
        now = [program.run]

        def run(inputs: list) -> tuple:
            out = now[0](inputs)
            if now[0] is program.run:
                now[0] = program.direct()
            return out
        return run

    def _fitting(self, inputs: list) -> tuple:
        inputs[len(self.kept):] = [torch.empty_strided(p.shape, p.stride, dtype=p.dtype, device=p.device).copy_(0 if t is _ABSENT else t)
                                   for p, t in zip(self.proxies, inputs[len(self.kept):])]
        return self.programs[self.layouts](inputs)


def _places(order: tuple[int, ...], given: tuple[int, ...]) -> list[Optional[int]]:
    """For each target of `order` its place in `given`; None where that has none, or none more."""
    places: dict[int, list[int]] = {}
    for n, target in enumerate(given):
        places.setdefault(target, []).append(n)
    if any(len(found) > order.count(target) for target, found in places.items()):
        raise NoSplit("more gradients than before")
    return [places[t].pop(0) if places.get(t) else None for t in order]


_ABSENT = torch.empty(0)
_NOTHING = torch.empty(0, requires_grad=True)                  # what the gradients of a result go to when they reach nothing


def _noticed(t: torch.Tensor) -> bool:
    """Does it show that autograd comes by, and brings no gradient? It calls hooks, and once alone what a history has kept."""
    return t.requires_grad and (not t.is_leaf or has_hooks(t))


def _repeatable(joint: Trace) -> bool:
    inputs = {p.storage for p in joint.inputs}
    return not any(b.sym.random or any(w.storage in inputs for w in b.written) for b in joint.bound_symbols)


def _before_it_is_dirty(*written: torch.Tensor) -> None:
    """The program has raised their versions, and `mark_dirty` does so again."""
    set_versions(written, tuple([t._version - 1 for t in written]))


def _attached(view: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
    _before_it_is_dirty(view)
    return _Attach.apply(view, computed)


class Call:
    """One forward call on its way through the Functions: the program's inputs go in, its outputs come out."""

    __slots__ = ("of", "inputs", "views", "outputs", "extra", "given", "came", "ctx")

    def __init__(self, of: Differentiable, inputs: tuple, views: list[int]) -> None:
        """`views`: the written inputs that are views; autograd takes them to their history one by one."""
        self.of, self.inputs, self.views, self.outputs, self.ctx = of, inputs, views, None, None

    def run(self) -> None:
        """The whole program. `extra`: what it makes besides results; `given`, `came`: what a second derivative needs of its inputs."""
        of, inputs = self.of, self.inputs
        made = of.forward(*inputs)
        extra = [torch.tensor(t, dtype=torch.float64) if type(t) is float else t for t in made[of.results:]]     # numbers
        self.extra = [t.detach() if t._is_view() else t for t in extra]  # autograd tells no history of a view that a function makes
        self.outputs = list(made[:of.results])
        self.given = [t if t.is_leaf and t.requires_grad else weakref.ref(t) for t in inputs] if of.repeatable else []
        self.came = [t._version for t in inputs] if of.repeatable else []


class _Function(torch.autograd.Function):
    """The results of one part, of what their gradients are with respect to. The first one runs the whole program."""

    @staticmethod
    def forward(ctx: Any, call: Call, part: Part, *targets_and_written: torch.Tensor) -> tuple:
        of, inputs = call.of, call.inputs
        if call.outputs is None:
            call.run()
        made, extra = call.outputs, call.extra
        shared = [*[extra[k] for _, k in part.shared], *[extra[of.kept + n] for n in part.checked]]
        if part.several:                                       # each result by itself, which autograd does not know
            ctx.watched = [t.detach() if t.grad_fn is not None else t for t in shared]
        else:
            ctx.save_for_backward(*shared)
        ctx.own = [extra[k] for _, k in part.own]
        ctx.set_materialize_grads(False)
        ctx.of, ctx.part, ctx.inner, ctx.held, ctx.spent, call.ctx = of, part, (), (), 0, ctx
        ctx.inputs, ctx.came = call.given, call.came
        written = {n: inputs[k] for n, k in part.rebased.items() if k not in call.views}
        ctx.written = len(written)
        if written:
            ctx.mark_dirty(*written.values())
        return tuple([written[n] if n in written else made[of.differentiable[n]].detach() for n in part.tangents])

    @staticmethod
    def backward(ctx: Any, *tangents: Optional[torch.Tensor]) -> tuple:
        of, part = ctx.of, ctx.part
        reached = sum([1 << n for n, t in enumerate(tangents) if t is not None])
        if not reached:                                        # by way of what other results are computed from
            _used_up(ctx, -1)
            return (None, None, *[None] * (max(len(part.targets), 1) + ctx.written))
        saved = _unwritten(ctx, reached)
        if ctx.own is None:
            raise RuntimeError(_FREED)
        if any(t is not None and (t.retains_grad or t._backward_hooks) for t in (r() for r in ctx.inner)):
            raise UnsupportedError("a hook of a result, or its gradient retained, where other results are computed from it: "
                                   "put it on inside the function")
        if any([t is not None and t.is_leaf and readers & reached for t, (_, readers) in zip([r() for r in ctx.held], part.held)]):
            raise RuntimeError(_DETACHED)
        if torch.is_grad_enabled() and part.targets:
            inputs = [t if isinstance(t, torch.Tensor) else t() for t in ctx.inputs]
            return (None, None, *of.differentiable_gradients(part, inputs, ctx.came, tangents))
        kept = part.merged(ctx.own, saved)
        _used_up(ctx, reached)
        return (None, None, *(part.gradients(kept, tangents) or (None,)), *[None] * ctx.written)


_apply = bare_apply(_Function)


def _unwritten(ctx: Any, reached: int) -> Sequence[torch.Tensor]:
    """What is kept of memory that others have; RuntimeError if it is freed, or a reached result needs what was written."""
    part = ctx.part
    if not part.several:
        return ctx.saved_tensors if part.shared or part.checked else ()
    if any([reached >> n & 1 and ctx.spent & used for n, used in enumerate(part.sharing)]):
        raise RuntimeError(_FREED)
    for t, version, readers in zip(ctx.watched, ctx.versions, part.readers):
        if readers & reached and t._version != version:
            raise RuntimeError(f"{_WRITTEN}: [{t.dtype} {list(t.shape)}] is at version {t._version}; expected version {version} instead")
    return ctx.watched


def _used_up(ctx: Any, reached: int) -> None:
    """Free what is kept once every result has been gone through, or can be no more; it is autograd that frees what it saved."""
    part = ctx.part
    if part.once and not graph_is_kept():
        ctx.spent |= reached
        if not part.several or all([ctx.spent & used for used in part.sharing]):
            ctx.own, ctx.watched = None, ()


class _Attach(torch.autograd.Function):
    """Gives a view that was written, and its base with it, the history of what was computed for it."""

    @staticmethod
    def forward(ctx: Any, view: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(view)
        return view

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> tuple:
        return torch.zeros((), dtype=tangent.dtype, device=tangent.device).expand_as(tangent), tangent


class Spent:
    """A program that takes gradients itself: `results` (positions) carry a history that was used up in it."""

    def __init__(self, program: Program, results: tuple[int, ...], final: Trace) -> None:
        self.program, self.results, self.outputs, self.has_regions = program, results, program.outputs, program.has_regions
        self.leaf = next(k for k, p in enumerate(final.inputs) if p.requires_grad)
        self.run = self._around(program.run)

    def _around(self, run: Callable) -> Callable:
        def around(*inputs: torch.Tensor) -> tuple:
            with torch.no_grad():
                outputs = list(run(*inputs))
            with torch.enable_grad():
                for k in self.results:
                    outputs[k] = _UsedUp.apply(inputs[self.leaf], outputs[k])
            return tuple(outputs)
        return around

    def direct(self) -> Callable:
        return self._around(self.program.direct())

    def one_call(self, plain: bool) -> None:
        """It is more than a region."""


class _UsedUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        return result.detach()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> tuple:
        raise RuntimeError(_FREED)


_WRITTEN = "one of the variables needed for gradient computation has been modified by an inplace operation"
_DETACHED = ("Trying to use a saved tensor that has been detached in-place, i.e. with .detach_(). This is not supported, please use "
             "out-of-place `.detach()` instead")
_FREED = (f"{USED_UP} (or directly access saved tensors after they have already been freed). Saved intermediate values "
          "of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you need to backward "
          "through the graph a second time or if you need to access saved tensors after calling backward.")
