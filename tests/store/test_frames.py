"""Compressed rows: the pixels of the raw store bit for bit, whatever reads them, and every command that a raw store knows."""

from __future__ import annotations

import gc
import os
import shutil
import weakref
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune, check_golden_bytes, store_bytes
from redecoding import rows_of_other_sources
from row_forms import FRAMES, WAYS, Formed, flip
from tensordict import TensorDict

from packer import pack, update
from packer.cli import run
from packer.errors import OptionsError
from packer.operations.verify import verify
from reader import ImageBatch, MemmapDataset, MemmapLoader
from reader.buffers import BufferPool
from reader.format.blocks import read_blocks
from reader.format.errors import StoreError
from reader.format.manifest import PIXELS, read_manifest
from reader.format.row_kinds import PAGE_BYTES

pytest.importorskip("zstandard")

import hostile_frames as hostile

from reader import frames, predictor
from reader.memory import row_table

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(params=WAYS)
def pair(request: pytest.FixtureRequest, formed: Formed) -> tuple[Path, Path]:
    """The same images packed raw and compressed."""
    return formed(request.param, "raw"), formed(request.param, "zstd")


@pytest.fixture
def equal(formed: Formed) -> tuple[Path, Path]:
    return formed("equal", "raw"), formed("equal", "zstd")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(map(torch.equal, one, other))
    return torch.equal(one, other)


