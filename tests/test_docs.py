"""What the documents say is so: code blocks run and print what stands below them, tables name what exists."""
import ast
import dataclasses
import doctest
import importlib
import itertools
import pkgutil
import re
import runpy
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import tracejit
from tracejit import options

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
TRACE_HEADING = re.compile(r"# \w+( from \w+)?$")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Program:
    """A python block of a document, and the blocks below it that show what it prints."""

    document: Path
    text: str
    output: tuple[str, ...]

    @property
    def file(self):
        """The name that the block gives itself in its first line."""
        named = re.match(r"# (\w+\.py)\n", self.text)
        return named[1] if named else "block.py"


def is_output(language, text):
    return language == "text" or bool(TRACE_HEADING.match(text.splitlines()[0]))


def programs():
    found = []
    for document in DOCUMENTS:
        blocks = [(language, text) for language, text in FENCED.findall(document.read_text())
                  if language in ("python", "text")]
        for n, (language, text) in enumerate(blocks):
            if not is_output(language, text):
                below = itertools.takewhile(lambda block: is_output(*block), blocks[n + 1:])
                found.append(Program(document, text, tuple(text for _, text in below)))
    return found


def run_program(program, directory, capsys):
    """What the block prints, split at blank lines, paths without their directory."""
    path = directory / program.file
    path.write_text(program.text)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tracejit.FallbackWarning)
        runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out.replace(f"{directory}/", "").strip("\n")
    return tuple(part + "\n" for part in printed.split("\n\n")) if printed else ()


@pytest.mark.compiler
@pytest.mark.parametrize("program", programs(), ids=lambda p: f"{p.document.name}-{p.text.splitlines()[-1][:40]}")
def test_code_blocks_run_and_print_what_stands_below_them(program, tmp_path, capsys, request):
    printed = run_program(program, tmp_path, capsys)
    assert len(printed) == len(program.output)
    if request.config.getoption("--update-golden"):
        text = program.document.read_text()
        for old, new in zip(program.output, printed):
            text = text.replace(f"\n{old}```", f"\n{new}```", 1)
        program.document.write_text(text)
    else:
        assert printed == program.output, "if the document is to change: --update-golden -n 0"


@pytest.mark.compiler
def test_the_readme_opens_with_a_trace_as_recorded_and_as_run():
    first = programs()[0]
    assert first.document == README
    before, after = (text.splitlines()[0] for text in first.output)
    first_stage, *_, last_stage = stages_of_a_compile()
    assert before == f"# {first_stage}" and after.startswith(f"# {last_stage} from")
    introduction = README.read_text().split("```")[0].strip().splitlines()
    assert len([line for line in introduction[1:] if line]) == 5


def stages_of_a_compile():
    jitted = tracejit.jit(lambda x: x.add_(1), fallback="error")
    jitted(torch.ones(2))
    return [trace.stage for trace in jitted.last_traces]


def documented_modules():
    return [info.name for info in pkgutil.walk_packages(tracejit.__path__, "tracejit.")]


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["tracejit", *documented_modules()])
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        if test.examples:
            messages = []
            failed = doctest.DocTestRunner(verbose=False).run(test, out=messages.append).failed
            assert not failed, "".join(messages)


@pytest.mark.parametrize("name", tracejit.__all__)
def test_public_names_have_an_example(name):
    assert ">>> " in (getattr(tracejit, name).__doc__ or "")


def test_the_api_reference_is_that_of_the_docstrings():
    script = runpy.run_path(str(ROOT / "scripts" / "api_reference.py"))
    assert script["page"]() == script["PAGE"].read_text(), "python scripts/api_reference.py writes it anew"


def private_names_used():
    """Full names of what the modules for private API look up."""
    names = set()
    modules = [ast.parse((ROOT / "tracejit" / name).read_text()) for name in ("torch_private.py", "torch_deferred.py")]
    for node in itertools.chain.from_iterable(map(ast.walk, modules)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("_find", "_find_optional"):
            names.add(f"torch.{node.args[0].value}")
        elif isinstance(node, ast.ImportFrom) and node.module.startswith("torch._"):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def rows(document, heading):
    """The cells of the table whose first column has this heading."""
    lines = iter(document.read_text().splitlines())
    next(line for line in lines if re.match(rf"\|\s*{heading}\s*\|", line))
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table][1:]


def named(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_private_torch_names_are_those_that_are_used():
    listed = [name for cells in rows(ROOT / "docs" / "private_torch.md", "name") for name in named(cells[0])]
    assert len(listed) == len(set(listed))
    assert set(listed) == private_names_used()


def test_the_options_table_has_all_options_and_their_defaults():
    table = {named(cells[0])[0]: ast.literal_eval(named(cells[1])[0]) for cells in rows(README, "option")}
    assert table == {f.name: f.default for f in dataclasses.fields(options.Options)}


@pytest.mark.compiler
def test_the_stages_table_has_those_of_a_compile_in_order():
    assert [name for cells in rows(README, "stage") for name in named(cells[0])] == stages_of_a_compile()


def test_environment_variables_and_log_topics_are_those_that_are_read():
    sources = "".join(path.read_text() for path in (ROOT / "tracejit").rglob("*.py"))
    read = set(re.findall(r"environ\.get\(\"(TRACEJIT_\w+)\"", sources))
    listed = {re.match(r"TRACEJIT_\w+", name)[0] for cells in rows(README, "environment") for name in named(cells[0])}
    assert listed == read
    topics = set(re.findall(r"\"(\w+)\" (?:not )?in (?:log_)?topics(?:\(\))?", sources))
    row = next(cells for cells in rows(README, "environment") if "TRACEJIT_LOG" in cells[0])
    assert topics and set(named(row[1])) == topics


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_scripts_exist(document):
    text = document.read_text()
    linked = [document.parent / link for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    called = [ROOT / path for path in re.findall(r"\b(?:scripts|tests|tracejit)/[\w/]+\.(?:py|sh)\b", text)]
    assert not [str(path) for path in linked + called if not path.exists()]


def test_reports_that_the_comparison_cites_have_programs():
    programs_of = "".join(path.read_text() for path in (ROOT / "tests" / "cases").glob("*.py"))
    cited = re.findall(r"github\.com/[\w/-]+/issues/(\d+)", (ROOT / "docs" / "comparison.md").read_text())
    assert cited and not [number for number in cited if f"#{number}" not in programs_of]


def test_the_readme_links_every_document_and_notebook():
    linked = set(re.findall(r"\]\(((?:docs|notebooks)/[\w.]+)", README.read_text()))
    there = {str(path.relative_to(ROOT)) for path in (*ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb"))}
    assert linked == there
