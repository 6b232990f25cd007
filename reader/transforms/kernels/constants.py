"""Small tensors on a device, made of Python's numbers without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from reader.host_values import sent


def tensor_on(device: torch.device, values: Sequence[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Do as torch.tensor(values, device=device), which on CUDA waits for all that the caller's stream was given.

    Of a few numbers a copy from memory that is not pinned is staged at once (CUDA Runtime API, "API synchronization behavior").
    """
    return sent(torch.tensor(values, dtype=dtype, device="cpu"), device)
