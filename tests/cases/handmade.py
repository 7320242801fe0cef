"""Traces built by hand: calls and fusion regions that no recording would give."""
import torch

from tracejit.ir.proxy import TensorProxy, contiguous_stride
from tracejit.ir.symbol import Symbol, aten_symbol
from tracejit.ir.trace import BoundSymbol, Modes, SourceLine, Trace

aten = torch.ops.aten
USER = SourceLine("/home/user/model.py", 17, "step")


def tensor(name, shape, storage, *, stride=None, offset=0, dtype=torch.float32):
    """A proxy; contiguous unless `stride` (in elements) is given."""
    stride = contiguous_stride(shape) if stride is None else stride
    return TensorProxy(name, tuple(shape), tuple(stride), dtype, torch.device("cpu"), storage, offset)


def call(overload, args, output=None, *, source=USER, **kwargs):
    """`output = overload(*args, **kwargs)` on the user's line 17; None for a call made for its effect."""
    return BoundSymbol(aten_symbol(overload), tuple(args), kwargs, output, source)


def copy_(target, value, *, source=USER):
    return call(aten.copy_.default, (target, value), target, source=source)


def region(name, *calls, executor="fuser"):
    """A fusion region: reads what its calls read from outside, hands back what they make."""
    made = [o for b in calls for o in b.tensor_outputs if o not in b.tensor_args]
    read = dict.fromkeys(a for b in calls for a in b.tensor_args if a not in made)
    return BoundSymbol(
        Symbol(name, _not_run), tuple(read), {}, made, USER, subsymbols=calls, executor=executor
    )


def _not_run(*args):
    raise AssertionError("a region of a hand-built trace is never run")


def trace(inputs, *calls, output=(), stage="final"):
    return Trace(stage, tuple(inputs), calls, tuple(output), notes={"modes": Modes()})


def unfused(made, stage="reference"):
    """The same calls in the same order without regions: the program before anybody claimed anything."""
    flat = [sub for b in made.bound_symbols for sub in (b.subsymbols if b.is_region else (b,))]
    return made.replace(stage=stage, bound_symbols=tuple(flat))
