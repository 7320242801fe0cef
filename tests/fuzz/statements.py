"""The statements of random programs: templates, and what may fill their places.

A template's places are letters in braces. The first that names a tensor is the *subject*; others fit it.

    x f g k s2  any tensor; a floating, integral, complex, or small square floating one
    w u r i     a tensor to write; another; one that may be assigned to; an integral one of those
    C           a contiguous tensor to write: resizing an expanded one would show uninitialised memory
    y q         an operand that broadcasts to the subject; one of just its shape and dtype
    v           an operand whose values can be copied into the subject
    m           a mask of the subject's shape
    n N         a small index tensor for dimension 0 of the subject; one with negative indices
    d e c p     dimensions, a number, a small natural number
    j h a l     an index expression, sizes, a dtype of the same width, a dtype for a cast
    P S E E2 R  arguments for permute, as_strided, expand (twice) and repeat
    o t         a new name, another new name
"""
from __future__ import annotations

import re
import textwrap
from typing import Any, Callable

import torch
import torch.utils.checkpoint

from tests.fuzz.observe import mentions
from tests.fuzz.programs import Scope, Statement, Tape

VIEWS = """
{o} = {x}[{j}] | {o} = {x}[{j}] | {o} = {x}[{j}] | {o} = {x}.t() | {o} = {x}.transpose({d}, {e})
{o} = {x}.permute({P}) | {o} = {x}.unsqueeze({d}) | {o} = {x}.squeeze() | {o} = {x}.squeeze({d})
{o} = {x}[:1].expand({E}) | {o} = {x}.view(-1) | {o} = {x}.reshape(-1) | {o} = {x}.view({h})
{o} = {x}.reshape({h}) | {o} = {x}.flatten() | {o} = {x}.unfold({d}, 2, 1) | {o} = {x}.diagonal()
{o} = {x}.narrow({d}, 0, 2) | {o} = {x}.select({d}, -1) | {o}, {t} = {x}.split([1, 3], {d})
{o}, {t} = {x}.chunk(2, {d}) | {o} = {x}[-3:].unbind()[0] | {o} = {x}.as_strided({S}) | {o} = {x}.view({a})
{o} = {x}.view({a}) | {o} = {x}.detach() | {o} = {x}.data | {o} = {x}.movedim({d}, {e})
{o} = {x}.contiguous() | {o} = {x}.mT | {o} = {x}.view_as({x}) | {o} = {x}.expand(2, {E2}) | {o} = {k}.real
{o} = {k}.imag | {o} = {k}.conj() | {o} = torch.view_as_real({k}) | {o} = {x}.swapaxes({d}, {e})
{o} = {x}.unflatten(0, (-1, 1)) | {o} = {x}.ravel() | {o} = {x}[None, ..., None]
{o} = {x}.narrow({d}, 0, 1).flip({d}) | {o} = {x}[..., :1].flip(-1, 0) | {o} = {x}.narrow_copy({d}, 0, 1) | {o} = {x}.to({x}.dtype) | {o} = torch.atleast_2d({x})
"""
POINTWISE = """
{o} = {x} + {y} | {o} = {x} * {y} | {o} = {x} - {y} | {o} = {x} * 2 | {o} = {x} + 1 | {o} = {x} + {c}
{o} = {x} * {c} | {o} = {x}.clone() | {o} = torch.sub({x}, {y}, alpha=2) | {o} = {f} / 2 | {o} = {f} / {y}
{o} = torch.where({m}, {x}, {y}) | {o} = torch.where({m}, {x}, 0) | {o} = torch.maximum({x}, {y})
{o} = torch.minimum({x}, {y}) | {o} = {x}.clamp(-1, 1) | {o} = {x}.clamp(min=0) | {o} = -{x}
{o} = {x}.abs() | {o} = {f}.exp() | {o} = {x}.relu() | {o} = {f}.sigmoid() | {o} = torch.tanh({f})
{o} = torch.nn.functional.gelu({f}) | {o} = torch.nn.functional.silu({f}) | {o} = {x} > 0 | {o} = {x} <= {y}
{o} = {x} == {y} | {o} = {x}.to({l}) | {o} = {x}.float() | {o} = {x} ** 2 | {o} = {x} % 3 | {o} = {x} // 2
{o} = {f}.sqrt() | {o} = {x}.masked_fill({m}, {c}) | {o} = {x}.tril() | {o} = {x}.triu(1)
{o} = {x}.cumsum({d}) | {o} = {f}.softmax({d}) | {o} = torch.log_softmax({f}, {d})
{o} = torch.logical_and({x}, {y}) | {o} = ~{m} | {o} = {g} & {q} | {o} = torch.bitwise_or({g}, {q})
{o} = {g} ^ 3 | {o} = {g} << 1 | {o} = {g} >> 1 | {o} = {x}.flip({d}) | {o} = {x}.roll(1, {d})
{o} = torch.lerp({f}, {q}, 0.25) | {o} = torch.addcmul({f}, {q}, {q}, value=2) | {o} = {f}.round()
{o} = torch.zeros_like({x}) | {o} = torch.ones_like({x}) | {o} = {x}.new_zeros({h})
{o} = torch.full_like({x}, {p}) | {r} = {r} + 1 | {r} = {r}.t() | {o} = {x}.repeat_interleave(2, {d})
{o} = torch.sign({x}) | {o} = torch.tensor([1.5, -2.0]).view(torch.int32) * 2 | {o} = torch.tensor([3, 258]).view(torch.uint8)
{o} = torch.tensor([1, -2], dtype=torch.int16).view(torch.float16).sum() | {o} = torch.arange(4) + 2 | {o} = {x}.cumprod({d}) | {o} = {f}.nan_to_num(0.5)
{o} = torch.nn.functional.hardshrink({f}) | {o} = torch.nn.functional.softshrink({f}) | {o} = {f} // {q}
{o} = torch.fmax({f}, {q}) | {o} = torch.fmin({f}, {q}) | {o} = torch.copysign({f}, {q}) | {o} = {f} % {q}
{o} = torch.nn.functional.threshold({f}, 0.5, 2) | {o} = torch.heaviside({f}, {q}) | {o} = {f}.isposinf()
{o} = torch.xlogy({f}, {q}) | {o} = 2.0 ** {f} | {o} = {x}.rot90(1, ({d}, {e})) | {o} = {x}.cumsum({d}) - 1
{o} = {x}.masked_fill({m}, torch.tensor({c})) | {o} = {x}.index_put(({m},), {x}.reshape(-1)[0]) | {o} = torch.empty_like({x}).copy_({x})
"""
REDUCTIONS = """
{o} = {x}.sum() | {o} = {x}.sum({d}) | {o} = {x}.sum({d}, keepdim=True) | {o} = {f}.mean({d})
{o} = {f}.mean() | {o} = {x}.amax({d}) | {o} = {x}.amin({d}, keepdim=True) | {o} = {x}.argmax({d})
{o} = {x}.prod({d}) | {o} = {f}.var({d}) | {o} = {x}.any({d}) | {o} = {x}.all() | {o} = {f}.norm()
{o} = {f}.logsumexp({d}) | {o}, {t} = {x}.max({d}) | {o}, {t} = {x}.sort({d})
{o} = {x}.sum(dtype=torch.float64) | {o} = {x}.count_nonzero() | {o} = {f}.std({d}, correction=0)
{o} = {x}.argmin() | {o} = {f}.norm(1, {d}) | {o} = {x}.argmax({d}, keepdim=True)
"""
GATHERS = """
{o} = torch.cat([{x}, {q}], {d}) | {o} = torch.stack([{x}, {q}]) | {o} = {x}[{N}]
{o} = {x}.index_select(0, {n}) | {o} = {x}.gather({d}, {x}.argsort({d})) | {o} = {s2} @ {s2}
{o} = {s2}.mm({s2}.t()) | {o} = {x}.take({n}) | {o} = torch.nn.functional.pad({x}, (1, 1))
{o} = {x}[..., {n}[:1] * 0] | {o} = torch.cat([{x}[:1], {x}[1:]])
{o} = torch.nn.functional.layer_norm({f}, {f}.shape[-1:]) | {o} = {x}.repeat({R})
{o} = torch.nn.functional.pad({f}[None], (1, 0), "replicate") | {o} = torch.nn.functional.pad({f}[None], (1, 1), "circular")
{o} = torch.diag_embed({x})
"""
WRITES = """
{w}.add_({y}) | {w}.add_(1) | {w}.mul_({y}) | {w}.mul_(2) | {w}.sub_({y}) | {w}.sub_({y}, alpha=2)
{w}.add_({y}, alpha={p}) | {w}.relu_() | {w}.neg_() | {w}.clamp_(-1, 1) | {w}.zero_() | {w}.fill_({p})
{w}.copy_({v}) | {w}.copy_({v}) | {w}.abs_() | {w}.masked_fill_({m}, {p}) | {f}.addcmul_({q}, {y})
{f}.lerp_({q}, 0.25) | {f}.div_(2) | {f}.exp_() | {f}.sigmoid_() | {w}.tril_() | {w}.cumsum_({d})
{w}.pow_(2) | {w}.remainder_(3) | {w}.floor_divide_(2) | {w}.eq_({y}) | {w}.fill_diagonal_({p})
{g}.bitwise_and_({q}) | {g}.bitwise_or_({q}) | {g}.bitwise_xor_(1) | {w}.logical_not_() | {w}.gt_(0)
{f}.tanh_() | {w}.add_({w}) | {w}.copy_({w}) | {w}.mul_({w}[..., :1]) | {w}.add_({w}.sum())
{w}.add_({w}.flip(0)) | {w}.add_({w}.clone()) | {w}.sub_({w}.t()) | {w}[1:].add_({w}[:-1])
{w}[1:] = {w}[:-1].clone() | {w}[:1].expand_as({w}).add_(1) | {w}.copy_({w}.t()) | {r} += {y} | {r} += 1
{r} *= {y} | {r} -= {y} | {i} |= {q} | {i} &= {q} | {r} //= 2 | {r} %= 3 | {r} **= 2 | {i} <<= 1
{w}.data.add_(1) | {w}.detach().mul_(2) | {w}.view(-1).add_(1) | {w}.reshape(-1).add_(1)
{w}.flatten()[:2].zero_() | {w}.swapaxes(0, -1)[0].add_(1) | {w}.t().copy_({w}.t().clone())
{k}.real.neg_() | {k}.imag.add_(1) | {k}.conj().mul_(2) | {w}.view({a})[..., :1].zero_()
{w}.unsqueeze(0).squeeze().add_(1) | {w}.diagonal().fill_({p}) | {w}.select({d}, 0).mul_(2)
"""
INDEXED = """
{w}[{j}] = {p} | {w}[{j}] = {p} | {w}[{j}] = {v}[{j}] | {w}[{j}] += 1 | {w}[{j}] *= {y}[{j}]
{w}[{j}].add_({w}[{j}]) | {w}[{j}].zero_() | {w}[{j}].copy_({v}[{j}]) | {w}[{N}] = {p} | {w}[{N}] += 1
{w}[{m}] = {p} | {w}[...] = {v} | {w}[:] = {w} | {w}.index_add_(0, {n}, {w}[{n}])
{w}.index_copy_(0, {n}, {w}[{n}].flip(0)) | {w}.index_fill_(0, {n}, {p})
{w}.scatter_({d}, {w}.argsort({d}), {p}) | {w}.scatter_add_({d}, {w}.argsort({d}), {w}.clone())
{w}.put_({n}, {w}.reshape(-1)[{n}]) | {w}.index_put_(({n},), {w}[{n}], accumulate=True)
{w}.masked_scatter_({m}, {q}.clone()) | {w}[{n}] = {w}[{n}].flip(0) | {w}.take({n}).add_(1)
{w}[..., 0] = {w}[..., -1] | {w}[{n}, ..., 0] = {p}
{w}[1:-1] = {w}[:-2] + {w}[2:] | {w}[..., 1:] += {w}[..., :-1] * 2 | {w}[1:, :-1] = {w}[:-1, 1:] + {w}[1:, :-1]
"""
METADATA = """
{w}.unsqueeze_({d}) | {w}.squeeze_() | {w}.squeeze_({d}) | {w}.transpose_({d}, {e}) | {w}.t_()
{w}.as_strided_({S}) | {w}.set_({q}) | {C}.resize_({h}) | {C}.resize_({C}.numel() // 2)
{w}.resize_({w}.numel() + 2).fill_({p}) | {w}.swapaxes_({d}, {e}) | {w}.set_({w}.detach()[1:])
{o} = {w}.detach(); {o}.unsqueeze_(0) | {w}.set_({w}.clone()) | {w}.requires_grad
"""
OTHERS = """
torch._foreach_add_([{w}, {u}], 1) | torch._foreach_mul_([{w}, {u}], [{y}, {u}])
torch._foreach_add_([{w}, {u}], [{u}, {w}]) | torch._foreach_neg_([{w}, {w}])
{o}, {t} = torch._foreach_mul([{w}, {u}], 2) | torch.add({x}, {y}, out={q}) | torch.mul({x}, 2, out={q})
torch.add({q}, {q}, out={x}) | torch.neg({x}, out={x}) | torch.cumsum({q}, {d}, out={x})
torch.sum({x}, 0, out={x}[0]) | {o} = torch.empty(0, dtype={x}.dtype); torch.mul({x}, 2, out={o})
torch.maximum({q}, {q}, out={x}) | {w}[0], {w}[-1] = {w}[-1].clone(), {w}[0].clone()
{o} = {x}; {o}.add_(1) | {o} = {w}.add_(1) | {o} = {w}.mul_(2).view(-1)
torch.nn.functional.relu({w}, inplace=True) | torch.nn.functional.dropout({f}, 0.5, inplace=True)
{o} = torch.relu_({w}) | {f}.div_(2); {o} = {q}.softmax({d}); {q}.sub_({f})
{o} = {f}.detach().requires_grad_() | {o} = {f}.clone().requires_grad_()
{f}.mul_(2); {o} = {q}.argmin({d}); {q}.sub_({f}) | {f}.neg_(); {o} = {q}.var({d}, correction=0); {q}.add_({f})
"""
RANDOMS = """
{f}.normal_() | {f}.uniform_() | {w}.bernoulli_(0.5) | {o} = torch.nn.functional.dropout({f}, 0.5)
{o} = torch.rand({h}) | {o} = torch.randn_like({f}) | {f}[{j}].uniform_() | {w}.random_(0, 5)
{o} = torch.randperm(4) | {f}.t().exponential_() | {o} = torch.randint(0, 3, {h})
{o} = torch.rand(3) + {f}.sum()
"""
BRANCHES = """
{o} = {x}[{m}].sum() | {w}[{m}] += 1 | {o} = {x} * 2 if {x}.sum() > 0 else {x}.clone()
{w}.add_({f}.mean().nan_to_num().item())
{o} = {x}.sum().item() + {x} | if bool(({x} != 0).any()): {w}.add_(1)
"""
COUNTS = """
n[0] += 1 | n[0] += 1 | n[0] = n[0] * 2 - 3 | {o} = {x} * n[0] | {o} = {x} + n[0] | {f}.mul_(0.9 ** n[0]) | {f}.div_(n[0] + 20)
{o} = {x} == n[0] | {w}.add_({y}, alpha=n[0] % 3) | {o} = {x}[n[0] % 3:] | {o} = {x}[:n[0]] | {w}[n[0] % 2] = {p} | {w}[n[0] % 2:] *= 2
{o} = {x}.roll(n[0], {d}) | {o} = {x} * 2 if n[0] % 2 else {x} + 1 | {o} = {x}.clamp(-abs(n[0]), n[0] + 9) | {o} = {f} * (1 / (n[0] * n[0] + 1))
{o} = {x}.select({d}, -1 - n[0] % 2) | {o} = torch.zeros(n[0] % 4, 2) | {o} = torch.full((2,), n[0]) | {o} = {s2}.tril(n[0]) | {f}.fill_(n[0])
{o} = {x}.narrow({d}, n[0] % 2, 1) | {o} = {x}.view(-1)[n[0] % 5:] | {o} = {x}.repeat(n[0] % 2 + 1, *[1] * ({x}.dim() - 1))
"""


