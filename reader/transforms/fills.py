"""Fill values outside an image: levels of pixels, and the class of masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reader.transforms.random import LEVEL, number, numbers

# One level, or one a channel; or a dict with those of images and of masks, by torchvision's types or their names. None: 0,
# and bilinear edges are not blended with it.
Fill = float | Sequence[float] | Mapping[Any, Any] | None
# The value of pixels without a class.
NO_CLASS = 255


def of_kind(given: Any, kind: str) -> Any:
    """Look up "Image" or "Mask", else "others", in a dict of fills; any other value is returned as it is."""
    if not isinstance(given, Mapping):
        return given
    named = {key if isinstance(key, str) else key.__name__: value for key, value in given.items()}
    return named.get(kind, named.get("others"))


def levels_beyond(fill: Fill) -> tuple[float, ...] | None:
    """Return one level of images, or one per channel; None if there is no fill."""
    given = of_kind(fill, "Image")
    return None if given is None else tuple(numbers("fill", given, LEVEL))


def class_beyond(fill: Fill) -> int:
    """Return the class of masks outside the image: from a dict, else 255, no class."""
    given = of_kind(fill, "Mask") if isinstance(fill, Mapping) else None
    return NO_CLASS if given is None else int(number("fill", given, LEVEL))


def mapped_fill(fill: Fill, change: Callable[[Any], Any]) -> Fill:
    """Return a fill with changed levels of images; the class of masks stays."""
    levels = of_kind(fill, "Image")
    changed = None if levels is None else change(levels)
    return {"Image": changed, "Mask": class_beyond(fill)} if isinstance(fill, Mapping) else changed
