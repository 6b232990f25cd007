"""What training loops and frameworks do with a dataset and a loader, and what would go wrong without a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import devices
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Subset

from reader import MemmapDataset, MemmapLoader


def rows(loader: Any) -> list[list[int]]:
    return [batch.rows.tolist() for batch in loader]


# -- collate functions


def noted(items: Any) -> Any:
    """A collate function as people write them: over a list of (image, target)."""
    images = torch.stack([image for image, _ in items])
    targets = torch.tensor([item[1] for item in items])
    _, again = zip(*items, strict=True)
    assert list(again) == targets.tolist() == [target for _, target in items[:]]
    assert items[-1][0].equal(images[-1])
    return {"images": images, "targets": targets, "count": len(items)}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("part", ["all", "Subset"])
def test_a_collate_function_of_the_users_gets_rows(train: MemmapDataset, workers: int, part: str) -> None:
    data = train if part == "all" else Subset(train, range(90))
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    found = list(DataLoader(data, batch_size=32, collate_fn=noted, **options))
    assert [batch["count"] for batch in found] == [32, 32, 26]
    plain = list(DataLoader(data, batch_size=32, **options))
    for batch, (images, targets) in zip(found, plain, strict=True):
        assert torch.equal(batch["images"], images)
        assert torch.equal(batch["targets"], targets)


def test_a_loop_over_the_dataset_ends_early_for_no_error_of_a_transform(shared_store: Path) -> None:
    for error, raised in ((IndexError, IndexError), (StopIteration, RuntimeError)):

        def fail(image: Any, error: Any = error) -> Any:
            raise error("of the transform")

        with pytest.raises(raised):
            list(MemmapDataset(shared_store, transform=fail))
    assert sum(1 for _ in MemmapDataset(shared_store)) == 90


# -- transforms


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("residency", ["cache", "gpu"])
def test_stop_iteration_in_a_transform_is_an_error_and_not_the_end(
    train: MemmapDataset, prefetch: int, device: str, residency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # with "gpu", here the CPU's memory, the transform runs in the caller's thread, as on CUDA
    monkeypatch.setattr("reader.loading.gathering.ROW_DEVICES", ("cpu", "cuda"))
    values = iter(range(3))
    loader = MemmapLoader(
        train, 10, device=device, residency=residency, prefetch=prefetch, transform=lambda batch: next(values)
    )
    taken = []
    with pytest.raises(
        RuntimeError, match="the transform raised StopIteration, which would end the loop as if all were"
    ):
        taken.extend(loader)
    assert loader.state_dict()["epoch"] == 0


# -- epochs and states


def test_set_epoch_of_the_epoch_whose_state_was_loaded_resumes_in_its_middle(train: MemmapDataset) -> None:
    loader = MemmapLoader(train, 16, shuffle="full", as_tuple=False)
    loader.set_epoch(3)
    batches = iter(loader)
    first = [next(batches).rows.tolist() for _ in range(2)]
    state, rest = loader.state_dict(), rows(batches)
    resumed = MemmapLoader(train, 16, shuffle="full", as_tuple=False)
    resumed.load_state_dict(state)
    found = []
    for epoch in range(resumed.state_dict()["epoch"], 5):
        resumed.set_epoch(epoch)
        found.append(rows(resumed))
    assert found[0] == rest
    loader.set_epoch(4)
    assert found[1] == rows(loader)
    # without a loaded state the epoch starts over, another epoch too
    loader.set_epoch(3)
    next(iter(loader))
    loader.set_epoch(3)
    assert rows(loader) == first + rest
    loader.load_state_dict(state)
    loader.set_epoch(4)
    assert rows(loader) == found[1]


SAMPLERS: dict[str, Any] = {
    "rows": lambda data: RandomSampler(data, generator=torch.Generator().manual_seed(0)),
    "a list of rows": lambda data: list(range(50)),
    "batches": lambda data: BatchSampler(range(50), 7, drop_last=False),
    "a list of batches": lambda data: [[1, 2, 3], [4, 5], [6]],
}


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_samplers_state_after_the_last_batch_is_the_next_epochs_beginning(
    train: MemmapDataset, kind: str, drop_last: bool
) -> None:
    def made() -> MemmapLoader:
        return MemmapLoader(train, 16, sampler=SAMPLERS[kind](train), drop_last=drop_last, as_tuple=False)

    loader = made()
    full = rows(made())
    for step, _ in enumerate(loader, start=1):
        state = loader.state_dict()
        is_last = step == len(full)
        assert (state["epoch"], state["position"] == 0) == (int(is_last), is_last)
        resumed = made()
        resumed.load_state_dict(state)
        assert len(rows(resumed)) == (len(full) if is_last else len(full) - step)


@pytest.mark.parametrize("form", ["rows", "batches"])
def test_a_distributed_sampler_gets_the_epoch(train: MemmapDataset, form: str) -> None:
    def made() -> tuple[Any, MemmapLoader]:
        sampler: Any = DistributedSampler(train, num_replicas=2, rank=1, seed=3)
        given = sampler if form == "rows" else BatchSampler(sampler, 15, drop_last=False)
        return sampler, MemmapLoader(train, 15, sampler=given, as_tuple=False)

    sampler, loader = made()
    epochs = [rows(loader) for _ in range(3)]
    assert sampler.epoch == 2
    assert epochs[0] != epochs[1] != epochs[2]
    for epoch in (2, 0):
        loader.set_epoch(epoch)
        assert sampler.epoch == epoch
        assert rows(loader) == epochs[epoch]
    # a state continues in its epoch's order
    loader.set_epoch(1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other, resumed = made()
    resumed.load_state_dict(state)
    assert other.epoch == 1
    assert rows(resumed) == epochs[1][1:]
    # who tells the sampler himself, as torch's loops do, is not contradicted
    other, loader = made()
    for epoch in (2, 1):
        other.set_epoch(epoch)
        assert rows(loader) == epochs[epoch]


# -- Lightning


def lightning_run(loader: MemmapLoader, **options: Any) -> Any:
    """Train a model that logs a mean and notes its rows; returns it."""
    pytest.importorskip("lightning", reason="lightning is not installed: pip install lightning")
    from lightning.pytorch import LightningModule, Trainer

    class Noting(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(3072, 3), []

        def training_step(self, batch: Any, index: int) -> Any:
            self.seen.append(batch.rows.tolist())
            self.log("row", batch.rows.float().mean(), on_epoch=True, on_step=False)
            return self.layer(batch.pixels.flatten(1).float()).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    model = Noting()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(accelerator="cpu", devices=1, **quiet, **options)
    trainer.fit(model, loader)
    return trainer, model


def test_a_mean_that_lightning_logs_weighs_batches_by_their_rows(train: MemmapDataset) -> None:
    # 90 rows in batches of 40, 40 and 10: the mean of the rows' numbers is 44.5 only if they are weighed
    trainer, _ = lightning_run(MemmapLoader(train, 40, as_tuple=False), max_epochs=1)
    assert trainer.callback_metrics["row"].item() == pytest.approx(44.5)


def test_lightning_validates_by_a_loader(train: MemmapDataset) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed: pip install lightning")
    from lightning.pytorch import LightningModule, Trainer

    class Noting(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[list[int]] = []

        def validation_step(self, batch: Any, index: int) -> None:
            self.seen.append(batch.rows.tolist())

        test_step = predict_step = validation_step

    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    for shuffle in (False, "full"):
        loader = MemmapLoader(train, 40, shuffle=shuffle, as_tuple=False)
        for run in (trainer.validate, trainer.test, trainer.predict):
            model = Noting()
            run(model, loader)
            assert sorted(row for batch in model.seen for row in batch) == list(range(90))
