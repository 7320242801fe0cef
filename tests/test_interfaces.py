"""Doors for other programs: functional graphs for exporters, and tracejit as a backend of torch.compile."""
import configparser
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy
import onnxruntime
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import tracejit
from cases.compare import call_problems, clone_call, near, run
from test_models import in_place_resnet
from tracejit.interfaces.dynamo import backend

ROOT = Path(__file__).resolve().parents[1]
FULL = os.environ.get("TRACEJIT_TEST_ALL") == "1"


# ------------------------------------------------------------ functional graphs

def slices(x):
    x[1:3] = 7
    x[:, 0] = x[:, 1] * 2
    return x.sum(0)


def masked_through_a_view(x, mask):
    x.t().masked_fill_(mask, -1.0)
    return x * 2


def unsqueezes_in_place(x):
    y = x * 2
    y.unsqueeze_(0)
    return y.add_(1), x


def overwrites_and_reads(x, y):
    x += y
    before = x.clone()
    x[0].zero_()
    y.copy_(x.flip(0))
    return before, torch.add(x, y, alpha=2), x.view(-1)[3]


def with_a_constant(x):
    x[torch.tensor([0, 2])] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return x


def arguments(fn):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 4, generator=generator)
    return {masked_through_a_view: (x, torch.eye(4, dtype=torch.bool)), overwrites_and_reads: (x, x.t().clone())}.get(fn, (x,))


PROGRAMS = (slices, masked_through_a_view, unsqueezes_in_place, overwrites_and_reads, with_a_constant)


def calls(graph):
    return [n for n in graph.graph.nodes if n.op == "call_function"]


def mutates(node):
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


@pytest.mark.parametrize("fn", PROGRAMS)
def test_a_functional_graph_gives_the_results_and_writes_of_the_program(fn):
    args = arguments(fn)
    graph = tracejit.functionalize(fn)(*args)
    eager, ours = [a.clone() for a in args], [a.clone() for a in args]
    expected = fn(*eager)
    for a, b in zip(graph(*ours), expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert a.stride() == b.stride()
    assert all(map(torch.equal, ours, eager)) and all(map(torch.equal, args, arguments(fn)))


@pytest.mark.parametrize("fn", PROGRAMS)
def test_nothing_in_a_functional_graph_mutates_but_its_last_calls(fn):
    nodes = calls(tracejit.functionalize(fn)(*arguments(fn)))
    writes = [mutates(n) for n in nodes]
    assert writes == sorted(writes)
    assert all(n.target is torch.ops.aten.copy_.default and n.args[0].op == "placeholder" for n in nodes if mutates(n))
    assert any(n.meta.get("stack_trace", "").startswith(f'File "{__file__}"') for n in nodes)


def test_new_values_may_be_returned_instead():
    x = torch.zeros(4, 4)
    graph = tracejit.functionalize(slices, write_backs=False)(x)
    result, now = graph(x)
    assert graph.meta["written"] == ("x",) and not x.any() and not any(map(mutates, calls(graph)))
    slices(x)
    assert torch.equal(now, x)


def test_a_module_becomes_a_graph_with_its_parameters_and_buffers():
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True))
    model, x = torch.nn.Sequential(*layers), torch.randn(2, 3, 8, 8)
    graph = tracejit.functionalize(model)(x)
    assert {n for n, _ in graph.named_parameters()} == {n for n, _ in model.named_parameters()}
    assert graph.get_parameter("0.weight") is layers[0].weight and graph.get_buffer("1.running_mean") is layers[1].running_mean
    before = layers[1].running_mean.clone()
    [ours] = graph(x)
    after = layers[1].running_mean.clone()
    layers[1].running_mean.copy_(before)
    torch.testing.assert_close(ours, model(x))
    torch.testing.assert_close(after, layers[1].running_mean)
    assert layers[1].num_batches_tracked == 2


def views_an_argument_twice(x, y):
    x.add_(1)
    return x + y


