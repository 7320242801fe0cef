"""A region as a script of its own: its C source, the ops it replaces, random inputs, and the comparison."""
from __future__ import annotations

import inspect
from typing import Any, Callable

import torch

from ..codegen.source import Source
from ..errors import TraceError
from ..executors.compiler import compile_command
from ..executors.launch import ERRORS
from ..ir.printer import trace_source
from ..ir.trace import BoundSymbol
from . import samples

_SCRIPT = '''"""Does kernel {name} compute what PyTorch does? From {lines}.

    python THIS_FILE

Builds the C source below as the program did, runs it on random inputs, compares every result and every argument that is written.
"""
from __future__ import annotations

import ctypes
import pathlib
import struct
import subprocess
import tempfile

import torch
{imports}
SOURCE = r"""{source}"""
COMMAND = {command!r}
SIZES = {sizes}


{reference}

def inputs():
    generator = torch.Generator().manual_seed(0)
{inputs}
    return [{names}]


def run_kernel({names}):
{made}
    directory = pathlib.Path(tempfile.mkdtemp())
    (directory / "kernel.c").write_text(SOURCE)
    subprocess.run([*COMMAND, str(directory / "kernel.c"), "-o", str(directory / "kernel.so"), "-lm"], check=True)
    entry = ctypes.CDLL(str(directory / "kernel.so"))["tj_region"]
    sizes = ctypes.create_string_buffer(struct.pack("".join("d" if isinstance(n, float) else "q" for n in SIZES), *SIZES))
    pointers = [{pointers}]
    failed = entry(torch.get_num_threads(), (ctypes.c_void_p * len(pointers))(*pointers))
    assert not failed, {errors!r}[failed]
    return [{results}]


if __name__ == "__main__":
    ours, eagers = inputs(), inputs()
    got, expected = run_kernel(*ours), list({name}(*eagers))
    for name, a, b in zip({compared!r}, [*got, *ours], [*expected, *eagers]):
        torch.testing.assert_close(a, b, equal_nan=True, msg=lambda text: f"{{name}} differs: {{text}}")
        print(f"{{name}}: equal to PyTorch's")
'''


def repro_script(region: BoundSymbol) -> str:
    """The text of the script."""
    source = region.sym.fn.source
    reference, scope, _ = trace_source(samples.region_trace(region), annotate=True)
    names = [p.name for p in region.args]
    made = list(source.made.values())
    holder = {**{p.storage: p for p in made}, **{p.storage: p for p in reversed(region.args)}}
    outputs = region.flat_outputs
    return _SCRIPT.format(
        name=region.sym.name, lines=", ".join(dict.fromkeys(b.source.short for b in region.subsymbols if b.source.file)) or "a region",
        imports=_imports(scope), source=source.compiled, command=compile_command(source.flags), sizes=_sizes(source),
        reference=reference, inputs=_inputs(region), names=", ".join(names), compared=[*(o.name for o in outputs), *names],
        errors={k: m for k, (_, m) in ERRORS.items()},
        made="\n".join(f"    {p.name} = torch.empty_strided({p.shape}, {p.stride}, dtype={p.dtype})" for p in made) or "    pass",
        pointers=", ".join("ctypes.addressof(sizes)" if b is None else _pointer(holder[b.storage]) for b in source.buffers),
        results=", ".join(_result(o, holder[o.storage]) for o in outputs))


def _sizes(source: Source) -> str:
    numbers = list(source.sizes)
    return f"{numbers}    # {'given0, given1, ...: sizes that have changed' if numbers else 'all are constants of the source'}"


def _inputs(region: BoundSymbol) -> str:
    low, high = samples.integer_range(region)
    first = {p.storage: p for p in reversed(region.args)}
    lines = []
    for s, nbytes in samples.storage_sizes(region.args).items():
        dtype, count = first[s].dtype, -(-nbytes // first[s].dtype.itemsize)
        span = (0, 2) if dtype is torch.bool else (low, high)
        values = (f"torch.randn({count}, generator=generator)" if dtype.is_floating_point
                  else f"torch.randint{(*span, (count,))!r}"[:-1] + ", generator=generator)")
        lines.append(f"    memory{s} = {values}.to({dtype})")
    lines += [f"    {p.name} = memory{p.storage}.view({p.dtype}).as_strided({p.shape}, {p.stride}, {p.offset})" for p in region.args]
    return "\n".join(lines)


def _pointer(p: Any) -> str:
    start = p.bytes.offset
    return f"{p.name}.data_ptr() - {start}" if start else f"{p.name}.data_ptr()"


def _result(o: Any, root: Any) -> str:
    if o is root:
        return o.name
    return f"{root.name}.as_strided({o.shape}, {o.stride}, {root.name}.storage_offset() + {o.offset - root.offset})"


def _imports(scope: dict[str, Any]) -> str:
    """What the reference calls besides torch, as text."""
    lines = []
    for name, value in scope.items():
        if name == "torch":
            continue
        if isinstance(value, float):
            lines.append(f"{name} = float({str(value)!r})")
        elif isinstance(value, torch.Tensor):
            lines.append(f"{name} = torch.tensor({value.tolist()!r}, dtype={value.dtype})")
        elif inspect.isfunction(value):
            lines += [*_functions(value), *([f"{name} = {value.__name__}"] if name != value.__name__ else [])]
        else:
            raise TraceError(f"{name} = {value!r} has no text that a script could hold")
    return "".join(f"{line}\n" for line in dict.fromkeys(lines)) + "\n"


def _functions(function: Callable) -> list[str]:
    """Its text, below those of the functions that it calls; an import, where it uses other things than functions and torch."""
    used = {n: function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__ and n != "torch"}
    if not all(map(inspect.isfunction, used.values())):
        return [f"from {function.__module__} import {function.__name__}"]
    return [*(line for f in used.values() for line in _functions(f)), f"\n{inspect.getsource(function)}"]
