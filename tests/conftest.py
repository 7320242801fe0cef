"""What every test runs under, and the lines that suites print beside the pass figure."""
import os
import shutil
import tempfile
import zlib

# Before torch is imported: thread pools are sized once. The checker runs after every stage of every compile.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRACEJIT_CHECK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not IS_WORKER:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="tracejit-test-")       # workers and their children share its kernels

from pathlib import Path

import pytest
import torch

FULL = os.environ.get("TRACEJIT_TEST_ALL") == "1"
GOLDEN = Path(__file__).parent / "golden"
LINE, TALLY = "tracejit_line", "tracejit_tally"


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write the golden texts anew instead of comparing")


def pytest_configure(config):
    torch.set_num_threads(1)
    config.pluginmanager.register(_Summary(), "tracejit-summary")


def pytest_unconfigure(config):
    if not IS_WORKER:
        shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


def pytest_collection_modifyitems(config, items):
    skip_what_cannot_run(items)
    if FULL:
        return
    left_out = {item for item in items if is_left_out(item)}
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def is_left_out(item):
    """The ordinary run leaves out what is marked `full`, and of what is marked `one_in(n)` all but every n-th, told by the name."""
    share = item.get_closest_marker("one_in")
    return bool(item.get_closest_marker("full") or share and zlib.crc32(item.nodeid.encode()) % share.args[0])


def skip_what_cannot_run(items):
    """Tests of kernels on a machine without a C compiler."""
    needing = [item for item in items if item.get_closest_marker("compiler")]
    if needing:
        import warnings

        from tracejit.executors.cpu import CpuExecutor
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if CpuExecutor().available():
                return
    for item in needing:
        item.add_marker(pytest.mark.skip(reason="needs a C compiler"))


@pytest.fixture(scope="session")
def full():
    """True in the full run (`scripts/test.sh --all` or TRACEJIT_TEST_ALL=1): whole sets, not thinned ones."""
    return FULL


@pytest.fixture
def golden(request):
    """`golden(name, text)` asserts that `text` is what tests/golden/NAME holds; --update-golden writes it there."""
    def compare(name, text):
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} does not exist: run with --update-golden and read what it writes"
        assert text == path.read_text(), f"differs from {path}: if that is meant, run with --update-golden"
    return compare


@pytest.fixture
def report_line(request):
    """`report_line(text)` prints a line at the end of the run, from workers too; equal lines print once."""
    def report(text):
        request.node.user_properties.append((LINE, str(text)))
    return report


@pytest.fixture
def tally(request):
    """`tally(suite, calls=1, fell_back=0)` adds to counters that are summed over all tests and workers.

    The end of the run shows one line a suite, each counter with its share of the first one:
    `opinfo float32: 812 calls, 9 fell back (1.1 %)`.
    """
    def add(suite, **counts):
        request.node.user_properties.append((TALLY, [suite, counts]))
    return add


class _Summary:
    """Collects from the tests' reports, whose user properties are what workers send to the main process."""

    def __init__(self):
        self.lines: dict[str, None] = {}
        self.tallies: dict[str, dict[str, int]] = {}

    def pytest_runtest_logreport(self, report):
        if report.when != "teardown":  # a test's properties are repeated in the report of each of its phases
            return
        for key, value in report.user_properties:
            if key == LINE:
                self.lines[value] = None
            elif key == TALLY:
                suite, counts = value
                total = self.tallies.setdefault(suite, {})
                for name, n in counts.items():
                    total[name] = total.get(name, 0) + n

    def pytest_terminal_summary(self, terminalreporter):
        texts = [format_tally(suite, counts) for suite, counts in sorted(self.tallies.items())]
        texts += sorted(self.lines)
        if texts:
            terminalreporter.section("beside the pass figure")
            for text in texts:
                terminalreporter.write_line(text)


def format_tally(suite, counts):
    """One line: the first counter is the whole, the others are shown with their share of it."""
    (whole, total), *parts = counts.items()
    shown = [f"{total} {whole.replace('_', ' ')}"]
    for name, n in parts:
        share = f" ({100 * n / total:.1f} %)" if total else ""
        shown.append(f"{n:g} {name.replace('_', ' ')}{share}")
    return f"{suite}: " + ", ".join(shown)


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def compiler_from_environment(monkeypatch):
    """`use(command)`: what compiles kernels is this command from now on."""
    from tracejit.executors import kernel_cache

    def use(command):
        monkeypatch.setenv("CC", str(command))
        kernel_cache.compiler.cache_clear()
        kernel_cache.machine.cache_clear()
    yield use
    monkeypatch.undo()
    kernel_cache.compiler.cache_clear()
    kernel_cache.machine.cache_clear()
