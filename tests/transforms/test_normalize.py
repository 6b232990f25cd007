"""Normalize: exact in each type, a part of a model that is moved, traced and exported, and of the levels of a store."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from augmenting import by_torch, pictures
from conftest import devices
from detecting import detections, gray

from reader import MemmapDataset, Normalize

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-6)]
)
def test_it_is_exact_up_to_the_rounding_of_its_type(device: str, dtype: torch.dtype, tolerance: float) -> None:
    batch, normalize = pictures(device=device), Normalize(MEAN, STD, dtype).to(device)
    mean, std = (torch.tensor(values, device=device, dtype=torch.float64).view(3, 1, 1) for values in (MEAN, STD))
    exact = (batch.images.double() / 255 - mean) / std
    for got in (
        normalize(batch.images),
        normalize(batch).images,
        torch.stack([normalize(one) for one in batch.images]),
    ):
        assert got.dtype == dtype
        # values up to 2.7; rounding is relative, but for the sum of two numbers of that size
        assert (got.double() - exact).abs().max() <= tolerance * 2.7 / 2 + 1e-6
    assert normalize(batch.images).is_contiguous(memory_format=torch.channels_last)
    if device == "cpu":
        # in planes, as those of a DataLoader; levels stay as they are on disk
        with by_torch():
            assert normalize(batch).images.is_contiguous()
        assert normalize(batch).images.is_contiguous()
        assert batch.images.is_contiguous(memory_format=torch.channels_last)


def test_gray_images_of_their_own_sizes_become_as_many_channels_as_it_has() -> None:
    batch = gray(detections(6))
    made = Normalize(MEAN, STD)(batch)
    assert made.shapes[:, 2].tolist() == [3] * 6
    for image, given in zip(made.images, batch.images, strict=True):
        expected = (given / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        torch.testing.assert_close(image, expected)


def test_it_moves_is_saved_and_traced_with_its_model() -> None:
    model = torch.nn.Sequential(Normalize(MEAN, STD), torch.nn.Flatten())
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(torch.fx.symbolic_trace(model)(images), model(images))
    assert list(model.state_dict()) == ["0.scale", "0.shift"]
    assert repr(model[0]) == "Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225], dtype=torch.float32)"
    assert model.to("meta")[0].scale.device.type == "meta"


def test_a_channel_that_never_varies_gets_std_1(shared_store: Path) -> None:
    manifest = dataclasses.replace(MemmapDataset(shared_store).manifest, std=(0.2, 0.0, 0.2))
    assert Normalize.from_manifest(manifest)(torch.zeros(3, 2, 2, dtype=torch.uint8)).isfinite().all()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_model_that_begins_with_it_runs_in_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 22 * 18, 5)
    model, images = torch.nn.Sequential(Normalize(MEAN, STD), *layers).eval(), pictures().images
    path, shapes = str(tmp_path / "model.onnx"), ({0: torch.export.Dim("batch")},)
    torch.onnx.export(model, (images[:2],), path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    assert taken.type == "tensor(uint8)"
    (got,) = session.run(None, {taken.name: images.contiguous().numpy()})
    assert np.abs(got - model(images).detach().numpy()).max() <= 1e-5
