"""Rows with sizes of their own: the format, packing to the same bytes, and fixed-size batches cropped from them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    Tune,
    check_golden_bytes,
    interrupted,
    make_tree,
    photo,
    torchvision_or_skip,
)
from PIL import Image
from redecoding import rows_of_other_sources
from tensordict import TensorDict
from torch.utils.data import DataLoader

from packer import DiskFullError, pack
from packer.operations.show import contact_sheet
from packer.operations.verify import verify
from reader import (
    ImageBatch,
    MemmapDataset,
    RaggedBatch,
    ResizeCenterCrop,
    StoreError,
)
from reader.format.manifest import PIXELS

GOLDEN = Path(__file__).parents[1] / "golden" / "own-sizes"


@pytest.fixture(scope="module")
def ragged_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 90 rows of many sizes that no test may change."""
    root = tmp_path_factory.mktemp("ragged")
    make_tree(root / "images", each=30)
    pack(root / "images", root / "out", fit="none", workers=2)
    return root / "out"


@pytest.fixture
def own(ragged_store: Path, tmp_path: Path) -> Path:
    """A store of a test's own."""
    return Path(shutil.copytree(ragged_store, tmp_path / "own"))


# -- the format


@pytest.mark.parametrize("name", ["own-sizes", "own-masks", "jpeg", "jpeg-gray", "jpeg-own-sizes"])
def test_todays_writer_makes_the_golden_bytes_and_verify_finds_them_intact(name: str) -> None:
    check_golden_bytes(GOLDEN.with_name(name))
    assert verify(GOLDEN.with_name(name)).problems == []


def test_a_store_of_own_sizes_opens_without_our_reader(ragged_store: Path) -> None:
    store = MemmapDataset(ragged_store).store
    plain = RaggedBatch.load_memmap(ragged_store)
    bare = TensorDict.load_memmap(ragged_store / "_tensordict")
    assert torch.equal(plain.pixels, store.pixels)
    assert torch.equal(bare["shapes"], store.shapes)
    assert torch.equal(plain.image(7), store.image(7))


def test_a_row_that_leads_out_of_the_pixels_is_refused(own: Path) -> None:
    offsets = np.memmap(own / "_tensordict/offsets.memmap", np.int64, "r+")
    offsets[4], offsets[5] = 1 << 40, -1
    offsets.flush()
    data = MemmapDataset(own, as_tuple=False)
    for row in (4, 5):
        sentence = f"row {row}: it is not within the pixels"
        for index in (row, [0, row], slice(row, row + 1)):
            with pytest.raises(StoreError, match=sentence):
                data[index]
        # a worker reads its rows from the files
        with pytest.raises(StoreError, match=sentence):
            list(DataLoader(data.subset([0, row]), batch_size=2, num_workers=1))
    assert data[[6, 7]].rows.tolist() == [6, 7]


# -- packing


def _expected(path: Path, max_size: int | str | None) -> Image.Image:
    """Decode as a viewer would, and scale as torchvision's Resize(max_size=) of a PIL image does, or its Resize(size)."""
    from PIL import ImageOps

    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    side = min(image.size) if max_size == "short:40" else max(image.size)
    limit = 40 if max_size == "short:40" else max_size
    if not isinstance(limit, int) or side <= limit:
        return image
    return image.resize((int(limit * image.width / side), int(limit * image.height / side)), 2)


