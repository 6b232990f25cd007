"""Augmentation by policies, with separate draws for each image: RandAugment, TrivialAugmentWide, and timm's RandAugment.

Operations, magnitudes and tables are those of torchvision's v2 and of timm.
"""

from __future__ import annotations

import math
import re

import torch

from reader.store import ImageBatch, replaced
from reader.transforms.affine import POINTWISE, grid_lines, inverse_matrices
from reader.transforms.fills import Fill
from reader.transforms.kernels import pixel_ops
from reader.transforms.labels import refuse_labels
from reader.transforms.program import STEPS, Program, RowTransform
from reader.transforms.random import (
    RAND_AUGMENT,
    TIMM_RAND_AUGMENT,
    TRIVIAL_AUGMENT,
    draw,
    host_batch,
    integer,
    one_of,
)

# All operations, numbered by position, and their kind of step; for those that move pixels, the interpolation. Operations 1 to
# 9 have a signed magnitude.
_KINDS = {
    "Identity": "unchanged",
    "ShearX": "",
    "ShearY": "",
    "TranslateX": "",
    "TranslateY": "",
    "Rotate": "",
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
OPERATIONS = tuple(_KINDS)
_SHEAR_X, _SHEAR_Y, _TRANSLATE_X, _TRANSLATE_Y, _ROTATE = range(1, 6)
_SOLARIZE, _LAST_FACTOR = OPERATIONS.index("Solarize"), OPERATIONS.index("Sharpness")
# In timm's order: it draws one of these 15 with equal probability.
_ENHANCING = ("Color", "Contrast", "Brightness", "Sharpness")
_MOVING = ("ShearX", "ShearY", "TranslateX", "TranslateY")
_TIMM = ("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", *_ENHANCING, *_MOVING)
_STRENGTHS = 10
_DRAWS = 4
_SECTION = re.compile(r"(mstd|mmax|inc|m|n|p)(\d+(?:\.\d*)?|inf)")

# int64[B] operations and float32[B] magnitudes of each step.
PolicySteps = list[tuple[torch.Tensor, torch.Tensor]]


class Policy(RowTransform):
    """Draws operations with magnitudes for each image, and applies them one after the other; refuses boxes and masks."""

    def __init__(self, interpolation: str, fill: Fill, seed: int) -> None:
        self.interpolation, self.fill, self.seed = one_of("interpolation", interpolation, POINTWISE), fill, seed

    def _changed(self, batch: ImageBatch) -> ImageBatch:
        refuse_labels(self, batch)
        pixel_ops.check_channels(self, batch)
        return self.applied(batch, self.drawn(host_batch(batch)))

    def applied(self, batch: ImageBatch, steps: PolicySteps) -> ImageBatch:
        """Apply operations with magnitudes, step by step."""
        if not steps:
            return batch
        size = batch.pixels.shape[1:3]
        kinds = torch.tensor([STEPS[_KINDS[name] or self.interpolation] for name in OPERATIONS], device="cpu")
        program = Program(
            torch.stack([kinds[operation] for operation, _ in steps], 1),
            torch.stack([_numbers(*step, grid_lines(_matrices(batch, *step), *size)) for step in steps], 1),
            self.fill,
        )
        return replaced(batch, pixels=program.run(batch.pixels), content=None, extras=batch.extras)

    def drawn(self, batch: ImageBatch) -> PolicySteps:
        """Draw the operations of a call, step by step; batch: on the host, its pixels are not read."""
        raise NotImplementedError


class RandAugment(Policy):
    """Apply num_ops random operations of one magnitude to each image, as torchvision does. See https://arxiv.org/abs/1909.13719.

    Args:
        num_ops: number of operations, one after the other.
        magnitude: strength, 0 to num_magnitude_bins - 1.
        num_magnitude_bins: number of strengths.
        interpolation: "nearest" or "bilinear", for shears, shifts and rotations.
        fill: level outside the image, or one for each channel; None: 0.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: an argument is not one of these.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> RandAugment()(batch).images.shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: str = "nearest",
        fill: Fill = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(interpolation, fill, seed)
        self.num_ops = integer("num_ops", num_ops, 0, len(RAND_AUGMENT) // 2)
        self.num_magnitude_bins = integer("num_magnitude_bins", num_magnitude_bins, 1)
        self.magnitude = integer("magnitude", magnitude, 0, self.num_magnitude_bins - 1)

    def drawn(self, batch: ImageBatch) -> PolicySteps:
        """Draw the operations of a call."""
        shares = draw(batch, self.seed, RAND_AUGMENT[: 2 * self.num_ops])
        table = _table_of(batch, self.num_magnitude_bins, 0.3, 150 / 331, 30, 0.9, 4)[:, self.magnitude]
        steps = []
        for n in range(self.num_ops):
            # all except Invert
            operation = (shares[2 * n] * 14).long()
            steps.append((operation, _signed(table[operation], operation, shares[2 * n + 1])))
        return steps


class TrivialAugmentWide(Policy):
    """Apply one random operation of a random magnitude to each image, as torchvision does. See https://arxiv.org/abs/2103.10158.

    Args:
        num_magnitude_bins: number of strengths.
        interpolation: "nearest" or "bilinear", for shears, shifts and rotations.
        fill: level outside the image, or one for each channel; None: 0.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: an argument is not one of these.
    """

    def __init__(
        self, num_magnitude_bins: int = 31, interpolation: str = "nearest", fill: Fill = None, *, seed: int = 0
    ) -> None:
        super().__init__(interpolation, fill, seed)
        self.num_magnitude_bins = integer("num_magnitude_bins", num_magnitude_bins, 1)

    def drawn(self, batch: ImageBatch) -> PolicySteps:
        """Draw the operations of a call."""
        which, strength, sign = draw(batch, self.seed, TRIVIAL_AUGMENT)
        operation = (which * 14).long()
        table = _table_of(batch, self.num_magnitude_bins, 0.99, None, 135, 0.99, 6)
        magnitude = table[operation, (strength * self.num_magnitude_bins).long()]
        return [(operation, _signed(magnitude, operation, sign))]


class TimmRandAugment(Policy):
    """Apply operations to each image as timm's rand_augment_transform(config_str) does, each drawn and skipped separately.

    Unlike in timm, images are sheared, shifted and rotated by one interpolation (timm draws bilinear or bicubic), and shifts
    are truncated to whole pixels. Pixels are torchvision's, within 1 level of Pillow's except for Color, Contrast and Sharpness.

    Args:
        config_str: "rand" and sections: m9 the strength of 10, mstd0.5 its standard deviation (above 100: any from 0 to m),
            mmax its limit; n2 the number of operations, p0.5 the probability of each; inc1 operations that grow with the
            strength.
        interpolation: "nearest" or "bilinear", for shears, shifts and rotations.
        fill: level outside the image, or one for each channel: in timm, the mean of its normalization.
        seed: with the loader's seed, the epoch, the position and the row, determines the random numbers.

    Raises:
        ValueError: config_str has an unknown section.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> TimmRandAugment("rand-m9-mstd0.5-inc1")(batch).images.shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        config_str: str = "rand-m9-mstd0.5-inc1",
        interpolation: str = "bilinear",
        fill: Fill = (124, 116, 104),
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(interpolation, fill, seed)
        given = {"m": 10.0, "mstd": 0.0, "mmax": 10.0, "n": 2.0, "p": 0.5, "inc": 0.0, **_sections(config_str)}
        self.config_str, self.magnitude, self.magnitude_max = config_str, given["m"], given["mmax"]
        self.magnitude_std = math.inf if given["mstd"] > 100 else given["mstd"]
        # timm takes any digits after inc for yes
        self.num_layers, self.prob, self.is_increasing = int(given["n"]), given["p"], "-inc" in config_str
        if not 0 <= self.num_layers <= len(TIMM_RAND_AUGMENT) // _DRAWS or not 0 <= self.prob <= 1:
            raise ValueError(f"config_str is {config_str!r}, expected n0 to n32, and p0 to p1.")

    def drawn(self, batch: ImageBatch) -> PolicySteps:
        """Draw the operations of a call; a skipped one is 0, Identity."""
        if self.num_layers == 0:
            return []
        shares = draw(batch, self.seed, TIMM_RAND_AUGMENT[: _DRAWS * self.num_layers])
        numbers = torch.tensor([OPERATIONS.index(name) for name in _TIMM], device="cpu")
        steps = []
        for which, chance, sign, strength in shares.split(_DRAWS):
            choice = (which * len(_TIMM)).long()
            magnitude = self._magnitudes(self._levels(strength), sign > 0.5, batch).gather(0, choice[None])[0]
            steps.append((torch.where(chance <= self.prob, numbers[choice], 0), magnitude.float()))
        return steps

    def _levels(self, share: torch.Tensor) -> torch.Tensor:
        """Draw strengths, float64[B] of 0 to 10."""
        if self.magnitude_std == math.inf:
            level = share * self.magnitude
        else:
            # the normal distribution's quantile, which is infinite at 0
            level = self.magnitude + self.magnitude_std * torch.special.ndtri(share.clamp(2**-54, 1 - 2**-53))
        return level.clamp(0, self.magnitude_max)

    def _magnitudes(self, level: torch.Tensor, is_negative: torch.Tensor, batch: ImageBatch) -> torch.Tensor:
        """Return float64[15, B], the magnitude of each operation, in timm's order."""
        height, width = batch.pixels.shape[1:3]
        share, is_inc = level / _STRENGTHS, self.is_increasing
        sign = torch.where(is_negative, -1.0, 1.0)
        bits, threshold = (share * 4).trunc(), (share * 256).trunc().clamp(max=256)
        most = {"Rotate": 30.0, "ShearX": 0.3, "ShearY": 0.3, "TranslateX": 0.45 * width, "TranslateY": 0.45 * height}
        of_name = {name: sign * share * most[name] for name in most}
        factor = (1 + sign * share * 0.9).clamp(min=0.1) if is_inc else share * 1.8 + 0.1
        of_name |= dict.fromkeys(_ENHANCING, factor - 1)
        # above 10, the strength may give an invalid number of bits
        of_name["Posterize"] = (4 - bits if is_inc else bits).clamp(0, 8)
        # half a level less, since a share of 255 is rounded up again
        of_name["Solarize"] = ((256 - threshold if is_inc else threshold) - 0.5) / 255
        of_name["SolarizeAdd"] = (share * 110).trunc().clamp(max=128)
        return torch.stack([of_name.get(name, torch.zeros_like(share)) for name in _TIMM])


def _sections(config_str: str) -> dict[str, float]:
    """Parse "rand-m9-mstd0.5" to {"m": 9, "mstd": 0.5}."""
    first, *sections = config_str.split("-")
    found = [_SECTION.fullmatch(section) for section in sections]
    if first != "rand" or not all(found):
        raise ValueError(
            f"config_str is {config_str!r}, expected rand and sections of m, n, p, mstd, mmax and inc, such as"
            " rand-m9-mstd0.5-inc1."
        )
    return {match[1]: float(match[2]) for match in found if match}


def _numbers(operation: torch.Tensor, magnitude: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
    """Return float32[B, 6], the numbers of a program's step; lines: float32[B, 2, 3], matrices of moved images."""
    is_moved = (operation >= _SHEAR_X) & (operation <= _ROTATE)
    is_factor = (operation > _ROTATE) & (operation <= _LAST_FACTOR)
    number = torch.where(is_factor, 1 + magnitude, magnitude) * torch.where(operation == _SOLARIZE, 255, 1)
    alone = torch.nn.functional.pad(number[:, None], (0, 5))
    return torch.where(is_moved[:, None], lines.reshape(-1, 6), alone)


def _matrices(batch: ImageBatch, operation: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
    """Return float64[B, 2, 3] as `affine.inverse_matrices` does, the identity for operations that move nothing."""
    shear_x, shear_y, across, down, angle = (
        torch.where(operation == number, magnitude.double(), 0.0) for number in range(_SHEAR_X, _ROTATE + 1)
    )
    shear = torch.stack([shear_x, shear_y], 1).atan().rad2deg()
    # in whole pixels, truncated
    shift = torch.stack([across, down], 1).trunc()
    given = -angle.remainder(360), shift, torch.ones_like(angle), shear
    # sheared around the upper left corner, turned around the middle
    is_sheared = (operation == _SHEAR_X) | (operation == _SHEAR_Y)
    around_corner, around_middle = inverse_matrices(batch, *given, (0.0, 0.0)), inverse_matrices(batch, *given)
    return torch.where(is_sheared[:, None, None], around_corner, around_middle)


def _table_of(
    batch: ImageBatch,
    bins: int,
    shear: float,
    shift: float | None,
    turn: float,
    factor: float,
    bits: int,
) -> torch.Tensor:
    """Return float32[16, bins], the magnitudes of each operation: shears, shares of a side, degrees or factors.

    shift: None means 32 pixels. Posterize keeps 8 bits, or up to `bits` fewer.
    """
    height, width = batch.pixels.shape[1:3]
    across, down = (32.0, 32.0) if shift is None else (shift * width, shift * height)
    table = torch.zeros(len(OPERATIONS), bins, dtype=torch.float32, device="cpu")
    for number, most in enumerate([shear, shear, across, down, turn, factor, factor, factor, factor], 1):
        table[number] = torch.linspace(0, most, bins, dtype=torch.float32, device="cpu")
    table[OPERATIONS.index("Posterize")] = (8 - torch.arange(bins, device="cpu") / ((bins - 1) / bits)).round()
    table[OPERATIONS.index("Solarize")] = torch.linspace(1, 0, bins, dtype=torch.float32, device="cpu")
    return table


def _signed(magnitude: torch.Tensor, operation: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Negate half of the magnitudes that have a sign."""
    has_sign = (operation >= 1) & (operation <= 9)
    return torch.where(has_sign & (share <= 0.5), -magnitude, magnitude)
