"""A first call in a new process imports little, and leaves torch as it would be without us."""
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def in_new_process(program):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_first_call_imports_neither_dynamo_nor_networkx():
    in_new_process("""
        import sys, torch, tracejit
        base = torch.ones(4, 8)
        jitted = tracejit.jit(lambda x, w: torch.relu(x @ w.t()).softmax(-1), executors=["cpu"], fallback="error")
        jitted(base[1:], base)                                  # a view, and its base
        assert "torch._dynamo.eval_frame" not in sys.modules and "networkx" not in sys.modules
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
