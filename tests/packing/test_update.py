"""`pack update`: the bytes of a fresh pack, without decoding what has not changed; and what it must not take over."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import PACK, ffmpeg_or_skip, interrupted, make_splits, photo, store_bytes
from kinds import MakeInputs, MakeStore
from PIL import Image
from row_forms import flip

from packer import PackError, pack, update
from packer.operations.verify import verify
from packer.packing import update as updating
from packer.pixels import decode
from packer.store import reuse as reused_rows
from packer.store import sealed_rows
from reader import MemmapDataset
from reader.format.blocks import read_blocks
from reader.format.manifest import PIXELS, SAMPLES


def jpeg(width: int, height: int, seed: int) -> bytes:
    file = io.BytesIO()
    photo(width, height, seed).save(file, "JPEG", quality=50)
    return file.getvalue()


def change(images: Path) -> None:
    """Remove an image of 24, rename one, add one, and give one other content of the same size and time."""
    (images / "class0" / "003.jpg").unlink()
    (images / "class1" / "002.jpg").rename(images / "class1" / "102.jpg")
    (images / "class1" / "new.jpg").write_bytes(jpeg(50, 60, 901))
    path = images / "class2" / "005.jpg"
    before, other = path.stat(), jpeg(40, 50, 902)
    path.write_bytes(other + bytes(before.st_size - len(other)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whatever would decode an image raise, in forked workers too."""

    def row(decoder: Any, data: bytes, *memory: Any) -> Any:
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(decode.Decoder, "row", row)


# -- the same bytes


def test_requantized_rows_are_kept_too(images: Path, tmp_path: Path) -> None:
    ffmpeg_or_skip()
    pack(images, tmp_path / "out", size=32, requantize=5)
    change(images)
    assert update(images, tmp_path / "out").kept == 21
    pack(images, tmp_path / "fresh", size=32, requantize=5)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "fresh")


def test_what_was_turned_scaled_or_noted_is_recorded_as_before(tmp_path: Path) -> None:
    images = tmp_path / "images" / "a"
    images.mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(400, 300, 1).save(images / "large-turned.jpg", exif=exif)
    photo(60, 40, 2).convert("P").save(images / "palette.png", transparency=3)
    photo(60, 40, 3).convert("CMYK").save(images / "ink.jpg")
    (images / "cut.jpg").write_bytes(jpeg(90, 90, 4)[:-300])
    pack(images.parent, tmp_path / "out", size=32, fit="pad", max_rejects="100%")
    before = store_bytes(tmp_path / "out")
    lines = [json.loads(line) for line in before[SAMPLES].splitlines()]
    assert {"exif_orientation", "dct_scale", "format", "decoder"} <= set().union(*lines)
    report = update(images.parent, tmp_path / "out", max_rejects="100%")
    assert (report.rows, report.kept, report.rejected) == (3, 3, 1)
    assert store_bytes(tmp_path / "out") == before


def test_a_size_that_was_taken_from_the_images_stays(tmp_path: Path) -> None:
    images = tmp_path / "images" / "a"
    images.mkdir(parents=True)
    for number in range(9):
        (images / f"{number}.jpg").write_bytes(jpeg(40, 30, number))
    pack(images.parent, tmp_path / "out")
    (images / "larger.jpg").write_bytes(jpeg(80, 70, 10))
    report = update(images.parent, tmp_path / "out")
    assert (report.rows, report.kept, report.size) == (10, 9, (30, 40))


# -- other inputs


def test_a_store_of_a_split_that_is_gone_is_refused(tmp_path: Path) -> None:
    make_splits(tmp_path / "images", ("train", "val"), each=2)
    pack(tmp_path / "images", tmp_path / "out", size=32)
    before = store_bytes(tmp_path / "out")
    shutil.rmtree(tmp_path / "images" / "val")
    for images in (tmp_path / "images", tmp_path / "images" / "train"):
        with pytest.raises(
            PackError,
            match=r"out holds a store of other splits: train, val, now (train|none)\. .* move .*/out/(val|train) away",
        ):
            update(images, tmp_path / "out")
    assert store_bytes(tmp_path / "out") == before
    shutil.rmtree(tmp_path / "out" / "val")
    assert update(tmp_path / "images", tmp_path / "out").kept == 6


