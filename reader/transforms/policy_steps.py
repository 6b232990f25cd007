"""The operations that policies of augmentation are made of, each image by its own: what, how strong, and done by groups.

Operations and magnitudes are those of torchvision's v2, and one of timm's. Knows no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from reader import compiled
from reader.store import ImageBatch, replaced
from reader.transforms.affine import (
    Fill,
    checked_interpolation,
    grid_lines,
    inverse_matrices,
    levels_beyond,
    moved_labels,
    rotations,
    warping,
)
from reader.transforms.kernels import pixel_ops
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.random import check_batch

# All operations, numbered by position. Those from 1 to 9 have a signed magnitude.
_SHEAR_X, _SHEAR_Y, _TRANSLATE_X, _TRANSLATE_Y, _ROTATE = range(1, 6)
_NAMES = (
    "Identity ShearX ShearY TranslateX TranslateY Rotate Brightness Color Contrast Sharpness Posterize Solarize AutoContrast"
    " Equalize Invert SolarizeAdd"
)
OPERATIONS = tuple(_NAMES.split())
_PIXEL_KERNELS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "Brightness": lambda pixels, magnitude: pixel_ops.brightness(pixels, 1 + magnitude),
    "Color": lambda pixels, magnitude: pixel_ops.saturation(pixels, 1 + magnitude),
    "Contrast": lambda pixels, magnitude: pixel_ops.contrast(pixels, 1 + magnitude),
    "Sharpness": lambda pixels, magnitude: pixel_ops.sharpness(pixels, 1 + magnitude),
    "Posterize": lambda pixels, magnitude: pixel_ops.posterize(pixels, magnitude.long()),
    "Solarize": lambda pixels, magnitude: pixel_ops.solarize(pixels, 255 * magnitude),
    "AutoContrast": lambda pixels, magnitude: pixel_ops.autocontrast(pixels),
    "Equalize": lambda pixels, magnitude: pixel_ops.equalize(pixels),
    "Invert": lambda pixels, magnitude: pixel_ops.invert(pixels),
    "SolarizeAdd": lambda pixels, magnitude: pixel_ops.solarize_add(pixels, magnitude.long()),
}


# The name of each in the compiled part; operations that move pixels are named by their interpolation.
_KINDS = {
    "Identity": "unchanged",
    "Brightness": "brightness",
    "Color": "saturation",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
    "Posterize": "posterize",
    "Solarize": "solarize",
    "AutoContrast": "autocontrast",
    "Equalize": "equalize",
    "Invert": "invert",
    "SolarizeAdd": "solarize_add",
}
_SOLARIZE, _LAST_FACTOR = OPERATIONS.index("Solarize"), OPERATIONS.index("Sharpness")

# int64[B] operations and float32[B] magnitudes of each step.
PolicySteps = Sequence[tuple[torch.Tensor, torch.Tensor]]


class Policy(compiled.CompiledTransform):
    """Draws operations with magnitudes for each image, and applies them one after the other.

    Boxes, masks and content move with what shears, shifts and rotates.
    """

    def __init__(self, interpolation: str, fill: Fill, seed: int) -> None:
        self.interpolation, self.fill, self.seed = checked_interpolation(interpolation), fill, seed

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return a batch of the same shapes.

        Raises:
            ValueError: the images have neither 1 nor 3 channels.
        """
        check_batch(self, batch)
        pixel_ops.check_channels(self, batch.pixels)
        steps = self.drawn(batch)
        pixels = by_compiled_part(batch, steps, self.interpolation, self.fill)
        if pixels is not None:
            for operation, magnitude in steps:
                batch = _moved_where(batch, operation, magnitude)
            return replaced(batch, pixels=pixels, content=batch.content, extras=batch.extras)
        images = pixel_ops.planes(batch.pixels)
        for operation, magnitude in steps:
            batch = applied(batch, images, operation, magnitude, self.interpolation, self.fill)
        return replaced(batch, pixels=pixel_ops.interleaved(images), content=batch.content, extras=batch.extras)

    def drawn(self, batch: ImageBatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Draw what a call would do: int64[B] operations and float32[B] magnitudes, step by step."""
        raise NotImplementedError


def by_compiled_part(batch: ImageBatch, steps: PolicySteps, interpolation: str, fill: Fill) -> torch.Tensor | None:
    """Make uint8[B, H, W, C] of the pixels of a batch as `applied` does step by step; None if torch must do it."""
    if not steps or not compiled.take_steps(batch.pixels):
        return None
    warping(interpolation, fill, batch.pixels.movedim(-1, 1))  # checks the fill
    of_operation = torch.tensor([compiled.STEPS[_KINDS.get(name, interpolation)] for name in OPERATIONS], device="cpu")
    kinds = torch.stack([of_operation[operation] for operation, _ in steps], 1)
    numbers = torch.zeros(*kinds.shape, 6, device="cpu")
    for n, (operation, magnitude) in enumerate(steps):
        numbers[:, n, 0] = torch.where(_is_factor(operation), 1 + magnitude, magnitude)
        numbers[:, n, 0] *= torch.where(operation == _SOLARIZE, 255, 1)
        is_moved = _is_moved(operation)
        lines = grid_lines(_matrices(batch, operation, magnitude), *batch.pixels.shape[1:3]).view(-1, 6)
        numbers[is_moved, n] = lines[is_moved]
    return compiled.augmented(batch.pixels, kinds, numbers, levels_beyond(fill))


def _is_moved(operation: torch.Tensor) -> torch.Tensor:
    return (operation >= _SHEAR_X) & (operation <= _ROTATE)


def _is_factor(operation: torch.Tensor) -> torch.Tensor:
    return (operation > _ROTATE) & (operation <= _LAST_FACTOR)


def _moved_where(batch: ImageBatch, operation: torch.Tensor, magnitude: torch.Tensor) -> ImageBatch:
    """Move content, boxes and masks of the images that a step shears, shifts or rotates."""
    if batch.content is None and batch.extras is None:
        return batch
    index = _is_moved(operation).nonzero()[:, 0]
    return _with_labels_moved(batch, index, _matrices(batch, operation, magnitude)) if len(index) else batch


def applied(
    batch: ImageBatch,
    images: torch.Tensor,
    operation: torch.Tensor,
    magnitude: torch.Tensor,
    interpolation: str,
    fill: Fill,
) -> ImageBatch:
    """Apply to each of uint8[B, C, H, W], in place, its operation, int64[B]; returns the batch with its labels moved along.

    On CUDA that waits for the device once, to learn who goes where.
    """
    numbers = operation.tolist()
    groups: dict[str, list[int]] = {}
    for index, number in enumerate(numbers):
        name = "moved" if _SHEAR_X <= number <= _ROTATE else OPERATIONS[number]
        groups.setdefault(name, []).append(index)
    for name in sorted(groups.keys() - {"Identity"}):
        if name == "moved":
            matrices = _matrices(batch, operation, magnitude)
            pixel_ops.change(warping(interpolation, fill, images), images, groups[name], matrices)
            batch = _with_labels_moved(batch, tensor_on(images.device, groups[name]), matrices)
        else:
            pixel_ops.change(_PIXEL_KERNELS[name], images, groups[name], magnitude)
    return batch


def _with_labels_moved(batch: ImageBatch, index: torch.Tensor, matrices: torch.Tensor) -> ImageBatch:
    """Move content, boxes and masks of some images; those of the others stay what they are, to the bit."""
    if batch.content is None and batch.extras is None:
        return batch
    moved = moved_labels(batch[index], matrices[index])
    content, extras = batch.content, batch.extras
    if content is not None and moved.content is not None:
        content = content.index_copy(0, index, moved.content)
    if extras is not None and moved.extras is not None:
        extras = extras.clone(recurse=False)
        for name, value in moved.extras.items():
            if name in ("boxes", "box_count", "box_targets", "masks"):
                extras.set(name, extras.get(name).index_copy(0, index, value))
    return replaced(batch, pixels=batch.pixels, content=content, extras=extras)


def _matrices(batch: ImageBatch, operation: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
    """Give float64[B, 2, 3] as `affine.inverse_matrices` does, the identity for operations that move nothing."""
    strength, one, none = (
        magnitude.double(),
        torch.ones_like(magnitude).double(),
        torch.zeros(len(operation), 2).double(),
    )
    none = none.to(magnitude.device, non_blocking=True)

    def only(number: int, value: torch.Tensor) -> torch.Tensor:
        """Keep a value where this operation was drawn, and set 0 elsewhere."""
        return torch.where(operation == number, value, 0.0)

    shear = torch.stack([only(_SHEAR_X, strength), only(_SHEAR_Y, strength)], 1).atan().rad2deg()
    # in whole pixels, cut
    shift = torch.stack([only(_TRANSLATE_X, strength), only(_TRANSLATE_Y, strength)], 1).trunc()
    matrices = inverse_matrices(batch, only(0, strength), shift, one, none)
    # sheared around the upper left corner, turned around the middle
    sheared = inverse_matrices(batch, only(0, none[:, 0]), none, one, shear, (0.0, 0.0))
    turned = rotations(batch, only(_ROTATE, strength).remainder(360))
    kind = operation.view(-1, 1, 1)
    is_shear = (kind == _SHEAR_X) | (kind == _SHEAR_Y)
    return torch.where(is_shear, sheared, torch.where(kind == _ROTATE, turned, matrices))


def table_of(
    batch: ImageBatch,
    bins: int,
    shear: float,
    shift: float | None,
    turn: float,
    factor: float,
    bits: int,
    most_bits: int = 8,
) -> torch.Tensor:
    """Give float32[16, bins], how strong each operation is: up to this shear, this share of a side, these degrees, this factor.

    shift: None is 32 pixels. Posterize keeps most_bits, down to so many bits less.
    """
    height, width = batch.pixels.shape[1:3]
    across, down = (32.0, 32.0) if shift is None else (shift * width, shift * height)
    table = torch.zeros(len(OPERATIONS), bins)
    for number, most in enumerate([shear, shear, across, down, turn, factor, factor, factor, factor], 1):
        table[number] = torch.linspace(0, most, bins)
    table[OPERATIONS.index("Posterize")] = (most_bits - torch.arange(bins) / ((bins - 1) / bits)).round()
    table[OPERATIONS.index("Solarize")] = torch.linspace(1, 0, bins)
    return table.to(batch.pixels.device, non_blocking=True)


def signed(magnitude: torch.Tensor, operation: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Turn half of the magnitudes that have a sign around."""
    has_sign = (operation >= 1) & (operation <= 9)
    return torch.where(has_sign & (share <= 0.5), -magnitude, magnitude)
