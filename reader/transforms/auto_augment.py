"""Augmentation by policies: RandAugment, TrivialAugmentWide, AutoAugment and AugMix, each image by draws of its own.

Magnitudes and tables are those of torchvision's v2; the operations stand in `policy_steps`.
"""

from __future__ import annotations

import torch

from reader.described import Described
from reader.store import ImageBatch, replaced
from reader.transforms.affine import Fill, checked_interpolation
from reader.transforms.kernels import pixel_ops
from reader.transforms.kernels.constants import tensor_on
from reader.transforms.policy_steps import OPERATIONS, Policy, PolicySteps, applied, by_compiled_part, signed, table_of
from reader.transforms.random import (
    AUGMIX,
    AUTO_AUGMENT,
    RAND_AUGMENT,
    TRIVIAL_AUGMENT,
    check_batch,
    draw,
    gammas,
    integer,
    number,
)

# 25 pairs per policy: operation, probability and, if it has one, the index of its magnitude among 10.
_POLICIES = {
    "imagenet": """
    Posterize 0.4 8, Rotate 0.6 9
    Solarize 0.6 5, AutoContrast 0.6
    Equalize 0.8, Equalize 0.6
    Posterize 0.6 7, Posterize 0.6 6
    Equalize 0.4, Solarize 0.2 4
    Equalize 0.4, Rotate 0.8 8
    Solarize 0.6 3, Equalize 0.6
    Posterize 0.8 5, Equalize 1.0
    Rotate 0.2 3, Solarize 0.6 8
    Equalize 0.6, Posterize 0.4 6
    Rotate 0.8 8, Color 0.4 0
    Rotate 0.4 9, Equalize 0.6
    Equalize 0.0, Equalize 0.8
    Invert 0.6, Equalize 1.0
    Color 0.6 4, Contrast 1.0 8
    Rotate 0.8 8, Color 1.0 2
    Color 0.8 8, Solarize 0.8 7
    Sharpness 0.4 7, Invert 0.6
    ShearX 0.6 5, Equalize 1.0
    Color 0.4 0, Equalize 0.6
    Equalize 0.4, Solarize 0.2 4
    Solarize 0.6 5, AutoContrast 0.6
    Invert 0.6, Equalize 1.0
    Color 0.6 4, Contrast 1.0 8
    Equalize 0.8, Equalize 0.6
    """,
    "cifar10": """
    Invert 0.1, Contrast 0.2 6
    Rotate 0.7 2, TranslateX 0.3 9
    Sharpness 0.8 1, Sharpness 0.9 3
    ShearY 0.5 8, TranslateY 0.7 9
    AutoContrast 0.5, Equalize 0.9
    ShearY 0.2 7, Posterize 0.3 7
    Color 0.4 3, Brightness 0.6 7
    Sharpness 0.3 9, Brightness 0.7 9
    Equalize 0.6, Equalize 0.5
    Contrast 0.6 7, Sharpness 0.6 5
    Color 0.7 7, TranslateX 0.5 8
    Equalize 0.3, AutoContrast 0.4
    TranslateY 0.4 3, Sharpness 0.2 6
    Brightness 0.9 6, Color 0.2 8
    Solarize 0.5 2, Invert 0.0
    Equalize 0.2, AutoContrast 0.6
    Equalize 0.2, Equalize 0.6
    Color 0.9 9, Equalize 0.6
    AutoContrast 0.8, Solarize 0.2 8
    Brightness 0.1 3, Color 0.7 0
    Solarize 0.4 5, AutoContrast 0.9
    TranslateY 0.9 9, TranslateY 0.7 9
    AutoContrast 0.9, Solarize 0.8 3
    Equalize 0.8, Invert 0.1
    TranslateY 0.7 9, AutoContrast 0.9
    """,
    "svhn": """
    ShearX 0.9 4, Invert 0.2
    ShearY 0.9 8, Invert 0.7
    Equalize 0.6, Solarize 0.6 6
    Invert 0.9, Equalize 0.6
    Equalize 0.6, Rotate 0.9 3
    ShearX 0.9 4, AutoContrast 0.8
    ShearY 0.9 8, Invert 0.4
    ShearY 0.9 5, Solarize 0.2 6
    Invert 0.9, AutoContrast 0.8
    Equalize 0.6, Rotate 0.9 3
    ShearX 0.9 4, Solarize 0.3 3
    ShearY 0.8 8, Invert 0.7
    Equalize 0.9, TranslateY 0.6 6
    Invert 0.9, Equalize 0.6
    Contrast 0.3 3, Rotate 0.8 4
    Invert 0.8, TranslateY 0.0 2
    ShearY 0.7 6, Solarize 0.4 8
    Invert 0.6, Rotate 0.8 4
    ShearY 0.3 7, TranslateX 0.9 3
    ShearX 0.1 6, Invert 0.6
    Solarize 0.7 2, TranslateY 0.6 7
    ShearY 0.8 4, Invert 0.8
    ShearX 0.7 9, TranslateY 0.8 3
    ShearY 0.8 5, AutoContrast 0.7
    ShearX 0.7 2, Invert 0.1
    """,
}


