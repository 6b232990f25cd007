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
        image = opened.convert("RGB")
    width, height = image.size
    if width <= height:
        width, height = size, int(size * height / width)
    else:
        width, height = int(size * width / height), size
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2.0), round((height - size) / 2.0)
    return np.array(image.crop((left, top, left + size, top + size)))