def _table(text: str) -> tuple[str, ...]:
    return tuple(t.strip() for line in text.strip().splitlines() for t in line.split(" | "))


KINDS = ((22, _table(VIEWS)), (20, _table(POINTWISE)), (7, _table(REDUCTIONS)), (4, _table(GATHERS)),
         (26, _table(WRITES)), (10, _table(INDEXED)), (3, _table(METADATA)), (5, _table(OTHERS)),
         (3, _table(RANDOMS)))
WITH_BRANCHES = KINDS + ((5, _table(BRANCHES)),)
WITH_COUNTS = KINDS + ((40, _table(COUNTS)),)
PLACE = re.compile(r"\{(\w+)\}")
CASTS = ("float32", "float64", "bfloat16", "complex64", "int64", "bool")
SAME_WIDTH = {1: ("uint8", "int8"), 2: ("int16", "bfloat16"), 4: ("int32", "float32"),
              8: ("int64", "float64", "complex64", "int32", "float32"), 16: ("float64",)}


OF_SCALAR = ("s", "s", "s", "s", "(s * 0.5 + 1)", "(1 / (s + 9))", "abs(s)", "-s", "s ** 2", "(s if s > 0.3 else 0.3)")
NUMBERS = (("True", "False"), ("2", "0", "1", "3"), ("0.5", "-1.5", "2", "0", "-0.0"), ("0.5", "2", "1j"))


