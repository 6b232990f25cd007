"""Benchmark of the transforms of batches beside torchvision's v2 of the same names and arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pixpack import ImageBatch, transforms
from scripts.bench.data import torchvision
from scripts.bench.harness import Lab, Way, bench, require

# Name and arguments, the same for both.
PAIRS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("RandomHorizontalFlip", (), {}),
    ("RandomCrop", (224,), {}),
    ("RandomCrop", (224, 4), {"padding_mode": "reflect"}),
    ("RandomResizedCrop", (224,), {}),
    ("Resize", ((224, 224),), {}),
    ("ColorJitter", (0.4, 0.4, 0.4, 0.1), {}),
    ("RandomGrayscale", (0.5,), {}),
    ("GaussianBlur", (23,), {}),
    ("RandomSolarize", (128,), {}),
    ("RandomPosterize", (4,), {}),
    ("RandomEqualize", (), {}),
    ("RandomAutocontrast", (), {}),
    ("RandomAdjustSharpness", (2,), {}),
    ("RandomInvert", (), {}),
    ("RandomRotation", (30,), {}),
    ("RandomAffine", (30, (0.1, 0.1), (0.8, 1.2), 10), {}),
    ("RandomErasing", (1.0,), {}),
    ("RandAugment", (), {}),
    ("TrivialAugmentWide", (), {}),
]


@bench(
    "How fast is a transform for a batch of 32, beside torchvision's v2 called for each image?", "images/s", rounds=7
)
def pairs(lab: Lab) -> Iterator[Way]:
    v2 = torchvision().transforms.v2
    count, device = lab.pick(32, 2), "cuda" if torch.cuda.is_available() else "cpu"
    grain = torch.rand(count, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 255
    images = torch.nn.functional.interpolate(grain, 256, mode="bilinear").to(torch.uint8).to(device)
    rows = torch.arange(count, device=device)
    pixels = images.movedim(1, -1).contiguous()
    batch = ImageBatch(pixels=pixels, targets=rows, rows=rows, batch_size=[count])
    yield Way("copying the batch: the limit", batch.clone, count)
    for name, given, options in PAIRS:
        ours, theirs = getattr(transforms, name)(*given, **options), getattr(v2, name)(*given, **options)

        def singly(theirs: Any = theirs) -> torch.Tensor:
            return torch.stack([theirs(image) for image in images])

        require(ours(batch).images.shape == singly().shape, f"{name} gives images of another shape than v2's.")
        words = ", ".join([*map(str, given), *(f"{key}={value!r}" for key, value in options.items())])
        yield Way(f"v2.{name}({words}), each image", singly, count, base=f"v2.{name}({words}), each image")
        yield Way(f"{name}({words})", lambda ours=ours: ours(batch), count, base=f"v2.{name}({words}), each image")
