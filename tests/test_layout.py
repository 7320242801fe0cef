"""The layout: data flows one way, settings are read in one place, private torch API stays where it is."""
import ast
import configparser
import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tracejit"

# A layer imports only from itself and from the layers before it.
LAYERS = ("ir", "capture", "passes", "partition", "codegen", "executors", "runtime", "pipeline", "offline", "api")
EVERYWHERE = {"options", "errors", "torch_private", "torch_deferred"}
MAY_IMPORT_INSPECTION = {"inspection", "api", "__init__", "__main__"}
# Doors for other programs, beside `api`: they may read everything, and only the package itself imports them.
DOORS = {"__init__", "__main__", "interfaces"}
# A trace shows itself: `trace.diff`, `trace.graph` and a notebook's listing open these modules when they are called.
DISPLAYS_ITSELF = "ir/trace.py"

# Modules that may use private API of torch: each use is a place to look at when torch's next release comes.
PRIVATE_TORCH_ALLOWED = {
    "torch_private.py", "torch_deferred.py",
}
# Private in name only: pytrees, dispatch modes, and the classes of what `torch.ops` holds.
PRIVATE_IN_NAME_ONLY = {"torch.utils._pytree", "torch.utils._python_dispatch", "torch._ops"}

MAX_LINES = 420


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def relative(path):
    return path.relative_to(PACKAGE).as_posix()


def layer_of(path):
    """`ir` for tracejit/ir/proxy.py, `pipeline` for tracejit/pipeline.py."""
    return Path(relative(path)).parts[0].removesuffix(".py")


