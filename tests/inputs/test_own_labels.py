"""Boxes and masks of rows with sizes of their own: in the format, through the pack, in the reader, and under random crops."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Tune, photo
from PIL import Image
from redecoding import rows_of_other_sources
from tensordict import TensorDict
from test_boxes import SIDES, boxes_of, coco, rectangle

from packer import pack
from packer.operations.show import contact_sheet
from packer.operations.verify import verify
from packer.store.manifest_file import manifest_head
from reader import ImageBatch, MemmapDataset, RaggedBatch, RandomResizedCrop, ResizeCenterCrop
from reader.epoch import in_epoch
from reader.format import manifest as manifests
from reader.format.check import metadata_files
from reader.format.errors import StoreError
from reader.format.manifest import manifest_of, read_manifest

GOLDEN = Path(__file__).parents[1] / "golden" / "own-masks"


def values(n: int, size: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(n).integers(0, 5, size[::-1], dtype=np.uint8)


SIZES = [(90, 60), (40, 64), (130, 41), (77, 77), (20, 120), (64, 48), (33, 50)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven images of sizes of their own, a mask of 0 to 4 for each, and boxes for all but the last."""
    root = tmp_path_factory.mktemp("sources")
    for folder in ("images", "masks"):
        (root / folder).mkdir()
    boxes = []
    for n, size in enumerate(SIZES):
        photo(*size, n).save(root / "images" / f"{n}.png")
        Image.fromarray(values(n, size)).save(root / "masks" / f"{n}.png")
        boxes += [(f"{n}.png", [3 * k, 5, size[0] / 2, size[1] / 3]) for k in range(n % 3 + 1) if n < 6]
    coco(root / "coco.json", {f"{n}.png": size for n, size in enumerate(SIZES)}, boxes)
    return root


def packed(sources: Path, out: Path, **options: Any) -> Path:
    given = {"fit": "none", "boxes": sources / "coco.json", "masks": sources / "masks", "workers": 1}
    pack(sources / "images", out, **{**given, **options})
    return out


