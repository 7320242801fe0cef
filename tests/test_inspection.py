"""What people look at: listings, differences, graphs, explanations, kernels and the scripts that reproduce them."""
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

import tracejit
from tracejit.__main__ import main
from tracejit.errors import TraceError
from tracejit.inspection import graph as graph_module, html
from tracejit.inspection.kernels import in_bytes, in_time
from tracejit.inspection.samples import copies_sharing_memory, sample_inputs


def decode(x, weight, cache):
    h = torch.nn.functional.layer_norm(x, x.shape[-1:], weight)
    cache[:, 2] = h[:, 0]
    scores = torch.softmax(h @ h.mT, -1)
    scores[0].mul_(2)
    return scores + 1, cache * 2


def decode_arguments():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 8, 16, generator=generator), torch.ones(16), torch.zeros(4, 4, 16)


@pytest.fixture(scope="module")
def decoded():
    compiled = tracejit.jit(decode, executors=["cpu"], fallback="error")
    compiled(*decode_arguments())
    return compiled


class Page(HTMLParser):
    """Rows by class, hover texts by name; fails on tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.tips, self.text, self.tip = [], [], {}, [], None
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.open.append(tag)
        if tag == "div" and attrs.get("class", "").startswith("row"):
            self.rows.append((attrs["class"].split(), []))
        self.tip = attrs.get("title") if tag == "abbr" else None

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.tip is not None:
            self.tips[data] = self.tip
        elif self.open and self.open[-1] != "style" and self.rows:
            self.rows[-1][1].append(data)


@pytest.mark.compiler
def test_a_listing_folds_regions_and_tells_of_every_name_where_it_lives(decoded):
    page = Page(decoded.last_traces[-1]._repr_html_())
    assert page.tips["x"] == "torch.float32 [4, 8, 16] stride [128, 16, 1] on cpu, storage 0 offset 0"
    assert page.tips["test_inspection.py:22"].startswith("nn.functional.layer_norm ")
    executors = [classes[1] for classes, _ in page.rows if len(classes) > 1]
    assert executors.count("cpu") == len(decoded.last_traces[-1].regions) > 0
    assert sum("copy" in classes for classes, _ in page.rows) == 1


@pytest.mark.compiler
def test_what_is_shown_in_full_by_print_has_a_short_repr(decoded):
    """At a prompt, in a list, in a debugger; the text/plain of a notebook's output."""
    first, *_, last = decoded.last_traces
    count = len(last.bound_symbols)
    assert repr(last) == f"<trace partition of decode: from decompose, {count} calls, {len(last.regions)} regions, 1 copy_>"
    assert repr(last.graph()) == f"<graph of {last!r}>"
    assert re.fullmatch(r"<diff calls \u2192 partition: \+\d+ \u2212\d+ lines>", repr(first.diff(last)))
    told = tracejit.explain(decoded, *decode_arguments())
    assert repr(told) == f"<explanation of decode: {told.summary}>"


def test_a_listing_shows_text_that_looks_like_html_as_text():
    compiled = tracejit.jit(lambda x: torch.einsum("i,i->i", x, x).to(torch.float64, copy=True), executors=["cpu"])
    compiled(torch.ones(3))
    assert "i-&gt;i" in compiled.last_traces[0]._repr_html_()


def test_a_diff_has_the_lines_that_a_pass_changed_and_no_others():
    compiled = tracejit.jit(lambda x: (x * 2) ** (x * 2), executors=["cpu"])
    compiled(torch.ones(3))
    stages = {t.stage: t for t in compiled.last_traces}
    changed = stages["functionalize"].diff(stages["cse"])
    assert [line[:12].rstrip() for line in changed.lines if line[0] in "+-"][2:] == [
        "-    t2 = to", "-    t3 = to", "-    del t1,", "+    t3 = to", "+    del t1"]
    assert str(changed).startswith("--- functionalize\n+++ cse\n") and Page(changed._repr_html_()).rows
    same = stages["cse"].diff(stages["cse"])
    assert not same and str(same) == ""


def reads_what_it_wrote(x):
    x[0] = 1
    return x.sum(0)


def test_a_graph_has_data_and_memory_edges_and_boxes_for_regions(decoded):
    compiled = tracejit.jit(reads_what_it_wrote, executors=["cpu"])
    compiled(torch.zeros(4, 4))
    g = compiled.last_traces[-1].graph().networkx
    kinds = {(g.nodes[a]["call"].sym.packet, g.nodes[b]["call"].sym.packet): d["kind"] for a, b, d in g.edges(data=True)}
    assert kinds["copy_", "sum"] == "raw"
    regions = {d["region"] for _, d in decoded.last_traces[-1].graph().networkx.nodes(data=True)}
    assert regions == {"", *(r.sym.name for r in decoded.last_traces[-1].regions)}


@pytest.mark.parametrize("with_graphviz", [pytest.param(True, marks=pytest.mark.skipif(
    shutil.which("dot") is None, reason="graphviz is not installed")), False])
