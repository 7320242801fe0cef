"""scripts/replay.py tells whether two versions of the package make the same kernels."""
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def replay(*arguments):
    return subprocess.run([sys.executable, ROOT / "scripts" / "replay.py", *map(str, arguments)], capture_output=True, text=True)


def test_a_change_of_the_renderer_shows_as_a_diff_of_kernels(tmp_path):
    shutil.copytree(ROOT / "tracejit", tmp_path / "tracejit")
    same = replay(tmp_path, ROOT, "--only", "tiny")
    assert same.returncode == 0 and "1 programs, 1 regions: the same kernels" in same.stdout, same.stderr
    entry = tmp_path / "tracejit" / "codegen" / "source.py"
    entry.write_text(entry.read_text().replace('"  return bad;", "}"', '"  return bad ;", "}"'))
    changed = replay(ROOT, tmp_path, "--only", "tiny")
    assert changed.returncode == 1, changed.stderr
    assert "-  return bad;" in changed.stdout and "+  return bad ;" in changed.stdout and "kernels differ" in changed.stdout
