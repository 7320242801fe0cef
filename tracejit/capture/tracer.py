"""Capture: one run of the user's function on fakes, recorded at two levels.

In: a function and the arguments of a call. Out: a `Capture`: the function-level trace, the ATen trace below it, where
each input is found at later calls, what is guarded, and what the program wrote to Python state.
Guaranteed: no real tensor was read or written, no generator advanced, and Python state is as it was.
"""
from __future__ import annotations

import keyword
import re
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Optional

import torch

from ..errors import UnsupportedError, located
from ..ir.extents import Node, as_extent, extent_of, is_extent, settled
from ..ir.printer import OWN_NAMES, looks_internal
from ..ir.proxy import TensorProxy
from ..ir.trace import Trace
from ..torch_private import unseen_by_function_modes
from .counts import FloatOf
from .fakes import NEEDS_DATA, Fakes, is_fake, quiet_logs, real_tensors, why_not_found
from .function_level import WRAPPED, FunctionLevel, function_level
from .changing import Places
from .collector import collector_paused
from .guards import ARGUMENT, GRAD, NUMBER, STATE, Guards, InputSource, viewed_apart
from .gradients_inside import refuse_hidden_hooks, used_up
from .histories import MADE_HERE, Start, history, shown_leaves
from .hook import set_profile
from .inputs import CallInputs, any_overlap, argument_names
from .joint import Joint, NoSplit, Recording, refuse_derivatives, refuse_hooks_on_results, refuse_what_aliases
from .leaving import is_opened, raises_after_a_move, refuse_to_leave
from .lines import defined_at, made_at, stored_at, user_frame
from .modes import global_settings, refuse_changed_settings, restore_settings
from .numbers import Floats, Number, NumberNode, number_of
from .opened import Opening
from .reads import StateReads
from .recorder import Recorder, current_modes
from .result_views import ResultView
from .structure import Structure, flatten
from .warned import WARN, Hearing, Warned, hearing

AUTOGRAD = "autograd"


@dataclass(frozen=True, eq=False)
class StateEffect:
    """A write to Python state: outputs [start, stop) of the trace, put together by `structure`, are what it stores."""

    write: Any
    structure: Structure
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Capture:
    calls: Trace                         # as the user called it, replayable under autograd
    ops: Trace                           # the ATen calls
    structure: Structure                 # of the result: outputs [0, results)
    results: int
    effects: tuple[StateEffect, ...]
    guards: Guards
    replay_because: str                  # why the ATen calls do not tell the whole program, or ""
    grads: tuple[tuple[int, int], ...] = ()       # (input, output): the new `.grad` of an input
    spent: tuple[int, ...] = ()          # results whose history was used up within the call
    joint: Optional[Joint] = None        # the ATen calls of forward and backward, when results carry gradients
    views: tuple[ResultView, ...] = ()   # results that are made again, under autograd, from what they view
    unnamed: str = ""                    # why a replay is impossible, or ""
    defined: str = ""                    # the line of the function
    warned: tuple[Warned, ...] = ()      # what each call warns of
    eager: Optional[Callable] = None     # the function, if it warns


def capture(fn: Callable, call: CallInputs, name: str, places: Places = Places(), opening: Optional[Opening] = None) -> Capture:
    """Record one call. `places`: where numbers stand of which the values are to be left open; `opening`: sizes that are.

    UnsupportedError when the recording cannot be trusted; errors of the program come through.
    """
    recording = _Capture(fn, call, name, opening)
    try:
        numbers = recording.number_inputs(places)
        with places.hold(numbers, opening.state if opening is not None else [], call) as (args, kwargs):
            recorded = recording.run(*((args, kwargs) if opening is None else opening.into(args, kwargs)))
        return replace(recorded, guards=places.left_out(recorded.guards, numbers, call)) if places.all else recorded
    finally:
        recording.close()


