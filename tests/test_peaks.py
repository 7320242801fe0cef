"""Peak memory of fused programs beside eager's."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KEPT = {"matmul_between": 1}         # results that wait for the next call while torch makes others


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the high-water mark is read from Linux's /proc")
def test_peak_memory_is_no_higher_than_eagers():
    done = subprocess.run([sys.executable, "-m", "tests.memory_peaks"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) >= 8
    higher = {name: peaks for name, peaks in found.items() if peaks[1] > peaks[0] + KEPT.get(name, 0) + 0.1}
    assert not higher
