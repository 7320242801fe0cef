"""Arguments of a random program: shapes, dtypes, layouts, and how they alias, from call to call."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from tests.fuzz import observe
from tests.fuzz.programs import Call, Options, Scope, Tape

DTYPES = ((120, "float32"), (12, "float64"), (16, "bfloat16"), (20, "int64"), (8, "int32"), (6, "uint8"),
          (10, "bool"), (14, "complex64"))
DIFFERENTIABLE = ((90, "float32"), (10, "float64"))
SMALL = ((12, (4, 4)), (10, (3, 4)), (8, (6,)), (8, (5, 5)), (6, (4,)), (5, (4, 1)), (4, (1, 5)),
         (4, (2, 3, 4)), (3, (2, 3, 2, 2)), (2, ()), (2, (0, 4)), (1, (0,)), (2, (1,)), (4, (6, 6)),
         (3, (2, 4, 3)))
LARGE = ((10, (640, 1024)), (8, (3, 300007)), (6, (1000003,)), (4, (33, 32771)), (4, (1024,)),      # 2-4 MB of float32: L2 has 1-2
         (3, (1024, 1)), (3, (16, 160, 257)), (2, (4, 4)), (2, (400009,)))
CHANGING = (0.5, 0.25, 1.5, -0.75, 0.0, 1e5)                     # an input of the program from its second value on
SCALARS = ((70, ()), (22, (2, 2, 0.5, 3, -1, True)), (8, CHANGING))
OTHER_SIZES = (1, 2, 3, 5, 7, 9, 17, 33, 64, 0)
COUNTED = ("n", "n = [2]")
COUNTS = (3, 4, 5, 6, 7, 2, 1, 0, -1, -5, 100, 2**31, 2**53 + 1)      # what the caller puts into n[0]
BACKWARD = ("together", "together", "each", "twice", "hooks", "written", "overwritten", "detached", "retained", "among", "asked")
SEPARATE, SAME, POOL = "separate", "same object", "a view of the pool"


@dataclass(frozen=True)
class Tensor:
    """One tensor parameter: what every call passes, whatever its layout."""
    name: str
    shape: tuple[int, ...]
    dtype: str
    gradient: str = ""              # "", "leaf" "result" (of an operation outside the program) or "view" (of such a one)


@dataclass(frozen=True)
class Signature:
    tensors: tuple[Tensor, ...]
    packing: str                    # "flat", "list" or "dict": how the last two tensors are passed
    scalar: tuple                   # the values that `s` may have, none where there is no `s`
    outer: tuple[tuple[str, str], ...]      # names outside the program, and the lines that make them: tensors, and `n`, [an integer]

    @property
    def parameters(self) -> tuple[str, ...]:
        names = [t.name for t in self.tensors]
        if self.packing != "flat":
            names = names[:-2] + ["pack"]
        return tuple(names + ["s"] * bool(self.scalar))

    def expressions(self) -> list[str]:
        """How the program's text names each tensor."""
        names = [t.name for t in self.tensors]
        if self.packing == "flat":
            return names
        keys = (0, 1) if self.packing == "list" else ("'k'", "'q'")
        return names[:-2] + [f"pack[{key}]" for key in keys]


def draw_signature(tape: Tape, options: Options) -> Signature:
    shapes = LARGE if options.large else SMALL
    first_shape = tape.weighted(shapes)
    count = tape.weighted(((30, 2), (20, 1), (30, 3), (10, 4)))
    tensors = []
    for name in "abcd"[:count]:
        dtype = tape.weighted(DTYPES)
        gradient = ""
        if options.grad and tape.chance(75):
            dtype, gradient = tape.weighted(DIFFERENTIABLE), tape.pick(("leaf", "result", "result", "view"))
        shape = first_shape if not tensors or tape.chance(70) else tape.weighted(shapes)
        tensors.append(Tensor(name, shape, dtype, gradient))
    packing = tape.weighted(((85, "flat"), (8, "list"), (7, "dict"))) if count > 1 else "flat"
    outer = tuple((name, f"{name} = {_data(seed, first_shape, 'float32')}")
                  for name, seed in (("w", 91), ("W", 92)) if tape.chance(15))
    outer += (COUNTED,) * (options.sizes and tape.chance(30))
    return Signature(tuple(tensors), packing, tape.weighted(SCALARS), outer)


