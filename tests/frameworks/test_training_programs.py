"""MemmapLoader and MemmapDataset under accelerate, transformers and timm: real packages, several processes."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import torchvision_or_skip
from launcher import launch
from torch.utils.data import BatchSampler, RandomSampler

from reader import MemmapDataset, MemmapLoader, RandomResizedCrop


def rows(loader: Any) -> list[list[int]]:
    return [batch.rows.tolist() for batch in loader]


# -- accelerate: complete_cv_example's way to resume in the middle of an epoch

_RESUME = """
import json, sys
from pathlib import Path
import torch
from accelerate import Accelerator
from reader import MemmapDataset, MemmapLoader

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, data = torch.nn.Linear(1, 1), MemmapDataset(sys.argv[1])

def made():
    transform = lambda batch: (batch.rows, batch.epoch, batch.position)
    return accelerator.prepare(MemmapLoader(data, 8, shuffle="full", seed=3, transform=transform))

def run(loader):
    found = []
    for rows, epoch, position in loader:
        with accelerator.accumulate(model):
            gathered = accelerator.gather_for_metrics(rows).tolist()
            found.append([rows.tolist(), epoch, position, accelerator.sync_gradients, gathered])
    return found

loader = made()
full = [run(loader) for _ in range(3)]
resumed = made()
resumed.set_epoch(1)
rest = run(accelerator.skip_first_batches(resumed, 4))
after = run(resumed)
state = made()
accelerator.register_for_checkpointing(state)
state.set_epoch(1)
batches = iter(state)
for _ in range(4):
    next(batches)
