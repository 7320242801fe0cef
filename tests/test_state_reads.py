"""State outside a call's arguments: a change of anything a function can read must be seen, and writes must replay."""
from __future__ import annotations

import argparse
import collections
import contextlib
import contextvars
import copy
import dataclasses
import functools
import gc
import math
import operator
import os
import random
import sys
import threading
import time
import types
import weakref

import pytest
import torch

import tracejit
from tracejit.capture.locations import KeyReader
from tracejit.capture.reads import StateReads
from tracejit.errors import UnsupportedError

X = torch.ones(2)


class Bag:
    def __init__(self, **values):
        self.__dict__.update(values)


class Empty:
    pass


class Slotted:
    __slots__ = ("v",)


@dataclasses.dataclass(slots=True)
class SlottedOptions:
    n: int = 2


class Key:
    pass


class Scale:
    factor = 4

    def __init__(self):
        self.w = 4

    def __call__(self, x):
        return x * self.w * self.factor


class Base:
    def run(self, x):
        return x * 2


class Derived(Base):
    def run(self, x):
        return super().run(x)


class WithGetattr:
    def __init__(self):
        self.table = {"depth": 3}

    def __getattr__(self, name):
        try:
            return self.__dict__["table"][name]
        except KeyError:
            raise AttributeError(name) from None


class ConfigDict(dict):
    def __getattr__(self, name):
        return self[name]


class UserConfig(collections.UserDict):
    pass


class Operators:
    def __init__(self):
        self.k = 2

    def __mul__(self, x):
        return x * self.k

    def __getitem__(self, i):
        return self.k + i

    def __len__(self):
        return self.k

    def __enter__(self):
        return self.k

    def __exit__(self, *exc):
        return False


@dataclasses.dataclass
class Options:
    n: int = 2
    sub: object = None


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.k = 2
        self.l = [1, 2]
        self.ms = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Identity()])
        self.lin = torch.nn.Linear(2, 2)
        self.scale = torch.nn.Parameter(torch.ones(2))
        self.names = ("k",)

    @property
    def pk(self):
        return self.k + 1

    @functools.cached_property
    def ck(self):
        return self.k + 5

    def forward(self, x):
        x = x * self.pk * self.scale + self.ck
        for m in self.ms:
            x = m(x) + self.l[0]
        return self.lin(x) if self.training else x


class World:
    """A fresh set of the state that the functions below read. They are made by exec in a module of their own."""

    def __init__(self):
        m = self.module = types.ModuleType("world")
        m.__dict__.update(
            torch=torch, operator=operator, functools=functools, copy=copy, dataclasses=dataclasses, math=math,
            contextlib=contextlib, os=os, sys=sys,
            cfg=Bag(n=2, sub=Bag(n=3), slots=None, names=["n"]), LST=[1, 2], D={"k": 4, "in": {"z": 1}}, FLAG=True,
            sl=Slotted(), layer=Scale(), net=Net(), derived=Derived(), wg=WithGetattr(), cd=ConfigDict(n=2),
            ud=UserConfig(n=2), ops=Operators(), opt=Options(sub=Bag(n=3)), dq=collections.deque([1, 2]), S={1, 2},
            OBJS=[Bag(n=1), Bag(n=2)], FN=functools.partial(lambda s, x: x * s, 3), GETN=operator.attrgetter("n"),
            VAR=contextvars.ContextVar("VAR"), NT=collections.namedtuple("NT", "a b")(1, Bag(n=2)),
            dd=collections.defaultdict(int, a=1), table={"f": lambda x: x * 2}, empty=Empty(), W=torch.ones(2),
            KEYS=("n", "sub"), chain=collections.ChainMap({"a": 1}, {"b": 2}), FROZEN=types.MappingProxyType({"a": 1}),
            B=bytearray(b"ab"), Scale=Scale, Derived=Derived, Base=Base, ns=types.SimpleNamespace(n=2),
            args=argparse.Namespace(n=2), local=threading.local(), slotted=SlottedOptions(), key=Key(),
            weak_keys=weakref.WeakKeyDictionary(), weak_values=weakref.WeakValueDictionary(),
            weak_set=weakref.WeakSet(), scaler=torch.amp.GradScaler("cpu"))
        m.local.n = m.local.sub = 2
        m.weak_keys[m.key] = 2
        m.weak_values["cfg"] = m.cfg
        m.weak_set.add(m.key)
        m.sl.v = 3
        m.VAR.set(Bag(n=2))
        m.ref = weakref.ref(m.cfg)
        m.cfgmodule = types.ModuleType("cfgmodule")
        m.cfgmodule.N = 5
        m.cfgmodule.sub = Bag(n=1)
        sys.modules["tj_cfgmodule"] = m.cfgmodule
        m.bound = m.layer.__call__
        exec(compile(FUNCTIONS, "<world functions>", "exec"), m.__dict__)


