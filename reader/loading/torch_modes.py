"""What a transform sees of the thread that began an epoch, whichever thread runs it: torch's modes; and whether it draws numbers.

Modes of torch (autocast, no_grad, inference_mode, the default device) belong to a thread, its generator to the process.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch._C import _pop_torch_dispatch_stack, _push_on_torch_dispatch_stack
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from reader.format.errors import WouldDraw

_KINDS = ("cpu", "cuda")


@dataclass(frozen=True)
class Modes:
    """Torch's modes of a thread; autocast: of each kind of device whether it is on, and its dtype."""

    has_grad: bool
    is_inference: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    device: torch.device

    @classmethod
    def here(cls) -> Modes:
        """Return those of this thread."""
        autocast = tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS)
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.get_default_device())

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Have these modes in this thread; where it has them, nothing is done."""
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


class Draws(TorchDispatchMode):
    """Notices, while it is entered, draws from a generator of the process: torch's for the CPU, numpy's or Python's.

    Each of torch's operators of this thread is seen, also between a state that was saved and the same one put back
    (torch.random.fork_rng). That costs about 7 us an operator.

    Unlike other modes it may be entered and left while another thread enters and leaves modes, as torch.compile does: those also
    set flags of the process back to what they were, and two threads that take turns leave them set; torch.compile then compiles
    again what it has compiled.

    Args:
        are_stopped: raise WouldDraw in place of a draw from torch's generators; the others are not looked at then.
    """

    def __init__(self, *, are_stopped: bool = False) -> None:
        super().__init__()
        self._are_stopped = are_stopped
        self._states, self._has_drawn = () if are_stopped else _states(), False

    @property
    def are_any(self) -> bool:
        """Say whether there were any draws."""
        return self._has_drawn or self._states != _states()

    def __enter__(self) -> Draws:
        _push_on_torch_dispatch_stack(self)
        return self

    def __exit__(self, *_error: object) -> None:
        _pop_torch_dispatch_stack(None)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile compile under it, which would run uncompiled from then on."""
        return True

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        """Call an operator of torch."""
        given = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and given.get("generator") is None:
            if self._are_stopped:
                raise WouldDraw
            self._has_drawn = True
        return func(*args, **given)


def _states() -> tuple[object, ...]:
    of_numpy = cast("tuple[str, npt.NDArray[np.uint32], int, int, float]", np.random.get_state(legacy=True))
    return torch.get_rng_state().numpy().tobytes(), of_numpy[1].tobytes(), of_numpy[2:], random.getstate()
