"""Training from the folder and from the store: the same losses, and a difference is seen where there is one."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_tree, photo, torchvision_or_skip
from PIL import Image

from packer import pack


@pytest.fixture(scope="module")
def parity() -> ModuleType:
    return importlib.import_module("scripts.benchmarks.accuracy.parity")


@pytest.fixture(scope="module")
def trial(parity: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """24 images in 3 classes, 2 epochs of 2 steps."""
    root = tmp_path_factory.mktemp("parity")
    make_tree(root / "images", size=(120, 90))
    options = argparse.Namespace(crop=32, batch_size=8, epochs=2)
    return parity.ParityTrial(root / "images", root, options)


def test_central_crops_give_the_same_tensors_and_the_same_losses(parity: ModuleType, trial: Any) -> None:
    found = trial.central()
    assert found["folder"].losses == found["store"].losses
    assert len(found["store"].losses) == 4
    assert found["folder"].accuracy == found["store"].accuracy


def test_other_pixels_are_seen_before_anything_is_trained(
    parity: ModuleType, trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "central_crop", lambda image, size: image.resize((size, size)))
    with pytest.raises(AssertionError, match="the store's pixels are not the folder's"):
        trial.central()


def test_random_crops_are_judged_by_what_the_seeds_scatter(parity: ModuleType, trial: Any, tmp_path: Path) -> None:
    central = {name: parity.Curve([1.0, 0.5], [0.1, 0.2], 0.5) for name in ("folder", "store")}

    def verdict(*store: float) -> dict[str, Any]:
        several = {"folder": (0.80, 0.82, 0.81), "store": store}
        curves = {name: [parity.Curve([1.0], [0.1], a) for a in values] for name, values in several.items()}
        return parity.judged(central, curves, trial)

    assert verdict(0.79, 0.83, 0.82)["random_agrees_within_noise"]
    assert not verdict(0.70, 0.72, 0.71)["random_agrees_within_noise"]
    assert verdict(0.79, 0.83, 0.82)["central_losses_are_equal"]


def test_the_picture_is_drawn(parity: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves = [parity.Curve([1 / n for n in range(1, 40)], [n / 10 for n in range(1, 40)], 0.9)] * 3
    both = {"folder": curves, "store": curves}
    verdict = {"central_losses_are_equal": True}
    parity.plot({k: v[0] for k, v in both.items()}, both, verdict, tmp_path / "parity.png")
    assert (tmp_path / "parity.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("size", [(97, 60), (60, 97), (50, 50)])
def test_the_folders_central_crop_is_torchvisions_and_ours(
    parity: ModuleType, tmp_path: Path, size: tuple[int, int]
) -> None:
    v2 = torchvision_or_skip().transforms.v2
    image = photo(*size, 1)
    mine = np.asarray(parity.central_crop(image, 32))
    assert np.array_equal(mine, np.asarray(v2.CenterCrop(32)(v2.Resize(32)(image))))
    (tmp_path / "images").mkdir()
    image.save(tmp_path / "images" / "a.png")
    pack(tmp_path / "images", tmp_path / "out", size=32, workers=1)
    assert (tmp_path / "out" / "_tensordict" / "pixels.memmap").read_bytes() == mine.tobytes()


def test_the_folders_random_boxes_are_distributed_as_the_stores(parity: ModuleType) -> None:
    from reader import ImageBatch

    count, width, height = 4000, 120, 80
    rows, pixels = torch.arange(count), torch.zeros(1, height, width, 3, dtype=torch.uint8).expand(count, -1, -1, -1)
    batch = ImageBatch(pixels=pixels, targets=rows, rows=rows, batch_size=[count])
    ours = parity.RandomResizedCrop(32, parity.SCALE, parity.RATIO).boxes(batch).numpy()
    image, view = Image.new("RGB", (width, height)), parity.RandomView(32, 0)
    theirs = np.array([view.box(image, np.random.default_rng([0, n])) for n in range(count)])
    assert (theirs[:, :2] >= 0).all()
    assert (theirs[:, 2:] <= (width, height)).all()
    # mean and spread of x0, y0, x1, y1, within 4 standard errors of 4,000 draws
    for mine, other in zip(ours.T, theirs.T, strict=True):
        assert abs(mine.mean() - other.mean()) < 4 * np.hypot(mine.std(), other.std()) / np.sqrt(count)
        assert abs(mine.std() / other.std() - 1) < 0.08
