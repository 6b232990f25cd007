"""Moving nests of tensors to a device: `to_device`."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, TypeVar

import torch
from tensordict import TensorDictParams, is_tensor_collection
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

Nested = TypeVar("Nested")


def to_device(nested: Nested, device: str | torch.device) -> Nested:
    """Move every tensor in a nest to a device; to CUDA pinned and non-blocking. Anything else passes through.

    Walks dicts, lists, tuples, namedtuples and whatever else torch's pytree knows, such as a dataclass given to
    `torch.export.register_dataclass`. Tensordicts, ImageBatches and PackedSequences are moved whole, to what their own `to` makes
    of them: locked, if they were. A tensor that is already there is returned unchanged; one that occurs twice in the nest is
    moved twice.

    Args:
        nested: tensors in dicts, lists, tuples and the like, to any depth.
        device: such as "cuda", "cuda:1" or "cpu".

    Examples:
        >>> to_device({"images": [torch.zeros(2)], "name": "a"}, "cpu")
        {'images': [tensor([0., 0.])], 'name': 'a'}
    """
    target = torch.device(device)
    is_cuda = target.type == "cuda"
    if is_cuda:
        # a tensordict keeps the device that it is given: "cuda" would be another one wherever the current device changes
        target = torch.device("cuda", torch.cuda.current_device() if target.index is None else target.index)
    # to pin on another device than the current one would leave a context there
    with torch.cuda.device(target) if is_cuda else contextlib.nullcontext():
        return pytree.tree_map(functools.partial(_moved, device=target), nested, is_leaf=_is_moved_whole)


def _is_moved_whole(node: object) -> bool:
    # pytree would take both apart as tuples: the one's batch sizes must stay, the other would become a plain tuple
    return is_tensor_collection(node) or isinstance(node, PackedSequence | torch.Size)


def _moved(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, torch.Tensor):
        return _pinned(leaf).to(device, non_blocking=True) if device.type == "cuda" else leaf.to(device)
    if isinstance(leaf, PackedSequence):
        data, *indices = (_moved(part, device) for part in (leaf.data, leaf.sorted_indices, leaf.unsorted_indices))
        return leaf if data is leaf.data else type(leaf)(data, leaf.batch_sizes, *indices)
    if isinstance(leaf, TensorDictParams) or (is_tensor_collection(leaf) and leaf.device == device):
        return leaf.to(device)
    if is_tensor_collection(leaf):
        return leaf.apply(functools.partial(_moved, device=device), device=device, propagate_lock=True)
    return leaf


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor of the host into pinned memory, where torch can."""
    if tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_pinned():
        return tensor
    # a tensor that `expand` returned, with one element in many places, cannot be pinned
    is_expanded = tensor.layout == torch.strided and not tensor.is_nested and 0 in tensor.stride()
    return (tensor.contiguous() if is_expanded else tensor).pin_memory()
