"""The printed trace is Python that runs: golden texts, every stage executed, modes."""
import inspect
import re

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree

import tracejit
from tracejit.ir.printer import last_uses, trace_source
from tracejit.ir.trace import walk

from cases.compare import near, tensor_problem
from cases.handmade import aten, call, copy_, region, tensor, trace

# ------------------------------------------------------------------ programs


def slices(x, b):
    y = x + b
    y[0] = 3.0
    x[1].mul_(2)
    y[:, 1:].relu_()
    return y.t(), y.sum(0)


def odd_views(x):
    y = x.clone()
    y.view(torch.int32)[0] = 5
    y.as_strided((2, 2), (1, 1), 1).fill_(-1.0)
    x.t_()
    return y, x.diagonal().cumsum_(0)


def attention(q, k, cache, pos):
    cache[:, pos] = k
    weights = torch.softmax(q @ cache.transpose(1, 2), dim=-1)
    return F.gelu(weights @ cache), cache


def random_numbers(x):
    noise = torch.zeros(4).random_(2, to=9)
    return x.add_(noise), F.dropout(x, 0.5)


def modes(w, x):
    with torch.no_grad():
        frozen = x * w
        frozen.add_(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = x @ w
    frozen.requires_grad_()                                    # so that the program is replayed
    return frozen, half, (w * x).relu_()


PROGRAMS = {
    slices: lambda: (torch.arange(-3.0, 3).reshape(2, 3), torch.tensor([1.0, -2.0, 3.0])),
    odd_views: lambda: (torch.arange(9.0).reshape(3, 3),),
    attention: lambda: (
        torch.ones(2, 1, 4),
        torch.ones(2, 4) / 2,
        torch.arange(24.0).reshape(2, 3, 4) / 10,
        1,
    ),
    random_numbers: lambda: (torch.arange(4.0),),
    modes: lambda: (torch.arange(4.0).reshape(2, 2).requires_grad_(), torch.ones(2, 2)),
}
names = pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)


def traces_of(fn, *args, **options):
    jfn = tracejit.jit(fn, fallback="error", **options)
    torch.manual_seed(0)
    jfn(*args)
    return jfn.last_traces


def execute(made, args, annotate=True):
    """(results, tensors given) of the text of a trace, run as Python on the tensors among `args`."""
    text, scope, _ = trace_source(made, annotate=annotate)
    given = [a for a in pytree.tree_leaves(args) if isinstance(a, torch.Tensor)]
    exec(compile(text, "<stage>", "exec"), scope)
    torch.manual_seed(0)
    with torch.set_grad_enabled(made.stage == "calls"):  # the ATen stages were recorded below autograd
        return scope[made.name](*given), given


def problems(want, got):
    return [p for a, b in zip(want, got, strict=True) if (p := tensor_problem(a, b, values=near))]


@pytest.mark.compiler
@names
def test_golden(fn, golden):
    """Every stage that changed something. The program's lines are told from its first one."""
    first = inspect.getsourcelines(fn)[1]
    made = traces_of(fn, *PROGRAMS[fn]())
    new = [
        t
        for before, t in zip([None, *made], made)
        if before is None or trace_source(before)[0] != trace_source(t)[0]
    ]
    text = "\n".join(map(str, new))
    golden(
        f"{fn.__name__}.txt",
        re.sub(r"test_printer\.py:(\d+)", lambda m: f"program.py:{int(m[1]) - first}", text),
    )


@names
def test_every_stage_runs_and_means_the_same(fn):
    args = PROGRAMS[fn]()
    torch.manual_seed(0)
    results = pytree.tree_leaves(fn(*args))
    mutated = [a for a in args if isinstance(a, torch.Tensor)]
    for made in traces_of(fn, *PROGRAMS[fn]()):
        for annotate in (True, False):
            got, given = execute(made, PROGRAMS[fn](), annotate)
            assert not problems(results, got[: len(results)]), made.stage
            assert not problems(mutated, given), made.stage


