"""Symbols: what an operation is called, what runs it, and what it does to memory.

What an ATen op does is read from its schema. `SCHEMAS_THAT_LIE` is the one table of those that do not say all they do
(found by running torch's op database and comparing bytes before and after).
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Callable, Optional

import torch

from .cached import cached_property
from .trees import flat_leaves

aten = torch.ops.aten


def _running_stats(args: tuple) -> tuple[int, ...]:
    """native_batch_norm(input, weight, bias, running_mean, running_var, training, ...) updates its statistics."""
    return tuple(i for i in (3, 4) if args[5] and args[i] is not None)


def _always_statistics(args: tuple) -> tuple[int, ...]:
    """batch_norm_update_stats(input, running_mean, running_var, momentum)"""
    return tuple(i for i in (1, 2) if args[i] is not None)


SCHEMAS_THAT_LIE: dict[Any, Callable[[tuple], tuple[int, ...]]] = {
    aten.native_batch_norm.default: _running_stats,
    aten.cudnn_batch_norm.default: _running_stats,
    aten.miopen_batch_norm.default: _running_stats,
    aten.native_batch_norm.out: _running_stats,
    aten.cudnn_batch_norm.out: _running_stats,
    aten.miopen_batch_norm.out: _running_stats,
    aten.batch_norm_update_stats.default: _always_statistics,
    aten.batch_norm_update_stats.out: _always_statistics,
}

# Ops whose descriptions without data (fake tensors) do not tell the strides that CPU kernels choose for arguments that are
# not contiguous: found by comparing them over torch's op database, with arguments laid out in several ways.
LAYOUTS_THAT_LIE = frozenset("""roll flip channel_shuffle copysign div floor_divide heaviside ldexp log_sigmoid_forward logaddexp
    logaddexp2 logical_and logical_or logical_xor native_batch_norm native_dropout_backward normal special_xlog1py xlogy pow
    _native_batch_norm_legit max_unpool2d isposinf isneginf""".split())

# Ops that fail on the values of their arguments: no schema and no tag says so. Stems of names, so that variants are meant too.
_RAISES_ON_INDEX = ("index", "gather", "scatter", "take", "embedding", "put", "bincount", "nll_loss", "_assert")
_RAISES_ON_ZERO = ("floor_divide", "remainder", "fmod", "div", "pow")
_RAISES_ON_VALUES = ("linalg", "cholesky", "multinomial", "bernoulli", "binomial", "_assert", "masked_scatter", "max_unpool",
                     "searchsorted", "lu_unpack", "ldl_solve", "one_hot", "repeat_interleave", "segment_reduce", "uniform",
                     "histc", "histogram", "poisson", "normal", "margin_loss", "binary_cross_entropy", "masked_fill_value")
_KERNELS_THAT_ASK_FOR_GRAD_MODE = ("mkldnn_rnn_layer",)
_RAISES_ON_OVERFLOW = ("masked_fill", "masked_fill_")


@dataclass(frozen=True)
class Symbol:
    """An operation. `fn` runs it; `overload` is the ATen op whose schema states its effects, if it is one.

    `writes_to` are the positions of plain arguments that an operation without a schema writes;
    `opaque` operations may do anything to memory and are never moved, merged or dropped.
    """

    name: str
    fn: Callable
    overload: Optional[torch._ops.OpOverload] = None
    writes_to: tuple[int, ...] = ()
    random: bool = False
    opaque: bool = False
    untold: bool = False                 # autograd is not told of its writes
    postponed: bool = False              # a copy_ that takes effect when all that its region reads has been read
    numbers: bool = False                # takes and makes Python floats, held as tensors of no dims in float64

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.fn))

    @cached_property
    def packet(self) -> str:
        """`add` of `aten.add.Tensor`."""
        return self.overload.overloadpacket.__name__ if self.overload is not None else self.name

    @cached_property
    def pointwise(self) -> bool:
        """Each element of the result depends on the elements at its index alone."""
        return self.numbers or self.overload is not None and (torch.Tag.pointwise in self.overload.tags
                                              or self.packet.strip("_") in _UNTAGGED_POINTWISE)

    @cached_property
    def reduces(self) -> bool:
        """Elements of the result are made from many of the first argument's."""
        return self.overload is not None and torch.Tag.reduction in self.overload.tags

    @cached_property
    def is_copy(self) -> bool:
        return self.overload is aten.copy_.default

    @cached_property
    def moves_metadata(self) -> bool:
        """Changes shape, strides or storage of its first argument (`unsqueeze_`, `resize_`, `set_`)."""
        return self.overload is not None and (torch.Tag.inplace_view in self.overload.tags or self.packet in _METADATA_MOVERS)

    @cached_property
    def over_storage(self) -> bool:
        """Takes sizes, strides and an offset over the storage of `self`, whatever view of it that is (`as_strided`, `as_strided_scatter`)."""
        return self.overload is not None and {"self", "size", "stride", "storage_offset"} <= (
            names := {a.name for a in self.overload._schema.arguments}) and "source" not in names

    def named(self, args: tuple, kwargs: dict) -> dict[str, Any]:
        """The arguments of a call by the names of the schema."""
        return {**dict(zip((a.name for a in self.overload._schema.arguments), args)), **kwargs}

    @cached_property
    def returns_self(self) -> bool:
        """Writes its first argument, leaves its metadata as they are, and returns it."""
        if self.overload is None or self.moves_metadata or self.overload in SCHEMAS_THAT_LIE:
            return False
        schema = self.overload._schema
        written = [k for k, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
        return written == [0] and str(schema.arguments[0].type) == "Tensor" and len(schema.returns) == 1 and (
            schema.returns[0].alias_info is not None and schema.returns[0].alias_info.is_write)

    @cached_property
    def writes_lists(self) -> bool:
        """Writes the tensors of a list (a foreach op)."""
        return self.overload is not None and any(
            a.alias_info is not None and a.alias_info.is_write and str(a.type).startswith("List") for a in self.overload._schema.arguments)

    def written(self, args: tuple, kwargs: dict, told: bool = False) -> tuple[int, ...]:
        """Positions, in `tree_leaves((args, kwargs))`, of the tensors that a call writes.

        By position, never by object: `x.add_(x)` writes one of two. told: without those that autograd is not told of, as
        eager does not tell it of what a schema does not mark.
        """
        if told and self.untold:
            return ()
        if self.overload is None:
            positions, names = frozenset(self.writes_to), frozenset()
        else:
            positions, names = _schema_writes(self.overload)
            lie = SCHEMAS_THAT_LIE.get(self.overload) if not told else None
            positions |= frozenset(lie(args)) if lie else frozenset()
        if not positions and not names:
            return ()
        found, at = [], 0
        for key, value in (*enumerate(args), *kwargs.items()):
            leaves = flat_leaves((value,))
            if key in positions or key in names:
                found += [at + k for k, leaf in enumerate(leaves) if not isinstance(leaf, (int, float, str, type(None)))]
            at += len(leaves)
        return tuple(found)

    def unread(self, args: tuple, kwargs: dict) -> tuple[int, ...]:
        """Flat positions of tensors of which only the metadata is read (`fill`, `zero`, `ones_like`, `new_empty`)."""
        stem = self.packet.strip("_")
        shape_only = stem in ("fill", "zero") or stem.endswith("_like") or stem.startswith("new_")
        return (0,) if self.overload is not None and shape_only else ()

    def may_raise(self, dtypes: list[torch.dtype]) -> bool:
        """Can the values of the arguments make it fail at run time? (Bad indices, integer division by zero, lapack.)"""
        always, with_integers = _raises(self.packet)
        if self.packet in _RAISES_ON_OVERFLOW:                 # (self, mask, value), or a number in place of the value
            return len(dtypes) == 3 and may_overflow(dtypes[2], dtypes[0])
        return always or with_integers and any(not d.is_floating_point and not d.is_complex for d in dtypes)

    def functional(self) -> Optional["Symbol"]:
        """The out-of-place op with the same arguments (`add_.Tensor` -> `add.Tensor`), or None."""
        plain = _functional_variant(self.overload) if self.overload is not None else None
        return aten_symbol(plain) if plain is not None else None


_UNTAGGED_POINTWISE = frozenset({"fill", "zero", "copy", "to_copy", "clone", "floor_divide", "lshift", "rshift",
                                 "ilshift", "irshift"})        # pointwise without torch's tag
_METADATA_MOVERS = ("resize_", "resize_as_", "set_")     # they have no inplace_view tag


@lru_cache(None)
def may_overflow(source: torch.dtype, target: torch.dtype) -> bool:
    """Are there elements of `source` that torch refuses as a number for `target`? Negative integers it lets wrap around."""
    if target is torch.bool or source is torch.bool or source is target:
        return False
    if source.is_complex:
        return not target.is_complex or source.itemsize > target.itemsize
    if target.is_complex:
        target = target.to_real()
    if not target.is_floating_point:
        return source.is_floating_point or torch.iinfo(source).max > torch.iinfo(target).max
    most = torch.finfo(source).max if source.is_floating_point else torch.iinfo(source).max + 1
    return most > torch.finfo(target).max


@lru_cache(None)
def _raises(stem: str) -> tuple[bool, bool]:
    """Can the values of the arguments make the op fail: any values, and those of integer tensors?"""
    return (any(part in stem for part in _RAISES_ON_VALUES),
            stem.rstrip("_") in _RAISES_ON_ZERO or stem.lstrip("_").startswith(_RAISES_ON_INDEX))


@lru_cache(None)
def _schema_writes(overload) -> tuple[frozenset[int], frozenset[str]]:
    written = [(i, a) for i, a in enumerate(overload._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    if overload.namespace == "c10d":                           # their schemas are silent: they write their first argument
        return frozenset({0}), frozenset()
    return (frozenset(i for i, a in written if not a.kwarg_only), frozenset(a.name for _, a in written))


def _waited(overload: Any) -> Callable:
    """A collective that is over when the call returns: the handle on which a program waits is no tensor, and not in a trace."""
    def collective(*args: Any) -> Any:
        out = overload(*args)
        work = out[-1] if isinstance(out, tuple) else out
        if isinstance(work, torch.ScriptObject):
            work.wait()
        return out
    return collective


@lru_cache(None)
def in_grad_mode(sym: Symbol) -> Symbol:
    """`sym` as called with grad mode on. A few kernels ask for it: there they keep what their backward needs."""
    if sym.packet not in _KERNELS_THAT_ASK_FOR_GRAD_MODE:
        return sym

    def with_grad_mode(*args: Any) -> Any:
        with torch.enable_grad():
            return sym.overload(*(a.detach() if isinstance(a, torch.Tensor) else a for a in args))
    return replace(sym, fn=with_grad_mode)


@lru_cache(None)
def aten_symbol(overload) -> Symbol:
    """The Symbol of an `OpOverload` of any namespace."""
    name = f"{overload.namespace}.{overload.overloadpacket.__name__}.{overload._overloadname}"
    fn = _waited(overload) if overload.namespace == "c10d" else overload
    return Symbol(name, fn, overload, random=torch.Tag.nondeterministic_seeded in overload.tags,
                  opaque=overload.namespace in ("c10d", "_c10d_functional", "fsdp"))


@lru_cache(None)
def _functional_variant(overload):
    """The overload that computes what `overload` writes: same arguments less `out=`, one fresh result per written one."""
    if overload.namespace != "aten" or torch.Tag.nondeterministic_seeded in overload.tags:
        return None
    packet = overload.overloadpacket
    name = packet.__name__
    written = [a for a in overload._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    inputs = [a for a in overload._schema.arguments if not (a.kwarg_only and a in written)]
    if name.startswith("__i"):
        packet = getattr(aten, "__" + name[3:], None)
    elif name.endswith("_"):
        packet = getattr(aten, name[:-1], None)
    elif not all(a.kwarg_only for a in written):
        return None
    if packet is None or packet is aten.copy:
        return None
    wanted = [(a.name, str(a.type)) for a in inputs]
    widens = inputs is not overload._schema.arguments and len(inputs) < len(overload._schema.arguments)
    for candidate in (getattr(packet, o) for o in packet.overloads()):
        schema = candidate._schema
        if ([(a.name, str(a.type)) for a in schema.arguments] == wanted and len(schema.returns) == len(written)
                and not any(a.alias_info for a in (*schema.arguments, *schema.returns))
                and [str(r.type) for r in schema.returns] == [str(a.type) for a in written]
                and (not widens or torch.Tag.pointwise in candidate.tags)):      # others compute in the dtype of out=
            return candidate
    return None
