"""Steps of augmentation by the compiled part: the bytes of the torch kernels, on any number of threads, nothing out of range."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from augmenting import pictures
from tensordict import TensorDict

from reader import ColorJitter, ImageBatch, MemmapDataset, MemmapLoader, Normalize, compiled, native, transforms
from reader.epoch import on_threads_of
from reader.store import replaced
from reader.transforms import Compose
from reader.transforms.program import STEPS

pytestmark = pytest.mark.skipif(not compiled.is_built(), reason="the compiled part is not built here")


@contextmanager
def without_compiled_part() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_function", lambda: None)
        yield


def batch_of(size: tuple[int, int], channels: int, count: int = 20) -> ImageBatch:
    """Pictures, noise, images of one level, and of two."""
    batch = pictures(count, size=size)
    pixels = batch.pixels.clone()
    noise = torch.randint(0, 256, (8, *size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels[:8], pixels[8], pixels[9, ::2] = noise, 77, 200
    return replaced(batch, pixels=pixels[..., :channels].contiguous(), content=None, extras=None)


def levels_of(transform: Any, batch: ImageBatch) -> torch.Tensor:
    made = transform(batch)
    pixels: torch.Tensor = made.pixels if isinstance(made, ImageBatch) else made
    return pixels


RANDOM = [
    ColorJitter(0.8, 0.8, 0.8, 0.5),
    ColorJitter(brightness=(0, 3)),
    ColorJitter(contrast=(0, 3)),
    ColorJitter(saturation=(0, 3), hue=0.1),
    transforms.RandomGrayscale(0.5),
    transforms.RandomInvert(),
    transforms.RandomSolarize(127.5),
    transforms.RandomPosterize(3),
    transforms.RandomPosterize(0),
    transforms.RandomPosterize(8),
    transforms.RandomEqualize(),
    transforms.RandomAutocontrast(),
    transforms.RandomAdjustSharpness(0),
    transforms.RandomAdjustSharpness(2.3),
    transforms.RandomRotation(180, fill=40),
    transforms.RandomRotation((90, 90)),
    transforms.RandomRotation(30, "bilinear", fill=200.5),
    transforms.RandomAffine(30, (0.3, 0.3), (0.5, 1.5), 20),
    transforms.RandomAffine(30, (0.3, 0.3), (0.5, 1.5), (-10, 10, -20, 20), "bilinear", None),
    transforms.GaussianBlur(1),
    transforms.GaussianBlur((9, 3), (0.1, 2.0)),
    transforms.GaussianBlur((23, 1), 5),
    transforms.RandAugment(),
    transforms.RandAugment(4, 30, interpolation="bilinear", fill=9),
    transforms.TrivialAugmentWide(),
    transforms.TrivialAugmentWide(interpolation="bilinear"),
    transforms.TimmRandAugment("rand-m9-n4-mstd0.5-inc1", fill=100),
]
FLOATS = [
    Normalize([0], [1]),
    Normalize([0], [1], torch.float16),
    Compose([Normalize([0.48], [0.22])]),
]
NAMES = [f"{n}-{type(transform).__name__}" for n, transform in enumerate(RANDOM + FLOATS)]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("transform", RANDOM + FLOATS, ids=NAMES)
def test_steps_are_the_bytes_of_the_kernels_of_torch(transform: Any, channels: int) -> None:
    if channels == 3 and transform is FLOATS[-1]:
        transform = Compose([Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    blurs = isinstance(transform, transforms.GaussianBlur)
    for size in ((44, 57), (13, 14) if blurs else (2, 9), (33, 300)):
        batch = batch_of(size, channels)
        found = levels_of(transform, batch)
        with without_compiled_part():
            expected = levels_of(transform, batch)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


@pytest.fixture(scope="module")
def plain_c(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The compiled part as other processors than x86-64 have it."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler")
    built = tmp_path_factory.mktemp("plain") / "_native.so"
    sources = sorted(Path(native.__file__).parent.glob("*.c"))
    flags = [
        "-O2",
        "-shared",
        "-fPIC",
        "-ffp-contract=off",
        "-DPIXPACK_PLAIN_C",
        f"-I{sysconfig.get_paths()['include']}",
    ]
    subprocess.run([compiler, *flags, *map(str, sources), "-ljpeg", "-lm", "-o", str(built)], check=True)
    spec = importlib.util.spec_from_file_location("_native", built)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("transform", RANDOM, ids=NAMES[: len(RANDOM)])
def test_the_code_for_other_processors_is_within_a_level(
    transform: Any, plain_c: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of((44, 57), 3)
    with without_compiled_part():
        expected = levels_of(transform, batch).int()
    monkeypatch.setattr(compiled, "_functions", lambda: plain_c)
    is_far = (levels_of(transform, batch).int() - expected).abs() > 1
    # a later step makes more of a level, and half a pixel is either of two
    assert float(is_far.float().mean()) < 2e-3


@pytest.mark.parametrize("transform", [*FLOATS[:2], Compose([Normalize([0.4] * 3, [0.2] * 3)])])
def test_floats_are_in_planes_as_those_of_a_dataloader(transform: Any) -> None:
    batch = batch_of((44, 57), 3)
    for made in (transform(batch), transform(batch[:1])):
        assert made.images.is_contiguous()
    with without_compiled_part():
        assert transform(batch).images.is_contiguous()
    # levels stay as they are on disk
    assert batch.images.is_contiguous(memory_format=torch.channels_last)


def test_a_fill_for_each_channel_is_that_of_torch() -> None:
    batch = batch_of((44, 57), 3)
    for interpolation in ("nearest", "bilinear"):
        transform = transforms.RandomAffine(90, (0.5, 0.5), fill=[10, 20.5, 300], interpolation=interpolation)
        found = levels_of(transform, batch)
        with without_compiled_part():
            assert torch.equal(found, levels_of(transform, batch))


def test_boxes_and_masks_move_as_without_it() -> None:
    batch = pictures(24, size=(44, 57))
    boxes = torch.tensor([[[5.0, 6, 30, 40], [0, 0, 0, 0]]]).repeat(24, 1, 1)
    masks = (batch.pixels[..., 0] > 128).to(torch.uint8)
    extras = {"boxes": boxes, "box_count": torch.ones(24, dtype=torch.int32), "masks": masks}
    batch.extras = TensorDict(extras, batch_size=[24])
    for transform in (transforms.TrivialAugmentWide(), transforms.RandomRotation(30)):
        found = transform(batch)
        with without_compiled_part():
            expected = transform(batch)
        assert torch.equal(found.pixels, expected.pixels)
        for name in extras:
            assert torch.equal(found.extras[name], expected.extras[name])


@pytest.mark.parametrize("threads", [1, 2, 5, 200])
def test_any_number_of_threads_makes_the_same(threads: int) -> None:
    batch = batch_of((150, 150), 3)
    transform = Compose([transforms.RandAugment(), Normalize([0.5] * 3, [0.5] * 3)])
    with without_compiled_part():
        expected = transform(batch).pixels
    with on_threads_of(threads):
        assert torch.equal(transform(batch).pixels, expected)


def test_each_transform_calls_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, batch = [], batch_of((20, 20), 3)
    augmented = compiled.augmented

    def counted(*arguments: Any) -> torch.Tensor | None:
        calls.append(arguments)
        return augmented(*arguments)

    monkeypatch.setattr(compiled, "augmented", counted)
    every = [transform for transform in RANDOM if not isinstance(transform, transforms.GaussianBlur)]
    for transform in every:
        transform(batch)
    assert len(calls) == len(every)


def test_steps_that_follow_each_other_are_one_call_and_the_bytes_of_the_kernels_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jitter, gray = ColorJitter(0.4, 0.4, 0.2, 0.1), transforms.RandomGrayscale(0.2)
    some = transforms.RandomApply([jitter, Compose([transforms.RandomInvert()])], 0.6)
    inner = Compose([transforms.RandomHorizontalFlip(), some, gray])
    blur = transforms.RandomApply([transforms.GaussianBlur(9)], 0.5)
    chain = Compose([transforms.RandomResizedCrop(30), inner, transforms.RandomSolarize(128, 0.5), blur])
    batch, calls = batch_of((44, 57), 3), []
    augmented, cropped = compiled.augmented, compiled._functions().crops
    with without_compiled_part():
        expected, alone = chain(batch).pixels, some(batch).pixels
    monkeypatch.setattr(compiled, "augmented", lambda *given: (calls.append("steps"), augmented(*given))[1])
    monkeypatch.setattr(compiled, "_function", lambda: lambda *given: (calls.append("crops"), cropped(*given))[1])
    assert torch.equal(chain(batch).pixels, expected)
    # the flip is made with the crop
    assert calls == ["crops", "steps"]
    assert torch.equal(some(batch).pixels, alone)
    assert not torch.equal(alone, batch.pixels)


def test_a_loader_gives_views_that_are_those_of_the_torch_kernels(shared_store: Path) -> None:
    jitter = transforms.RandomApply([ColorJitter(0.4)], 0.8)
    recipe = Compose([transforms.RandomResizedCrop(28), jitter, transforms.GaussianBlur(3)])

    def views() -> list[torch.Tensor]:
        data = MemmapDataset(shared_store)
        with MemmapLoader(data, 64, shuffle=True, seed=1, transform=transforms.MultiView([recipe] * 3)) as loader:
            return [torch.cat(made) for made, _ in loader]

    found = views()
    with without_compiled_part():
        assert all(torch.equal(*pair) for pair in zip(found, views(), strict=True))


def test_where_it_declines_torch_does_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of((20, 20), 3)
    expected = [levels_of(transform, batch) for transform in RANDOM]
    for name in ("augmented", "blurred"):
        monkeypatch.setattr(compiled, name, lambda *_: None)
    assert all(torch.equal(levels_of(t, batch), made) for t, made in zip(RANDOM, expected, strict=True))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("brightness", float("nan")),
        ("contrast", float("inf")),
        ("nearest", 1e7),
        ("posterize", -1.0),
        ("posterize", 9.0),
        ("solarize_add", 256.0),
        ("solarize_add", -1.0),
        ("hue", 1.5),
    ],
)
def test_a_number_out_of_range_is_refused(name: str, number: float) -> None:
    batch = batch_of((20, 20), 3)
    kinds, numbers = torch.zeros(len(batch), 2, dtype=torch.int64), torch.zeros(len(batch), 2, 6)
    kinds[3, 1], numbers[3, 1, 0] = STEPS[name], number
    with pytest.raises(ValueError, match=r"^image 3: there is no such step, or a number of it is out of range$"):
        compiled.augmented(batch.pixels, kinds, numbers)
    for kind in (-1, len(STEPS), 1 << 30):
        with pytest.raises(ValueError, match=r"^image 0: there is no such step"):
            compiled.augmented(batch.pixels, torch.full_like(kinds, kind), torch.zeros(len(batch), 2, 6))


def test_a_table_or_a_buffer_of_another_size_is_refused() -> None:
    functions: Any = compiled._functions()
    pixels, step, out = bytes(12), bytes(28), bytearray(12)
    assert functions.augment(pixels, step, out, (2, 2), 3, 1, None, 1)
    for given in (
        (pixels, step[:27], out, (2, 2), 3, 1, None),
        (pixels, step, out, (2, 2), 3, 2, None),
        (pixels, step, out[:11], (2, 2), 3, 1, None),
        (pixels, step, out, (2, 3), 3, 1, None),
        (pixels, step, out, (0, 2), 3, 1, None),
        (pixels, step, out, (2, 2), 4, 1, None),
        (pixels, step, out, (2, 2), 3, -1, None),
        (pixels, step, out, (2, 2), 3, 1, (float("nan"), 0, 0)),
    ):
        with pytest.raises(ValueError, match="^expected "):
            functions.augment(*given, 1)
    weights = bytes(16)
    assert functions.blur(pixels, weights, out, (2, 2), 3, (3, 1), 1)
    for pair in ((3, 3), (2, 2), (1, 1), (5, -1), (0, 1)):
        with pytest.raises(ValueError, match="^expected complete images, odd kernels"):
            functions.blur(pixels, weights, out, (2, 2), 3, pair, 1)
    for given in ((weights[1:], out, (2, 2)), (weights, out[1:], (2, 2)), (weights, out, (2, 0))):
        with pytest.raises(ValueError, match="^expected complete images, odd kernels"):
            functions.blur(pixels, *given, 3, (3, 1), 1)
    tables = bytes(3 * 1024)
    functions.floats(pixels, tables, bytearray(48), 12, 1)
    for given in (
        (pixels, tables[:-1], bytearray(48), 12),
        (pixels, tables, bytearray(44), 12),
        (pixels, b"", bytearray(48), 12),
    ):
        with pytest.raises(ValueError, match="^expected complete images"):
            functions.floats(*given, 1)
    for image_bytes in (0, -12, 5, 24):
        with pytest.raises(ValueError, match="^expected complete images"):
            functions.floats(pixels, tables, bytearray(48), image_bytes, 1)