accelerator.save_state(sys.argv[2] + "/saved")
accelerator.wait_for_everyone()
del batches
accelerator.load_state(sys.argv[2] + "/saved")
loaded = [found[:3] for found in run(state)]
found = {"full": full, "rest": rest, "after": after, "loaded": loaded}
Path(sys.argv[2], f"{accelerator.process_index}.json").write_text(json.dumps(found))
accelerator.wait_for_everyone()
accelerator.end_training()
"""


@pytest.mark.slow
def test_accelerate_resumes_in_the_middle_of_an_epoch(shared_store: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    (tmp_path / "resume.py").write_text(_RESUME)
    folders = {processes: tmp_path / str(processes) for processes in (1, 2)}
    for folder in folders.values():
        folder.mkdir()
    runs = [(processes, [shared_store, folder]) for processes, folder in folders.items()]
    launch(tmp_path / "resume.py", *runs, modules=("accelerate",))
    for processes, folder in folders.items():
        check_resumed([json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)])


def check_resumed(ranks: list[dict[str, Any]]) -> None:
    """Compare what each rank has read after it resumed with its undisturbed epochs, and see that all read each row."""
    seen: list[int] = []
    for found in ranks:
        epochs = found["full"]
        assert found["rest"][-1] == epochs[1][-1]
        assert [step[:3] for step in found["rest"]] == [step[:3] for step in epochs[1][4:]]
        assert found["after"] == epochs[2]
        assert found["loaded"] == [step[:3] for step in epochs[1][4:]]
        seen += [row for step in epochs[1] for row in step[0]]
        # each row once, and gradients that were accumulated are not left over
        assert sorted(row for step in epochs[1] for row in step[4]) == list(range(90))
        assert found["rest"][-1][3] is True
    assert set(seen) == set(range(90))


def test_accelerate_skips_batches_of_any_order(shared_store: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    train = MemmapDataset(shared_store)
    accelerator, generator = accelerate.Accelerator(cpu=True), torch.Generator()
    orders: tuple[dict[str, Any], ...] = (
        {},
        {"shuffle": "block"},
        {"sampler": list(range(50))},
        {"sampler": BatchSampler(range(50), 7, drop_last=False)},
        {"sampler": RandomSampler(train, generator=generator)},
    )
    for order in orders:
        loader = MemmapLoader(train, 16, as_tuple=False, **order)
        generator.manual_seed(0)
        full = rows(loader)
        loader.set_epoch(0)
        generator.manual_seed(0)
        assert rows(accelerator.skip_first_batches(loader, 2)) == full[2:]


def test_accelerate_skips_only_in_an_epoch_that_is_known(shared_store: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    accelerator, train = accelerate.Accelerator(cpu=True), MemmapDataset(shared_store)

    def made() -> MemmapLoader:
        return MemmapLoader(train, 16, shuffle="full", seed=3, as_tuple=False)

    running = made()
    epochs = [rows(running) for _ in range(3)]
    # a program that resumes in epoch 2 and registered nothing: which epoch it is, only the program knows
    with pytest.raises(
        ValueError, match=r"has begun. Call loader.set_epoch\(epoch\) first; or .*register_for_checkpointing"
    ):
        next(iter(accelerator.skip_first_batches(made(), 4)))
    assert rows(accelerator.skip_first_batches(made(), 0)) == epochs[0]
    for place in ("set_epoch", "sampler", "state"):
        resumed = made()
        if place == "set_epoch":
            resumed.set_epoch(2)
        elif place == "sampler":
            resumed.sampler.set_epoch(2)
        else:
            resumed.load_state_dict({**running.state_dict(), "epoch": 2, "position": 64})
        assert rows(accelerator.skip_first_batches(resumed, 4)) == epochs[2][4:], place


def test_accelerates_split_batches_shares_a_batch_among_the_processes(shared_store: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    train, config = MemmapDataset(shared_store), accelerate.DataLoaderConfiguration(split_batches=True)
    options: dict[str, Any] = {"shuffle": "full", "seed": 3, "as_tuple": False}
    whole = rows(MemmapLoader(train, 20, **options))
    loaders = [MemmapLoader(train, 20, rank=rank, world_size=2, drop_last=True, **options) for rank in range(2)]
    assert [len(loader) for loader in loaders] == [2, 2]
    # made after the loaders, as some programs do; one process stands for both
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
    try:
        loaders = [accelerator.prepare(loader) for loader in loaders]
        assert [len(loader) for loader in loaders] == [4, 4]
        steps = [first + second for first, second in zip(*map(rows, loaders), strict=True)]
        assert steps == whole[:4]
        assert [loader.batch_size for loader in loaders] == [10, 10]
        made = MemmapLoader(
            train, lambda height, width: 30, size=8, transform=RandomResizedCrop(8), rank=1, world_size=3
        )
        assert (len(made), made.batch_size) == (3, 10)
        assert "MemmapLoader(3 steps of" in repr(made)
        assert {len(targets) for _, targets in made} == {10}
        # alone a process reads all of it
        assert rows(MemmapLoader(train, 20, **options)) == whole
        with pytest.raises(ValueError, match="batch_size is 20, and accelerate's split_batches=True shares it among 3"):
            MemmapLoader(train, 20, rank=0, world_size=3)
    finally:
        del accelerator
        gc.collect()
    assert MemmapLoader(train, 20, rank=0, world_size=3).batch_size == 20


def test_an_accelerator_is_looked_for_once_a_call_and_not_where_none_was_made(
    shared_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    looked, original = list[int](), gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda *args: looked.append(1) or original(*args))
    loader = MemmapLoader(MemmapDataset(shared_store), 4, shuffle="full", seed=3, rank=1, world_size=2)
    state = {**loader.state_dict(), "epoch": 300}
    steps = loader.steps_of(5, state)
    assert looked == []
    accelerator = accelerate.Accelerator(cpu=True)
    assert loader.steps_of(5, state) == steps
    assert looked == [1]
    del accelerator


# -- transformers' Trainer

_TRAINER = """
import json, os, sys
from pathlib import Path
import torch
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments, TrainerCallback
from reader import MemmapDataset, MemmapLoader

data, out, way, steps = MemmapDataset(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
seen = []

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3 * 32 * 32, 3)

    def forward(self, pixel_values, labels):
        if self.training:
            seen.append(pixel_values.flatten(1).sum(1).long().tolist())
        logits = self.layer(pixel_values.flatten(1).float() / 255)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

def named(batch):
    return {"pixel_values": batch.images, "labels": batch.targets}

class Ours(Trainer):
    def get_train_dataloader(self):
        return MemmapLoader(data, 8, shuffle="full", seed=1, transform=named)

    def get_eval_dataloader(self, eval_dataset=None):
        return MemmapLoader(data, 20, transform=named)

def collate(rows):
    images, targets = default_collate(rows)
    return {"pixel_values": images, "labels": targets}

arguments = TrainingArguments(
    output_dir=str(out / "checkpoints"), per_device_train_batch_size=8, per_device_eval_batch_size=20, num_train_epochs=3,
    max_steps=-1, save_strategy="steps", save_steps=8, logging_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    learning_rate=0.01, remove_unused_columns=False, label_names=["labels"], seed=0,
)
count = {}
def metrics(prediction):
    count["rows"] = len(prediction.label_ids)
    count["labels"] = sorted(prediction.label_ids.tolist()) == sorted(data.targets)
    return {}

class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == steps