@names
def test_heading_names_stage_origin_and_inputs(fn):
    made = traces_of(fn, *PROGRAMS[fn]())
    assert str(made[0]).startswith("# calls\n# ")
    for before, after in zip(made, made[1:]):
        assert str(after).startswith(f"# {after.stage} from {before.stage}\n# ")
        assert f"# {after.inputs[0].name}: {after.inputs[0].describe()}\n" in str(after)


def test_annotations_show_the_public_name_the_line_and_the_metadata():
    made = traces_of(attention, *PROGRAMS[attention]())[-2]       # before it is a kernel
    line = next(n for n, text in enumerate(inspect.getsource(attention).splitlines()) if "gelu" in text)
    where = f"test_printer.py:{inspect.getsourcelines(attention)[1] + line}"
    assert f"    # f32[2, 1, 4]  nn.functional.gelu  {where}\n" in str(made)


def test_calls_of_the_user_stand_above_what_they_became():
    made = traces_of(attention, *PROGRAMS[attention]())[0]
    (softmax,) = (b for b in made.bound_symbols if any(s.sym.packet == "_softmax" for s in b.subsymbols))
    lines = [line.strip() for line in str(made).splitlines()]
    at = next(n for n, line in enumerate(lines) if line.startswith(f"{softmax.output.name} = torch.softmax("))
    assert lines[at + 1].startswith(f"# {softmax.output.name} = torch.ops.aten._softmax.default(")


def test_sources_of_lines_are_the_lines_of_the_calls():
    made = traces_of(slices, *PROGRAMS[slices]())[-1]
    for annotate in (True, False):
        text, _, calls = trace_source(made, annotate=annotate)
        assert [*calls.values()] == [*made.bound_symbols]
        for line, b in calls.items():
            assert re.search(rf"\b{b.sym.packet}(_\d+|\.\w+)?\(", text.splitlines()[line - 1])


def test_what_is_printed_is_what_runs():
    import linecache

    before = set(linecache.cache)
    jfn = tracejit.jit(slices, fallback="error")
    jfn(*PROGRAMS[slices]())
    text = trace_source(jfn.last_traces[-1], annotate=False)[0]
    assert text in ["".join(linecache.getlines(name)) for name in set(linecache.cache) - before]


# ------------------------------------------------------------------ del after the last use


def test_names_are_deleted_right_after_their_last_use():
    x, a, b, c, w = tensor("x", (3,), 0), *(tensor(n, (3,), k) for k, n in enumerate("abcw", 1))
    unused = tensor("unused", (3,), 9)
    made = trace(
        [x, w],
        call(aten.add.Tensor, (x, 1), a),
        call(aten.mul.Tensor, (a, 2), b),
        call(aten.mul.Tensor, (x, 2), unused),
        call(aten.add.Tensor, (a, b), c),
        copy_(w, c),
        output=[b],
    )
    assert last_uses(made) == {2: ["unused"], 3: ["a"], 4: ["c"]}
    assert [line.strip() for line in str(made).splitlines() if line.strip().startswith("del")] == [
        "del unused",
        "del a",
        "del c",
    ]


# ------------------------------------------------------------------ syntax


def test_wide_signature_is_wrapped():
    def total(*xs):
        return sum(xs)

    xs = [torch.full((2,), float(n)) for n in range(80)]
    for made in traces_of(total, *xs):
        text = str(made)
        assert max(map(len, text.splitlines())) <= 120
        assert torch.equal(execute(made, xs)[0][0], sum(xs))


def test_python_keyword_as_a_keyword_of_the_call_or_the_overload():
    def keyword(x):
        return x.clone().random_(3, to=9), (
            torch.ops.aten.random_.from_(x, **{"from": 2, "to": 4}) if False else x
        )

    def by_name(x):
        return getattr(torch.ops.aten.random, "from")(x, **{"from": 2, "to": 4})

    x = torch.zeros(5)
    for fn in (keyword, by_name):
        want = None
        for made in traces_of(fn, x):
            got = execute(made, [x])[0][0]
            assert want is None or torch.equal(got, want)
            want = got
    made = trace(
        [p := tensor("x", (5,), 0)],
        call(getattr(aten.random, "from"), (p,), v := tensor("v", (5,), 1), to=4, **{"from": 2}),
        output=[v],
    )
    assert "aten_random_from(x, to=4, **{'from': 2})" in str(made)
    assert set(execute(made, [x])[0][0].tolist()) <= {2.0, 3.0}


