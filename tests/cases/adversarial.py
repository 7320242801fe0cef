"""Programs that mutate and alias in ways beyond the public reports; register() makes each one a case."""
import torch

from . import harness

PROGRAMS = []


def program(make_args, name=None, **options):
    """Add the decorated function to the programs; options are those of harness.case."""
    def add(fn):
        PROGRAMS.append((name or fn.__name__, fn, make_args, options if name else {"check_strides": True}))
        return fn
    return add


def arange1(*shape):
    """1, 2, 3, ... in the given shape."""
    return torch.arange(1., 1 + torch.Size(shape).numel()).view(shape)


@program(lambda: [arange1(4, 4)])
def dtype_view_write(x):
    x.view(torch.int32)[0].add_(1 << 20)
    return x * 2


@program(lambda: [arange1(4, 4)])
def dtype_view_intermediate(x):
    y = x * 2
    v = y.view(torch.int32)
    v[1].bitwise_and_(-65536)
    return y + 0, y


@program(lambda: [torch.complex(arange1(3), arange1(3))])
def conj_write(z):
    z.conj().mul_(1j)
    return z * 2, z.conj()


@program(lambda: [torch.complex(arange1(3), arange1(3))])
def conj_intermediate(z):
    y = z * 2
    c = y.conj()
    c[1:].add_(1j)
    y.mul_(2)
    return y, c


@program(lambda: [torch.complex(arange1(3), arange1(3))])
def view_as_real_write(z):
    r = torch.view_as_real(z)
    r[:, 1].zero_()
    z.imag.add_(2)
    return z + 1, z.real


@program(lambda: [torch.complex(arange1(3), arange1(3))])
def real_imag_intermediate(z):
    y = z + 1
    y.real.neg_()
    y.imag[1:].mul_(3)
    return y, y.imag


@program(lambda: [arange1(3), arange1(3)])
def foreach_alias(a, b):
    torch._foreach_add_([a, b, a], [b, a, b])
    return a + b


@program(lambda: [arange1(3), arange1(3)])
def foreach_plain(a, b):
    torch._foreach_mul_([a, b], 2)
    torch._foreach_addcdiv_([a[1:]], [b[1:]], [b[:2]])
    return a + b


@program(lambda: [arange1(3), arange1(3)])
def foreach_intermediate(a, b):
    c, d = a + 1, b + 1
    torch._foreach_add_([c, d, c[:1]], [d, d, d[:1]])
    return c, d


@program(lambda: [arange1(9)])
def unfold_read_after_write(x):
    u = x.unfold(0, 3, 2)
    x[2:5].mul_(-1)
    return u + 0, u


@program(lambda: [arange1(9)])
def as_strided_overlap(x):
    y = x + 0
    w = y.as_strided((3, 3), (2, 1))
    y[3:6] = 0
    return w * 1, w


@program(lambda: [arange1(3, 4)])
def expand_read(x):
    e = x[0].expand(3, 4)
    x[0, 1:].add_(5)
    return e + x, e


@program(lambda: [arange1(3, 4)])
def expand_write_raises(x):
    x[0].expand(3, 4).add_(1)
    return x


@program(lambda: [arange1(6)])
def shift_raises(x):
    x[1:].add_(x[:-1])
    return x


@program(lambda: [arange1(6, 6)])
def racy_column(x):
    x.sub_(x[:, :1])
    return x


@program(lambda: [arange1(6, 6)])
def racy_intermediate(x):
    y = x * 1
    y[:, ::2].mul_(y[:, :1])
    return y, y[1]


@program(lambda: [arange1(4), arange1(4)])
def out_variant(a, b):
    torch.add(a, b, out=a[:])
    torch.mul(a, 2, out=b)
    return a, b


@program(lambda: [arange1(4), torch.empty(0)])
def out_resizes(a, b):
    torch.mul(a, 2, out=b)
    return b


@program(lambda: [arange1(4)])
def out_resizes_intermediate(a):
    b = torch.empty(0)
    torch.mul(a, 2, out=b)
    b.add_(1)
    return b


@program(lambda: [arange1(2, 6)])
def resize_intermediate(x):
    y = x * 1
    y.resize_(3, 4)
    y[0] = 0
    return y, y.t()


@program(lambda: [arange1(2, 6)])
def resize_grow_intermediate(x):
    y = x * 1
    y.resize_(3, 6)
    y[2] = 7
    return y


@program(lambda: [arange1(4), arange1(3)])
def set_to_other_arg(x, y):
    x.set_(y)
    x.add_(1)
    return x * 2


@program(lambda: [arange1(4), arange1(3)])
def set_swap(x, y):
    t = x.detach()
    x.set_(y)
    y.set_(t)
    x.mul_(2)
    y.add_(1)
    return x, y, t


@program(lambda: [arange1(4, 3)])
def set_to_intermediate(x):
    y = x * 2
    v = x[1]
    x.set_(y.t())
    x[0].zero_()
    v.add_(1)
    return y, x


