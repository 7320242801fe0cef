"""Which kernels a change changes: the C sources of a fixed list of programs, made by two versions of tracejit.

    python scripts/replay.py OLD [NEW] [--only NAME]

OLD and NEW are commits, or directories that hold a `tracejit`; NEW is the working tree if it is not told. The programs are those of
`scripts/workloads.py` beside this file and a small transformer, for both. Prints a unified diff; exits with 1 when kernels differ.
"""
import argparse
import contextlib
import difflib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


# -- recording, in a process of its own -------------------------------------------------------------

def record(tree, only):
    """{program: the sources of its kernels}, by the tracejit in the directory `tree`."""
    sys.path.insert(0, str(tree))
    import torch
    import tracejit
    from tracejit.executors.cpu import CpuExecutor
    assert Path(tracejit.__file__).is_relative_to(tree), tracejit.__file__
    sys.path.append(str(ROOT / "scripts"))
    found = {}
    with torch.no_grad(), tempfile.TemporaryDirectory() as kernels:
        for name, fn, make in programs():
            if only in name:
                jitted = tracejit.jit(fn, executors=[CpuExecutor(kernel_cache=kernels)], fallback="error")
                torch.manual_seed(0)
                jitted(*make())
                found[name] = [r.sym.fn.source.text for r in jitted.last_traces[-1].regions]
    return found


def programs():
    """(name, function, what makes its arguments)."""
    import torch
    from bench_calls import Transformer
    from workloads import WORKLOADS
    for w in WORKLOADS:
        yield w.name, w.fn, w.make
    yield "transformer", Transformer(layers=2).eval(), lambda: (torch.randint(1000, (2, 64)),)


# -- comparing -------------------------------------------------------------------------------------

@contextlib.contextmanager
def tree_of(version):
    """A directory with that version of the package."""
    if (Path(version) / "tracejit").is_dir():
        yield Path(version).resolve()
        return
    with tempfile.TemporaryDirectory() as parent:
        tree = Path(parent) / "tree"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "--quiet", tree, version], check=True)
        try:
            yield tree.resolve()
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


def recorded(version, only):
    with tree_of(version) as tree, tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([sys.executable, __file__, "--record", out.name, str(tree), "--only", only], check=True, cwd=tree)
        return json.loads(Path(out.name).read_text())


def difference(old, new):
    """Lines of a unified diff, program by program."""
    for name in [*old, *(n for n in new if n not in old)]:
        before, after = ("\n".join(f"// region {n}\n{text}" for n, text in enumerate(side.get(name, []))).splitlines()
                         for side in (old, new))
        yield from difflib.unified_diff(before, after, f"{name} (old)", f"{name} (new)", lineterm="")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="a commit or a directory")
    parser.add_argument("new", nargs="?", default=str(ROOT), help="default: the working tree")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--record", help=argparse.SUPPRESS)
    opts = parser.parse_args(arguments)
    if opts.record:
        Path(opts.record).write_text(json.dumps(record(Path(opts.old), opts.only)))
        return 0
    old, new = recorded(opts.old, opts.only), recorded(opts.new, opts.only)
    lines = list(difference(old, new))
    print(*lines, sep="\n")
    kernels = sum(map(len, new.values()))
    print(f"{len(new)} programs, {kernels} regions: {'kernels differ' if lines else 'the same kernels'}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
