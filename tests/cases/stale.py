"""Change something between calls of one jitted function and compare every call with eager."""
import contextlib
import functools

import torch

import tracejit

from .compare import call_problems, run


def x3():
    return torch.tensor([1.0, -2.0, 3.0])


@contextlib.contextmanager
def changed(write, new, old):
    """write(new) for the block, write(old) afterwards: tests share this module's globals."""
    write(new)
    try:
        yield
    finally:
        write(old)


def attribute(target, name):
    return functools.partial(setattr, target, name)


def check_calls(fn, jfn, make_args, label):
    """One call of each on fresh arguments, compared in full."""
    want_args, got_args = make_args(), make_args()
    want = run(fn, want_args, {})
    got = run(jfn, got_args, {})
    assert want[1] is None, want[1]
    problems = call_problems((want_args, {}), want, (got_args, {}), got)
    assert not problems, f"{label}: " + "\n".join(problems)
    return want[0]


def check_change(fn, write, old, new, make_args=lambda: [x3()], differs=True, hits_on_return=True):
    """Call, change, call, change back, call: each as eager, and the way back served by the old entry."""
    jfn = tracejit.jit(fn, fallback="error")
    first = check_calls(fn, jfn, make_args, "before")
    check_calls(fn, jfn, make_args, "before, cached")
    assert jfn.cache_info().hits == 1
    with changed(write, new, old):
        second = check_calls(fn, jfn, make_args, "after the change")
        check_calls(fn, jfn, make_args, "after the change, cached")
        assert jfn.cache_info().hits >= 2
    if differs:
        assert not torch.equal(torch.as_tensor(first), torch.as_tensor(second)), "the change has no effect in eager"
    hits = jfn.cache_info().hits
    check_calls(fn, jfn, make_args, "changed back")
    if hits_on_return:
        assert jfn.cache_info().hits == hits + 1, "the old entry is gone"
