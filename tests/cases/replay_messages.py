"""Programs that run as recorded, under autograd: what `replayed_because` says of each."""
import warnings
from typing import Callable

import numpy
import torch
from torch import nn

import tracejit

from .messages import CASES, Case


def leaf():
    return torch.tensor([1.0, 2.0, 3.0], requires_grad=True)


def replayed(fn=None, *, args: Callable[[], tuple] = lambda: (leaf(), leaf()), around=torch.enable_grad):
    """A function that is replayed. around: a context in which it is called."""
    def listed(fn):
        def told():
            jitted = tracejit.jit(fn, fallback="error")
            with around():
                jitted(*args())
            return f"replayed_because: {jitted.replayed_because}"
        CASES.append(Case(fn.__name__, told))
        return fn
    return listed(fn) if fn is not None else listed


FOLLOWED: list = []


def advised(fn=None, *, args: Callable[[], tuple] = lambda: (leaf(), leaf()), around=torch.enable_grad):
    """What a message says to do, done: it is not replayed."""
    def listed(fn):
        FOLLOWED.append((fn, args, around))
        return fn
    return listed(fn) if fn is not None else listed


# ------------------------------------------------------------ hooks, and code of the user's in the backward pass

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Weighted(Doubled):
    @staticmethod
    def backward(ctx, g):
        return g * WEIGHTS


class Counted(Doubled):
    @staticmethod
    def backward(ctx, g):
        SEEN.append(1)
        return g * 2


class Stopped(Doubled):
    @staticmethod
    def backward(ctx, g):
        return None


class Failing(Doubled):
    @staticmethod
    def backward(ctx, g):
        raise ValueError("no gradient of this")


WEIGHTS, SEEN = torch.ones(3), []


@replayed
def result_with_a_hook(x, y):
    z = x * y
    z.register_hook(lambda g: g * 2)
    return z


@replayed
def backward_uses_a_global_tensor(x, y):
    return Weighted.apply(x) * y


@replayed
def backward_writes_to_a_global_list(x, y):
    return Counted.apply(x) * y


@replayed
def backward_raises(x, y):
    return Failing.apply(x) * y


@replayed
def backward_gives_nothing(x, y):
    return Stopped.apply(x)


class Telling(Doubled):
    @staticmethod
    def backward(ctx, g):
        warnings.warn("no gradient is better")
        return g * 2


@replayed
def backward_warns(x, y):
    return Telling.apply(x) * y


class Spoiling(Doubled):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.detach()
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.kept.add_(1)


@replayed
def backward_writes_to_an_argument(x, y):
    return Spoiling.apply(x) * y


# ------------------------------------------------------------ gradients taken within the call

@replayed
def step_through_a_function_of_the_users(x, y):
    Doubled.apply(x).sum().backward()


def hooked():
    x = leaf()
    x.register_hook(lambda g: g * 2)
    return x, leaf()


@replayed(args=hooked)
def step_of_an_argument_with_a_hook(x, y):
    (x * y).sum().backward()


@replayed(args=lambda: (torch.ones(3), leaf()))
def step_that_writes_an_argument(x, y):
    x.mul_(y)
    x.sum().backward()


@replayed
def step_that_makes_a_leaf(x, y):
    (x * y).sum().backward()
    return torch.ones(3, requires_grad=True)


@replayed(args=lambda: (torch.zeros(4)[:2].requires_grad_(), leaf()))
def view_of_a_leaf_that_is_a_view(x, y):
    view = x.view(-1, 1)
    with torch.no_grad():
        view.add_(1)
    return view


@replayed
def step_with_a_result_that_still_carries_gradients(x, y):
    (x * y).sum().backward()
    return x * 2


@replayed
def step_with_a_result_whose_operand_was_written(x, y):
    (x * y).sum().backward()
    z = x.exp()
    result = z * 2
    z.add_(1)
    return result, z.detach()


# ------------------------------------------------------------ results and what they share

@replayed
def result_made_in_inference_mode(x, y):
    with torch.inference_mode():
        torch.ones(3).sum()
    return x * y


@replayed
def result_that_is_a_view_and_retains_its_gradient(x, y):
    v = x.view(3)
    v.retain_grad()
    return x * y, v


