"""Crops by the compiled part: torch's bytes, on any number of threads, and nothing outside of the pixels that are given."""

from __future__ import annotations

import contextlib
import gc
import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from augmenting import pictures, resized
from tensordict import TensorDict

from reader import (
    ImageBatch,
    MemmapDataset,
    MemmapLoader,
    RaggedBatch,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ResizeCenterCrop,
    compiled,
)
from reader.buffers import BufferPool
from reader.epoch import on_threads_of
from reader.transforms import Compose
from reader.transforms.view import View

pytestmark = pytest.mark.skipif(not compiled.is_built(), reason="the compiled part is not built here")

SIZE = (44, 57)


@contextmanager
def without_compiled_part() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_function", lambda: None)
        yield


def by_torch(call: Any, *arguments: Any, **named: Any) -> torch.Tensor:
    with without_compiled_part():
        return call(*arguments, **named)


def images_of(count: int, channels: int) -> torch.Tensor:
    """Pictures, one of them of noise, with any number of channels."""
    pixels = pictures(count, size=SIZE).pixels
    return torch.cat([pixels, pixels.flip(0)], -1)[..., :channels].contiguous()


def boxes_of(count: int) -> torch.Tensor:
    """The whole image, a single pixel in its last corner, whole lines and columns, and boxes at random."""
    boxes = RandomResizedCrop(1).boxes(pictures(count, size=SIZE))
    height, width = SIZE
    boxes[0] = torch.tensor([0, 0, width, height])
    boxes[1] = torch.tensor([width - 1, height - 1, width, height])
    boxes[2] = torch.tensor([0, height - 1, width, height])
    boxes[3] = torch.tensor([width - 2, 0, width, height])
    return boxes


