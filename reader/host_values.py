"""Small tensors on a device, with a copy on the host: results are computed from that copy and sent in one transfer.

A device takes some microseconds for an operator of a few hundred numbers, and random crops have over a hundred of them.
"""

from __future__ import annotations

import torch

# Up to this size, CUDA copies from pageable memory without waiting; for more, it may wait for all launched work (CUDA Programming
# Guide, "Concurrent Execution between Host and Device").
_UNPINNED_BYTES = 64 << 10
_ATTRIBUTE = "_pixpack_on_host"


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor from the host to a device without waiting; `on_host` then knows its values, which must not change.

    A tensor that is on a device already stays there.
    """
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor
    source = tensor
    if device.type == "cuda" and tensor.nbytes > _UNPINNED_BYTES:
        with torch.cuda.device(device):  # pinning makes a context on the current device
            source = tensor.pin_memory()
    return remember(source.to(device, non_blocking=device.type == "cuda"), tensor)


def remember(there: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    """Remember the values of a tensor on a device; returns that tensor."""
    # changes of tensors from inference_mode are not counted
    if not there.is_inference():
        setattr(there, _ATTRIBUTE, (here, id(there), there._version))
    return there


def on_host(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the host's copy of a tensor; None if only the device has the values, and reading them would wait for it.

    Also None during a CUDA graph's capture: a replay has other values in the same tensor.
    """
    if tensor.device.type == "cpu":
        return tensor
    here, *noted = getattr(tensor, _ATTRIBUTE, (None,))
    if here is None or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    # a copy of a tensor has the same attributes, but its own count of changes
    return here if noted == [id(tensor), tensor._version] else None
