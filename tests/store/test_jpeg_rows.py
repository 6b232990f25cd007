"""Rows kept as JPEGs: what they lose is measured, damage is named, and no bad JPEG is believed."""

from __future__ import annotations

import io
import os
import shutil
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from row_forms import FRAMES, WAYS, Formed, flip, stored, table
from tensordict import TensorDict

from packer import pack, subset
from packer.errors import PackError
from packer.operations.verify import verify
from packer.pixels import jpeg_rows
from packer.sample_lines import read_samples
from reader import ImageBatch, MemmapDataset, MemmapLoader, jpeg_frames
from reader.format.errors import StoreError
from reader.format.manifest import PIXELS, read_manifest

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(params=[way for way in WAYS if way != "rgba"])
def pair(request: pytest.FixtureRequest, formed: Formed) -> tuple[Path, Path]:
    """The same images packed raw and as JPEGs."""
    return formed(request.param, 0), formed(request.param, 95)


@pytest.fixture
def equal(formed: Formed) -> tuple[Path, Path]:
    return formed("equal", 0), formed("equal", 95)


def each_image(store: Path) -> list[torch.Tensor]:
    return [image for image, _ in MemmapDataset(store)]  # type: ignore[attr-defined]


def decoded(frame: bytes) -> Any:
    """What Pillow makes of a frame, whose checksum it does not know."""
    with Image.open(io.BytesIO(frame)) as image:
        found = np.asarray(image)
    return found if found.ndim == 3 else found[:, :, None]


# -- what it is


def test_a_frame_is_the_jpeg_that_pillow_makes_of_the_row(pair: tuple[Path, Path]) -> None:
    raw, lossy = map(MemmapDataset, pair)
    for row, frame in enumerate(stored(pair[1])):
        pixels = raw[row][0].movedim(0, -1).numpy()
        written = io.BytesIO()
        image = Image.fromarray(pixels if pixels.shape[2] > 1 else pixels[:, :, 0])
        image.save(written, "JPEG", quality=95, subsampling=0)
        assert frame == written.getvalue() + struct.pack("<I", zlib.crc32(written.getvalue()))
        assert (decoded(frame) == lossy[row][0].movedim(0, -1).numpy()).all()


def test_the_loss_is_that_of_all_rows(pair: tuple[Path, Path]) -> None:
    errors, count = [], 0
    for one, other in zip(*map(each_image, pair), strict=True):
        errors.append(int(((one.int() - other.int()) ** 2).sum()))
        count += one.numel()
    jpeg = read_manifest(pair[1]).jpeg
    assert jpeg is not None
    assert [sample.decoding["squared_error"] for sample in read_samples(pair[1])] == errors
    assert (jpeg.squared_error, jpeg.pixel_bytes) == (sum(errors), count)
    assert jpeg.psnr == pytest.approx(10 * np.log10(255**2 / (sum(errors) / count)))
    assert jpeg.psnr > 25


def test_mean_and_std_are_those_of_the_rows_as_they_are_read(equal: tuple[Path, Path]) -> None:
    pixels = torch.stack(each_image(equal[1])).double() / 255
    manifest = read_manifest(equal[1])
    assert manifest.mean == pytest.approx(pixels.mean(dim=(0, 2, 3)).tolist())
    assert manifest.std == pytest.approx(pixels.std(dim=(0, 2, 3), unbiased=False).tolist())


