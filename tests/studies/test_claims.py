"""scripts/studies/claims on tiny data: every module runs and draws; verdicts follow the figures; the measures measure."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import json
import re
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from children import program

from scripts.common import plot

CLAIMS = Path(__file__).resolve().parents[2] / "scripts" / "studies" / "claims"
RESULTS = CLAIMS / "results"
DOCS = CLAIMS.parents[2] / "docs"
FOLDERS = {path.stem: path.parent.name for path in CLAIMS.glob("*/[a-z]*.py")}
NAMES = sorted(FOLDERS)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the claims fork, and read /proc"),
    pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="the pictures need matplotlib"),
]


@pytest.fixture
def claim() -> Any:
    """Import a claim, or a module that claims share, by its name."""
    return lambda name: importlib.import_module(
        ".".join(["scripts.studies.claims", *filter(None, [FOLDERS.get(name)]), name])
    )


@pytest.fixture
def runner(claim: Any) -> ModuleType:
    module: ModuleType = claim("__main__")
    return module


def kept(name: str) -> dict[str, Any]:
    """Return the figures of the full run that is kept beside the script."""
    report: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return report["figures"]


@pytest.mark.slow
def test_every_claim_runs_on_tiny_data_and_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = program("scripts.studies.claims", "--quick", "--out", out, "--work", tmp_path / "work")
    assert done.returncode == 0, done.stderr
    assert sorted(path.stem for path in out.glob("*.json")) == NAMES
    for name in NAMES:
        report = json.loads((out / f"{name}.json").read_text())
        assert report["quick"]
        if "reason" in report:
            assert report["reason"].startswith("no GPU")
            continue
        assert report["figures"]
        assert picture_size(out / f"{name}.png") == (1008, 567)
    # nothing is said to hold that tiny data cannot tell
    assert done.stdout.count("quick run") == len(NAMES)
    assert "holds |" not in (out / "README.md").read_text()


def picture_size(path: Path) -> tuple[int, int]:
    with open(path, "rb") as file:
        head = file.read(24)
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:])
    return width, height


@pytest.mark.parametrize("name", NAMES)
def test_results_of_a_full_run_are_kept(name: str) -> None:
    text = (RESULTS / f"{name}.json").read_text()
    report = json.loads(text)
    assert not report["quick"]
    assert {"date", "cpu", "cores", "versions"} <= set(report["machine"])
    if "reason" in report:
        assert not (RESULTS / f"{name}.png").exists()
        return
    assert (RESULTS / f"{name}.png").exists()
    assert f"({name}.png)" in (RESULTS / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_the_kept_results_is_what_their_figures_say(name: str, claim: Any, runner: ModuleType) -> None:
    module = claim(name)
    lines = (RESULTS / "README.md").read_text().splitlines()
    row = next(line for line in lines if line.startswith(f"| [{runner.as_text(module.CLAIM)}]"))
    report = json.loads((RESULTS / f"{name}.json").read_text())
    if "reason" in report:
        assert row.endswith(f"| {report['reason']} | not measured |")
        return
    finding = module.conclude(report["figures"])
    assert runner.as_text(finding.measured) in row
    assert row.endswith(f"| {runner.VERDICTS[finding.holds]} |")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("loops", lambda f: f["seconds_per_epoch"]["numpy, permutation.reshape"].update(median=100.0)),
        ("one_index", lambda f: f["torch.arange"].update(ratio=1.5)),
        ("decoders", lambda f: f["to_pillow"]["decode"]["jpeg4py"].update(median=1.0)),
        ("kernels", lambda f: f["chains"]["Normalize, images to bfloat16"]["kernels"].update({"torch.compile": 2})),
        ("requantized", lambda f: f["mean_bytes"].update({"-q 3": f["mean_bytes"]["original"] / 17})),
        ("page_faults", lambda f: f["a_batch"]["MemmapLoader"].update(opened_files=256)),
        ("collate_cost", lambda f: f["milliseconds"]["MemmapDataset.__getitems__: collate"].update(median=99.0)),
    ],
)
def test_a_verdict_turns_when_the_figures_do(name: str, change: Any, claim: Any) -> None:
    figures = copy.deepcopy(kept(name))
    held = claim(name).conclude(figures).holds
    assert held is (name != "requantized")
    change(figures)
    assert claim(name).conclude(figures).holds is not held


def test_what_cannot_be_measured_is_reported_and_what_fails_is_an_error(
    runner: ModuleType, claim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lacking = claim("_claim").MissingRequirement("this torch sees no CUDA device")
    for error, code in ((lacking, 0), (RuntimeError("a batch is not its rows"), 1)):
        monkeypatch.setattr(claim("loops"), "measure", raises(error))
        out = tmp_path / str(code)
        monkeypatch.setattr(sys, "argv", ["claims", "--only", "loops", "--out", str(out), "--work", str(tmp_path)])
        assert runner.main() == code
    printed = capfd.readouterr()
    assert "this torch sees no CUDA" in printed.out
    assert "not measured" in (tmp_path / "0" / "README.md").read_text()
    assert "a batch is not its rows" in printed.err
    assert not list((tmp_path / "1").glob("loops.*"))


def test_what_needs_a_gpu_runs_on_a_cpu_and_its_verdict_follows_the_figures(claim: Any, tmp_path: Path) -> None:
    module = claim("bus_bytes")
    found = module.swept(torch.device("cpu"), [(16, 24), (32, 24)], [2, 4], 1)
    assert {size: list(of) for size, of in found.items()} == {"16x24": ["2", "4"], "32x24": ["2", "4"]}
    for fast_ms, holds in ((1.0, True), (3.0, False)):
        for batches in found.values():
            for of in batches.values():
                of[module.FLOATS]["median"], of[module.BYTES]["median"] = 2.0, fast_ms
        finding = module.conclude({"milliseconds": found})
        assert finding.holds is holds
    make = functools.partial(plot.new_figure, finding.title, module.CLAIM, "")
    plot.save(module.draw(make, {"milliseconds": found}), tmp_path / "a.png")
    assert picture_size(tmp_path / "a.png") == (1008, 567)


def test_what_a_gpu_decides_is_not_judged_without_one(claim: Any) -> None:
    assert claim("data_parallel").conclude(kept("data_parallel")).holds is None
    seven = copy.deepcopy(kept("seven_loaders"))
    assert claim("seven_loaders").conclude(seven).holds is False
    for milliseconds, found in zip((90, 70, 50, 40, 30), seven["loaders"].values(), strict=False):
        found["fastest"] = milliseconds
    assert claim("seven_loaders").conclude(seven).holds is None
    module, figures = claim("augmentation"), copy.deepcopy(kept("augmentation"))
    assert module.conclude(figures).holds is None
    rates = figures["images_per_second"]
    rates[module.ON_BOTH] = {"median": 1.0}
    for gpu, holds in ((rates[module.ON_CPU]["median"] * 2, True), (0.5, False)):
        rates[module.ON_GPU] = {"median": gpu}
        assert module.conclude(figures).holds is holds


@pytest.mark.cuda
def test_augmentations_on_the_cpu_on_a_gpu_and_on_both_give_batches_there(claim: Any, tmp_path: Path) -> None:
    from reader import MemmapDataset
    from scripts.samples.stores import random_store

    module = claim("augmentation")
    data = MemmapDataset(random_store(tmp_path, 16, 32), as_tuple=False)
    found = module.ways(data, 24, 8, torch.device("cuda"))
    for name in (module.ON_CPU, module.ON_GPU, module.ON_BOTH):
        batches = list(found[name]())
        assert [(batch.device.type, batch.dtype, len(batch)) for batch in batches] == [("cuda", torch.float32, 8)] * 2


def test_a_round_is_measured_and_drawn_after_the_untimed_batches(claim: Any) -> None:
    module = claim("seven_loaders")

    def spans(milliseconds: float) -> list[Any]:
        """Read 1 ms ahead of each step of 2 ms."""
        starts = [n * milliseconds / 1e3 for n in range(6)]
        reads = [("caller", module.READ, start, start + 0.001) for start in starts]
        return reads + [(module.MODEL, module.STEP, start + 0.002, start + 0.004) for start in starts]

    found = module.fastest_round([spans(10), spans(8), spans(9)])
    assert found["milliseconds_a_batch"] == [10, 8, 9]
    assert found["fastest"] == 8
    assert [span[2:] for span in found["spans"] if span[0] == module.MODEL] == [[6, 8], [14, 16], [22, 24], [30, 32]]
    assert min(span[2] for span in found["spans"]) == 4


def test_a_library_that_decodes_other_pixels_is_not_timed(claim: Any, tmp_path: Path) -> None:
    module = claim("decoders")

    class Library:
        kinds = (module.DECODE,)

        def __init__(self, level: int) -> None:
            self.level = level

        def seconds(self, kind: str, save: Path) -> None:
            np.save(save, np.full((2, 2, 3), self.level, np.uint8))

    libraries = {module.PILLOW: Library(7), "one level off": Library(8)}
    assert module.differences(libraries, tmp_path) == {module.PILLOW: 0, "one level off": 1}
    with pytest.raises(RuntimeError, match="another decodes to other pixels than Pillow: 93.0 levels apart"):
        module.differences(libraries | {"another": Library(100)}, tmp_path)


def test_the_reference_lists_every_claim() -> None:
    table = (DOCS / "benchmarks" / "claims.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == NAMES


def test_the_reference_has_the_randomness_that_was_measured() -> None:
    text = (DOCS / "explanation" / "shuffling.md").read_text(encoding="utf-8")
    table = text[text.index("\n| order | window in memory |") :].split("\n\n")[0].splitlines()[3:]
    documented = [[float(cell) for cell in line.split("|")[3:7]] for line in table]
    assert documented == [
        [
            round(found["neighbors"], 2),
            round(found["displacement"], 2),
            round(found["sorted"]["classes_a_batch"]),
            round(found["sorted"]["total_variation"], 2),
        ]
        for found in kept("randomness")["orders"].values()
    ]


def raises(error: Exception) -> Any:
    def measure(quick: bool, work: Path) -> Any:
        raise error

    return measure


def test_distances_and_mixing_distinguish_store_order_blocks_and_a_permutation(claim: Any) -> None:
    module = claim("randomness")
    rows, classes = 50_000, 100
    labels = np.arange(rows) * classes // rows
    order = np.arange(rows)
    assert module.distances(order) == {"neighbors": 0.0, "displacement": 0.0}
    assert module.mixing(labels[order], classes)["classes_a_batch"] == pytest.approx(1.5, abs=0.1)
    permutation = np.random.default_rng(0).permutation(rows)
    assert module.distances(permutation) == pytest.approx({"neighbors": 1, "displacement": 1}, abs=0.02)
    expected = classes * (1 - (1 - 1 / classes) ** module.BATCH)
    assert module.mixing(labels[permutation], classes)["classes_a_batch"] == pytest.approx(expected, abs=0.5)
    quasi = module.quasi_random(rows)
    assert np.array_equal(np.sort(quasi), np.arange(rows))


def test_a_loop_that_loses_or_mixes_up_rows_is_not_timed(claim: Any) -> None:
    loops, numbers = claim("loops"), np.arange(3_000)
    loops.check(loops.NUMPY, lambda: numbers.reshape(-1, 300), 3_000)
    with pytest.raises(RuntimeError, match="not the 3000 numbers, each once"):
        loops.check(loops.NUMPY, lambda: (numbers // 2 * 2).reshape(-1, 300), 3_000)


def test_the_folder_of_photographs_and_the_store_are_made_once(claim: Any, tmp_path: Path) -> None:
    from reader import MemmapDataset
    from scripts.samples.stores import random_store

    module = claim("_claim")
    folder = module.photo_folder(tmp_path, 20)
    assert len(list(folder.rglob("*.jpg"))) == 20
    out = random_store(tmp_path, 50, 4)
    data = MemmapDataset(out, as_tuple=False)
    assert data.store.pixels.shape == (50, 4, 4, 3)
    assert data.numpy().std() > 50
    assert sorted(set(data.targets)) == list(range(0, 100, 2))
    made = (out / "manifest.json").stat().st_ino
    assert random_store(tmp_path, 50, 4) == out
    assert (out / "manifest.json").stat().st_ino == made


def test_a_folder_and_a_store_of_other_pixels_are_not_compared(
    claim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, size = claim("folder_or_memmap"), (16, 24)
    images = module.photo_folder(tmp_path, 8, size[::-1])
    store = module.packed(images, size)
    assert module.photo_folder(tmp_path, 8, size[::-1]) == images
    assert set(module.ways(images, store, 2, torch.device("cpu"))) == {module.FOLDER, module.MAPPED}
    monkeypatch.setattr("packer.pixels.formats.turbojpeg.JpegDecoder.is_available", False)
    assert torch.equal(module.DecodedFolder(images)[5], module.MemmapDataset(store).store.pixels[5])
    first, other = (next(iter(sorted(folder.iterdir()))) for folder in sorted(images.iterdir())[:2])
    first.write_bytes(other.read_bytes())
    with pytest.raises(RuntimeError, match="are not the same pixels"):
        module.ways(images, store, 2, torch.device("cpu"))
