"""Real tensors to fake ones and back: a capture's memo of fake tensors.

A fake has shape, strides, dtype, device and a storage of its own, and no data. All fakes of one capture come from one
memo, so tensors that share a storage share one here.
"""
from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import UnsupportedError
from ..torch_private import (NEEDS_DATA, FakeTensor, converted, creation_is_plain, fake_mode, functorch_level, is_zero_tensor, plain_fake,
                             unseen_by_function_modes)

__all__ = ["NEEDS_DATA", "Fakes", "is_fake", "quiet_logs", "real_tensors", "unsupported_tensor", "why_not_found"]
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_quiet = threading.Lock()


def is_fake(x: object) -> bool:
    return isinstance(x, FakeTensor)


def unsupported_tensor(t: torch.Tensor) -> str:
    """Why a tensor cannot be captured, or ""."""
    if type(t) not in _PLAIN_TYPES:
        return f"a tensor of the subclass {type(t).__name__}"
    if t.layout != torch.strided:
        return f"a tensor of layout {t.layout}"
    if t.is_quantized or t.is_nested:
        return "a quantized or nested tensor"
    if t.device.type == "meta":
        return "a meta tensor"
    if is_zero_tensor(t):
        return "a zero tensor"
    return ""


def why_not_found(t: torch.Tensor) -> str:
    """Why a tensor that the program uses is no input."""
    if functorch_level() is not None:
        return "a functorch transform (vmap, grad, ...) within the function: call it outside of the jitted function"
    kind = unsupported_tensor(t)
    if kind:
        return f"{kind} is made within the function: make and use it outside of the jitted function"
    return ("a tensor that is neither an argument nor found in a place that can be watched: pass it as an argument, "
            "or keep it in an attribute or a global")