def test_what_has_no_functional_form_is_refused_with_its_line():
    x = torch.zeros(4)
    with pytest.raises(tracejit.UnsupportedError, match=r"x and y share memory(.|\n)*test_interfaces.py"):
        tracejit.functionalize(views_an_argument_twice)(x, x[:])
    with pytest.raises(tracejit.UnsupportedError, match="no functional form"):
        tracejit.functionalize(lambda x: x.resize_(8))(x)
    assert not x.any() and x.shape == (4,)


@pytest.mark.parametrize("fn", [slices, masked_through_a_view, unsqueezes_in_place])
def test_onnxruntime_runs_what_mutates(fn):
    args = arguments(fn)
    graph = tracejit.functionalize(fn, write_backs=False)(*args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                        # torch.export's own deprecations
        exported = torch.onnx.export(graph, args, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(exported.model_proto.SerializeToString())
    given = {i.name: a.numpy() for i, a in zip(session.get_inputs(), args)}
    eager = [a.clone() for a in args]
    expected = fn(*eager)
    flat = [*(expected if isinstance(expected, tuple) else (expected,)), *eager[:len(graph.meta["written"])]]
    for a, b in zip(session.run(None, given), flat, strict=True):
        numpy.testing.assert_allclose(a, b.numpy(), rtol=1e-6)


# ------------------------------------------------------------ torch.compile

def inplace_variants():
    return [op for op in op_db if op.inplace_variant is not None and torch.float32 in op.supported_dtypes("cpu")]


@pytest.mark.parametrize("op", inplace_variants() if FULL else inplace_variants()[::12], ids=lambda op: op.formatted_name)
def test_in_place_ops_behind_dynamo_are_as_in_eager(op):
    torch._dynamo.reset()
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=False)), None)
    assert sample is not None

    def program(x, *args, **kwargs):
        y = op.inplace_variant(x, *args, **kwargs)
        return y, x * 2

    compiled = torch.compile(program, backend=backend)
    for _ in range(2):                                         # the second call finds what the first compiled
        call, ours = (clone_call((sample.input, *sample.args), sample.kwargs) for _ in range(2))
        want, got = run(program, *call), run(compiled, *ours)
        if want[1] is not None:                                # Dynamo has exceptions of its own for what eager refuses
            assert got[1] is not None
        else:
            assert not call_problems(call, want, ours, got, near)


def test_a_resnet_trains_behind_dynamo_as_in_eager():
    """Residual sums and ReLUs in place, BatchNorm buffers: losses, parameters and buffers; nothing falls back."""
    def trained(compile):
        torch.manual_seed(0)
        model, images = in_place_resnet()
        optimizer, step = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), compile(model)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = step(**images)["loss"]
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, model.state_dict()
    torch._dynamo.reset()
    ours = trained(lambda m: torch.compile(m, backend=backend, options={"fallback": "error"}))
    theirs = trained(lambda m: m)
    assert theirs[0][-1] < theirs[0][0] and theirs[1]["bn1.num_batches_tracked"] == 4
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_torch_compile_finds_the_backend_by_its_name(tmp_path):
    """As an installed package announces it: the entry points of setup.cfg in a distribution's metadata."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    described = tmp_path / "tracejit-0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: tracejit\nVersion: 0\n")
    [group] = config["options.entry_points"].items()
    (described / "entry_points.txt").write_text(f"[{group[0]}]\n{group[1].strip()}\n")
    program = ("import torch\n@torch.compile(backend='tracejit')\ndef f(x):\n    x[0] = 1\n    return x * 2\n"
               "x = torch.zeros(3)\nassert f(x).tolist() == [2, 0, 0] and x.tolist() == [1, 0, 0]\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr


def test_a_number_that_is_known_at_run_time_is_refused():
    with pytest.raises(tracejit.UnsupportedError, match="at run time"):
        tracejit.functionalize(lambda s, x: x * s.item())(torch.tensor(2.0), torch.ones(3))
