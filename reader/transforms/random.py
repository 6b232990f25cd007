"""Random numbers as a function of (seed, epoch, position in the epoch's order, row), for any ranks and batch sizes.

A batch carries these values. Never uses torch's generators, so a transform does not affect the model's randomness.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from reader.epoch import current_epoch
from reader.host_values import on_host, sent
from reader.store import Batch, ImageBatch, RaggedBatch

# The streams of each transform: no two transforms share one, so two with the same seed draw differently. A change would alter
# every user's augmentation.
FLIP = range(1)
CROP = range(1, 3)
RESIZED_CROP = range(3, 25)
COLOR_JITTER = range(25, 28)
COLOR_ORDER = range(28, 30)
GRAYSCALE = range(30, 31)
BLUR = range(31, 32)
SOLARIZE = range(32, 33)
POSTERIZE = range(33, 34)
EQUALIZE = range(34, 35)
AUTOCONTRAST = range(35, 36)
SHARPNESS = range(36, 37)
INVERT = range(37, 38)
ROTATION = range(38, 39)
AFFINE = range(39, 45)
ERASING = range(45, 68)
APPLY = range(68, 69)
CHOICE = range(69, 70)
TRIVIAL_AUGMENT = range(71, 74)
SCALE_JITTER = range(85, 86)
SHORTEST_SIZE = range(86, 87)
FIXED_SIZE_CROP = range(87, 88)
VERTICAL_FLIP = range(99, 100)
RAND_AUGMENT = range(128, 256)
TIMM_RAND_AUGMENT = range(384, 512)
# The first streams: for two gamma numbers, and for a place.
MIXUP, CUTMIX = 256, 320

# The first stream for numbers of pixels.
_NOISE_STREAM = 1 << 20
# Tries for a gamma number: one fails in at most 1 of 20 cases.
_GAMMA_TRIES = 8

# The limits of a number: minimum, maximum, and a description.
Limits = tuple[float, float, str]
_LARGEST = sys.float_info.max
ANY: Limits = (-math.inf, math.inf, "")
FINITE: Limits = (-_LARGEST, _LARGEST, " that is finite")
POSITIVE: Limits = (math.ulp(0.0), _LARGEST, " above 0")
FACTOR: Limits = (0, _LARGEST, " of 0 or more")
SHARE: Limits = (0, 1, " from 0 to 1")
LEVEL: Limits = (0, 255, " from 0 to 255")
TURN: Limits = (-0.5, 0.5, " from -0.5 to 0.5")
SMOOTH = ("bilinear", "bicubic")

# Odd 64-bit constants, without small relations between them.
_A_SEED, _AN_EPOCH, _A_POSITION, _A_LOADER, _A_STREAM = (
    0x9E3779B97F4A7C15,
    0xD1B54A32D192ED03,
    0xD6E8FEB86659FD93,
    0xBF58476D1CE4E5B9,
    0x8CB92BA72F3D8DD7,
)
# The shifts and factors of splitmix64's finaliser.
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def check_batch(transform: object, batch: object) -> None:
    """Check the argument of a transform.

    Raises:
        TypeError: it is not a batch, but its tuple, or a tensor; or its pixels are floats.
        ValueError: it is one row.
    """
    name = type(transform).__name__
    if not isinstance(batch, Batch):
        raise TypeError(
            f"{name} takes a whole ImageBatch, and was given a {type(batch).__name__}: give it to the loader,"
            f" MemmapLoader(..., transform={name}(...)), or read with as_tuple=False."
        )
    if isinstance(batch, ImageBatch) and batch.pixels.ndim != 4:
        raise ValueError(
            f"pixels have the shape {list(batch.pixels.shape)}, expected [B, H, W, C]: give a batch, not a row, such as"
            " dataset[3:4]."
        )
    if batch.pixels.dtype != torch.uint8:
        raise TypeError(f"{name} takes uint8 pixels, and these are {batch.pixels.dtype}. Let it come before Normalize.")


def number(name: str, value: object, limits: Limits = ANY) -> float:
    """Convert a number of any type to a Python int or float; raises ValueError with the name."""
    least, most, words = limits
    found = value.item() if isinstance(value, torch.Tensor | np.generic) and value.ndim == 0 else value
    if isinstance(found, int | float) and least <= found <= most:
        return found
    raise ValueError(f"{name} is {value!r}, expected a number{words}.")


def numbers(name: str, value: object, limits: Limits = ANY) -> list[float]:
    """Return a list of numbers; a single one becomes a list of one. Raises ValueError with the name."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        return [number(name, value, limits)]
    return [number(name, each, limits) for each in value]


