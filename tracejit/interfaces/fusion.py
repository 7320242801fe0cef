"""`tracejit.Fusion`: a kernel defined call by call. The records of its calls become a program, which is jitted."""
from __future__ import annotations

import ast
import difflib
import keyword
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from types import FrameType
from typing import Any, Callable, Optional

import torch

from ..api import CacheInfo, CompiledFunction, jit
from ..errors import TraceError
from ..executors.registry import default_executors
from ..ir.printer import OWN_NAMES, Scope, value_text
from ..ir.trace import SourceLine, Trace
from ..ir.trees import flat_leaves
from ..options import make_options

_OWN_FILE = __file__
_TENSOR, _NUMBER = "Tensor", "number"


@dataclass(frozen=True, eq=False)
class FusionValue:
    """A tensor, a number or a list of tensors in the definition of a `Fusion`. `value[n]` is an element of a list.

    >>> import torch, tracejit
    >>> with tracejit.Fusion() as f:
    ...     halves = f.ops.split(f.tensor(ndim=1, dtype=torch.int64), 2)
    ...     f.output(f.ops.mul(halves[0], halves[1]))
    >>> f(torch.arange(4))
    tensor([0, 3])
    """

    fusion: Fusion = field(repr=False)
    name: str
    kind: str                            # "Tensor", "number", or the type of a result as its schema has it

    __iter__ = None                      # how many elements there are is not known yet

    def __getitem__(self, n: int) -> FusionValue:
        if not self.kind.startswith("List") or type(n) is not int:
            raise _misuse(f"value {self.name} is a {self.kind}: only a list has elements, as value[0]; "
                          "use f.ops.select or f.ops.slice on a tensor")
        return self.fusion._record("", (self, n), {}, [self.kind[len("List["):-1]])[0]


@dataclass(frozen=True)
class _Record:
    """One call. op: its name in torch.ops.aten, "" for an element of a list; line: of the user's."""

    op: str
    args: tuple
    kwargs: dict
    results: tuple[FusionValue, ...]
    line: int


@dataclass(frozen=True)
class _Input:
    """What an argument must be. ndim: None for a number."""

    value: FusionValue
    kind: Any                            # a torch.dtype, or a Python type
    ndim: Optional[int]
    line: int


