"""Padding around images, as torchvision pads: a constant, or the image repeated. uint8 in and out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from reader.described import Described
from reader.host_values import sent
from reader.store import replaced
from reader.transforms.fills import Fill, class_beyond, levels_beyond
from reader.transforms.kernels.regions import Numbers
from reader.transforms.labels import masks_in, with_moved_boxes
from reader.transforms.random import one_of, sides
from reader.transforms.view import View, ViewTransform, whole

_MODES = ("constant", "edge", "reflect", "symmetric")


class Padding(Described):
    """Pixels to add on each side of a row, and their values.

    Raises:
        ValueError: padding is not 0 or more pixels, or mode is unknown.
    """

    def __init__(self, padding: int | Sequence[int], fill: Fill, mode: str) -> None:
        given = sides("padding", padding, 0)
        if len(given) not in (1, 2, 4):
            raise ValueError(f"padding is {padding!r}, expected 0 or more pixels: one number, two or four.")
        # (left and right, top and bottom), or all four in torchvision's order
        self.sides = given * (4 // len(given))
        self.fill, self.mask_fill = levels_beyond(fill) or (0.0,), class_beyond(fill)
        self.mode = one_of("padding_mode", mode, _MODES)

    def applied(self, view: View, sides: Numbers) -> View:
        """Pad the images of a view by int64[B, 4] pixels, or all by the same int64[1, 4].

        Raises:
                ValueError: the mode repeats the image, and there are boxes or images of their own sizes.
        """
        if not sides.any():
            return view
        windows = whole(view.sizes) + sides * (-1, -1, 1, 1)
        size = view.size
        if size is not None:
            left, top, right, bottom = added = sides[0].tolist() if len(sides) else self.sides
            size = size[0] + top + bottom, size[1] + left + right
        if self.mode == "constant":
            return view.cut(windows, size, self.fill, self.mask_fill)
        if size is None:
            raise ValueError(
                f'padding_mode is "{self.mode}", and images have sizes of their own. Take "constant" for these.'
            )
        batch = view.source if view.is_untouched else view.batch()
        if self.mode != "edge" and batch.extras is not None and batch.extras.get("boxes", None) is not None:
            raise ValueError(
                f'padding_mode "{self.mode}" repeats the content of boxes. Take "constant" or "edge" for rows with boxes.'
            )
        padded = View.from_batch(self, batch)
        if padded.has_labels:
            padded = padded.cut(windows, size, (0.0,))
        pixels, masks = self._repeated(batch.pixels, added), masks_in(batch.extras)
        extras = padded.extras
        if masks is not None:
            repeated = self._repeated(masks[..., None], added)[..., 0]
            extras = with_moved_boxes(extras, lambda boxes: boxes, repeated)
        made = replaced(batch, pixels=pixels, content=None, extras=extras)
        return replace(View.from_batch(self, made), content=padded.content)

    def _repeated(self, pixels: torch.Tensor, sides: Sequence[int]) -> torch.Tensor:
        """Pad uint8[B, H, W, C] with its own pixels."""
        left, top, right, bottom = sides
        height, width = pixels.shape[1:3]
        down = sent(_shown(height, top, bottom, self.mode), pixels.device)
        across = sent(_shown(width, left, right, self.mode), pixels.device)
        # whole lines are copied; gathering all pixels takes six times as long
        sides_of = pixels.index_select(2, across[:left]), pixels, pixels.index_select(2, across[left + width :])
        return torch.cat(sides_of, 2).index_select(1, down)


@functools.lru_cache
def _shown(size: int, before: int, after: int, mode: str) -> torch.Tensor:
    """Return int64[before + size + after], the old pixel on an axis for each new one."""
    return torch.from_numpy(np.pad(np.arange(size), (before, after), mode))  # type: ignore[call-overload]


class Pad(ViewTransform):
    """Pad each image on all sides. Not random; modes that repeat the image need rows of one size.

    Args:
        padding: pixels on every side, two of them for left and right, and top and bottom, or four: left, top, right, bottom.
        fill: level of constant padding, one for each channel, or a dict as in torchvision; masks get 255.
        padding_mode: "constant"; "edge" repeats the outermost pixel; "reflect" mirrors the image at it; "symmetric" with it.

    Raises:
        ValueError: padding is not 0 or more pixels, or padding_mode is not one of these.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> Pad(2, padding_mode="reflect")(batch).images.shape
        torch.Size([2, 3, 36, 36])
    """

    def __init__(self, padding: int | Sequence[int], fill: Fill = 0, padding_mode: str = "constant") -> None:
        self.padding = Padding(padding, fill, padding_mode)

    def apply(self, view: View) -> View:
        """Pad the images of a view."""
        return self.padding.applied(view, np.array([self.padding.sides]))
