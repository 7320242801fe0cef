"""Partition: what becomes one region, and that no cut, merge or reorder changes what the program means."""
import linecache
import random
from dataclasses import replace

import networkx as nx
import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves, tree_map

import tracejit
from tracejit.executors.registry import Executor
from tracejit.executors.torch_fallback import TORCH
from tracejit.ir import prims
from tracejit.ir.check import check_trace
from tracejit.ir.memory import overlaps
from tracejit.partition.dependence import Edge, dependence
from tracejit.partition.regions import partition
from tracejit.passes.dce import dce
from tracejit.passes.decompose import decompose
from tracejit.passes.inplace_check import inplace_check
from tracejit.passes.decompositions.rules import NLL_LOSS_GATHER
from tracejit.runtime.program import Program

aten = torch.ops.aten
OTHERS = ("cat", "gather", "flip", "slice_scatter", "select_scatter", "full", "scalar_tensor", "index", "embedding", "arange")


class Eager(Executor):
    """Runs the calls of a region on tensors. "order": as they stand. "shuffled": in any order that the values allow, with
    stores last, as a kernel does that loads all that an element needs before it stores; `refuses` regions at random."""

    name = "eager"

    def __init__(self, how="order", *, single=True, refuses=0.0, seed=0):
        self.how, self.allow_single_op_fusion, self.refuses, self.rng = how, single, refuses, random.Random(seed)

    def can_execute(self, bsym):
        return False

    def can_fuse(self, bsym):
        s = bsym.sym
        if bsym.written:
            return s.is_copy
        if s.overload is None:
            return s in (prims.RESTRIDE, prims.EXACT_COPY, NLL_LOSS_GATHER)
        return bsym.is_view or s.pointwise or torch.Tag.reduction in s.overload.tags or s.packet in OTHERS

    def fuse(self, region):
        if self.rng.random() < self.refuses:
            return None
        calls = self.shuffled(region.subsymbols) if self.how == "shuffled" else region.subsymbols

        def run(*values):
            env, stores = dict(zip(region.args, values)), []
            for b in calls:
                args, kwargs = tree_map(lambda x: env.get(x, x), (b.args, b.kwargs))
                if self.how == "shuffled" and b.sym.is_copy:
                    stores.append((args[0], args[1].clone()))
                    continue
                for p, v in zip(b.flat_outputs, tree_leaves(b.sym.fn(*args, **kwargs))):
                    env.setdefault(p, v)
            for target, value in stores:
                target.copy_(value)
            return [env[o] for o in region.output]
        return replace(region, sym=replace(region.sym, fn=run))

    def shuffled(self, calls):
        made = {o: b for b in calls for o in b.tensor_outputs if o not in b.tensor_args}
        left, done, order = list(calls), set(), []
        while left:
            ready = [b for b in left if all(made.get(a) in done or a not in made for a in b.tensor_args)]
            ready = [b for b in ready if not b.sym.may_raise([a.dtype for a in b.tensor_args])] or ready[:1]
            b = self.rng.choice(ready)
            left.remove(b)
            done.add(b)
            order.append(b)
        return order


def functional(fn, *args):
    """The trace that partitioning starts from."""
    jfn = tracejit.jit(fn, executors=(), fallback="error")
    with torch.no_grad():
        jfn(*tree_map(lambda t: t.clone(), args))
    return dce(next(t for t in reversed(jfn.last_traces) if t.stage == "dce"))


def parted(fn, *args, executor=None, decomposed=True):
    trace = functional(fn, *args)
    trace = decompose(trace) if decomposed else trace
    made = check_trace(partition(trace, [executor or Eager(), TORCH]))
    inplace_check(made, trace)
    return made


def check(fn, *args, executor=None):
    """The partitioned program does to clones of the arguments what the function does."""
    made = parted(fn, *args, executor=executor, decomposed=False)
    mine, theirs = [a.clone() for a in args], [a.clone() for a in args]
    with torch.no_grad():
        want, got = fn(*theirs), Program(made).run(*mine)
    for w, g in zip([*tree_leaves(want), *theirs], [*(t for t in got if isinstance(t, torch.Tensor)), *mine]):
        assert torch.equal(w, g) and w.stride() == g.stride()
    return made


x, y = torch.arange(12.0).reshape(3, 4) - 5, torch.arange(12.0).reshape(3, 4) * 0.3
big = torch.randn(16, 2048)


# ---------------------------------------------------------------- what becomes one region

def swap(a):
    a[0], a[-1] = a[-1].clone(), a[0].clone()


def flattened(a, b):
    c, d = torch.exp(a), torch.tanh(b)
    e = c.flatten()
    e += d.flatten()
    d.div_(a)
    return c, d


def rms(a, w):
    return a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6) * w