class Fusion:
    """A kernel defined directly: inputs, calls of ATen ops, outputs. After the `with` block it is a function.

    `f.tensor(ndim=, dtype=)` and `f.scalar(type)` are the arguments, in order. `f.ops.NAME(...)` is a call of
    `torch.ops.aten.NAME` and gives what its schema says: one value, or a tuple of several. `f.output(value)` is the
    next result. The definition is a program of those calls, run as `tracejit.jit` runs a function: compiled for shapes
    and strides as they come, with eager's numbers. `print(f)` shows it. Equal definitions share what they compiled,
    which names the lines of the first.

    Args:
        name: in traces and messages.
        options: those of `tracejit.jit`; by default `fallback="error"`, and a single call is worth a kernel.

    Raises:
        TraceError: a call that no schema of the op takes, a value of another fusion, use outside of the `with` block.
        AttributeError: `f.ops.NAME` is no op of ATen.
        TypeError: an option that `jit` does not have; at a call, arguments that are not as the definition says.

    >>> import torch, tracejit
    >>> with tracejit.Fusion() as f:
    ...     x = f.tensor(ndim=2, dtype=torch.float32)
    ...     y = f.ops.relu(x)
    ...     f.output(f.ops.mul(y, f.scalar(float)))
    >>> f(torch.tensor([[-1.0, 2.0]]), 3.0)
    tensor([[0., 6.]])
    >>> len(f.kernels)
    1
    """

    def __init__(self, name: str = "fusion", **options: Any) -> None:
        if not {"executors", "executor_options"} & set(options) and any(e.name == "cpu" for e in default_executors()):
            options["executor_options"] = {"cpu": {"allow_single_op_fusion": True}}
        self.options = {"fallback": "error", "name": name, **options}
        make_options(self.options)                             # what is wrong with them is said here
        if not name.isidentifier() or keyword.iskeyword(name):
            raise TypeError(f"tracejit.Fusion(name={name!r}): the name is that of a Python function")
        self.name = name
        self.ops = _Ops(self)
        self._inputs: list[_Input] = []
        self._records: list[_Record] = []
        self._returned: list[FusionValue] = []
        self._names: dict[FusionValue, str] = {}
        self._writes = False
        self._file, self._line = "", 0                         # of the `with` statement
        self._open = False
        self._compiled: Optional[CompiledFunction] = None

    # ------------------------------------------------------------ definition

    def __enter__(self) -> Fusion:
        if self._file:
            raise _misuse(f"{self.name} is defined already: make another tracejit.Fusion()")
        frame = _caller()
        self._file, self._line, self._open = frame.f_code.co_filename, frame.f_lineno, True
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._open = False
        if error is not None:
            return
        if not self._returned and not self._writes:
            raise _misuse(f"nothing comes out of {self.name}: give it f.output(value), or f.output(value, into=x)")
        self._named_as(_caller().f_locals)
        self._compiled = self._jitted()

    def tensor(self, ndim: int, dtype: torch.dtype = torch.float32) -> FusionValue:
        """The next argument: a tensor of `ndim` dims of any sizes and strides, of this dtype, on any device."""
        if type(ndim) is not int or ndim < 0 or not isinstance(dtype, torch.dtype):
            raise _misuse(f"f.tensor(ndim={ndim!r}, dtype={dtype!r}): ndim is a number of dims, dtype a torch.dtype")
        return self._input(_TENSOR, dtype, ndim)

    def scalar(self, type: type = float) -> FusionValue:
        """The next argument: a Python float, int or bool. A float takes an int as well."""
        if type not in (float, int, bool):
            raise _misuse(f"f.scalar({type!r}): a scalar is a float, an int or a bool")
        return self._input(_NUMBER, type, None)

    def output(self, value: FusionValue, into: Optional[FusionValue] = None) -> None:
        """Make `value` the next result. into: write it into the memory of this tensor instead, by `copy_`."""
        for v in (value,) if into is None else (value, into):
            if not isinstance(v, FusionValue) or v.fusion is not self:
                raise _misuse(f"{v!r} is not of {self.name}: an output is what f.tensor, f.scalar or f.ops of the "
                              "same fusion gave")
        if into is None:
            self._must_be_open()
            self._returned.append(value)
        else:
            self.ops.copy_(into, value)

    def _input(self, kind: str, wanted: Any, ndim: Optional[int]) -> FusionValue:
        self._must_be_open()
        value = FusionValue(self, f"a{len(self._inputs)}", kind)
        self._inputs.append(_Input(value, wanted, ndim, self._user_line()))
        return value

    def _record(self, op: str, args: tuple, kwargs: dict, kinds: list[str]) -> tuple[FusionValue, ...]:
        self._must_be_open()
        made = sum(len(r.results) for r in self._records)
        results = tuple(FusionValue(self, f"t{made + n}", kind) for n, kind in enumerate(kinds))
        self._records.append(_Record(op, args, kwargs, results, self._user_line()))
        return results

    def _must_be_open(self) -> None:
        if not self._open:
            how = "its definition ended with its block: define another" if self._file else "a definition is written"
            raise _misuse(f"{self.name} takes no more calls: {how} inside `with tracejit.Fusion() as f:`")

    def _user_line(self) -> int:
        """Of the frame nearest to here in the file of the `with` statement."""
        frame: Optional[FrameType] = _caller()
        while frame is not None:
            if frame.f_code.co_filename == self._file:
                return frame.f_lineno
            frame = frame.f_back
        return self._line

    def _named_as(self, names: dict[str, Any]) -> None:
        """Values that the user's variables hold are called like those in the text."""
        self._names = {v: name for name, v in names.items() if isinstance(v, FusionValue) and v.fusion is self
                       and name not in (*OWN_NAMES, self.name) and not keyword.iskeyword(name)}

    # ------------------------------------------------------------ the program

    def _text(self, names: dict[FusionValue, str], notes: bool = False) -> str:
        """The definition as a Python function."""
        scope = Scope()

        def text(x: Any) -> str:
            return value_text(x, scope)
        taken, read = set(names.values()), {id(v) for v in [*names, *self._returned]}
        read |= {id(v) for r in self._records for v in flat_leaves((*r.args, *r.kwargs.values()))}
        for v in self._values():
            name = names.get(v) or (f"_{v.name}" if v.name in taken else v.name)
            scope.taken[id(v)] = name
        lines = [f"def {self.name}({', '.join(text(i.value) for i in self._inputs)}):"]
        for r in self._records:
            given = ", ".join([*map(text, r.args), *(f"{k}={text(v)}" for k, v in r.kwargs.items())])
            call = f"torch.ops.aten.{r.op}({given})" if r.op else f"{text(r.args[0])}[{r.args[1]}]"
            target = f"{', '.join(map(text, r.results))} = " if any(id(v) in read for v in r.results) else ""
            lines.append(f"    {target}{call}" + (f"    # {self._short(r.line)}" if notes else ""))
        results = [text(v) for v in self._returned]
        return "\n".join([*lines, f"    return {', '.join(results) or None}"]) + "\n"

    def _values(self) -> list[FusionValue]:
        return [*(i.value for i in self._inputs), *(v for r in self._records for v in r.results)]

    def _short(self, line: int) -> str:
        return f"{self._file.rsplit('/', 1)[-1]}:{line}"

    def _jitted(self) -> CompiledFunction:
        """What runs it: that of an equal definition, or a new function whose lines stand where the user's do."""
        options, known = make_options(self.options), _programs(self._text({}))
        for compiled in known:
            if compiled.options == options:
                return compiled
        tree = ast.parse(self._text(self._names))
        [function] = tree.body
        for node, line in zip([function, *function.body], [self._line, *(r.line for r in self._records), self._line]):
            for part in (ast.walk(node) if node is not function else (node, *ast.walk(node.args))):
                if hasattr(part, "lineno"):
                    part.lineno = part.end_lineno = line
        scope = {"__name__": "tracejit_fusion", **Scope().names}
        exec(compile(tree, self._file, "exec"), scope)
        known.append(jit(scope[self.name], **self.options))
        return known[-1]

    def __str__(self) -> str:
        inputs = "".join(f"# {self._names.get(i.value, i.value.name)}: {_wanted(i)}\n" for i in self._inputs)
        return inputs + self._text(self._names, notes=True)

    def __repr__(self) -> str:
        return f"<tracejit.Fusion {self.name}: {len(self._inputs)} inputs, {len(self._records)} calls>"

    # ------------------------------------------------------------ calls

    def __call__(self, *args: Any) -> Any:
        """Run it: one result, a tuple of several, or None when all are written `into` something."""
        compiled = self._program()
        if len(args) != len(self._inputs):
            raise TypeError(f"{self.name}() takes {len(self._inputs)} arguments, as it is defined, got {len(args)}")
        return compiled(*map(self._checked, self._inputs, args))

    def _checked(self, wanted: _Input, given: Any) -> Any:
        if wanted.ndim is None:
            fits = type(given) is wanted.kind or wanted.kind is float and type(given) is int
            got = repr(given)
        else:
            fits = isinstance(given, torch.Tensor) and given.dim() == wanted.ndim and given.dtype is wanted.kind
            got = f"{given.dtype} of {given.dim()} dims" if isinstance(given, torch.Tensor) else repr(given)
        if not fits:
            raise TypeError(f"{self.name}() got {got} for argument {self._inputs.index(wanted)}, which is defined as "
                            f"{_wanted(wanted)} ({self._short(wanted.line)}): convert it, or define another Fusion")
        return float(given) if wanted.kind is float else given

    def _program(self) -> CompiledFunction:
        if self._compiled is None:
            raise _misuse(f"{self.name} is called before its definition ended: call it after its `with` block")
        return self._compiled

    @property
    def kernels(self) -> list:
        """The kernels of the latest compile, in the order in which they run."""
        return self._program().kernels

    @property
    def last_traces(self) -> list[Trace]:
        """The stages of the latest compile."""
        return self._program().last_traces

    def cache_info(self) -> CacheInfo:
        """Counts of all equal definitions together."""
        return self._program().cache_info()


