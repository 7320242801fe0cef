"""Every message that a user can see, as golden text: what happened, where in the program, what to do."""
import linecache
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

import tracejit
from tracejit.executors import registry

from cases import explain_messages, rare_messages, rarer_messages, replay_messages  # noqa: F401  (they register their cases)
from cases.messages import CASES

pytestmark = pytest.mark.compiler
ROOT = Path(__file__).resolve().parents[1]


def message_of(case):
    """What a case raises or warns, with its class."""
    threads = torch.get_num_threads()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = case.use()
        except Exception as error:  # of any class: it is what is printed
            return f"{type(error).__name__}: {error}"
        finally:
            torch.set_num_threads(threads)
    told = [w for w in caught if issubclass(w.category, (tracejit.FallbackWarning, tracejit.RetraceWarning))]
    return f"{told[0].category.__name__}: {told[0].message}" if told else result if isinstance(result, str) else "nothing"


def normalized(text):
    """Lines of files as their text, addresses left out."""
    def line(found):
        return f"{found[2]}: {linecache.getline(found[1] + found[2], int(found[3])).strip()}"
    text = re.sub(r"(/[\w./-]*/)(\w+\.py):(\d+)", line, text)
    text = re.sub(r"\b(\w*messages\.py):\d+", r"\1", text)
    text = re.sub(r"(/\S+)?/\S+?\.(c|tmp|so|cu)\b", r"KERNEL.\2", re.sub(r"/[\w./-]*/cc\b", "cc", text))
    text = re.sub(r"(?<=cc) -.* (?=KERNEL\.c -o)|(?<='cc', ).*(?='KERNEL\.c', '-o')", " ... ", text)
    text = re.sub(r" Hint: .*", "", text).replace(torch.__version__, "...")
    text = re.sub(r"'/[\w./-]*/(\w+\.py)', line=\d+", r"'\1', line=...", text)
    return re.sub(r"0x[0-9a-f]{6,}", "0x...", text)


def test_messages(golden, monkeypatch):
    registered = {name: tracejit.get_executor(name) for name in ("torch", "cpu", "cupy")}
    monkeypatch.setattr(registry, "_registered", registered)   # whatever other tests register
    golden("errors.txt", "\n\n".join(f"## {c.name}\n{normalized(message_of(c))}" for c in CASES) + "\n")


@pytest.mark.parametrize("followed", replay_messages.FOLLOWED, ids=lambda f: f[0].__name__)
def test_what_a_message_says_to_do_helps(followed):
    fn, args, around = followed
    jitted = tracejit.jit(fn, fallback="error")
    with around():
        jitted(*args())
    assert jitted.replayed_because == ""


@pytest.mark.parametrize("case", [c for c in CASES if c.where], ids=lambda c: c.name)
def test_a_message_names_the_line_of_the_program(case):
    assert re.search(r"/cases/\w*messages\.py:\d+", message_of(case))


def test_cells_of_a_notebook_are_named_by_their_numbers():
    program = """
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.run_cell("import torch, tracejit", store_history=True)
        shell.run_cell("def f(x):\\n    return x * time.time() + 1\\nimport time", store_history=True)
        shell.run_cell("g = tracejit.jit(lambda x: x * 2 + 1)\\nlist(map(g, [torch.ones(2)]))", store_history=True)
        shell.run_cell("try:\\n    tracejit.jit(f, fallback='error')(torch.ones(2))\\nexcept tracejit.UnsupportedError as e:\\n    told = str(e)")
        print(shell.user_ns["told"])
        print(shell.user_ns["g"].last_traces[0])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "at In[2]:2" in done.stdout and "In[3]:1" in done.stdout and "ipython-input" not in done.stdout