def span(name: str, value: object, limits: Limits, around: float | None = None) -> tuple[float, float]:
    """Return low and high; one number v, if allowed, gives around - v, but not below the minimum, and around + v.

    Raises:
        ValueError: it is neither, or a limit is exceeded.
    """
    least, most, words = limits
    found = numbers(name, value)
    if len(found) == 1 and around is not None:
        found = [max(least, around - found[0]), around + found[0]]
    if len(found) != 2 or not least <= found[0] <= found[1] <= most:
        one_or = "" if around is None else "one number or "
        raise ValueError(f"{name} is {value!r}, expected {one_or}two numbers{words}, the smaller one first.")
    return found[0], found[1]


def pair(name: str, value: object, limits: Limits) -> tuple[float, float]:
    """Return two numbers; raises ValueError with the name."""
    found = numbers(name, value, limits)
    if len(found) != 2:
        raise ValueError(f"{name} is {value!r}, expected two numbers{limits[2]}.")
    return found[0], found[1]


def integer(name: str, value: object, least: float = -math.inf, most: float = math.inf) -> int:
    """Convert an integer of any type to an int; raises ValueError with the name."""
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name} is {value!r}, expected an integer.") from None
    if not least <= found <= most:
        raise ValueError(f"{name} is {value!r}, expected {least}{' or more' if most == math.inf else f' to {most}'}.")
    return found


def sides(name: str, value: object, least: int = 1) -> tuple[int, ...]:
    """Return lengths in pixels; a single one becomes a list of one. Raises ValueError with the name."""
    return tuple(integer(name, side, least) for side in numbers(name, value))


def checked_size(size: object) -> tuple[int, int]:
    """Return (height, width), equal for a single side; raises ValueError."""
    found = sides("size", size)
    if len(found) not in (1, 2):
        raise ValueError(f"size is {size!r}, expected pixels: one number, or height and width.")
    return found[0], found[-1]


def one_of(name: str, value: object, names: Sequence[str]) -> str:
    """Return one of several names, from text or a member of torchvision's enumeration; raises ValueError with the name."""
    found = getattr(value, "value", value)
    if found not in names:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(names)}.")
    return str(found)


def draw(batch: ImageBatch | RaggedBatch, seed: int, streams: range | np.ndarray) -> torch.Tensor:
    """Draw float64[len(streams), B] in [0, 1) for the rows of a batch, on its device.

    Hashes (seed, origin or epoch, stream, row) by splitmix64's finaliser, in wrapping uint64. Uses numpy: torch's operators
    on so few numbers take ten times as long, and would be launched on a device.

    Raises:
        ValueError: the batch does not know its rows, or seed is not an integer.
    """
    if batch.rows is None:
        raise ValueError("the batch has no rows, from which the randomness is drawn. Take batches from a MemmapLoader.")
    seed, rows = integer("seed", seed), batch.rows
    value, epoch = _on_host(rows).long().numpy().view(np.uint64), current_epoch.get()
    if batch.origin is not None:
        epoch, (of_epoch, position, of_loader) = 0, _on_host(batch.origin).long().numpy().view(np.uint64).T
        # a Weyl sequence: two positions never draw alike for one row
        value = value + position * _unsigned(_A_POSITION)
        value = value + ((of_loader * _unsigned(_A_LOADER)) ^ (of_epoch * _unsigned(_AN_EPOCH)))
    numbers = np.asarray(streams).reshape(-1, 1).astype(np.uint64) * _unsigned(_A_STREAM)
    value = value + (numbers ^ _unsigned((seed * _A_SEED) ^ (epoch * _AN_EPOCH)))
    for shift, factor in _MIXING:
        value = (value ^ (value >> _unsigned(shift))) * _unsigned(factor)
    value ^= value >> _unsigned(31)
    return sent(torch.from_numpy((value >> _unsigned(11)) * math.ldexp(1, -53)), rows.device)


