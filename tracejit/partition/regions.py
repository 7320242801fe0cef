"""Partition: which calls run as one kernel, in which order.

In: a functional trace, and executors in order. Out: the same program, every call with the executor that runs it, and
fusion regions: one bound symbol whose subsymbols are the calls that the kernel runs, in order.
Guaranteed: the order keeps every edge of the dependence graph, inside regions too; `inplace_check` proves it again.

What a region is, for whoever generates code for it:
  - `args`: tensors from outside. A view is never an argument when the executor can fuse the view call: the call
    stands in the region as a subsymbol (views cost nothing, so each region that uses one has it), and the argument is
    the tensor at the bottom of the chain of views. This holds for views of memory too: `copy_(view, v)` writes
    through the view's offset and strides, relative to the argument's.
    Factories (calls without tensor arguments that the executor fuses) are repeated in each region likewise.
  - `output`: the values that later calls or the results need, never a view of another value of the region, never memory.
    They are tensors of their own with the recorded sizes and strides.
  - One iteration space: every call that is no view and no factory has `full` size (as many elements as the region's
    largest), or, when the region reduces, all reductions reduce the same dims of the full shape and a call may have
    the `outer` size, one element a row. Shapes of one size may differ: their elements correspond in logical order.
    Smaller cheap work is recomputed per element of a larger region: then it has no store, no use outside, nothing costly.
  - A row never needs what another row computed: a value that depends on a reduction is read at its own row
    (aligned; proved on strides), and a large whole-tensor reduction is not followed by full-size work on its result.
  - Memory: no call of a region reads or overwrites bytes that an earlier call of the same region wrote. Bytes that a
    later call writes may be read before when read and written views are the same and all that is computed from
    them in the region is pointwise at the same shape: then each element is read at the index where it is written.
  - Calls that may raise stand before the writes of later regions and after those of earlier ones: a kernel holds either
    calls that may raise or `copy_`, never both. Several may share a kernel: it must report the first in program order.
"""