kind, extra = (Ours, {}) if way == "loader" else (Trainer, {"data_collator": collate})
trainer = kind(Model(), arguments, train_dataset=data, eval_dataset=data, compute_metrics=metrics, callbacks=[Stop()], **extra)
trainer.train(resume_from_checkpoint=sys.argv[5] == "resume")
loss = trainer.evaluate()["eval_loss"]
rank = int(os.environ.get("RANK", 0))
weights = trainer.model.layer.weight.detach().flatten().tolist()
found = {"seen": seen, "loss": loss, "count": count, "weights": weights, "epoch": trainer.state.epoch}
(out / f"{sys.argv[5]}-{rank}.json").write_text(json.dumps(found))
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


WAYS = {"loader": 2, "dataset": 1}
Runs = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def trained(shared_store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runs]:
    """What each rank has seen in a whole run, in one that stops, and in one that resumes: by the way to read, then by the run."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    root = tmp_path_factory.mktemp("trainer")
    (root / "trainer.py").write_text(_TRAINER)
    runs: list[tuple[int, list[object]]] = []
    for way, processes in WAYS.items():
        # stopped in the middle of an epoch: 8 steps of 12, or of 6
        for folder, stop, begin in (("full", 0, "train"), ("parts", 8, "train"), ("parts", 0, "resume")):
            (root / way / folder).mkdir(parents=True, exist_ok=True)
            runs.append((processes, [shared_store, root / way / folder, way, stop, begin]))
    launch(root / "trainer.py", *runs, modules=("accelerate", "transformers.trainer"))

    def found(way: str, name: str) -> list[dict[str, Any]]:
        return [json.loads((root / way / f"{name}-{rank}.json").read_text()) for rank in range(WAYS[way])]

    return {way: {"full": found(way, "full/train"), "resumed": found(way, "parts/resume")} for way in WAYS}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_trainer_of_transformers_trains_evaluates_and_resumes(
    shared_store: Path, trained: dict[str, Runs], way: str
) -> None:
    processes, full, resumed = WAYS[way], trained[way]["full"], trained[way]["resumed"]
    steps = -(-90 // (8 * processes))
    for one, other in zip(full, resumed, strict=True):
        assert len(one["seen"]) == 3 * steps
        assert other["seen"] == one["seen"][8:]
        assert other["weights"] == pytest.approx(one["weights"], abs=1e-6)
        assert one["count"] == {"rows": 90, "labels": True}
        assert one["epoch"] == 3
    # the ranks' rows of an epoch together are all of them
    train = MemmapDataset(shared_store)
    sums = sorted(int(train[n][0].sum()) for n in range(90))
    for epoch in range(3):
        seen = [row for found in full for step in found["seen"][epoch * steps : (epoch + 1) * steps] for row in step]
        assert set(seen) == set(sums)
        assert len(seen) - 90 in range(8 * processes)


# -- timm


def test_timm_normalizes_the_batches_of_a_loader_and_sets_its_epoch(shared_store: Path) -> None:
    torchvision_or_skip()
    data = pytest.importorskip("timm.data.loader", reason="timm is not installed: pip install timm")
    train = MemmapDataset(shared_store)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    loader = MemmapLoader(train, 16, shuffle="full", seed=2)
    wrapped = data.PrefetchLoader(loader, mean=mean, std=std, device=torch.device("cpu"))
    assert len(wrapped) == len(loader)
    assert wrapped.dataset is loader.dataset
    epochs = [list(loader) for _ in range(3)]
    assert not torch.equal(epochs[2][0][1], epochs[1][0][1])
    # as timm's train.py does where it resumes
    wrapped.sampler.set_epoch(2)
    found = list(wrapped)
    for (images, targets), (images_too, targets_too) in zip(found, epochs[2], strict=True):
        expected = (images_too / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        assert torch.allclose(images, expected, atol=1e-5)
        assert torch.equal(targets, targets_too)


def test_timms_own_loader_reads_a_dataset(shared_store: Path) -> None:
    torchvision_or_skip()
    data = pytest.importorskip("timm.data", reason="timm is not installed: pip install timm")
    train = MemmapDataset(shared_store, as_pil=True)
    loader = data.create_loader(
        train, (3, 24, 24), 16, is_training=True, num_workers=0, device=torch.device("cpu"), persistent_workers=False
    )
    # which has set dataset.transform
    assert train.transform is not None
    batches = list(loader)
    assert {tuple(images.shape) for images, _ in batches} == {(16, 3, 24, 24)}
    assert all(images.dtype == torch.float32 for images, _ in batches)
