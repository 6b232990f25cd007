"""Images as PIL's, for programs whose transforms take those. Pillow is imported when the first is made, never before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from PIL.Image import Image


def check_pillow() -> None:
    """Raise ImportError where as_pil=True cannot work."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as e:
        raise ImportError("as_pil=True needs Pillow: pip install pillow. Without as_pil, images are tensors.") from e


def pil_image(image: torch.Tensor) -> Image:
    """Return uint8[C, H, W] as an image of mode L, RGB or RGBA; it may share the tensor's memory."""
    import PIL.Image

    pixels = image.movedim(0, -1).contiguous().numpy()
    return PIL.Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