class _Ops:
    """`f.ops`: the ops of `torch.ops.aten`, by name."""

    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion

    def __getattr__(self, name: str) -> Callable:
        fusion, packet = self._fusion, getattr(torch.ops.aten, name, None)
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            near = difflib.get_close_matches(name, dir(torch.ops.aten), 1)
            hint = f"did you mean {near[0]!r}?" if near else "f.ops has the names of torch.ops.aten"
            raise AttributeError(f"{fusion.name} has no op {name!r}: {hint}\n  at {_where()}")

        def call(*args: Any, **kwargs: Any) -> Any:
            schema = _schema(fusion, packet, args, kwargs)
            results = fusion._record(name, args, kwargs, [str(r.type) for r in schema.returns])
            fusion._writes = fusion._writes or schema.is_mutable
            return results[0] if len(results) == 1 else results or None
        return call

    def __dir__(self) -> list[str]:
        return dir(torch.ops.aten)


def _schema(fusion: Fusion, packet: Any, args: tuple, kwargs: dict) -> Any:
    """The first of the op's schemas that takes the call."""
    def check(x: Any) -> None:
        if isinstance(x, (list, tuple)):
            for e in x:
                check(e)
        elif isinstance(x, FusionValue) and x.fusion is not fusion:
            raise _misuse(f"{x!r} given to {packet.__name__} is of another fusion: give what it holds as an argument, "
                          "by f.tensor or f.scalar")
        elif not isinstance(x, FusionValue) and not _is_literal(x):
            raise _misuse(f"{packet.__name__} got a {type(x).__name__}, which a definition does not hold: give it as "
                          "an argument, by f.tensor or f.scalar")
    check((*args, *kwargs.values()))
    schemas = [getattr(packet, o)._schema for o in packet.overloads()]
    for schema in schemas:
        if _takes(schema, args, kwargs):
            return schema
    takes = "".join(f"\n    {s}" for s in schemas if not any(a.is_out for a in s.arguments))
    given = ", ".join([*map(_kind, args), *(f"{k}={_kind(v)}" for k, v in kwargs.items())])
    raise _misuse(f"{packet.__name__}({given}) is none of what torch.ops.aten.{packet.__name__} takes:{takes}")


