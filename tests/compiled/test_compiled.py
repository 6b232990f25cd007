"""The compiled part of transforms: torch's bytes of crops, its levels of steps, on any number of threads, within its memory."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from augmenting import by_torch, difference, pictures, resized
from detecting import detections

from reader import ImageBatch, MemmapDataset, MemmapLoader, Normalize, compiled, native, transforms
from reader.epoch import on_threads_of
from reader.store import replaced
from reader.transforms import (
    ColorJitter,
    Compose,
    GaussianBlur,
    MultiView,
    RandAugment,
    RandomApply,
    RandomCrop,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    RandomSolarize,
    ResizeCenterCrop,
)
from reader.transforms.program import STEPS

pytestmark = pytest.mark.skipif(not compiled.is_built(), reason="the compiled part is not built here")

SIZE = (44, 57)
# memory of this size and more is used again
POOLED_BYTES = 1 << 20


def images_of(count: int, channels: int) -> torch.Tensor:
    """Pictures, one of them of noise, with any number of channels."""
    pixels = pictures(count, size=SIZE).pixels
    return torch.cat([pixels, pixels.flip(0)], -1)[..., :channels].contiguous()


def boxes_of(count: int) -> torch.Tensor:
    """The whole image, a single pixel in its last corner, whole lines and columns, and boxes at random."""
    boxes, (height, width) = RandomResizedCrop(1).boxes(pictures(count, size=SIZE)), SIZE
    boxes[:4] = torch.tensor(
        [
            [0, 0, width, height],
            [width - 1, height - 1, width, height],
            [0, height - 1, width, height],
            [width - 2, 0, width, height],
        ]
    )[:count]
    return boxes


def grids_of(boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Places in boxes that are resized to larger ones, and for some that keep a side of theirs, or both."""
    draw = torch.randint(0, 30, (4, len(boxes)), generator=torch.Generator().manual_seed(0))
    x0, y0, x1, y1 = boxes.unbind(-1)
    new_height, new_width = height + draw[0], width + draw[1]
    new_height[:12] = torch.maximum(new_height, y1 - y0)[:12]
    new_width[6:18] = torch.maximum(new_width, x1 - x0)[6:18]
    top, left = draw[2] % (new_height - height + 1), draw[3] % (new_width - width + 1)
    return torch.stack([top, left, new_height, new_width], -1)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(24, 24), (7, 64), (100, 90), (44, 57), (1, 1), (3, 200)])
def test_crops_are_torchs_bytes(channels: int, size: tuple[int, int]) -> None:
    pixels, boxes, mirrored = images_of(30, channels), boxes_of(30), torch.arange(30) % 3 == 0
    for grids, is_cubic in itertools.product((None, grids_of(boxes, *size)), (False, True)):
        given = boxes, *size, grids, is_cubic, mirrored
        with by_torch():
            expected = resized(pixels, *given)
        for threads in (1, 3, 200):
            with on_threads_of(threads):
                assert torch.equal(resized(pixels, *given), expected)


