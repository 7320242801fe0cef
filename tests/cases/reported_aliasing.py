"""Views, aliases and metadata: program shapes that were once wrong, or crashed, in some PyTorch compiler.

Every case names the public report whose failure it re-creates. The programs are
written afresh here; inputs are small, mostly integer-valued so that results are
exact. Register with harness.case; see harness.py for the options and for what is observed.
"""
import torch

from .harness import case


def arange(n, *shape, dtype=torch.float32):
    t = torch.arange(n, dtype=dtype)
    return t.reshape(*shape) if shape else t


# ===================================================== writes through views (12)

@case(id="vm-ring-push", source="pytorch/pytorch#197829", kind="view-mutation",
      about="rows shifted down and columns shifted left, each from a clone of itself; dropping the "
            "clone reads what is being written")
def vm_ring_push():
    def fn(history, feed):
        history[1:] = history[:-1].clone()
        feed[:, :-1] = feed[:, 1:].clone()
        return history.shape[0] * 2

    def make_args():
        # large enough for several vector lanes, threads or CUDA blocks: small ones hide it
        return [arange(64 * 256, 64, 256), arange(8 * 512, 8, 512)]
    return fn, make_args


@case(id="vm-scatter-rows-then-mirror", source="pytorch/pytorch#198270", kind="view-mutation",
      about="rows rewritten by an index tensor, then the tensor is added to its own mirror image; "
            "fusing both reads half-updated rows")
def vm_scatter_rows_then_mirror():
    def fn(grid, order):
        grid[order] = grid * 3 - 1
        grid += grid.flip(0)
        return grid.max()

    def make_args():
        return [arange(64 * 256, 64, 256), torch.arange(63, -1, -1)]
    return fn, make_args


@case(id="vm-publish-then-advance", source="pytorch/pytorch#198131", kind="view-mutation",
      about="one argument copied into another by slices, then the source is bumped; the copy must keep "
            "the old values")
def vm_publish_then_advance():
    def fn(published, counters):
        published[:] = counters[:]
        counters += 1
        counters[0] = -1
        return published * 10

    def make_args():
        return [torch.zeros(5, dtype=torch.int64), arange(5, dtype=torch.int64)]
    return fn, make_args


@case(id="vm-patched-copy-outlives-wipe", source="pytorch/pytorch#198094", kind="view-mutation",
      about="out-of-place scatters of a buffer are returned although the buffer is zeroed right after")
def vm_patched_copy_outlives_wipe():
    def fn(page, patch):
        patched = torch.select_scatter(page, patch, 0, 1)
        same_values = torch.diagonal_scatter(page, page.diagonal())
        page.zero_()
        return patched, same_values

    def make_args():
        return [arange(9, 3, 3, dtype=torch.int64), torch.tensor([-7, -8, -9])]
    return fn, make_args


@case(id="vm-corner-follows-base", source="Lightning-AI/lightning-thunder#2766", kind="view-mutation",
      about="a 0-dim element view, its base and a row are written in turn; each write must be visible "
            "through the others")
def vm_corner_follows_base():
    def fn(m):
        corner = m[-1, 2]
        whole = m.square_()
        corner.neg_()
        m[0] += corner
        return whole * 2, corner + 0

    def make_args():
        return [arange(12, 4, 3) - 5]
    return fn, make_args


@case(id="vm-broadcast-assign-grad", source="Lightning-AI/lightning-thunder#1962", kind="view-mutation",
      about="a slice is assigned a smaller broadcast value that needs grad; its gradient must be summed "
            "back, the buffer's origin cut",
      grad=True)
def vm_broadcast_assign_grad():
    def fn(states, row, weights):
        states[:, 1:3] = row
        return states * weights

    def make_args():
        return [torch.ones(3, 4), torch.tensor([[5.0, 6.0]], requires_grad=True), arange(12, 3, 4)]
    return fn, make_args


@case(id="vm-chunk-pieces", source="pytorch/pytorch#15669 (TorchScript)", kind="view-mutation",
      about="pieces of one chunk() call write into each other's neighbours; the whole must show all of it")
def vm_chunk_pieces():
    def fn(x):
        first, second, third = torch.chunk(x, 3)
        first.add_(5)
        third.copy_(first * second)
        second.zero_()
        return x + 1

    def make_args():
        return [arange(9)]
    return fn, make_args


@case(id="vm-repeated-index-update", source="pytorch/pytorch#174074", kind="view-mutation",
      about="t[ids] += t[ids] with a repeated id applies once per distinct row, not once per occurrence")
def vm_repeated_index_update():
    def fn(table, ids):
        table[ids] += table[ids]
        return table

    def make_args():
        return [arange(8, 4, 2) + 1, torch.tensor([2, 2, 0, 2])]
    return fn, make_args


# ================================================ inputs that share memory (6)

@case(id="ia-offset-view-returned", source="pytorch/pytorch#198095", kind="input-alias",
      about="the second argument is an offset view of the first, which is mutated; views of the second "
            "come back from the right offset")
