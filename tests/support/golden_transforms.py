"""The table of transforms, the stores that they are called with, and a program that prints the digests of what they make.

    python tests/support/golden_transforms.py STORES              one line of JSON
    python tests/support/golden_transforms.py STORES --torch      the same where the compiled part cannot be imported
    python tests/support/golden_transforms.py STORES --threads    large batches on one thread too

It runs in a process of its own, since two things are decided when libraries are imported: whether there is a compiled part, and
which vector instructions torch takes. Those are AVX2 on every machine, see ENVIRONMENT, so that digests are alike on all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from digests import Table, digest
from PIL import Image

ROOT = Path(__file__).parents[2]
# torch's own kernels, and those of MKL and oneDNN that it calls
ENVIRONMENT = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX2"}
# (seed of the loader, seed of the transform, epoch): who ignores one of them does not give the digests of the second
PASSES = ((0, 0, 0), (1, 7, 2))
ROWS, HEIGHT, WIDTH = 10, 24, 20
# a batch of which two threads take a part each has 2 MiB or more
LARGE, LARGE_ROWS, LARGE_SIDE = "large", 96, 88

# (seed, channels) -> transform
Make = Callable[[int, int], Any]
Passes = tuple[tuple[int, int, int], ...]
Kinds = dict[str, tuple[int, Passes]]


# -- stores


def pixels(number: int, height: int = HEIGHT, width: int = WIDTH, channels: int = 3) -> np.ndarray:
    """Make a picture of integers alone: slopes, an edge, and noise; the first of all is of one level."""
    if number == 0:
        return np.full((height, width, channels), 77, np.uint8)
    y, x, c = np.ogrid[:height, :width, :channels]
    noise = ((y * 2654435761 + x * 40503 + c * 69069 + number * 7919) >> 7) % 32
    edge = 60 * ((y > height // 3) & (x > (number % 5) * width // 6))
    return ((number * 23 + 5 * y * (c + 1) + 4 * x * (number % 3) + edge + noise) % 256).astype(np.uint8)


def _sides(number: int) -> tuple[int, int]:
    """Return height and width of an image among those of own sizes."""
    return 17 + 5 * (number % 4), 30 - 4 * (number % 5)


def _save(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array.squeeze(-1) if array.ndim == 3 and array.shape[-1] == 1 else array).save(path)


def _tree(folder: Path, sides: Callable[[int], tuple[int, int]], channels: int = 3) -> Path:
    for number in range(ROWS):
        _save(folder / "images" / "abc"[number % 3] / f"{number}.png", pixels(number, *sides(number), channels))
    return folder / "images"


def _boxes(folder: Path, sides: Callable[[int], tuple[int, int]]) -> dict[str, Any]:
    """Write COCO's labels of images: zero to three boxes each."""
    found: dict[str, list[Any]] = {"categories": [{"id": 4, "name": "box"}, {"id": 9, "name": "ball"}]}
    found |= {"images": [], "annotations": []}
    for number in range(ROWS):
        height, width = sides(number)
        name = f"{'abc'[number % 3]}/{number}.png"
        found["images"].append({"id": number, "file_name": name, "width": width, "height": height})
        for n in range(number % 4):
            shape = {"bbox": [1 + 2 * n, 2 + n, width // 2, height // 3 + n], "category_id": (4, 9)[n % 2]}
            found["annotations"].append(shape | {"id": 10 * number + n, "image_id": number, "iscrowd": 0})
    (folder / "boxes.json").write_text(json.dumps(found))
    return {"boxes": folder / "boxes.json"}


def _masks(folder: Path, sides: Callable[[int], tuple[int, int]]) -> dict[str, Any]:
    for number in range(ROWS):
        path = folder / "masks" / "abc"[number % 3] / f"{number}.png"
        _save(path, pixels(number + 40, *sides(number), 1)[..., 0] % 5)
    return {"masks": folder / "masks"}


def make_stores(root: Path) -> None:
    """Pack a store of each kind below a folder, all of them without resizing an image or decoding a JPEG."""
    from packer import pack, pack_dataset

    def one_size(number: int) -> tuple[int, int]:
        return HEIGHT, WIDTH

    for name, channels in (("gray", 1), ("rgb", 3), ("rgba", 4)):
        rows = [(pixels(n, channels=channels).squeeze(), n % 3) for n in range(ROWS)]
        pack_dataset(rows, root / name, size=(HEIGHT, WIDTH), channels=name, workers=1)
    hot = [(pixels(n), [n % 2, int(n > 3), 1]) for n in range(ROWS)]
    pack_dataset(hot, root / "multi-hot", size=(HEIGHT, WIDTH), workers=1)
    large = [(pixels(n, LARGE_SIDE, LARGE_SIDE), n % 3) for n in range(LARGE_ROWS)]
    pack_dataset(large, root / LARGE, size=LARGE_SIDE, workers=1)
    trees: dict[str, tuple[Callable[[int], tuple[int, int]], list[Any], dict[str, Any]]] = {
        "padded": (lambda n: (HEIGHT, WIDTH - 6 * (n % 2)), [], {"size": (HEIGHT, WIDTH), "fit": "pad"}),
        "boxes": (one_size, [_boxes], {"size": (HEIGHT, WIDTH)}),
        "masks": (one_size, [_masks], {"size": (HEIGHT, WIDTH)}),
        "own sizes": (_sides, [], {"fit": "none"}),
        "own gray": (_sides, [], {"fit": "none", "channels": "gray"}),
        "own rgba": (_sides, [], {"fit": "none", "channels": "rgba"}),
        "own boxes": (_sides, [_boxes], {"fit": "none"}),
        "own masks": (_sides, [_boxes, _masks], {"fit": "none"}),
    }
    for name, (sides, labels, options) in trees.items():
        folder = root / "inputs" / name
        images = _tree(folder, sides, {"gray": 1, "rgba": 4}.get(options.get("channels", ""), 3))
        for label in labels:
            options = options | label(folder, sides)
        pack(images, root / name, workers=1, **options)


# Kinds of rows, and how they are read: rows a batch, and the passes.
KINDS: Kinds = {
    "rgb": (6, PASSES),
    "boxes": (6, PASSES[1:]),
    "own sizes": (6, PASSES[1:]),
    **dict.fromkeys(("gray", "rgba", "padded", "masks"), (ROWS, PASSES[1:])),
    **dict.fromkeys(("own gray", "own rgba", "own boxes", "own masks"), (ROWS, PASSES[1:])),
    LARGE: (LARGE_ROWS, PASSES[1:]),
}
# for transforms that mix targets
MULTI_HOT: Kinds = {"multi-hot": (6, PASSES)}


# -- transforms


def of_batches(batch: Any) -> Any:
    """Change a batch, as a function of the user's does."""
    from reader import ImageBatch

    if isinstance(batch, ImageBatch):
        return batch.pixels.float().mean((1, 2)).mul(4).round()
    return torch.stack([image.sum() for image in batch.images])


def cases() -> dict[str, Make]:
    """Return what makes each transform of `reader`, with some of its arguments in several ways, by name."""
    import reader as r

    def mean(c: int) -> list[float]:
        return [100.5, 110.25, 120.125, 90.0][:c]

    def fill(c: int) -> list[int]:
        return [200, 100, 50, 255][:c]

    return {
        "CenterCrop": lambda s, c: r.CenterCrop((12, 9)),
        "CenterCrop larger": lambda s, c: r.CenterCrop((31, 9)),
        "ColorJitter": lambda s, c: r.ColorJitter(0.4, 0.4, 0.4, 0.1, seed=s),
        "ColorJitter brightness": lambda s, c: r.ColorJitter((0.5, 1.8), seed=s),
        "ColorJitter contrast": lambda s, c: r.ColorJitter(contrast=0.7, seed=s),
        "ColorJitter hue": lambda s, c: r.ColorJitter(hue=0.4, seed=s),
        "ColorJitter saturation": lambda s, c: r.ColorJitter(saturation=0.9, seed=s),
        "Compose": lambda s, c: r.Compose(
            [r.RandomResizedCrop(16, seed=s), r.RandomHorizontalFlip(seed=s), r.RandomInvert(seed=s)]
        ),
        "Compose twice": lambda s, c: r.Compose([r.RandomInvert(seed=s), r.RandomInvert(seed=s)]),
        "CutMix": lambda s, c: r.CutMix(num_classes=3, label_smoothing=0.1, seed=s),
        "CutMix alpha": lambda s, c: r.CutMix(alpha=0.3, seed=s),
        "FixedSizeCrop": lambda s, c: r.FixedSizeCrop((20, 30), fill(c), seed=s),
        "GaussianBlur": lambda s, c: r.GaussianBlur(5, seed=s),
        "GaussianBlur sides": lambda s, c: r.GaussianBlur((3, 7), 1.5, seed=s),
        "Grayscale": lambda s, c: r.Grayscale(),
        "Grayscale 3": lambda s, c: r.Grayscale(3),
        "MixUp": lambda s, c: r.MixUp(num_classes=3, label_smoothing=0.1, seed=s),
        "MixUp alpha": lambda s, c: r.MixUp(alpha=0.2, seed=s),
        "MultiCrop": lambda s, c: r.MultiCrop(2, 3, global_size=16, local_size=(8, 6), seed=s),
        "MultiCrop bicubic": lambda s, c: r.MultiCrop(
            1, 1, global_size=12, local_size=6, interpolation="bicubic", global_transform=r.RandomSolarize(128), seed=s
        ),
        "MultiView": lambda s, c: r.MultiView([r.RandomResizedCrop(10, seed=s)] * 2 + [r.ResizeCenterCrop(8)]),
        "Normalize": lambda s, c: r.Compose([r.RandomHorizontalFlip(1), r.Normalize(mean(c), mean(2 * c)[-c:])]),
        "Normalize float16": lambda s, c: r.Compose(
            [r.ResizeCenterCrop(9), r.Normalize(mean(c), mean(c), torch.float16)]
        ),
        "Normalize of batches": lambda s, c: r.Normalize(mean(c), mean(c)),
        "Pad": lambda s, c: r.Pad((1, 2, 3, 4), fill(c)),
        "Pad reflect": lambda s, c: r.Pad(3, padding_mode="reflect"),
        "RandAugment": lambda s, c: r.RandAugment(seed=s),
        "RandAugment 4": lambda s, c: r.RandAugment(4, 15, 31, "bilinear", fill(c), seed=s),
        "RandomAdjustSharpness": lambda s, c: r.RandomAdjustSharpness(2.5, seed=s),
        "RandomAdjustSharpness less": lambda s, c: r.RandomAdjustSharpness(0.2, 0.9, seed=s),
        "RandomAffine": lambda s, c: r.RandomAffine(30, (0.2, 0.1), (0.7, 1.3), (5, 15, -9, 9), fill=fill(c), seed=s),
        "RandomAffine bilinear": lambda s, c: r.RandomAffine(
            (-9, 40), scale=(0.9, 1.8), shear=7, interpolation="bilinear", center=(3, 4), seed=s
        ),
        "RandomApply": lambda s, c: r.RandomApply([r.RandomInvert(1), r.ColorJitter(0.3, seed=s)], seed=s),
        "RandomAutocontrast": lambda s, c: r.RandomAutocontrast(seed=s),
        "RandomChoice": lambda s, c: r.RandomChoice([r.RandomInvert(1), r.RandomPosterize(2, 1)], [0.3, 0.7], seed=s),
        "RandomCrop": lambda s, c: r.RandomCrop((14, 11), seed=s),
        "RandomCrop padding": lambda s, c: r.RandomCrop((22, 25), (4, 1), pad_if_needed=True, fill=fill(c), seed=s),
        "RandomCrop reflect": lambda s, c: r.RandomCrop(16, 4, padding_mode="reflect", seed=s),
        "RandomEqualize": lambda s, c: r.RandomEqualize(seed=s),
        "RandomErasing": lambda s, c: r.RandomErasing(0.7, value=fill(c), seed=s),
        "RandomErasing random": lambda s, c: r.RandomErasing(0.9, (0.1, 0.5), (0.5, 2), "random", seed=s),
        "RandomGrayscale": lambda s, c: r.RandomGrayscale(0.5, seed=s),
        "RandomHorizontalFlip": lambda s, c: r.RandomHorizontalFlip(seed=s),
        "RandomInvert": lambda s, c: r.RandomInvert(seed=s),
        "RandomPosterize": lambda s, c: r.RandomPosterize(3, seed=s),
        "RandomResizedCrop": lambda s, c: r.RandomResizedCrop(16, seed=s),
        "RandomResizedCrop bicubic": lambda s, c: r.RandomResizedCrop((9, 30), (0.3, 0.8), (0.5, 2), "bicubic", seed=s),
        "RandomRotation": lambda s, c: r.RandomRotation(45, fill=fill(c), seed=s),
        "RandomRotation bilinear": lambda s, c: r.RandomRotation((10, 80), "bilinear", center=(5, 9), seed=s),
        "RandomShortestSize": lambda s, c: r.RandomShortestSize([13, 19, 33], 40, seed=s),
        "RandomSolarize": lambda s, c: r.RandomSolarize(99.5, seed=s),
        "RandomVerticalFlip": lambda s, c: r.RandomVerticalFlip(seed=s),
        "Resize": lambda s, c: r.Resize((11, 33)),
        "Resize bicubic": lambda s, c: r.Resize((30, 13), "bicubic"),
        "Resize side": lambda s, c: r.Resize(16),
        "ResizeCenterCrop": lambda s, c: r.ResizeCenterCrop((12, 9)),
        "ResizeCenterCrop fraction": lambda s, c: r.ResizeCenterCrop(14, 0.875),
        "ScaleJitter": lambda s, c: r.ScaleJitter((30, 26), seed=s),
        "TimmRandAugment": lambda s, c: r.TimmRandAugment(seed=s),
        "TimmRandAugment 5": lambda s, c: r.TimmRandAugment("rand-m6-n3-mstd1-inc0-p0.7", "nearest", fill(c), seed=s),
        "ToDetection": lambda s, c: r.ToDetection(),
        "ToDetection labels": lambda s, c: r.ToDetection([5, 3]),
        "TrivialAugmentWide": lambda s, c: r.TrivialAugmentWide(seed=s),
        "TrivialAugmentWide bilinear": lambda s, c: r.TrivialAugmentWide(9, "bilinear", fill(c), seed=s),
        "a function of batches": lambda s, c: of_batches,
        "none": lambda s, c: None,
    }


def converted_cases() -> dict[str, Make]:
    """Return what makes transforms of torchvision's, by name; {}: it cannot be imported."""
    import pytest
    from conftest import torchvision_or_skip

    from reader import from_torchvision

    try:
        v2 = torchvision_or_skip().transforms.v2
    except pytest.skip.Exception:
        return {}
    recipe = [v2.RandomResizedCrop(16, (0.2, 0.9), (0.6, 1.5)), v2.RandomHorizontalFlip(0.4), v2.ColorJitter(0.2, 0.3)]
    floats = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.4] * 3, [0.2, 0.3, 0.4])]
    given = [
        *(v2.CenterCrop((12, 9)), v2.ColorJitter(0.2, (0.7, 1.1), 0.4, 0.1)),
        *(v2.Compose([*recipe, *floats]), v2.GaussianBlur(5, (0.3, 1.2)), v2.Grayscale(3), v2.Pad((1, 2, 3, 4), 9)),
        *(v2.RandAugment(3, 7), v2.RandomAdjustSharpness(1.7, 0.6), v2.RandomAffine(20, (0.1, 0.2), (0.8, 1.1), 6)),
        *(v2.RandomApply(recipe[2:], 0.6), v2.RandomAutocontrast(0.7)),
        *(v2.RandomCrop(20, 3, padding_mode="reflect"), v2.RandomEqualize(0.7), v2.RandomErasing(0.8, (0.1, 0.3))),
        *(v2.RandomGrayscale(0.6), v2.RandomHorizontalFlip(0.3), v2.RandomInvert(0.6)),
        *(v2.RandomPosterize(3, 0.7), v2.RandomResizedCrop((9, 12), (0.3, 0.8))),
        *(v2.RandomRotation((10, 50)), v2.RandomShortestSize([13, 17], 30), v2.RandomSolarize(90, 0.6)),
        v2.Resize((13, 15)),
        *(v2.ScaleJitter((30, 26), (0.5, 1.5)), v2.TrivialAugmentWide(9), v2.RandomVerticalFlip(0.5)),
    ]
    found: dict[str, Make] = {
        f"from_torchvision {type(each).__name__}": lambda s, c, each=each: from_torchvision(each) for each in given
    }
    return found