@pytest.mark.parametrize("max_size", [None, 80, "short:40"])
def test_rows_are_the_images_in_their_own_sizes_upright(tmp_path: Path, max_size: int | str | None) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for n in range(8):
        exif = Image.Exif()
        exif[0x0112] = n + 1
        photo(90 + 3 * n, 61, n).save(images / f"{n}.jpg", exif=exif, quality=95)
    photo(50, 70, 9).save(images / "8.png")
    pack(images, tmp_path / "out", fit="none", max_size=max_size, exact=True, workers=1)
    data = MemmapDataset(tmp_path / "out", as_tuple=False)
    total = np.zeros(3)
    for row, path in enumerate(sorted(images.iterdir())):
        expected = np.asarray(_expected(path, max_size))
        assert np.array_equal(data[row].pixels.numpy(), expected)
        total += expected.sum((0, 1), dtype=np.int64)
    pixels = int(data.store.shapes[:, :2].long().prod(1).sum())
    assert data.manifest.mean == pytest.approx((total / pixels / 255).tolist(), rel=1e-12)
    assert (data.manifest.height, data.manifest.width) == tuple(data.store.shapes[:, :2].amax(0).tolist())
    assert data[0].pixels.shape[1] == {None: 90, 80: 80, "short:40": 59}[max_size]
    assert data.manifest.options.get("max_size") == max_size
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", images) == []


def test_a_pack_continues_though_its_sources_grew_meanwhile(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tune: Tune
) -> None:
    """How many inputs make a block follows from what headers said when it began."""
    tune(block_bytes=40_000, least_block_inputs=24)

    interrupted(pack, images, tmp_path / "out", fit="none", workers=1, inputs=1)
    photo(900, 700, 1).save(images / "class2/007.jpg")
    report = pack(images, tmp_path / "out", fit="none")
    assert 0 < report.resumed_from < 24
    assert MemmapDataset(tmp_path / "out", as_tuple=False)[23].pixels.shape == (700, 900, 3)


def test_the_room_is_known_by_headers_before_decoding(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 5000, 5000))
    with pytest.raises(DiskFullError, match="its disk has 5000 free") as full:
        pack(images, tmp_path / "out", fit="none")
    # what the finished pixels will have, and the estimate of the small files
    needed = int(re.search(r"needs (\d+) more bytes", str(full.value)).group(1))
    assert 299008 < needed < 299008 + 50_000
    monkeypatch.undo()
    pack(images, tmp_path / "out", fit="none")
    assert (tmp_path / "out" / PIXELS).stat().st_size == 299008


def test_show_knows_own_sizes(ragged_store: Path) -> None:
    sheet = contact_sheet(ragged_store, rows=[0, 1])
    # tiles of 128 in margins of 6: row 0 is 48 x 64 and stands upright in its tile, row 1 is 71 x 48
    paper = (250, 250, 248)
    assert sheet.getpixel((6 + 10, 6 + 64)) == paper != sheet.getpixel((6 + 64, 6 + 2))
    assert sheet.getpixel((140 + 64, 6 + 2)) == paper != sheet.getpixel((140 + 2, 6 + 64))


# -- the dataset and the loader


def test_a_slice_of_own_sizes_is_a_view_of_its_own_rows_and_a_list_a_copy(ragged_store: Path) -> None:
    data = MemmapDataset(ragged_store, as_tuple=False)
    part, all_pixels = data[80:], data.store.pixels
    assert part.pixels.data_ptr() == data.store.image(80).data_ptr()
    assert part.pixels.untyped_storage().nbytes() == part.pixels.nbytes < all_pixels.nbytes
    for copy in (data[[17, 3]].pixels, data[3].pixels):
        assert not 0 <= copy.data_ptr() - all_pixels.data_ptr() < all_pixels.nbytes


# -- ResizeCenterCrop


@pytest.mark.parametrize("fraction", [1.0, 0.875, 0.6])
@pytest.mark.parametrize("size", [(64, 48), (48, 113), (45, 45), (300, 20)])
def test_center_crop_is_torchvisions_resize_and_center_crop(size: tuple[int, int], fraction: float) -> None:
    functional = torchvision_or_skip().transforms.v2.functional
    pixels = torch.from_numpy(np.asarray(photo(*size, 3)).copy())
    batch = ImageBatch(pixels[None].repeat(2, 1, 1, 1), torch.zeros(2), batch_size=[2])
    made = ResizeCenterCrop(28, fraction=fraction)(batch).images
    image = pixels.movedim(-1, 0)
    expected = functional.center_crop(functional.resize(image, [int(28 / fraction)], antialias=True), [28, 28])
    assert torch.equal(made[0], expected)
    assert torch.equal(made[1], expected)
