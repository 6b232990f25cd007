"""Boxes and masks of images, in extras: moves boxes, drops empty ones, and refuses both for what cannot move them.

In extras: boxes float32[B, K, 4] (x0, y0, x1, y1 in row pixels), of which the first box_count int32[B] are valid, box_targets
int64[B, K], masks uint8[B, H, W]. Neither knows nor changes other extras.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict

from reader.store import Batch, ImageBatch, RaggedBatch
from reader.transforms.kernels.pixel_ops import tensor_on


def with_moved_boxes(
    extras: TensorDict | None, move: Callable[[torch.Tensor], torch.Tensor], masks: torch.Tensor | None = None
) -> TensorDict | None:
    """Return extras with moved boxes and other masks; the rest passes through, and the given extras are not changed.

    move: maps [B, K, 4] to [B, K, 4], clipped to the new image. Empty boxes give their slot to the next; free slots hold
        zeros, and target -1.

    Raises:
        ValueError: boxes of another shape, or boxes without box_count.
    """
    if extras is None:
        return None
    moved: dict[str, Any] = dict(extras.items())
    if masks is not None:
        moved["masks"] = masks
    if "boxes" in moved:
        check_boxes(moved)
        boxes, count = move(moved["boxes"]), moved["box_count"]
        slot = torch.arange(boxes.shape[1], device=boxes.device)
        is_there = (boxes[..., :2] < boxes[..., 2:]).all(-1) & (slot < count[:, None])
        order = (~is_there).byte().argsort(dim=1, stable=True)
        moved["box_count"] = left = is_there.sum(1, dtype=count.dtype)
        is_left = slot < left[:, None]
        moved["boxes"] = boxes.gather(1, order[..., None].expand_as(boxes)) * is_left[..., None]
        if "box_targets" in moved:
            moved["box_targets"] = torch.where(is_left, moved["box_targets"].gather(1, order), -1)
    return TensorDict(moved, batch_size=extras.batch_size, device=extras.device)


def check_boxes(extras: Mapping[str, Any]) -> None:
    """Raise ValueError if extras have boxes of another shape, or boxes without box_count."""
    if extras["boxes"].ndim != 3 or "box_count" not in extras:
        raise ValueError(
            f"extras' boxes have the shape {list(extras['boxes'].shape)}, expected [B, K, 4] and box_count [B] beside them."
            " Rename those that are not boxes."
        )


def masks_in(extras: TensorDict | None) -> torch.Tensor | None:
    """Return the masks uint8[B, H, W], or None; raises ValueError if they have another shape."""
    masks = None if extras is None else extras.get("masks", None)
    if masks is not None and masks.ndim != 3:
        raise ValueError(
            f"extras' masks have the shape {list(masks.shape)}, expected [B, H, W]. Rename those that are not masks."
        )
    return masks


def refuse_labels(transform: object, batch: Batch) -> None:
    """Refuse rows with boxes or masks.

    Raises:
        ValueError: the batch has some.
    """
    has_masks = isinstance(batch, RaggedBatch) and batch.mask_offsets is not None
    if has_masks or (batch.extras is not None and not {"boxes", "masks"}.isdisjoint(dict(batch.extras.items()))):
        raise ValueError(f"{type(transform).__name__} takes no rows with boxes or masks.")


def labels_in_place(batch: ImageBatch, index: torch.Tensor, part: ImageBatch) -> dict[str, Any]:
    """Return the content and extras of a batch, with those of rows int64[P] replaced by a part's.

    Those of other rows stay the same, to the bit.
    """
    content, extras = batch.content, batch.extras
    if content is not None:
        height, width = part.pixels.shape[1:3]
        whole = tensor_on(content.device, [[0, 0, height, width]], content.dtype).expand(len(index), -1)
        content = content.index_copy(0, index, whole if part.content is None else part.content)
    if extras is not None and part.extras is not None:
        extras = extras.clone(recurse=False)
        for name, value in part.extras.items():
            if name in ("boxes", "box_count", "box_targets", "masks"):
                extras.set(name, extras.get(name).index_copy(0, index, value))
    return {"content": content, "extras": extras}
