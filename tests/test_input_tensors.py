"""Tensors of every kind as inputs: views of every sort, overlaps, odd dtypes, and those that must go to eager."""
import pytest
import torch
import torch.nn as nn

import tracejit

from cases.parity import assert_parity, assert_parity_silently


def arange(*shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape)


def a34():
    return arange(3, 4)


# ------------------------------------------------------------------ unusual strided tensors

def test_dtype_views():
    def program(x, y):
        x.view(torch.int32)[0].add_(1 << 20)
        t = y * 2
        t.view(torch.int16)[:, 1].zero_()
        return x * 2, t, t.view(torch.uint8), y.view(torch.int64)

    assert_parity(program, lambda: [a34(), a34()])


def test_complex_views():
    def program(z):
        r = torch.view_as_real(z)
        r[:, 1].zero_()
        z.imag.add_(2)
        y = z.conj() * 1j
        y.real.neg_()
        return z, z.real, z.conj(), y, y.imag, torch.view_as_complex(r), z.conj().imag

    assert_parity(program, lambda: [torch.complex(arange(3), arange(3) + 1)])


def test_conjugated_and_negated_arguments():
    def make():
        z = torch.complex(arange(3), arange(3) + 1)
        return [z.conj(), z.clone().conj().imag]

    def program(c, neg):
        c.mul_(2)
        neg.add_(1)
        return c + 1, neg * 2, c.conj()

    assert_parity(program, make)


def test_zero_size_and_zero_dim():
    def program(none, lone):
        none.add_(1)
        lone.mul_(3)
        lone[...] = lone + 1
        return none.sum(), none.view(3, 0), lone.expand(2), lone.unsqueeze(0), none[:, :0], torch.cat([none, none])

    assert_parity(program, lambda: [torch.zeros(0, 3), torch.tensor(2.0)])


def test_expanded_arguments():
    def program(e, x):
        x.add_(e)
        return e * 2, e.sum(0), e.reshape(-1)

    assert_parity(program, lambda: [arange(4).expand(3, 4), a34()])
    assert_parity(lambda e: e.add_(1), lambda: [arange(4).expand(3, 4)], raises="RuntimeError")


def test_overlapping_memory():
    def program(x):
        w = x.unfold(0, 4, 2)
        y = w * 2
        x[3:5].add_(10)
        return w + y, w

    assert_parity(program, lambda: [arange(12)])
    assert_parity(lambda w: (w * 2, w.sum(0)), lambda: [arange(12).as_strided((4, 4), (2, 1))])


def test_arguments_that_overlap_partly():
    def program(a, b):
        a.mul_(2)
        b.add_(a.sum())
        return a + b

    def make():
        base = arange(10)
        return [base[:6], base[4:]]

    assert_parity(program, make)


def test_memory_shared_with_numpy():
    def make():
        x = a34()
        return [x, torch.from_numpy(x.numpy()), torch.from_numpy(x.numpy()[1:])]

    def program(x, same, rows):
        x.add_(1)
        rows.mul_(2)
        return same * 3

    assert_parity(program, make)


def test_flipped_strides_and_channels_last():
    def program(x):
        y = x.permute(0, 2, 3, 1)
        y[0].add_(1)
        return x * 2, torch.relu(y), x.contiguous(), x.flip(1)

    assert_parity(program, lambda: [arange(2, 3, 4, 5).to(memory_format=torch.channels_last)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int8, torch.int16,
                                   torch.int32, torch.int64, torch.bool, torch.complex64], ids=str)
def test_every_dtype(dtype):
    def program(x):
        y = x.clone()
        y[0] = x[1]
        x[1:].copy_(y[:-1])
        return y, x == y, x.t(), y.sum()

    assert_parity(program, lambda: [arange(3, 4).to(dtype)])


def test_float8_and_wide_unsigned():
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32):
        assert_parity(lambda x, dtype=dtype: (x.to(dtype), x.to(dtype).to(torch.float32) * 2), lambda: [a34()])


def test_metadata_changes_of_arguments():
    def program(x, y):
        x.unsqueeze_(0)
        y.t_()
        y[0].add_(1)
        return x * 2, y

    assert_parity(program, lambda: [a34(), a34()])


# ------------------------------------------------------------------ tensors that are not plain

def assert_falls_back(fn, make_args):
    """As eager, by eager, with a reason."""
    assert_parity_reason = tracejit.jit(fn, fallback="error")
    with pytest.raises(tracejit.UnsupportedError) as info:
        assert_parity_reason(*make_args())
    assert str(info.value)
    jfn = tracejit.jit(fn, fallback="silent")
    want, got = fn(*make_args()), jfn(*make_args())
    assert type(want) is type(got) and want.layout == got.layout
    assert jfn.cache_info().fallbacks == 1
    return want, got


