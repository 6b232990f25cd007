"""Images of different sizes on their way through resizes, cuts and flips: their boxes move at each step, their pixels once.

Knows which steps one resize and one window describe; draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDict

from reader.described import Described
from reader.store import ImageBatch, RaggedBatch, replaced
from reader.transforms.annotations import Motion, content_of, moved_extras
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.kernels.pixel_ops import channels_of
from reader.transforms.kernels.regions import FillLevels, Regions, by_image, cut_out
from reader.transforms.program import refuse_masks
from reader.transforms.random import check_batch


@dataclass(frozen=True)
class View:
    """What becomes of the images of a batch, and their boxes, which have moved already.

    source: has the pixels, and rows to draw for. regions: the new images. extras: those of the new images. size: height and
    width of all of them, which then become an ImageBatch; None: they have sizes of their own.
    """

    source: RaggedBatch
    regions: Regions
    extras: TensorDict | None
    size: tuple[int, int] | None = None

    @classmethod
    def of(cls, transform: object, batch: ImageBatch | RaggedBatch) -> View:
        """View the images of a batch as they are; of rows with content, the content.

        Raises:
            ValueError: there are masks, pixels are floats, or it is one row.
        """
        check_batch(transform, batch, takes_ragged=True)
        refuse_masks(transform, batch)
        y0, x0, y1, x1 = content_of(batch).unbind(-1)
        sizes = torch.stack([y1 - y0, x1 - x0], -1)
        boxes = torch.stack([x0, y0, x1, y1], -1)
        regions = Regions(boxes, sizes, _whole(sizes), torch.zeros_like(x0, dtype=torch.bool), (0.0,))
        if isinstance(batch, RaggedBatch):
            return cls(batch, regions, batch.extras)
        extras = batch.extras
        if batch.content is not None:
            extras = _moved(extras, Motion(x0[:, None], y0[:, None], 1, 1, sizes[:, 1:], sizes[:, :1]))
        return cls(_ragged(batch), regions, extras)

    @property
    def sizes(self) -> torch.Tensor:
        """Height and width of the new images, int64[B, 2]."""
        x0, y0, x1, y1 = self.regions.windows.unbind(-1)
        return torch.stack([y1 - y0, x1 - x0], -1)

    def mirrored(self, is_chosen: torch.Tensor) -> View:
        """Mirror the images of bool[B] left to right."""
        height, width = self.sizes[..., None].unbind(1)
        extras = _moved(self.extras, Motion.of_flips(is_chosen, height, width))
        return replace(
            self, regions=self.regions._replace(is_mirrored=self.regions.is_mirrored ^ is_chosen), extras=extras
        )

    def resized(self, sizes: torch.Tensor) -> View:
        """Resize the images to int64[B, 2] heights and widths, bilinear and antialiased."""
        if not self._is_box():
            return View.of(self, self.batch()).resized(sizes)
        (height, width), factors = sizes[..., None].unbind(1), sizes.float() / self.sizes
        extras = _moved(self.extras, Motion(0, 0, factors[:, 1:], factors[:, :1], width, height))
        x0, y0, _, _ = self.regions.boxes.unbind(-1)
        left, top, right, bottom = self.regions.windows.unbind(-1)
        boxes = torch.stack([x0 + left, y0 + top, x0 + right, y0 + bottom], -1)
        regions = self.regions._replace(boxes=boxes, sizes=sizes, windows=_whole(sizes))
        return View(self.source, regions, extras)

    def cut(self, windows: torch.Tensor, fill: FillLevels | None = None) -> View:
        """Cut int64[B, 4] x0, y0, x1, y1 out of the images; beyond them they are filled.

        fill: the level there, or one for each channel; None: the windows are within the images.

        Raises:
            ValueError: there are neither one level nor as many as channels.
        """
        _check_fill(self.source, fill)
        if not self._is_bound_by(fill):
            return View.of(self, self.batch()).cut(windows, fill)
        x0, y0, x1, y1 = windows[..., None].unbind(1)
        extras = _moved(self.extras, Motion(x0, y0, 1, 1, x1 - x0, y1 - y0))
        before, is_mirrored = self.regions.windows, self.regions.is_mirrored
        width = self.sizes[:, 1]
        left = torch.where(is_mirrored, width - windows[:, 2], windows[:, 0])
        right = torch.where(is_mirrored, width - windows[:, 0], windows[:, 2])
        moved = torch.stack([left, windows[:, 1], right, windows[:, 3]], -1) + before[:, [0, 1, 0, 1]]
        result = self.regions._replace(windows=moved, fill=self.regions.fill if fill is None else tuple(fill))
        return View(self.source, result, extras)

    def redrawn(self, change: Callable[[int, torch.Tensor], torch.Tensor], motion: Motion) -> View:
        """Make the pixels of the new images, and change(n, uint8[H, W, C]) of each; their boxes move as motion says."""
        result = replace(self, extras=_moved(self.extras, motion), size=None).batch()
        return View.of(self, by_image(result, change))

    def batch(self) -> Any:
        """Make the pixels of the new images: a RaggedBatch, or an ImageBatch where they have one size."""
        sizes, source = self.sizes, self.source
        pixels, offsets = cut_out(source, self.regions)
        if self.size is not None:
            shape = (len(source), *self.size, channels_of(source))
            return replaced(source, pixels=pixels.view(shape), content=None, extras=self.extras)
        shapes = torch.cat([sizes.to(source.shapes.dtype), source.shapes[:, 2:]], 1)
        result: RaggedBatch = source.replace(pixels=pixels, offsets=offsets, shapes=shapes, extras=self.extras)
        return result

    def _is_box(self) -> bool:
        """Say whether the new images are parts of the old ones, neither resized nor mirrored."""
        boxes, sizes, windows, is_mirrored, _ = self.regions
        is_resized = (boxes[:, [3, 2]] - boxes[:, [1, 0]]) != sizes
        return not (is_resized.any() or is_mirrored.any() or _reaches_beyond(windows, _whole(sizes)))

    def _is_bound_by(self, fill: FillLevels | None) -> bool:
        """Say whether what is around the new images may become what is around the resized boxes."""
        _, sizes, windows, _, before = self.regions
        if fill is None:
            return True
        if bool((windows == _whole(sizes)).all()):
            return True
        return not _reaches_beyond(_whole(sizes), windows) and tuple(fill) == tuple(before)


class OwnSizeTransform(Described):
    """A transform whose images have sizes of their own: a RaggedBatch, whatever it is called with."""

    def on(self, view: View) -> View:
        """Return what it makes of a view."""
        raise NotImplementedError

    def __call__(self, batch: ImageBatch | RaggedBatch) -> RaggedBatch:
        """Return images of sizes of their own, with boxes.

        Raises:
            ValueError: the rows have masks, or floats, or it is one row instead of a batch.
        """
        return self.on(View.of(self, batch)).batch()


def changed_by_row(transform: Callable[[ImageBatch], Any], batch: RaggedBatch) -> RaggedBatch:
    """Call a transform with each image as a batch of it alone; boxes move along.

    Raises:
        ValueError: there are masks.
    """
    refuse_masks(transform, batch)
    made: list[ImageBatch] = []
    for n in range(len(batch)):
        at = slice(n, n + 1)
        columns = {
            name: None if (each := getattr(batch, name)) is None else each[at] for name in ("rows", "origin", "extras")
        }
        pixels = batch.image(n)[None].contiguous()
        made.append(transform(ImageBatch(pixels=pixels, targets=batch.targets[at], **columns, batch_size=[1])))
    result = by_image(batch, lambda n, _: made[n].pixels[0])
    of_rows: list[Any] = [each.extras for each in made]
    extras = batch.extras if batch.extras is None or not made else torch.cat(of_rows)
    changed: RaggedBatch = result.replace(extras=extras)
    return changed


def _ragged(batch: ImageBatch) -> RaggedBatch:
    """Return images of one size as images of sizes of their own, in the same memory where that is contiguous."""
    count, *shape = batch.pixels.shape
    shapes = tensor_on(batch.pixels.device, [shape], torch.int32).expand(count, 3)
    offsets = torch.arange(count, device=batch.pixels.device) * batch.pixels[:1].numel()
    return RaggedBatch(
        pixels=batch.pixels.reshape(-1),
        targets=batch.targets,
        offsets=offsets,
        shapes=shapes,
        extras=batch.extras,
        rows=batch.rows,
        origin=batch.origin,
        text_file=batch.text_file,
        batch_size=[],
    )


def _whole(sizes: torch.Tensor) -> torch.Tensor:
    """Give int64[B, 4] 0, 0, width, height."""
    return torch.nn.functional.pad(sizes.flip(-1), (2, 0))


def _reaches_beyond(windows: torch.Tensor, others: torch.Tensor) -> bool:
    """Say whether a window of int64[B, 4] is not within the other of its row."""
    return bool(((windows[:, :2] < others[:, :2]) | (windows[:, 2:] > others[:, 2:])).any())


def _check_fill(batch: RaggedBatch, fill: FillLevels | None) -> None:
    """Raise ValueError where there are neither one level nor as many as channels."""
    if fill is not None and len(fill) > 1 and len(batch) and len(fill) != channels_of(batch):
        raise ValueError(f"fill is {fill!r}, expected one level, or one for each of {channels_of(batch)} channels.")


def _moved(extras: TensorDict | None, motion: Motion) -> TensorDict | None:
    return moved_extras(extras, motion, lambda masks: masks)
