"""Two processes (gloo): jitted modules under DistributedDataParallel and fully_shard, as in eager."""
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tracejit


def test_two_processes_train_as_in_eager(tmp_path):
    """One pair of processes for all checks: starting them takes longer than the checks."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(tracejit.__file__).parents[1]), *sys.path])}
    found = subprocess.run([sys.executable, __file__, str(tmp_path / "store")], env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr[-3000:]


def train(wrap):
    """Three steps of a small network; its parameters after them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    model = wrap(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(3):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(10 * i + dist.get_rank()))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [(p.to_local() if hasattr(p, "to_local") else p).detach().clone() for p in net.parameters()]


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def jitted_inside_data_parallel():
    made = []

    def wrap(net):
        made.append(tracejit.jit(net, fallback="error", executors=["torch"]))
        return DistributedDataParallel(made[0])
    assert same(train(DistributedDataParallel), train(wrap))
    assert made[0].replayed_because == "" and made[0].cache_info().hits == 2


def jitted_around_data_parallel():
    made = []

    def wrap(net):
        made.append(tracejit.jit(DistributedDataParallel(net), fallback="silent"))
        return made[0]
    assert same(train(DistributedDataParallel), train(wrap))
    assert made[0].cache_info().fallbacks == 3
    strict = tracejit.jit(DistributedDataParallel(nn.Linear(4, 2)), fallback="error")
    try:
        strict(torch.ones(1, 4))
    except tracejit.UnsupportedError as error:
        assert "jit the module that it wraps" in str(error)
    else:
        raise AssertionError("a module under DistributedDataParallel was captured")


def sharded(net, jit=lambda part: part):
    mesh = init_device_mesh("cpu", (2,))
    net[1] = jit(net[1])
    for part in (net[0], net[2], net):
        fully_shard(part, mesh=mesh)
    return net


def jitted_inside_and_around_sharding():
    want = train(sharded)
    assert same(want, train(lambda net: sharded(net, lambda part: tracejit.jit(part, fallback="error", executors=["torch"]))))
    made = []

    def around(net):
        made.append(tracejit.jit(sharded(net), fallback="silent"))
        return made[0]
    assert same(want, train(around))
    assert made[0].cache_info().fallbacks == 3


def collectives_are_ordered_effects():
    rank = dist.get_rank()

    def program(x):
        y = x * 2
        dist.all_reduce(y)
        x.mul_(3)
        dist.all_reduce(x)
        x.add_(rank)
        z = x + y
        dist.broadcast(x, 0)
        dist.all_reduce(z)
        dist.all_reduce(z)
        return x * 1, y, z

    jitted = tracejit.jit(program, fallback="error")
    for i in range(3):
        mine, theirs = torch.ones(300_000) * (rank + 1 + i), torch.ones(300_000) * (rank + 1 + i)
        assert same([*program(mine), mine], [*jitted(theirs), theirs])
    assert jitted.last_traces[-1].count("allreduce_") == 4 and jitted.cache_info().hits == 2


def worker(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    for check in (collectives_are_ordered_effects, jitted_inside_data_parallel, jitted_around_data_parallel, jitted_inside_and_around_sharding):
        check()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(worker, (sys.argv[1],), nprocs=2)
