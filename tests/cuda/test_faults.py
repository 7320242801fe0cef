"""The proof tools find what they are for: each fault is planted in a kernel that passes without it."""
from dataclasses import replace

import pytest
import torch

import shim
import tracejit
from on_shim import ShimExecutor
from proof import exact, needs_nvrtc, prove
from tracejit.codegen import cuda_rows, ops
from tracejit.codegen.rows import unary
from tracejit.executors import nvrtc

pytestmark = needs_nvrtc


def lowered(fn, *args):
    (kernel,) = tracejit.lower(fn, *args).kernels
    shim.run_region(kernel.code, kernel.region, args)
    return kernel


def changed(kernel, old, new):
    assert old in kernel.code.text
    return kernel.code.text.replace(old, new)


def fails(kernel, args, why, text=None, code=None, order="numbered"):
    with pytest.raises(shim.ShimError, match=why):
        shim.run_region(code or kernel.code, kernel.region, args, order, text=text)


@pytest.mark.parametrize("order", shim.ORDERS)
def test_a_removed_barrier(order):
    x = torch.randn(2, 4096)
    kernel = lowered(lambda x: torch.softmax(x, -1), x)
    fails(kernel, [x], "a race|nobody wrote", changed(kernel, "__syncthreads();", ""), order=order)


def test_a_barrier_that_not_all_threads_reach():
    x = torch.randn(2, 4096)
    kernel = lowered(lambda x: torch.softmax(x, -1), x)
    fails(kernel, [x], "barrier", changed(kernel, "const int row", "if (threadIdx.x < 32) __syncthreads(); const int row"))


def test_one_element_too_many_in_the_tail():
    x = torch.randn(1003)
    kernel = lowered(lambda x: x + 1, x)
    fails(kernel, [x], r"a0\[1003\], which has 1003 elements", changed(kernel, "threadIdx.x < 3", "threadIdx.x < 4"))


def test_one_element_too_few_in_the_tail():
    x = torch.randn(1003)
    kernel = lowered(lambda x: x + 1, x)
    (out,), counts = shim.run_region(kernel.code, kernel.region, [x], text=changed(kernel, "threadIdx.x < 3", "threadIdx.x < 2"))
    assert out[:-1].equal(x[:-1] + 1) and not out[-1].equal(x[-1] + 1)
    assert [int(t.min()) for key, t in counts.stores.items() if int(t.max())] == [0]


def test_a_vector_load_that_is_not_aligned():
    x = torch.randn(1024)
    kernel = lowered(lambda x: x + 1, x)
    fails(kernel, [x], "misaligned access to 4 elements", changed(kernel, "tj_read<4>(a0 + (", "tj_read<4>(a0 + (1 + "))


@pytest.mark.parametrize("order", shim.ORDERS)
def test_a_transpose_in_place_in_one_kernel(order):
    x = torch.randn(64, 64)
    kernel = lowered(lambda x: x.t().contiguous() + 1, x)
    def onto_itself(launch):
        source = next(b for b, p in zip(launch.buffers, launch.parameters) if p.constant)
        return replace(launch, buffers=tuple(source for _ in launch.buffers))
    code = replace(kernel.code, launches=tuple(map(onto_itself, kernel.launches)))
    fails(kernel, [x], "a race", code=code, order=order)


def test_a_transpose_in_place_is_not_one_kernel():
    prove(lambda x: x.copy_(x.t() + 1), torch.randn(40, 40), kernels=2, close=exact)


def test_a_float_computed_in_double():
    kernel = lowered(lambda x: x * 1.1, torch.randn(64))
    clean = nvrtc.facts_of(nvrtc.compile_text(kernel.code.text, "sm_90"))["k0"]
    number = next(word for word in kernel.code.text.split() if word.startswith("0x1.19999a"))
    doubled = changed(kernel, number, "1.1;")
    found = nvrtc.facts_of(nvrtc.compile_text(doubled, "sm_90"))["k0"]
    assert not clean.doubles and found.doubles


def test_registers_that_spill():
    kernel = lowered(lambda x: torch.softmax(x, -1), torch.randn(64, 4096))
    text = changed(kernel, "__launch_bounds__(256, 3)", "__launch_bounds__(256, 8)")
    text = text.replace("k0(", "k0(float *__restrict__ more, ", 1)
    body = "float z[64];\n#pragma unroll\nfor (int n = 0; n < 64; n++) z[n] = more[n * 256 + threadIdx.x];\n"
    body += "__syncthreads();\n#pragma unroll\nfor (int n = 0; n < 64; n++) more[n * 256 + threadIdx.x] = z[63 - n] * z[n * 7 % 64];\n"
    at = text.index("{", text.index("k0(")) + 1
    assert nvrtc.facts_of(nvrtc.compile_text(text[:at] + body + text[at:], "sm_90"))["k0"].spills


# ------------------------------------------------------------ one table for both

def test_a_row_in_the_table_is_an_op_on_both_devices(monkeypatch):
    def step(x):
        return torch.lgamma(x) * 2
    monkeypatch.setitem(ops.ELEMENTWISE, "lgamma", unary("lgamma"))
    x = torch.rand(128) + 2.5
    prove(step, x, kernels=1)
    for executor in (tracejit.CpuExecutor(), ShimExecutor()):
        jitted = tracejit.jit(step, executors=[executor], fallback="error")
        torch.testing.assert_close(jitted(x), step(x), rtol=3e-6, atol=1e-6)
        (region,) = jitted.last_traces[-1].regions
        assert [b.sym.packet for b in region.subsymbols] == ["lgamma", "mul"]


def test_a_removed_barrier_between_the_parts_of_a_long_row(monkeypatch):
    monkeypatch.setattr(cuda_rows, "KEPT_BYTES", 8)
    x = torch.randn(2, 9000)
    kernel = lowered(lambda x: torch.softmax(x, -1), x)
    fails(kernel, [x], "a race|nobody wrote", changed(kernel, "__syncthreads();", ""))


@pytest.mark.parametrize("old,new", [("const int i0 = o;", "const int far = o * 1000000000; const int i0 = far ? o : 0;"), (".e[q]", ".e[q + 4]")],
                         ids=["an index overflows", "an array of a thread ends"])
def test_undefined_behaviour(old, new):
    x = torch.randn(64)
    kernel = lowered(lambda x: x + 1, x)
    fails(kernel, [x], "undefined behaviour", changed(kernel, old, new))
