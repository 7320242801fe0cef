"""docs/api.md from the docstrings of the public names.

    python scripts/api_reference.py           # writes docs/api.md
    python scripts/api_reference.py --check   # exits with 1 when it is not what would be written
"""
import argparse
import dataclasses
import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"
HEAD = """# API reference

Written by `python scripts/api_reference.py` from the docstrings of `tracejit`'s public names. Every example is run by the tests.
"""
KINDS = ("functions", "classes", "errors and warnings")


def page():
    import tracejit
    from tracejit.inspection import bisect, explain, kernels
    public = {name: getattr(tracejit, name) for name in tracejit.__all__}
    public |= {c.__name__: c for c in (kernels.Kernel, explain.Explanation, bisect.Difference)}         # what these return
    public = dict(sorted(public.items(), key=lambda item: item[0].lower()))
    parts = [HEAD, "".join(f"- {kind}: {', '.join(f'[`{n}`](#{n.lower()})' for n, o in public.items() if kind_of(o) == kind)}\n"
                           for kind in KINDS)]
    for kind in KINDS:
        parts.append(f"## {kind.capitalize()}\n")
        parts += [entry(name, thing) for name, thing in public.items() if kind_of(thing) == kind]
    return "\n".join(parts)


def kind_of(thing):
    if not inspect.isclass(thing):
        return KINDS[0]
    return KINDS[2] if issubclass(thing, BaseException) else KINDS[1]


def entry(name, thing):
    """A heading, the signature, the docstring, and the members of a class."""
    kind = "class " if inspect.isclass(thing) else ""
    shown = f"{kind}{name}{signature(thing) if is_called(thing) else ''}"
    lines = [f"### {name}\n", f"    {shown}\n", markdown(inspect.getdoc(thing) or ""), ""]
    lines += [member_entry(name, member, kind) for member, kind in members(thing)]
    return "\n".join(lines).rstrip() + "\n"


def is_called(thing):
    """Is it a function, or a class that the user makes?"""
    if not inspect.isclass(thing):
        return True
    made_here = dataclasses.is_dataclass(thing) or thing.__name__.startswith("Compiled")
    return kind_of(thing) == KINDS[1] and "__init__" in vars(thing) and not made_here


def members(kind):
    """(name, attribute) of the public methods and properties that a class itself has, or overrides with other words."""
    if not inspect.isclass(kind) or issubclass(kind, BaseException):
        return []
    fields = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    return [(n, a) for n, a in vars(kind).items()
            if not n.startswith("_") and n not in fields and (inspect.isfunction(a) or is_property(a)) and document(a)]


def is_property(attribute):
    from tracejit.ir.cached import cached_property
    return isinstance(attribute, (property, cached_property))


def function_of(attribute):
    return attribute.fget if isinstance(attribute, property) else getattr(attribute, "function", attribute)


def document(attribute):
    return inspect.cleandoc(function_of(attribute).__doc__ or "")


def member_entry(owner, name, attribute):
    shown = f".{name}" if is_property(attribute) else f".{name}{signature(function_of(attribute), bound=True)}"
    text = markdown(document(attribute)).replace("\n", "\n  ").replace("\n  \n", "\n\n")
    return f"- `{shown}`: {text}"


def signature(thing, bound=False):
    """Names and defaults, without annotations."""
    found = inspect.signature(thing)
    parameters = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    shown = str(found.replace(parameters=parameters[bound:], return_annotation=inspect.Signature.empty))
    return re.sub(r"<class '(\w+)'>", r"\1", shown)


def markdown(text):
    """A docstring: sections as lists, the example, which is its end, as code."""
    text, example = re.match(r"(.*?)\s*((?:^>>> .*)?)\Z", text, re.S | re.M).groups()
    blocks, lines = [], []

    def flush():
        if lines:
            blocks.append("\n".join(lines))
            lines.clear()
    section = False
    for line in text.splitlines():
        heading = re.fullmatch(r"(Args|Returns|Raises):", line)
        argument = re.fullmatch(r"    (\w[\w, ]*): (.*)", line) if section else None
        if heading:
            flush()
            section = True
            blocks.append(f"**{heading[1]}**")
        elif argument:
            flush()
            lines.append(f"- `{argument[1]}`: {argument[2]}")
        elif not line:
            flush()
            section = False
        else:
            lines.append(f"  {line.strip()}" if lines and lines[0].startswith("- ") else line.strip())
    flush()
    joined = re.sub(r"(?m)^(- .*(?:\n  .*)*)\n\n(?=- )", r"\1\n", "\n\n".join(blocks))
    return f"{joined}\n\n```pycon\n{example}\n```" if example else joined


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when the page is old")
    opts = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    text = page()
    if opts.check:
        return 0 if PAGE.exists() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