FUNCTIONS = '''
def get(): return cfg
def f_call(x): return x * get().n
def f_branch(x): q = cfg if FLAG else cfg.sub; return x * q.n
def f_branch2(x):
    q = cfg
    if FLAG: q = cfg.sub
    return x * q.n
def f_getattr(x): return x * getattr(cfg, 'n')
def f_getattr_default(x): return x * getattr(cfg, 'gone', 1)
def f_getattr_variable(x):
    for n in KEYS[:1]: x = x * getattr(cfg, n)
    return x
def f_getattr_computed(x): return x * getattr(cfg, chr(110))
def f_getattr_nested(x): return x * getattr(getattr(cfg, KEYS[1]), KEYS[0])
def f_hasattr(x): return x if hasattr(cfg, 'gone') else x * 2
def f_hasattr_slot(x): return x if hasattr(sl, 'v') else x * 2
def f_try(x):
    try: return x * empty.later
    except AttributeError: return x
def f_try_bare(x):
    try: return x * empty.later
    except: return x
def f_vars(x): return x * sum(v for v in vars(cfg.sub).values())
def f_dunder_dict(x): return x * cfg.__dict__['n']
def f_dir(x): return x * len(dir(cfg))
def f_loop(x):
    for v in LST: x = x * v
    return x
def f_dict(x): return x * D['k'] * D['in']['z']
def f_dictget(x): return x * D.get('k')
def f_dict_iterate(x):
    for k in D: x = x + len(k)
    return x
def f_varkey(x, k='k'): return x * D[k]
def f_comp(x): return x * sum(v + cfg.n for v in LST)
def f_gen_objects(x): return x * sum(o.n for o in OBJS)
def f_map_objects(x): return x * sum(map(lambda o: o.n, OBJS))
def f_sorted(x): return x * sorted(OBJS, key=lambda o: o.n)[0].n
def f_zip(x):
    for i, (o, v) in enumerate(zip(OBJS, LST)): x = x * o.n + v
    return x
def f_default(x, s=[7]): return x * s[0]
def f_kwdefault(x, *, s={'a': 1}): return x * s['a']
def f_object_default(x, o=cfg): return x * o.n
def mk():
    c = 5
    o = cfg
    def g(x): return x * c + o.n
    def setc(v):
        nonlocal c; c = v
    return g, setc
f_cell, setc = mk()
def mk2():
    w = cfg.sub
    def inner(x): return x * w.n
    def outer(x): return inner(x)
    return outer
f_cell_nested = mk2()
f_lambda = lambda x: (lambda y: y * cfg.n)(x)
def f_slot(x): return x * sl.v
def f_len(x): return x * len(LST)
def f_attrgetter(x): return x * operator.attrgetter('n')(cfg)
def f_attrgetter_global(x): return x * GETN(cfg)
def f_attrgetter_far(x): return helper(operator.attrgetter('sub')(cfg), x)
def helper(q, x): return x * q.n
def helper_kw(x, **kw): return x * kw['q'].n
def f_kwargs(x): return helper_kw(x, q=cfg.sub)
def f_args(x): return (lambda *a: x * a[0].n)(cfg.sub)
def f_obj(x): return layer(x)
def f_class_attr(x): return x * Scale.factor
def f_instance_over_class(x): return x * layer.factor
def f_type(x): return x * type(layer).factor
def f_dunder_class(x): return x * layer.__class__.factor
def f_partial(x): return FN(x)
def f_super(x): return derived.run(x)
def f_usergetattr(x): return x * wg.depth
def f_configdict(x): return x * cd.n
def f_userdict(x): return x * ud['n']
def f_userdict_get(x): return x * ud.get('n', 1)
def f_mul(x): return ops * x
def f_item(x): return x * ops[1]
def f_dunder_len(x): return x * len(ops)
def f_with(x):
    with ops as k: return x * k
def f_dataclass(x): return x * opt.n
def f_asdict(x): return x * dataclasses.asdict(opt)['n']
def f_replace(x): return helper(dataclasses.replace(opt), x)
def f_copy(x): return helper(copy.copy(cfg), x)
def f_deepcopy(x): return helper(copy.deepcopy(cfg), x)
def f_deque(x): return x * dq[0]
def f_set(x): return x * (3 if 1 in S else 2)
def f_namedtuple(x): return x * NT.b.n
def f_defaultdict(x): return x * dd['a']
def f_function_table(x): return table['f'](x)
def f_function_attribute(x): return x * get.calls
get.calls = 1
def f_module_attribute(x): return x * cfgmodule.N
def f_module_object(x): return x * cfgmodule.sub.n
def f_import(x):
    import tj_cfgmodule
    return x * tj_cfgmodule.N
def f_from_import(x):
    from tj_cfgmodule import N, sub
    return x * N * sub.n
def f_context(x): return x * VAR.get().n
def f_weakref(x): return x * ref().n
def f_bound(x): return bound(x)
def f_chainmap(x): return x * chain['a']
def f_proxy(x): return x * FROZEN['a']
def f_bytearray(x): return x * B[0]
def f_list_of_tensors(x): return x + TENSORS[0]
def f_match(x):
    match cfg:
        case object(n=2): return x * 2
        case _: return x
def f_environment(x): return x * int(os.environ.get('TJ_TEST_N', '1'))
def f_fresh_holder(x):
    class Holder:
        def __init__(self, c): self.c = c
        def run(self, x): return x * self.c.n
    return Holder(cfg.sub).run(x)
def f_local_list(x):
    parts = [cfg.sub]
    return use_list(parts, x)
def use_list(parts, x):
    for p in parts: x = x * p.n
    return x
def f_generator(x):
    def gen():
        yield cfg.sub
    for o in gen(): x = x * o.n
    return x
def deco(f):
    @functools.wraps(f)
    def wrapped(x): return f(x) * cfg.n
    return wrapped
@deco
def f_decorated(x): return x * cfg.sub.n
@functools.lru_cache(None)
def cached(): return cfg.n
def f_net(x): return net(x)
def f_walrus(x):
    if (q := cfg.sub): return x * q.n
def f_truthiness(x): return x if LST else x * 2
def f_is(x): return x if cfg.slots is None else x * 2
def f_math(x): return x * math.sqrt(cfg.n)
def f_format(x): return x * len(f"{cfg.n}")
def f_no_grad(x):
    with torch.no_grad(): return x * cfg.n
@torch.no_grad()
def f_no_grad_decorated(x): return x * cfg.n
def f_nested_default(x):
    def inner(y, o=cfg.sub): return y * o.n
    return inner(x)
def f_global_tensor_attribute(x): return x * W.tag
W.tag = 3
def f_namespace(x): return x * ns.n
def f_namespace_absent(x): return x * 2 if hasattr(ns, 'later') else x
def f_namespace_try(x):
    try: return x * args.later
    except AttributeError: return x
def f_local(x): return x * local.n
def f_local_absent(x): return x * getattr(local, 'later', 1)
def f_weak_keys(x): return x * weak_keys[key]
def f_weak_keys_get(x): return x * weak_keys.get(key, 1)
def f_weak_values(x): return x * weak_values['cfg'].n
def f_weak_loop(x): return x * sum(o.n for o in weak_values.values())
def f_weak_set(x): return x * len(weak_set)
def f_isinstance(x): return x if isinstance(layer, Derived) else x * 2
def f_slotted(x): return x * dataclasses.asdict(slotted)['n']
def f_scaler(x): return x * scaler.get_growth_factor()
'''