def test_sparse_tensors_go_to_eager():
    want, got = assert_falls_back(lambda s: s * 2, lambda: [torch.eye(3).to_sparse()])
    assert torch.equal(want.to_dense(), got.to_dense())
    want, got = assert_falls_back(lambda s, x: s @ x, lambda: [torch.eye(3).to_sparse_csr(), torch.ones(3, 2)])
    assert torch.equal(want, got)


def test_quantized_tensors_go_to_eager():
    want, got = assert_falls_back(lambda q: q.dequantize() * 2,
                                  lambda: [torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)])
    assert torch.equal(want, got)


class Tagged(torch.Tensor):
    pass


def test_subclasses_go_to_eager():
    want, got = assert_falls_back(lambda x: x + 1, lambda: [a34().as_subclass(Tagged)])
    assert torch.equal(want.as_subclass(torch.Tensor), got.as_subclass(torch.Tensor))


def test_parameters_are_plain_tensors():
    assert_parity(lambda p: p * 2, lambda: [nn.Parameter(a34())], grad=True)


def test_meta_tensors():
    jfn = tracejit.jit(lambda x: x * 2, fallback="silent")
    assert jfn(torch.ones(3, device="meta")).device.type == "meta"


def test_under_vmap_and_grad_transforms():
    def program(x):
        return (x * x).sum()

    jfn = tracejit.jit(program, fallback="silent")
    assert torch.equal(torch.vmap(jfn)(a34()), torch.vmap(program)(a34()))
    assert torch.equal(torch.func.grad(jfn)(a34()), torch.func.grad(program)(a34()))


def test_transforms_inside():
    def program(x):
        return torch.vmap(lambda row: row.sum() * row)(x), torch.func.grad(lambda t: (t * t).sum())(x)

    assert_parity_silently(program, lambda: [a34()])


def test_under_an_outer_dispatch_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            type(self).calls += 1
            return func(*args, **(kwargs or {}))

    jfn = tracejit.jit(lambda x: x * 2 + 1, fallback="silent")
    with Count():
        assert torch.equal(jfn(a34()), a34() * 2 + 1)
    assert Count.calls >= 2
    assert torch.equal(jfn(a34()), a34() * 2 + 1)


def test_inference_tensors():
    with torch.inference_mode():
        x = a34()
    jfn = tracejit.jit(lambda t: t * 2, fallback="silent")
    assert torch.equal(jfn(x), a34() * 2)


def test_numpy_arrays_and_other_objects_are_passed_through():
    import numpy

    def program(x, array, thing):
        return x * len(array), array, thing

    marker = object()
    jfn = tracejit.jit(program, fallback="silent")
    array = numpy.ones(3)
    out = jfn(a34(), array, marker)
    assert torch.equal(out[0], a34() * 3) and out[1] is array and out[2] is marker


def test_data_dependent_shapes():
    assert_parity_silently(lambda x: (x[x > 3], x.nonzero(), x.unique()), lambda: [a34()])


def test_boolean_mask_assignment():
    def program(x, y):
        x[x > 3] = 0
        y[y < 2] += 1
        return x + y

    assert_parity_silently(program, lambda: [a34(), a34()])


def test_masked_fill_and_where_need_no_fallback():
    def program(x):
        x.masked_fill_(x > 3, 0)
        x[:, 1:].masked_scatter_(x[:, 1:] > 1, torch.ones(12))
        return torch.where(x > 1, x, -x)

    assert_parity(program, lambda: [a34()])


def test_whether_an_argument_is_a_view_is_guarded():
    def program(x):
        return x * 2 if x._is_view() else x * 3

    compiled = tracejit.jit(program, fallback="error")
    for make in (lambda t: t * 1, lambda t: (t * 1)[:], lambda t: t * 1, lambda t: t[:], lambda t: t.detach()[:], lambda t: t.detach()):
        for _ in range(2):
            x = make(torch.ones(3, requires_grad=True))
            assert torch.equal(compiled(x), program(x))


def test_what_an_argument_views_is_no_argument():
    def program(x):
        return x * 3 if x._base is None else x._base * 2

    def of_an_intermediate(x):
        return x.exp()[1:]._base * 2, x[1:]._base

    for function in (program, of_an_intermediate):
        compiled = tracejit.jit(function, fallback="silent")
        for make, eagerly in ((lambda t: t * 1, 0), (lambda t: (t * 1)[:], 1), (lambda t: t[:], 2), (lambda t: t * 1, 2)):
            x = make(torch.ones(3, requires_grad=True))
            want, got = function(x), compiled(x)
            assert all(torch.equal(a, b) for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (want, got))))
            assert compiled.cache_info().fallbacks == eagerly
