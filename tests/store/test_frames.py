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
from conftest import check_golden_bytes, interrupted, make_tree, photo
from tensordict import TensorDict
from torch.utils.data import DataLoader

from packer import merge, pack, pull, push, subset, update
from packer.cli import run
from packer.errors import OptionsError, PackError
from packer.operations.verify import verify
from packer.packing.parts.seal_parts import seal_parts
from reader import ImageBatch, MemmapDataset, MemmapLoader, concat, system
from reader.format.blocks import read_blocks
from reader.format.errors import StoreError
from reader.format.manifest import PAGE_BYTES, PIXELS, read_manifest
from reader.loading import shared_residency

pytest.importorskip("zstandard")

from reader import frames, predictor
from reader.memory import frame_file
from scripts.stress.hostile import _frames as hostile

GOLDEN = Path(__file__).parents[1] / "golden"
FRAMES = "_tensordict/frames.memmap"
WAYS: dict[str, dict[str, Any]] = {
    "equal": {"size": 32},
    "padded": {"size": (24, 40), "fit": "pad"},
    "gray": {"size": 32, "channels": "gray"},
    "rgba": {"size": 32, "channels": "rgba"},
    "own": {"fit": "none"},
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("frames") / "images")


@pytest.fixture(scope="module", params=WAYS)
def pair(request: pytest.FixtureRequest, tree: Path) -> tuple[Path, Path]:
    """The same images packed raw and compressed."""
    raw, packed = (tree.parent / f"{request.param}-{kind}" for kind in ("raw", "packed"))
    if not raw.exists():
        pack(tree, raw, workers=1, **WAYS[request.param])
        pack(tree, packed, workers=1, compress=True, **WAYS[request.param])
    return raw, packed


@pytest.fixture(scope="module")
def equal(tree: Path) -> tuple[Path, Path]:
    raw, packed = tree.parent / "one-raw", tree.parent / "one-packed"
    pack(tree, raw, workers=1, size=32)
    pack(tree, packed, workers=1, size=32, compress=True)
    return raw, packed