def assign(owner, name, value):
    return lambda w: setattr(owner(w), name, value)


def item(container, key, value):
    return lambda w: container(w).__setitem__(key, value)


def rebind(name, value):
    return lambda w: w.module.__dict__.__setitem__(name, value)


cfg = operator.attrgetter("module.cfg")
sub = operator.attrgetter("module.cfg.sub")
LST = operator.attrgetter("module.LST")
D = operator.attrgetter("module.D")
net = operator.attrgetter("module.net")
layer = operator.attrgetter("module.layer")

CHANGES = [
    ("f_call", assign(cfg, "n", 9)), ("f_call", rebind("get", lambda: Bag(n=1))), ("f_branch", rebind("FLAG", False)),
    ("f_branch", assign(cfg, "n", 9)), ("f_branch2", assign(sub, "n", 8)), ("f_branch2", assign(cfg, "sub", Bag(n=3))),
    ("f_getattr", assign(cfg, "n", 9)), ("f_getattr_default", assign(cfg, "gone", 2)),
    ("f_getattr_variable", assign(cfg, "n", 9)), ("f_getattr_variable", rebind("KEYS", ("sub",))),
    ("f_getattr_computed", assign(cfg, "n", 9)), ("f_getattr_nested", assign(sub, "n", 9)),
    ("f_hasattr", assign(cfg, "gone", 1)), ("f_hasattr_slot", lambda w: delattr(w.module.sl, "v")),
    ("f_try", lambda w: setattr(w.module.empty, "later", 3)), ("f_try", lambda w: setattr(Empty, "later", 3)),
    ("f_try_bare", lambda w: setattr(w.module.empty, "later", 3)),
    ("f_vars", assign(sub, "n", 9)), ("f_vars", assign(sub, "m", 9)), ("f_dunder_dict", assign(cfg, "n", 9)),
    ("f_dir", assign(cfg, "another", 9)), ("f_loop", item(LST, 0, 5)), ("f_loop", lambda w: w.module.LST.append(3)),
    ("f_dict", item(D, "k", 9)), ("f_dict", item(lambda w: w.module.D["in"], "z", 9)), ("f_dictget", item(D, "k", 8)),
    ("f_dict_iterate", item(D, "new", 8)), ("f_varkey", item(D, "k", 8)), ("f_comp", assign(cfg, "n", 7)),
    ("f_gen_objects", lambda w: setattr(w.module.OBJS[1], "n", 7)),
    ("f_map_objects", lambda w: setattr(w.module.OBJS[1], "n", 7)),
    ("f_sorted", lambda w: setattr(w.module.OBJS[1], "n", -7)), ("f_zip", lambda w: setattr(w.module.OBJS[1], "n", 7)),
    ("f_default", lambda w: w.module.f_default.__defaults__[0].__setitem__(0, 9)),
    ("f_default", lambda w: setattr(w.module.f_default, "__defaults__", ([8],))),
    ("f_kwdefault", lambda w: w.module.f_kwdefault.__kwdefaults__["s"].__setitem__("a", 9)),
    ("f_object_default", assign(cfg, "n", 9)), ("f_cell", lambda w: w.module.setc(9)), ("f_cell", assign(cfg, "n", 9)),
    ("f_cell_nested", assign(sub, "n", 9)), ("f_lambda", assign(cfg, "n", 6)),
    ("f_slot", lambda w: setattr(w.module.sl, "v", 9)), ("f_len", lambda w: w.module.LST.append(3)),
    ("f_attrgetter", assign(cfg, "n", 9)), ("f_attrgetter_global", assign(cfg, "n", 9)),
    ("f_attrgetter_far", assign(sub, "n", 9)), ("f_kwargs", assign(sub, "n", 9)), ("f_args", assign(sub, "n", 9)),
    ("f_obj", assign(layer, "w", 9)), ("f_obj", lambda w: setattr(Scale, "factor", 9)),
    ("f_obj", lambda w: setattr(Scale, "__call__", lambda s, x: x)), ("f_class_attr", lambda w: setattr(Scale, "factor", 9)),
    ("f_instance_over_class", assign(layer, "factor", 9)), ("f_type", lambda w: setattr(Scale, "factor", 9)),
    ("f_dunder_class", lambda w: setattr(Scale, "factor", 9)),
    ("f_partial", rebind("FN", functools.partial(lambda s, x: x * s, 4))),
    ("f_super", lambda w: setattr(Base, "run", lambda self, x: x)),
    ("f_super", lambda w: setattr(Derived, "run", lambda self, x: x)),
    ("f_usergetattr", lambda w: w.module.wg.table.__setitem__("depth", 9)),
    ("f_usergetattr", lambda w: setattr(w.module.wg, "depth", 9)), ("f_configdict", lambda w: w.module.cd.update(n=9)),
    ("f_userdict", lambda w: w.module.ud.update(n=9)), ("f_userdict_get", lambda w: w.module.ud.update(n=9)),
    ("f_mul", lambda w: setattr(w.module.ops, "k", 9)), ("f_item", lambda w: setattr(w.module.ops, "k", 9)),
    ("f_dunder_len", lambda w: setattr(w.module.ops, "k", 9)), ("f_with", lambda w: setattr(w.module.ops, "k", 9)),
    ("f_mul", lambda w: setattr(Operators, "__mul__", lambda s, x: x)),
    ("f_dataclass", lambda w: setattr(w.module.opt, "n", 9)), ("f_asdict", lambda w: setattr(w.module.opt, "n", 9)),
    ("f_replace", lambda w: setattr(w.module.opt, "n", 9)), ("f_copy", assign(cfg, "n", 9)),
    ("f_deepcopy", assign(cfg, "n", 9)), ("f_deque", lambda w: w.module.dq.appendleft(5)),
    ("f_set", lambda w: w.module.S.discard(1)), ("f_namedtuple", lambda w: setattr(w.module.NT.b, "n", 9)),
    ("f_defaultdict", lambda w: w.module.dd.update(a=9)), ("f_function_table", lambda w: w.module.table.update(f=abs)),
    ("f_function_attribute", lambda w: setattr(w.module.get, "calls", 9)),
    ("f_module_attribute", lambda w: setattr(w.module.cfgmodule, "N", 9)),
    ("f_module_object", lambda w: setattr(w.module.cfgmodule.sub, "n", 9)),
    ("f_import", lambda w: setattr(w.module.cfgmodule, "N", 9)),
    ("f_from_import", lambda w: setattr(w.module.cfgmodule, "N", 9)),
    ("f_from_import", lambda w: setattr(w.module.cfgmodule.sub, "n", 9)),
    ("f_context", lambda w: setattr(w.module.VAR.get(), "n", 9)), ("f_context", lambda w: w.module.VAR.set(Bag(n=2))),
    ("f_weakref", assign(cfg, "n", 9)), ("f_bound", assign(layer, "w", 9)),
    ("f_bound", lambda w: setattr(w.module, "bound", Scale().__call__)),
    ("f_chainmap", lambda w: w.module.chain.maps[0].update(a=9)), ("f_proxy", rebind("FROZEN", {"a": 1})),
    ("f_bytearray", lambda w: w.module.B.__setitem__(0, 1)), ("f_match", assign(cfg, "n", 9)),
    ("f_environment", lambda w: os.environ.__setitem__("TJ_TEST_N", "7")), ("f_fresh_holder", assign(sub, "n", 9)),
    ("f_local_list", assign(sub, "n", 9)), ("f_generator", assign(sub, "n", 9)), ("f_decorated", assign(cfg, "n", 9)),
    ("f_decorated", assign(sub, "n", 9)), ("f_net", assign(net, "k", 9)), ("f_net", lambda w: w.module.net.eval()),
    ("f_net", lambda w: w.module.net.l.__setitem__(0, 9)), ("f_net", lambda w: w.module.net.ms.append(torch.nn.Identity())),
    ("f_net", lambda w: w.module.net.ms.__setitem__(0, torch.nn.ReLU())),
    ("f_net", lambda w: setattr(w.module.net, "lin", torch.nn.Linear(2, 2))),
    ("f_net", lambda w: setattr(w.module.net.lin, "forward", lambda x: x)),
    ("f_net", lambda w: setattr(Net, "forward", lambda self, x: x)),
    ("f_net", lambda w: w.module.net.lin.register_forward_hook(lambda *a: None)),
    ("f_net", lambda w: w.module.net.lin.register_parameter("bias", None)),
    ("f_net", lambda w: w.module.net.__dict__.__setitem__("scale", 3)),
    ("f_net", lambda w: w.module.net.__dict__.__setitem__("ck", 3)), ("f_walrus", assign(sub, "n", 9)),
    ("f_truthiness", lambda w: w.module.LST.clear()), ("f_is", assign(cfg, "slots", 1)), ("f_math", assign(cfg, "n", 9)),
    ("f_format", assign(cfg, "n", 11)), ("f_no_grad", assign(cfg, "n", 9)), ("f_no_grad_decorated", assign(cfg, "n", 9)),
    ("f_nested_default", assign(sub, "n", 9)), ("f_global_tensor_attribute", lambda w: setattr(w.module.W, "tag", 4)),
    ("f_call", assign(cfg, "n", 2.0)), ("f_call", assign(cfg, "n", True)),
    ("f_namespace", rebind("ns", types.SimpleNamespace(n=3))), ("f_namespace", lambda w: setattr(w.module.ns, "n", 3)),
    ("f_namespace_absent", lambda w: setattr(w.module.ns, "later", 3)),
    ("f_namespace_try", lambda w: setattr(w.module.args, "later", 3)),
    ("f_local", lambda w: setattr(w.module.local, "n", 3)), ("f_local", lambda w: delattr(w.module.local, "n")),
    ("f_local_absent", lambda w: setattr(w.module.local, "later", 3)),
    ("f_weak_keys", lambda w: w.module.weak_keys.__setitem__(w.module.key, 3)),
    ("f_weak_keys", lambda w: w.module.weak_keys.clear()), ("f_weak_keys_get", lambda w: w.module.weak_keys.clear()),
    ("f_weak_values", lambda w: w.module.weak_values.__setitem__("cfg", w.module.cfg.sub)),
    ("f_weak_values", assign(cfg, "n", 9)), ("f_weak_loop", assign(cfg, "n", 9)),
    ("f_weak_loop", lambda w: w.module.weak_values.__setitem__("more", w.module.cfg.sub)),
    ("f_weak_set", lambda w: w.module.weak_set.add(w.module.cfg)),
    ("f_obj", lambda w: setattr(w.module.layer, "__class__", Operators)),
    ("f_net", lambda w: setattr(w.module.net.lin, "__class__", torch.nn.Bilinear)),
    ("f_dunder_len", lambda w: setattr(w.module.ops, "__class__", Bag)),
    ("f_isinstance", lambda w: setattr(w.module.layer, "__class__", Derived)),
    ("f_call", lambda w: setattr(w.module.get, "__code__", (lambda: None).__code__)),
    ("f_call", lambda w: setattr(w.module.f_call, "__code__", (lambda x: x).__code__)),
    ("f_slotted", lambda w: setattr(w.module.slotted, "n", 3)),
    ("f_scaler", lambda w: w.module.scaler.set_growth_factor(3.0)),
]
CLASSES = (Scale, Base, Derived, Net, Operators, Empty)