def draw_call(signature: Signature, tape: Tape, number: int, options: Options) -> Call:
    """One call. The first is mostly plain; a later one may repeat the arguments, alias them anew, or have other sizes."""
    if number and tape.chance(75 if signature.scalar == CHANGING or COUNTED in signature.outer else 25):
        again = tuple(f"{t.name}{number} = {t.name}{number - 1}" for t in signature.tensors)
        return Call(again, _pack(signature, number, tape), _after(signature, tape, options))
    if number and options.sizes:
        signature = _resized(signature, tape)
    setup: list[str] = []
    pool = 0
    plain = not tape.chance(65 if number else 50)
    for position, tensor in enumerate(signature.tensors):
        name = f"{tensor.name}{number}"
        earlier = [t for t in signature.tensors[:position]
                   if (t.shape, t.dtype) == (tensor.shape, tensor.dtype)]
        ways = (SEPARATE, SAME) if tensor.gradient else (SEPARATE, SAME, POOL, POOL)
        way = SEPARATE if plain else tape.pick(ways)
        if way == SAME and earlier:
            other = f"{tape.pick(earlier).name}{number}"
            aliases = (other, other, f"{other}.view_as({other})", f"{other}.detach()")
            setup.append(f"{name} = {tape.pick(aliases)}")
        elif way == POOL and tensor.dtype != "bool":
            source, dtype = f"pool{number}", _pool_dtype(signature)
            if not pool:
                pool = _pool_size(signature)
                setup.append(f"{source} = {_data(50 + number, (pool,), dtype)}")
                setup.append(f"call.watch({source}={source})")
            setup.append(f"{name} = {_from_pool(tape, tensor, source, pool, dtype)}")
        else:
            setup += _separate(tape, tensor, name, 10 * number + position, plain)
    return Call(tuple(setup), _pack(signature, number, tape), _after(signature, tape, options))


def _resized(signature: Signature, tape: Tape) -> Signature:
    """With another number wherever a size is that of some dim: what fitted together mostly still does."""
    size, other = tape.pick([n for t in signature.tensors for n in t.shape] or [0]), tape.pick(OTHER_SIZES)
    tensors = (replace(t, shape=tuple(other if n == size else n for n in t.shape)) for t in signature.tensors)
    return replace(signature, tensors=tuple(tensors))


def first_scope(signature: Signature, call: Call, options: Options) -> Scope:
    """The names and values at the start of the program's body, as the first call makes them."""
    namespace = {"torch": torch, "data": observe.data}
    lines = [line for _, line in signature.outer] + list(call.setup)
    exec("\n".join(line for line in lines if not line.startswith("call.")), namespace)
    values = [eval(a, namespace) for a in call.arguments]
    namespace |= dict(zip(signature.parameters, values))
    outer = [name for name, _ in signature.outer if name != COUNTED[0]]
    return Scope(namespace, options, signature.expressions() + outer, ["s"] * bool(signature.scalar),
                 set(outer) | {e for e in signature.expressions() if "[" in e})


def _data(seed: int, shape: tuple[int, ...], dtype: str) -> str:
    return f"data({seed}, {shape}, torch.{dtype})"


def _pack(signature: Signature, number: int, tape: Tape) -> tuple[str, ...]:
    names = [f"{t.name}{number}" for t in signature.tensors]
    if signature.packing == "list":
        names = names[:-2] + [f"[{names[-2]}, {names[-1]}]"]
    elif signature.packing == "dict":
        names = names[:-2] + [f"{{'k': {names[-2]}, 'q': {names[-1]}}}"]
    return tuple(names + ([str(tape.pick(signature.scalar))] if signature.scalar else []))


def _after(signature: Signature, tape: Tape, options: Options) -> tuple[str, ...]:
    lines = [f"call.backward(result, {tape.pick(BACKWARD)!r})"] if options.grad else []
    if tape.chance(35):
        lines.append(f"call.poke(result, {tape.below(4)})")
    if signature.outer and tape.chance(25):
        name, made = tape.pick(signature.outer)
        lines.append(made.replace("data(9", "data(7"))
    if COUNTED in signature.outer and tape.chance(60):
        lines.append(f"n[0] = {tape.pick(COUNTS)}")
    return tuple(lines)