@replayed
def result_that_is_a_new_leaf(x, y):
    return x * y, torch.ones(3, requires_grad=True)


@replayed
def view_under_no_grad_of_what_was_written(x, y):
    z = x * 1
    with torch.no_grad():
        v = z.view(3)
    z.mul_(y)
    return z, v


@replayed(args=lambda: (leaf() * 2, leaf()))
def results_whose_histories_mix_with_an_argument_written(x, y):
    x.mul_(y)
    return results_whose_histories_mix(x)


@replayed
def results_whose_histories_mix_with_a_view(x, y):
    k = x * y
    h = k * 2
    v = h.view(3, 1)
    return h, v, (k * v).sum()


@replayed
def result_of_a_view_and_of_what_is_made_with_it(x, y):
    h = x * y
    column = h.view(3, 1)
    v, z = column[1:], column.exp()
    return h, v, z, v.sum() * z


@advised
def results_of_copies_of_views(x, y):
    k = x * y
    h = k * 2
    column = h.view(3, 1)
    v, z = column[1:], column.exp()
    return h, v.clone(), z, v.sum() * z, (k * column).sum()


@advised
def result_of_a_copy_of_a_view(x, y):
    h = x * y
    column = h.view(3, 1)
    v = column[1:]
    h.mul_(2)
    return h, column, v.clone(), v.exp()


@replayed
def results_whose_histories_mix_with_one_retained(x, y):
    h = x.sin()
    z = h * 2
    z.retain_grad()
    return z, (h * z).sum()


def results_whose_histories_mix(x):
    h = x.sin()
    y = h * 2
    return y, (h * y).sum()


@replayed
def result_that_lies_in_another(x, y):
    z = x * y
    return z, Same.apply(z)


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.detach()

    @staticmethod
    def backward(ctx, g):
        return g


@replayed
def result_that_is_one_of_several_views(x, y):
    return (x * y).unbind(0)[0]


@replayed
def norm_of_a_matrix(x, y):
    return torch.linalg.norm(x * y)


@replayed
def result_without_a_derivative_that_leads_nowhere(x, y):
    with torch.no_grad():
        view = x[:]
    return x * y, view // 2


@replayed
def products_of_lists(x, y):
    return torch._foreach_mul([x, y], 2)


@replayed
def product_of_elements(x, y):
    return (x * y).prod()


# ------------------------------------------------------------ arguments that are written

@replayed
def argument_written_without_history(x, y):
    with torch.no_grad():
        x.add_(1)
    return x * y


def halves():
    base = leaf().detach()
    return base[:2].requires_grad_(), base[1:].requires_grad_()


@replayed(args=halves)
def arguments_that_share_memory(x, y):
    return x * y


def shared():
    base = torch.ones(3)
    return base, base.view(3).detach(), leaf()


@replayed(args=shared)
def argument_that_shares_memory_is_written(x, y, w):
    x.mul_(w)


@replayed(args=lambda: (leaf() * 2, leaf()))
def argument_viewed_under_no_grad_is_written(x, y):
    with torch.no_grad():
        x.view(3)
    x.mul_(y)


@replayed(args=lambda: (leaf() * 2, leaf()))
def argument_written_twice_by_one_call(x, y):
    torch._foreach_neg_([x, x])
    return x * y


@replayed(args=lambda: (leaf() * 2, leaf()))
def argument_written_and_reshaped(x, y):
    x.mul_(y)
    x.unsqueeze_(0)


@replayed(args=lambda: (leaf() * 2, leaf()))
def argument_detached(x, y):
    x.detach_()
    return x * y


@replayed(args=lambda: (leaf() * 2, leaf()))
def view_of_an_argument_that_is_written_since(x, y):
    v = x[:2]
    x.mul_(y)
    return v


# ------------------------------------------------------------ autocast

@replayed(around=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
def under_autocast_with_its_cache(x, y):
    return nn.functional.linear(x, y)


@replayed(args=lambda: (torch.ones(3), leaf()), around=lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False))
def argument_written_under_autocast(x, y):
    x.mul_(y)


# ------------------------------------------------------------ what the values alone do not tell

@replayed
def storage_resized(x, y):
    y.untyped_storage().resize_(32)
    return y.detach() * 2