@pytest.fixture
def world():
    kept = [(cls, dict(vars(cls))) for cls in CLASSES]
    yield World()
    os.environ.pop("TJ_TEST_N", None)
    sys.modules.pop("tj_cfgmodule", None)
    for cls, names in kept:
        for name in set(vars(cls)) - set(names):
            delattr(cls, name)
        for name, value in names.items():
            if vars(cls)[name] is not value:
                setattr(cls, name, value)


def watch(fn, *args, roots=(), **kwargs):
    reads = StateReads(fn, roots)
    with reads:
        result = fn(*args, **kwargs)
    return reads, result


@pytest.mark.parametrize("name, change", CHANGES, ids=[f"{i}-{name}" for i, (name, _) in enumerate(CHANGES)])
def test_change_of_state_that_was_read_is_seen(world, name, change):
    fn = getattr(world.module, name)
    if name == "f_net":
        fn(X)     # cached_property
    reads, _ = watch(fn, X)
    reads.rollback()
    reader = KeyReader(reads.locations)
    token = reader.register()
    assert reader.keys() == reader.latest
    assert reader() == token and reader() == token
    change(world)
    assert reader() != token
    assert reader.keys() != reader.latest


# ---------------------------------------------------------------- what is not a change

@pytest.mark.parametrize("name", sorted({name for name, _ in CHANGES}))
def test_a_second_call_reads_the_same(world, name):
    fn = getattr(world.module, name)
    if name == "f_net":
        fn(X)
    reads, _ = watch(fn, X)
    assert reads.writes() == []
    again, _ = watch(fn, X)
    assert [(l.path, l.expected, l.ident) for l in again.locations] == [
        (l.path, l.expected, l.ident) for l in reads.locations]