class DoesNotFit(Exception):
    """Nothing in scope fits a place of the template."""


def draw_statement(scope: Scope) -> Statement | None:
    """One statement, run in the scope; None if it did not fit, or failed and failures were not asked for."""
    kinds = WITH_COUNTS if "n" in scope.namespace else WITH_BRANCHES if scope.options.branches else KINDS
    template = scope.tape.pick(scope.tape.weighted(kinds))
    keep_failing, wrap = scope.tape.below(100), scope.tape.below(100)
    try:
        text, defines = _fill(template, scope)
    except DoesNotFit:
        return None
    if scope.options.grad and wrap >= 80:
        text = f"with torch.no_grad():\n    {text}"
    elif scope.options.grad and scope.options.branches and wrap >= 60 and ";" not in template and template.startswith("{o} = "):
        text = _checkpointed(*text.split(" = ", 1), scope)
    elif scope.options.grad and wrap < 20 and "{w}" in template:
        return None
    error = _run(text, scope)
    if error is not None and (keep_failing < 97 or "allocate memory" in str(error)):
        return None
    if error is not None and wrap % 2:
        text = textwrap.indent(text, "    ")
        return Statement(f"try:\n{text}\nexcept {type(error).__name__}:\n    pass")
    made = [scope.namespace[name] for name in defines if error is None]
    if any(not isinstance(value, torch.Tensor) or value.numel() > scope.largest for value in made):
        return None
    scope.tensors += defines if made else []
    return Statement(text, tuple(defines))