def test_a_graph_is_drawn_by_graphviz_or_without_it(decoded, monkeypatch, tmp_path, with_graphviz):
    if not with_graphviz:
        monkeypatch.setattr(graph_module.shutil, "which", lambda name: None)
    graph = decoded.last_traces[-1].graph()
    drawn = graph.save(tmp_path / "g.svg").read_text()
    assert "<svg" in drawn and "cpu_region0" in drawn and "<!-- " not in drawn
    assert "<svg" in graph._repr_html_() and drawn == graph.svg()


def test_without_any_drawing_library_a_graph_says_what_to_install(decoded, monkeypatch):
    monkeypatch.setattr(graph_module.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_svg", None)
    with pytest.raises(TraceError, match="pip install matplotlib"):
        decoded.last_traces[-1].graph().svg()


# ------------------------------------------------------------ explanations

@pytest.mark.compiler
def test_an_explanation_tells_kernels_single_calls_writes_guards_and_stages(decoded):
    told = tracejit.explain(decoded, *decode_arguments())
    assert [k.name for k in told.kernels] == [r.sym.name for r in told.traces[-1].regions]
    assert all(told.seconds[k.name] > 0 for k in told.kernels)
    [product] = [u for u in told.unfused if u.op == "aten.bmm.default"]
    assert (product.count, product.why, product.lines) == (1, "no kernel is known for bmm", ("test_inspection.py:24",))
    [write] = told.copies
    assert write.nbytes == 4 * 16 * 4 and write.cause == "Tensor.__setitem__  test_inspection.py:23"
    assert "torch.softmax" in told.guards and not told.eager
    text = str(told)
    assert all(title in text for title in ("kernels\n", "one by one\n", "writes\n", "guards\n", "stages\n"))
    page = told._repr_html_()
    Page(page)
    assert page.count("int tj_region(int nt") == len(told.kernels) and all(f"source of {k.name}" in page for k in told.kernels)


def test_an_explanation_of_what_cannot_be_captured_says_why():
    def asks(x):
        return x + 1 if x.sum().item() > 0 else x - 1
    told = tracejit.explain(asks, torch.ones(3))
    assert "needs the values of a tensor" in told.eager and told.advice and "runs eagerly" in str(told) and not told.kernels


def test_explaining_does_not_touch_the_entries_of_the_jitted_function(decoded):
    before = decoded.cache_info()
    tracejit.explain(decoded, *decode_arguments())
    assert decoded.cache_info() == before


def test_the_command_explains_a_function_of_a_module(tmp_path, monkeypatch, capsys):
    (tmp_path / "mymodel.py").write_text("import torch\ndef f(x, scale):\n    return torch.exp(x) * scale + 1\n")
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "mymodel:f", "torch.ones(8), scale=2"]) == 0
    assert capsys.readouterr().out.startswith("f: ")
    assert main(["explain", "mymodel:f", "torch.ones(8), 2", "--html", "out.html"]) == 0
    Page((tmp_path / "out.html").read_text().split("</title>")[1])
    for wrong in (["mymodel"], ["mymodel:g"], ["nomodule:f"], ["mymodel:f", "unknown_name"]):
        with pytest.raises(SystemExit, match="2"):
            main(["explain", *wrong])


# ------------------------------------------------------------ kernels

@pytest.mark.compiler
def test_a_kernel_tells_what_it_moves_and_shows_what_it_computes(decoded):
    first = decoded.kernels[0]
    assert first.bytes_read == 4 * (4 * 8 * 16 + 16) and first.bytes_written == 4 * 4 * 8 * 16
    assert "tj_region" in first.source and first.lines == ["test_inspection.py:22"]
    inputs = sample_inputs(first.region)
    scope = {"torch": torch}
    exec(str(first.trace), scope)
    expected, got = scope[first.name](*inputs), first(*inputs)
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b)
    Page(first._repr_html_())


def writes_through_views(x, index):
    x[1:3] = x[1:3] * 2 + 1
    taken = torch.nn.functional.embedding(index, x)
    return torch.relu(taken) + taken.sum(-1, keepdim=True)


def losses(x, target):
    return torch.nn.functional.cross_entropy(x, target, reduction="none")


def normed(x, mean, variance, weight, bias):
    return torch.nn.functional.batch_norm(x, mean, variance, weight, bias, training=True) * 2


OF_TRACEJIT = {losses: "def nll_loss_gather", normed: "def restride"}      # what a region calls besides torch


@pytest.mark.compiler
@pytest.mark.parametrize("fn, arguments", [
    (decode, decode_arguments()), (writes_through_views, (torch.randn(6, 8), torch.tensor([1, 4, 2]))),
    (normed, (torch.randn(4, 8, 5), torch.zeros(8), torch.ones(8), torch.ones(8, requires_grad=True), torch.zeros(8))),
    (losses, (torch.randn(6, 8), torch.tensor([1, 4, 2, 0, 7, 3])))],
    ids=["decode", "writes", "norm", "loss"])