def host_batch(batch: ImageBatch | RaggedBatch) -> Any:
    """Return a host batch with the rows and sizes of a device's, without pixels; a host batch is returned itself.

    It waits for the device if the host does not know them.
    """
    if batch.pixels.device.type == "cpu":
        return batch
    names = ("rows", "origin", *(("shapes", "offsets") if isinstance(batch, RaggedBatch) else ("content",)))
    given = {name: column for name in names if (column := getattr(batch, name)) is not None}
    columns: dict[str, Any] = {name: _on_host(column) for name, column in given.items()}
    nothing = torch.zeros(1, dtype=torch.uint8, device="cpu")
    none = torch.zeros(len(batch), dtype=torch.int64, device="cpu")
    if isinstance(batch, RaggedBatch):
        return RaggedBatch(nothing, none, **columns, batch_size=[])
    return ImageBatch(nothing.expand(batch.pixels.shape), none, **columns, batch_size=batch.batch_size)


def noise(batch: ImageBatch, n: int, seed: int, places: np.ndarray) -> np.ndarray:
    """Draw float64 normal numbers for sample n of a host batch, one for each of the int64 places in its image.

    Raises:
        ValueError: the batch does not know its rows.
    """
    drawn = draw(batch[n : n + 1], seed, places + _NOISE_STREAM)
    # never 0 or 1, where the quantile is infinite
    return torch.special.ndtri(drawn[..., 0] * (1 - 2**-30) + 2**-31).numpy().reshape(places.shape)


def gammas(batch: ImageBatch, seed: int, first: int, count: int, alpha: float) -> torch.Tensor:
    """Draw float64[count, B] from the gamma distribution; divided by their sum, they have Dirichlet's.

    first: the first stream of 17 for each. By Marsaglia and Tsang (2000), with alpha + 1 if alpha is below 1.
    """
    streams = 2 * _GAMMA_TRIES + 1
    drawn = draw(batch, seed, range(first, first + count * streams)).view(count, streams, -1)
    normal, share = torch.special.ndtri(drawn[:, :_GAMMA_TRIES] * (1 - 2**-30) + 2**-31), drawn[:, _GAMMA_TRIES:-1]
    d = (alpha if alpha >= 1 else alpha + 1) - 1 / 3
    v = (1 + normal / math.sqrt(9 * d)).clamp(min=1e-9) ** 3
    is_accepted = share.log() < 0.5 * normal**2 + d - d * v + d * v.log()
    result = d * v.gather(1, is_accepted.byte().argmax(1, keepdim=True))[:, 0]
    # so that no sum of them is 0
    return (result if alpha >= 1 else result * drawn[:, -1] ** (1 / alpha)).clamp(min=1e-300)


def rectangles(
    areas: torch.Tensor, ratios: torch.Tensor, area: Any, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw sides of rectangles, int64[T, B] each, from a share of an area and the sides' ratio, uniform in its logarithm."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    drawn_area, drawn_ratio = area * (scale[0] + areas * (scale[1] - scale[0])), (low + ratios * (high - low)).exp()
    return (drawn_area * drawn_ratio).sqrt().round().long(), (drawn_area / drawn_ratio).sqrt().round().long()


def _on_host(column: torch.Tensor) -> torch.Tensor:
    """Return values on the host; waits for their device if the host has no copy."""
    here = on_host(column)
    return column.cpu() if here is None else here


def _unsigned(value: int) -> np.uint64:
    return np.uint64(value & ((1 << 64) - 1))