def grids_of(boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Places in boxes that are resized to larger ones, and for some that keep a side of theirs, or both."""
    draw = torch.randint(0, 30, (4, len(boxes)), generator=torch.Generator().manual_seed(0))
    x0, y0, x1, y1 = boxes.unbind(-1)
    new_height, new_width = height + draw[0], width + draw[1]
    new_height[:12] = torch.maximum(new_height, y1 - y0)[:12]
    new_width[6:18] = torch.maximum(new_width, x1 - x0)[6:18]
    return torch.stack(
        [draw[2] % (new_height - height + 1), draw[3] % (new_width - width + 1), new_height, new_width], -1
    )


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(24, 24), (7, 64), (100, 90), (44, 57), (1, 1), (3, 200)])
def test_crops_are_torchs_bytes(channels: int, size: tuple[int, int]) -> None:
    pixels, boxes = images_of(30, channels), boxes_of(30)
    for grids, is_cubic in itertools.product((None, grids_of(boxes, *size)), (False, True)):
        found = resized(pixels, boxes, *size, grids, is_cubic)
        assert torch.equal(found, by_torch(resized, pixels, boxes, *size, grids, is_cubic))


def test_sizes_that_halve_or_double_are_torchs_bytes() -> None:
    """Many of their weights are halfway between two integers."""
    pixels = torch.randint(0, 256, (2, 96, 96, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for side in (96, 64, 48, 31):
        boxes = torch.tensor([[0, 0, side, side], [96 - side, 1, 96, side]])
        for new in (12, 16, 24, 32, 48, 96, 192, 224):
            for is_cubic in (False, True):
                found = resized(pixels, boxes, new, new, None, is_cubic)
                assert torch.equal(found, by_torch(resized, pixels, boxes, new, new, None, is_cubic))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_of_their_own_sizes_are_torchs_bytes(channels: int) -> None:
    sizes = [(5 + 7 * n % 50, 3 + 11 * n % 60) for n in range(20)]
    wide = images_of(20, channels).repeat(1, 2, 2, 1)
    images = [row[:height, :width] for row, (height, width) in zip(wide, sizes, strict=True)]
    shapes = torch.tensor([image.shape for image in images], dtype=torch.int32)
    counts = shapes.long().prod(1)
    # the order in memory is another than that of the rows
    flat = torch.cat([image.reshape(-1) for image in reversed(images)])
    offsets = counts.flip(0).cumsum(0).flip(0) - counts
    batch = RaggedBatch(flat, torch.arange(20), offsets, shapes, rows=torch.arange(20), batch_size=[])
    boxes = RandomResizedCrop(1).boxes(batch)
    found = resized(batch, boxes, 20, 31)
    assert torch.equal(found, by_torch(resized, batch, boxes, 20, 31))
    assert torch.equal(ResizeCenterCrop(20)(batch).pixels, by_torch(lambda: ResizeCenterCrop(20)(batch).pixels))


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("width", [1, 5, 6, 7, 16, 33, 57])
def test_cut_and_flipped_pixels_and_masks_are_those_of_the_image(channels: int, width: int, is_compiled: bool) -> None:
    batch = pictures(9, size=SIZE)
    batch.pixels, batch.extras = images_of(9, channels), TensorDict({"masks": images_of(9, 1)[..., 0]}, batch_size=[9])
    # of some a part is beyond the image: nothing of the last
    top, left = torch.arange(9) * 5 - 6, torch.arange(9) * (57 - width) // 7 - 2
    left[8] = -width
    is_mirrored, is_turned = torch.arange(9) % 3 != 0, torch.arange(9) % 2 != 0
    windows = torch.stack([left, top, left + width, top + 9], -1).numpy()
    fill = (7.0, 8.0, 9.0, 10.0)[:channels]
    with contextlib.nullcontext() if is_compiled else without_compiled_part():
        view = View.of(None, batch).cut(windows, (9, width), fill, 40)
        found = view.mirrored(is_mirrored.numpy()).turned(is_turned.numpy()).batch()
    around = torch.tensor(fill, dtype=torch.uint8).expand(9, 100, 180, channels).clone()
    around[:, 20 : 20 + SIZE[0], 60 : 60 + SIZE[1]] = batch.pixels
    masks = torch.full((9, 100, 180), 40, dtype=torch.uint8)
    masks[:, 20 : 20 + SIZE[0], 60 : 60 + SIZE[1]] = batch.extras["masks"]
    for n in range(9):
        axes = [axis for axis, flags in enumerate((is_turned, is_mirrored)) if flags[n]]
        place = n, slice(20 + top[n], 29 + top[n]), slice(60 + left[n], 60 + left[n] + width)
        assert torch.equal(found.pixels[n], around[place].flip(axes))
        assert torch.equal(found.extras["masks"][n], masks[place].flip(axes))


def test_a_mirrored_crop_is_the_crop_mirrored() -> None:
    pixels, boxes = images_of(12, 3), boxes_of(12)
    is_mirrored = torch.arange(12) % 2 == 0
    for grids in (None, grids_of(boxes, 30, 20)):
        found = resized(pixels, boxes, 30, 20, grids, is_mirrored=is_mirrored)
        plain = resized(pixels, boxes, 30, 20, grids)
        for n, image in enumerate(plain):
            assert torch.equal(found[n], image.flip(1) if is_mirrored[n] else image)


def counted_calls(patch: pytest.MonkeyPatch) -> list[Any]:
    """Count the calls of the compiled part from now on."""
    calls: list[Any] = []
    function = compiled._function()
    assert function is not None

    def counted(*arguments: Any) -> bool:
        calls.append(arguments)
        return function(*arguments)

    patch.setattr(compiled, "_function", lambda: counted)
    return calls


@pytest.mark.parametrize("crop", [RandomResizedCrop(20), RandomCrop(20)])
def test_a_loader_makes_a_flip_in_the_pass_of_the_crop_before_it(
    shared_store: Path, crop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, steps = MemmapDataset(shared_store), [crop, RandomHorizontalFlip()]
    wanted = list(MemmapLoader(dataset, 30, seed=1, transform=lambda batch: steps[1](steps[0](batch))))
    calls = counted_calls(monkeypatch)
    found = list(MemmapLoader(dataset, 30, seed=1, transform=Compose(steps)))
    assert len(calls) == len(found) == 3
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(found, wanted, strict=True))


def test_a_loader_that_is_closed_keeps_no_memory_of_crops(shared_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    allocate = BufferPool._allocate

    def watched(pool: BufferPool, size_bytes: int) -> Any:
        memory = allocate(pool, size_bytes)
        made.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(BufferPool, "_allocate", watched)
    compiled.let_go()
    with MemmapLoader(MemmapDataset(shared_store), 30, transform=RandomResizedCrop(200)) as loader:
        for images, _ in loader:
            assert images.numel() > compiled._LEAST_POOLED_BYTES
        del images
        assert any(memory() is not None for memory in made)
    gc.collect()
    assert [memory for memory in made if memory() is not None] == []


@pytest.mark.parametrize("flip", [RandomHorizontalFlip(), RandomHorizontalFlip(0.3)])
@pytest.mark.parametrize("crop", [RandomResizedCrop(31, interpolation="bicubic"), RandomCrop(20, padding=3)])
def test_a_flip_behind_a_crop_is_made_with_it(crop: Any, flip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, both = pictures(12, size=SIZE), Compose([crop, flip])
    expected = flip(crop(batch)).pixels
    calls = counted_calls(monkeypatch)
    assert torch.equal(both(batch).pixels, expected)
    assert len(calls) == 1
    assert torch.equal(by_torch(both, batch).pixels, expected)
    assert 0 < flip.chosen(batch).sum() < 12


@pytest.mark.parametrize("crop", [RandomResizedCrop(31), RandomCrop(20, padding=3)])
def test_boxes_masks_and_content_move_with_a_flip_that_is_made_with_the_crop(crop: Any) -> None:
    batch, flip = pictures(12, size=SIZE), RandomHorizontalFlip()
    batch.content = torch.tensor([[2, 3, 40, 50]], dtype=torch.int32).repeat(12, 1)
    boxes = torch.tensor([[4.0, 5, 30, 35], [20, 10, 44, 33]]).repeat(12, 1, 1)
    extras = {"boxes": boxes, "box_count": torch.full((12,), 2, dtype=torch.int32), "masks": batch.pixels[..., 0]}
    batch.extras = TensorDict(extras, batch_size=[12])
    found, expected = Compose([crop, flip])(batch), flip(crop(batch))
    assert torch.equal(found.pixels, expected.pixels)
    assert (found.content is None) == isinstance(crop, RandomResizedCrop)
    assert found.content is None or torch.equal(found.content, expected.content)
    assert (found.extras == expected.extras).all()


def test_images_of_their_own_sizes_are_cropped_and_flipped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = images_of(8, 3)
    shapes, offsets = torch.tensor([[*SIZE, 3]] * 8, dtype=torch.int32), torch.arange(8) * pixels[0].numel()
    rows = torch.arange(8)
    batch = RaggedBatch(pixels.view(-1), rows, offsets, shapes, rows=rows, batch_size=[])
    calls = counted_calls(monkeypatch)
    crop, flip = RandomResizedCrop(31), RandomHorizontalFlip()
    found = Compose([crop, flip])(batch)
    assert len(calls) == 1
    assert torch.equal(found.pixels, flip(crop(batch)).pixels)
    assert torch.equal(by_torch(Compose([crop, flip]), batch).pixels, found.pixels)


def test_a_crop_of_another_class_is_called_as_it_is() -> None:
    class Crop(RandomResizedCrop):
        def __call__(self, batch: Any) -> ImageBatch:
            made = super().__call__(batch)
            made.pixels = 255 - made.pixels
            return made

    batch, flip = pictures(10, size=SIZE), RandomHorizontalFlip()
    assert torch.equal(Compose([Crop(31), flip])(batch).pixels, flip(Crop(31)(batch)).pixels)


def test_a_batch_that_is_kept_is_never_written_over_and_a_dropped_one_is_reused() -> None:
    batch, crop = pictures(40, size=SIZE), RandomResizedCrop(160)
    first = crop(batch)
    assert first.pixels.numel() >= compiled._LEAST_POOLED_BYTES
    before, address = first.pixels.clone(), first.pixels.data_ptr()
    # a view of a view keeps it, too
    kept = first.images[3:][:, :, 7:]
    del first
    gc.collect()
    others = [RandomResizedCrop(160, seed=seed)(batch) for seed in range(1, 6)]
    assert address not in {other.pixels.data_ptr() for other in others}
    assert torch.equal(kept, before.movedim(-1, 1)[3:][:, :, 7:])
    del kept
    gc.collect()
    assert RandomResizedCrop(160, seed=9)(batch).pixels.data_ptr() == address


@pytest.mark.parametrize("threads", [1, 2, 5, 200])
def test_any_number_of_threads_makes_the_same(threads: int) -> None:
    # enough bytes for several
    pixels, boxes = images_of(40, 3), boxes_of(40)
    expected = by_torch(resized, pixels, boxes, 150, 150)
    with on_threads_of(threads):
        assert torch.equal(resized(pixels, boxes, 150, 150), expected)


@pytest.mark.parametrize(
    "transform", [RandomResizedCrop(31), RandomHorizontalFlip(), RandomCrop(20, padding=3), ResizeCenterCrop(32)]
)
def test_transforms_call_it_and_give_the_same_without_it(transform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pictures(10, size=SIZE)
    expected = by_torch(lambda: transform(batch).pixels)
    calls = counted_calls(monkeypatch)
    assert torch.equal(transform(batch).pixels, expected)
    assert len(calls) == 1


@pytest.mark.parametrize(
    "transform",
    [RandomResizedCrop(31), RandomHorizontalFlip(), RandomCrop(20, padding=3), ResizeCenterCrop(32)],
)
def test_another_default_device_changes_nothing(transform: Any) -> None:
    batch = pictures(6, size=SIZE)
    expected = transform(batch).pixels
    with torch.device("meta"):
        assert torch.equal(transform(batch).pixels, expected)


def test_images_of_their_own_sizes_are_cropped_whatever_the_default_device_is() -> None:
    pixels = images_of(2, 3)
    shapes, offsets = torch.tensor([[*SIZE, 3]] * 2, dtype=torch.int32), torch.tensor([0, pixels[0].numel()])
    boxes = torch.tensor([[0, 0, 30, 40], [5, 6, 57, 44]])
    batch = RaggedBatch(pixels.view(-1), torch.arange(2), offsets, shapes, rows=torch.arange(2), batch_size=[])
    expected = resized(pixels, boxes, 20, 31)
    with torch.device("meta"):
        assert torch.equal(resized(batch, boxes, 20, 31), expected)


@pytest.mark.parametrize("kind", ["of four channels", "of other strides", "of two channels", "of no rows"])
def test_pixels_in_any_memory_are_taken(kind: str) -> None:
    pixels = {
        "of four channels": images_of(6, 4)[..., :3],
        "of other strides": images_of(6, 4).movedim(1, 2).contiguous().movedim(1, 2),
        "of two channels": images_of(6, 2),
        "of no rows": images_of(6, 3)[:0],
    }[kind]
    boxes = boxes_of(6)[: len(pixels)]
    assert torch.equal(resized(pixels, boxes, 20, 20), by_torch(resized, pixels.contiguous(), boxes, 20, 20))


# offset, height, width; box; size that it is resized to; window; flags and place
ROW = {"image": [0, 44, 57], "box": [3, 4, 30, 40], "size": [60, 50], "window": [2, 1, 26, 25], "end": [0, 0]}
HUGE = (1 << 63) - 1
NO_BOX, NO_IMAGE = "the box is empty or outside of the image", "the image is not all in the pixels that are given"
NO_SIDE = "the image has a side outside of 1 to 1,048,576 pixels"
NO_SIZE = "the box is resized to a side outside of 1 to 1,048,576 pixels"
NO_WINDOW, NO_PLACE = (
    "the window has a side outside of 1 to 1,048,576 pixels",
    "the crop is not all in the memory to write",
)


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        *(("box", box, NO_BOX) for box in ([-1, 4, 30, 40], [3, 4, 58, 40], [3, 4, 30, 45], [3, 4, 3, 40])),
        *(("box", box, NO_BOX) for box in ([3, 40, 30, 4], [3, 4, HUGE, 40])),
        *(("image", image, NO_IMAGE) for image in ([1, 44, 57], [-1, 44, 57], [0, 45, 57], [HUGE, 44, 57])),
        *(("image", image, NO_SIDE) for image in ([0, 1 << 40, 1 << 40], [0, 0, 57])),
        *(("size", size, NO_SIZE) for size in ([60, 1 << 32], [0, 50], [-HUGE, 50])),
        *(("window", window, NO_WINDOW) for window in ([2, 1, 2, 25], [2, 25, 26, 1], [-HUGE, 1, HUGE, 25])),
        *(("window", window, NO_WINDOW) for window in ([0, 0, 1, HUGE], [-HUGE, 0, -HUGE + 1, 1], [0, 0, 1 << 21, 1])),
        *(("end", [0, place], NO_PLACE) for place in (-1, 1, HUGE, -HUGE)),
        ("window", [2, 1, 26, 26], NO_PLACE),
    ],
)
def test_numbers_that_lead_out_of_the_pixels_are_refused(name: str, numbers: list[int], message: str) -> None:
    rows = [list(itertools.chain(*row.values())) for row in (ROW, ROW | {name: numbers})]
    pixels, result = images_of(1, 3).view(-1), torch.zeros(24 * 24 * 3, dtype=torch.uint8)
    assert compiled.crop(pixels, np.array(rows[:1]), result, 3, bytes(3))
    with pytest.raises(ValueError, match=f"^row 1: {message}$"):
        compiled.crop(pixels, np.array(rows), result, 3, bytes(3))


def test_a_table_or_a_fill_of_another_size_is_refused() -> None:
    function: Any = compiled._function()
    pixels, out = bytes(300), bytearray(27)
    row = torch.tensor([[0, 10, 10, 0, 0, 5, 5, 3, 3, 0, 0, 3, 3, 0, 0]]).numpy()
    assert function(pixels, row, out, 3, bytes(3), 1)
    for table, channels, fill in ((row.tobytes()[:-1], 3, bytes(3)), (row, 2, bytes(2)), (row, 3, bytes(4))):
        with pytest.raises(ValueError, match="expected"):
            function(pixels, table, out, channels, fill, 1)
    with pytest.raises(TypeError):
        function(pixels, row, bytes(27), 3, bytes(3), 1)


def test_a_loader_gives_complete_batches_to_it_and_the_same_pixels(
    shared_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, counts = MemmapDataset(shared_store), []
    transform = Compose([RandomResizedCrop(24), RandomHorizontalFlip()])
    on = RandomResizedCrop.on

    def counted(crop: RandomResizedCrop, view: View) -> View:
        counts.append(len(view.source))
        return on(crop, view)

    monkeypatch.setattr(RandomResizedCrop, "on", counted)

    def epoch() -> torch.Tensor:
        with MemmapLoader(dataset, 30, shuffle="full", seed=1, transform=transform) as loader:
            return torch.cat([images for images, _ in loader])

    found = epoch()
    assert {*counts} == {30}
    assert torch.equal(found, by_torch(epoch))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_nothing_beside_the_crops_is_written(channels: int) -> None:
    function: Any = compiled._function()
    pixels = images_of(1, channels)
    for width, flags in itertools.product(range(1, 50), range(16)):
        for size in ([width, 3], [57, 5]):
            # as many pixels as the box has, copied, or resized
            window = [0, 0, width, 3] if width % 2 else [-1, -2, width - 1, 1]
            table = torch.tensor([[0, *SIZE, 57 - width, 41, 57, 44, *size, *window, flags, 0]]).numpy()
            around = bytearray(b"x" * (3 * width * channels + 64))
            assert function(pixels.numpy(), table, memoryview(around)[32:-32], channels, bytes(channels), 1)
            assert around[:32] == around[-32:] == b"x" * 32
