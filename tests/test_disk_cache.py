"""Compiled kernels on disk: bounded, shared by processes, and never trusted where somebody else could have written."""
import os
import shutil
import stat
import time

import pytest
import torch

import tracejit
from tracejit.__main__ import main
from tracejit.executors import disk_cache
from tracejit.executors.cpu import CpuExecutor
from tracejit.executors.disk_cache import DiskCache
from tracejit.executors.kernel_cache import KernelCache

pytestmark = pytest.mark.compiler
NAME, OTHER, THIRD = "a" * 32 + ".so", "b" * 32 + ".so", "c" * 32 + ".so"


def program(x):
    return torch.relu(x + 1) * x, torch.tanh(x.sum(-1)) * 2


def answers(where, fn=program):
    """`fn` jitted with this directory gives eager's results; the executor."""
    executor = CpuExecutor(allow_single_op_fusion=True, kernel_cache=where)
    x = torch.randn(5, 7)
    torch.testing.assert_close(tracejit.jit(fn, executors=[executor], fallback="error")(x), fn(x))
    return executor


def stored(disk, name, content=b"x" * 3000, age=0):
    made = disk.directory / f"{name[:32]}.1.1.tmp"
    made.write_bytes(content)
    disk.put(made, [name])
    os.utime(disk.directory / name, (time.time() - age,) * 2)


# ------------------------------------------------------------ the bound

@pytest.fixture
def bound(monkeypatch):
    return lambda kib: monkeypatch.setattr(disk_cache, "cache_limit", lambda: kib << 10)


def test_what_was_not_used_for_the_longest_time_goes(tmp_path, bound):
    disk, mine = DiskCache(tmp_path), tmp_path / "notes.so"
    mine.write_bytes(bytes(100_000))                           # not of a cache
    bound(10)
    for name, age in ((NAME, 3 * 86400), (OTHER, 2 * 86400), (THIRD, 86400)):
        stored(disk, name, age=age)
    assert disk.content(NAME) == b"x" * 3000                   # used: the others are older now
    stored(disk, "d" * 32 + ".cubin")
    assert [disk.has(name) for name in (NAME, OTHER, THIRD, "d" * 32 + ".cubin")] == [True, False, False, True]
    assert disk.count() == (2, 2 * (3000 + disk_cache.CHECKSUM)) and mine.exists()


def test_use_is_noted_to_the_hour_and_costs_one_look(tmp_path, monkeypatch):
    disk, touched = DiskCache(tmp_path), []
    stored(disk, NAME, age=600)
    monkeypatch.setattr(os, "utime", lambda path, *more: touched.append(path))
    monkeypatch.setattr(os, "scandir", None)
    assert disk.has(NAME) and not touched
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 3600)
    assert disk.has(NAME) and len(touched) == 1


def test_the_directory_is_read_only_where_the_bound_is_passed(tmp_path, bound, monkeypatch):
    disk, read = DiskCache(tmp_path), []
    trim = DiskCache._trim
    monkeypatch.setattr(DiskCache, "_trim", lambda self, limit: read.append(limit) or trim(self, limit))
    bound(100)
    for n in range(60):
        stored(disk, f"{n:032x}.so", age=1000)
        assert disk.count()[1] <= 100 << 10
    assert len(read) == 4                                      # the first file, and each time 3 of 4 quarters are filled again
    (tmp_path / disk_cache.LEDGER).unlink()
    stored(disk, NAME)
    assert len(read) == 5 and (tmp_path / disk_cache.LEDGER).stat().st_size * 1024 >= disk.count()[1]


def test_what_is_at_work_and_what_is_new_stays(tmp_path, bound):
    disk, working = DiskCache(tmp_path), tmp_path / f"{NAME[:32]}.77.1.tmp"
    working.write_bytes(bytes(50_000))
    left_behind = tmp_path / f"{OTHER[:32]}.78.1.c"
    left_behind.write_bytes(bytes(50_000))
    os.utime(left_behind, (time.time() - 7200,) * 2)
    bound(1)
    stored(disk, NAME)
    stored(disk, OTHER)
    assert working.exists() and not left_behind.exists() and disk.has(NAME) and disk.has(OTHER)


def test_kernels_that_share_a_file_count_once(tmp_path):
    disk = DiskCache(tmp_path)
    made = tmp_path / f"{NAME[:32]}.1.1.tmp"
    made.write_bytes(bytes(5000))
    disk.put(made, [NAME, OTHER, THIRD])
    assert disk.count() == (3, 5000 + disk_cache.CHECKSUM) and disk.has(OTHER)


def test_kernels_that_are_removed_before_they_are_loaded_are_made_again(tmp_path, monkeypatch):
    failed = KernelCache._failed

    def build_and_clear(self, *args):
        found = failed(self, *args)
        self.disk.clear()
        return found
    monkeypatch.setattr(KernelCache, "_failed", build_and_clear)
    answers(tmp_path)
    monkeypatch.undo()
    assert answers(tmp_path).cache.built == 0


def test_a_directory_that_is_removed_meanwhile_is_made_again(tmp_path):
    executor = answers(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    x = torch.randn(3, 4)
    torch.testing.assert_close(tracejit.jit(lambda x: x.exp() + 1, executors=[executor], fallback="error")(x), x.exp() + 1)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_the_cache_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    where = tmp_path / "tracejit" / "kernels"
    assert tracejit.cache_dir() == where
    stored(DiskCache(), NAME)
    assert main(["cache"]) == 0 and capsys.readouterr().out == f"{where}: 1 compiled objects, 3032 bytes\n"
    assert main(["cache", "--clear"]) == 0 and "1 compiled objects, 3032 bytes, removed" in capsys.readouterr().out
    assert main(["cache"]) == 0 and "0 compiled objects, 0 bytes" in capsys.readouterr().out and not list(where.iterdir())


def test_the_bound_is_read_from_the_environment(monkeypatch):
    assert disk_cache.cache_limit() == 1 << 30
    monkeypatch.setenv("TRACEJIT_CACHE_MIB", "3")
    assert disk_cache.cache_limit() == 3 << 20


# ------------------------------------------------------------ files that are not to be trusted

def others_own(path):
    if os.getuid():
        pytest.skip("only root gives files away")
    os.chown(path, 12345, 12345)


FAULTS = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "one byte is another": lambda path: path.write_bytes(b"\x7fELG" + path.read_bytes()[4:]),
    "of others": others_own,
    "writable by others": lambda path: path.chmod(0o722),
    "writable by the group": lambda path: path.chmod(0o770),
    "a link to nothing": lambda path: (path.unlink(), path.symlink_to(path.parent / "nothing")),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_file_that_is_not_as_it_was_made_is_made_again(tmp_path, fault):
    answers(tmp_path)
    for path in tmp_path.glob("*.so"):
        whole = path.read_bytes()
        path.unlink()                                          # not in place: the loaded object maps it
        path.write_bytes(whole)
        path.chmod(0o700)
        fault(path)
    assert answers(tmp_path).cache.built >= 1
    assert answers(tmp_path).cache.built == 0