def test_what_is_not_read_is_not_guarded(world):
    reads, _ = watch(world.module.f_call, X)
    reader = KeyReader(reads.locations)
    token = reader.register()
    world.module.cfg.unrelated = 5
    world.module.LST.append(9)
    world.module.cfg.sub.n = 100
    assert reader() == token
    assert {l.path for l in reads.locations} == {
        "global get", "global cfg", "global cfg.n", "class of global cfg", "code of f_call", "code of get"}


def test_equal_contents_in_a_new_container_are_no_change(world):
    reads, _ = watch(world.module.f_loop, X)
    reader = KeyReader(reads.locations)
    token = reader.register()
    world.module.LST = list(world.module.LST)
    assert reader() == token


def test_state_written_before_it_is_read_is_not_guarded():
    m = Bag(n=1, k=2)

    def write_first(x):
        m.n = 5
        return use(x)

    def use(x):
        return x * m.n * m.k
    reads, _ = watch(write_first, X)
    paths = {l.path for l in reads.locations}
    assert "closure m.k" in paths and "closure m.n" not in paths


def test_an_object_replaced_by_an_equal_one_at_its_address_is_a_change():
    holder = Bag(inner=Bag(n=1))

    def fn(x):
        return x * holder.inner.n
    reads, _ = watch(fn, X)
    reader = KeyReader(reads.locations)
    token = reader.register()
    del reads
    for _ in range(50):
        holder.inner = None
        holder.inner = Bag(n=2)
        assert reader() != token


