"""The text of a kernel as people read it has the program's names and lines; what is compiled does not."""
import ast
import ctypes
import re
import subprocess
import sys

import pytest
import torch

import tracejit
from tracejit.executors.compiler import FLAGS, compiler, machine_flags
from tracejit.executors.kernel_cache import KernelCache

pytestmark = pytest.mark.compiler


def update(cache, k, bias):
    h = k + bias                                               # hidden
    h[:2].relu_()
    row = cache[3]
    gate = torch.sigmoid(row) * 0.9                            # gated
    row.mul_(gate).add_(h)                                     # updated
    spread, centre = torch.var_mean(row, 0, keepdim=True)      # moments
    return (row - centre) * gate, spread


def same_with_other_names(cache, one, two):
    """Other names, and nothing else."""
    double = one + two
    double[:2].relu_()
    int_ = cache[3]
    p = torch.sigmoid(int_) * 0.9
    int_.mul_(p).add_(double)
    lo, hi = torch.var_mean(int_, 0, keepdim=True)
    return (int_ - hi) * p, lo


def kernels_of(fn, *args, **options):
    jitted = tracejit.jit(fn, fallback="error", **options)
    jitted(*args)
    return jitted.kernels


def arguments():
    torch.manual_seed(0)
    return torch.randn(16, 64), torch.randn(64), torch.randn(64)


def code(text):
    """Without comments."""
    return re.sub(r"\n *//[^\n]*", "", text)


def test_values_are_named_and_lines_stand_above_what_they_became():
    [kernel] = kernels_of(update, *arguments())
    text = kernel.source
    for declared in ("float *cache = p[", "const float *restrict k = p[", "const float *restrict bias = p[",
                     "const float h = e", "const float gate = ", " * 0x1.cccccc0000000p-1f;", "const float centre = "):
        assert declared in text
    [lines] = {tuple(dict.fromkeys(re.findall(r"// test_readable.py:\d+  (.*?) +#", text)))}
    assert lines == ("h = k + bias", "gate = torch.sigmoid(row) * 0.9", "row.mul_(gate).add_(h)",
                     "spread, centre = torch.var_mean(row, 0, keepdim=True)")


def test_what_is_compiled_has_no_names_and_is_one_for_equal_programs():
    (a,), (b,) = kernels_of(update, *arguments()), kernels_of(same_with_other_names, *arguments())
    compiled = a.region.sym.fn.source.text
    assert compiled == b.region.sym.fn.source.text and "//" not in compiled and "gate" not in compiled
    assert a.source != b.source and "const float double_ = " not in b.source


@pytest.mark.parametrize("fn", [update, same_with_other_names])
@pytest.mark.parametrize("numerics", ["eager", "fast"])
def test_the_readable_text_is_the_same_program(fn, numerics):
    [kernel] = kernels_of(fn, *arguments(), numerics=numerics)
    args, same = arguments(), arguments()
    fn(*args)
    region, source = kernel.region, kernel.region.sym.fn.source
    given = dict(zip(fn.__code__.co_varnames, same))
    memory = {p.storage: given[p.name] for p in region.args}
    memory |= {s: torch.empty_strided(p.shape, p.stride) for s, p in source.made.items()}
    pointers = [0 if b is None else memory[b.storage].data_ptr() for b in source.buffers]
    library = KernelCache().load(kernel.source)
    assert library["tj_region"](1, (ctypes.c_void_p * len(pointers))(*pointers)) == 0
    torch.testing.assert_close(same[0], args[0])


def test_a_name_that_c_has_for_something_else_is_another():
    def program(a, int_):
        double = a + int_
        lo = double * a
        k0 = lo * double
        i0 = k0 + lo
        return i0 * k0
    [kernel] = kernels_of(program, torch.randn(64), torch.randn(64))
    declared = re.findall(r"const float (\w+) = ", kernel.source)
    assert declared[-5:-1] == ["double_2", "lo_2", "k0", "i0_2"]
    assert "*restrict a = p[" in kernel.source
    KernelCache().load(kernel.source)


def test_a_name_is_left_to_an_argument_where_threads_combine_what_they_reduced():
    [kernel] = kernels_of(lambda a, task: ((a * task).sum(), a.amax()), torch.randn(1 << 20), torch.randn(1 << 20))
    assert "*restrict a = p[" in kernel.source and "*restrict task_2 = p[" in kernel.source
    KernelCache().load(kernel.source)


def test_only_the_last_operation_of_a_statement_has_its_variable():
    def helper(x):
        return x + 1

    def program(x):
        y = helper(x * 2)                                      # named by the helper, if at all
        z = (x * 3) + helper(y) * y
        w = [x * 5, z * 7]
        return w[0] + w[1] + y
    [kernel] = kernels_of(program, torch.randn(64))
    text = code(kernel.source)
    assert re.search(r"const float z = \w+ \+ \w+;", text) and " y = " not in text and " w = " not in text


def test_a_kernel_of_a_backward_pass_shows_its_lines():
    x = torch.randn(64, requires_grad=True)
    kernels = kernels_of(lambda x: torch.sin(torch.exp(x) * x), x)
    assert len(kernels) == 2 and all("// test_readable.py:" in k.source for k in kernels)


def test_cuda_text_is_named_too():
    [kernel] = tracejit.lower(update, *arguments()).kernels
    for text in ("float *cache", "const float *__restrict__ bias", "const float h = ", "const float gate = ", "// test_read"):
        assert text in kernel.source and text not in kernel.code.text


def a_row(x, scale):
    given0 = torch.relu(x) * scale                             # as the table of sizes might be read
    return torch.softmax(given0, -1) + 1.5


@pytest.mark.parametrize("numerics", ["eager", "fast"])
def test_what_is_shown_and_reproduced_is_what_runs_when_machine_code_is_shared_among_sizes(numerics, tmp_path):
    fuser = tracejit.CpuExecutor(kernel_cache=str(tmp_path / "kernels"))
    compiled = tracejit.jit(a_row, executors=[fuser], fallback="error", numerics=numerics)
    for n in (20, 30):
        compiled(torch.randn(n, n + 3), torch.randn(n + 3))
    [kernel] = compiled.kernels
    built = [re.sub(r"\br[0-9a-f]{32}_", "", file.read_text()) for file in (tmp_path / "kernels").rglob("*.c")]
    script = kernel.save_repro(tmp_path / "repro.py").read_text()
    [source] = re.findall(r'SOURCE = r"""(.*?)"""', script, re.S)
    assert source in built and "= 33" not in source and "SIZES = [33, " in script
    [command] = re.findall(r"^COMMAND = (.*)$", script, re.M)
    more = ["-ffp-contract=fast"] if numerics == "fast" else []
    assert ast.literal_eval(command) == [*compiler(), *FLAGS, *machine_flags(), *more]
    done = subprocess.run([sys.executable, "repro.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("equal to PyTorch's") == 3, done.stderr
    reads = r"= \(\(const i64 \*\)p\[0\]\)\[\d+\];"
    assert re.search(reads + "    // 33 in this call", kernel.source) and "given0 = " not in re.sub(rf"given0 {reads}|//.*", "", kernel.source)
    assert len(re.findall(reads, kernel.source)) == len(re.findall(reads, source)) and " < 33;" not in kernel.source