class RandAugment(Policy):
    """Apply num_ops random operations of one magnitude to each image, as torchvision does. See https://arxiv.org/abs/1909.13719.

    Args:
        num_ops: how many, one after the other.
        magnitude: 0 to num_magnitude_bins - 1, how strong.
        num_magnitude_bins: how many strengths there are.
        interpolation: "nearest" or "bilinear", of what shears, shifts and rotates.
        fill: level beyond the image, or one for each channel; None: 0.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: an argument is not one of these.

    Example:
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
        if not isinstance(num_ops, int) or not 0 <= num_ops <= len(RAND_AUGMENT) // 2:
            raise ValueError(f"num_ops is {num_ops!r}, expected 0 to {len(RAND_AUGMENT) // 2}.")
        magnitude, num_magnitude_bins = integer("magnitude", magnitude), _checked_bins(num_magnitude_bins)
        if not 0 <= magnitude < num_magnitude_bins:
            raise ValueError(f"magnitude is {magnitude!r}, expected 0 to {num_magnitude_bins - 1}.")
        self.num_ops, self.magnitude, self.num_magnitude_bins = num_ops, magnitude, num_magnitude_bins

    def drawn(self, batch: ImageBatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Draw as any policy does."""
        shares = draw(batch, self.seed, RAND_AUGMENT[: 2 * self.num_ops])
        table = table_of(batch, self.num_magnitude_bins, 0.3, 150 / 331, 30, 0.9, 4)[:, self.magnitude]
        steps = []
        for n in range(self.num_ops):
            # all but Invert
            operation = (shares[2 * n] * 14).long()
            steps.append((operation, signed(table[operation], operation, shares[2 * n + 1])))
        return steps