def test_nothing_of_the_user_is_kept_alive():
    m = Net()
    m.parent = Bag(net=m)     # a cycle

    def fn(x, m=m):
        return m(x)
    reads, _ = watch(fn, X)
    writes = reads.writes()
    reader = KeyReader(reads.locations)
    reader.register()
    assert [reader() for _ in range(4)] == [0] * 4 or reads.rollback() is None
    seen = weakref.ref(m)
    del reads, m, fn, writes
    gc.collect()
    assert seen() is None
    assert reader() is None


@pytest.mark.parametrize("make", [Slotted, types.SimpleNamespace])
def test_objects_that_take_no_weak_reference_are_not_kept_alive(make):
    holder = Bag(inner=make())
    holder.inner.v = Net()

    def fn(x):
        return x * holder.inner.v.k
    reads, _ = watch(fn, X)
    reads.rollback()
    reader = KeyReader(reads.locations)
    token = reader.register()
    assert [reader() for _ in range(4)] == [token] * 4
    seen, net, holder.inner = weakref.ref(holder.inner.v), holder.inner.v, make()
    holder.inner.v = net
    assert reader() is None          # another object, though it holds the same
    del reads, net
    holder.inner.v = Net()
    gc.collect()
    assert seen() is None


def test_a_thread_has_local_state_of_its_own(world):
    reads, _ = watch(world.module.f_local, X)
    reader = KeyReader(reads.locations)
    token, found = reader.register(), []
    assert [reader() for _ in range(4)] == [token] * 4

    def elsewhere():
        found.append(reader())
        world.module.local.n = 2
        found.append(reader())
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [None, token]