@replayed(args=lambda: (torch.ones(3), leaf()))
def requires_grad_changed(x, y):
    x.requires_grad_()


@replayed
def leaf_made(x, y):
    return torch.ones(3, requires_grad=True)


@replayed
def address_asked_for(x, y):
    return x.detach() * (y.data_ptr() == 0)


@replayed
def version_asked_for(x, y):
    return x.detach() * y._version


def over_the_same_memory():
    memory = numpy.ones(3, numpy.float32)
    return torch.from_numpy(memory), torch.from_numpy(memory)


@replayed(args=over_the_same_memory)
def two_arguments_over_one_array(x, y):
    x.add_(y)


@replayed(args=lambda: (torch.ones(3, 2), torch.tensor([0])))
def error_after_metadata_moved(x, i):
    x.t_()
    return x[i]


@replayed(args=lambda: (leaf(), leaf() * 2))
def gradient_of_an_argument_retained(x, y):
    y.retain_grad()
    return x.detach() * 2


# ------------------------------------------------------------ what the messages say to do

class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weights):
        ctx.save_for_backward(weights)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


@advised
def passes_the_global_tensor(x, y):
    return Saved.apply(x, WEIGHTS) * y


class Sparing(Spoiling):
    @staticmethod
    def backward(ctx, g):
        return g * ctx.kept.add(1)


@advised
def backward_computes_a_copy(x, y):
    return Sparing.apply(x) * y


@advised
def detaches_the_results(x, y):
    return Stopped.apply(x).detach()


@advised(args=hooked)
def leaves_backward_to_the_caller(x, y):
    return (Doubled.apply(x) * y).sum()


@advised(args=lambda: (torch.ones(3), leaf()))
def step_that_writes_to_a_copy(x, y):
    x = x.clone()
    x.mul_(y)
    x.sum().backward()


@advised
def step_that_detaches_its_results(x, y):
    (x * y).sum().backward()
    return torch.ones(3, requires_grad=True).detach(), (x * 2).detach()


@advised
def uses_no_grad(x, y):
    with torch.no_grad():
        k = torch.ones(3).sum()
    return x * y * k


@advised
def leaves_retaining_to_the_caller(x, y):
    return results_whose_histories_mix(x * y)


@advised
def takes_the_norm_of_all_elements(x, y):
    return torch.linalg.vector_norm(x * y)


@advised
def retains_nothing(x, y):
    v = x.view(3)
    return v * y, v


@advised
def detaches_the_new_leaf(x, y):
    return x * y, torch.ones(3, requires_grad=True).detach()


@advised
def detaches_the_view(x, y):
    z = x * 1
    v = z.detach().view(3)
    z.mul_(y)
    return z, v


@advised
def returns_a_copy(x, y):
    z = x * y
    return z, Same.apply(z).clone(), z.unbind(0)[0].clone()


@advised(args=lambda: (leaf(),))
def views_one_argument_twice(base):
    return base[:2] * base[1:]


@advised(args=shared)
def writes_to_a_copy(x, y, w):
    x = x.clone()
    x.mul_(w)
    return x


@advised(args=lambda: (leaf() * 2, leaf()))
def views_a_copy(x, y):
    with torch.no_grad():
        x.clone().view(3)
    x.mul_(y)


@advised(args=lambda: (leaf() * 2, leaf()))
def writes_in_two_calls(x, y):
    x.neg_()
    x.neg_()
    return x * y


@advised(args=lambda: (leaf() * 2, leaf()))
def reshapes_a_copy(x, y):
    x = x.clone()
    x.mul_(y)
    return x.unsqueeze_(0)


@advised(args=lambda: (leaf() * 2, leaf()))
def detaches_out_of_place(x, y):
    return x.detach() * y


@advised(args=lambda: (leaf() * 2, leaf()))
def views_the_argument_after_the_write(x, y):
    x.mul_(y)
    return x[:2]


@advised(around=lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False))
def under_autocast_without_its_cache(x, y):
    return nn.functional.linear(x, y)


@advised(args=lambda: (torch.ones(3), leaf()), around=lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False))
def writes_to_a_copy_under_autocast(x, y):
    x = x.clone()
    return x.mul_(y)
