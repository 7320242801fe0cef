"""Short forms of the harness for tests that write their programs in place."""
import dataclasses
import warnings

import torch

import tracejit

from tracejit.ir.trace import walk

from . import harness
from .compare import rounds

DEFAULTS = {"check_strides": True}        # strides of results are part of the contract unless said otherwise
ROUNDING = {"rtol": 1e-6, "atol": 1e-7}   # allowed where a kernel computes what is inexact in eager too


def make_case(fn, make_args, **options):
    """A case outside the registry."""
    return harness.Case(id=getattr(fn, "__name__", "program"), source="tracejit", about="", kind="layout",
                        build=lambda: (fn, make_args), **{**DEFAULTS, **options})


def differences(fn, make_args, *, repeat=2, jit_options=None, **options):
    """What distinguishes jit(fn) from fn on the same calls: ([problem], the jitted function)."""
    case = make_case(fn, make_args, **options)
    made = []

    def transform(f):
        made.append(tracejit.jit(f, **{"fallback": "error", **(jit_options or {})}))
        return made[0]

    want = harness.observe(case, repeat=repeat)
    got = harness.observe(case, transform, repeat=repeat)
    problems = harness.diff(case, want, got)
    if problems and rounds(made[0]):
        problems = harness.diff(dataclasses.replace(case, **{**ROUNDING, **options}), want, got)
    return problems, made[0]


def assert_parity(fn, make_args, *, raises=None, hits=None, **options):
    """jit(fn) is indistinguishable from fn; returns the jitted function.

    raises: class name that eager itself must raise (so that the program tests what it says).
    hits: how many of the calls must have been served by an existing entry.
    """
    case = make_case(fn, make_args, **{k: v for k, v in options.items() if k not in ("repeat", "jit_options")})
    errors = {record["error"] for record in harness.observe(case)}
    assert errors == ({raises} if raises else {None}), f"eager raised {errors}"
    problems, jfn = differences(fn, make_args, **options)
    assert not problems, "\n".join(problems)
    if hits is not None:
        assert jfn.cache_info().hits == hits, jfn.cache_info()
    return jfn


def assert_parity_silently(fn, make_args, **options):
    """For programs that need eager (host reads and the like): same meaning, and said at most as a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", tracejit.FallbackWarning)
        return assert_parity(fn, make_args, jit_options={"fallback": "silent"}, **options)


def same(a, b):
    """Equal values (NaN == NaN), dtype, shape and stride."""
    return (a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
            and torch.equal(torch.nan_to_num(a) if a.is_floating_point() else a,
                            torch.nan_to_num(b) if b.is_floating_point() else b)
            and torch.equal(a != a, b != b))


def copies(jfn):
    """How many copy_ the program of the latest compile makes."""
    return jfn.last_traces[-1].count("copy_")


def copied_elements(jfn):
    """Elements written by each copy_ of the final trace, in program order."""
    return [torch.Size(bsym.args[0].shape).numel() for bsym in walk(jfn.last_traces[-1].bound_symbols)
            if bsym.sym.packet == "copy_"]