def _checkpointed(name: str, expression: str, scope: Scope) -> str:
    """The assignment with what it computes run again in backward."""
    given = ", ".join(t for t in dict.fromkeys(scope.tensors) if t.isidentifier() and mentions(expression, t))
    return f"{name} = torch.utils.checkpoint.checkpoint(lambda {given}: {expression}, {given and given + ', '}use_reentrant=False)"


def _run(text: str, scope: Scope) -> Exception | None:
    try:
        exec(text, scope.namespace)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        return error
    return None


def draw_results(scope: Scope, tape: Tape) -> tuple[str, ...]:
    """What the program returns: mostly its newest tensors, some arguments, and now and then something odd."""
    scope.tape = tape
    results = []
    for _ in range(tape.weighted(((30, 1), (40, 2), (30, 3), (10, 5)))):
        name, other = _recent(scope, _anything), _recent(scope, _anything)
        results.append(tape.weighted(((80, name), (4, f"[{name}, {other}]"), (3, f"{{'r': {name}}}"),
                                      (3, f"{name}.shape"), (2, "None"), (3, f"{name}[...]"),
                                      (2, f"({name}, 3)"), (3, f"{name}.detach()"))))
    if tape.chance(10):                 # containers that the caller knows, or that are in two places
        name = _recent(scope, _anything)
        results.append("pack" if "pack" in scope.namespace and tape.chance(70) else f"([{name}],) * 2")
    return tuple(results)


