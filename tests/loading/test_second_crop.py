"""A store that pack has cropped, and programs that crop it again: one warning that names both, and the log of a first epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import torchvision_or_skip

from packer import pack_dataset
from reader import (
    Compose,
    MemmapDataset,
    MemmapLoader,
    Normalize,
    PerSample,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    from_torchvision,
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Rows of 28 x 28 that pack has cropped from 32 x 32, and some that it has not."""
    root = tmp_path_factory.mktemp("crops")
    image = np.random.default_rng(0).integers(0, 256, (40, 36, 3), dtype=np.uint8)
    options: dict[str, dict[str, Any]] = {
        "cropped": {"size": 28, "crop_fraction": 0.875},
        "whole": {"size": 28},
        "padded": {"size": 28, "fit": "pad"},
    }
    for name, given in options.items():
        pack_dataset([(image, 0)] * 4, root / name, workers=1, **given)
    return {name: root / name for name in options}


class Cut:
    """A step of another library, named by its arguments as torchvision names them."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __repr__(self) -> str:
        return f"Cut(size={self.size})"

    def __call__(self, batch: Any) -> Any:
        return batch


class Widen(Cut):
    """The same, and it resizes."""

    interpolation = "bilinear"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if "a second time" in record.getMessage()]
    caplog.clear()
    return found


def test_a_recipe_that_crops_what_pack_has_cropped_warns_once_and_names_both(
    stores: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    again = {
        "RandomResizedCrop(": RandomResizedCrop(28),
        "RandomCrop(": Compose([RandomCrop(20), RandomHorizontalFlip()]),
        "Cut(size=28)": torch.nn.Sequential(*map(Module, (Widen(32), Cut(28)))),
        "Cut(size=27)": PerSample(Chain([Widen(28), Chain([Cut(28), Cut(27)])])),
    }
    for named, transform in again.items():
        loader = MemmapLoader(MemmapDataset(stores["cropped"]), 4, transform=transform)
        assert not warnings_of(caplog)  # only as an epoch begins
        for _ in range(2):
            next(iter(loader))
        (warning,) = warnings_of(caplog)
        assert f"{stores['cropped']}: its rows were cropped by pack with --crop-fraction 0.875" in warning
        assert "which is Resize(32) and a CenterCrop" in warning
        assert named in warning
        # another loader of the same says nothing more
        next(iter(MemmapLoader(MemmapDataset(stores["cropped"]), 4, transform=transform)))
        assert not warnings_of(caplog)
    as_it_is = (
        None,
        RandomHorizontalFlip(),
        RandomCrop(28, padding=4),
        Compose([Resize(28), Normalize([0.0] * 3, [1.0] * 3)]),
        Resize((20, 20)),
        Chain([Cut(28), Widen(14)]),
        lambda batch: batch,
    )
    for transform in as_it_is:
        next(iter(MemmapLoader(MemmapDataset(stores["cropped"]), 4, transform=transform)))
    for name in ("whole", "padded"):
        next(iter(MemmapLoader(MemmapDataset(stores[name]), 4, transform=RandomResizedCrop(20))))
    assert not warnings_of(caplog)


class Chain:
    """As torchvision's Compose."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, batch: Any) -> Any:
        return batch


class Module(torch.nn.Module):
    """A step as a module."""

    def __init__(self, step: Any) -> None:
        super().__init__()
        self.transform = step

    def forward(self, batch: Any) -> Any:
        """Return the batch."""
        return batch


def test_a_program_that_keeps_torchvisions_recipe_is_warned_with_any_loader(
    stores: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    torchvision_or_skip()
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    for module, size in ((v1, 28), (v2, 26)):
        kept = module.Compose([module.Resize(32), module.CenterCrop(size), module.ToTensor()])
        # as for torch's DataLoader, which tells nobody that an epoch begins
        data = MemmapDataset(stores["cropped"], transform=kept, as_pil=True)
        (warning,) = warnings_of(caplog)
        assert f"CenterCrop(size=({size}, {size}))" in warning
        next(iter(MemmapLoader(data, 4)))
        assert not warnings_of(caplog)
        batches = MemmapDataset(stores["cropped"])
        next(iter(MemmapLoader(batches, 4, transform=from_torchvision(module.Compose(kept.transforms[:2])))))
        (warning,) = warnings_of(caplog)
        assert "CenterCrop(" in warning
        right = module.Compose([module.RandomHorizontalFlip(), module.CenterCrop(28), module.ToTensor()])
        data = MemmapDataset(stores["cropped"], transform=right, as_pil=True)
        next(iter(MemmapLoader(data, 4)))
        assert not warnings_of(caplog)
        # given to the dataset later, it is seen as an epoch begins
        data.transform = module.RandomResizedCrop(size)
        next(iter(MemmapLoader(data, 4, collate_fn=list)))
        (warning,) = warnings_of(caplog)
        assert "RandomResizedCrop(" in warning


def test_the_first_epoch_logs_what_batches_are_in_one_line(
    stores: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    loaders = {name: MemmapLoader(MemmapDataset(path), 2, rank=1, world_size=2) for name, path in stores.items()}
    loaders["drawn"] = MemmapLoader(
        MemmapDataset(stores["whole"]), 2, shuffle="full", seed=7, transform=RandomHorizontalFlip(0.25)
    )
    loaders["drawn"].set_epoch(3)
    lines = {}
    for name, loader in loaders.items():
        with caplog.at_level("INFO", logger="pixpack"):
            for _ in range(2):
                list(loader)
        (lines[name],) = [r.getMessage() for r in caplog.records if "first epoch" in r.getMessage()]
        caplog.clear()
    assert {name: line.split(": first epoch: ")[1] for name, line in lines.items()} == {
        "cropped": "seed 0 (as on all ranks), epoch 0, order sequential, rank 1 of 2, rows of 28 x 28 by --fit crop"
        " --crop-fraction 0.875, transform None",
        "whole": "seed 0 (as on all ranks), epoch 0, order sequential, rank 1 of 2, rows of 28 x 28 by --fit crop,"
        " transform None",
        "padded": "seed 0 (as on all ranks), epoch 0, order sequential, rank 1 of 2, rows of 28 x 28 by --fit pad,"
        " transform None",
        "drawn": "seed 7 (as given), epoch 3, order full, rank 0 of 1, rows of 28 x 28 by --fit crop,"
        " transform RandomHorizontalFlip(p=0.25, seed=0)",
    }