class Fakes:
    """The fakes of one capture. `fake` makes or finds one, `real_of` goes back. opened: (shape, strides) of those with open sizes, by
    the ids of the real tensors; None: no size is open."""

    def __init__(self, opened: Optional[dict[int, tuple]] = None) -> None:
        self.opened = opened or {}
        self.mode = fake_mode(open_sizes=opened is not None)
        self._of: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._back: dict[int, torch.Tensor] = {}
        self._versions: dict[int, int] = {}
        self._grads: dict[int, torch.Tensor] = {}

    def find(self, real: torch.Tensor) -> Optional[torch.Tensor]:
        found = self._of.get(id(real))
        return found[1] if found else None

    def real_of(self, fake: torch.Tensor) -> Optional[torch.Tensor]:
        return self._back.get(id(fake))

    def storage_bytes(self, fake: torch.Tensor) -> int:
        """Of the storage that a fake stands over: that of an input may be larger than its fake's."""
        own = fake.untyped_storage()
        real = next((real for real, f in self._of.values() if f.untyped_storage()._cdata == own._cdata), None)
        return max(own.nbytes(), real.untyped_storage().nbytes() if real is not None else 0)

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(real, fake) of every tensor that has a fake."""
        return list(self._of.values())

    def first_grad(self, fake: torch.Tensor) -> Optional[torch.Tensor]:
        """The fake's `.grad` when it was made."""
        return self._grads.get(id(fake))

    def is_view(self, fake: torch.Tensor, reads: list, where: Callable) -> bool:
        """As the real tensor answers; what an argument answers is noted among the `reads` of the host."""
        real = self.real_of(fake)
        if real is None:
            return fake._is_view()
        with unseen_by_function_modes():
            reads.append(("is_view", real, real._is_view()))
        return reads[-1][-1]

    def base(self, fake: torch.Tensor, reads: list, where: Callable) -> Optional[torch.Tensor]:
        """What a tensor views; UnsupportedError, at `where()`, for what an argument views: it is none itself."""
        base = fake._base
        if self.real_of(fake) is None:
            inputs = {f.untyped_storage()._cdata for _, f in self._of.values()}
            if base is None or base.untyped_storage()._cdata not in inputs:
                return base
            if self.real_of(base) is not None and not self.is_view(base, reads, where):
                return self.real_of(base)                      # the argument itself
        elif not self.is_view(fake, reads, where):
            return None
        raise UnsupportedError("_base is no argument of the function: pass it, or ask outside", where=str(where()))

    def names(self, t: torch.Tensor) -> list[str]:
        """`dir(t)`, without the names that only fakes have."""
        t = t if not is_fake(t) else self.real_of(t) if self.real_of(t) is not None else t
        with unseen_by_function_modes():
            found = torch.Tensor.__dir__(t)
        if not is_fake(t):
            return found
        own = {name for _, fake in self._of.values() for name in vars(fake)}
        return [name for name in found if hasattr(torch.Tensor, name) or name in vars(t) and name not in own]

    def forget(self) -> None:
        """Let go of the real tensors: what outlives the capture keeps none alive."""
        self._of, self._back = {}, {}

    def first_version(self, fake: torch.Tensor) -> int:
        """The fake's version counter when it was made."""
        return self._versions.get(id(fake), 0)

    def make(self, real: torch.Tensor) -> torch.Tensor:
        """A new fake for `real`; UnsupportedError when the fake would not lie in memory as the real one does."""
        why = unsupported_tensor(real)
        if why:
            raise UnsupportedError(f"{why} cannot be captured: pass a dense torch.Tensor that has data")
        with unseen_by_function_modes():
            layout = self.opened.get(id(real))
            fake = None if torch.is_inference_mode_enabled() else plain_fake(self.mode, real, layout)
            if fake is None and layout is not None:
                raise UnsupportedError("sizes of a tensor are open, of which torch makes fakes of its own: dynamic=False")
            fake = self._converted(real) if fake is None else fake
            if layout is None and (fake.shape, fake.stride(), fake.storage_offset()) != (real.shape, real.stride(), real.storage_offset()):
                raise UnsupportedError("a tensor whose memory layout fake tensors do not reproduce: "
                                       "pass a copy, as .clone() makes one")
            self._of[id(real)], self._back[id(fake)] = (real, fake), real
            self._versions[id(fake)] = 0 if fake.is_inference() else fake._version
            if real.is_leaf and real.grad is not None:
                self._grads[id(fake)] = fake.grad = self._of[id(real.grad)][1] if id(real.grad) in self._of else self.make(real.grad)
        return fake


    def _converted(self, real: torch.Tensor) -> torch.Tensor:
        """What torch makes of a tensor of any kind."""
        with _disable_current_modes(), torch.inference_mode(real.is_inference()):
            apart = may_take_history(real) and not real.is_leaf
            fake = converted(self.mode, real.detach() if apart or _left_its_base(real) else real)
            if apart:
                with self.mode, torch.enable_grad():
                    fake = AsItCame.apply(fake.requires_grad_())
            return fake


class AsItCame(torch.autograd.Function):
    """The same memory, with a history of its own that leads to that of its argument."""

    @staticmethod
    def forward(ctx: Any, argument: torch.Tensor) -> torch.Tensor:
        return argument.detach()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        return tangent


def may_take_history(t: torch.Tensor) -> bool:
    """Is it a view to which autograd lets gradients be written, by way of its base?"""
    return t._is_view() and creation_is_plain(t) and not (t._base.is_leaf and t._base.requires_grad) and not _left_its_base(t)


def _left_its_base(t: torch.Tensor) -> bool:
    """Was a view, or its base, moved to another storage (`set_`, `.data =`)? A fake made as a view of the base's would lie there."""
    if not t._is_view() or t._base.untyped_storage()._cdata == t.untyped_storage()._cdata:
        return False
    if t.requires_grad:
        raise UnsupportedError("a differentiable view whose memory is no longer its base's: "
                               "pass a copy, as .clone() makes one")
    return True


@contextmanager
def real_tensors() -> Iterator[None]:
    """Inside, operations run on real memory, unseen by any capture."""
    with _disable_current_modes(), unseen_by_function_modes(), torch.no_grad():
        yield


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Fake kernels that fail log it; the caller reports the failure itself."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    with _quiet:
        level, log.level = log.level, logging.CRITICAL
    try:
        yield
    finally:
        log.level = level
