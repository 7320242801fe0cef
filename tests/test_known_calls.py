"""What one call tells of the calls that are alike is not asked again, and what is unlike is not taken for alike."""
import torch
from torch.utils._pytree import tree_leaves

import tracejit
from tracejit.capture.known_calls import each_kind_once
from tracejit.capture.recorder import Recorder
from tracejit.ir.proxy import proxy_of
from tracejit.passes.builder import Builder
from tracejit.torch_private import fake_mode, new_fake


def counted(monkeypatch, owner, name):
    calls, real = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda self, *args: calls.append(args[0]) or real(self, *args))
    return calls


def run_both(fn, make):
    ours, theirs = make(), make()
    got, wanted = tracejit.jit(fn, fallback="error")(*ours), fn(*theirs)
    for a, b in zip(tree_leaves((got, ours)), tree_leaves((wanted, theirs)), strict=True):
        assert a is b is None or torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype


def test_equal_calls_are_run_on_fakes_and_on_stand_ins_once(monkeypatch):
    on_fakes, on_stand_ins = counted(monkeypatch, Recorder, "_on_fakes"), counted(monkeypatch, Builder, "_results")

    def update(params, grads):
        for p, g in zip(params, grads):
            p.mul_(0.9).add_(torch.neg(g), alpha=0.1)
    run_both(update, lambda: ([torch.ones(4, 2) for _ in range(20)], [torch.ones(4, 2) for _ in range(20)]))
    assert len(on_fakes) == 3 and len(on_stand_ins) == 2


def test_a_foreach_call_is_run_on_one_fake_of_each_kind():
    taken = []

    def spied(tensors, *args):
        taken.append(len(tensors))
        return [t + 1 for t in tensors]
    mode = fake_mode()
    fakes = [new_fake(mode, (n,), (1,), dtype, torch.device("cpu")) for n in (2, 3)
             for dtype in (torch.float32, torch.int64) for _ in range(5)]
    with mode:
        made = each_kind_once(spied, (fakes,), {}, lambda t: proxy_of("", t, 0))
    assert taken == [4] and len({id(m.untyped_storage()) for m in made}) == 20
    assert [(m.shape, m.dtype) for m in made] == [(f.shape, f.dtype) for f in fakes]


def test_lists_of_unlike_tensors_are_as_in_eager():
    def f(tensors, others):
        torch._foreach_mul_(tensors, others)
        torch._foreach_add_(tensors, [1.0, 2.0, 1.0, 2.0])
        return torch._foreach_sqrt(torch._foreach_abs(tensors))
    run_both(f, lambda: ([torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(2, 3), torch.ones(3, 2).t()],
                         [torch.full((3,), 2.0), torch.full((3,), 3.0), torch.full((3,), 4.0), torch.full((1, 3), 5.0)]))


def test_calls_that_differ_in_a_number_or_in_layout_are_unlike():
    def f(x, y):
        signs = torch.signbit(x * -0.0), torch.signbit(x * 0.0)
        return x.sum(0), x.sum(1), y.sum(0), x / 2, x // 2, x + True, x.double() + 1, signs
    run_both(f, lambda: (torch.arange(12.0).reshape(4, 3), torch.arange(12.0).reshape(3, 4).t()))


def test_a_tensor_made_of_python_data_is_followed_through_equal_writes():
    def f(x):
        c = torch.tensor(1.0)
        c.add_(1)
        c.add_(1)
        return x * c
    run_both(f, lambda: (torch.ones(3),))


def test_views_and_bases_share_a_storage_whichever_comes_first():
    def f(a, b):
        a.add_(1)
        b.mul_(2)
        return a + 0, b + 0

    def make(view_first, detached):
        base = torch.arange(6.0)
        view = base.detach()[1:5] if detached else base[1:5]
        return (view, base) if view_first else (base, view)
    for view_first in (False, True):
        for detached in (False, True):
            run_both(f if view_first else lambda a, b: f(a, b), lambda: make(view_first, detached))


def test_what_a_batch_norm_saves_in_evaluation_is_as_on_the_cpu():
    norm = torch.nn.BatchNorm2d(4).eval().requires_grad_(False)
    run_both(lambda x: norm(x) * 1, lambda: (torch.ones(2, 4, 3, 3),))
    x = torch.ones(2, 4, 3, 3)
    assert torch.allclose(tracejit.jit(norm, executors=["cpu"], fallback="error")(x), norm(x))
