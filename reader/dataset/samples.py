"""One row as ImageFolder gives it, (image, target), and the functions that a dataset calls with it.

Pillow is imported when the first image of PIL's is created, never before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from reader.store import Batch, plain

if TYPE_CHECKING:
    from PIL.Image import Image

# Functions of the user: of an image, a target or a batch; and of (image, target).
Transform = Callable[[Any], Any]
PairTransform = Callable[[Any, Any], Any]
# One number, K numbers of a vector, or all targets of a row by name.
Target = int | float | torch.Tensor | dict[str, Any]


@dataclass(frozen=True)
class JointTransform:
    """A transform of images and one of targets as one of both, as torchvision's StandardTransform."""

    transform: Transform | None = None
    target_transform: Transform | None = None

    def __call__(self, image: object, target: object) -> tuple[object, object]:
        """Return the two, transformed."""
        return (
            self.transform(image) if self.transform else image,
            self.target_transform(target) if self.target_transform else target,
        )


def sample_of(row: Batch, *, by_name: bool) -> tuple[torch.Tensor, Target]:
    """Return (uint8[C, H, W], target) of one row."""
    image, targets = plain(row, by_name=by_name)
    assert isinstance(image, torch.Tensor)
    value: Target = row.targets.item() if row.targets.ndim == 0 else row.targets
    return image, targets | {"targets": value} if isinstance(targets, dict) else value


def transformed(transforms: PairTransform, image: object, target: object) -> object:
    """Call a dataset's transforms; one of PIL images raises a TypeError that says that images are tensors here."""
    try:
        return transforms(image, target)
    except (AttributeError, OSError, RuntimeError, TypeError) as e:
        # an error that comes once, as of a read over a network, says nothing about the kind of images
        if (
            not isinstance(image, torch.Tensor)
            or not _takes(transforms, lambda: pil_image(image), target)
            or _takes(transforms, lambda: image, target)
        ):
            raise
        message = f"{str(e).rstrip('.')}. Images of the dataset are tensors uint8[C, H, W]"
        raise TypeError(f"{message}: for transforms of PIL images, such as ToTensor, open it with as_pil=True.") from e


def _takes(transforms: PairTransform, image: Callable[[], object], target: object) -> bool:
    """Say whether an image is what the transforms take."""
    with contextlib.suppress(Exception):
        transforms(image(), target)
        return True
    return False


def pil_image(image: torch.Tensor) -> Image:
    """Return uint8[C, H, W] as an image of mode L, RGB or RGBA; it may share the tensor's memory."""
    import PIL.Image

    pixels = image.movedim(0, -1).contiguous().numpy()
    return PIL.Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def check_forms(
    transform: object, target_transform: object, transforms: object, *, as_tuple: bool, as_pil: bool
) -> None:
    """Raise ValueError where a dataset's arguments are of the wrong kind or contradict each other, ImportError without Pillow."""
    calls = {"transform": transform, "target_transform": target_transform, "transforms": transforms}
    for name, call in calls.items():
        if call is not None and not callable(call):
            raise ValueError(f"{name} is {call!r}, expected what can be called, or None.")
    for name, value in {"as_tuple": as_tuple, "as_pil": as_pil}.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name} is {value!r}, expected True or False.")
    if transforms is not None and (transform is not None or target_transform is not None):
        raise ValueError("give transforms=, of (image, target), or transform= and target_transform=: not both.")
    if as_tuple:
        if as_pil:
            _check_pillow()
        return
    if target_transform is not None:
        raise ValueError(
            "target_transform needs as_tuple=True: with as_tuple=False a row is one ImageBatch, for transform alone."
        )
    if transforms is not None or as_pil:
        name = "as_pil" if as_pil else "transforms"
        raise ValueError(f"{name} needs as_tuple=True: with as_tuple=False a row is one ImageBatch.")


def _check_pillow() -> None:
    """Raise ImportError where as_pil=True cannot work."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as e:
        raise ImportError("as_pil=True needs Pillow: pip install pillow. Without as_pil, images are tensors.") from e
