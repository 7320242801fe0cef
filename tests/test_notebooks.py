"""The notebooks run from top to bottom, and what they show was made by the cells that stand above it.

    python -m pytest -n 0 tests/test_notebooks.py --update-golden    # writes the outputs anew
"""
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAX_BYTES = 100 * 1024
CELLS_DIRECTORY = re.compile(r"[\w/.-]*/ipykernel_\d+/")        # of the files that cells are compiled as
TIMING = re.compile(r"\d[\d.]*(?= (?:us|ms|s)\b)|(?<=jitted / eager )\d[\d.]*")


def executed(path):
    """A copy of the notebook with new outputs; raises CellExecutionError, with the cell, when one fails."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", coalesce_streams=True,
                   resources={"metadata": {"path": path.parent}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)                   # times of day
        for output in cell.get("outputs", ()):
            if "text/html" in output.get("data", {}):
                output.data["text/html"] = CELLS_DIRECTORY.sub("", output.data["text/html"])
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    return notebook


def shown(notebook):
    """The text that each code cell shows, timings left out."""
    return [TIMING.sub("?", "".join(map(output_text, cell.outputs)))
            for cell in notebook.cells if cell.cell_type == "code"]


def output_text(output):
    return output.text if output.output_type == "stream" else output.get("data", {}).get("text/plain", "")


@pytest.fixture(autouse=True)
def _kernel_sees_the_project(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # silences a warning of the kernel's debugger


@pytest.mark.compiler
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_what_is_committed(path, request):
    notebook = executed(path)
    if request.config.getoption("--update-golden"):
        nbformat.write(notebook, path)
    assert shown(notebook) == shown(nbformat.read(path, as_version=4)), "if that is meant: --update-golden -n 0"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_with_outputs_small_and_without_noise(path):
    text = path.read_text()
    assert len(text) <= MAX_BYTES
    assert not re.search(r"/(?:home|tmp|root|Users|work)/", text)
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]


def test_there_is_a_notebook():
    assert NOTEBOOKS


def test_the_tracer_from_scratch_has_two_hundred_lines():
    """Whatever stands before the random programs in cells that show nothing; blank lines are not counted."""
    [path] = [path for path in NOTEBOOKS if path.stem == "05_tracejit_from_scratch"]
    cells = nbformat.read(path, as_version=4).cells
    [end] = [n for n, cell in enumerate(cells) if cell.source.startswith("## 6. Is it right?")]
    silent = [cell for cell in cells[:end] if cell.cell_type == "code" and not cell.outputs]
    lines = [line for cell in silent for line in cell.source.splitlines() if line.strip()]
    assert "class Jitted:" in lines and "200 lines" in cells[0].source
    assert len(lines) <= 200 and max(map(len, lines)) <= 120