@program(lambda: [arange1(4, 3)])
def t_underscore(x):
    v = x[0]
    x.t_()
    x[0].add_(10)
    v.mul_(2)
    return x * 1, v


@program(lambda: [arange1(4, 3)])
def metadata_intermediate(x):
    y = x * 1
    v = y[0]
    y.t_()
    y.unsqueeze_(0)
    y[0, 0].add_(10)
    return y, v


@program(lambda: [arange1(4, 3)])
def many_metadata(x):
    x.unsqueeze_(0)
    x.transpose_(0, 2)
    x.squeeze_(2)
    x[0] = 1
    x.as_strided_((2, 2), (3, 1), 1)
    x.neg_()
    return x


@program(lambda: [arange1(4, 3)])
def data_assign(x):
    y = x * 2
    x.data = y
    x.add_(1)
    return y


@program(lambda: [arange1(4, 3)])
def data_write(x):
    x.data[0] = 9
    x.data.mul_(2)
    return x + 0


@program(lambda: [arange1(4, 3)])
def same_twice(x):
    y = x * 2
    return y, y, [y.view(-1), y], x, x


@program(lambda: [arange1(4, 3)])
def views_of_temp(x):
    y = x * 2
    return y[1:], y[:2], y.t()


@program(lambda: [arange1(4, 3)])
def split_pieces(x):
    a, b = (x * 1).split([1, 3])
    a.add_(1)
    b[0].sub_(a[0])
    return a, b


@program(lambda: [arange1(6)])
def unsafe_split(x):
    y = x * 1
    a, b = y.unsafe_split(3)
    a.add_(1)
    return y, a, b


@program(lambda: [arange1(4, 3), torch.tensor([0, 2, 0])])
def index_family(x, i):
    x[i] += 1
    x.index_add_(0, i, torch.ones(3, 3))
    x[:, 1].index_fill_(0, i[:1], 9)
    x.scatter_(1, i[None], -1.0)
    return x.gather(0, i[None])


@program(lambda: [arange1(4, 3)])
def rng_in_place(x):
    x[:, ::2].uniform_()
    y = x.t() * 1
    y.normal_()
    y[1].bernoulli_(0.5)
    torch.rand(3)
    return y, torch.rand(2), torch.nn.functional.dropout(x, 0.5)


@program(lambda: [arange1(64, 3)])
def rng_strided(x):
    y = torch.zeros(64, 6)
    y[:, ::2].normal_()
    x.t().exponential_()
    return y


@program(lambda: [arange1(4, 3)])
def noncontiguous_value(x):
    y = (x * 1)[:, ::2]
    y.add_(1)
    z = y * 2
    return z, y, y.reshape(-1)


@program(lambda: [arange1(4, 3)])
def batch_norm(x):
    m, v = torch.zeros(3), torch.ones(3)
    torch.nn.functional.batch_norm(x, m, v, training=True)
    return m, v


@program(lambda: [arange1(4, 3), torch.zeros(6), torch.ones(6)])
def batch_norm_views(x, m, v):
    torch.nn.functional.batch_norm(x, m[::2], v[3:], training=True)
    return m + v


@program(lambda: (lambda a: [a, torch.from_numpy(a.numpy())])(arange1(4)))
def two_storages(a, b):
    a.add_(1)
    return b * 2


@program(lambda: [arange1(5, 3), torch.tensor([0, 2])])
def embedding_renorm(w, i):
    return torch.nn.functional.embedding(i, w, max_norm=1.0), w


@program(lambda: [arange1(4, 4)])
def dead_store(x):
    x.fill_(1)
    x.zero_()
    x[0] = 5
    x[0] = 6
    return None


@program(lambda: [arange1(4, 4)])
def flag_and_size(x):
    y = x[x.shape[0] // 2:]
    y.copy_(x[:2])
    return y.shape, y.stride(), y.is_contiguous(), y


@program(lambda: [arange1(4, 4)])
def item_constant(x):
    return x * torch.tensor(3.0).item()


@program(lambda: [arange1(0, 4), arange1(2, 3)])
def empties(x, y):
    x.add_(1)
    y[:0] = 1
    y[5:].zero_()
    return x, y[:0]


@program(lambda: [arange1(2, 3, 4, 5).to(memory_format=torch.channels_last)])
def channels_last_chain(x):
    y = x * 1
    y[:, 0].relu_()
    y.add_(1)
    z = y.sum(0)
    return y, y[:, 1:], z


def register():
    """Each program as a harness case; harness.observe/diff compare it with eager."""
    for name, fn, make_args, options in PROGRAMS:
        harness.case(id="adv-" + name.replace(" ", "-"), source="tracejit", about=name, kind="layout",
                     rtol=1e-6, atol=1e-6, **options)(lambda fn=fn, make_args=make_args: (fn, make_args))
