"""`scripts/gpu_check.py` without a device: every part of it runs, on the CPU and the shim in the device's place."""
import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import gpu_check
import tracejit
from on_shim import ShimExecutor
from proof import needs_nvrtc
from programs import Program

SCRIPT = Path(gpu_check.__file__)
ON_A_DEVICE = ("graph", "raw kernel", "index out of bounds")               # what has no stand-in here
FOREIGN = ("pytest", "hypothesis", "scipy", "transformers", "expecttest", "pandas")


class Event:
    def __init__(self, enable_timing):
        self.at = 0.0

    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, stop):
        return (stop.at - self.at) * 1e3


def nothing(*_):
    return None


@pytest.fixture
def device(monkeypatch):
    """torch.cuda's functions that the script calls."""
    for name, stand_in in dict(
            is_available=lambda: True, current_device=lambda: 0, get_device_name=lambda d: "no device", synchronize=nothing, Event=Event,
            reset_peak_memory_stats=nothing, max_memory_allocated=lambda: 0, stream=contextlib.nullcontext).items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(gpu_check, "current_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(gpu_check, "missing", lambda: "")
    monkeypatch.setattr(gpu_check, "jitted", lambda fn: tracejit.jit(
        fn, executors=[ShimExecutor(allow_single_op_fusion=True), "cpu"], fallback="error"))


def told(monkeypatch, tmp_path, programs, workloads=(), *options):
    """What the script writes, and its exit status."""
    monkeypatch.setattr(gpu_check, "PROGRAMS", programs)
    monkeypatch.setattr(gpu_check, "WORKLOADS", workloads)
    monkeypatch.setattr(gpu_check, "CHECKS", {n: f for n, f in gpu_check.CHECKS.items() if n not in ON_A_DEVICE})
    monkeypatch.setattr(gpu_check, "TIME_LEFT", -1)
    status = gpu_check.main(["--json", str(tmp_path / "found.json"), *options])
    return json.loads((tmp_path / "found.json").read_text()), status


@needs_nvrtc
def test_programs_checks_launches_and_workloads_run(device, monkeypatch, tmp_path, capsys):
    programs = [p for p in gpu_check.PROGRAMS if p.name in ("abs+1 of 5", "a float of a tensor")]
    workloads = [w for w in gpu_check.WORKLOADS if w.name.startswith("tiny")]
    report, status = told(monkeypatch, tmp_path, programs, workloads)
    assert (status, report["errors"], report["checked"]) == (0, [], 5)
    (row,) = report["workloads"]
    assert row["MB"] * 1e6 == 3 * 256 and {"tracejit_us", "eager_us", "tracejit_GBs", "copy_GBs", "first_ms"} <= set(row)
    assert set(report["launch"]) == {"tracejit_us", "eager_us"} and "5 of 5" in capsys.readouterr().out


@needs_nvrtc
def test_what_is_wrong_is_told(device, monkeypatch, tmp_path, capsys):
    calls = []
    def unsteady(x):
        calls.append(1)
        return x + len(calls) % 2
    wrong = [Program("unsteady", unsteady, lambda: (torch.ones(8),), exact=True), Program("raises", lambda x: x.nothing(), lambda: (torch.ones(8),))]
    report, status = told(monkeypatch, tmp_path, wrong, (), "--quick")
    assert status == 1 and {e["what"] for e in report["errors"]} == {"unsteady", "raises"}
    assert "WRONG unsteady: off by 1" in capsys.readouterr().out


def test_it_names_nothing_that_torch_does_not_have():
    for name in re.findall(r"torch\.cuda\.(\w+)", SCRIPT.read_text()):
        assert hasattr(torch.cuda, name), name


def test_it_starts_with_nothing_installed_but_torch_cupy_and_networkx():
    """`cupy` is found, and torch finds no device."""
    code = f"""
import sys, types, runpy
sys.modules.update({{name: None for name in {FOREIGN}}}, cupy=types.ModuleType("cupy"))
sys.argv = [{str(SCRIPT)!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stdout) == (2, "nothing to run on: torch sees no CUDA device\n"), done.stderr
