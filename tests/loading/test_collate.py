"""A program's collate_fn in MemmapLoader: of rows of whole batches, of samples, and torchvision's MixUp and CutMix."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import torchvision_or_skip
from torch.utils.data import default_collate

from reader import Compose, MemmapDataset, MemmapLoader, MultiView, Normalize, RandomResizedCrop

CROPS = Compose([RandomResizedCrop(8), Normalize([0.5] * 3, [0.2] * 3)])


def as_samples(image: Any) -> Any:
    return (image[:, :8, :8] / 255 - 0.5) / 0.2


def test_a_collate_fn_gets_the_rows_of_batches_after_the_transform(shared_store: Path) -> None:
    def collate(rows: Any) -> Any:
        images, targets = default_collate(rows)
        assert torch.equal(torch.stack([image for image, _ in rows]), images)
        return {"images": images, "targets": targets, "types": {type(target) for _, target in rows}}

    of_loader = MemmapLoader(MemmapDataset(shared_store), 16, transform=CROPS, collate_fn=collate)
    of_dataset = MemmapLoader(MemmapDataset(shared_store, CROPS), 16, collate_fn=collate)
    sized = MemmapLoader(MemmapDataset(shared_store), 16, transform=RandomResizedCrop(4), size=8, collate_fn=collate)
    plain = list(MemmapLoader(MemmapDataset(shared_store), 16, transform=CROPS))
    for _ in range(2):  # the loader asks again for its transform in each epoch
        for loader in (of_loader, of_dataset, sized):
            loader.set_epoch(0)
            found = list(loader)
            assert [batch["types"] for batch in found] == [{int}] * 6
            for batch, (images, targets) in zip(found, plain, strict=True):
                if loader is not sized:
                    assert torch.equal(batch["images"], images)
                assert batch["images"].shape == images.shape
                assert torch.equal(batch["targets"], targets)
    assert "collate_fn=<function" in repr(of_loader.transform)
    views = MemmapLoader(MemmapDataset(shared_store), 16, transform=MultiView([CROPS, CROPS]), collate_fn=collate)
    with pytest.raises(TypeError, match="collate_fn= takes rows of an ImageBatch, and the transform gives a tuple"):
        next(iter(views))


def drawn(rows: Any) -> Any:
    return torch.rand(2).tolist(), random.random(), float(np.random.rand())


def test_what_a_collate_fn_draws_is_seeded_for_samples_and_torchs_for_batches(shared_store: Path) -> None:
    samples, batches = MemmapDataset(shared_store, as_samples), MemmapDataset(shared_store, CROPS)
    runs = []
    for workers, loops_seed, seed in ((0, 1, 3), (1, 2, 3), (0, 2, 4)):
        with MemmapLoader(samples, 30, seed=seed, num_workers=workers, collate_fn=drawn) as loader:
            torch.manual_seed(loops_seed)
            runs.append([list(loader) for _ in range(2)])
    assert runs[0] == runs[1] != runs[2]
    assert len({str(step) for epoch in runs[0] for step in epoch}) == 6
    runs = []
    for prefetch, loops_seed in ((0, 1), (2, 1), (2, 2)):
        with MemmapLoader(batches, 30, seed=3, prefetch=prefetch, collate_fn=drawn) as loader:
            torch.manual_seed(loops_seed), np.random.seed(0), random.seed(0)
            runs.append([list(loader) for _ in range(2)])
    assert runs[0] == runs[1] != runs[2]


def test_mixup_and_cutmix_of_torchvision_are_collate_fns(shared_store: Path) -> None:
    torchvision_or_skip()
    from torchvision.transforms import v2

    mixes = [v2.MixUp(num_classes=3), v2.CutMix(num_classes=3)]
    choice = v2.RandomChoice(mixes)
    for given in (MemmapDataset(shared_store, CROPS), MemmapDataset(shared_store, as_samples)):
        for collate in (*mixes, choice, lambda rows: choice(*default_collate(rows))):
            with (
                MemmapLoader(given, 15, seed=1, collate_fn=collate) as loader,
                MemmapLoader(given, 15, seed=1) as plain,
            ):
                epochs = [list(loader) for _ in range(2)]
                unmixed = list(plain)
            for (images, targets), (before, classes) in zip(epochs[0], unmixed, strict=True):
                assert images.shape == before.shape == (15, 3, 8, 8)
                assert torch.allclose(targets.sum(1), torch.ones(15))
                # the shares are of the image's own class and of that of the one before it
                own, others = (torch.nn.functional.one_hot(labels, 3) for labels in (classes, classes.roll(1)))
                assert not targets[(own + others) == 0].any()
            # some rectangles of CutMix have no area
            assert any(
                not torch.equal(mixed, before) for (mixed, _), (before, _) in zip(epochs[0], unmixed, strict=True)
            )
            assert not torch.equal(epochs[0][0][0], epochs[1][0][0])