@pytest.fixture(scope="module")
def own_store(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seven, packed; no test may change them."""
    return packed(sources, tmp_path_factory.mktemp("own") / "out")


# -- the format


def test_the_golden_store_of_own_masks_loads_forever() -> None:
    data = MemmapDataset(GOLDEN)
    head, store = data.manifest, data.store
    assert (head.has_own_masks, store.mask_offsets.tolist()) == (True, [18, 36, 55])
    for r in range(3):
        height, width, _ = store.image(r).shape
        y, x, c = np.ogrid[:height, :width, :3]
        assert np.array_equal(store.image(r).numpy(), (97 * r + 13 * y + 7 * x + 31 * c) % 256)
        assert np.array_equal(store.mask(r).numpy(), (10 * r + 3 * y + x)[:, :, 0])
    assert verify(GOLDEN).problems == []


@pytest.mark.parametrize("has_own_sizes", [False, True], ids=["alone", "beside an extra"])
def test_own_masks_without_own_sizes_or_beside_other_masks_are_refused(has_own_sizes: bool) -> None:
    head = manifest_head(read_manifest(GOLDEN)) | {"own_sizes": has_own_sizes}
    if has_own_sizes:
        head["extras"] = {"masks": {"dtype": "uint8", "shape": [4, 5]}}
    with pytest.raises(StoreError, match="says own_masks, expected own_sizes with it, and no extra 'masks' beside it"):
        manifest_of(head)


def test_the_meta_json_of_own_masks_is_what_tensordict_writes(own_store: Path, tmp_path: Path) -> None:
    data = MemmapDataset(own_store)
    head, store = data.manifest, data.store
    store.clone().memmap(tmp_path)
    for name, content in metadata_files(head).items():
        assert (tmp_path / name).read_bytes() == content
    assert torch.equal(RaggedBatch.load_memmap(own_store).mask(3), store.mask(3))


def test_a_mask_that_is_not_behind_its_image_is_refused(own_store: Path, tmp_path: Path) -> None:
    shutil.copytree(own_store, tmp_path / "own")
    offsets = np.memmap(tmp_path / "own/_tensordict/mask_offsets.memmap", np.int64, "r+")
    offsets[2], offsets[4] = 1 << 40, -1
    offsets.flush()
    data = MemmapDataset(tmp_path / "own", as_tuple=False)
    for row in (2, 4):
        for index in (row, [0, row]):
            with pytest.raises(StoreError, match=f"row {row}: it is not within the pixels"):
                data[index]
    assert [problem.file for problem in verify(tmp_path / "own").problems] == ["_tensordict/mask_offsets.memmap"]


# -- packing


@pytest.mark.parametrize("max_size", [None, 50, "short:30"])
def test_boxes_and_masks_are_scaled_as_their_image(sources: Path, tmp_path: Path, max_size: Any) -> None:
    data = MemmapDataset(packed(sources, tmp_path / "out", max_size=max_size), as_tuple=False)
    found = boxes_of(tmp_path / "out")
    for n, (width, height) in enumerate(SIZES):
        row = data[n]
        new_height, new_width, _ = row.pixels.shape
        nearest = Image.fromarray(values(n, (width, height))).resize((new_width, new_height), Image.Resampling.NEAREST)
        assert np.array_equal(row.extras["masks"], np.asarray(nearest))
        across, down = new_width / width, new_height / height
        for k, corners in enumerate(found[n]):
            expected = [3 * k * across, 5 * down, (3 * k + width / 2) * across, (5 + height / 3) * down]
            assert corners == pytest.approx(expected, rel=1e-5)
    assert [len(boxes) for boxes in found] == [1, 2, 3, 1, 2, 3, 0]
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", sources / "images") == []
    # mean and std are of pixels alone
    total = np.sum([data[n].pixels.numpy().sum((0, 1), dtype=np.int64) for n in range(7)], axis=0)
    count = sum(data[n].pixels[..., 0].numel() for n in range(7))
    assert data.manifest.mean == pytest.approx(total / count / 255, rel=1e-12)


def test_a_drawn_rectangle_is_under_its_box_and_mask_however_exif_turns_it(tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for orientation in SIDES:
        image = rectangle(tmp_path / "images", orientation)
        image.convert("L").save(tmp_path / "masks" / f"{orientation}.png")
    names: dict[str, tuple[int, int] | None] = {f"{orientation}.png": (300, 200) for orientation in SIDES}
    coco(tmp_path / "coco.json", names, [(name, [90, 50, 80, 80]) for name in names])
    data = MemmapDataset(packed(tmp_path, tmp_path / "out", max_size=150), as_tuple=False)
    for row, boxes in enumerate(boxes_of(tmp_path / "out")):
        for lit in (data[row].pixels[..., 0] > 127, data[row].extras["masks"] > 127):
            ys, xs = np.nonzero(lit.numpy())
            assert np.abs(np.subtract(boxes[0], [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])).max() <= 1
    assert {tuple(data[row].pixels.shape[:2]) for row in range(8)} == {(100, 150), (150, 100)}


def test_room_for_rows_and_their_masks_is_allocated_before_decoding(sources: Path, tmp_path: Path) -> None:
    steps = []
    packed(sources, tmp_path / "out", progress=steps.append)
    size_bytes = (tmp_path / "out" / manifests.PIXELS).stat().st_size
    assert {progress.total for progress in steps if progress.stage == "allocate"} == {size_bytes}


def test_what_is_wrong_with_a_mask_rejects_its_image(sources: Path, tmp_path: Path) -> None:
    shutil.copytree(sources, tmp_path / "bad")
    Image.fromarray(values(0, (60, 90))).save(tmp_path / "bad/masks/0.png")
    (tmp_path / "bad/masks/1.png").unlink()
    report = pack(tmp_path / "bad/images", tmp_path / "out", fit="none", masks=tmp_path / "bad/masks", workers=1)
    assert report.reasons == {
        "its mask 0.png: it has 60 x 90 pixels, the image 90 x 60": 1,
        "it has no mask 1.png": 1,
    }
    assert [
        tuple(row.shape)
        for row in (MemmapDataset(tmp_path / "out", as_tuple=False)[n].extras["masks"] for n in range(5))
    ] == [size[::-1] for size in SIZES[2:]]


def test_show_draws_both_over_rows_of_their_own_sizes(sources: Path, own_store: Path, tmp_path: Path) -> None:
    pack(sources / "images", tmp_path / "plain", fit="none", workers=1)
    drawn, plain = (np.asarray(contact_sheet(out, rows=[3])).astype(int) for out in (own_store, tmp_path / "plain"))
    # a mask of random values leaves no area as it was
    assert drawn.shape != plain.shape or (np.abs(drawn - plain).max(-1) > 8).mean() > 0.2


# -- reading


@pytest.mark.parametrize("transform", [RandomResizedCrop((20, 24), seed=4), ResizeCenterCrop(24, fraction=0.875)])
def test_crops_move_boxes_and_masks_as_those_of_each_image_alone(own_store: Path, transform: Any, tune: Tune) -> None:

    tune(masks_per_pass=2)
    data = MemmapDataset(own_store, as_tuple=False)
    batch = data[[5, 0, 3, 6, 2]]
    with in_epoch(3):
        made = transform(batch)
        for n, row in enumerate(batch.rows.tolist()):
            one = data[row]
            extras = TensorDict({name: value[None] for name, value in one.extras.items()}, batch_size=[1])
            alone = ImageBatch(one.pixels[None], one.targets[None], None, extras, one.rows[None], batch_size=[1])
            expected = transform(alone)
            assert torch.equal(made.pixels[n], expected.pixels[0])
            for name in ("masks", "box_count", "box_targets"):
                assert torch.equal(made.extras[name][n], expected.extras[name][0])
            assert torch.allclose(made.extras["boxes"][n], expected.extras["boxes"][0])
    assert made.extras["box_count"].sum() > 3
    # boxes are over what they name: the centre of a kept box was inside the box before
    assert made.extras["masks"].shape == made.pixels.shape[:3]


def test_made_boxes_and_masks_of_turned_pictures_cover_the_same_pixels(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "scripts.samples.make_sample", tmp_path / "made", "--labels", "--count", "6"]
    subprocess.run(words, check=True, capture_output=True, cwd=Path(__file__).parents[2])
    options: dict[str, Any] = {"max_size": 240, "boxes": tmp_path / "made/labels", "masks": tmp_path / "made/masks"}
    report = pack(tmp_path / "made/images", tmp_path / "out", fit="none", workers=1, **options)
    data = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert (report.rows, data.classes) == (6, ["apple", "lemon", "plum"])
    seen = 0
    for row in (data[n] for n in range(6)):
        targets = row.extras["box_targets"][: row.extras["box_count"]]
        for target in targets.unique().tolist():
            mine = row.extras["boxes"][: len(targets)][targets == target]
            ys, xs = np.nonzero((row.extras["masks"] == target + 1).numpy())
            there = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
            assert np.abs([*mine[:, :2].amin(0).tolist(), *mine[:, 2:].amax(0).tolist()] - np.array(there)).max() <= 1.5
            seen += 1
    assert seen > 4
