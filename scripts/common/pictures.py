"""The picture that torchvision's ImageFolder, Resize(size), CenterCrop(size) and PILToTensor give, without torchvision.

Imports Pillow and numpy alone: it also runs where pixpack is not installed.
"""

from __future__ import annotations

import os

import numpy as np
from PIL import Image


def picture(path: str | os.PathLike[str], size: int) -> np.ndarray:
    """Decode a file to uint8[size, size, 3]; its EXIF orientation is left alone, as ImageFolder does."""
    with Image.open(path) as opened:
        return np.array(central_crop(opened.convert("RGB"), size))


def central_crop(image: Image.Image, size: int) -> Image.Image:
    """torchvision's Resize(size) and CenterCrop(size)."""
    short, long = sorted(image.size)
    long = int(size * long / short)
    width, height = (size, long) if image.width <= image.height else (long, size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