ONE_REGION = {
    "in-place and its reader": (lambda a, b: a.relu_() + b.relu(), (x, y)),
    "views of values": (flattened, (x + 9, y)),
    "softmax": (lambda a: F.softmax(a * 2, -1) + 1, (big,)),
    "layer norm": (lambda a, w: F.layer_norm(a + 1, (2048,), w) * 2, (big, big[0])),
    "rms norm": (rms, (big, big[0])),
    "cross entropy rows": (lambda a, t: F.cross_entropy(a, t, reduction="none"), (big, torch.arange(16))),
    "two reductions of one argument": (lambda a: (a.sum(1), a.amax(1)), (big,)),
    "scalars before": (lambda a, s: a * (s + 1).sqrt(), (big, torch.tensor(3.0))),
    "rows under another shape": (lambda a: a.view(4, 4, 2048).sum(-1).view(16, 1) + a, (big,)),
    "swapped rows": (swap, (x,)),
    "a triangle": (lambda a: a.tril() + 1, (x,)),
    "cheap work on halves": (lambda a, c: (a * c + torch.cat([-a[:, 1024:], a[:, :1024]], 1) * c, a * c), (big, big[0])),
    "a mask over rows": (lambda a, m: (a * 2).masked_fill(~m, 1.0).softmax(-1), (big, big[0] > 0)),
}


@pytest.mark.parametrize("name", ONE_REGION)
def test_one_region(name):
    fn, args = ONE_REGION[name]
    made = parted(fn, *args)
    assert len(made.regions) == 1
    assert all(b.is_region or b.is_view for b in made.bound_symbols)


SPLIT = {
    "a write over what another row reads": (lambda a: a.copy_(F.softmax(a, 0) + F.softmax(a, 1)), (torch.randn(64, 64),), 2),
    "a write over what other rows' reductions read": (lambda a: a.copy_((a.sum(1) + a) * 2), (torch.randn(64, 64),), 2),
    "a transposed write": (lambda a: a.copy_(a.t() + 1), (torch.randn(4, 4),), 2),
    "a shifted write": (lambda a: a[1:].copy_(a[:-1] * 2), (x,), 2),
    "another row's reduction": (lambda a: a - a.sum(1), (torch.randn(8, 8),), 2),
    "a whole reduction, then full size": (lambda a: a / a.sum(), (torch.randn(16, 4096),), 2),
    "a second dim": (lambda a: (a - a.amax(1, keepdim=True)).sum(0), (big,), 2),
    "a matmul between": (lambda a: torch.relu((a + 1) @ (a + 1).t()) * 2, (x,), 2),
    "costly work on a smaller shape": (lambda a, w: a * torch.tanh(w), (big, big[0]), 2),
    "a gather, then a write": (lambda a, i: a.copy_(a.gather(1, i) + 1), (x, torch.zeros(3, 4, dtype=torch.int64)), 2),
}


@pytest.mark.parametrize("name", SPLIT)
def test_what_one_kernel_cannot_hold_is_split(name):
    fn, args, regions = SPLIT[name]
    assert len(parted(fn, *args).regions) == regions
    if name not in ("a matmul between",):
        check(fn, *args)


def test_a_region_of_one_call_only_where_the_executor_says_so():
    assert not parted(lambda a: a + 1, x, executor=Eager(single=False)).regions
    assert parted(lambda a: a + 1, x, executor=Eager(single=True)).regions
    assert not parted(lambda a: a.t()[1:], x).regions


def test_a_refused_region_is_split_and_its_calls_run_alone_at_last():
    for refuses in (0.5, 1.0):
        made = check(lambda a, b: (torch.exp(a) * b + 1).sin_().t(), x, y, executor=Eager(refuses=refuses))
        assert refuses < 1 or not made.regions


def test_arguments_are_what_lies_under_views():
    made = parted(lambda a, b: a[1:].copy_(b[:-1] * 2), x, y)
    region = made.regions[0]
    assert set(region.args) == set(made.inputs)
    assert region.output == []


def test_a_value_that_others_take_as_one_view_is_handed_out_as_that_view():
    def product(a, b, more):
        t = torch.exp(a) * b
        v = t.reshape(4, 3)
        return torch.mm(t.view(2, 6).view(4, 3), b), *more(t, v, b)

    def shapes(more):
        return [o.shape for region in check(lambda a, b: product(a, b, more), x, y).regions for o in region.output]
    assert shapes(lambda t, v, b: ()) == [(4, 3)]
    for more in (lambda t, v, b: (t,), lambda t, v, b: (v,), lambda t, v, b: (torch.mm(t, b.t()),), lambda t, v, b: (torch.mm(v, b),),
                 lambda t, v, b: (torch.mm(t.t(), b),), lambda t, v, b: (v.mul_(torch.mm(v, b[:, :3])),)):
        assert (3, 4) in shapes(more)
    assert [r.output[0].shape for r in check(lambda a, b: torch.mm((torch.exp(a) * b).t(), b), x, y).regions] == [(3, 4)]


