"""Moving nests of tensors to a device: `to_device`."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from tensordict import is_tensor_collection
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

Nested = TypeVar("Nested")


def to_device(nested: Nested, device: str | torch.device) -> Nested:
    """Move every tensor in a nest to a device; to CUDA non-blocking. Anything else passes through.

    Walks dicts, lists, tuples, namedtuples and all other types known to torch's pytree, such as a dataclass given to
    `torch.export.register_dataclass`. Tensordicts, ImageBatches and PackedSequences are moved whole, by their own `to`. A
    tensor that is already there is returned unchanged.

    Args:
        nested: tensors in dicts, lists, tuples and the like, to any depth.
        device: such as "cuda", "cuda:1" or "cpu".

    Examples:
        >>> to_device({"images": [torch.zeros(2)], "name": "a"}, "cpu")
        {'images': [tensor([0., 0.])], 'name': 'a'}
    """
    target = torch.device(device)
    if is_cuda := target.type == "cuda":
        # a tensordict keeps the given device: "cuda" would be another one when the current device changes
        target = torch.device("cuda", torch.cuda.current_device() if target.index is None else target.index)

    def moved(node: Any) -> Any:
        """Move a tensor, or a collection that moves as a whole."""
        return node.to(target, non_blocking=is_cuda) if isinstance(node, torch.Tensor) or _is_whole(node) else node

    return pytree.tree_map(moved, nested, is_leaf=lambda node: _is_whole(node) or isinstance(node, torch.Size))


def _is_whole(node: object) -> bool:
    # pytree would take both apart as tuples: a PackedSequence's batch sizes must stay on the CPU, and a collection would lose
    # its type
    return is_tensor_collection(node) or isinstance(node, PackedSequence)