class TrivialAugmentWide(Policy):
    """Apply one random operation of a random magnitude to each image, as torchvision does. See https://arxiv.org/abs/2103.10158.

    Args:
        num_magnitude_bins: how many strengths there are.
        interpolation: "nearest" or "bilinear", of what shears, shifts and rotates.
        fill: level beyond the image, or one for each channel; None: 0.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: an argument is not one of these.
    """

    def __init__(
        self, num_magnitude_bins: int = 31, interpolation: str = "nearest", fill: Fill = None, *, seed: int = 0
    ) -> None:
        super().__init__(interpolation, fill, seed)
        self.num_magnitude_bins = _checked_bins(num_magnitude_bins)

    def drawn(self, batch: ImageBatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Draw as any policy does."""
        which, strength, sign = draw(batch, self.seed, TRIVIAL_AUGMENT)
        operation = (which * 14).long()
        table = table_of(batch, self.num_magnitude_bins, 0.99, None, 135, 0.99, 6)
        magnitude = table[operation, (strength * self.num_magnitude_bins).long()]
        return [(operation, signed(magnitude, operation, sign))]


class AutoAugment(Policy):
    """Apply one of 25 learned pairs of operations to each image, as torchvision does. See https://arxiv.org/abs/1805.09501.

    Args:
        policy: "imagenet", "cifar10" or "svhn"; torchvision's AutoAugmentPolicy is taken too.
        interpolation: "nearest" or "bilinear", of what shears, shifts and rotates.
        fill: level beyond the image, or one for each channel; None: 0.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: there is no such policy.
    """

    def __init__(
        self, policy: str = "imagenet", interpolation: str = "nearest", fill: Fill = None, *, seed: int = 0
    ) -> None:
        super().__init__(interpolation, fill, seed)
        self.policy = str(getattr(policy, "value", policy))
        if self.policy not in _POLICIES:
            raise ValueError(f"policy is {policy!r}, expected one of {', '.join(_POLICIES)}.")
        rows = [
            [_parsed(operation) for operation in line.split(",")]
            for line in _POLICIES[self.policy].split("\n")
            if line.strip()
        ]
        # [25, 2, 3]: operation, probability, number of the magnitude
        self._pairs = torch.tensor(rows, dtype=torch.float64)

    def drawn(self, batch: ImageBatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Draw as any policy does."""
        shares = draw(batch, self.seed, AUTO_AUGMENT)
        pairs = self._pairs.to(batch.pixels.device, non_blocking=True)[(shares[0] * len(self._pairs)).long()]
        table = table_of(batch, 10, 0.3, 150 / 331, 30, 0.9, 4)
        steps = []
        for n in range(2):
            operation, probability, number = pairs[:, n].unbind(1)
            operation = torch.where(shares[1 + 2 * n] < probability, operation, 0).long()
            magnitude = table[operation, number.long()]
            steps.append((operation, signed(magnitude, operation, shares[2 + 2 * n])))
        return steps


class AugMix(Described):
    """Mix each image with chains of random operations on it, as torchvision does. See https://arxiv.org/abs/1912.02781.

    Args:
        severity: 1 to 10, how strong operations are at most.
        mixture_width: how many chains are mixed.
        chain_depth: operations of a chain; below 1 draws 1 to 3 for each.
        alpha: of the Dirichlet and beta distributions that weights are drawn from.
        all_ops: with brightness, contrast, color and sharpness.
        interpolation: "nearest" or "bilinear", of what shears, shifts and rotates.
        fill: level beyond the image, or one for each channel; None: 0.
        seed: with the loader's seed, the epoch, the position and the row, determines what is drawn.

    Raises:
        ValueError: an argument is not one of these.
    """

    def __init__(
        self,
        severity: int = 3,
        mixture_width: int = 3,
        chain_depth: int = -1,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: str = "bilinear",
        fill: Fill = None,
        *,
        seed: int = 0,
    ) -> None:
        severity, mixture_width = integer("severity", severity), integer("mixture_width", mixture_width)
        chain_depth, alpha = integer("chain_depth", chain_depth), number("alpha", alpha)
        if not 1 <= severity <= 10:
            raise ValueError(f"severity is {severity!r}, expected 1 to 10.")
        if mixture_width < 1 or not alpha > 0:
            raise ValueError(
                f"mixture_width is {mixture_width!r} and alpha {alpha!r}, expected 1 or more, and above 0."
            )
        self.severity, self.mixture_width, self.chain_depth = severity, mixture_width, chain_depth
        self.alpha, self.all_ops, self.fill, self.seed = alpha, all_ops, fill, seed
        self.interpolation = checked_interpolation(interpolation)

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Return uint8 pixels of the same shape.

        Raises:
            ValueError: the images have neither 1 nor 3 channels, or the rows boxes or masks: a mixture has several of each.
        """
        check_batch(self, batch)
        pixel_ops.check_channels(self, batch.pixels)
        if batch.extras is not None and not {"boxes", "masks"}.isdisjoint(dict(batch.extras.items())):
            raise ValueError(
                "AugMix mixes images that were moved in several ways: it takes no rows with boxes or masks."
            )
        images = pixel_ops.planes(batch.pixels)
        # of a chain the pixels alone
        bare = replaced(batch, pixels=batch.pixels, content=None, extras=None)
        chains = [self._chain(bare, images, steps) for steps in self.drawn(batch)]
        result = pixel_ops.in_parts(_mixed, images, self.weights(batch), *chains)
        return replaced(batch, pixels=pixel_ops.interleaved(result), content=batch.content, extras=batch.extras)

    def _chain(self, batch: ImageBatch, images: torch.Tensor, steps: PolicySteps) -> torch.Tensor:
        """Make uint8[B, C, H, W], what one chain makes of the images of a batch."""
        result = by_compiled_part(batch, steps, self.interpolation, self.fill)
        if result is not None:
            return pixel_ops.planes(result)
        result = images.clone()
        for operation, magnitude in steps:
            applied(batch, result, operation, magnitude, self.interpolation, self.fill)
        return result

    def drawn(self, batch: ImageBatch) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
        """Draw the steps of each chain."""
        table = table_of(batch, 10, 0.3, 1 / 3, 30, 0.9, 4, most_bits=4)
        # without Identity and Invert; those of pixels that are not all_ops
        names = [name for name in OPERATIONS[1:14] if self.all_ops or name not in OPERATIONS[6:10]]
        numbers = tensor_on(batch.pixels.device, [OPERATIONS.index(name) for name in names])
        longest = self.chain_depth if self.chain_depth > 0 else 3
        shares = iter(draw(batch, self.seed, range(AUGMIX, AUGMIX + self.mixture_width * (1 + 3 * longest))))
        chains = []
        for _ in range(self.mixture_width):
            depth, steps = next(shares) * 3 + 1, []
            for n in range(longest):
                operation = numbers[(next(shares) * len(numbers)).long()]
                magnitude = table[operation, (next(shares) * self.severity).long()]
                magnitude = signed(magnitude, operation, next(shares))
                is_there = depth > n + 1 if n and self.chain_depth < 1 else torch.ones_like(depth, dtype=torch.bool)
                steps.append((torch.where(is_there, operation, 0), magnitude))
            chains.append(steps)
        return chains

    def weights(self, batch: ImageBatch) -> torch.Tensor:
        """Draw how much the image and each chain count: float32[B, 1 + mixture_width], which sum to 1."""
        first = AUGMIX + (1 << 20)
        two, of_chains = gammas(batch, self.seed, first, 2 + self.mixture_width, self.alpha).split(
            [2, self.mixture_width]
        )
        shares = two / two.sum(0)
        return torch.cat([shares[:1], shares[1:] * of_chains / of_chains.sum(0)]).T.float()


def _mixed(images: torch.Tensor, weights: torch.Tensor, *chains: torch.Tensor) -> torch.Tensor:
    result = torch.zeros_like(images, dtype=torch.float32)
    for part, weight in zip((images, *chains), weights.unbind(1), strict=True):
        result.add_(part.float().mul_(weight.view(-1, 1, 1, 1)))
    return pixel_ops.levels_of(result)


def _parsed(operation: str) -> list[float]:
    """Read "Rotate 0.6 9", or "Equalize 0.6"."""
    name, probability, *number = operation.split()
    return [OPERATIONS.index(name), float(probability), float(number[0]) if number else 0.0]


def _checked_bins(bins: int) -> int:
    found = integer("num_magnitude_bins", bins)
    if found < 1:
        raise ValueError(f"num_magnitude_bins is {bins!r}, expected 1 or more.")
    return found