@pytest.mark.one_in(2)
def test_reproduction_scripts_run_alone_and_find_a_wrong_kernel(fn, arguments, tmp_path):
    compiled = tracejit.jit(fn, executors=["cpu"], fallback="error")
    compiled(*arguments)
    assert compiled.kernels
    for kernel in compiled.kernels[-1:]:
        script = kernel.save_repro(tmp_path / f"{kernel.name}.py")
        done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and "equal to PyTorch's" in done.stdout, done.stderr
    text = script.read_text()
    assert "import tracejit" not in text and "from tracejit" not in text and OF_TRACEJIT.get(fn, "") in text
    stores = re.findall(r"^ +a\d+\[.*\] = (.*);$", text, re.M)
    broken = tmp_path / "broken.py"
    broken.write_text(text.replace(f"= {stores[-1]};", f"= {stores[-1]} + 1;"))
    done = subprocess.run([sys.executable, broken.name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "differs" in done.stderr


def test_made_up_inputs_share_memory_as_the_arguments_do():
    x = torch.zeros(10)
    a, b = copies_sharing_memory((x[2:], x[:4]))
    a[0] = 7
    assert b[2] == 7 and x[2] == 0 and a.shape == (8,)


def many_regions(x, w):
    for _ in range(40):
        x = torch.tanh(x @ w) * 0.5 + x
    return x


class OneWrong(tracejit.CpuExecutor):
    """Spoils the results of one region."""

    name = "one_wrong"

    def __init__(self, which):
        super().__init__()
        self.which = which

    @contextmanager
    def finishing(self, regions):
        def spoilt():
            made = ready()
            wrong = made[self.which]
            made[self.which] = replace(wrong, sym=replace(wrong.sym, fn=lambda *tensors: [t + 1 for t in wrong.sym.fn(*tensors)]))
            return made
        with super().finishing(regions) as ready:
            yield spoilt


@pytest.mark.compiler
@pytest.mark.parametrize("which", [0, 23, 39])
def test_bisect_finds_a_wrong_kernel_among_forty(which):
    compiled = tracejit.jit(many_regions, executors=[OneWrong(which)], fallback="error")
    found = tracejit.bisect(compiled, torch.randn(8, 8), torch.randn(8, 8) / 8)
    assert found.position == which and "differs" in str(found)


def test_bisect_finds_nothing_where_nothing_is_wrong(decoded):
    assert tracejit.bisect(decoded, *decode_arguments()) is None


def test_sizes_and_times_are_told_in_three_digits():
    assert [in_time(t) for t in (3.21e-7, 4.5e-6, 0.0230495, 2.5)] == ["0.321 us", "4.5 us", "23 ms", "2.5 s"]
    assert [in_bytes(n) for n in (0, 999, 1500, 2_000_000, 3.21e9, 5e12)] == [
        "0 B", "999 B", "1.5 kB", "2 MB", "3.21 GB", "5e+03 GB"]


# ------------------------------------------------------------ as it runs

def two_kernels(x, w):
    return torch.tanh(torch.relu(x) * 2 @ w) + 1


def test_fuel_limits_how_many_regions_become_kernels(monkeypatch):
    for fuel, kernels in (("", 2), ("1", 1), ("0", 0)):
        monkeypatch.setenv("TRACEJIT_FUEL", fuel)
        compiled = tracejit.jit(two_kernels, executors=["cpu"], fallback="error")
        x, w = torch.randn(4, 4), torch.randn(4, 4)
        torch.testing.assert_close(compiled(x, w), two_kernels(x, w))
        assert len(compiled.kernels) == kernels


def test_kernels_report_themselves_when_they_are_asked_to(monkeypatch, capsys):
    monkeypatch.setenv("TRACEJIT_LOG", "kernels,bandwidth,profiler")
    compiled = tracejit.jit(two_kernels, executors=["cpu"], fallback="error")
    with torch.profiler.profile() as profile:
        for _ in range(3):
            compiled(torch.randn(4, 4), torch.randn(4, 4))
    said = capsys.readouterr().err.splitlines()
    assert sum("fuses" in line for line in said) == 2
    assert sum(line.endswith("GB/s") for line in said) == 6
    ranges = [e.key for e in profile.key_averages() if e.key.startswith("cpu_region")]
    assert len(ranges) == 2 and all("test_inspection.py:" in r for r in ranges)
    assert compiled.kernels[0].source


# ------------------------------------------------------------ as a browser shows it

def luminance(colour):
    """Relative, of `#rrggbb`, as WCAG 2 defines it."""
    parts = [int(colour[n:n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("colours", [html._LIGHT, html._DARK], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for_on_every_background(colours):
    for text in ("fg", "dim"):
        for ground in ("bg", "head", "copy", "add", "del"):
            low, high = sorted((luminance(colours[text]), luminance(colours[ground])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


@pytest.mark.compiler
def test_the_long_parts_of_a_page_are_folded_at_first():
    told = tracejit.explain(many_regions, torch.randn(8, 8), torch.randn(8, 8) / 8)
    text = html.page("many", told._repr_html_())
    found = re.findall(r'<details class="fold"( open|)><summary class="note">([^<]* \(\d+\))<', text)
    folds = {title: state for state, title in found}
    assert folds["kernels (40)"] == folds["sources (40)"] == "" and folds["one by one (1)"] == " open"
    assert '<meta name="color-scheme" content="light dark">' in text
