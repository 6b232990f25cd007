"""Steps that change levels, separate for each image: one table of their kinds, and one executor.

The compiled part runs all steps of an image while it is in the cache. On other devices, or if it is not built, torch's
kernels run them, within a level. Draws nothing, and knows no labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from reader import compiled
from reader.described import Described
from reader.host_values import sent
from reader.store import ImageBatch, RaggedBatch, replaced, row_of
from reader.transforms.fills import Fill, levels_beyond
from reader.transforms.kernels import pixel_ops
from reader.transforms.kernels.regions import by_image, written
from reader.transforms.kernels.warping import warped
from reader.transforms.random import check_batch, host_batch

# Maps images uint8[B, C, H, W] and a step's numbers float32[B, 6] to uint8[B, C, H, W].
_Kernel = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_NUMBERS = 6

# Numbered as in pixel_steps.h. Brightness to sharpness take a factor, posterize bits, solarize the lowest inverted level,
# solarize_add levels, hue a share of a turn.
_KERNELS: dict[str, _Kernel] = {
    "unchanged": lambda images, _: images,
    "brightness": lambda images, numbers: pixel_ops.brightness(images, numbers[:, 0]),
    "saturation": lambda images, numbers: pixel_ops.saturation(images, numbers[:, 0]),
    "contrast": lambda images, numbers: pixel_ops.contrast(images, numbers[:, 0]),
    "sharpness": lambda images, numbers: pixel_ops.sharpness(images, numbers[:, 0]),
    "posterize": lambda images, numbers: pixel_ops.posterize(images, numbers[:, 0].long()),
    "solarize": lambda images, numbers: pixel_ops.solarize(images, numbers[:, 0]),
    "autocontrast": lambda images, _: pixel_ops.autocontrast(images),
    "equalize": lambda images, _: pixel_ops.equalize(images),
    "invert": lambda images, _: pixel_ops.invert(images),
    "solarize_add": lambda images, numbers: pixel_ops.solarize_add(images, numbers[:, 0].long()),
    "grayscale": lambda images, _: pixel_ops.grayscale(images),
    "hue": lambda images, numbers: pixel_ops.hue(images, numbers[:, 0]),
}
# The first two also take the fill; their numbers are the lines of a grid, float32[2, 3]; blur a deviation and taps across and
# down.
STEPS = {name: number for number, name in enumerate((*_KERNELS, "nearest", "bilinear", "blur"))}
_NAMES = tuple(STEPS)


@dataclass(frozen=True)
class Program:
    """Steps of each image, one after the other; on the host.

    kinds: int64[B, S] of `STEPS`. numbers: float32[B, S, 6]. fill: levels outside moved images.
    """

    kinds: torch.Tensor
    numbers: torch.Tensor
    fill: Fill = None

    @classmethod
    def from_kinds(cls, kinds: torch.Tensor, numbers: torch.Tensor, fill: Fill = None) -> Program:
        """Make a program from kinds int64[B, S] and numbers: float[B, S], one per step, or [B, S, 2, 3]."""
        given = torch.zeros(*kinds.shape, _NUMBERS, device="cpu")
        if numbers.ndim == kinds.ndim:
            given[..., 0] = numbers
        else:
            given[:] = numbers.flatten(-2)
        return cls(kinds, given, fill)

    @classmethod
    def joined(cls, programs: Sequence[Program]) -> Program:
        """Join programs that move no pixels into one."""
        return cls(torch.cat([each.kinds for each in programs], 1), torch.cat([each.numbers for each in programs], 1))

    def where(self, is_chosen: torch.Tensor) -> Program:
        """Keep only the steps of images chosen by bool[B]."""
        return replace(self, kinds=self.kinds * is_chosen[:, None])

    def run(self, pixels: torch.Tensor) -> torch.Tensor:
        """Apply all steps to uint8[B, H, W, C]; returns the same shape.

        Raises:
            ValueError: the fill has neither one level nor one per channel.
        """
        fill = levels_beyond(self.fill)
        if fill is not None and len(fill) not in (1, pixels.shape[-1]):
            raise ValueError(
                f"fill is {self.fill!r}, expected one level, or one for each of {pixels.shape[-1]} channels."
            )
        if compiled.take_steps(pixels):
            return compiled.augmented(pixels, self.kinds, self.numbers, fill)
        images = pixels.movedim(-1, 1).clone(memory_format=torch.contiguous_format)
        for kinds, numbers in zip(self.kinds.unbind(1), self.numbers.unbind(1), strict=True):
            for kind in sorted({*kinds.tolist()} - {STEPS["unchanged"]}):
                chosen = kinds == kind
                index = sent(chosen.nonzero()[:, 0], images.device)
                kernel = _kernel(_NAMES[kind], fill, numbers[chosen][0].tolist())
                images[index] = pixel_ops.in_parts(kernel, images[index], sent(numbers[chosen], images.device))
        return images.movedim(1, -1).contiguous()

    def run_each(self, batch: RaggedBatch) -> RaggedBatch:
        """Return a batch with changed images of the same sizes; there is no fill, since no pixels move."""
        kinds, numbers = self.kinds, self.numbers
        if compiled.take_channels(batch.pixels, pixel_ops.channels_of(batch)):
            return written(
                batch,
                torch.uint8,
                lambda n, image, out: compiled.augment_into(image, kinds[n], numbers[n], None, out),
            )

        def change(n: int, image: torch.Tensor) -> torch.Tensor:
            """Run the steps of one image."""
            return Program(kinds[n : n + 1], numbers[n : n + 1]).run(image[None])[0]

        return by_image(batch, change)


class LevelTransform(Described):
    """Changes the levels of each image by a program; boxes, masks and content stay, and padding changes like any pixel."""

    # whether channels are independent, so that any number is allowed
    _takes_any_channels = False

    def program(self, batch: ImageBatch | RaggedBatch) -> Program:
        """Draw the steps of a call; batch: on the host, its pixels are not read.

        Raises:
            ValueError: the images have neither 1 nor 3 channels, and torchvision's transform needs that.
        """
        if not self._takes_any_channels:
            pixel_ops.check_channels(self, batch)
        return self._steps(batch)

    def _steps(self, batch: ImageBatch | RaggedBatch) -> Program:
        raise NotImplementedError

    def __call__(self, batch: ImageBatch | RaggedBatch) -> Any:
        """Return uint8 pixels of the same shape.

        Raises:
            ValueError: the images have neither 1 nor 3 channels, and torchvision's transform needs that.
        """
        check_batch(self, batch)
        return changed(batch, self.program(host_batch(batch)))


class RowTransform(Described):
    """A transform that changes images of different sizes one after the other."""

    def __call__(self, batch: ImageBatch | RaggedBatch) -> Any:
        """Return a batch of the same shapes.

        Raises:
            ValueError: the rows have boxes or masks that would have to move, or the transform does not take these channels.
        """
        check_batch(self, batch)
        return changed_by_row(self, batch) if isinstance(batch, RaggedBatch) else self._changed(batch)

    def _changed(self, batch: ImageBatch) -> ImageBatch:
        raise NotImplementedError


def changed(batch: ImageBatch | RaggedBatch, program: Program) -> Any:
    """Return the batch with its pixels changed by a program."""
    if isinstance(batch, RaggedBatch):
        return program.run_each(batch)
    return replaced(batch, pixels=program.run(batch.pixels), content=batch.content, extras=batch.extras)


def changed_by_row(transform: Callable[[ImageBatch], Any], batch: RaggedBatch) -> RaggedBatch:
    """Call a transform that keeps sizes with each image as a batch of one; boxes and masks move along."""
    result: RaggedBatch = batch.replace(pixels=compiled.copied(batch.pixels))
    of_rows: list[Any] = []
    for n in range(len(batch)):
        made = transform(row_of(batch, n)[None])
        result.image(n).copy_(made.pixels[0])
        if (mask := result.mask(n)) is not None:
            mask.copy_(made.extras.pop("masks")[0])
        of_rows.append(made.extras)
    extras: Any = torch.cat(of_rows) if batch.extras is not None and of_rows else batch.extras
    changed: RaggedBatch = result.replace(extras=extras)
    return changed


def _kernel(name: str, fill: Sequence[float] | None, first: list[float]) -> _Kernel:
    """Return the kernel of a step; first: its numbers for one image; all images have the same taps."""
    if name == "blur":
        taps = int(first[1]), int(first[2])
        return lambda images, numbers: pixel_ops.gaussian_blur(images, numbers[:, 0], taps)
    if name in _KERNELS:
        return _KERNELS[name]
    return lambda images, numbers: warped(images, numbers.view(-1, 2, 3), name, fill)