def _fill(template: str, scope: Scope) -> tuple[str, list[str]]:
    bound = {"": scope.tensors[0]}      # the subject of templates that name none
    defines = []
    places = sorted(dict.fromkeys(PLACE.findall(template)), key=lambda place: place not in SUBJECTS)
    for place in places:
        if place in "ot":
            bound[place] = f"v{len(scope.namespace)}{'b' if place == 't' else ''}"
            defines.append(bound[place])
        elif place in SUBJECTS:
            bound[place] = SUBJECTS[place](scope)
            bound[""] = bound[place]
        else:
            bound[place] = FITTING[place](scope, bound[""])
    return PLACE.sub(lambda m: bound[m.group(1)], template), sorted(defines)


def _recent(scope: Scope, fits: Callable[[torch.Tensor], bool]) -> str:
    names = [n for n in scope.tensors if isinstance(scope.value(n), torch.Tensor) and fits(scope.value(n))]
    if not names:
        raise DoesNotFit
    return scope.tape.pick(names[-4:] if scope.tape.chance(50) else names)


def _rebindable(scope: Scope, fits: Callable[[torch.Tensor], bool]) -> str:
    name = _recent(scope, fits)
    if name in scope.fixed:
        raise DoesNotFit
    return name


def _integral(t: torch.Tensor) -> bool:
    return not (t.is_floating_point() or t.is_complex())


