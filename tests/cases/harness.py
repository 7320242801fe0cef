"""Registry, observation and comparison for the mutation/aliasing cases.

To judge a compiler:

    want = harness.observe(case)                             # eager
    got = harness.observe(case, transform=tracejit.jit)      # anything that wraps fn
    problems = harness.diff(case, want, got)                 # [] means indistinguishable

What is observed (after every call, and again after backward):
  * the returned structure: tensor values, dtype, shape, requires_grad, Python
    scalars; strides too where the case has check_strides=True
  * identity and memory sharing between every pair of (argument, output) tensors,
    with their relative storage offset
  * every argument: tensor value, shape, stride, dtype, requires_grad, module
    parameters, buffers and plain attributes, training flag, optimizer state
  * with grad=True: .grad of each leaf that requires grad, after
    backward() of the sum of all floating outputs (after each call)
  * class of the exception (a subclass of eager's class counts as the same) and the
    phase it came from (reported, not compared)
  * state of the CPU generator afterwards

A wrapper that only runs eager passes everything: ask for proof of compilation too.

Options a case may set (beyond id, source, about, kind):
  grad=True           run backward as above
  multi=True          make_args() returns a LIST OF ARGUMENT LISTS; one wrapped fn is
                      called on each in turn (stale caches, new aliasing patterns)
  after=f             f(result, args) -> result, run un-compiled after each call and
                      before backward: the caller writing into a result or an input
  raises="Name"       class that eager raises (checked against eager itself)
  rtol, atol          for floating values; 0/0 (the default) means exact, NaN == NaN
  signed_zero=True    -0.0 and 0.0 differ
  check_strides=True  output strides are part of the contract
"""
import dataclasses
import random
from dataclasses import dataclass
from typing import Callable, Optional

import torch

KINDS = ("view-mutation", "input-alias", "output-alias", "metadata",
         "autograd-inplace", "module-state", "numerics", "layout")


@dataclass
class Case:
    id: str
    source: str
    about: str
    kind: str
    build: Callable
    grad: bool = False
    multi: bool = False
    after: Optional[Callable] = None
    raises: Optional[str] = None
    rtol: float = 0.0
    atol: float = 0.0
    signed_zero: bool = False
    check_strides: bool = False
    seed: int = 1234


REGISTRY: "dict[str, Case]" = {}


def case(*, id, source, about, kind, **options):
    assert kind in KINDS, kind

    def register(build):
        assert id not in REGISTRY, f"duplicate case id {id}"
        REGISTRY[id] = Case(id=id, source=source, about=about, kind=kind,
                            build=build, **options)
        return build
    return register


# ---------------------------------------------------------------- flattening

def leaves(obj, path):
    """Yield (path, leaf) for tensors and plain values reachable from obj."""
    if isinstance(obj, torch.Tensor):
        yield path, obj
    elif isinstance(obj, torch.nn.Module):
        for n, p in obj.named_parameters(remove_duplicate=False):
            yield f"{path}.{n}", p
        for n, b in obj.named_buffers(remove_duplicate=False):
            yield f"{path}.{n}", b
        for mn, m in obj.named_modules():
            where = f"{path}.{mn}" if mn else path
            yield f"{where}:training", m.training
            for k, v in vars(m).items():
                if not k.startswith("_") and k != "training" and isinstance(
                        v, (torch.Tensor, int, float, bool, str)):
                    yield f"{where}:{k}", v
    elif isinstance(obj, torch.optim.Optimizer):
        for gi, group in enumerate(obj.param_groups):
            for pi, p in enumerate(group["params"]):
                yield f"{path}.g{gi}p{pi}", p
                state = obj.state.get(p, {})
                for k in sorted(state):
                    yield f"{path}.g{gi}p{pi}:{k}", state[k]
    elif isinstance(obj, dict):
        for k, v in obj.items():
            yield from leaves(v, f"{path}[{k!r}]")
    elif dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        yield f"{path}#type", type(obj).__name__
        for field in dataclasses.fields(obj):
            yield from leaves(getattr(obj, field.name), f"{path}.{field.name}")
    elif isinstance(obj, (list, tuple)):
        yield f"{path}#type", type(obj).__name__
        for i, v in enumerate(obj):
            yield from leaves(v, f"{path}[{i}]")
    else:
        yield path, obj


def tensors(obj, path):
    return [(p, v) for p, v in leaves(obj, path) if isinstance(v, torch.Tensor)]


def freeze(t, strides):
    return {
        "value": t.detach().clone(memory_format=torch.contiguous_format),
        "dtype": t.dtype, "shape": tuple(t.shape),
        "stride": tuple(t.stride()) if strides else None,
        "requires_grad": t.requires_grad,
    }


def freeze_all(obj, path, strides):
    return {p: (freeze(v, strides) if isinstance(v, torch.Tensor) else v)
            for p, v in leaves(obj, path)}


def relations(named):
    """Which named tensors are the same object / share memory (and how far apart)."""
    found = set()
    for i, (pa, a) in enumerate(named):
        for pb, b in named[i + 1:]:
            if a is b:
                found.add((pa, pb, "same object"))
            sa, sb = a.untyped_storage(), b.untyped_storage()
            if sa.nbytes() and sa.data_ptr() == sb.data_ptr():
                gap = (b.storage_offset() * b.element_size()
                       - a.storage_offset() * a.element_size())
                found.add((pa, pb, f"shares memory, {gap:+d} bytes"))
    return found