def content(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(map(torch.equal, one, other))
    return torch.equal(one, other)


def test_indexing_gives_the_pixels_of_the_raw_store(pair: tuple[Path, Path]) -> None:
    raw, packed = map(MemmapDataset, pair)
    for index in (0, 7, -1, slice(2, 9), slice(0, 24, 5), [5, 1, 1, 7], torch.arange(24) % 3 == 0):
        (a, targets), (b, others) = raw[index], packed[index]
        assert same(a, b), index
        assert targets == others if isinstance(targets, int) else torch.equal(targets, others)
    assert packed.samples == raw.samples
    assert packed.subset([3, 1]).targets == raw.subset([3, 1]).targets


@pytest.mark.parametrize(("shuffle", "residency"), [(False, "disk"), ("full", "cache"), ("block", "ram")])
def test_a_loader_gives_the_batches_of_the_raw_store(pair: tuple[Path, Path], shuffle: Any, residency: str) -> None:
    raw, packed = map(MemmapDataset, pair)
    part = np.arange(1, 24, 2)
    for one, other in ((raw, packed), (raw.subset(part), packed.subset(part))):
        with (
            MemmapLoader(one, 5, shuffle=shuffle) as expected,
            MemmapLoader(other, 5, shuffle=shuffle, residency=residency) as found,
        ):
            for (a, targets), (b, others) in zip(expected, found, strict=True):
                assert same(a, b)
                assert torch.equal(targets, others)


@pytest.mark.parametrize("residency", ["cache", "ram"])
def test_frames_that_are_in_memory_are_unpacked_where_they_are(
    pair: tuple[Path, Path], residency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, packed = (MemmapDataset(path) for path in pair)

    def read(size_bytes: int) -> Any:
        raise AssertionError(f"{size_bytes} bytes of frames were read")

    monkeypatch.setattr(frame_file, "_own_memory", read)
    with (
        MemmapLoader(raw, 4, shuffle="full") as expected,
        MemmapLoader(packed, 4, shuffle="full", residency=residency) as found,
    ):
        for (one, _), (other, _) in zip(expected, found, strict=True):
            assert same(one, other)


@pytest.mark.parametrize("shuffle", [False, "full", "block"])
def test_frames_on_the_disk_are_read_ahead_and_unpacked_where_they_were_read(
    pair: tuple[Path, Path], shuffle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, packed = (MemmapDataset(path) for path in pair)

    def read(size_bytes: int) -> Any:
        raise AssertionError(f"{size_bytes} bytes of frames were read by a thread that unpacks")

    monkeypatch.setattr(frame_file, "_own_memory", read)
    # several windows and chunks
    monkeypatch.setattr("reader.loading.schedule.BLOCK_BYTES", 3 * raw.manifest.row_bytes)
    monkeypatch.setattr("reader.loading.schedule.WINDOW_BLOCKS", 2)
    for name in ("AHEAD_BYTES", "STREAM_BYTES"):
        monkeypatch.setattr(f"reader.loading.host_batches.{name}", 5 * PAGE_BYTES)
    with (
        MemmapLoader(raw, 5, shuffle=shuffle) as expected,
        MemmapLoader(packed, 5, shuffle=shuffle, residency="disk") as found,
    ):
        for _ in range(2):
            for (one, _), (other, _) in zip(expected, found, strict=True):
                assert same(one, other)


def test_memory_that_raw_rows_do_not_fit_into_holds_compressed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for n in range(8):
        photo(128, 128, n).save(images / f"{n}.png")
    raw, packed = (
        MemmapDataset(pack(images, tmp_path / f"out-{kind}", size=128, compress=kind == "packed").out)
        for kind in ("raw", "packed")
    )
    monkeypatch.setattr(system, "available_bytes", lambda: raw.manifest.pixel_bytes * 8 // 10)
    with pytest.raises(ValueError, match="residency 'ram' needs 393.2 kB, but 314.6 kB of memory are free"):
        MemmapLoader(raw, 4, residency="ram")
    with MemmapLoader(packed, 4, residency="ram") as loader:
        found = torch.cat([images for images, _ in loader])
        copy = shared_residency.host_copy(packed)
        assert copy.slots.filled * copy.units.shape[1] == os.path.getsize(packed.path / PIXELS)
    assert torch.equal(found, raw[:][0])


@pytest.mark.parametrize("residency", ["auto", "cache", "ram", "disk"])
def test_joined_parts_of_one_store_are_read(equal: tuple[Path, Path], residency: Any) -> None:
    raw, packed = (MemmapDataset(path) for path in equal)
    for ways in (lambda data: [data], lambda data: [data, data], lambda data: [data.subset([5, 1]), data.subset([3])]):
        joined = concat(ways(packed))
        with MemmapLoader(joined, 4, residency=residency) as loader:
            assert torch.equal(torch.cat([images for images, _ in loader]), concat(ways(raw))[:][0])


def test_a_loader_that_is_closed_keeps_no_frames(equal: tuple[Path, Path]) -> None:
    loader = MemmapLoader(MemmapDataset(equal[1]), 5, residency="disk")
    assert sum(len(images) for images, _ in loader) == len(loader.dataset)
    pool = loader.gathering._frame_pool
    assert pool is not None
    idle = [weakref.ref(loan.memory) for loan in pool._pool._idle]
    assert idle
    del pool
    loader.close()
    gc.collect()
    assert all(memory() is None for memory in idle)


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


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataloader_of_torch_reads_them(equal: tuple[Path, Path], workers: int) -> None:
    raw, packed = (
        DataLoader(MemmapDataset(path), 8, num_workers=n) for path, n in zip(equal, (0, workers), strict=True)
    )
    for (a, _), (b, _) in zip(raw, packed, strict=True):
        assert torch.equal(a, b)


def test_a_compressed_store_at_a_url_is_read_as_the_local_one(pair: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
    pytest.importorskip("fcntl", reason="a cache needs locks of bytes")
    raw = MemmapDataset(pair[0])
    remote = MemmapDataset(pair[1].as_uri(), cache=tmp_path)
    assert same(remote[23][0], raw[23][0])
    with MemmapLoader(raw, 5, shuffle="block") as expected, MemmapLoader(remote, 5, shuffle="block") as found:
        for (a, targets), (b, others) in zip(expected, found, strict=True):
            assert same(a, b)
            assert torch.equal(targets, others)
    assert same(remote[5:9][0], raw[5:9][0])


def test_a_compressed_store_is_pushed_and_pulled_as_it_is(equal: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'pixpack[remote]'")
    url = (tmp_path / "bucket" / "out").as_uri()
    push(equal[1], url)
    pull(url, tmp_path / "back")
    assert content(tmp_path / "back") == content(equal[1])


def test_splits_are_compressed_too(tree: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(tree / "class0", tmp_path / "images" / split / "class0")
    pack(tmp_path / "images", tmp_path / "out", size=32, compress=True, workers=1)
    for split in ("train", "val"):
        assert read_manifest(tmp_path / "out" / split).compression is not None
        assert MemmapDataset(tmp_path / "out" / split)[0][0].shape == (3, 32, 32)


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
    with MemmapLoader(raw, 5) as expected, MemmapLoader(packed, 5, residency="ram") as found:
        for (a, named), (b, others) in zip(expected, found, strict=True):
            assert same(a, b)
            assert same(named["masks"], others["masks"])
    assert torch.equal(raw[3][1]["masks"], packed[3][1]["masks"])
    assert verify(stores[1]).problems == []
    with pytest.raises(OptionsError, match="--compress takes --masks with --fit none alone"):
        pack(tree, tmp_path / "no", size=32, masks=tmp_path / "masks", compress=True)


def test_what_would_look_at_the_file_says_that_it_needs_a_raw_store(
    equal: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
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
    assert run(["bench", str(packed)]) == 2
    assert sentence in capsys.readouterr().err


# -- packing


def test_the_bytes_are_the_same_from_any_number_of_workers(pair: tuple[Path, Path], tree: Path, tmp_path: Path) -> None:
    options = WAYS[pair[0].name.partition("-")[0]]
    pack(tree, tmp_path / "out", workers=2, compress=True, **options)
    assert content(tmp_path / "out") == content(pair[1])


def test_a_resumed_pack_has_the_same_bytes(
    equal: tuple[Path, Path], tree: Path, tmp_path: Path, small_blocks: None
) -> None:
    out, straight = tmp_path / "out", tmp_path / "straight"
    pack(tree, straight, size=32, compress=True, workers=1)
    interrupted(pack, tree, out, inputs=8, size=32, compress=True, workers=1)
    with pytest.raises(PackError, match="other options"):
        pack(tree, out, size=32, workers=1, resume=True)
    report = pack(tree, out, size=32, compress=True, workers=1, resume=True)
    assert report.resumed_from > 0
    assert content(out) == content(straight)


def test_another_version_of_the_library_is_refused(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None
) -> None:
    interrupted(pack, tree, tmp_path / "out", inputs=8, size=32, compress=True, workers=1)
    monkeypatch.setattr(frames, "versions", lambda codec: {"zstandard": "9", "zstd": "9"})
    with pytest.raises(PackError, match=r"other decoders.*zstd"):
        pack(tree, tmp_path / "out", size=32, compress=True, workers=1, resume=True)


def test_parts_make_the_same_store(tree: Path, pair: tuple[Path, Path], tmp_path: Path) -> None:
    options = WAYS[pair[0].name.partition("-")[0]]
    for number in (1, 2):
        pack(tree, tmp_path / "out", compress=True, part=f"{number}/2", workers=1, **options)
    seal_parts(tmp_path / "out")
    assert content(tmp_path / "out") == content(pair[1])


def test_an_update_takes_over_rows(tree: Path, tmp_path: Path) -> None:
    images, out = tmp_path / "images", tmp_path / "out"
    shutil.copytree(tree, images)
    pack(images, out, size=32, compress=True, workers=1)
    next(iter(sorted(images.rglob("*.jpg")))).unlink()
    report = update(images, out, workers=1)
    pack(images, tmp_path / "again", size=32, compress=True, workers=1)
    assert (report.kept, report.rows) == (23, 23)
    assert content(out) == content(tmp_path / "again")


def test_an_update_and_redecode_take_another_version_of_the_library(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    pack(tree, out, size=32, compress=True, workers=1)
    packed = content(out)
    monkeypatch.setattr(frames, "versions", lambda codec: {"zstandard": "9", "zstd": "9"})
    assert verify(out, redecode=24, images=tree).problems == []
    assert update(tree, out, workers=1).kept == 24
    assert read_manifest(out).decoders["zstd"] == {"zstandard": "9", "zstd": "9"}
    assert {**content(out), "manifest.json": b""} == {**packed, "manifest.json": b""}


def test_redecode_reports_a_damaged_frame_with_all_else(equal: tuple[Path, Path], tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(equal[1], out)
    begin, _ = np.fromfile(out / FRAMES, "<i8").reshape(-1, 2)[5].tolist()
    flip(out / PIXELS, begin + 20)
    report = verify(out, redecode=24, images=tree)
    assert {problem.rows for problem in report.problems} == {(5, 6)}
    assert report.redecoded == 24


def test_a_copy_is_compressed_or_raw_as_is_asked(pair: tuple[Path, Path], tmp_path: Path) -> None:
    raw, packed = pair
    subset(packed, tmp_path / "raw", compress=False)
    subset(raw, tmp_path / "packed", compress=True)
    assert content(tmp_path / "raw") == content(raw)
    assert content(tmp_path / "packed") == content(packed)
    rows = [5, 3, 23, *range(7, 12)]
    subset(packed, tmp_path / "some", rows=rows)
    subset(raw, tmp_path / "others", rows=rows, compress=True)
    assert content(tmp_path / "some") == content(tmp_path / "others")


def test_merged_frames_are_those_of_the_stores(pair: tuple[Path, Path], tmp_path: Path) -> None:
    raw, packed = pair
    merge([packed, packed], tmp_path / "merged")
    merge([raw, raw], tmp_path / "raw")
    subset(tmp_path / "merged", tmp_path / "unpacked", compress=False)
    assert content(tmp_path / "unpacked") == content(tmp_path / "raw")
    table = np.fromfile(packed / FRAMES, "<i8").reshape(-1, 2)
    frames = (packed / PIXELS).read_bytes()[: table[-1, 1]]
    assert (tmp_path / "merged" / PIXELS).read_bytes().startswith(2 * frames)
    with pytest.raises(PackError, match="other options"):
        merge([raw, packed], tmp_path / "mixed")


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


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        value = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([value ^ 4]))


def test_every_flipped_bit_of_a_frame_is_named_with_its_row(equal: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(equal[1], out)
    begin, end = np.fromfile(out / FRAMES, "<i8").reshape(-1, 2)[5].tolist()
    for offset in range(begin, end, max(1, (end - begin) // 40)):
        flip(out / PIXELS, offset)
        with pytest.raises(StoreError, match=r"out: row 5: its frame.*run pack verify"):
            MemmapDataset(out)[5]
        with pytest.raises(StoreError, match="row 5"), MemmapLoader(MemmapDataset(out), 8) as loader:
            list(loader)
        flip(out / PIXELS, offset)
    flip(out / PIXELS, begin + 9)
    flip(out / PIXELS, end + 9)
    assert [problem.rows for problem in verify(out).problems] == [(5, 6), (6, 7)]
    with pytest.raises(PackError, match=r"is damaged: rows .* not what was packed"):
        subset(out, tmp_path / "copy", rows=[5])


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
