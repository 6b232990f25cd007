"""Which view of one image is another: the same, a cut, a turn, other values, or another image? Knows no dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

# Up to which mean difference, in levels, two images show the same in the same place, and above which they are two images: of
# another crop of one of 100 photographs at 224 x 224, 95 differ by less than 50.
SAME_VIEW, _SAME_IMAGE = 10.0, 50.0
NORMALIZED = "is normalized. Leave Normalize out of it"
# Images beyond 0 to 255 by more than a bicubic filter overshoots are normalized.
_OVERSHOOT = 40
# Floats that are all below are of 0 to 1, or normalized; such as go beyond, of 0 to 255.
_LEAST_LEVEL = 16
_EXPECTED = "expected a PIL image, an array [H, W, C] or a tensor [C, H, W]"
# A view explains a difference where it leaves less than this share of it.
_EXPLAINED = 0.6
# Values of one image are those of another, scaled, where they are correlated so much.
_CORRELATED = 0.98
# Sides of images that are looked at for that, pixels: 50 cuts of 64 rows take 10 s of CPU at 224.
_VIEW_SIDE = 112


def levels_of(image: Any) -> torch.Tensor:
    """Return an image as float32[C, H, W]; raises TypeError or ValueError for anything else, and for values not finite."""
    if isinstance(image, torch.Tensor):
        values = image.detach().cpu().float()
        values = values[None] if values.ndim == 2 else values
    elif isinstance(image, np.ndarray) or hasattr(image, "getbands"):  # PIL's
        values = torch.from_numpy(np.array(image)).float()
        values = (values[..., None] if values.ndim == 2 else values).movedim(-1, 0)
    else:
        raise TypeError(f"the image is a {type(image).__name__}, {_EXPECTED}.")
    if values.ndim != 3 or not values.numel():
        raise ValueError(f"the image has the shape {[*np.shape(image)]}, {_EXPECTED}.")
    if not values.isfinite().all():
        raise ValueError("the image has values that are not finite numbers.")
    return values


def scale_of(values: Sequence[torch.Tensor], has_floats: bool) -> tuple[float, str]:
    """Return by what the values of images become levels, and why they are no levels; "" where they are."""
    ends = [float(end) for one in values for end in one.aminmax()] or [0.0]
    low, high = min(ends), max(ends)
    scale = 255 if has_floats and high < _LEAST_LEVEL else 1
    if low * scale >= -_OVERSHOOT and high * scale <= 255 + _OVERSHOOT:
        return scale, ""
    if not has_floats:
        return 1, f"has integers of {low:.0f} to {high:.0f}. Make them levels of 0 to 255"
    # one of these images has black, and one white
    return 255 / max(high - low, 1e-6), NORMALIZED


def mean_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the mean difference of two images of one shape, in levels."""
    return float((a - b).abs().mean())


def view_of(a: torch.Tensor, b: torch.Tensor) -> str:
    """Say which cut, turn, order of channels or scale of values of one image is nearest to the other."""
    sides = [max(1, side * _VIEW_SIDE // max(_VIEW_SIDE, *a.shape)) for side in a.shape[1:]]
    a, b = resized(a, sides), resized(b, sides)
    mean = mean_difference(a, b)
    left, nearest = min((mean_difference(one, other), what) for what, one, other in _views(a, b))
    if left < _EXPLAINED * mean:
        return nearest
    return "another image" if mean > _SAME_IMAGE else "another crop, or another image"


def _views(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield what b may be of a, or a of b, and the two as they would then be equal."""
    yield "b has the channels of a in reverse order", a.flip(0), b
    yield "b is a mirrored", a.flip(2), b
    yield "b is a upside down", a.flip(1), b
    if (scaled := _scaled(a, b)) is not None:
        yield "b has the values of a on another scale, as another Normalize or brightness gives", scaled, b
    for turns in (1, 2, 3) if a.shape[1] == a.shape[2] else ():
        yield f"b is a turned by {90 * turns} degrees", a.rot90(turns, (1, 2)), b
    if a.shape[1] == a.shape[2]:
        yield "b is a with rows and columns swapped", a.transpose(1, 2), b
    for share in range(50, 100, 2):
        yield f"b shows the middle {share}% of what a shows, as if it were cropped twice", _middle(a, share), b
        yield f"a shows the middle {share}% of what b shows, as if b lacked a crop", a, _middle(b, share)


def _scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a as those of b, by the scale and offset of each channel that fit best; None: none fits."""
    one, other = a.flatten(1), b.flatten(1)
    one, other = one - one.mean(1, keepdim=True), other - other.mean(1, keepdim=True)
    both = (one * other).sum(1)
    if not (both > _CORRELATED * one.norm(dim=1) * other.norm(dim=1)).all():
        return None
    scale = both / one.square().sum(1)
    return scale[:, None, None] * one.view_as(a) + b.mean((1, 2), keepdim=True)


def _middle(image: torch.Tensor, share: int) -> torch.Tensor:
    """Return the middle share percent of both sides, resized to all of them."""
    height, width = image.shape[1:]
    down, across = height * (100 - share) // 200, width * (100 - share) // 200
    return resized(image[:, down : height - down, across : width - across], (height, width))


def resized(image: torch.Tensor, sides: Sequence[int]) -> torch.Tensor:
    """Resize [C, H, W] to (height, width); one of these sides stays as it is."""
    if [*image.shape[1:]] == [*sides]:
        return image
    return interpolate(image[None], tuple(sides), mode="bilinear", antialias=True)[0]