# ---------------------------------------------------------------- observing

def observe(c, transform=None, repeat=1):
    """One record per call; `repeat` runs the same wrapped function again on fresh arguments."""
    torch.manual_seed(c.seed)
    random.seed(c.seed)
    fn, make_args = c.build()
    run = transform(fn) if transform else fn
    sequence = [args for _ in range(repeat) for args in (make_args() if c.multi else [make_args()])]
    torch.manual_seed(c.seed + 1)
    calls, keep = [], []
    for args in sequence:
        rec, out = _observe_call(c, run, args)
        calls.append(rec)
        keep.append((args, out))          # hold storages so addresses stay distinct
    return calls


def _observe_call(c, run, args):
    rec = {"error": None, "phase": None, "result": {}, "sharing": set(), "grads": {}}
    out, phase = None, "forward"
    try:
        out = run(*args)
        phase = "after"
        if c.after:
            out = c.after(out, args)
        rec["result"] = freeze_all(out, "out", c.check_strides)
        rec["sharing"] = relations(tensors(args, "arg") + tensors(out, "out"))
        if c.grad:
            phase = "backward"
            _backward(args, out)
    except Exception as e:                # whatever the program raises is what is observed
        rec["error"], rec["phase"] = type(e).__name__, phase
        rec["catchable_as"] = [k.__name__ for k in type(e).__mro__]
        rec["message"] = str(e).split("\n")[0][:160]
    rec["args"] = freeze_all(args, "arg", True)
    if c.grad:
        for p, t in tensors(args, "arg"):
            if t.requires_grad and t.is_leaf:
                rec["grads"][p] = None if t.grad is None else freeze(t.grad, False)
    rec["rng"] = torch.get_rng_state()
    return rec, out


def _backward(args, out):
    mine = {id(t) for _, t in tensors(args, "arg")}
    terms = [t.sum() for _, t in tensors(out, "out")
             if t.is_floating_point() and t.requires_grad
             and (t.grad_fn is not None or id(t) in mine)]
    if terms:
        sum(terms[1:], terms[0]).backward()


# ---------------------------------------------------------------- comparing

def _value_problem(c, a, b):
    if a.is_floating_point() or a.is_complex():
        if c.rtol or c.atol:
            ok = torch.allclose(a, b, rtol=c.rtol, atol=c.atol, equal_nan=True)
        else:
            ok = bool(((a == b) | ((a != a) & (b != b))).all())
        if ok and c.signed_zero and not a.is_complex():
            nan = a != a
            ok = bool(((torch.signbit(a) == torch.signbit(b)) | nan).all())
    else:
        ok = torch.equal(a, b)
    if ok:
        return None
    fa, fb = a.flatten(), b.flatten()
    if fa.numel() <= 8:
        return f"{fa.tolist()} became {fb.tolist()}"
    off = ((fa != fb) & ~((fa != fa) & (fb != fb))).nonzero().flatten()
    n = off[0].item() if len(off) else 0
    return (f"{len(off)} of {fa.numel()} elements differ, the first at flat index {n}: "
            f"{fa[n:n + 4].tolist()} became {fb[n:n + 4].tolist()}")


def _compare(c, what, want, got):
    probs = []
    if list(want) != list(got):
        missing = [k for k in want if k not in got]
        extra = [k for k in got if k not in want]
        probs.append(f"{what}: structure differs, missing {missing}, extra {extra}")
    for k in want:
        if k not in got:
            continue
        a, b = want[k], got[k]
        if isinstance(a, dict) and isinstance(b, dict) and "value" in a and "value" in b:
            for f in ("dtype", "shape", "stride", "requires_grad"):
                if a[f] != b[f]:
                    probs.append(f"{what} {k}: {f} {a[f]} became {b[f]}")
            if a["dtype"] == b["dtype"] and a["shape"] == b["shape"]:
                p = _value_problem(c, a["value"], b["value"])
                if p:
                    probs.append(f"{what} {k}: {p}")
        elif type(a) is not type(b) or a != b:
            probs.append(f"{what} {k}: {a!r} became {b!r}")
    return probs


def diff(c, want, got):
    """Problems in `got` against `want`; an empty list means no observable difference."""
    probs = []
    if len(want) != len(got):
        return [f"{len(want)} calls became {len(got)}"]
    for i, (w, g) in enumerate(zip(want, got)):
        tag = f"call {i}: " if len(want) > 1 else ""
        same_error = w["error"] == g["error"] or (
            w["error"] and g["error"] and w["error"] in g["catchable_as"])
        if not same_error:
            probs.append(f"{tag}error {w['error']} became {g['error']} "
                         f"({g.get('phase')}: {g.get('message', '')})")
        if w["error"] is None and g["error"] is None:
            probs += [tag + p for p in _compare(c, "result", w["result"], g["result"])]
            for r in sorted(w["sharing"] - g["sharing"]):
                probs.append(f"{tag}lost: {r}")
            for r in sorted(g["sharing"] - w["sharing"]):
                probs.append(f"{tag}gained: {r}")
        if same_error:
            probs += [tag + p for p in _compare(c, "state", w["args"], g["args"])]
            probs += [tag + p for p in _compare(c, "grad", w["grads"], g["grads"])]
            if not torch.equal(w["rng"], g["rng"]):
                probs.append(f"{tag}generator state differs")
    return probs
