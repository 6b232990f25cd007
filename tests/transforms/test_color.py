"""Normalize and ColorJitter: by whose definition, in which types, in how many kernels, and in another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import devices, torchvision_or_skip

from reader import ColorJitter, ImageBatch, MemmapDataset, Normalize
from reader.transforms.random import COLOR_JITTER, draw

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def random_batch(count: int = 12, channels: int = 3, device: str = "cpu") -> ImageBatch:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 24, 20, channels), dtype=torch.uint8, generator=generator)
    rows = torch.arange(count)
    return ImageBatch(pixels=pixels, targets=rows, rows=rows, batch_size=[count]).to(device)


# -- Normalize


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-6)]
)
def test_normalize_is_exact_up_to_the_rounding_of_its_type(device: str, dtype: torch.dtype, tolerance: float) -> None:
    images = random_batch(device=device).images
    exact = (images.double() / 255 - torch.tensor(MEAN, device=device).double().view(3, 1, 1)) / torch.tensor(
        STD, device=device
    ).double().view(3, 1, 1)
    got = Normalize(MEAN, STD, dtype).to(device)(images)
    assert got.dtype == dtype
    assert got.is_contiguous(memory_format=torch.channels_last)
    # values up to 2.7; rounding is relative, but for the sum of two numbers of that size
    assert (got.double() - exact).abs().max() <= tolerance * 2.7 / 2 + 1e-6
    assert torch.equal(got[3], Normalize(MEAN, STD, dtype).to(device)(images[3]))


def test_images_of_different_sizes_are_refused_with_what_makes_them_one() -> None:
    images = [torch.zeros(3, side, side, dtype=torch.uint8) for side in (4, 5)]
    with pytest.raises(TypeError, match=r"was given a list. Give the loader a transform .* such as RandomResizedCrop"):
        Normalize(MEAN, STD)(images)  # type: ignore[arg-type]


def test_normalize_moves_and_saves_with_its_model() -> None:
    model = torch.nn.Sequential(Normalize(MEAN, STD), torch.nn.Flatten())
    assert model.to("meta")[0].scale.device.type == "meta"
    assert list(model.state_dict()) == ["0.scale", "0.shift"]


def test_a_channel_that_never_varies_gets_std_1(shared_store: Path) -> None:
    import dataclasses

    manifest = dataclasses.replace(MemmapDataset(shared_store).manifest, std=(0.2, 0.0, 0.2))
    assert Normalize.of(manifest)(torch.zeros(3, 2, 2, dtype=torch.uint8)).isfinite().all()


def test_a_dataset_in_place_of_its_manifest_is_told_what_to_write(shared_store: Path) -> None:
    with pytest.raises(TypeError, match=r"is a MemmapDataset, expected .* Write Normalize\.of\(dataset\.manifest\)\.$"):
        Normalize.of(MemmapDataset(shared_store))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.usefixtures("inductor")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_normalize_compiles_to_one_kernel(dtype: torch.dtype) -> None:
    from torch._inductor import metrics

    torch._dynamo.reset()
    metrics.reset()
    normalize, images = Normalize(MEAN, STD, dtype), random_batch().images
    got = torch.compile(normalize, fullgraph=True)(images)
    assert metrics.generated_kernel_count == 1
    assert got.dtype == dtype
    torch.testing.assert_close(got, normalize(images))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_model_that_begins_with_normalize_runs_in_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        Normalize(MEAN, STD), torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 22 * 18, 5)
    ).eval()
    path, images = str(tmp_path / "model.onnx"), random_batch().images
    shapes = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(model, (images[:2],), path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    assert taken.type == "tensor(uint8)"
    (got,) = session.run(None, {taken.name: images.contiguous().numpy()})
    expected = model(images).detach().numpy()
    assert got.shape == (12, 5)
    assert np.abs(got - expected).max() <= 1e-5


# -- ColorJitter


def test_color_jitter_is_torchvisions_in_the_order_that_was_drawn() -> None:
    functional = torchvision_or_skip().transforms.v2.functional
    batch = random_batch(40)
    jitter = ColorJitter(0.4, (0.2, 1.5), 0.9, seed=2)
    got = jitter(batch).pixels.movedim(-1, 1)
    shares = draw(batch, 2, COLOR_JITTER)
    _, orders = jitter.drawn(batch)
    expected = []
    for n, image in enumerate(batch.images):
        for step in [step for step in orders[n].tolist() if step < 3]:
            adjust = (functional.adjust_brightness, functional.adjust_contrast, functional.adjust_saturation)[step]
            low, width = ((0.6, 0.8), (0.2, 1.3), (0.1, 1.8))[step]
            image = adjust(image, low + float(shares[step, n]) * width)
        expected.append(image)
    difference = (got.int() - torch.stack(expected).int()).abs()
    # where a value is a whole level but for rounding, cutting takes it to one side or the other; each later step may double that
    assert difference.max() <= 2
    assert (difference > 0).float().mean() < 5e-3


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
@pytest.mark.parametrize("channels", [1, 3])
def test_one_factor_alone_is_torchvisions(name: str, channels: int) -> None:
    adjust: Any = getattr(torchvision_or_skip().transforms.v2.functional, f"adjust_{name}")
    batch = random_batch(4, channels)
    for factor in (0.0, 0.5, 1.7):
        got = ColorJitter(**{name: (factor, factor)})(batch).images
        assert (got.int() - adjust(batch.images, factor).int()).abs().max() <= 1


def test_no_jitter_changes_nothing() -> None:
    batch = random_batch()
    assert torch.equal(ColorJitter()(batch).pixels, batch.pixels)


def test_normalize_is_traced_by_fx_inside_a_model() -> None:
    model = torch.nn.Sequential(Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), torch.nn.Flatten())
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(torch.fx.symbolic_trace(model)(images), model(images))