# Names of `reader` that are no transforms.
OTHERS = {
    *(
        "CompareReport",
        "ConstantPixels",
        "ImageBatch",
        "IncompleteStoreError",
        "Manifest",
        "MemmapDataset",
        "MemmapLoader",
    ),
    *("RASampler", "RaggedBatch", "StoreError", "compare", "to_device"),
}
# those that transforms of torchvision's are called with
OF_CONVERTED = {name: KINDS[name] for name in ("rgb", "own boxes")}


# -- digests


def tables_of(stores: Path, threads: tuple[int, ...]) -> dict[str, Table]:
    """Return the digests of `reader`'s transforms, and of torchvision's; threads: how many to try with large batches."""
    from reader import MemmapDataset

    opened = {kind: MemmapDataset(stores / kind, as_tuple=False) for kind in KINDS | MULTI_HOT}

    def digests(name: str, make: Make, kinds: Kinds) -> dict[str, str]:
        mixed = MULTI_HOT if name.startswith(("CutMix", "MixUp", "none")) else {}
        return {
            kind: _digests(make, opened[kind], batch_size, passes, threads if kind == LARGE else (1,))
            for kind, (batch_size, passes) in (kinds | mixed).items()
        }

    return {
        "transforms": {name: digests(name, make, KINDS) for name, make in cases().items()},
        "converted": {name: digests(name, make, OF_CONVERTED) for name, make in converted_cases().items()},
    }


