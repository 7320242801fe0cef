"""Compilers that are wrong in well-known ways: what the harness must notice."""
import torch
from torch.utils._python_dispatch import TorchDispatchMode


def _copy_tensors(obj):
    if isinstance(obj, torch.Tensor):
        return obj.clone()
    if isinstance(obj, (list, tuple)):
        return type(obj)(_copy_tensors(v) for v in obj)
    if isinstance(obj, dict):
        return {k: _copy_tensors(v) for k, v in obj.items()}
    return obj


def loses_writes(fn):                      # runs on private copies of the inputs
    return lambda *a: fn(*[_copy_tensors(x) for x in a])


def copies_results(fn):                    # right values, no sharing with inputs
    return lambda *a: _copy_tensors(fn(*a))


def replays_first_call(fn):                # constant-folds everything
    memo = []

    def run(*a):
        if not memo:
            memo.append(fn(*a))
        return memo[0]
    return run


def no_autograd(fn):
    def run(*a):
        with torch.no_grad():
            return fn(*a)
    return run


def float64_inside(fn):                    # "more accurate" intermediates
    def up(x):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and not x.requires_grad:
            return x.double()
        return x

    def down(o, like):
        if isinstance(o, torch.Tensor) and o.dtype == torch.float64:
            return o.to(like)
        if isinstance(o, dict):
            return {k: down(v, like) for k, v in o.items()}
        if isinstance(o, (list, tuple)):
            return type(o)(down(v, like) for v in o)
        return o
    return lambda *a: down(fn(*[up(x) for x in a]), torch.float32)


def wide_integers(fn):                     # never wraps: everything is int64
    def up(x):
        if isinstance(x, torch.Tensor) and x.dtype in (torch.uint8, torch.int8, torch.int32):
            return x.long()
        return x
    return lambda *a: fn(*[up(x) for x in a])


class ViewsAreCopies(TorchDispatchMode):   # tracing without alias tracking
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        infos = [r.alias_info for r in func._schema.returns]
        if any(i is not None and not i.is_write for i in infos):
            if isinstance(out, torch.Tensor):
                return out.clone()
            if isinstance(out, (list, tuple)):
                return type(out)(o.clone() for o in out)
        return out


class CSemantics(TorchDispatchMode):       # fmin/fmax, C remainder and division
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        a, kwargs, name = list(args), kwargs or {}, func._schema.name
        if name in ("aten::maximum", "aten::minimum"):
            return (torch.fmax if name == "aten::maximum" else torch.fmin)(*a)
        if name in ("aten::relu", "aten::clamp", "aten::clamp_min", "aten::clamp_max"):
            x = a[0]
            bounds = {"aten::relu": (0, None)}.get(name) or (
                (a[1], None) if name == "aten::clamp_min" else
                (None, a[1]) if name == "aten::clamp_max" else
                ((a[1:] + [None, None])[0] if len(a) > 1 else kwargs.get("min"),
                 a[2] if len(a) > 2 else kwargs.get("max")))
            want = func(*a, **kwargs)
            for f, lim in ((torch.fmax, bounds[0]), (torch.fmin, bounds[1])):
                if lim is not None:
                    x = f(x.to(want.dtype), torch.as_tensor(lim, dtype=want.dtype))
            return x.to(want.dtype)
        if name == "aten::remainder":
            return torch.fmod(*a)
        if name == "aten::floor_divide":
            return torch.div(*a, rounding_mode="trunc")
        return func(*a, **kwargs)


def under(mode):
    def transform(fn):
        def run(*a):
            with mode():
                return fn(*a)
        return run
    transform.__name__ = mode.__name__
    return transform


BROKEN_COMPILERS = [loses_writes, copies_results, replays_first_call, no_autograd, float64_inside,
                    wide_integers, under(ViewsAreCopies), under(CSemantics)]