def test_an_input_that_is_listed_twice_is_kept_twice(images: Path, tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("path,target\nclass0/001.jpg,3\nclass0/002.jpg,4\nclass0/001.jpg,5\n")
    pack(path, tmp_path / "out", size=32, root=images)
    path.write_text("path,target\nclass0/001.jpg,7\nclass0/001.jpg,8\n")
    report = update(path, tmp_path / "out", root=images)
    assert (report.rows, report.kept, report.gone) == (2, 2, 1)
    assert list(MemmapDataset(tmp_path / "out").targets) == [7, 8]


# -- interrupted, and while it is read


def test_an_interrupted_update_leaves_the_store_and_the_command_it_names_is_resumed_and_keeps_rows(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    pack(images, out, size=32)
    before = store_bytes(out)
    interrupted(update, images, out)
    assert store_bytes(out) == before
    beside = tmp_path / "out.packing"
    header = json.loads((beside / ".packing" / "journal").read_bytes().splitlines()[0][9:])
    assert header["command"] == "update"
    no_decoder(monkeypatch)
    report = update(images, out)
    assert 0 < report.resumed_from < 24
    assert (report.rows, report.kept) == (24, 24)
    assert store_bytes(out) == before
    assert not beside.exists()


def test_an_update_may_start_over_where_one_was_interrupted(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=32)
    interrupted(update, images, tmp_path / "out")
    change(images)
    assert update(images, tmp_path / "out").kept == 21
    pack(images, tmp_path / "fresh", size=32)
    assert store_bytes(tmp_path / "out") == store_bytes(tmp_path / "fresh")
    assert sorted(os.listdir(tmp_path)) == ["fresh", "images", "out"]


# -- what is not taken over


@pytest.mark.parametrize("options", [{"size": 32}, {"fit": "none", "max_size": 40}], ids=["crop", "own sizes"])
def test_damaged_rows_are_decoded_again(options: dict[str, Any], images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(images, out, **options)
    before = store_bytes(out)
    blocks = read_blocks(out)
    assert len(blocks) > 2
    flip(out / PIXELS, blocks[0].size_bytes + 5)
    assert verify(out).problems
    report = update(images, out)
    assert report.kept == 24 - (blocks[1].stop - blocks[1].start)
    assert store_bytes(out) == before


@pytest.mark.parametrize(
    "name", [SAMPLES, "_tensordict/targets.memmap", "_tensordict/offsets.memmap", "rejected.jsonl"]
)
def test_a_store_whose_small_files_are_damaged_is_refused(name: str, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (images / "class0" / "000.jpg").write_bytes(b"none")
    pack(images, out, fit="none", max_rejects=1)
    flip(out / name, 3)
    before = store_bytes(out)
    with pytest.raises(PackError, match=rf"{name} is damaged: .* Pack again with overwrite=True"):
        update(images, out)
    assert store_bytes(out) == before
    assert sorted(os.listdir(tmp_path)) == ["images", "out"]


def test_a_store_of_other_decoders_is_refused(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(images, tmp_path / "out", size=32)
    monkeypatch.setattr(updating, "pixel_versions", lambda options: {"Pillow": "1.0"})
    with pytest.raises(
        PackError, match=r"out was packed by other decoders \(libjpeg-turbo: .*, now none\): .* Use the same versions"
    ):
        update(images, tmp_path / "out")


def test_a_disk_that_fails_to_read_old_rows_costs_no_image(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(images, tmp_path / "out", size=32)
    before = store_bytes(tmp_path / "out")

    def read(rows: Any, begin: int, size_bytes: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(sealed_rows.SealedRows, "read", read)
    report = update(images, tmp_path / "out")
    assert (report.rows, report.kept) == (24, 0)
    assert store_bytes(tmp_path / "out") == before


def test_a_store_whose_lines_are_cut_off_once_it_was_checked_gives_no_row(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(images, tmp_path / "out", size=32)
    before = store_bytes(tmp_path / "out")

    class Lines(reused_rows.ReusedLines):
        def __init__(self, out: Path, rows: int) -> None:
            super().__init__(out, rows)
            os.truncate(out / SAMPLES, 0)

    monkeypatch.setattr(reused_rows, "ReusedLines", Lines)
    assert update(images, tmp_path / "out").kept == 0
    assert store_bytes(tmp_path / "out") == before


def test_labels_are_neither_lost_nor_added(inputs_of: MakeInputs, store_of: MakeStore) -> None:
    inputs, labelled, plain = inputs_of("labels-own-sizes"), store_of("labels-own-sizes"), store_of("own-sizes")
    given = {name: inputs.options[name] for name in ("boxes", "masks")}
    for name, value in given.items():
        others = {other: value for other, value in given.items() if other != name}
        with pytest.raises(PackError, match=f"out was packed with {name}. Give {name} again"):
            update(inputs.images, labelled, **others)
        with pytest.raises(PackError, match=f"out was packed without {name}, which an update cannot add"):
            update(inputs.images, plain, **{name: value})


# -- misuse


def test_the_command_reports_what_it_kept(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", size=32)
    change(images)
    done = subprocess.run([*PACK, "update", "images", "out"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "rows: 21 kept, 3 decoded, 2 gone\n" in done.stdout
    done = subprocess.run(
        [*PACK, "update", "-", "out", "--json"],
        cwd=tmp_path,
        input="\n".join(f"images/{path.relative_to(images)}" for path in sorted(images.rglob("*.jpg"))[:20]),
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(done.stdout)
    assert (report["rows"], report["kept"] + report["gone"]) == (20, 24)


@pytest.mark.parametrize("count", [1, 10])
def test_an_update_of_which_no_row_would_stay_is_refused(count: int, images: Path, tmp_path: Path) -> None:
    paths = sorted(images.rglob("*.jpg"))
    for path in paths[count:]:
        path.unlink()
    pack(images, tmp_path / "out", size=32)
    before = store_bytes(tmp_path / "out")
    for path in paths[:count]:
        path.unlink()
    (images / "class0" / "new.jpg").write_bytes(jpeg(40, 30, 1))
    with pytest.raises(PackError, match=f"none of the {count} rows of .* is of these images"):
        update(images, tmp_path / "out")
    assert store_bytes(tmp_path / "out") == before
    assert pack(images, tmp_path / "out", size=32, overwrite=True).rows == 1


def test_an_update_discards_no_part(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "elsewhere", size=32)
    pack(images, tmp_path / "out", size=32, part="1/2")
    (tmp_path / "elsewhere").rename(tmp_path / "out")
    with pytest.raises(PackError, match="out holds parts of a pack. Continue with part"):
        update(images, tmp_path / "out")
    assert (tmp_path / "out.packing").exists()
