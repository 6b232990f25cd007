"""A folder of images as it is read without a store: Pillow decodes each again in each epoch, in two DataLoader workers.

What parity.py compares with. Knows torchvision's random crop by its definition, and no store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset

from reader.order import permuted

# torchvision's defaults of RandomResizedCrop
SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10

# (upright image, a number of its own for each image and epoch) -> what the network sees
View = Callable[[Image.Image, int], Image.Image]


class FolderBatches(Dataset):
    """Images of a folder, decoded by Pillow whenever they are asked for, in the order of MemmapLoader(shuffle="full")."""

    def __init__(
        self, root: Path, samples: Sequence[tuple[str, int]], batch_size: int, *, seed: int, view: View
    ) -> None:
        self.root, self.samples, self.batch_size = root, samples, batch_size
        self.seed, self.view, self.number = seed, view, 0

    def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
        path, target = self.samples[position]
        with Image.open(self.root / path) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
        pixels = np.asarray(self.view(upright, self.number * len(self.samples) + position))
        return torch.from_numpy(pixels.copy()).movedim(-1, 0), target

    def epoch(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.number = number
        order = permuted(len(self.samples), 0, len(self.samples), seed=self.seed, epoch=number).tolist()
        loader = DataLoader(self, self.batch_size, sampler=order, num_workers=2, drop_last=True)
        # as the images of a store are in memory: other kernels would round otherwise
        return ((images.contiguous(memory_format=torch.channels_last), targets) for images, targets in loader)


class RandomView:
    """torchvision's RandomResizedCrop(size) and RandomHorizontalFlip, drawn from (seed, number)."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed

    def __call__(self, image: Image.Image, number: int) -> Image.Image:
        rng = np.random.default_rng([self.seed, number])
        made = image.crop(self.box(image, rng)).resize((self.size, self.size), Image.Resampling.BILINEAR)
        return ImageOps.mirror(made) if rng.random() < 0.5 else made

    def box(self, image: Image.Image, rng: np.random.Generator) -> tuple[int, int, int, int]:
        for _ in range(TRIES):
            area = image.width * image.height * rng.uniform(*SCALE)
            ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
            width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < width <= image.width and 0 < height <= image.height:
                left, top = rng.integers(image.width - width + 1), rng.integers(image.height - height + 1)
                return int(left), int(top), int(left) + width, int(top) + height
        width = min(image.width, round(image.height * RATIO[1]))
        height = min(image.height, round(image.width / RATIO[0]))
        left, top = (image.width - width) // 2, (image.height - height) // 2
        return left, top, left + width, top + height