@pytest.mark.parametrize("sides", [(1, 1), (7, 9), (33, 65), (1, 500), (500, 1), (64, 64)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("quality", [1, 90, 100])
def test_pixels_are_the_same_whatever_decodes(sides: tuple[int, int], channels: int, quality: int) -> None:
    draw = np.random.default_rng(0)
    for row in (
        draw.integers(0, 256, sides[0] * sides[1] * channels, dtype=np.uint8),
        draw.integers(0, 2, sides[0] * sides[1] * channels, dtype=np.uint8) * np.uint8(255),
    ):
        made = jpeg_rows.encode(row, *sides, channels, quality)
        frame, ours = made.frame, made.pixels
        pillows = np.empty_like(ours)
        assert jpeg_frames._decoded_by_pillow(memoryview(frame)[:-4], pillows) == ""
        assert (ours == pillows).all()
        assert len(frame) <= 4 * len(row) + 4096


def test_a_row_that_is_too_long_for_a_jpeg_is_a_reject(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (66_000, 1), "teal").save(tmp_path / "images" / "long.png")
    Image.new("RGB", (60, 10), "teal").save(tmp_path / "images" / "short.png")
    report = pack(tmp_path / "images", tmp_path / "out", fit="none", compress=95, workers=1, max_rejects=1)
    assert (report.rows, report.rejected) == (1, 1)
    assert "its row has 1 x 66000 pixels, a JPEG up to 65,500 a side" in (tmp_path / "out/rejected.jsonl").read_text()


# -- reading


@pytest.mark.parametrize(("is_compiled", "has_pillow"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_compiled_part_or_pillow_is_needed(
    equal: tuple[Path, Path], is_compiled: bool, has_pillow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = MemmapDataset(equal[1])[3][0]
    if not is_compiled:
        monkeypatch.setattr(jpeg_frames, "compiled_decoder", lambda: None)
    elif jpeg_frames.compiled_decoder() is None:
        pytest.skip("the compiled part is not built")
    if not has_pillow:
        for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"]:
            monkeypatch.setitem(sys.modules, name, None)
    if is_compiled or has_pillow:
        assert torch.equal(MemmapDataset(equal[1])[3][0], expected)
        return
    with pytest.raises(StoreError) as found:
        MemmapDataset(equal[1])
    assert str(found.value) == (
        "rows that are JPEGs need the compiled part of pixpack, or the package Pillow, and neither is installed."
        " Install one: pip install pillow"
    )


@pytest.fixture
def copy(equal: tuple[Path, Path], tmp_path: Path) -> Path:
    """A store of a test's own."""
    return Path(shutil.copytree(equal[1], tmp_path / "out"))


def test_every_flipped_bit_of_a_row_is_named_with_it(copy: Path, tmp_path: Path) -> None:
    begin, end = table(copy)[5]
    for offset in range(begin, end, max(1, (end - begin) // 40)):
        flip(copy / PIXELS, offset)
        with pytest.raises(StoreError, match=r"out: row 5: its frame.*run pack verify"):
            MemmapDataset(copy)[5]
        flip(copy / PIXELS, offset)
    flip(copy / PIXELS, begin + 9)
    flip(copy / PIXELS, end + 9)
    with pytest.raises(StoreError, match="row 5"), MemmapLoader(MemmapDataset(copy), 8) as loader:
        list(loader)
    says = [f"{PIXELS}, row {row}: its frame is damaged (its checksum is another)" for row in (5, 6)]
    assert [*map(str, verify(copy).problems)] == says
    with pytest.raises(PackError, match=r"is damaged: rows .* not what was packed"):
        subset(copy, tmp_path / "copy", rows=[5])


@pytest.mark.parametrize("span", [(-1, 5), (0, 1 << 40), (5, 5), (0, 5), ((1 << 63) - 1, (1 << 63) - 1)], ids=str)
def test_a_frame_outside_the_file_is_refused(copy: Path, span: Any) -> None:
    frames = np.memmap(copy / FRAMES, "<i8", "r+", shape=(24, 2))
    frames[5] = span
    frames.flush()
    data = MemmapDataset(copy)
    assert len(data[4:5][0]) == 1
    with pytest.raises(StoreError, match="row 5: its frame"):
        data[5]
    with MemmapLoader(data, 4, residency="disk") as loader, pytest.raises(StoreError, match="row 5: its frame"):
        list(loader)
    assert verify(copy).problems


def test_a_file_cut_short_is_an_error(copy: Path) -> None:
    data = MemmapDataset(copy)
    os.truncate(copy / PIXELS, 4096)
    with pytest.raises(StoreError, match="Copy the store again"):
        data[[20, 21]]
    with MemmapLoader(data, 4, residency="disk") as loader, pytest.raises(StoreError, match="Copy the store again"):
        list(loader)


def test_what_would_look_at_the_file_says_that_it_needs_a_raw_store(equal: tuple[Path, Path]) -> None:
    sentence = "its rows are compressed: read them by MemmapDataset, or pack a raw store"
    with pytest.raises(StoreError, match=sentence):
        ImageBatch.load_memmap(equal[1])
    assert TensorDict.load_memmap(equal[1] / "_tensordict", mode="r", allow_pickle=False)["pixels"].ndim == 1


# -- what is stored


@pytest.mark.parametrize("name", ["jpeg", "jpeg-gray"])
def test_the_encoder_makes_the_bytes_of_the_golden_store(name: str) -> None:
    """Those of Pillow-SIMD 12.1.1 with libjpeg-turbo 2.1.5, and of Pillow 12.1.1 with 3.1.3."""
    channels = 1 if name == "jpeg-gray" else 3
    y, x, c = np.indices((4, 6, channels))
    for r, frame in enumerate(stored(GOLDEN / name)):
        row = (40 + 50 * r + 5 * y + 4 * x + 9 * c).astype(np.uint8).reshape(-1)
        assert jpeg_rows.encode(row, 4, 6, channels, 95).frame == frame


def refusal(data: bytes) -> str:
    """Return what is said of a JPEG, its checksum right, as a row of 32 x 32 x 3."""
    frame = data + struct.pack("<I", zlib.crc32(data))
    return jpeg_frames.decode(memoryview(frame), 32, 32, 3, np.empty(3072, np.uint8))


def image_of(height: int, width: int, mode: str = "RGB", **options: Any) -> bytes:
    written = io.BytesIO()
    pixels = np.arange(height * width * 3, dtype=np.uint32).astype(np.uint8).reshape(height, width, 3)
    Image.fromarray(pixels).convert(mode).save(written, "JPEG", quality=95, **{"subsampling": 0, **options})
    return written.getvalue()


GOOD = image_of(32, 32)
SCAN = GOOD.index(b"\xff\xda")
SIZE = GOOD.index(b"\xff\xc0")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (image_of(32, 64), "its JPEG has 32 x 64 x 3 values of 8 bits, the row 32 x 32 x 3"),
        (image_of(32, 32, "L"), "its JPEG has 32 x 32 x 1 values"),
        (image_of(32, 32, "CMYK"), "which packed JPEGs lack"),
        (image_of(32, 32, progressive=True), "a segment FFC2 before its scan"),
        (image_of(32, 32, subsampling=2), "its JPEG is subsampled"),
        (image_of(32, 32, comment=b"x"), "a segment FFFE before its scan"),
        (image_of(32, 32, restart_marker_blocks=1), "a segment FFDD before its scan"),
        (GOOD[: SIZE + 5] + b"\xff\xdc" * 2 + GOOD[SIZE + 9 :], "its JPEG has 65500 x 65500 x 3 values"),
        (GOOD[:-2], "its frame is no complete JPEG"),
        (GOOD + b"x", "its frame is no complete JPEG"),
        (GOOD[:SCAN] + b"\xff\xd9", "its JPEG has no scan"),
        (GOOD[:SIZE] + GOOD[SCAN:], "its JPEG has another scan than one of all components"),
        (GOOD + GOOD, "its JPEG has a marker in its scan"),
        (GOOD[:-9] + b"\xff\xd0" + GOOD[-9:], "its JPEG has a marker in its scan"),
        (b"\xff\xd8\xff\xd9", "its JPEG has no scan"),
        (b"", "its frame is damaged"),
        (bytes(3072), "its frame is no complete JPEG"),
    ],
)
@pytest.mark.parametrize("is_compiled", [True, False])
def test_what_is_no_jpeg_as_ours_is_refused(
    data: bytes, what: str, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(jpeg_frames, "compiled_decoder", lambda: None)
    assert refusal(GOOD) == ""
    assert what in refusal(data)


@pytest.mark.parametrize("size", [SCAN + 40, len(GOOD) // 2, len(GOOD) - 3])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_scan_that_ends_early_is_refused(size: int, is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_compiled:
        monkeypatch.setattr(jpeg_frames, "compiled_decoder", lambda: None)
    what = refusal(GOOD[:size] + b"\xff\xd9")
    assert what == "its frame is damaged (Corrupt JPEG data: premature end of data segment)"
