"""Each random transform makes the same from a seed, an epoch and a row as when its digests were taken.

A changed digest means that every user's augmentation changes. If that is intended, PIXPACK_WRITE_GOLDEN=1 takes them again,
and the commit gives the reason. This file is also the program that prints them, in a separate process: torch chooses its
vector instructions at import, and others round some sums differently.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import os
import platform
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from reader import ImageBatch, RaggedBatch, compiled, transforms

GOLDEN = Path(__file__).parents[1] / "golden" / "digests" / "transforms.json"
# torch's own kernels, and those of MKL that it calls
ENVIRONMENT = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"}
# name -> arguments of each trial
DRAWING: dict[str, list[dict[str, Any]]] = {
    "ColorJitter": [{"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}],
    "CutMix": [{"num_classes": 12}, {"num_classes": 12, "alpha": 0.3}],
    "FixedSizeCrop": [{"size": (20, 30), "fill": 9}],
    "GaussianBlur": [{"kernel_size": 5}],
    "MixUp": [{"num_classes": 12, "label_smoothing": 0.1}, {"num_classes": 12, "alpha": 0.2}],
    "MultiCrop": [{"global_crops": 1, "local_crops": 2, "global_size": 16, "local_size": (8, 6)}],
    "RandAugment": [{}, {"num_ops": 4, "magnitude": 15, "interpolation": "bilinear", "fill": 9}],
    "RandomAdjustSharpness": [{"sharpness_factor": 2.5}],
    "RandomAffine": [{"degrees": 30, "translate": (0.2, 0.1), "scale": (0.7, 1.3), "shear": (5, 15, -9, 9), "fill": 9}],
    "RandomApply": [{"transforms": [transforms.RandomInvert(1)]}],
    "RandomAutocontrast": [{}],
    "RandomChoice": [{"transforms": [transforms.RandomInvert(1), transforms.RandomPosterize(2, 1)], "p": [0.3, 0.7]}],
    "RandomCrop": [{"size": (14, 11)}, {"size": (22, 25), "padding": (4, 1), "pad_if_needed": True}],
    "RandomEqualize": [{}],
    "RandomErasing": [{"p": 0.7}, {"p": 0.9, "value": "random"}],
    "RandomGrayscale": [{"p": 0.5}],
    "RandomHorizontalFlip": [{}],
    "RandomInvert": [{}],
    "RandomPosterize": [{"bits": 3}],
    "RandomResizedCrop": [{"size": 16}, {"size": (9, 30), "interpolation": "bicubic"}],
    "RandomRotation": [{"degrees": 45}],
    "RandomShortestSize": [{"min_size": [13, 19, 33], "max_size": 40}],
    "RandomSolarize": [{"threshold": 99.5}],
    "RandomVerticalFlip": [{}],
    "ScaleJitter": [{"target_size": (30, 26)}],
    "TimmRandAugment": [{}, {"config_str": "rand-m6-n3-mstd1-inc0-p0.7", "interpolation": "nearest"}],
    "TrivialAugmentWide": [{}],
}


def digest(value: Any, before: int = 0) -> int:
    """Return the CRC of all bytes, shapes and types in a batch, a tensor or a list of them."""
    if isinstance(value, torch.Tensor):
        head = f"{value.dtype} {list(value.shape)}".encode()
        return zlib.crc32(value.contiguous().numpy().tobytes(), zlib.crc32(head, before))
    if isinstance(value, ImageBatch | RaggedBatch):
        value = value.to_dict()
    for part in [value[name] for name in sorted(value)] if isinstance(value, dict) else value or ():
        before = digest(part, before)
    return before


def found() -> dict[str, str]:
    """Return the digests for rows of one size and of their own sizes, two seeds and epochs; refused cases have none."""
    from augmenting import labelled, pictures
    from detecting import detections

    from reader.epoch import in_epoch

    table = dict[str, str]()
    given = [(name, n, case) for name, cases in DRAWING.items() for n, case in enumerate(cases)]
    kinds = {"one size": pictures(), "boxes": labelled(6), "own sizes": detections()}
    for (name, n, case), (kind, batch), (seed, epoch) in itertools.product(given, kinds.items(), ((0, 0), (7, 2))):
        with contextlib.suppress(ValueError), in_epoch(epoch):
            made = getattr(transforms, name)(**case, seed=seed)(batch)
            table[f"{name} {n} of {kind}, seed {seed}"] = f"{digest(made):08x}"
    return table


@pytest.mark.skipif(not compiled.is_built(), reason="the compiled part is not built here")
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="the digests were taken on x86-64")
def test_transforms_make_what_they_made() -> None:
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join(map(str, (tests.parent, tests, tests / "support")))
    given = os.environ | {"PYTHONPATH": paths} | ENVIRONMENT
    done = subprocess.run([sys.executable, __file__], env=given, capture_output=True, text=True, check=True)
    capability, table = json.loads(done.stdout)
    if capability != "AVX2":
        pytest.skip(f"the digests were taken with AVX2, and torch has {capability} here")
    if os.environ.get("PIXPACK_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    assert table == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_each_transform_that_draws_has_digests() -> None:
    members = {name: getattr(transforms, name) for name in transforms.__all__}
    drawing = {name for name, member in members.items() if "seed" in inspect.signature(member).parameters}
    assert drawing == {*DRAWING} == {name.split()[0] for name in json.loads(GOLDEN.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(json.dumps([torch.backends.cpu.get_cpu_capability(), found()]))
