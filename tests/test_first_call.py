"""A first call in a new process imports little, and leaves torch as it would be without us."""
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def in_new_process(program):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_first_call_imports_neither_dynamo_nor_sympy_nor_networkx():
    in_new_process("""
        import sys, torch, tracejit
        base = torch.ones(4, 8)
        def f(x, w):
            y = torch.cat([torch.relu(x @ w.t()).softmax(-1), x.view(-1)[::8].expand(3, -1)], 1)
            y[1:] += torch.tensor([2.0]) + torch.nn.functional.cross_entropy(x, torch.tensor([0, 1, 2]))
            return y.gather(1, torch.zeros(3, 2, dtype=torch.long)).var(0), y.reshape(-1, 1).squeeze(1)
        jitted = tracejit.jit(f, executors=["cpu"], fallback="error")
        jitted(base[1:], base)                                  # a view, and its base
        assert not {"torch._dynamo.eval_frame", "sympy.core", "networkx"} & set(sys.modules)
    """)


def test_a_first_training_step_does_not_import_dynamo():
    in_new_process("""
        import sys, torch, tracejit
        w = torch.nn.Parameter(torch.ones(5))
        tracejit.jit(lambda x: x * 2, fallback="error")(w)
        optimizer = torch.optim.AdamW([w])                     # what makes one asks for torch._dynamo, too
        @tracejit.jit(fallback="error")
        def step(x):
            optimizer.zero_grad()
            (w * x).sum().backward()
            optimizer.step()
        for _ in range(3):
            step(torch.ones(5))
        assert "torch._dynamo.eval_frame" not in sys.modules
        assert torch.equal(torch.compile(lambda x: x * 2, backend="eager")(w), w * 2)
        step(torch.ones(5))
    """)


def test_common_calls_do_not_make_torch_import_its_distributed_tensors():
    in_new_process("""
        import sys, torch, tracejit
        def f(x):
            return torch.relu(x) + torch.where(x > 0, 0, x).softmax(-1), x.clamp(0).masked_fill(x > 1, 2.0).std(0)
        tracejit.jit(f, executors=["cpu"], fallback="error")(torch.rand(4, 8))
        loss = tracejit.jit(torch.nn.functional.cross_entropy, executors=["cpu"], fallback="error")
        loss(torch.rand(4, 8), torch.tensor([1, 0, 7, -100]))
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.BatchNorm1d(8), torch.nn.GELU())
        with torch.no_grad():
            tracejit.jit(model, executors=["cpu"], fallback="error")(torch.rand(4, 8))
        @tracejit.jit(executors=["cpu"], fallback="error")
        def step(x, last):
            loss = model(x).square().mean()
            loss.backward()
            last.copy_(loss.detach())
        step(torch.rand(4, 8), torch.zeros(()))
        assert "torch.distributed.tensor" not in sys.modules
    """)


def test_torch_compile_works_before_and_after_a_first_call():
    in_new_process("""
        import sys, torch, tracejit
        def f(x):
            return torch.relu(x) * 2
        x = torch.randn(5)
        jitted = tracejit.jit(f, fallback="error")
        assert torch.equal(jitted(x), f(x))
        config = torch._dynamo.config
        import torch._dynamo
        assert torch._dynamo.config is config and config.fake_tensor_cache_enabled
        assert callable(torch._dynamo.disable(f)) and torch._dynamo is sys.modules["torch._dynamo"]
        from torch._dynamo.source import AttrSource, RandomValueSource
        assert AttrSource.__module__ == "torch._dynamo.source" and AttrSource is torch._dynamo.source.AttrSource
        assert torch.equal(torch.compile(f, backend="eager")(x), f(x))
        assert torch.equal(tracejit.jit(lambda x: f(x) + 1, fallback="error")(x), f(x) + 1)
    """)


def test_modules_that_were_put_off_are_whole_for_everybody_else():
    in_new_process("""
        import inspect, sys, torch, tracejit
        x = torch.randn(5)
        jitted = tracejit.jit(lambda x: torch.cat([x, x]) * 2, fallback="error")
        assert torch.equal(jitted(x), torch.cat([x, x]) * 2)
        import sympy
        inspect.getmodule(inspect.stack()[0][0])                # asks every module for its file
        assert "sympy.core" not in sys.modules
        assert isinstance(sympy.Symbol("n") + 1, sympy.Basic) and sympy.Basic.__module__ == "sympy.core.basic"
        from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false, sym_eq
        assert guard_or_false.__module__ == sym_eq.__module__ == ShapeEnv.__module__ == "torch.fx.experimental.symbolic_shapes"
        assert torch.fx.experimental.symbolic_shapes is sys.modules[ShapeEnv.__module__]
        longer = torch.export.Dim("longer")
        class Twice(torch.nn.Module):
            def forward(self, x):
                return torch.cat([x, x])
        program = torch.export.export(Twice(), (x,), dynamic_shapes=((longer,),))
        assert program.module()(torch.ones(7)).shape == (14,)
        assert torch.equal(tracejit.jit(lambda x: torch.cat([x, x]) + 1, fallback="error")(x), torch.cat([x, x]) + 1)
    """)


def test_a_symbolic_size_runs_the_module_that_was_put_off():
    in_new_process("""
        import torch, tracejit
        tracejit.jit(lambda x: x + 1, fallback="error")(torch.ones(3))
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv
        env = ShapeEnv()
        with FakeTensorMode(shape_env=env) as mode:
            x = mode.from_tensor(torch.ones(5, 4))
            y = torch.cat([x, x]).sum(1)
        assert str(y.shape[0]) in ("10", "2*s77", "2*s0") and len(y.shape) == 1, y.shape
    """)


def test_a_profiler_around_a_first_call_changes_nothing():
    in_new_process("""
        import cProfile, torch, tracejit
        x = torch.ones(3, 3, requires_grad=True)
        jitted = tracejit.jit(lambda x: (x.relu() @ x).sum(), fallback="error")
        with cProfile.Profile() as profile:
            jitted(x).backward()
        assert not jitted.replayed_because and x.grad is not None
        assert any("_first_call" in str(entry.code) for entry in profile.getstats())
    """)