def imported_names(tree, package):
    """Yields (dotted name, line) for all imports of a module, relative ones resolved against `package`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(parents + ([node.module] if node.module else []))
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def test_what_is_imported_is_installed_with_the_package():
    """Modules that are imported when tracejit is, not those that a function opens for a purpose of its own."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    required = {re.match(r"[\w-]+", line)[0] for line in settings["options"]["install_requires"].split()}
    imported = set()
    for path in modules():
        at_import = [node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        absolute = [node for node in at_import if getattr(node, "level", 0) == 0]
        imported |= {name.split(".")[0] for node in absolute for name, _ in imported_names(ast.Module([node], []), "tracejit")}
    assert imported - set(sys.stdlib_module_names) - {"tracejit"} <= required


def layers_imported(tree, package):
    """Yields (layer, line) for each import of the project's own."""
    for name, line in imported_names(tree, package):
        parts = name.split(".")
        if parts[0] == "tracejit":
            yield (parts[1] if len(parts) > 1 else "__init__"), line


def may_import(importer, imported):
    if imported == "inspection":
        return importer in MAY_IMPORT_INSPECTION
    if imported in EVERYWHERE:
        return True
    if importer in EVERYWHERE:
        return False
    if imported == "interfaces":
        return importer in DOORS
    if importer in (*DOORS, "inspection"):
        return imported in LAYERS
    return imported in LAYERS and LAYERS.index(imported) <= LAYERS.index(importer)


def environment_reads(tree):
    """Lines that read environment variables: by `os.environ`, `os.getenv`, or either imported from os.

    Which object `os.environ` is, and of which type, may be asked anywhere: guards on the user's reads need it.
    """
    identity_only = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            identity_only.update([node.left, *node.comparators])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type":
            identity_only.update(node.args)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and dotted(node) in ("os.environ", "os.environb", "os.getenv"):
            if node not in identity_only:
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            if any(alias.name in ("environ", "environb", "getenv") for alias in node.names):
                yield node.lineno


def dotted(node):
    """`a.b.c` for a chain of attributes on a name, else None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def private_module(name):
    """The private module of torch that a dotted name reaches into, or None; torch._foreach_add is an op."""
    parts = name.split(".")
    if parts[0] != "torch":
        return None
    for end in range(2, len(parts) + 1):
        prefix = ".".join(parts[:end])
        private = parts[end - 1].startswith("_") and not parts[end - 1].startswith("__")
        if private and prefix not in PRIVATE_IN_NAME_ONLY and is_module(prefix):
            return prefix
    return None


def is_module(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def private_torch_uses(tree, package):
    """Yields (private module, line)."""
    for name, line in imported_names(tree, package):
        if found := private_module(name):
            yield found, line
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := dotted(node)) and (found := private_module(name)):
            yield found, node.lineno


def parse(path):
    return ast.parse(path.read_text(), filename=str(path))


def package_of(path):
    return ".".join(["tracejit", *Path(relative(path)).parent.parts])


@pytest.fixture(params=modules(), ids=relative)
def module(request):
    return request.param


def test_imports_only_from_layers_to_the_left(module):
    importer = layer_of(module)
    assert importer in {*LAYERS, *EVERYWHERE, *DOORS, "inspection"}, "not in the design's order"
    wrong = [
        f"{relative(module)}:{line} imports {imported}"
        for imported, line in layers_imported(parse(module), package_of(module))
        if not may_import(importer, imported) and (relative(module), imported) != (DISPLAYS_ITSELF, "inspection")
    ]
    assert not wrong


def test_environment_is_read_in_options_only(module):
    if relative(module) == "options.py":
        return
    assert not list(environment_reads(parse(module)))


def test_private_torch_api_stays_in_listed_modules(module):
    if relative(module) in PRIVATE_TORCH_ALLOWED:
        return
    assert not sorted(set(private_torch_uses(parse(module), package_of(module))))


def test_private_torch_list_names_no_module_that_does_without():
    using = {relative(path) for path in modules() if list(private_torch_uses(parse(path), package_of(path)))}
    assert PRIVATE_TORCH_ALLOWED <= using


@pytest.mark.parametrize("path", [*modules(), *sorted((ROOT / "scripts").glob("*.py"))],
                         ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_have_one_job(path):
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("importer, source, allowed", [
    ("capture", "from ..ir import proxy", True),
    ("capture", "from ..ir.proxy import TensorProxy", True),
    ("capture", "from . import guards", True),
    ("capture", "import tracejit.options", True),
    ("ir", "from ..capture import guards", False),
    ("ir", "from .. import capture", False),
    ("ir", "def f():\n    from ..capture.guards import Guard", False),
    ("ir", "import tracejit.pipeline", False),
    ("ir", "from tracejit import jit", False),
    ("passes", "from ..inspection import html", False),
    ("options", "from .ir import proxy", False),
])
def test_the_import_rule_itself(importer, source, allowed):
    package = "tracejit" if importer in EVERYWHERE else f"tracejit.{importer}"
    found = [imported for imported, _ in layers_imported(ast.parse(source), package)]
    assert found and all(may_import(importer, imported) for imported in found) == allowed


@pytest.mark.parametrize("source, found", [
    ("import os\nos.environ['A']", True),
    ("import os\nos.getenv('A')", True),
    ("from os import environ", True),
    ("import os\n'A' in os.environ", True),
    ("import os\nenvironment = os.environ", True),
    ("import os\nvalue is os.environ", False),
    ("import os\nos.path.join('a', 'b')", False),
])
def test_the_environment_rule_itself(source, found):
    assert bool(list(environment_reads(ast.parse(source)))) == found


@pytest.mark.parametrize("source, found", [
    ("import torch._dynamo", True),
    ("from torch import _C", True),
    ("from torch._subclasses.fake_tensor import FakeTensorMode", True),
    ("import torch\ntorch._C._get_tracing_state()", True),
    ("import torch.utils._stats", True),
    ("from torch.utils import _pytree", False),
    ("from torch.utils._python_dispatch import TorchDispatchMode", False),
    ("import torch\ntorch._foreach_add([a], 1)", False),
    ("import torch\ntorch.ops.aten._unsafe_view(a, [1])", False),
])
def test_the_private_api_rule_itself(source, found):
    assert bool(list(private_torch_uses(ast.parse(source), "tracejit.ir"))) == found