class _Capture:
    def __init__(self, fn: Callable, call: CallInputs, name: str, opening: Optional[Opening]) -> None:
        self.fn, self.inputs, self.name, self.opening = fn, call, name, opening
        self.fakes = Fakes(opening.shapes if opening is not None else None)
        self.level = FunctionLevel(self.fakes, self.add_input, lambda: self.watching())
        self.tensors: list[torch.Tensor] = []
        self.proxies: list[TensorProxy] = []
        self.sources: list[InputSource] = []
        self.numbers: list[tuple] = []                         # (value, source, proxy) of inputs that are floats at first
        self.state = opening.places if opening is not None else {}    # where integers stand that are open, by size
        self.start_grad: dict[int, Optional[torch.Tensor]] = {}       # id(fake) -> its `.grad` at first
        self.start: dict[int, Start] = {}                      # id(fake) -> its history at first
        self.taken = {*OWN_NAMES, name}
        self.modes = current_modes()

    def run(self, args: tuple, kwargs: dict) -> Capture:
        self.given = args, kwargs
        self.reads = StateReads(self.fn, [(o, f"argument {k}") for k, o in enumerate(self.inputs.objects)])
        self.reads.adopt_call(*self.given)
        self.arguments = argument_names(self.fn, self.inputs)
        for k, t in enumerate(self.inputs.tensors):
            self.reads.watch_tensor(t, self.arguments[k])
            self.add_input(t)
        for number in self.numbers:
            self.add_number(*number)
        if self.opening is not None:
            self.opening.relations.floats = Floats(self.state.keys(), self.float_input)
        self.hearing = Hearing(self.level, self.reads.happens_once)
        generator, settings, hook = torch.get_rng_state(), global_settings(), sys.getprofile()
        try:
            with quiet_logs():
                result = self.record()
            generator = self.checked_generator(generator)
            refuse_changed_settings(settings)
            return self.finish(result)
        finally:
            set_profile(hook)                                  # an interrupt may come when ours is on, and nothing yet to take it off
            restore_settings(settings)
            self.reads.rollback()
            torch.set_rng_state(generator)
            if self.modes.autocast is not None:
                torch.clear_autocast_cache()                   # it may hold fakes

    def close(self) -> None:
        """Let go of everything, cycles too: arguments and results are the caller's."""
        if self.opening is not None:
            self.opening.relations.floats = None
        for part in (self.level.recorder, self.level, self.__dict__.get("reads"), self):
            if part is not None:
                part.__dict__.clear()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The hook on again, inside a call for which it is off."""
        sys.setprofile(self.hook)
        try:
            yield
        finally:
            sys.setprofile(None)

    def record(self) -> Any:
        try:
            with collector_paused(), WRAPPED.on(), WARN.on(), self.reads, function_level(self.level), hearing(self.hearing):
                self.hook = sys.getprofile()
                return self.fn(*self.given[0], **self.given[1])
        except NEEDS_DATA as e:
            raise UnsupportedError("the program needs the values of a tensor, which a trace does not have "
                                   f"({type(e).__name__}): keep them in tensors (torch.where instead of `if`, sizes that do "
                                   "not depend on data), or read them outside", where=user_frame(e)) from None
        except UnsupportedError as e:
            e.place(user_frame(e))
            raise

    def checked_generator(self, before: torch.Tensor) -> torch.Tensor:
        """The state to leave. Fakes draw nothing: one that moved means that the function sets it, or that other threads draw
        (a generator that the function sets from Python was refused already)."""
        now = torch.get_rng_state()
        if not torch.equal(before, now) and threading.active_count() == 1:
            raise UnsupportedError("the function sets the state of the random generator: seed around the call")
        return now

    # ------------------------------------------------------------ inputs

    def add_input(self, real: torch.Tensor) -> torch.Tensor:
        """A real tensor that the program uses for the first time becomes an input, found by its place."""
        index = len(self.tensors)
        with unseen_by_function_modes():
            source, name = self.find_source(real, index)
            fake = self.fakes.find(real)
            fake = self.fakes.make(real) if fake is None else fake
            self.tensors.append(real)
            self.sources.append(source)
            self.level.named.add(id(fake))
            self.start[id(fake)] = Start.of(fake)
            self.start_grad[id(fake)] = self.fakes.first_grad(fake)
            self.proxies.append(self.level.recorder.new_proxy(fake, self.unique(name)))
        return fake

    def number_inputs(self, places: Places) -> list[Number]:
        """An input for each place that holds a float whose value is left open, and a number to stand there."""
        recorder = self.level.recorder
        self.numbers = [self.number_at(location) for location in places.floats]
        return [Number(NumberNode(p, recorder.number, recorder.refuse, s.location.read(self.inputs.roots))) for _, s, p in self.numbers]

    def number_at(self, location: Any) -> tuple[torch.Tensor, InputSource, TensorProxy]:
        with real_tensors():
            value = torch.zeros((), dtype=torch.float64, device="cpu")
            proxy = self.level.recorder.new_proxy(self.fakes.make(value), self.unique(location.path))
        return value, InputSource(NUMBER, location=location), replace(proxy, number=True)

    def add_number(self, value: torch.Tensor, source: InputSource, proxy: TensorProxy) -> None:
        for inputs, new in ((self.tensors, value), (self.sources, source), (self.proxies, proxy)):
            inputs.append(new)
        fake = self.fakes.find(value)
        self.start[id(fake)], self.start_grad[id(fake)] = Start.of(fake), None

    def float_input(self, node: Node) -> NumberNode:
        """An input for the float of an integer that is open."""
        number, recorder = self.number_at(FloatOf(node.p, self.state)), self.level.recorder
        self.add_number(*number)
        return NumberNode(number[-1], recorder.number, recorder.refuse, float(node.value), extent_of(node.p, node.relations))

    def find_source(self, real: torch.Tensor, index: int) -> tuple[InputSource, str]:
        if index < len(self.inputs.tensors):
            return InputSource(ARGUMENT, index), self.arguments[index]
        for k, t in enumerate(self.tensors):
            if t.is_leaf and t.grad is real:
                return InputSource(GRAD, k), f"{self.proxies[k].name}_grad"
        location = self.reads.locate(real)
        if location is None:
            raise UnsupportedError(why_not_found(real))
        return InputSource(STATE, location=location), location.path

    def unique(self, path: str) -> str:
        name = re.sub(r"\W", "_", path).strip("_") or "x"
        name = f"in_{name}" if name[0].isdigit() or keyword.iskeyword(name) or looks_internal(name) else name
        candidate, n = name, 1
        while candidate in self.taken:
            candidate, n = f"{name}_{n}", n + 1
        self.taken.add(candidate)
        return candidate

    # ------------------------------------------------------------ results

    def finish(self, result: Any) -> Capture:
        if self.level.recorder.refused is not None:            # the program caught it
            raise self.level.recorder.refused
        if self.reads.asks_classes and (self.numbers or any(b.sym.numbers for b in self.level.recorder.bound_symbols)):
            raise UnsupportedError("a number whose class the program may ask for: keep it a tensor, without .item()",
                                   where=self.reads.asks_classes)
        if self.reads.asks_classes and self.opening is not None and self.opening.relations.given:
            raise UnsupportedError("sizes that are open, and a class that the program may ask for", where=self.reads.asks_classes)
        if self.level.recorder.half_done:
            raise UnsupportedError(f"the program catches an error of {self.level.recorder.half_done}, which writes many tensors: "
                                   "catch it around the jitted function")
        writes, outputs = self.reads.writes(result), []
        linked = bool(writes) and writes[-1].how == "result"
        again = self.level.checkpointed and not self.level.takes_gradients     # by a backward pass that is yet to come
        if self.level.draws_again or again and (len(writes) > linked or any(
                w.storage in self.level.read_again for b in self.level.recorder.bound_symbols for w in b.written)):
            raise UnsupportedError("checkpoint runs a function again in backward that writes or draws random numbers: "
                                   "leave checkpoint out; the option recompute='always' spares memory")
        structure = self.take(None if linked else result, outputs)
        results, effects = len(outputs), []
        for write in writes:
            start = len(outputs)
            effects.append(StateEffect(replace(write, value=None), self.take(write.value, outputs), start, len(outputs)))
        self.level.recorder.remade.met(outputs)
        because, unnamed, grads, spent = self.replay_reason(*shown_leaves(outputs)), "", (), ()
        if self.level.unnamed:
            unnamed = f"Nor can the call run as recorded: {self.level.unnamed}"
        if self.level.takes_gradients and because in ("", AUTOGRAD):
            because, grads, spent = self.whole_step(outputs)
        recorder = self.level.recorder
        now = tuple(map(recorder.named, self.without_history(outputs)))
        objects = tuple(recorder.object_proxy(o) if isinstance(o, torch.Tensor) else number_of(o) or o for o in outputs)
        notes = {"modes": self.modes}
        inputs = tuple(self.proxies)
        calls = Trace("calls", inputs, tuple(self.level.calls), objects, self.name, notes=notes)
        ops = Trace("ops", inputs, tuple(recorder.bound_symbols), now, self.name, previous="calls", notes=notes)
        joint, views = None, ()
        if because == AUTOGRAD:
            joint, views, because = self.join(ops, outputs)
        if because and (unnamed or again):
            raise UnsupportedError(f"{because}\n{unnamed or 'Nor can the call run as recorded: checkpoint acts on what autograd keeps'}")
        return Capture(calls, ops, structure, results, tuple(effects), self.guards(ops), because, grads, spent, joint, views, unnamed,
                       defined_at(self.fn), tuple(self.hearing.found), self.fn if self.hearing.found else None)

    def without_history(self, outputs: list) -> list:
        """Where metadata moved, views are told by what they lie in; those that are detached from an input are detached once more."""
        recorder = self.level.recorder
        homes = {p.storage for p in self.proxies if p.requires_grad} & recorder.moved_storages
        moved = {id(o): o for o in outputs if homes and isinstance(o, torch.Tensor) and not o.requires_grad
                 and self.fakes.real_of(o) is None and recorder.proxy(o).storage in homes}
        with self.fakes.mode, recorder:
            detached = {key: torch.ops.aten.detach.default(o) for key, o in moved.items()}
        return [detached.get(id(o), o) for o in outputs]

    def join(self, ops: Trace, outputs: list) -> tuple[Optional[Joint], tuple, str]:
        """(the recording with its backward pass, results that are views, why there are none); no recording where no other
        result has history."""
        level, fakes = self.level, [self.fakes.find(t) for t in self.tensors]
        try:
            if self.modes.autocast is not None and self.modes.autocast[2]:
                raise NoSplit("autocast around the call keeps casts of weights for later calls: set cache_enabled=False")
            if level.whole:
                raise NoSplit(f"{level.whole.sym.name} is recorded as one call, without a backward pass: call it outside of the jitted "
                              "function, or torch.linalg.vector_norm for the norm of all elements", where=str(level.whole.source))
            recording = Recording(level.recorder, ops, outputs, fakes, [self.start[id(f)] for f in fakes], self.unique,
                                  level.asked_at)
            if recording.rebased and (level.unnamed or self.modes.autocast is not None):
                storage = ops.inputs[next(iter(recording.rebased.values()))].storage
                raise NoSplit("an argument that may be a view at a later call is written with history: write to a copy",
                              where=stored_at(ops.bound_symbols, storage))
            refuse_what_aliases(recording)
            refuse_derivatives(recording)
            refuse_hooks_on_results(recording, level.hooked)
            if level.checkpointed and recording.inner:         # their tangents are laid out in many ways, and it runs for one
                raise NoSplit("checkpoint, and results that are computed from each other: return a copy, as .clone() makes one")
            joint = None
            if recording.differentiable:
                calls_back = level.calls_back or level.hooked or level.checkpointed
                joint = self.with_user_code(recording) if calls_back else recording.joint()
        except NoSplit as why:
            why.place(defined_at(self.fn))
            return None, (), f"{AUTOGRAD}: {why}"
        self.fakes.forget()
        return joint, recording.views, ""

    def whole_step(self, outputs: list) -> tuple[str, tuple, tuple]:
        """(why a call that takes gradients must be replayed, the `.grad` that it leaves, the results that it used up)."""
        fakes = [self.fakes.find(t) for t in self.tensors]
        grads: list[tuple[int, int]] = []
        try:
            for k, f in enumerate(fakes):
                if self.start[id(f)].differs(f):
                    raise NoSplit("an argument changes its autograd history: write to a copy",
                                  where=stored_at(self.level.recorder.bound_symbols, self.proxies[k].storage))
            refuse_hidden_hooks(self.level, self.tensors)
            for k, f in enumerate(fakes):
                if f.is_leaf and f.grad is not self.start_grad[id(f)]:
                    grads.append((k, len(outputs)))
                    outputs.append(f.grad)
                    if self.start_grad[id(f)] is None:
                        self.level.host_reads.append(("grad", self.tensors[k], None))
                if f.requires_grad:
                    self.level.host_reads.append(("hooks", self.tensors[k], False))
            spent = used_up(outputs, fakes, self.made_at)
        except NoSplit as why:
            why.place(self.level.takes_gradients_at)
            del outputs[len(outputs) - len(grads):]
            return f"{self.level.takes_gradients}: {why}", (), ()
        return "", tuple(grads), spent

    def with_user_code(self, recording: Recording) -> Joint:
        """The backward pass runs code of the user's: on fakes, and watched as the forward pass was. (What checkpoint runs
        again has been watched; it sets the state of the generator, which nothing in it uses.)"""
        def record(hook: Callable) -> Joint:
            def run(recorder: Recorder, backward: Callable[[], list]) -> list:
                self.level.recorder, self.level.on_new_input, self.level.in_backward = recorder, recorder.on_new_input, True
                recorder.source = self.level.line_of_call
                with WRAPPED.on(), WARN.on(), function_level(self.level), hearing(self.hearing):
                    sys.setprofile(hook)
                    try:
                        return backward()
                    finally:
                        sys.setprofile(None)
            return recording.joint(run=run)
        try:
            if not self.level.calls_back and not self.level.hooked:
                return record(lambda *event: None)             # a hook tells the recorder that the user's code runs
            return self.reads.watch_again(record)
        except UnsupportedError as error:
            raise NoSplit.of(error) from error

    def made_at(self, t: torch.Tensor) -> str:
        """The line of the call that makes this fake."""
        return made_at(self.level.recorder.bound_symbols, self.level.recorder.proxy(t))

    def take(self, value: Any, outputs: list) -> Structure:
        """Flatten a result or a stored value into `outputs`, its tensors as fakes."""
        leaves, structure = flatten(value, lambda x: is_opened(x, self.reads))
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                fake = leaf if is_fake(leaf) else self.fakes.find(leaf)
                leaf = self.add_input(leaf) if fake is None else fake
                if isinstance(leaf, torch.nn.Parameter) and self.fakes.real_of(leaf) is None:
                    raise UnsupportedError("a Parameter made by the function leaves it: "
                                           "make parameters outside, or return a tensor")
            elif is_extent(leaf) and leaf.node.p.sizes & self.state.keys():
                leaf = as_extent(leaf)
            else:
                leaf = settled(leaf)
                refuse_to_leave(leaf, self.reads)
            outputs.append(leaf)
        for held in structure.held():
            refuse_to_leave(held, self.reads)
        return structure

    def guards(self, ops: Trace) -> Guards:
        index, reads = {id(t): k for k, t in enumerate(self.tensors)}, [*self.level.host_reads, *viewed_apart(ops, self.tensors)]
        if any(id(t) not in index for _, t, _ in reads):
            raise UnsupportedError("a property was read of a tensor that is no input: read it outside")
        host = dict.fromkeys((what, index[id(t)]) for what, t, _ in reads)
        return Guards(tuple(self.sources), tuple(self.reads.locations), tuple(host))

    def replay_reason(self, results: set[int], viewed: set[int]) -> str:
        """Why the program must be replayed call by call under autograd: it built or used autograd history. As of `shown_leaves`."""
        level, defined = self.level, defined_at(self.fn)
        because = level.needs_replay
        if any_overlap(self.tensors):                          # as from numpy: fakes do not show it, eager's order is right
            because = located("two storages over the same memory: pass one of them", defined)
        late = raises_after_a_move(level.recorder.bound_symbols, {p.storage for p in self.proxies})
        if late is not None:
            because = because or located("a call that may raise comes after an argument's metadata moved: check before", str(late.source))
        if level.recorder.remade.lost:
            because = because or located("a view of a leaf that is a view itself is used after a write: detach it", defined)
        for t, _ in level.recorder.kept:
            start = self.start.get(id(t), MADE_HERE)
            if history(t) is not start.history:
                because = because or AUTOGRAD
            elif t.requires_grad != start.requires_grad and t.is_leaf:
                seen = id(t) in self.start or id(t) in results | viewed
                if seen and not because or id(t) in viewed and because == AUTOGRAD:
                    because = located("requires_grad is changed: set it outside", self.made_at(t) or defined)
                because = because or AUTOGRAD
        return because