def _takes(schema: Any, args: tuple, kwargs: dict) -> bool:
    known = {a.name: a for a in schema.arguments}
    positional = [a.name for a in schema.arguments if not a.kwarg_only]
    given = dict(zip(positional, args))
    if len(args) > len(positional) or given.keys() & kwargs.keys() or not kwargs.keys() <= known.keys():
        return False
    given |= kwargs
    missing = any(name not in given and not a.has_default_value() for name, a in known.items())
    return not missing and all(_accepts(str(known[name].type), v) for name, v in given.items())


def _accepts(wanted: str, v: Any) -> bool:
    """Can an argument of this type be `v`, as far as tensors go? torch itself looks at numbers."""
    if v is None:
        return wanted.startswith("Optional")
    kind = _kind(v)
    if kind.startswith("List") or _TENSOR in kind:
        return wanted in (kind, f"Optional[{kind}]", f"List[Optional[{_TENSOR}]]" if "List" in kind else "")
    return _TENSOR not in wanted


def _kind(v: Any) -> str:
    if isinstance(v, (list, tuple)) and any(isinstance(e, FusionValue) and e.kind == _TENSOR for e in v):
        return f"List[{_TENSOR}]"
    return v.kind if isinstance(v, FusionValue) else repr(v)


def _is_literal(x: Any) -> bool:
    scope = Scope()
    before = len(scope.names)
    value_text(x, scope)
    return len(scope.names) == before


def _wanted(i: _Input) -> str:
    if i.ndim is None:
        return f"a Python {i.kind.__name__}"
    return f"{i.kind} of {i.ndim} dims"


@lru_cache(256)
def _programs(text: str) -> list[CompiledFunction]:
    """What was made for definitions of this text, one for each set of options; of the latest few hundred texts."""
    return []


def _misuse(message: str) -> TraceError:
    return TraceError(message, where=_where())


def _where() -> str:
    frame = _caller()
    return str(SourceLine(frame.f_code.co_filename, frame.f_lineno))


def _caller() -> FrameType:
    """The nearest frame outside of this file."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == _OWN_FILE and frame.f_back is not None:
        frame = frame.f_back
    return frame
