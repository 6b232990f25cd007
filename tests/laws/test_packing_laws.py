"""A kind has the bytes of one worker's pack in all ways: by many workers, interrupted, in parts, to a URL."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import interrupted, store_bytes, unparted_bytes
from kinds import BROKEN, KINDS, SAMPLES, Inputs, MakeInputs, MakeStore, Sample, spread, stores_of
from stored_rows import rows_of

from packer import PackError, Progress, pack, pull, push, seal_parts, verify

every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _small_blocks(small_blocks: None) -> None:
    """Blocks of two inputs, so that order, workers and commits matter."""


def interrupt_at_new(seen: set[tuple[str, str, int]]) -> Callable[[Progress], None]:
    """Make a progress callback that interrupts once like Ctrl-C, at a stage that was not seen before."""
    interrupted = False

    def stop(progress: Progress) -> None:
        nonlocal interrupted
        where = progress.split, progress.stage, progress.done
        # for allocated bytes, the first report suffices
        if interrupted or where in seen or (progress.stage == "allocate" and progress.done):
            return
        seen.add(where)
        interrupted = True
        raise KeyboardInterrupt

    return stop


def blocks_of(out: Path) -> int:
    return sum(len(json.loads((store / "manifest.json").read_text())["blocks"]) for store in stores_of(out).values())


@pytest.mark.parametrize(("kind", "workers"), spread([*KINDS], [2, 3]))
def test_any_number_of_workers_gives_the_same_bytes(
    kind: str, workers: int, inputs_of: MakeInputs, store_of: MakeStore, tmp_path: Path
) -> None:
    inputs = inputs_of(kind)
    pack(inputs.images, tmp_path / "out", workers=workers, **inputs.options)
    assert store_bytes(tmp_path / "out") == store_bytes(store_of(kind))


@every_kind
def test_rows_are_the_same_in_any_order(kind: str, inputs_of: MakeInputs, store_of: MakeStore, tmp_path: Path) -> None:
    inputs = inputs_of(kind)
    order = {"shuffle": None if "shuffle" in inputs.options else 3}
    pack(inputs.images, tmp_path / "out", workers=1, **inputs.options | order)
    for split, store in stores_of(store_of(kind)).items():
        rows, others = rows_of(store), rows_of(tmp_path / "out" / split)
        assert rows != others
        assert sorted(rows, key=itemgetter("path")) == sorted(others, key=itemgetter("path"))


def pack_with_interruptions(inputs: Inputs, out: Path, **options: Any) -> int:
    """Pack, interrupted before the first block and after each; returns the number of interruptions."""
    seen: set[tuple[str, str, int]] = set()
    for _ in range(200):
        try:
            progress = interrupt_at_new(seen)
            pack(inputs.images, out, workers=1, progress=progress, **options, **inputs.options)
            return len([stage for _, stage, _ in seen if stage == "pack"])
        except KeyboardInterrupt:
            assert not (out / "manifest.json").exists()
    pytest.fail("the pack gets no further")


@pytest.mark.parametrize("kind", spread([*KINDS]))
def test_interrupted_after_each_block_it_resumes_to_the_same_bytes_and_is_then_confirmed(
    kind: str, inputs_of: MakeInputs, store_of: MakeStore, tmp_path: Path
) -> None:
    inputs, out = inputs_of(kind), tmp_path / "out"
    assert pack_with_interruptions(inputs, out) > blocks_of(out)
    assert store_bytes(out) == store_bytes(store_of(kind))
    states = {path: path.stat() for path in out.rglob("*") if path.is_file()}
    report = pack(inputs.images, out, workers=1, **inputs.options)
    assert report.resumed_from == report.inputs > 0
    assert {path: path.stat() for path in out.rglob("*") if path.is_file()} == states


@pytest.mark.parametrize("kind", ["own-sizes", "jpeg", "masks"])
def test_what_a_killed_worker_wrote_is_nowhere_in_the_store(
    kind: str, inputs_of: MakeInputs, store_of: MakeStore, tmp_path: Path
) -> None:
    inputs = inputs_of(kind)
    interrupted(pack, inputs.images, tmp_path / "out", workers=1, inputs=0, **inputs.options)
    for rows in (tmp_path / "out.packing").rglob("*.memmap"):
        rows.write_bytes(b"\xff" * 2 * rows.stat().st_size)
    pack(inputs.images, tmp_path / "out", workers=1, **inputs.options)
    assert store_bytes(tmp_path / "out") == store_bytes(store_of(kind))


@pytest.mark.parametrize("kind", spread([*KINDS], first=1))
def test_parts_in_any_order_and_interrupted_are_sealed_to_the_same_bytes(
    kind: str, inputs_of: MakeInputs, store_of: MakeStore, tmp_path: Path
) -> None:
    inputs, out = inputs_of(kind), tmp_path / "out"
    pack(inputs.images, out, workers=1, part="3/3", **inputs.options)
    assert pack_with_interruptions(inputs, out, part="2/3") > 2
    pack(inputs.images, out, workers=1, part="1/3", **inputs.options)
    for store in sorted(tmp_path.glob("out.packing/**/*-of-3")):
        assert verify(store).problems == []
    seal_parts(out)
    assert unparted_bytes(out) == unparted_bytes(store_of(kind))


@every_kind
def test_pushed_and_pulled_it_is_the_same_bytes_and_again_copies_nothing(
    kind: str, store_of: MakeStore, tmp_path: Path
) -> None:
    out, url = store_of(kind), f"file://{tmp_path}/url"
    reference = store_bytes(out)
    reports = [push(out, url), push(out, url), pull(url, tmp_path / "pulled"), pull(url, tmp_path / "pulled")]
    assert store_bytes(tmp_path / "pulled") == store_bytes(out) == reference
    size = reports[0].store_bytes
    assert [(one.copied_bytes, one.kept_bytes) for one in (reports[0], reports[1], reports[3])] == [
        (size, 0),
        (0, size),
        (0, size),
    ]
    # zeros after the last row are not sent
    assert (reports[2].kept_bytes, reports[2].copied_bytes > size // 2) == (0, True)


@every_kind
def test_a_reject_is_recorded_once_with_its_reason(kind: str, store_of: MakeStore) -> None:
    train = [store for split, store in stores_of(store_of(kind)).items() if split != "val"]
    (line,) = (train[0] / "rejected.jsonl").read_text().splitlines()
    reject, manifest = json.loads(line), json.loads((train[0] / "manifest.json").read_text())
    expected = {"tar": "samples.tar/bee3.jpg", "zip": f"images.zip/{BROKEN}"}.get(kind, BROKEN)
    assert (reject["path"], manifest["rejected"]) == (expected, 1)
    assert len(reject["reason"]) > 10


# -- room


IMAGES = [sample for sample in SAMPLES if sample.name != BROKEN]


def room_for_text(kind: str, samples: list[Sample], folder: Path) -> int:
    """Return the bytes that a pack asks for, beside those of its tensors and class names; the store is folder/out."""
    inputs, out = KINDS[kind](folder / "inputs", samples), folder / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        with pytest.raises(PackError, match=r"needs \d+ more bytes") as caught:
            pack(inputs.images, out, workers=1, **inputs.options)
    (needed,) = map(int, re.findall(r"needs (\d+) more", str(caught.value)))
    # the journal exists by then
    needed += (folder / "out.packing/.packing/journal").stat().st_size
    pack(inputs.images, out, workers=1, **inputs.options)
    # these are in the journal and in the manifest
    classes = 2 * len(json.dumps(json.loads((out / "manifest.json").read_text())["classes"]))
    return needed - classes - sum(file.stat().st_size for file in out.rglob("*.memmap"))


@pytest.mark.parametrize("kind", ["pad", "own-sizes", "large", "masks", "boxes", "labels-own-sizes", "multi-hot"])
def test_a_pack_asks_for_the_room_of_its_tensors_and_classes(kind: str, tmp_path: Path) -> None:
    assert room_for_text(kind, IMAGES, tmp_path / "one") == room_for_text("crop", IMAGES, tmp_path / "two")


def test_a_pack_asks_for_the_room_of_its_lines_twice(tmp_path: Path) -> None:
    """The journal holds those of samples.jsonl too."""
    long = [replace(one, name=f"{one.label}{number:0200}/{'x' * 200}.jpg") for number, one in enumerate(IMAGES)]
    room = room_for_text("crop", IMAGES + long, tmp_path / "two") - room_for_text("crop", IMAGES, tmp_path / "one")
    one, two = ((tmp_path / name / "out/samples.jsonl").stat().st_size for name in ("one", "two"))
    assert room >= 2 * (two - one)