def _anything(t: torch.Tensor) -> bool:
    return True


SUBJECTS: dict[str, Callable[[Scope], str]] = {
    "x": lambda s: _recent(s, _anything),
    "f": lambda s: _recent(s, torch.is_floating_point),
    "g": lambda s: _recent(s, _integral),
    "k": lambda s: _recent(s, torch.is_complex),
    "w": lambda s: _recent(s, _anything),
    "C": lambda s: _recent(s, torch.Tensor.is_contiguous),
    "r": lambda s: _rebindable(s, _anything),
    "i": lambda s: _rebindable(s, _integral),
    "s2": lambda s: _recent(s, lambda t: t.dim() == 2 and t.shape[0] == t.shape[1] <= 64 and _rank(t) == 2),
}


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to)))


def _operand(scope: Scope, subject: str) -> str:
    of = scope.value(subject)
    way = scope.tape.below(12)
    if way >= 8:
        made = (_number(scope, subject), f"{subject}.clone()", f"{subject}.flip(0)", f"{subject}[..., :1]")
        return made[way - 8] if of.dim() or way < 10 else subject
    if way < 5:
        names = [n for n in scope.tensors if n != subject and scope.value(n).shape == of.shape
                 and scope.value(n).dtype == of.dtype]
        if names:
            return scope.tape.pick(names)
    return _recent(scope, lambda t: _broadcasts(t.shape, of.shape) and (_rank(t) <= _rank(of)))


def _rank(t: torch.Tensor) -> int:
    """bool, integral, floating, complex: an in-place write may not go down."""
    return 3 if t.is_complex() else 2 if t.is_floating_point() else 0 if t.dtype == torch.bool else 1


def _alike(scope: Scope, subject: str) -> str:
    of = scope.value(subject)
    return _recent(scope, lambda t: t.shape == of.shape and t.dtype == of.dtype)


def _copyable(scope: Scope, subject: str) -> str:
    """Casting NaN or a large number to an integer is undefined in C, so such casts are bounded."""
    of = scope.value(subject)
    name = _recent(scope, lambda t: _broadcasts(t.shape, of.shape) and t.is_complex() <= of.is_complex())
    narrow = of.dtype != torch.bool and _integral(of) and not _integral(scope.value(name))
    return f"{name}.nan_to_num().clamp(0, 9)" if narrow else name


def _number(scope: Scope, subject: str) -> str:
    of = scope.value(subject)
    if scope.scalars and scope.tape.chance(50):
        return scope.tape.pick(OF_SCALAR) if _rank(of) >= 2 else "s"
    return scope.tape.pick(NUMBERS[_rank(of)])


def _mask(scope: Scope, subject: str) -> str:
    of = scope.value(subject)
    if not of.dim():                                      # `x[mask]` of one element asks for its value
        raise DoesNotFit
    masks = [n for n in scope.tensors if scope.value(n).dtype == torch.bool]
    names = [n for n in masks if scope.value(n).shape == of.shape]
    if names and scope.tape.chance(60):
        return scope.tape.pick(names)
    return f"({subject} {'>' if 0 < _rank(of) < 3 else '!='} {scope.tape.below(2)})"