def _separate(tape: Tape, tensor: Tensor, name: str, seed: int, plain: bool) -> list[str]:
    """Memory of its own, mostly contiguous. A base that it is a view of is watched too, and holds at least
    as many elements, so that `resize_` shows no uninitialised memory."""
    stride, extent = draw_layout(tape, tensor.shape) if tape.chance(50) and not plain else (None, 0)
    if stride is None or extent > 4 * (math.prod(tensor.shape) + 16):
        lines, made = [], _data(seed, tensor.shape, tensor.dtype)
    else:
        lines = [f"{name}_base = {_data(seed, (max(extent, math.prod(tensor.shape)),), tensor.dtype)}",
                 f"call.watch({name}_base={name}_base)"]
        made = f"{name}_base.as_strided({tensor.shape}, {stride})"
    if tensor.gradient == "leaf":
        made += ".requires_grad_()"
    elif tensor.gradient == "result":
        lines += [f"{name}_leaf = {made}.requires_grad_()", f"call.watch({name}_leaf={name}_leaf)"]
        made = f"{name}_leaf * 2"
    elif tensor.gradient == "view":
        lines += [f"{name}_leaf = {made}.requires_grad_()", f"{name}_base = torch.stack([{name}_leaf * 2, {name}_leaf * 3])",
                  f"call.watch({name}_leaf={name}_leaf, {name}_base={name}_base)"]
        made = f"{name}_base[1]"
    return lines + [f"{name} = {made}"]


def draw_layout(tape: Tape, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Strides for a shape and the number of elements they span."""
    order = list(range(len(shape)))
    way = tape.pick(("transposed", "sliced", "expanded", "permuted", "padded", "sliced"))
    if way == "transposed":
        order = order[::-1]
    elif way == "permuted" and len(shape) > 1:
        order = order[:1] + order[2:] + order[1:2]      # channels_last for 4 dimensions
    stride, step = [0] * len(shape), 2 if way == "sliced" else 1
    for dim in reversed(order):
        stride[dim] = step
        step *= max(shape[dim], 1) + (1 if way == "padded" else 0)
    if way == "expanded" and shape and tape.chance(60):
        stride[tape.below(len(shape))] = 0
    return tuple(stride), _extent(shape, stride)


def _extent(shape, stride) -> int:
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride))


def _pool_dtype(signature: Signature) -> str:
    kinds = [t.dtype for t in signature.tensors if t.dtype != "bool" and not t.gradient]
    return kinds[0]


def _pool_size(signature: Signature) -> int:
    widest = max(getattr(torch, t.dtype).itemsize * max(math.prod(t.shape), 1) for t in signature.tensors)
    item = getattr(torch, _pool_dtype(signature)).itemsize
    return (widest * 2 // item + 16) // 8 * 8


def _from_pool(tape: Tape, tensor: Tensor, pool: str, size: int, pool_dtype: str) -> str:
    """A view of the call's pool: other offset, strides or dtype, or a second storage over the same bytes."""
    source = pool
    if pool_dtype != "bfloat16" and tape.chance(15):
        source = f"torch.from_numpy({pool}.numpy())"
    if pool_dtype != tensor.dtype:
        source += f".view(torch.{tensor.dtype})"
        size = size * getattr(torch, pool_dtype).itemsize // getattr(torch, tensor.dtype).itemsize
    stride, extent = draw_layout(tape, tensor.shape) if tape.chance(40) else (None, 0)
    if stride is None or extent > size:
        stride = _contiguous(tensor.shape)
        extent = _extent(tensor.shape, stride)
    offset = min(tape.pick((0, 0, 1, 2, tensor.shape[-1] if tensor.shape else 3, size)), size - extent)
    return f"{source}.as_strided({tensor.shape}, {stride}, {offset})"


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride, step = [], 1
    for n in reversed(shape):
        stride.append(step)
        step *= max(n, 1)
    return tuple(reversed(stride))
