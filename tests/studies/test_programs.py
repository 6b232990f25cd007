"""scripts/studies/programs, small: each program and its versions on a store run, learn alike, and few lines are changed."""

from __future__ import annotations

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
from scripts.studies.programs._edits import EditError, Edits, edit, script_counts
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


@pytest.mark.parametrize(("program", "way"), WAYS, ids=[f"{program.name}-{way}" for program, way in WAYS])
def test_nine_lines_or_fewer_change_unless_the_table_says_why(program: Program, way: str) -> None:
    compile(program.ways()[way], f"{program.name}/{way}", "exec")
    removed, added = program.changed_lines(way)
    assert removed + added > 0
    assert removed + added <= 9 or program.note


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


def test_edits_hold_our_lines_and_count_them() -> None:
    text, script = "a\nb\nc\nd\n", "4d\n2,3c\nB\nC\n.\n0a\nnew\n.\n"
    assert edit(text, script) == "new\na\nB\nC\n"
    assert script_counts(script) == (3, 3)
    with pytest.raises(ValueError, match="is not a command of an ed script"):
        edit(text, "s/a/b/\n")
    for edits in Edits.all().values():
        assert sum(edits.counts()) > 0
        assert sum(edits.counts()) <= 9 or edits.without


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
        edits.apply(tmp_path / "empty", tmp_path / "first")
    (tmp_path / "empty" / "main_dino.py").write_text("import utils\n")
    with pytest.raises(EditError, match=r"main_dino\.py is another one than that of facebookresearch/dino"):
        edits.apply(tmp_path / "empty", tmp_path / "second")