def test_operators_that_torch_fills_in_are_not_state():
    namespace, packet, overload = torch.ops.aten, torch.ops.aten.neg, torch.ops.aten.abs.default

    def fn(x):
        return namespace.square(x) + packet(x) + overload(x) + hasattr(namespace, "no_such_operator")
    reads, _ = watch(fn, X)
    assert reads.writes() == []
    assert {l.path for l in reads.locations} == {
        "closure namespace", "closure packet", "closure overload", "code of fn"}


def test_several_states_have_a_token_each(world):
    reads, _ = watch(world.module.f_call, X)
    reader = KeyReader(reads.locations)
    first = reader.register()
    world.module.cfg.n = 7
    assert reader() is None
    second = reader.register(reader.keys())
    for _ in range(3):
        for n, token in ((2, first), (7, second), (8, None)):
            world.module.cfg.n = n
            assert reader() == token and reader() == token


# ---------------------------------------------------------------- tensors

def test_tensors_are_located(world):
    w = world.module
    w.TENSORS = [torch.ones(2), {"a": torch.ones(2)}]
    w.net.extra = [torch.ones(2)]
    reads, _ = watch(w.f_net, X)
    for tensor, path in ((w.net.scale, "global net.scale"), (w.net.lin.weight, "global net.lin.weight"),
                         (w.net.extra[0], "global net.extra[0]")):
        location = reads.locate(tensor)
        assert location.path == path and location.read() is tensor
    assert reads.locate(torch.ones(2)) is None
    reads, _ = watch(w.f_list_of_tensors, X)
    location = reads.locate(w.TENSORS[0])
    assert location.path == "global TENSORS[0]" and location.read() is w.TENSORS[0]
    w.TENSORS[0] = new = torch.zeros(2)
    assert location.read() is new and location.key() == location.expected
    w.TENSORS.clear()
    assert location.key() != location.expected


def test_tensors_of_closures_defaults_partials_and_slots():
    a, b, c, d, e = (torch.full((2,), float(i)) for i in range(5))
    s = Slotted()
    s.v = d

    def fn(p, x, default=b, *, named=c):
        return x + a + default + named + s.v + p
    call = functools.partial(fn, e)
    reads, _ = watch(call, X)
    for tensor in (a, b, c, d, e):
        assert reads.locate(tensor).read() is tensor
    assert reads.locate(a).path == "closure a"


def test_a_tensor_is_found_again_by_its_location_when_it_is_replaced():
    m = Net()
    reads, _ = watch(m, X)
    location = reads.locate(m.scale)
    m.scale = torch.nn.Parameter(torch.zeros(2))
    assert location.read() is m.scale and location.path == "self.scale"
    m.register_parameter("scale", None)
    assert location.key() != location.expected


# ---------------------------------------------------------------- impure calls

def impure(name):
    rng, path = random.Random(0), __file__
    numbers = iter([1, 2, 3])
    logger = __import__("logging").getLogger("tracejit.test")

    def f_print(x): print("x")
    def f_time(x): return x * time.time()
    def f_perf_counter(x): return x * time.perf_counter()
    def f_random(x): return x * random.random()
    def f_randint(x): return x * random.randint(1, 3)
    def f_shuffle(x): random.shuffle([1, 2])
    def f_rng(x): return x * rng.uniform(0, 1)
    def f_open(x): open(path).close()
    def f_listdir(x): return x * len(os.listdir("."))
    def f_next(x): return x * next(numbers)
    def f_loop(x): return [x * n for n in numbers]
    def f_exec(x): exec("1")
    def f_eval(x): return x * eval("1")
    def f_stdout(x): sys.stdout.write("")
    def f_log(x): logger.error("x")
    def f_now(x): return x * __import__("datetime").datetime.now().year
    def f_globals(x): return x * len(globals())
    return locals()[name]


@pytest.mark.parametrize("name", [c.co_name for c in impure.__code__.co_consts if isinstance(c, types.CodeType)])
def test_impure_calls_are_refused_before_they_happen(name, capsys):
    fn = impure(name)
    state = random.getstate()
    reads = StateReads(fn)
    with pytest.raises(UnsupportedError) as error, reads:
        fn(X)
    assert capsys.readouterr().out == "" and random.getstate() == state
    line = fn.__code__.co_firstlineno
    assert error.value.where == f"{__file__}:{line}"
    assert sys.getprofile() is None


def test_numpy_random_is_refused():
    numpy = pytest.importorskip("numpy")
    generator = numpy.random.default_rng(0)
    for fn in (lambda x: x * float(numpy.random.rand()), lambda x: x * generator.random()):
        with pytest.raises(UnsupportedError), StateReads(fn):
            fn(X)


def test_a_caught_refusal_is_raised_at_the_end():
    def fn(x):
        try:
            print("x")
        except Exception:
            pass
        return x
    with pytest.raises(UnsupportedError, match="print"), StateReads(fn):
        fn(X)