def _digests(make: Make, data: Any, batch_size: int, passes: Passes, threads: tuple[int, ...]) -> str:
    """Return the digest of each pass, or the sentence of a refusal; several where they differ with the number of threads."""
    found = []
    for each in passes:
        by_threads = {_digest(make, data, batch_size, *each, count) for count in threads}
        found.append(" <> ".join(sorted(by_threads)))
    return found[0] if len({*found}) == 1 else " | ".join(found)


def _digest(make: Make, data: Any, batch_size: int, seed: int, own_seed: int, epoch: int, threads: int) -> str:
    from reader import MemmapLoader

    how: dict[str, Any] = {"shuffle": "full", "seed": seed, "prefetch": 0, "residency": "cache"}
    torch.set_num_threads(threads)
    try:
        transform = make(own_seed, data.manifest.channels)
        loader = MemmapLoader(data, batch_size, transform=transform, as_tuple=False, **how)
        loader.set_epoch(epoch)
        return digest(list(loader))
    except (ValueError, TypeError) as e:
        return f"{type(e).__name__}: {e}".replace(str(data.path), "STORE")


def run(stores: Path, *options: str, **environment: str) -> dict[str, Any]:
    """Run this program in a process of its own; returns what it prints: {"cpu": ..., "transforms": Table, "converted": Table}."""
    paths = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]
    given = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | ENVIRONMENT | environment
    command = [sys.executable, __file__, str(stores), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=given, timeout=540)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(stores: Path, *options: str) -> None:
    """Print the digests, and which vector instructions torch takes."""
    torch.set_num_threads(1)
    threads = (1, 2) if "--threads" in options else (2,)
    tables = tables_of(stores, threads)
    print(json.dumps({"cpu": torch.backends.cpu.get_cpu_capability()} | tables))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
