"""Programs whose mutations meet autograd, modes, errors and what Python reads of a tensor; importing registers them."""
import torch
from torch.utils.checkpoint import checkpoint

from .adversarial import arange1, program


@program(lambda: [arange1(3)])
def inference_mode_inside(x):
    with torch.inference_mode():
        y = x * 2
        y[0] = 1
    return y + 0


@program(lambda: [arange1(3)])
def raises_after_write(x):
    x.add_(1)
    raise ValueError("late")


@program(lambda: [arange1(4)])
def branch_on_value(x):
    x.add_(1)
    return x * 2 if x.sum() > 3 else x


@program(lambda: [arange1(2, 2), arange1(2, 2)])
def swap_values(a, b):
    t = a.clone()
    a.copy_(b)
    b.copy_(t)
    a[0], b[0] = b[1] + 0, a[1] + 0
    return a


@program(lambda: [arange1(8)])
def storage_resize(x):
    y = x * 1
    y.untyped_storage().resize_(0)
    return x + 1


@program(lambda: [arange1(8)])
def numpy_escape(x):
    y = x * 2
    return torch.from_numpy(y.numpy() + 1)


@program(lambda: [arange1(8)])
def python_list(x):
    return [float(v) for v in torch.ones(3)], (x * 2).tolist()


# Programs with a gradient, a hook, an error or an escape.


@program(lambda: [torch.arange(4.0), torch.tensor([9])], name="runtime error after a write")
def late_error(x, i):
    x.add_(1)
    y = x[i]
    x.mul_(2)
    return y


@program(lambda: [torch.arange(3.0).requires_grad_(), torch.ones(3)], name="autograd.grad inside")
def grad_inside(w, x):
    loss = (w * x).relu_().square().sum()
    g, = torch.autograd.grad(loss, w)
    return g, loss.detach()


@program(lambda: [torch.arange(3.0).requires_grad_(), torch.ones(3)], name="backward inside")
def backward_inside(w, x):
    (w * x).sum().backward()
    return x + 1


@program(lambda: [torch.arange(3.0).requires_grad_()], grad=True, name="tensor hook")
def hooks(w):
    y = w * 2
    y.register_hook(lambda g: g * 3)
    return y * y


@program(lambda: [torch.arange(3.0).requires_grad_()], grad=True, name="checkpoint")
def ckpt(w):
    return checkpoint(lambda t: (t * 2).sin(), w, use_reentrant=False)


@program(lambda: [torch.arange(3.0).requires_grad_(), torch.ones(3)], grad=True,
         name="write to a saved argument: eager errors in backward")
def saved_then_written(w, b):
    y = w * b
    b.add_(1)
    return y


CLOSURE_TENSOR = torch.ones(3)


@program(lambda: [torch.ones(3)], name="closure tensor")
def closure(x):
    return x + CLOSURE_TENSOR


@program(lambda: [torch.eye(3)], name="autocast inside")
def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x


@program(lambda: [torch.eye(3)], grad=False, name="requires_grad_ inside")
def req(x):
    y = x.clone().requires_grad_()
    return y * 2, y


@program(lambda: [torch.nn.Linear(2, 2), torch.ones(1, 2)], grad=True, name="module .data write")
def param_data(m, x):
    m.weight.data.mul_(2)
    return m(x)


@program(lambda: [torch.ones(3)], name="_version read")
def version(x):
    x.add_(1)
    x[0].mul_(2)
    return x._version


@program(lambda: [torch.ones(3)], name="data_ptr")
def ids(x):
    return x.data_ptr() == x.view(-1).data_ptr(), x.is_set_to(x)


@program(lambda: [torch.ones(3)], name="tensor attribute")
def attr(x):
    x.tag = 3
    return x * 2


@program(lambda: [torch.ones(3)], name="alloc")
def alloc(x):
    return torch.empty_like(x).fill_(1), x.new_zeros(2)
