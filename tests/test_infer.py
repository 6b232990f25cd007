"""examples/infer.py: scores and embeddings stand in their rows; the ring from the device is right however late its stream is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from children import program
from conftest import devices, make_tree
from late_streams import CUDA, Event, OnDevice, SimulatedCuda, Stream, World

from packer import pack
from reader import MemmapDataset, ResizeCenterCrop

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def infer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("infer")


@pytest.fixture(scope="module")
def checkpoint(shared_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of train.py, which learned for one epoch."""
    file = tmp_path_factory.mktemp("trained") / "run.pt"
    done = program(EXAMPLES / "train.py", shared_store, "--epochs", "1", "--checkpoint", file, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    return file


def trained(infer: ModuleType, store: Path, checkpoint: Path) -> torch.nn.Sequential:
    model = infer.network(MemmapDataset(store).manifest).eval()
    infer.restore(checkpoint, {"model": model}, "cpu")
    return model


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("what", ["scores", "embeddings"])
def test_each_row_has_what_the_trained_network_makes_of_it(
    shared_store: Path, checkpoint: Path, tmp_path: Path, device: str, what: str, infer: ModuleType
) -> None:
    out = tmp_path / "out.npy"
    words = ["--checkpoint", checkpoint, "--batch-size", "8", "--device", device]
    done = program(
        EXAMPLES / "infer.py", shared_store, out, *words, *(["--embeddings"] if what == "embeddings" else [])
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}: {what} of 90 rows, in their order\n"
    data, model = MemmapDataset(shared_store, as_tuple=False), trained(infer, shared_store, checkpoint)
    with torch.inference_mode():
        rows = ResizeCenterCrop(infer.side_of(data.manifest))(data.store).images
        expected = (model[:-1] if what == "embeddings" else model)(rows)
    found = np.load(out)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5 if device == "cpu" else 1e-2)
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]


def test_images_without_labels_are_scored_by_a_network_of_another_store(
    shared_store: Path, checkpoint: Path, tmp_path: Path
) -> None:
    pack(make_tree(tmp_path / "images", classes=1, each=2) / "class0", tmp_path / "new", fit="none", workers=1)
    words = [tmp_path / "new", tmp_path / "out.npy", "--checkpoint", checkpoint]
    done = program(EXAMPLES / "infer.py", *words)
    assert done.returncode == 1
    assert "the store has no classes: name the one that the network learned from, --trained-on STORE" in done.stderr
    done = program(EXAMPLES / "infer.py", *words, "--trained-on", shared_store)
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out.npy").shape == (2, len(MemmapDataset(shared_store).classes))


def test_a_wrong_store_is_one_sentence(tmp_path: Path) -> None:
    done = program(EXAMPLES / "infer.py", tmp_path, tmp_path / "out.npy", "--checkpoint", tmp_path / "run.pt")
    assert done.returncode == 1
    assert done.stderr.startswith("infer.py: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out.npy").exists()


def brought(infer: ModuleType, world: World, patch: pytest.MonkeyPatch, count: int = 20) -> bool:
    """Return whether each result of kernels on simulated streams comes to the host as it was made, and in its turn."""

    def copy(slot: torch.Tensor, result: torch.Tensor, *, non_blocking: bool) -> None:
        assert non_blocking
        there, here = slot.numpy(), world.memory_of(result).view(np.float32).reshape(result.shape)
        world.current.add(lambda: np.copyto(there, here))

    def results() -> Iterator[torch.Tensor]:
        for n in range(count):
            memory = world.empty(4 * 3 * 4)
            here = world.memory_of(memory)
            # a kernel that makes the result, when its time has come
            world.kernels.add(lambda here=here, n=n: here.view(np.float32).fill(n + 1))
            result = memory.view(torch.float32).view(4, 3)
            del memory
            yield result
            del result

    patch.setattr(infer, "cuda", SimulatedCuda(world))
    patch.setattr(torch.Tensor, "copy_", copy)
    patch.setattr(torch, "empty_like", lambda result, *, device, pin_memory: torch.zeros(result.shape))
    # copied at once: the next result may go to the same slot
    found = [values.numpy().copy() for values in infer.on_host(results(), CUDA)]
    return bool((np.stack(found) == np.arange(1, count + 1)[:, None, None]).all())


SCHEDULES: list[dict[str, Any]] = [{}, {"eager": ("kernels",)}, {"eager": ("copies",)}, {"seed": 0}]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_results_come_in_their_turn_however_late_they_are(
    infer: ModuleType, schedule: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert brought(infer, World(**schedule), monkeypatch)


GUARDS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "a slot is written once its copy has ended": lambda patch: patch.setattr(Event, "synchronize", lambda self: None),
    "the copy waits for the kernel": lambda patch: patch.setattr(Stream, "wait_event", lambda self, event: None),
    "the copying stream is recorded": lambda patch: patch.setattr(OnDevice, "record_stream", lambda self, stream: None),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_any_guard_results_are_wrong(infer: ModuleType, guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for schedule in SCHEDULES:
        with monkeypatch.context() as patch:
            GUARDS[guard](patch)
            found.append(brought(infer, World(**schedule), patch))
    assert not all(found)