def test_sizes_that_halve_or_double_are_torchs_bytes() -> None:
    """Many of their weights are halfway between two integers."""
    pixels = torch.randint(0, 256, (2, 96, 96, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for side, new, is_cubic in itertools.product((96, 64, 48, 31), (12, 16, 24, 32, 48, 96, 192, 224), (False, True)):
        boxes = torch.tensor([[0, 0, side, side], [96 - side, 1, 96, side]])
        with by_torch():
            expected = resized(pixels, boxes, new, new, None, is_cubic)
        assert torch.equal(resized(pixels, boxes, new, new, None, is_cubic), expected)


@pytest.mark.parametrize("kind", ["of four channels", "of other strides", "of two channels", "of no rows"])
def test_pixels_in_any_memory_are_taken(kind: str) -> None:
    pixels = {
        "of four channels": images_of(6, 4)[..., :3],
        "of other strides": images_of(6, 4).movedim(1, 2).contiguous().movedim(1, 2),
        "of two channels": images_of(6, 2),
        "of no rows": images_of(6, 3)[:0],
    }[kind]
    boxes = boxes_of(6)[: len(pixels)]
    with by_torch():
        expected = resized(pixels.contiguous(), boxes, 20, 20)
    assert torch.equal(resized(pixels, boxes, 20, 20), expected)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of functions of the compiled part, as they are called from now on."""
    found: list[str] = []
    functions = native.functions()

    def counted(name: str, function: Any) -> Any:
        return lambda *given: (found.append(name), function(*given))[1]

    for name in ("crops", "augment"):
        monkeypatch.setattr(functions, name, counted(name, getattr(functions, name)))
    return found


@pytest.mark.parametrize("flip", [RandomHorizontalFlip(), RandomHorizontalFlip(0.3)])
@pytest.mark.parametrize(
    "crop", [RandomResizedCrop(31, interpolation="bicubic"), RandomCrop(20, padding=3), ResizeCenterCrop(20)]
)
def test_a_flip_behind_a_crop_is_made_with_it(crop: Any, flip: Any, calls: list[str]) -> None:
    for batch in (pictures(12, size=SIZE), detections(12)):
        expected = flip(crop(batch))
        calls.clear()
        made = Compose([crop, flip])(batch)
        assert calls == ["crops"]
        assert torch.equal(made.pixels, expected.pixels)
        with by_torch():
            assert torch.equal(Compose([crop, flip])(batch).pixels, expected.pixels)
        assert calls == ["crops"]


def test_steps_that_follow_each_other_are_one_call(calls: list[str]) -> None:
    jitter, gray = ColorJitter(0.4, 0.4, 0.2, 0.1), RandomGrayscale(0.2)
    some = RandomApply([jitter, Compose([RandomInvert()])], 0.6)
    chain = [RandomResizedCrop(30), Compose([RandomHorizontalFlip(), some, gray]), RandomSolarize(128, 0.5)]
    recipe, batch = Compose([*chain, RandomApply([GaussianBlur(9)], 0.5)]), pictures(20, size=SIZE)
    made = recipe(batch).pixels
    assert calls == ["crops", "augment"]
    with by_torch():
        assert ((made.int() - recipe(batch).pixels.int()).abs() > 1).float().mean() < 2e-3


def test_a_loader_gives_complete_batches_to_it_and_views_of_the_same_levels(
    shared_store: Path, calls: list[str]
) -> None:
    recipe = Compose([RandomResizedCrop(28), RandomApply([ColorJitter(0.4)], 0.8), GaussianBlur(3)])

    def views() -> list[torch.Tensor]:
        data = MemmapDataset(shared_store)
        with MemmapLoader(data, 30, shuffle="full", seed=1, transform=MultiView([recipe] * 3)) as loader:
            made = [images for images, _ in loader]
        return [torch.cat(each) for each in zip(*made, strict=True)]

    found = views()
    assert calls == ["crops", "augment"] * 9
    with by_torch():
        assert all(difference(*pair) <= 1 for pair in zip(found, views(), strict=True))


def test_a_batch_that_is_kept_is_never_written_over_and_a_dropped_one_is_reused() -> None:
    batch, crop = pictures(40, size=SIZE), RandomResizedCrop(160)
    first = crop(batch)
    assert first.pixels.numel() >= POOLED_BYTES
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


def test_a_loader_that_is_closed_keeps_no_memory_of_crops(shared_store: Path) -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc here")
    with MemmapLoader(MemmapDataset(shared_store), 30, transform=RandomResizedCrop(800)) as loader:
        for images, _ in loader:
            size_bytes = images.numel()
        del images
        gc.collect()
        kept = resident_bytes()
    gc.collect()
    assert kept - resident_bytes() > size_bytes / 2


# -- steps


def batch_of(size: tuple[int, int], channels: int) -> ImageBatch:
    """Pictures, noise, images of one level, and of two."""
    batch = pictures(20, size=size)
    noise = torch.randint(0, 256, (8, *size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    batch.pixels[:8], batch.pixels[8], batch.pixels[9, ::2] = noise, 77, 200
    return replaced(batch, pixels=batch.pixels[..., :channels].contiguous(), content=None, extras=None)


STEPPED = [
    ColorJitter(0.8, 0.8, 0.8, 0.5),
    transforms.RandomSolarize(127.5),
    transforms.RandomPosterize(3),
    transforms.RandomEqualize(),
    transforms.RandomAutocontrast(),
    transforms.RandomAdjustSharpness(2.3),
    transforms.RandomRotation(180, fill=40),
    transforms.RandomAffine(30, (0.3, 0.3), (0.5, 1.5), (-10, 10, -20, 20), "bilinear", None),
    transforms.RandomAffine(90, (0.5, 0.5), fill=[10, 20.5, 300][:1], interpolation="bilinear"),
    GaussianBlur((23, 1), 5),
    RandAugment(4, 30, interpolation="bilinear", fill=9),
    transforms.TrivialAugmentWide(),
    transforms.TimmRandAugment("rand-m9-n4-mstd0.5-inc1", fill=100),
]
STEP_NAMES = [f"{n}-{type(transform).__name__}" for n, transform in enumerate(STEPPED)]


CROPS = [RandomResizedCrop(31), RandomCrop(20, padding=3), ResizeCenterCrop(20), RandomHorizontalFlip()]


@pytest.mark.parametrize("transform", [*CROPS, *STEPPED], ids=lambda transform: type(transform).__name__)
def test_torchs_defaults_change_nothing(transform: Any) -> None:
    batch = pictures(6, size=SIZE)
    expected = transform(batch).pixels
    with torch.device("meta"):
        assert torch.equal(transform(batch).pixels, expected)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(transform(batch).pixels, expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("transform", STEPPED, ids=STEP_NAMES)
def test_steps_are_within_a_level_of_torchs_on_any_number_of_threads(transform: Any, channels: int) -> None:
    for size in ((44, 57), (33, 300), (13, 14)):
        batch = batch_of(size, channels)
        with by_torch():
            expected = transform(batch).pixels.int()
        made = transform(batch).pixels
        with on_threads_of(5):
            assert torch.equal(transform(batch).pixels, made)
        # a later step makes more of a level, and half a pixel is either of two
        assert float(((made.int() - expected).abs() > 1).float().mean()) < 2e-3


@pytest.mark.parametrize("threads", [1, 3])
def test_floats_are_those_of_torch(threads: int) -> None:
    for transform in (Normalize([0.4], [0.2]), Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])):
        for channels in (1, 3):
            for batch in (batch_of((150, 150), channels), detections()):
                with by_torch():
                    expected = transform(batch).pixels
                with on_threads_of(threads):
                    torch.testing.assert_close(transform(batch).pixels, expected, rtol=0, atol=1e-6)


# -- what is refused


# offset, height, width; box; size that it is resized to; window; flags and place
ROW = {"image": [0, 44, 57], "box": [3, 4, 30, 40], "size": [60, 50], "window": [2, 1, 26, 25], "end": [0, 0]}
HUGE = (1 << 63) - 1
WRONG: dict[str, tuple[str, list[list[int]]]] = {
    "the box is empty or outside of the image": (
        "box",
        [[-1, 4, 30, 40], [3, 4, 58, 40], [3, 4, 30, 45], [3, 4, 3, 40], [3, 40, 30, 4], [3, 4, HUGE, 40]],
    ),
    "the image is not all in the pixels that are given": (
        "image",
        [[1, 44, 57], [-1, 44, 57], [0, 45, 57], [HUGE, 44, 57]],
    ),
    "the image has a side outside of 1 to 1,048,576 pixels": ("image", [[0, 1 << 40, 1 << 40], [0, 0, 57]]),
    "the box is resized to a side outside of 1 to 1,048,576 pixels": ("size", [[60, 1 << 32], [0, 50], [-HUGE, 50]]),
    "the window has a side outside of 1 to 1,048,576 pixels": (
        "window",
        [
            *([2, 1, 2, 25], [2, 25, 26, 1], [-HUGE, 1, HUGE, 25]),
            *([0, 0, 1, HUGE], [-HUGE, 0, -HUGE + 1, 1], [0, 0, 1 << 21, 1]),
        ],
    ),
    "the crop is not all in the memory to write": ("end", [[0, -1], [0, 1], [0, HUGE], [0, -HUGE]]),
}


@pytest.mark.parametrize("message", WRONG)
def test_numbers_that_lead_out_of_the_pixels_are_refused(message: str) -> None:
    pixels, result, (name, wrong) = (
        images_of(1, 3).view(-1),
        torch.zeros(24 * 24 * 3, dtype=torch.uint8),
        WRONG[message],
    )
    for numbers in wrong:
        rows = [list(itertools.chain(*row.values())) for row in (ROW, ROW | {name: numbers})]
        assert compiled.crop(pixels, np.array(rows[:1]), result, 3, bytes(3))
        with pytest.raises(ValueError, match=f"^row 1: {message}$"):
            compiled.crop(pixels, np.array(rows), result, 3, bytes(3))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_nothing_beside_the_crops_is_written(channels: int) -> None:
    pixels = images_of(1, channels).numpy()
    for width, flags in itertools.product(range(1, 50), range(16)):
        for size in ([width, 3], [57, 5]):
            # as many pixels as the box has, copied, or resized
            window = [0, 0, width, 3] if width % 2 else [-1, -2, width - 1, 1]
            table = np.array([[0, *SIZE, 57 - width, 41, 57, 44, *size, *window, flags, 0]])
            around = bytearray(b"x" * (3 * width * channels + 64))
            assert native.functions().crops(pixels, table, memoryview(around)[32:-32], channels, bytes(channels), 1)
            assert around[:32] == around[-32:] == b"x" * 32


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("brightness", [float("nan")]),
        ("contrast", [float("inf")]),
        ("nearest", [1e7]),
        ("posterize", [-1.0]),
        ("posterize", [9.0]),
        ("solarize_add", [256.0]),
        ("solarize_add", [-1.0]),
        ("hue", [1.5]),
        *(("blur", [1, *taps]) for taps in ((2, 1), (1, 2), (41, 1), (1, 41), (-1, 1), (0, 1), (float("nan"), 1))),
        ("blur", [0, 3, 3]),
    ],
)
def test_a_number_out_of_range_is_refused(name: str, given: list[float]) -> None:
    batch = batch_of((20, 20), 3)
    kinds, numbers = torch.zeros(len(batch), 2, dtype=torch.int64), torch.zeros(len(batch), 2, 6)
    kinds[3, 1], numbers[3, 1, : len(given)] = STEPS[name], torch.tensor(given)
    with pytest.raises(ValueError, match=r"^image 3: there is no such step, or a number of it is out of range$"):
        compiled.augmented(batch.pixels, kinds, numbers)
    for kind in (-1, len(STEPS), 1 << 30):
        with pytest.raises(ValueError, match=r"^image 0: there is no such step"):
            compiled.augmented(batch.pixels, torch.full_like(kinds, kind), torch.zeros(len(batch), 2, 6))


PIXELS, STEP, OUT, TABLES = bytes(12), bytes(28), bytearray(12), bytes(3 * 1024)
CROP = np.array([[0, 2, 2, 0, 0, 2, 2, 2, 2, 0, 0, 2, 2, 0, 0]])
# A function, arguments that it takes, and others of wrong sizes in place of some, by number.
SIZES: list[tuple[str, tuple[Any, ...], list[dict[int, Any]]]] = [
    (
        "crops",
        (PIXELS, CROP, OUT, 3, bytes(3), 1),
        [{1: CROP.tobytes()[:-1]}, {3: 2, 4: bytes(2)}, {4: bytes(4)}],
    ),
    (
        "augment",
        (PIXELS, STEP, OUT, (2, 2), 3, 1, None, 1),
        [
            *({1: STEP[:27]}, {5: 2}, {2: OUT[:11]}, {3: (2, 3)}, {3: (0, 2)}, {4: 4}, {5: -1}),
            {6: (float("nan"), 0, 0)},
        ],
    ),
    (
        "floats",
        (PIXELS, TABLES, bytearray(48), 12, 1),
        [{1: TABLES[:-1]}, {2: bytearray(44)}, {1: b""}, *({3: count} for count in (0, -12, 5, 24))],
    ),
]


@pytest.mark.parametrize(("name", "given", "wrong"), SIZES, ids=[name for name, *_ in SIZES])
def test_a_table_or_a_buffer_of_another_size_is_refused(name: str, given: Any, wrong: Any) -> None:
    function = getattr(native.functions(), name)
    assert function(*given) in (True, None)
    for changes in wrong:
        with pytest.raises(ValueError, match="^expected "):
            function(*(changes.get(n, value) for n, value in enumerate(given)))
    with pytest.raises(TypeError):
        function(*(bytes(value) if n == 2 else value for n, value in enumerate(given)))