def ia_offset_view_returned():
    def fn(buf, tail):
        buf.mul_(-1)
        return tail[1], tail.reshape(-1)

    def make_args():
        buf = arange(20, 5, 4)
        return [buf, buf[2:]]
    return fn, make_args


@case(id="ia-later-call-overlaps", source="pytorch/pytorch#139789", kind="input-alias",
      about="first call has separate inputs, later calls pass overlapping slices and then one tensor "
            "twice; the cached program must not be reused blindly",
      multi=True)
def ia_later_call_overlaps():
    def fn(acc, other):
        acc.add_(10)
        return acc * other

    def make_args():
        base = arange(8)
        one = arange(4) + 2
        return [[torch.ones(4), torch.full((4,), 2.0)],
                [base[:4], base[2:6]],
                [one, one],
                [torch.ones(4), torch.full((4,), 3.0)]]
    return fn, make_args


@case(id="ia-whole-and-prefix", source="Lightning-AI/lightning-thunder#2756", kind="input-alias",
      about="a tensor and a prefix of it are both arguments and both updated, in an order that matters")
def ia_whole_and_prefix():
    def fn(whole, prefix):
        whole.add_(1)
        prefix.mul_(2)
        whole.sub_(prefix.sum())
        return whole, prefix

    def make_args():
        w = arange(6)
        return [w, w[:2]]
    return fn, make_args


@case(id="ia-many-args-one-pair", source="Lightning-AI/lightning-thunder#1172", kind="input-alias",
      about="twelve arguments, two of them the same tensor, mutations on it and on another; argument "
            "bookkeeping must keep their order")
def ia_many_args_one_pair():
    def fn(*ts):
        ts[10].add_(1)
        ts[0].sub_(2)
        total = ts[1] * 3
        for t in ts:
            total = total + t
        return total

    def make_args():
        pair = torch.tensor([1.0, 2.0])
        return [pair, pair] + [torch.tensor(float(i)) for i in range(2, 12)]
    return fn, make_args


# ============================================================ outputs that alias (5)

@case(id="oa-detached-twin", source="pytorch/pytorch#100348", kind="output-alias",
      about="a loss and its detach() are both returned: two objects, one memory, only one of them "
            "differentiable",
      grad=True)
def oa_detached_twin():
    def fn(x):
        score = (x * x).sum()
        logged = score.detach()
        return logged, {"score": score, "half": logged / 2}

    def make_args():
        return [arange(4).requires_grad_()]
    return fn, make_args


@case(id="oa-no-grad-peek", source="pytorch/pytorch#187346", kind="output-alias",
      about="a view made under no_grad of a differentiable intermediate is returned beside the loss",
      grad=True)
def oa_no_grad_peek():
    def fn(w):
        h = w * 4
        with torch.no_grad():
            peek = h.t()[0]
        return peek, (h * h).sum()

    def make_args():
        return [arange(4, 2, 2).requires_grad_()]
    return fn, make_args


@case(id="oa-halves-and-detach", source="pytorch/pytorch#195664", kind="output-alias",
      about="two slices of an intermediate and its detach() are returned together; marking one non- "
            "differentiable must not silence the others",
      grad=True)
def oa_halves_and_detach():
    def fn(x):
        y = x * x
        h = y * 1.0
        return y[:2], y[2:], y.detach(), h, h.detach()

    def make_args():
        return [arange(5).requires_grad_()]
    return fn, make_args


@case(id="oa-input-and-its-view", source="pytorch/xla#5430", kind="output-alias",
      about="an argument and a view of it are returned; the caller writes into the view, and value and "
            "gradient of the argument follow",
      grad=True, after=lambda out, args: (out[1].mul_(3), out)[1])
def oa_input_and_its_view():
    def fn(x, root):
        return x, x.view(-1)[1:]

    def make_args():
        root = (arange(4, 2, 2) + 1).requires_grad_()
        return [root * 2, root]
    return fn, make_args


# ====================================================== shape and storage changes (4)


@case(id="md-grow-arg", source="pytorch/pytorch#97921", kind="metadata",
      about="an argument is grown with resize_, its new tail filled, all of it scaled; the caller's "
            "tensor has the new size and values")
def md_grow_arg():
    def fn(x):
        x.resize_(6)
        x[4:] = 9
        x.mul_(2)
        return x.sum()

    def make_args():
        return [torch.ones(4)]
    return fn, make_args


@case(id="md-swap-storage-and-restore", source="pytorch/pytorch#110842", kind="metadata",
      about="an argument is pointed at a wider temporary with set_, used, pointed back and then "
            "written; only the last write reaches the original")
def md_swap_storage_and_restore():
    def fn(weights, extra, watcher):
        home = weights.detach()
        weights.set_(torch.stack([weights, extra], 1))
        weights[0] = 50
        totals = weights.sum(0) - 1
        weights.set_(home)
        weights[1:].neg_()
        return totals, watcher + 0

    def make_args():
        w = arange(4)
        return [w, torch.full((4,), 2.0), w[2:]]
    return fn, make_args