def test_a_region_that_writes_hands_out_values_as_they_are():
    """A view of what is made from memory that it writes is no value of it: the proof refuses that."""
    def viewed(a, b):
        v = a.view(4, 3)
        a.sigmoid_().mul_(2)
        return torch.mm(v, b)
    assert [r.output[0].shape for r in check(viewed, x, y).regions] == [(3, 4)]


# ---------------------------------------------------------------- the graph

def test_edges_join_what_overlaps_and_nothing_else():
    def fn(a):
        a[0].add_(1)
        a[1].mul_(2)
        return a.sum()
    trace = functional(fn, x)
    graph, calls = dependence(trace), trace.bound_symbols
    writes = [n for n, b in enumerate(calls) if b.sym.is_copy]
    total = next(n for n, b in enumerate(calls) if b.sym.packet == "sum")
    assert writes[0] not in graph.before[writes[1]]
    assert all(graph.before[total][w] == Edge("raw", apart=True) for w in writes)


def test_errors_come_after_the_writes_before_them_and_before_those_after():
    def fn(a, b, i):
        a.add_(1)
        c = b.gather(0, i)
        b.mul_(2)
        return c
    made = parted(fn, x, y, torch.zeros(1, 4, dtype=torch.int64))
    mine = [x.clone(), y.clone()]
    with pytest.raises(RuntimeError):
        Program(made).run(*mine, torch.full((1, 4), 9))
    assert torch.equal(mine[0], x + 1) and torch.equal(mine[1], y)


# ---------------------------------------------------------------- random programs

VIEWS = ("{}", "{}", "{}.t()", "{}.flip(0)", "{}[1:]", "{}[:, :2]", "{}[:-1]", "{}.reshape(-1)", "{}[1]", "{}[:, 1]")


def random_program(seed, *arguments):
    """Text of a program of views, reads, writes, reductions and matmuls; it is run as it grows, so that shapes fit."""
    rng, scope, lines = random.Random(seed), dict(zip("abc", arguments)), []

    def view(name):
        return rng.choice(VIEWS).format(name) if scope[name].dim() == 2 and min(scope[name].shape) > 2 else name

    for n in range(rng.randrange(6, 30)):
        name, other, kind = rng.choice([*scope]), rng.choice([*scope]), rng.random()
        square = scope[name].dim() == 2
        target = view(rng.choice("abc"))
        shape = eval(target, dict(scope)).shape
        fits = [v for v in scope if scope[v].shape == shape]
        line = (f"{target}.copy_({rng.choice(fits)}.clone())" if kind < 0.2 and fits
                else f"{target}.mul_(0.5)" if kind < 0.25 else f"{target}.add_({target}.abs().sum(-1, keepdim=True))" if kind < 0.3
                else f"v{n} = {view(name)} + 1" if kind < 0.5
                else f"v{n} = {name} - {name}.amax({rng.randrange(2)}, keepdim=True)" if kind < 0.6 and square
                else f"v{n} = {name}.sum({rng.randrange(2)})" if kind < 0.68 and square
                else f"v{n} = {name} @ {name}.t()" if kind < 0.73 and square
                else f"v{n} = torch.maximum({name}, {other}) * 0.5" if scope[name].shape == scope[other].shape
                else f"v{n} = {view(name)}.cos()")
        exec(line, {"torch": torch}, scope)
        lines.append(line)
    results = ", ".join(f"{v} + 0" for v in [*scope][-3:])
    return "def program(a, b, c):\n    " + "\n    ".join(lines) + f"\n    return {results}\n"


def load(source, seed):
    filename = f"<random partition program {seed}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace = {"torch": torch, "__name__": "random_partition_program"}
    exec(compile(source, filename, "exec"), namespace)
    return namespace["program"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_meets_in_memory_has_an_order(seed):
    args = [torch.randn(4, 4), torch.randn(4, 4), torch.randn(3, 4)]
    trace = functional(load(random_program(seed, *(a.clone() for a in args)), seed), *args)
    graph = nx.DiGraph((m, n) for n, found in enumerate(dependence(trace).before) for m in found)
    assert nx.is_directed_acyclic_graph(graph) and all(m < n for m, n in graph.edges)
    memory = {p.storage for p in trace.inputs}
    accesses = [(n, a, a in b.written) for n, b in enumerate(trace.bound_symbols) if not b.is_view
                for a in [*b.reads, *b.written] if a.storage in memory]
    for m, a, writes in accesses:
        for n, later, writes_later in accesses:
            if m < n and (writes or writes_later) and a.storage == later.storage and overlaps(a.bytes, later.bytes):
                assert nx.has_path(graph, m, n), (m, n)


@pytest.mark.parametrize("how", ["order", "shuffled"])
@pytest.mark.parametrize("seed", range(60))
def test_random_programs_mean_the_same(seed, how):
    torch.manual_seed(seed)
    args = [torch.randn(4, 4), torch.randn(4, 4), torch.randn(3, 4)]
    fn = load(random_program(seed, *(a.clone() for a in args)), seed)
    check(fn, *args, executor=Eager(how, refuses=0.1, seed=seed))
