"""Exact comparison of two runs of one call: values to the bit, layout, mutation, identity, sharing."""
import copy

import torch
import torch.utils._pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

import tracejit
from tests.fuzz.rounding import INEXACT

from .harness import relations

VERSIONS = WeakIdKeyDictionary()         # of the tensors that run() was given, before it
INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def clone_call(args, kwargs):
    """Arguments with memory of their own that have the layout, and alias among themselves, as the given ones."""
    memo = {}

    def clone(leaf):
        if isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided:
            return leaf.clone()
        return copy.deepcopy(leaf, memo)

    return pytree.tree_map(clone, (args, kwargs))


def _plain(t):
    if t.layout != torch.strided:
        t = t.to_dense()
    t = t.detach().resolve_conj().resolve_neg().contiguous()
    return torch.view_as_real(t) if t.is_complex() else t


def equal_bits(a, b):
    """The same value in every bit, except that any NaN equals any NaN."""
    a, b = _plain(a), _plain(b)
    if not a.is_floating_point() or a.element_size() not in INTEGER_OF_SIZE:
        return torch.equal(a, b)
    bits = INTEGER_OF_SIZE[a.element_size()]
    equal = a.reshape(-1).view(bits) == b.reshape(-1).view(bits)
    return bool((equal | (torch.isnan(a) & torch.isnan(b)).reshape(-1)).all())


def rounds(jitted):
    """Does a kernel of the latest program compute what the last bits of are nobody's promise?"""
    finals = [*tracejit.last_traces(jitted)[-1:], *jitted.last_backward_traces[-1:]]
    return any(b.sym.packet.rstrip("_") in INEXACT or _scales_halves(b)
               for final in finals for region in final.regions for b in region.subsymbols)


def _scales_halves(b):
    """`a + alpha * b` of halves: eager's vectors round it once, the elements left over twice."""
    return "alpha" in b.kwargs and any(a.dtype in (torch.bfloat16, torch.float16) for a in b.tensor_args)


NEAR = {torch.bfloat16: 2 ** -6, torch.float16: 2 ** -9, torch.float64: 1e-9}


def near(a, b):
    """Equal but for rounding: what compilers with transcendentals and sums of their own promise."""
    if equal_bits(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    finite = a[a.isfinite()].abs()
    share = NEAR.get(a.dtype, 1e-5)
    return torch.allclose(a, b, rtol=share, atol=share * float(finite.max()) / 4 if finite.numel() else 0, equal_nan=True)


def near_or_nearer(call, outcome, call_exact, outcome_exact):
    """A comparison of values: `near`, or at no element further from the result in float64 than eager's of `call` is.

    Where large terms cancel, or eager rounds between steps, eager itself is far off.
    """
    ours, exact = (pytree.tree_leaves((c, o[0])) for c, o in ((call, outcome), (call_exact, outcome_exact)))
    exact_of = {id(t): e for t, e in zip(ours, exact) if isinstance(t, torch.Tensor) and isinstance(e, torch.Tensor)}

    def agree(a, b):
        if near(a, b):
            return True
        e = exact_of.get(id(a))
        if e is None or e.shape != a.shape or not (a.is_floating_point() and e.is_floating_point()):
            return False
        rounding = NEAR.get(a.dtype, 1e-5) * e.abs()
        return bool(((b.double() - e).abs() <= (a.double() - e).abs() + rounding).all())
    return agree


def in_float64(call):
    """The call with every floating-point argument as float64, in memory of its own."""
    return pytree.tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, clone_call(*call))


def tensor_problem(a, b, values=True):
    """How b differs from a, or None. values: False, or what tells whether values agree, by default `equal_bits`."""
    for what in ("dtype", "shape", "layout", "requires_grad"):
        if getattr(a, what) != getattr(b, what):
            return f"{what} {getattr(a, what)} became {getattr(b, what)}"
    if a.layout == torch.strided and a.stride() != b.stride():
        return f"stride {a.stride()} became {b.stride()}"
    if (a.is_conj(), a.is_neg()) != (b.is_conj(), b.is_neg()):
        return "conjugate or negative bit differs"
    if values and not (values if callable(values) else equal_bits)(a, b):
        return f"values differ: {_sample(a)} became {_sample(b)}"
    return None


def _sample(t):
    return _plain(t).reshape(-1)[:6].tolist()


def strided(leaves, name):
    return [(f"{name}{i}", t) for i, t in enumerate(leaves)
            if isinstance(t, torch.Tensor) and t.layout == torch.strided]


def counted(tree):
    """The tensors that count their versions."""
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and not t.is_inference()]


def version_problems(call_want, call_got):
    """Writes that autograd was told of in one call and not in the other: then it would use what was saved before them.

    Told of more, it refuses more: batch_norm updates its statistics without telling it, and tracejit tells it.
    """
    written_want, written_got = ([t._version > VERSIONS[t] for t in counted(call)] for call in (call_want, call_got))
    return [f"input {i}: autograd was told of a write, and is not"
            for i, (a, b) in enumerate(zip(written_want, written_got)) if a and not b]


def run(fn, args, kwargs, seed=0):
    """(result or None, error or None, generator state afterwards) of one call."""
    torch.manual_seed(seed)
    VERSIONS.update((t, t._version) for t in counted((args, kwargs)))
    result = error = None
    try:
        result = fn(*args, **kwargs)
    except Exception as e:  # whatever the op raises is what is compared
        error = e
    return result, error, torch.get_rng_state()


def call_problems(call_want, want, call_got, got, values=True):
    """Problems of `got` against `want`, two results of run() on call_want and call_got = (args, kwargs)."""
    (result_want, error_want, rng_want), (result_got, error_got, rng_got) = want, got
    if type(error_want) is not type(error_got):
        return [f"raised {error_want!r:.300} became {error_got!r:.300}"]
    problems = [] if torch.equal(rng_want, rng_got) else ["generator state differs"]
    inputs_want, inputs_got = pytree.tree_leaves(call_want), pytree.tree_leaves(call_got)
    problems += _leaf_problems(inputs_want, inputs_got, "input", values)
    if error_want is not None:
        return problems
    problems += version_problems(call_want, call_got)
    leaves_want, spec_want = pytree.tree_flatten(result_want)
    leaves_got, spec_got = pytree.tree_flatten(result_got)
    if spec_want != spec_got:
        return problems + [f"structure {spec_want} became {spec_got}"]
    problems += _leaf_problems(leaves_want, leaves_got, "result", values)
    sharing_want = relations(strided(inputs_want, "input") + strided(leaves_want, "result"))
    sharing_got = relations(strided(inputs_got, "input") + strided(leaves_got, "result"))
    problems += [f"sharing lost: {r}" for r in sorted(sharing_want - sharing_got)]
    return problems + [f"sharing gained: {r}" for r in sorted(sharing_got - sharing_want)]


def _leaf_problems(want, got, name, values):
    problems = []
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            problem = tensor_problem(a, b, values)
        else:
            problem = None if type(a) is type(b) and (a == b or a != a) else f"{a!r:.80} became {b!r:.80}"
        if problem:
            problems.append(f"{name} {i}: {problem}")
    return problems
