"""One row as ImageFolder gives it, (image, target), and the functions that a dataset calls with it.

Pillow is imported when the first image of PIL's is created, never before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from reader.store import Batch, plain

if TYPE_CHECKING:
    from PIL.Image import Image

# A function of the user: of an image, a target or a batch.
Transform = Callable[[Any], Any]
# One number, K numbers of a vector, or all targets of a row by name.
Target = int | float | torch.Tensor | dict[str, Any]


def sample_of(row: Batch, *, by_name: bool) -> tuple[torch.Tensor, Target]:
    """Return (uint8[C, H, W], target) of one row."""
    image, targets = plain(row, by_name=by_name)
    assert isinstance(image, torch.Tensor)
    value: Target = row.targets.item() if row.targets.ndim == 0 else row.targets
    return image, targets | {"targets": value} if isinstance(targets, dict) else value


def pil_image(image: torch.Tensor) -> Image:
    """Return uint8[C, H, W] as an image of mode L, RGB or RGBA; it may share the tensor's memory."""
    import PIL.Image

    pixels = image.movedim(0, -1).contiguous().numpy()
    return PIL.Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def check_forms(target_transform: object, *, as_tuple: bool, as_pil: bool) -> None:
    """Raise ValueError where a dataset's arguments contradict each other."""
    if not as_tuple and (as_pil or target_transform is not None):
        raise ValueError("as_pil and target_transform need as_tuple=True: without it a row is one ImageBatch.")