def _positions(scope: Scope, subject: str, negative: bool = False) -> str:
    of = scope.value(subject)
    if not of.dim() or not of.shape[0]:
        raise DoesNotFit
    last = -1 if negative else of.shape[0] - 1
    names = [n for n in scope.tensors if scope.value(n).dtype == torch.int64 and scope.value(n).numel() >= 2]
    if names and scope.tape.chance(50):
        return f"({scope.tape.pick(names)}.reshape(-1)[:2] % {of.shape[0]})"
    return f"torch.tensor({scope.tape.pick(([0, last], [0], [0, 0], [last, 0]))})"


def _dimension(scope: Scope, subject: str) -> str:
    dims = scope.value(subject).dim()
    if not dims:
        raise DoesNotFit
    at = scope.tape.below(2 * dims)
    return str(at if at < dims else at - 2 * dims)


def _index(scope: Scope, subject: str) -> str:
    of, parts = scope.value(subject), []
    for size in of.shape[:1 + scope.tape.below(max(of.dim(), 1))]:
        start = scope.tape.below(max(min(size, 3), 1))
        parts.append(scope.tape.weighted((
            (20, f"{start}:"), (20, f":{size - start}"), (14, f"{start}::2"), (12, "0"), (6, "-1"), (14, ":"),
            (8, f"{start}:{start + 2}"), (4, f":-{start + 1}"), (3, "None, :"))))
    if scope.tape.chance(10):
        parts = ["..."] + parts[-1:]
    return ", ".join(parts) or "..."


def _sizes(scope: Scope, subject: str) -> str:
    n = scope.value(subject).numel()
    divisor = scope.tape.pick([k for k in (1, 2, 3, 4, 5) if n % k == 0])
    return scope.tape.pick((f"({divisor}, {n // divisor})", f"({n // divisor}, {divisor})", f"({n},)"))


STRIDED = (((2, 2), (2, 1)), ((3,), (1,)), ((2, 2), (1, 2)), ((3, 2), (1, 1)), ((2, 3), (0, 1)))


def _strided(scope: Scope, subject: str) -> str:
    """Sizes and strides within the bytes that the subject spans, overlapping themselves or not."""
    of = scope.value(subject)
    span = 0 if not of.numel() else 1 + sum((n - 1) * s for n, s in zip(of.shape, of.stride()))
    fits = [(size, stride) for size, stride in STRIDED
            if 1 + sum((n - 1) * s for n, s in zip(size, stride)) <= span]
    if not fits:
        raise DoesNotFit
    size, stride = scope.tape.pick(fits)
    return f"{size}, {stride}"


def _same_width(scope: Scope, subject: str) -> str:
    of = scope.value(subject)
    if of.dtype == torch.bool:
        raise DoesNotFit
    return "torch." + scope.tape.pick(SAME_WIDTH[of.element_size()])


def _cast(scope: Scope, subject: str) -> str:
    of = scope.value(subject)
    if _rank(of) >= 2:
        return "torch." + scope.tape.pick(CASTS[:4] if _rank(of) == 2 else CASTS[3:4])
    return "torch." + scope.tape.pick(CASTS)


def _shuffled(scope: Scope, subject: str) -> str:
    dims = list(range(scope.value(subject).dim()))
    turn = scope.tape.below(max(len(dims), 1))
    return ", ".join(map(str, dims[turn:] + dims[:turn])) or "()"


FITTING: dict[str, Callable[[Scope, str], Any]] = {
    "y": _operand, "q": _alike, "v": _copyable, "m": _mask, "n": _positions,
    "N": lambda s, x: _positions(s, x, negative=True), "u": lambda s, x: _recent(s, _anything),
    "d": _dimension, "e": _dimension, "c": _number,
    "p": lambda s, x: str(s.tape.below(4)) if _rank(s.value(x)) else "True",
    "j": _index, "h": _sizes, "a": _same_width, "l": _cast, "P": _shuffled, "S": _strided,
    "E": lambda s, x: ", ".join(map(str, (2, *s.value(x).shape[1:]))),
    "E2": lambda s, x: ", ".join(map(str, s.value(x).shape)) or "1",
    "R": lambda s, x: ", ".join(map(str, (2, *[1] * (s.value(x).dim() - 1)))),
}
