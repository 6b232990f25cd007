"""Compressed rows that are unpacked where their batch goes: the same pixels, whatever crosses to the device."""

from __future__ import annotations

import contextlib
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import devices, make_tree

from packer import pack
from reader import Compose, MemmapDataset, MemmapLoader, RandomHorizontalFlip, StoreError, predictor
from reader.device import packed
from reader.device.packed import restored
from reader.format.errors import MissingLibraryError

zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'pixpack[zstd]'")


@pytest.fixture(scope="module", params=["rgb", "gray", "rgba"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    make_tree(folder / "images", classes=2, each=15, size=(60, 50))
    pack(folder / "images", folder / "out", size=(24, 32), fit="pad", compress=True, channels=request.param, workers=1)
    return folder / "out"


@pytest.fixture
def nvcomp(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A library with nvCOMP's face that unpacks by zstandard; returns the arguments of its codecs."""
    made: list[dict[str, Any]] = []

    class Codec:
        def __init__(self, **how: Any) -> None:
            made.append(how)

        def decode(self, arrays: list[torch.Tensor]) -> list[torch.Tensor]:
            """Unpack each."""
            rows = [zstandard.ZstdDecompressor().decompress(bytes(array.cpu().numpy())) for array in arrays]
            each = zip(rows, arrays, strict=True)
            return [torch.frombuffer(bytearray(row), dtype=torch.uint8).to(array.device) for row, array in each]

    found: Any = types.ModuleType("nvidia.nvcomp")
    found.Codec, found.BitstreamKind = Codec, types.SimpleNamespace(RAW="raw")
    found.as_arrays = lambda tensors, cuda_stream: list(tensors)
    within: Any = types.ModuleType("nvidia")
    within.nvcomp = found
    monkeypatch.setitem(sys.modules, "nvidia", within)
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", found)
    packed._codec.cache_clear()
    return made


def read(out: Path, **options: Any) -> list[tuple[Any, ...]]:
    """Return two epochs, on the CPU."""
    arguments: dict[str, Any] = {"shuffle": "full", "as_tuple": False, "residency": "cache"} | options
    with MemmapLoader(MemmapDataset(out), 4, **arguments) as loader:
        batches = [batch for _ in range(2) for batch in loader]
    assert {batch.pixels.device.type for batch in batches} == {arguments.get("device", "cpu")}
    return [
        (batch.rows.tolist(), batch.targets.tolist(), batch.content.tolist(), batch.pixels.cpu()) for batch in batches
    ]


def assert_equal(found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> None:
    assert [each[:3] for each in found] == [each[:3] for each in wanted]
    for (*_, pixels), (*_, others) in zip(found, wanted, strict=True):
        assert torch.equal(pixels, others)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("device", devices())
def test_the_inverse_of_the_predictor_is_that_of_the_host(channels: int, device: str) -> None:
    rows = np.random.default_rng(channels).integers(0, 256, (5, 7, 6 * channels), dtype=np.uint8)
    differences = rows.copy()
    predictor.predict(differences, channels)
    tensor = torch.from_numpy(differences).view(5, 7, 6, channels).to(device)
    wanted = torch.from_numpy(rows).view(5, 7, 6, channels)
    assert torch.equal(restored(tensor).cpu(), wanted)
    if device == "cpu":
        compiled = torch.compile(restored, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(tensor), wanted)


@pytest.mark.parametrize("unpack", ["split", "device"])
@pytest.mark.parametrize("options", [{}, {"prefetch": 0}, {"residency": "ram"}, {"shuffle": "block"}])
@pytest.mark.parametrize("device", devices())
def test_pixels_are_those_of_the_host(
    store: Path, unpack: str, options: dict[str, Any], device: str, nvcomp: list[dict[str, Any]]
) -> None:
    assert_equal(read(store, unpack=unpack, device=device, **options), read(store, **options))
    if device == "cuda" and unpack == "device":
        assert {(how["algorithm"], how["bitstream_kind"]) for how in nvcomp} == {("Zstd", "raw")}


class Decoded:
    """What nvCOMP 6.0 decodes to: arrays by index that point into its memory, which is used again once it is collected."""

    def __init__(self, rows: list[torch.Tensor]) -> None:
        self._rows = torch.stack(rows)
        weakref.finalize(self, self._rows.fill_, 255)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self._rows[number]


@pytest.mark.parametrize("stream", [0, 93_824])
@pytest.mark.parametrize("version", [5, 6])
def test_arrays_of_nvcomp_are_copied_before_their_memory_goes(
    store: Path, version: int, stream: int, nvcomp: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, streams = packed.nvcomp(), []
    if version == 6:
        decode = library.Codec.decode
        monkeypatch.setattr(library.Codec, "decode", lambda self, arrays: Decoded(decode(self, arrays)))

    def as_arrays(tensors: list[torch.Tensor], cuda_stream: int) -> list[torch.Tensor]:
        streams.append(cuda_stream)
        return list(tensors)

    monkeypatch.setattr(library, "as_arrays", as_arrays)
    on_stream = types.SimpleNamespace(cuda_stream=stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: on_stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(packed.PackedBatch, "_by_zstandard", packed.PackedBatch._by_nvcomp)
    assert_equal(read(store, unpack="device"), read(store))
    # 0, the default stream's other number, says to nvCOMP and to torch's DLPack that none is given
    assert {*streams, *(how["cuda_stream"] for how in nvcomp)} == {stream or 1}


@pytest.mark.cuda
def test_nvcomp_itself_gives_the_pixels_of_the_host(store: Path) -> None:
    pytest.importorskip("nvidia.nvcomp", reason="nvCOMP is not installed: pip install 'pixpack[nvcomp]'")
    packed._codec.cache_clear()
    assert_equal(read(store, unpack="device", device="cuda"), read(store))


def test_a_transform_is_called_with_pixels(store: Path) -> None:
    flips = Compose([RandomHorizontalFlip()])
    assert_equal(read(store, unpack="device", transform=flips), read(store, transform=flips))
    # and each batch is the caller's own
    with MemmapLoader(MemmapDataset(store), 4, unpack="device") as loader:
        kept = [images.clone() for images, _ in loader]
        assert all(torch.equal(images, other) for (images, _), other in zip(list(loader), kept, strict=True))


@pytest.mark.parametrize("unpack", ["split", "device"])
def test_a_batch_that_is_asked_for_again_after_an_interrupt_has_its_pixels(
    store: Path, unpack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Copier:
        """Leaves the unpacking to the loop, as that to a CUDA device does."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def send(self, batch: packed.PackedBatch) -> Any:
            return batch.unpacked

        def drain(self) -> None:
            pass

    calls: list[int] = []

    def interrupted(batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return batch

    wanted = [images for images, _ in MemmapLoader(MemmapDataset(store), 4)]
    monkeypatch.setattr("reader.loading.producer.CudaCopier", Copier)
    with MemmapLoader(MemmapDataset(store), 4, unpack=unpack, transform=interrupted) as loader:
        # whose batches go to the copier
        monkeypatch.setattr(loader.producer, "_device", torch.device("cuda"))
        iterator = iter(loader)
        found = [next(iterator)[0]]
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        found += [images for images, _ in iterator]
    assert len(found) == len(wanted)
    assert all(torch.equal(images, others) for images, others in zip(found, wanted, strict=True))


@pytest.mark.parametrize("unpack", ["split", "device"])
@pytest.mark.parametrize("offset", [2, 60])
def test_a_damaged_frame_is_named(store: Path, tmp_path: Path, unpack: str, offset: int) -> None:
    data = MemmapDataset(store)
    assert data.opened_store.frames is not None
    at = int(data.opened_store.frames.table[7, 0])
    path = data.opened_store.path / "_tensordict/pixels.memmap"
    content = path.read_bytes()
    try:
        path.write_bytes(content[: at + offset] + bytes([content[at + offset] ^ 0xFF]) + content[at + offset + 1 :])
        with pytest.raises(StoreError, match=r"out: row 7: .* The store is damaged: run pack verify"):
            read(store, unpack=unpack, shuffle=False)
    finally:
        path.write_bytes(content)


def test_what_cannot_be_unpacked_elsewhere_is_refused(store: Path, tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", classes=2, each=2)
    pack(images, tmp_path / "raw", size=16, workers=1)
    pack(images, tmp_path / "own", fit="none", compress=True, workers=1)
    with pytest.raises(ValueError, match="unpack is 'gpu', expected 'host', 'split' or 'device'"):
        read(store, unpack="gpu")
    for name in ("raw", "own"):
        with pytest.raises(ValueError, match=f"compressed by zstd, and .*{name} has others. Leave it out"):
            read(tmp_path / name, unpack="device")
    with pytest.raises(ValueError, match="residency 'gpu' holds rows unpacked. Leave it out"):
        packed_check(store, on_device=True)
    with pytest.raises(ValueError, match="size= reads levels, which are cropped on the CPU"):
        packed_check(store, has_levels=True)


def packed_check(out: Path, *, on_device: bool = False, has_levels: bool = False) -> None:
    from reader.loading.residencies.packed_rows import check_unpack

    cpu = torch.device("cpu")
    check_unpack("device", MemmapDataset(out), cpu, on_device=on_device, has_levels=has_levels)


def test_nvcomp_that_is_missing_is_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", None)
    monkeypatch.setitem(sys.modules, "nvidia", None)
    with pytest.raises(
        MissingLibraryError, match=r"needs nvCOMP, which is not installed\. Install it: pip install"
    ):
        packed.nvcomp()