def test_what_happens_once_is_allowed(tmp_path, monkeypatch, capsys):
    (tmp_path / "tj_imported_late.py").write_text("import time\nprint('hello')\nSTART = time.time()\nN = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    @functools.lru_cache(None)
    def cached():
        print("once")
        return 2

    def fn(x):
        import tj_imported_late
        return x * tj_imported_late.N * cached()
    reads, _ = watch(fn, X)
    assert capsys.readouterr().out == "hello\nonce\n"
    assert "tj_imported_late.N" in {l.path for l in reads.locations}
    sys.modules.pop("tj_imported_late")


def test_a_warning_that_no_capture_hears_is_refused():
    def fn(x):
        __import__("warnings").warn("careful")
        return x
    with pytest.raises(UnsupportedError, match="warnings.warn"), StateReads(fn):
        fn(X)


def test_lru_cache_of_a_tensor_is_refused():
    @functools.lru_cache(None)
    def table(n):
        return torch.arange(n)

    def fn(x):
        return x + table(2)
    with pytest.raises(UnsupportedError, match="lru_cache"):
        tracejit.jit(fn, fallback="error")(X)
    assert table.cache_info().currsize == 0


def test_the_previous_hook_comes_back():
    def hook(*args):
        return None
    sys.setprofile(hook)
    try:
        watch(lambda x: x, X)
        assert sys.getprofile() is hook
    finally:
        sys.setprofile(None)


# ---------------------------------------------------------------- looking runs nothing of the user's

def test_no_user_code_and_no_tensor_operation_runs():
    class Loud:
        def __eq__(self, other):
            raise AssertionError("== was called")
        __hash__ = None

        def __bool__(self):
            raise AssertionError("bool was called")

        def __len__(self):
            raise AssertionError("len was called")

        @property
        def n(self):
            raise AssertionError("a property was read")

    class NoOps(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            raise AssertionError(f"{function} was called")
    loud = Loud()
    bag = Bag(loud=loud, t=torch.ones(2), items=[loud, torch.ones(2)], keys={torch.ones(2): loud})

    def fn(x):
        return bag.loud, bag.t, bag.items, bag.keys, getattr(bag, "n", 1), vars(bag)
    reads = StateReads(fn)
    with NoOps(), reads:
        fn(X)
    reader = KeyReader(reads.locations)
    token = reader.register()
    with NoOps():
        assert reads.writes() == []
        assert [reader() for _ in range(4)] == [token] * 4
        bag.items.append(loud)
        assert reader() is None
        reads.rollback()


# ---------------------------------------------------------------- recall on a real model

def plain_reads(model, config, call):
    """Ground truth: every plain instance attribute that is read, by patching attribute access itself."""
    truth = set()
    patched = []
    for cls in (torch.nn.Module, next(c for c in type(config).__mro__ if c.__name__ == "PreTrainedConfig")):
        base = cls.__dict__.get("__getattribute__")
        read = base or object.__getattribute__

        def getattribute(self, name, read=read):
            value = read(self, name)
            if name in object.__getattribute__(self, "__dict__") and type(value) in (int, float, bool, str, type(None)):
                truth.add((id(self), name))
            return value
        cls.__getattribute__ = getattribute
        patched.append((cls, base))
    try:
        call()
    finally:
        for cls, base in patched:
            if base is None:
                del cls.__getattribute__
            else:
                cls.__getattribute__ = base
    known = {id(m) for m in model.modules()} | {id(config)}
    return {(owner, name) for owner, name in truth if owner in known}


def test_every_attribute_that_gpt2_reads_is_guarded():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16, bos_token_id=1,
                                     eos_token_id=1)
    model = transformers.GPT2Model(config).eval()
    ids = torch.zeros((1, 4), dtype=torch.long)

    def call():
        with torch.no_grad():
            return model(ids, use_cache=False)
    call()
    reads = StateReads(model)
    with reads:
        call()
    assert reads.writes() == []
    truth = plain_reads(model, config, call)
    names = {id(m): name for name, m in model.named_modules()} | {id(config): "config"}
    guarded = {(id(l.slot.space.owner()), l.slot.name) for l in reads.locations if hasattr(l.slot, "space")
               and hasattr(l.slot, "name")}
    assert len(truth) > 40
    assert {(names[o], n) for o, n in truth - guarded} == set()
    for p in model.parameters():
        assert reads.locate(p).read() is p
    reader = KeyReader(reads.locations)
    token = reader.register()
    assert [reader() for _ in range(4)] == [token] * 4
    for owner, name, value in ((model.h[0].attn, "training", True), (config, "output_hidden_states", True),
                               (model.h[0].attn, "scaling", 9.0)):
        kept = getattr(owner, name)
        setattr(owner, name, value)
        assert reader() is None
        setattr(owner, name, kept)
        assert reader() == token
