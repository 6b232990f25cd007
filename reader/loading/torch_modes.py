"""Gives one thread the modes of torch that another has: autocast, no_grad, inference_mode, the default device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

_KINDS = ("cpu", "cuda")


@dataclass(frozen=True)
class Modes:
    """Holds torch's modes of a thread; autocast: for each kind of device whether it is on, and its dtype."""

    has_grad: bool
    is_inference: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    device: torch.device

    @classmethod
    def here(cls) -> Modes:
        """Return the modes of this thread."""
        autocast = tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS)
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.get_default_device())

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Run what is inside in these modes; a thread that has them is left alone."""
        now = Modes.here()
        if now == self:
            yield
            return
        with contextlib.ExitStack() as stack:
            if now.device != self.device:
                stack.enter_context(self.device)
            if now.is_inference != self.is_inference:
                stack.enter_context(torch.inference_mode(self.is_inference))
            # inference_mode sets the other one too
            stack.enter_context(torch.set_grad_enabled(self.has_grad))
            for kind, (is_on, dtype) in zip(_KINDS, self.autocast, strict=True):
                stack.enter_context(torch.autocast(kind, dtype, enabled=is_on))
            yield
