"""What is over the pixels and moves with them: content, boxes and masks.

In extras: boxes float32[B, K, 4] (x0, y0, x1, y1 in row pixels), of which the first box_count int32[B] are there,
box_targets int64[B, K], masks uint8[B, H, W]. Knows no other extra and changes none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict

from reader.store import ImageBatch, RaggedBatch


@dataclass(frozen=True)
class Motion:
    """How each sample's pixels moved: x -> (x - left) * across, y -> (y - top) * down, then cut to width x height.

    left, top, across, down: [B, 1]; a negative factor mirrors. width, height: of all images, or [B, 1] of each.
    """

    left: torch.Tensor | int
    top: torch.Tensor | int
    across: torch.Tensor | int
    down: torch.Tensor | int
    width: torch.Tensor | int
    height: torch.Tensor | int

    @classmethod
    def of_flips(
        cls,
        is_flipped: torch.Tensor,
        height: torch.Tensor | int,
        width: torch.Tensor | int,
        *,
        is_vertical: bool = False,
    ) -> Motion:
        """Give the motion of images of which those of bool[B] are mirrored left to right, or turned upside down."""
        flipped = is_flipped[:, None].int()
        if is_vertical:
            return cls(0, height * flipped, 1, 1 - 2 * flipped, width, height)
        return cls(width * flipped, 0, 1 - 2 * flipped, 1, width, height)

    def move(self, x0: torch.Tensor, y0: torch.Tensor, x1: torch.Tensor, y1: torch.Tensor) -> list[torch.Tensor]:
        """Move corners [B, K]; the first is upper left again, and all are within the new image."""
        x0, x1 = (_within((x - self.left) * self.across, self.width) for x in (x0, x1))
        y0, y1 = (_within((y - self.top) * self.down, self.height) for y in (y0, y1))
        return [torch.minimum(x0, x1), torch.minimum(y0, y1), torch.maximum(x0, x1), torch.maximum(y0, y1)]


@dataclass(frozen=True)
class AffineMotion:
    """How each sample's pixels moved by a matrix; a box becomes the smallest one around its four corners, clipped as Motion does.

    matrices: float64[B, 2, 3], from old to new positions x, y.
    """

    matrices: torch.Tensor
    width: int
    height: int

    def move(self, x0: torch.Tensor, y0: torch.Tensor, x1: torch.Tensor, y1: torch.Tensor) -> list[torch.Tensor]:
        """Move corners [B, K] as Motion does."""
        xs, ys = (torch.stack(corners, -1).double() for corners in ((x0, x1, x1, x0), (y0, y0, y1, y1)))
        (a, b, c), (d, e, f) = (row[..., None, None].unbind(1) for row in self.matrices.unbind(1))
        x, y = (a * xs + b * ys + c).clamp(0, self.width), (d * xs + e * ys + f).clamp(0, self.height)
        corners = [x.amin(-1), y.amin(-1), x.amax(-1), y.amax(-1)]
        return [corner if corner.dtype == x0.dtype else corner.float() for corner in corners]


def _within(position: torch.Tensor, limit: torch.Tensor | int) -> torch.Tensor:
    if isinstance(limit, torch.Tensor):
        return position.clamp(min=0).minimum(limit.to(position.dtype))
    return position.clamp(0, limit)


def content_of(batch: ImageBatch | RaggedBatch) -> torch.Tensor:
    """Give int64[B, 4] y0, x0, y1, x1, the whole row where a batch has no content."""
    if isinstance(batch, RaggedBatch):
        return torch.nn.functional.pad(batch.shapes[:, :2].long(), (2, 0))
    if batch.content is not None:
        return batch.content.long()
    count, height, width, _ = batch.pixels.shape
    corners = torch.zeros(count, 4, dtype=torch.int64, device=batch.pixels.device)
    corners[:, 2], corners[:, 3] = height, width
    return corners


def moved_content(content: torch.Tensor, motion: Motion | AffineMotion) -> torch.Tensor:
    """Move int32[B, 4] y0, x0, y1, x1."""
    y0, x0, y1, x1 = content[:, None].unbind(-1)
    x0, y0, x1, y1 = motion.move(x0, y0, x1, y1)
    # a slanted image reaches into pixels that it does not fill
    return torch.cat([y0.floor(), x0.floor(), y1.ceil(), x1.ceil()], dim=-1).to(content.dtype)


def moved_extras(
    extras: TensorDict | None, motion: Motion | AffineMotion, move_masks: Callable[[torch.Tensor], torch.Tensor]
) -> TensorDict | None:
    """Move boxes and masks, pass the rest through. The given extras are not changed.

    Raises:
        ValueError: boxes or masks of another shape, or boxes without box_count.
    """
    if extras is None:
        return None
    moved: dict[str, Any] = dict(extras.items())
    if "masks" in moved:
        if moved["masks"].ndim != 3:
            raise ValueError(
                f"extras' masks have the shape {list(moved['masks'].shape)}, expected [B, H, W]. Rename those that are not masks."
            )
        moved["masks"] = move_masks(moved["masks"])
    if "boxes" in moved:
        check_boxes(moved)
        moved |= _moved_boxes(moved["boxes"], moved["box_count"], moved.get("box_targets"), motion)
    return TensorDict(moved, batch_size=extras.batch_size, device=extras.device)


def check_boxes(extras: Mapping[str, Any]) -> None:
    """Raise ValueError where extras have boxes of another shape, or no box_count beside them."""
    if extras["boxes"].ndim != 3 or "box_count" not in extras:
        raise ValueError(
            f"extras' boxes have the shape {list(extras['boxes'].shape)}, expected [B, K, 4] and box_count [B] beside them."
            " Rename those that are not boxes."
        )


def _moved_boxes(
    boxes: torch.Tensor, count: torch.Tensor, targets: torch.Tensor | None, motion: Motion | AffineMotion
) -> dict[str, torch.Tensor]:
    """Move boxes; those without area left give their slot to the next. Free slots hold zeros, and target -1."""
    moved = torch.stack(motion.move(*boxes.unbind(-1)), dim=-1)
    slot = torch.arange(boxes.shape[1], device=boxes.device)
    is_there = (moved[..., :2] < moved[..., 2:]).all(-1) & (slot < count[:, None])
    order = (~is_there).byte().argsort(dim=1, stable=True)
    left = is_there.sum(1, dtype=count.dtype)
    is_left = slot < left[:, None]
    result = {"boxes": moved.gather(1, order[..., None].expand_as(moved)) * is_left[..., None], "box_count": left}
    if targets is not None:
        result["box_targets"] = torch.where(is_left, targets.gather(1, order), -1)
    return result


def labels_in_place(batch: ImageBatch, index: torch.Tensor, part: ImageBatch) -> dict[str, Any]:
    """Return the content and extras of a batch, with boxes and masks of a part of it in place of its rows', int64[P].

    Those of the others stay what they are, to the bit.
    """
    content, extras = batch.content, batch.extras
    if content is not None and part.content is not None:
        content = content.index_copy(0, index, part.content)
    if extras is not None and part.extras is not None:
        extras = extras.clone(recurse=False)
        for name, value in part.extras.items():
            if name in ("boxes", "box_count", "box_targets", "masks"):
                extras.set(name, extras.get(name).index_copy(0, index, value))
    return {"content": content, "extras": extras}
