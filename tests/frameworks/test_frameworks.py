"""A MemmapLoader under Lightning's Trainer and under Ray Train, by the examples; skipped where those are not installed."""

from __future__ import annotations

import json
import runpy
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher import launch
from test_examples import ROOT, Example, example  # noqa: F401 (example is a fixture)

from reader import MemmapDataset

# Runs the example with a network that notes which pictures it is given: crc32 of each, by rank.
_NOTING = """
import json, sys, zlib
from pathlib import Path
from unittest import mock
sys.path.insert(0, sys.argv.pop(1))
import lightning_datamodule as example

class Noting(example.Classifier):
    def training_step(self, batch, index):
        images = batch[0].movedim(1, -1).contiguous()
        seen.append([zlib.crc32(image.numpy()) for image in images])
        return super().training_step(batch, index)

    def on_train_end(self):
        kind = type(self.trainer.train_dataloader).__name__
        Path(folder, f"{self.global_rank}.json").write_text(json.dumps([kind, seen]))

seen, folder = [], sys.argv.pop(1)
with mock.patch.object(example, "Classifier", Noting):
    assert example.main() == 0
"""


@pytest.fixture
def lightning() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed: pip install lightning")


def _steps(folder: Path, ranks: int) -> Iterator[list[int]]:
    """Yield the pictures of each step, of all ranks together; each read them from a MemmapLoader that nothing was put around."""
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    assert {kind for kind, _ in found} == {"MemmapLoader"}
    for parts in zip(*(steps for _, steps in found), strict=True):
        yield [picture for part in parts for picture in part]


@pytest.mark.slow
@pytest.mark.usefixtures("lightning")
def test_ranks_under_lightning_share_an_epoch_and_one_process_resumes_in_the_middle_of_it(
    shared_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noting.py").write_text(_NOTING)
    words: list[object] = [ROOT / "examples", tmp_path, shared_store, "--batch-size", 16, "--epochs", 1]
    words += ["--checkpoints", tmp_path / "saved", "--save-every", 4]
    assert "6 steps done, held out 0." in launch(tmp_path / "noting.py", (2, words), modules=("lightning",))
    steps = list(_steps(tmp_path, 2))
    train, _ = MemmapDataset(shared_store, as_tuple=False).split(0.9, stratify=True)
    rows = sorted(zlib.crc32(row.pixels.numpy()) for row in (train[n] for n in range(len(train))))
    # 81 rows: two ranks share the last one with one of the epoch's beginning
    assert sorted([picture for step in steps for picture in step]) == sorted([*rows, steps[0][0]])
    assert list(map(len, steps)) == [16, 16, 16, 16, 16, 2]
    # in this process, where torch and perhaps Lightning are imported already
    monkeypatch.setattr(sys, "argv", [str(word) for word in (tmp_path / "noting.py", *words)])
    runpy.run_path(sys.argv[0])
    assert "6 steps done" in capsys.readouterr().out
    rest = list(_steps(tmp_path, 1))
    assert rest == [steps[4], steps[5][:1]]
