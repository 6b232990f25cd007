"""The examples as a user runs them: subprocesses, on 24 small photographs in 3 classes, and on drawings with boxes."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import make_tree
from PIL import Image, ImageDraw

ROOT = Path(__file__).resolve().parents[1]
EPOCH = re.compile(r"epoch (\d+): loss (\d+\.\d+), accuracy (\d\.\d+), held out (\d\.\d+), ([\d,]+) images/s")


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run with this Python's `python` and `pack` first in PATH, as in an activated environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # one thread: on a busy machine the threads of so small a network mostly wait for each other
    variables = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, env=variables)


def train(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, ROOT / "examples" / "train.py", *arguments)


def epochs(output: str) -> list[tuple[int, float, float, float]]:
    """Parse what train.py prints: epoch, loss, accuracy, held-out accuracy."""
    return [(int(n), float(a), float(b), float(c)) for n, a, b, c, _ in EPOCH.findall(output)]


def test_train_learns_the_classes_of_a_store(store: Path) -> None:
    done = train(store, "--epochs", "4", "--batch-size", "16", "--device", "cpu", "--val", store)
    assert done.returncode == 0, done.stderr
    found = epochs(done.stdout)
    assert [epoch for epoch, *_ in found] == [1, 2, 3, 4]
    losses = [loss for _, loss, *_ in found]
    assert losses[-1] < losses[0]
    assert all(0 <= accuracy <= 1 for _, _, *both in found for accuracy in both)


@pytest.mark.cuda
def test_train_runs_on_cuda(store: Path) -> None:
    done = train(store, "--epochs", "1", "--batch-size", "16", "--device", "cuda")
    assert done.returncode == 0, done.stderr
    assert len(epochs(done.stdout)) == 1


@pytest.mark.parametrize(
    "option, value, message",
    [
        (None, None, "is not a pixpack store"),
        ("--device", "abacus", "device is 'abacus'"),
        ("--val", "flat", "has other classes"),
    ],
)
def test_train_says_in_one_sentence_what_it_cannot_use(
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str | None,
    value: str | None,
    message: str,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import train as example

    if value == "flat":
        from packer import pack

        make_tree(tmp_path / "images", classes=1, each=2)
        pack(tmp_path / "images" / "class0", tmp_path / "flat", size=32, workers=1)
        value = str(tmp_path / "flat")
    words = ["train.py", str(tmp_path)] if option is None else ["train.py", str(store), option, str(value)]
    monkeypatch.setattr(sys, "argv", words)
    assert example.main() == 1
    error = capsys.readouterr().err
    assert error.startswith("train.py: ")
    assert message in error
    assert error.count("\n") == 1


def test_pipeline_packs_verifies_shows_and_trains_and_a_second_run_keeps_the_store(
    images: Path, tmp_path: Path
) -> None:
    (images / "class1" / "empty.jpg").touch()
    work = tmp_path / "my work"
    first = run(ROOT / "examples" / "pipeline.sh", images, work, SIZE="32", EPOCHS="1")
    assert first.returncode == 0, first.stderr
    assert "24 rows, 0 rejected" in first.stdout
    assert "is whole: 24 rows" in first.stdout
    assert len(epochs(first.stdout)) == 1
    assert (work / "sheet.png").read_bytes().startswith(b"\x89PNG")
    manifest = work / "store" / "manifest.json"
    before = manifest.stat()
    second = run(ROOT / "examples" / "pipeline.sh", images, work, SIZE="32", EPOCHS="0")
    assert second.returncode == 0, second.stderr
    assert (manifest.stat().st_ino, manifest.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_pipeline_stops_where_there_is_nothing_to_pack(tmp_path: Path) -> None:
    (tmp_path / "images" / "empty").mkdir(parents=True)
    done = run(ROOT / "examples" / "pipeline.sh", tmp_path / "images", tmp_path / "work")
    assert done.returncode != 0
    assert "holds no image" in done.stderr
    assert "epoch" not in done.stdout


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    """A store of 200 pictures of up to three bright rectangles (class 0) and dark ellipses (class 1), with their boxes."""
    from packer import pack

    draw = random.Random(0)
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    (tmp_path / "labels" / "classes.txt").write_text("rectangle\nellipse\n")
    for n in range(200):
        image = Image.effect_noise((64, 64), 20).convert("RGB")
        lines = []
        for corner in draw.sample([(2, 2), (34, 2), (2, 34), (34, 34)], draw.randint(1, 3)):
            width, height, kind = draw.randint(12, 28), draw.randint(12, 28), draw.randint(0, 1)
            box = (*corner, corner[0] + width, corner[1] + height)
            pen = ImageDraw.Draw(image)
            (pen.ellipse if kind else pen.rectangle)(box, fill="navy" if kind else "gold")
            lines.append(f"{kind} {(box[0] + width / 2) / 64} {(box[1] + height / 2) / 64} {width / 64} {height / 64}")
        image.save(tmp_path / "images" / f"{n:03}.png")
        (tmp_path / "labels" / f"{n:03}.txt").write_text("\n".join(lines))
    pack(tmp_path / "images", tmp_path / "out", boxes=tmp_path / "labels")
    return tmp_path / "out"


@pytest.mark.slow
def test_detect_learns_to_find_boxes(shapes: Path) -> None:
    done = run(sys.executable, ROOT / "examples" / "detect.py", shapes, "--epochs", "10", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"epoch \d+: loss \d+\.\d+, found (\d\.\d+), right (\d\.\d+)", done.stdout)
    assert len(lines) == 10
    found, right = map(float, lines[-1])
    assert min(found, right) > 0.8
    assert float(lines[0][0]) < 0.5


def test_detect_wants_boxes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import detect

    monkeypatch.setattr(sys, "argv", ["detect.py", str(store)])
    with pytest.raises(SystemExit, match="has no boxes. Pack it with --boxes."):
        detect.main()