def test_several_outputs_and_dropped_ones():
    x, v, i = tensor("x", (3,), 0), tensor("v", (), 1), tensor("i", (), 2, dtype=torch.int64)
    maximum = call(aten.max.dim, (x, 0), (v, None))
    assert "[v, _] = torch.ops.aten.max.dim(x, 0)" in str(trace([x], maximum, output=[v]))
    both = call(aten.max.dim, (x, 0), (v, i))
    assert "[v, i] = torch.ops.aten.max.dim(x, 0)" in str(trace([x], both, output=[v, i]))
    got = execute(trace([x], maximum, output=[v]), [torch.tensor([1.0, 5.0, 2.0])])[0]
    assert got[0] == 5


def test_region_prints_with_its_decomposition():
    x, a, b = tensor("x", (3,), 0), tensor("a", (3,), 1), tensor("b", (3,), 2)
    fused = region("fused_add_mul", call(aten.add.Tensor, (x, 1), a), call(aten.mul.Tensor, (a, 2), b))
    lines = str(trace([x], fused, output=[b])).splitlines()
    at = next(n for n, line in enumerate(lines) if "fused_add_mul(x)" in line)
    assert [line.strip() for line in lines[at + 1 : at + 3]] == [
        "# a = torch.ops.aten.add.Tensor(x, 1)",
        "# b = torch.ops.aten.mul.Tensor(a, 2)",
    ]
    assert [b.sym.packet for b in walk((fused,))] == ["fused_add_mul", "add", "mul"]
    assert trace([x], fused).count("mul") == 1


# ------------------------------------------------------------------ modes


def test_modes_are_with_blocks_and_nest():
    def nested(w, x):
        y = w * x
        with torch.no_grad():
            a = w * 2
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
                b = x @ w
            with torch.enable_grad():
                c = w * 3
            d = w * 4
        return y, a, b, c, d

    args = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    made = traces_of(nested, *args)[0]
    text = [line.strip() for line in str(made).splitlines() if line.strip().startswith("with ")]
    assert text == [
        "with torch.set_grad_enabled(False):",
        "with torch.set_grad_enabled(False), "
        "torch.autocast('cpu', dtype=torch.bfloat16, enabled=True, cache_enabled=False):",
        "with torch.set_grad_enabled(False):",
    ]
    want, got = nested(*args), execute(made, args)[0]
    assert not problems(want, got) and [t.requires_grad for t in got] == [True, False, False, True, False]


def test_inference_mode_inside():
    def inside(w, x):
        y = w * x
        with torch.inference_mode():
            z = w * 2
            z.add_(1)
        return y, z

    args = torch.ones(2, requires_grad=True), torch.ones(2)
    made = traces_of(inside, *args)[0]
    assert "with torch.inference_mode(True):" in str(made)
    want, got = inside(*args), execute(made, args)[0]
    assert not problems(want, got) and [t.is_inference() for t in got] == [False, True]


def test_mode_of_the_caller_is_not_printed():
    def program(x):
        return x * 2

    with torch.no_grad():
        made = traces_of(program, torch.ones(2, requires_grad=True))
    assert not any("with " in str(t) for t in made)
    x = torch.ones(2)
    with torch.inference_mode():
        made = traces_of(program, x)
    assert not any("with " in str(t) for t in made)


def test_del_under_a_mode_stays_inside_its_block():
    def program(w):
        with torch.no_grad():
            a = w * 2
            b = a + 1
        return b

    text = str(traces_of(program, torch.ones(2, requires_grad=True))[0])
    assert re.search(r"\n        del t\d\n", text)