@pytest.mark.parametrize("residency", ["cache"])
def test_frames_that_are_in_memory_are_unpacked_where_they_are(
    pair: tuple[Path, Path], residency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, packed = (MemmapDataset(path) for path in pair)

    def read(size_bytes: int) -> Any:
        raise AssertionError(f"{size_bytes} bytes of frames were read")

    monkeypatch.setattr(row_table, "_scratch", read)
    with (
        MemmapLoader(raw, 4, shuffle="full", seed=0) as expected,
        MemmapLoader(packed, 4, shuffle="full", seed=0, residency=residency) as found,
    ):
        for (one, _), (other, _) in zip(expected, found, strict=True):
            assert same(one, other)


@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_frames_on_the_disk_are_read_ahead_and_unpacked_where_they_were_read(
    pair: tuple[Path, Path], shuffle: Any, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, packed = (MemmapDataset(path) for path in pair)

    def read(size_bytes: int) -> Any:
        raise AssertionError(f"{size_bytes} bytes of frames were read by a thread that unpacks")

    monkeypatch.setattr(row_table, "_scratch", read)
    # several windows and chunks
    tune(
        shuffle_block_bytes=3 * raw.manifest.row_bytes,
        shuffle_window_blocks=2,
        window_ahead_bytes=5 * PAGE_BYTES,
        stream_ahead_bytes=5 * PAGE_BYTES,
    )
    with (
        MemmapLoader(raw, 5, shuffle=shuffle, seed=0) as expected,
        MemmapLoader(packed, 5, shuffle=shuffle, seed=0, residency="disk") as found,
    ):
        for _ in range(2):
            for (one, _), (other, _) in zip(expected, found, strict=True):
                assert same(one, other)


def test_a_loader_that_is_closed_keeps_no_frames(equal: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    memory, lease = list[weakref.ref[Any]](), BufferPool.lease

    def leased(pool: BufferPool, size_bytes: int) -> torch.Tensor:
        given = lease(pool, size_bytes)
        # the pool's own array, of which a lease is a view
        memory.extend(weakref.ref(loan.memory) for loan in pool._leases.values())
        return given

    monkeypatch.setattr(BufferPool, "lease", leased)
    loader = MemmapLoader(MemmapDataset(equal[1]), 5, residency="disk")
    assert sum(len(images) for images, _ in loader) == len(loader.dataset)
    assert memory
    loader.close()
    gc.collect()
    assert all(held() is None for held in memory)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_the_compiled_predictor_makes_the_bytes_of_numpy(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(channels).integers(0, 256, (3, 7, 19 * channels), dtype=np.uint8)
    made, other = rows.copy(), rows.copy()
    predictor.predict(made, channels)
    with monkeypatch.context() as patch:
        patch.setattr(predictor, "_compiled", lambda name: None)
        predictor.predict(other, channels)
        assert (made == other).all()
        predictor.restore(other, channels)
    predictor.restore(made, channels)
    assert (made == rows).all()
    assert (other == rows).all()


def test_own_masks_are_in_the_frames(tree: Path, tmp_path: Path) -> None:
    from PIL import Image

    for image in tree.rglob("*.jpg"):
        with Image.open(image) as opened:
            values = np.arange(opened.width * opened.height) // 40 % 5
            mask = Image.fromarray(values.astype(np.uint8).reshape(opened.size[::-1]))
        target = (tmp_path / "masks" / image.relative_to(tree)).with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        mask.save(target)
    stores = tmp_path / "raw", tmp_path / "packed"
    for store, compress in zip(stores, (False, True), strict=True):
        pack(tree, store, fit="none", masks=tmp_path / "masks", compress=compress, workers=1)
    raw, packed = map(MemmapDataset, stores)
    with MemmapLoader(raw, 5) as expected, MemmapLoader(packed, 5, residency="cache") as found:
        for (a, named), (b, others) in zip(expected, found, strict=True):
            assert same(a, b)
            assert same(named["masks"], others["masks"])
    assert torch.equal(raw[3][1]["masks"], packed[3][1]["masks"])
    assert verify(stores[1]).problems == []
    with pytest.raises(OptionsError, match="compress takes masks with fit='none' alone"):
        pack(tree, tmp_path / "no", size=32, masks=tmp_path / "masks", compress=True)


def test_what_would_look_at_the_file_says_that_it_needs_a_raw_store(
    equal: tuple[Path, Path],
) -> None:
    packed = equal[1]
    sentence = (
        "its rows are compressed: read them by MemmapDataset, or make a raw store: pack subset OUT RAW --no-compress"
    )
    with pytest.raises(StoreError, match=sentence):
        MemmapDataset(packed).numpy()
    with pytest.raises(StoreError, match=sentence):
        ImageBatch.load_memmap(packed)
    assert TensorDict.load_memmap(packed / "_tensordict", mode="r", allow_pickle=False)["pixels"].ndim == 1


# -- packing


def test_an_update_and_redecode_take_another_version_of_the_library(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    pack(tree, out, size=32, compress=True, workers=1)
    packed = store_bytes(out)
    monkeypatch.setattr(frames, "versions", lambda codec: {"zstandard": "9", "zstd": "9"})
    assert verify(out).problems == rows_of_other_sources(out, tree) == []
    assert update(tree, out, workers=1).kept == 24
    assert read_manifest(out).decoders["zstd"] == {"zstandard": "9", "zstd": "9"}
    assert {**store_bytes(out), "manifest.json": b""} == {**packed, "manifest.json": b""}


def test_verify_names_the_row_of_a_damaged_frame(equal: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(equal[1], out)
    begin, _ = np.fromfile(out / FRAMES, "<i8").reshape(-1, 2)[5].tolist()
    flip(out / PIXELS, begin + 20)
    report = verify(out)
    assert {problem.rows for problem in report.problems} == {(5, 6)}


def test_it_is_shown_and_described(
    equal: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for store in equal:
        assert run(["show", str(store), "-o", str(tmp_path / f"{store.name}.png")]) == 0
    assert (tmp_path / f"{equal[0].name}.png").read_bytes() == (tmp_path / f"{equal[1].name}.png").read_bytes()
    capsys.readouterr()
    assert run(["info", str(equal[1])]) == 0
    assert "compressed" in capsys.readouterr().out


# -- what is stored


@pytest.mark.parametrize("name", ["compressed", "compressed-gray", "compressed-rgba", "compressed-own-masks"])
def test_golden_stores_of_compressed_rows_load_forever(name: str) -> None:
    check_golden_bytes(GOLDEN / name)
    assert verify(GOLDEN / name).problems == []
    data = MemmapDataset(GOLDEN / name, as_tuple=False)
    for r in range(3):
        pixels = data[r].pixels.numpy()
        y, x, c = np.indices(pixels.shape)
        assert (pixels == (97 * r + 13 * y + 7 * x + 31 * c) % 256).all()
        if data.manifest.has_own_masks:
            assert (data[r].extras["masks"].numpy() == (10 * r + 3 * y + x)[..., 0]).all()


@pytest.mark.parametrize("name", ["compressed", "compressed-rgba"])
def test_the_specification_alone_restores_a_row(name: str) -> None:
    import json
    import struct

    import zstandard

    out = GOLDEN / name
    head = json.loads((out / "manifest.json").read_text())
    h, w, channels = (head[key] for key in ("height", "width", "channels"))
    begin, end = struct.unpack("<2q", (out / FRAMES).read_bytes()[16:32])
    row = bytearray(zstandard.ZstdDecompressor().decompress((out / PIXELS).read_bytes()[begin:end]))
    for offset in range(w * channels, len(row)):
        row[offset] = (row[offset] + row[offset - w * channels]) % 256
    for offset in range(0, len(row), channels):
        for other in (offset, offset + 2):
            row[other] = (row[other] + row[offset + 1]) % 256
    assert row == bytes(
        (97 + 13 * y + 7 * x + 31 * c) % 256 for y in range(h) for x in range(w) for c in range(channels)
    )


def test_the_blocks_have_checksums_of_the_frames_and_of_the_pixels(pair: tuple[Path, Path]) -> None:
    raw, packed = pair
    stored = (packed / PIXELS).read_bytes()
    done = 0
    for one, other in zip(read_blocks(raw), read_blocks(packed), strict=True):
        assert other.pixels_crc32 == one.crc32
        assert zlib.crc32(stored[done : done + other.size_bytes]) == other.crc32
        done += other.size_bytes
    manifest = read_manifest(packed)
    assert manifest.compression is not None
    assert len(stored) % 4096 == 0
    assert not any(stored[done:])


@pytest.mark.parametrize(
    "span", [(-1, 5), (0, 1 << 40), (5, 5), (9, 3), (0, 5), ((1 << 63) - 1, (1 << 63) - 1)], ids=str
)
def test_a_frame_outside_the_file_is_refused(equal: tuple[Path, Path], tmp_path: Path, span: Any) -> None:
    out = tmp_path / "out"
    shutil.copytree(equal[1], out)
    table = np.fromfile(out / FRAMES, "<i8").reshape(-1, 2)
    table[5] = span
    table.tofile(out / FRAMES)
    data = MemmapDataset(out)
    assert len(data[4:5][0]) == 1
    with pytest.raises(StoreError, match="row 5: its frame"):
        data[5]
    with MemmapLoader(data, 4, residency="disk") as loader, pytest.raises(StoreError, match="row 5: its frame"):
        list(loader)
    assert verify(out).problems


def test_a_frame_that_claims_to_be_larger_takes_no_memory(equal: tuple[Path, Path], tmp_path: Path) -> None:
    import zstandard

    out = tmp_path / "out"
    shutil.copytree(equal[1], out)
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 28))
    begin, end = np.fromfile(out / FRAMES, "<i8").reshape(-1, 2)[5].tolist()
    with open(out / PIXELS, "r+b") as file:
        file.seek(begin)
        file.write(bomb[: end - begin])
    with pytest.raises(StoreError, match=f"row 5: its frame holds {1 << 28} bytes, the row has {32 * 32 * 3}"):
        MemmapDataset(out)[5]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("without_checksum", "its frame has no checksum"),
        ("without_size", "its frame does not say its size"),
        ("with_dictionary", "its frame needs the dictionary"),
        ("with_window", "its frame holds"),
        ("flipped", "its frame is damaged"),
        (lambda frame: frame[:-1], "its frame is cut short"),
        (lambda frame: frame + b"1234", "4 bytes follow its frame"),
        (lambda frame: frame + hostile.skipped(8), "16 bytes follow its frame"),
        (lambda frame: hostile.skipped(8) + frame, "its frame holds 8 bytes"),
        (lambda frame: hostile.skipped(3072), "its frame has no checksum"),
    ],
    ids=lambda value: "changed" if callable(value) else str(value),
)
def test_what_is_no_frame_as_ours_is_refused(change: Any, what: str) -> None:
    row = np.arange(3072, dtype=np.uint8)
    change = getattr(hostile, change) if isinstance(change, str) else change
    frame = frames.Packer(3).pack(row, 32, 32)
    assert (frames.unpacked(memoryview(frame), 32, 32, 3) == row).all()
    with pytest.raises(StoreError, match=what):
        frames.unpacked(memoryview(change(frame)), 32, 32, 3)


@pytest.mark.parametrize("size_bytes", [1, 131_072, 131_073, 500_000])
@pytest.mark.parametrize("kind", ["noise", "zeros"])
def test_frames_of_any_number_of_blocks_end_where_they_should(size_bytes: int, kind: str) -> None:
    row = np.zeros(size_bytes, np.uint8)
    if kind == "noise":
        row = np.random.default_rng(0).integers(0, 256, size_bytes, dtype=np.uint8)
    frame = frames.Packer(1).pack(row, 1, size_bytes)
    assert (frames.unpacked(memoryview(frame), 1, size_bytes, 1) == row).all()


def test_a_file_cut_short_is_an_error(equal: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(equal[1], out)
    data = MemmapDataset(out)
    os.truncate(out / PIXELS, 4096)
    with pytest.raises(StoreError, match="Copy the store again"):
        data[[20, 21]]
    with MemmapLoader(data, 4, residency="disk") as loader, pytest.raises(StoreError, match="Copy the store again"):
        list(loader)


def test_without_the_library_one_sentence_says_what_to_install(
    equal: tuple[Path, Path], tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(
        StoreError, match=r"zstandard, which is not installed. Install it: pip install 'pixpack\[zstd\]'"
    ):
        MemmapDataset(equal[1])
    with pytest.raises(StoreError, match="zstandard"):
        pack(tree, tmp_path / "out", size=32, compress=True)
    assert not (tmp_path / "out").exists()
    assert run([str(tree), str(tmp_path / "out"), "--size", "32", "--compress"]) == 1
