"""scripts/studies/programs, small: each stand-in and its versions on a store run and learn alike; edits of programs apply."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from conftest import make_tree, torchvision_or_skip
from PIL import Image

from packer import pack
from scripts.studies.programs._boxes import make_boxes
from scripts.studies.programs._checkouts import measure_checkout
from scripts.studies.programs._edits import EditError, Edits, changed_lines, patched
from scripts.studies.programs._programs import PROGRAMS, Program
from scripts.studies.programs._turns import ProgramFailed, Runner, apart, compare, epochs_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the studies are for Linux")

WORDS = ["--epochs", 2, "--batch-size", 8, "--workers", 0]
WAYS = [(program, way) for program in PROGRAMS.values() for way in program.ways()]
# of each program the quicker way, where that takes no more than a second
QUICK = {("torchvision_classification", "loader"), ("timm_train", "dataset"), ("lightning_ddp", "loader"), ("simclr", "dataset")}
QUICK |= {(name, "dataset") for name in ("hf_trainer", "accelerate_cv", "airbench", "torchvision_detection")}
TRIALS = [
    pytest.param(
        *(program, way),
        id=f"{program.name}-{way}",
        marks=[] if (program.name, way) in QUICK else [pytest.mark.nightly],
    )
    for program, way in WAYS
]
Run = Callable[..., list[dict[str, float]]]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 training images in 2 classes and 8 to evaluate on, their stores beside them in packed/."""
    root = tmp_path_factory.mktemp("programs")
    make_tree(root / "images" / "train", classes=2, each=16)
    make_tree(root / "images" / "val", classes=2, each=4)
    pack(root / "images", root / "packed", fit="none", max_size=512, workers=1)
    for path in (root / "images").rglob("*.jpg"):
        made = root / "small" / "images" / path.relative_to(root / "images").with_suffix(".png")
        made.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).convert("RGB").resize((32, 32)).save(made)
    pack(root / "small" / "images", root / "small" / "packed", workers=1)
    make_boxes(root / "boxes", {"train": 32, "val": 8})
    return root


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run a program in this process, which imports torchvision and the frameworks once; returns what it prints of its epochs."""
    environment, threads = dict(os.environ), torch.get_num_threads()
    torch.set_num_threads(1)

    def call(program: Path, *words: object) -> list[dict[str, float]]:
        monkeypatch.setattr(sys, "argv", [str(program), *map(str, words)])
        runpy.run_path(str(program), run_name="__main__")
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        return epochs_of(capsys.readouterr().out)

    yield call
    torch.set_num_threads(threads)
    os.environ.clear()
    os.environ.update(environment)


def lacking(program: Program) -> list[str]:
    """Name what is not installed, torchvision aside."""
    return [name for name in program.needs if name != "torchvision" and importlib.util.find_spec(name) is None]


@pytest.mark.filterwarnings(
    "ignore:'pin_memory' argument:UserWarning",
    "ignore:.isinstance:",
    # timm's readers leave the files open
    "ignore:unclosed file:ResourceWarning",
    "ignore:.*unclosed file:pytest.PytestUnraisableExceptionWarning",
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning",
)
@pytest.mark.parametrize(("program", "way"), TRIALS)
def test_a_program_on_a_store_learns_what_it_learned_on_files(
    program: Program, way: str, images: Path, run_here: Run, tmp_path: Path
) -> None:
    torchvision_or_skip()
    if missing := lacking(program):
        pytest.skip(f"not installed: {', '.join(missing)}")
    root, words = images / program.data, [*WORDS, "--size", min(program.size, 32)]
    ours = program.write_ways(tmp_path)[way]
    if way == "loader":
        # another order of rows: the same but for the scatter of seeds
        losses = [
            [run_here(path, root / folder, *words, "--seed", seed)[-1]["val_loss"] for seed in range(3)]
            for path, folder in ((program.original, "images"), (ours, "packed"))
        ]
        assert (apart(*losses) or 0) <= 4
        return
    before = run_here(program.original, root / "images", *words)
    after = run_here(ours, root / "packed", *words)
    assert [line["epoch"] for line in after] == [line["epoch"] for line in before] == [0, 1]
    # the same weights to begin with; the pixels differ by the decoder's levels, the crops by what is drawn
    assert after[0]["loss"] == pytest.approx(before[0]["loss"], rel=0.25)
    assert after[1]["val_loss"] == pytest.approx(before[1]["val_loss"], rel=0.25)


def test_programs_run_in_turns_and_one_that_fails_is_named_with_its_last_line(tmp_path: Path) -> None:
    line = "import json, sys\nopen(sys.argv[1], 'a').write('{0}')\nprint(json.dumps(dict.fromkeys({1}, {0})))\n"
    for name, seconds in (("original", 1), ("dataset", 3)):
        (tmp_path / f"{name}.py").write_text(line.format(seconds, ("epoch", "loss", "val_loss", "seconds")))
    (tmp_path / "loader.py").write_text("print('{\"epoch\": 0}')\nraise OSError('no disk')\n")
    programs = {name: tmp_path / f"{name}.py" for name in ("original", "dataset", "loader")}
    with Runner([*programs.values()]) as runner:
        found = compare(runner, programs, dict.fromkeys(programs, tmp_path / "order"), range(3))
        with pytest.raises(ProgramFailed, match=r"loader\.py: OSError: no disk"):
            runner.run(programs["loader"], [])
    assert found["loader"] == {"failed": f"{tmp_path.name}/loader.py: OSError: no disk"}
    assert found["dataset"]["seconds"]["original"]["median"] == 1
    assert found["dataset"]["faster"]["median"] == pytest.approx(1 / 3, abs=1e-3)
    assert (tmp_path / "order").read_text() == "133113"


def test_figures_of_an_older_version_are_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from scripts.studies.programs.__main__ import main

    # written before programs had notes
    where = {"cores": 2, "cpu": "a CPU", "load_average": [0.5], "date": "2026-11-22T00:00"}
    older = {"title": "an older title", "machine": where, "ways": {}, "versions": {}}
    older |= {"images": 8, "words": "--epochs 2", "seeds": 5}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "dino.json").write_text(json.dumps(older))
    monkeypatch.setattr(
        sys, "argv", ["programs", "--redraw", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    )
    assert main() == 0
    assert (
        "DINO main_dino.py, multi-crop: 8 images, --epochs 2, 5 seeds" in (tmp_path / "out" / "README.md").read_text()
    )


def test_every_folder_of_a_program_is_listed() -> None:
    folder = Path(next(iter(PROGRAMS.values())).original).parents[1]
    assert {path.parent.name for path in folder.glob("*/original.py")} == {*PROGRAMS}


def test_edits_replace_the_lines_that_they_name_and_count_them() -> None:
    text = "a\nb\nc\nd\n"
    hunks = "@@ -0,0 +1 @@\n+new\n@@ -2,2 +3,2 @@\n-b\n-c\n+B\n+C\n@@ -4 +4,0 @@\n-d\n"
    assert patched(text, hunks) == "new\na\nB\nC\n"
    assert changed_lines(f"--- a/x.py\n+++ b/x.py\n{hunks}") == (3, 3)
    with pytest.raises(EditError, match=r"line 2 is not \['b'\]"):
        patched("a\nother\nc\nd\n", hunks)
    with pytest.raises(EditError, match="is not the head of a hunk"):
        patched(text, "@@ nowhere\n+a\n")


def test_every_program_has_edits_and_more_than_nine_lines_are_explained() -> None:
    assert {*PROGRAMS} <= {*Edits.all()}
    for edits in Edits.all().values():
        assert edits.diffs(), edits.name
        for way, diff in edits.diffs().items():
            assert sum(changed_lines(diff)) > 0, (edits.name, way)
            assert sum(changed_lines(diff)) <= 9 or edits.note, (edits.name, way)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edits:
    """A notebook in tmp_path/checkout that reads by a DataLoader and wants CUDA, and an edit of it."""
    program = "import sys\nfrom torch.utils.data import DataLoader\nscale = float('cuda')\n"
    program += "for value in DataLoader([1.0, 2.0]):\n    loss = value.item() * scale\nprint('loss:', loss, sys.argv[1])\n"
    cells = [("code", "!pip install torch\n"), ("markdown", "# text"), ("code", program)]
    shown = {"cells": [{"cell_type": kind, "source": text.splitlines(keepends=True)} for kind, text in cells]}
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "a.ipynb").write_text(json.dumps(shown))
    hunk = "@@ -5 +5 @@\n-    loss = value.item() * scale\n+    loss = value.item() * 3\n"
    (tmp_path / "tried.loader.diff").write_text(f"--- a/a.ipynb\n+++ b/a.ipynb\n{hunk}")
    monkeypatch.setattr("scripts.studies.programs._edits.EDITS", tmp_path)
    here = {"a.ipynb": {"float('cuda')": "1.0"}}
    return Edits("tried", "owner/name", "0" * 40, "a.ipynb", "the program", "", ["{data}"], here, r"loss: (\S+)")


def test_an_edited_notebook_is_a_program(notebook: Edits, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for way, loss in (("original", 2.0), ("loader", 6.0)):
        notebook.apply(way, tmp_path / "checkout", tmp_path / way)
        exec((tmp_path / way / "a.py").read_text().replace("sys.argv[1]", "0"), {})
        assert capsys.readouterr().out == f"loss: {loss} 0\n"


@pytest.mark.nightly
def test_an_edited_checkout_runs_in_turns_with_the_original(notebook: Edits, tmp_path: Path) -> None:
    data = {"original": tmp_path / "images", "store": tmp_path / "packed"}
    found = measure_checkout(notebook, tmp_path / "checkout", tmp_path / "work", data, 1)
    assert {way: report["loss"]["median"] for way, report in found.items()} == {"original": 2, "loader": 6}
    assert all(report["seconds"]["median"] > 0 for report in found.values())
    mute = dataclasses.replace(notebook, loss="nowhere (.)")
    assert "failed" in measure_checkout(mute, tmp_path / "checkout", tmp_path / "work", data, 1)


def test_means_are_apart_by_the_scatter_of_seeds() -> None:
    assert apart([1.0], [2.0]) is None
    assert apart([1.0, 1.2, 0.8], [1.1, 0.9, 1.0]) == 0.0
    assert (apart([1.0, 1.01, 0.99], [2.0, 2.01, 1.99]) or 0) > 100


def test_edits_are_refused_on_another_checkout(tmp_path: Path) -> None:
    edits = Edits.all()["dino"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        EditError, match=r"has no main_dino\.py\. Expected a checkout of facebookresearch/dino at 7c446df"
    ):
        edits.apply("dataset", tmp_path / "empty", tmp_path / "first")
    (tmp_path / "empty" / "main_dino.py").write_text("import utils\n")
    with pytest.raises(EditError, match=r"main_dino\.py is another one than that of facebookresearch/dino"):
        edits.apply("loader", tmp_path / "empty", tmp_path / "second")
