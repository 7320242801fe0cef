"""The rules of `decompose`: each is the formula of one composite op in simpler ones, as eager's kernels compute it.

Half types: eager's kernels read them, compute in float32 and round once, so do the rules (`wide`); a result is
rounded to the recorded dtype where it leaves the rule. A rule that returns NotImplemented leaves the op alone.
"""
from . import activations, foreach, losses, movement, norms, pointwise, reductions
from .rules import CALLS, ITEM_BY_ITEM, RULES, WRITERS

__all__ = ["CALLS", "ITEM_BY_ITEM", "RULES", "WRITERS", "activations", "foreach", "losses", "movement", "norms", "pointwise", "reductions"]
