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


def check_forms(transform: object, target_transform: object, *, as_tuple: bool, as_pil: bool) -> None:
    """Raise ValueError where a dataset's arguments are of the wrong kind or contradict each other, ImportError without Pillow."""
    for name, call in {"transform": transform, "target_transform": target_transform}.items():
        if call is not None and not callable(call):
            raise ValueError(f"{name} is {call!r}, expected what can be called, or None.")
    if as_tuple:
        if as_pil:
            _check_pillow()
        return
    if target_transform is not None:
        raise ValueError(
            "target_transform needs as_tuple=True: with as_tuple=False a row is one ImageBatch, for transform alone."
        )
    if as_pil:
        raise ValueError("as_pil needs as_tuple=True: with as_tuple=False a row is one ImageBatch.")


def _check_pillow() -> None:
    """Raise ImportError where as_pil=True cannot work."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as e:
        raise ImportError("as_pil=True needs Pillow: pip install pillow. Without as_pil, images are tensors.") from e
