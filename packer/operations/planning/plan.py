"""What a choice of row sizes would cost, and what random crops from it would lack, by headers; and how long packing takes.

The boxes of random crops are drawn in the sources, by torchvision's definition; then it is asked of each way to pack whether a
row holds the box, and whether in fewer pixels than the crop has.
"""

from __future__ import annotations

import collections
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from packer.errors import OptionsError, PackError, ScanError
from packer.inputs.samples import Inputs
from packer.inputs.scan import STDIN_NAMES, scan
from packer.operations import class_order
from packer.operations.class_order import lie_by_class
from packer.operations.planning.crop_boxes import Numbers, drawn_boxes
from packer.operations.planning.disk_rate import disk_rate
from packer.operations.planning.pack_time import PackTime, pack_time
from packer.option_names import Option
from packer.options import CROP, CROP_RATIO, CROP_SCALE, PackOptions
from packer.packing.image_sizes import count_sizes, pixel_bytes, sources_of
from packer.pixels.geometry import Geometry
from packer.pixels.layout import RowLayout
from packer.progress import reports
from packer.report import Progress
from packer.sources.local import LocalSource
from packer.text import counted
from reader.format.filesystem import size_text, user_path
from reader.system import available_bytes, available_cpus

# Fractions are then known to half a percent.
_BOXES = 10_000
# Of a list, evenly spread: where none of them is there, the others are not looked for.
_LOOKED_AT = 300
# A way is as good as the sources if it cuts no more than this fraction of the crops,
_CUT_AT_MOST = 0.01
# and upsamples no more than this fraction beyond those that the sources upsample: 4 % of photographs of 500 x 375 at 512.
_UPSAMPLED_AT_MOST = 0.05
# Row sizes to look at, as multiples of the crop: the crop itself, the usual 256 of 224, 320, and uncut images of 512 and 768.
_FIXED = (1, 8 / 7, 10 / 7)
_INSIDE = (10 / 7, 16 / 7)
_UNCUT = (12 / 7, 16 / 7, 24 / 7)


@dataclass(frozen=True)
class Choice:
    """One way to pack, by its options: bytes of the pixels, and fractions of the random crops, 0..1.

    reachable: crops whose box is completely within the row.
    upsampled: those with fewer stored pixels than the crop, in height or width.
    """

    options: str
    pixel_bytes: int
    reachable: float
    upsampled: float


@dataclass(frozen=True)
class SizePlan:
    """What headers say of a folder.

    Attributes:
        images: whose header was read.
        unreadable: inputs without a readable header.
        sizes: upright (width, height, images), most frequent first.
        crop: side of the crop that the model sees, pixels.
        scale: lowest and highest area of a box, as a share of the image's.
        ratio: lowest and highest width / height of a box.
        source_upsampled: the fraction of crops that the images themselves have too few pixels for, 0..1.
        choices: ways to pack: each has its options, pixel_bytes, and of the crops the fractions reachable and upsampled, 0..1.
        recommended: the options of the smallest choice that holds 99 % of the boxes, and upsamples at most 5 % more crops than
            source_upsampled.
        is_grouped_by_class: the images of a split are listed class by class, as those of class folders are.
        time: of packing as chosen; None where no image of those that were tried can be decoded.
        asked: the options of the choice that was asked for, one of `choices`; None where none was.
    """

    images: int
    unreadable: int
    sizes: list[tuple[int, int, int]]
    crop: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    source_upsampled: float
    choices: list[Choice]
    recommended: str
    is_grouped_by_class: bool = False
    time: PackTime | None = None
    asked: str | None = None

    @property
    def chosen(self) -> Choice:
        """The choice that was asked for, else the recommended one."""
        return next(choice for choice in self.choices if choice.options == (self.asked or self.recommended))


@reports
def plan(
    images: str | os.PathLike[str],
    *,
    crop: int = CROP,
    scale: tuple[float, float] = CROP_SCALE,
    ratio: tuple[float, float] = CROP_RATIO,
    size: int | str | tuple[int, int] | None = None,
    fit: str = PackOptions.fit,
    max_size: int | str | None = None,
    channels: str = PackOptions.channels,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SizePlan:
    """Report what each choice of row sizes would mean for RandomResizedCrop(crop, scale, ratio), from the headers of a folder.

    Up to 64 images are decoded to estimate how long packing takes.

    Args:
        images: what `pack` takes as a folder.
        crop: side of the crop that the model sees, pixels.
        scale: lowest and highest area of a box, as a share of the image's.
        ratio: lowest and highest width / height of a box.
        size, fit, max_size: as for `pack`: a further choice, which is compared and whose time is estimated; without size and
            with fit "crop", none.
        channels: "rgb", "gray" or "rgba", of a row.
        workers: processes that read headers; None: the CPUs that this process may use.
        progress: called a few times a second from the calling thread.

    Raises:
        OptionsError: an option has a value it cannot have, or fit needs a size.
        ScanError: images cannot be read or holds no image.
        PackError: no header could be read.

    Example:
        >>> plan(images_path, crop=32, workers=1).images
        6
    """
    for name, (low, high) in ((Option("scale"), scale), (Option("ratio"), ratio)):
        if not 0 < low <= high < math.inf:
            raise OptionsError(f"{name} is {low:g},{high:g}, expected two numbers above 0, the smaller one first.")
    options = PackOptions(size=crop, channels=channels, workers=workers)
    asked = asked_for(PackOptions(size=size, fit=fit, max_size=max_size))
    compared = ways(crop) | asked
    splits = scan([user_path(images)])
    _check_there(splits, os.fspath(images))
    counts = sum(count_sizes(splits, options).values(), collections.Counter())
    total = sum(len(inputs) for inputs in splits.values())
    if not counts:
        raise PackError(f"nothing can be planned: no header of {counted(total, 'input', 'inputs')} could be read.")
    sources, boxes = drawn_boxes(counts, _BOXES, scale, ratio, seed=0)
    uncut = measured(Geometry(0, 0, "none"), sources, boxes, crop)
    choices = [
        Choice(text, pixel_bytes(counts, RowLayout.of(geometry, channels)), *measured(geometry, sources, boxes, crop))
        for text, geometry in compared.items()
    ]
    good = [c for c in choices if c.reachable >= 1 - _CUT_AT_MOST and c.upsampled <= uncut[1] + _UPSAMPLED_AT_MOST]
    sizes = sorted(((w, h, n) for (h, w), n in counts.items()), key=lambda size: (-size[2], size))
    best = min(good, key=lambda choice: choice.pixel_bytes)
    found = SizePlan(
        images=counts.total(),
        unreadable=total - counts.total(),
        sizes=sizes,
        crop=crop,
        scale=scale,
        ratio=ratio,
        source_upsampled=uncut[1],
        choices=choices,
        recommended=best.options,
        is_grouped_by_class=_is_grouped(splits),
        asked=next(iter(asked), None),
    )
    seconds = pack_time(
        splits,
        compared[found.chosen.options],
        channels=channels,
        crop=crop,
        scale=scale,
        ratio=ratio,
        workers=workers or available_cpus(),
    )
    if seconds is not None and found.chosen.pixel_bytes > available_bytes():
        seconds = replace(seconds, disk_bytes_per_second=disk_rate(splits))
    return replace(found, time=seconds)


def asked_for(options: PackOptions) -> dict[str, Geometry]:
    """Return the way to pack that options ask for, by its words; nothing where they ask for none.

    Raises:
        OptionsError: fit needs a size.
    """
    if not options.words():
        return {}
    if options.least_sides is None:
        raise OptionsError(f"{Option('fit', options.fit)} needs {Option('size')}: the side of a row in pixels.")
    return {" ".join(options.words()): Geometry.of(options.least_sides, options)}


def _check_there(splits: dict[str, Inputs], images: str) -> None:
    """Refuse a list of which no file exists, as in another folder than the one that its paths start from."""
    total, looked = sum(map(len, splits.values())), 0
    for inputs in splits.values():
        for index in range(0, len(inputs), -(-total // _LOOKED_AT)):
            (source,) = sources_of(inputs, index, index + 1)
            if not isinstance(source, LocalSource) or source.member is not None or source.state() != (-1, -1):
                return
            looked += 1
    one = next(iter(splits.values()))
    name, start = ("standard input", os.getcwd()) if images in STDIN_NAMES else (images, one.base)
    raise ScanError(
        f"{name} names {total} files, and none of {looked}, evenly spread, is there,"
        f" such as {os.path.join(one.base, one.paths[0])}."
        f" Expected paths that start from {start}, or absolute ones. Write them so, or run pack plan where they start from."
    )


def _is_grouped(splits: dict[str, Inputs]) -> bool:
    """Whether the images of a split are listed class by class."""
    return any(
        lie_by_class(inputs.targets.values)
        for inputs in splits.values()
        if inputs.target_kind == "class" and inputs.classes
    )


def ways(crop: int) -> dict[str, Geometry]:
    """Return the ways to pack that are compared, with their options."""
    fixed = [round(crop * factor) for factor in _FIXED]
    uncut = [round(crop * factor) for factor in _UNCUT]
    inside = [round(crop * factor) for factor in _INSIDE]
    return {
        **{f"--size {side}": Geometry(side, side) for side in fixed},
        **{f"--size {side} --fit inside": Geometry(side, side, "inside") for side in inside},
        **{f"--fit none --max-size {side}": Geometry(side, side, "none") for side in uncut},
        "--fit none": Geometry(0, 0, "none"),
    }


def measured(geometry: Geometry, sources: Numbers, boxes: Numbers, crop: int) -> tuple[float, float]:
    """Return the fractions of boxes that are completely inside their row, and that have fewer pixels there than the crop."""
    placements = np.array([placement(geometry, int(width), int(height)) for width, height in sources])
    across, down, left, top, right, bottom = placements.T
    x0, y0, width, height = (boxes * np.stack([across, down, across, down], axis=1)).T
    # a thousandth of a pixel is rounding
    near = 1e-3
    inside = (x0 >= left - near) & (y0 >= top - near) & (x0 + width <= right + near) & (y0 + height <= bottom + near)
    return float(inside.mean()), float((np.minimum(width, height) < crop - near).mean())


def placement(geometry: Geometry, width: int, height: int) -> tuple[float, float, float, float, float, float]:
    """Return by what an image is scaled, across and down, and what the row holds of it then: left, top, right, bottom."""
    new_width, new_height = geometry.resized(width, height)
    left = top = 0
    right, bottom = new_width, new_height
    if geometry.fit == "crop":
        left, top = round((new_width - geometry.width) / 2), round((new_height - geometry.height) / 2)
        right, bottom = left + geometry.width, top + geometry.height
    return new_width / width, new_height / height, left, top, right, bottom


def summary(found: SizePlan) -> str:
    """Write a plan as a table for people."""
    common = ", ".join(f"{width} x {height} ({count:,})" for width, height, count in found.sizes[:3])
    more = f" and {len(found.sizes) - 3:,} more sizes" if len(found.sizes) > 3 else ""
    unreadable = f"; {found.unreadable:,} without a readable header" if found.unreadable else ""
    width = max(len(choice.options) for choice in found.choices)
    lines = [
        f"{found.images:,} images{unreadable}: {common}{more}",
        f"random crops of {found.crop}, scale {found.scale[0]:g} to {found.scale[1]:g}: of the images themselves"
        f" {found.source_upsampled:.0%} would be upsampled",
        f"{'options':{width}}{'pixels':>10}  {'reachable':>9}  {'upsampled':>9}",
    ]
    for choice in found.choices:
        marks = {"recommended": found.recommended, "asked for": found.asked}
        mark = ", ".join(name for name, options in marks.items() if options == choice.options)
        shares = f"{choice.reachable:>9.0%}  {choice.upsampled:>9.0%}   {mark}"
        lines.append(f"{choice.options:{width}}{size_text(choice.pixel_bytes):>10}  {shares}".rstrip())
    best = found.chosen
    with_levels = [size_text(int(best.pixel_bytes * (1 + added))) for added in (1 / 4, 1 / 4 + 1 / 16)]
    lines.append(
        f"{best.options} --levels 2 takes {with_levels[0]}, --levels 3 {with_levels[1]}, to train at smaller sizes"
    )
    if found.time is not None and found.time.rates is not None:
        lines += _shown_rates(found.time, best)
    elif found.time is not None:
        lines.append("to compare rows that are compressed, without loss: pip install 'pixpack[zstd]'")
    if found.is_grouped_by_class and not class_order.is_mixed_whole(best.pixel_bytes):
        lines.append(f"these images {class_order.ADVICE}")
    if found.time is not None:
        lines.append(_shown_time(found.time))
    return "\n".join(lines)


def _shown_rates(time: PackTime, best: Choice) -> list[str]:
    """Write what compressed rows take, how fast both kinds are read, and which is the better one here."""
    rates = time.rates
    assert rates is not None
    lines = [
        f"{best.options} --compress takes {size_text(int(best.pixel_bytes * rates.share))}, {rates.share:.2f} of"
        f" {size_text(best.pixel_bytes)}: from memory a core reads {rates.compressed:,.0f} images/s of it, raw"
        f" {rates.raw:,.0f} ({counted(time.sampled, 'image', 'images')} measured)",
        f"better here: {rates.better(best.pixel_bytes, time.disk_bytes_per_second)}",
    ]
    if jpeg := rates.jpeg:
        loss = "no loss" if jpeg.psnr is None else f"a loss, PSNR {jpeg.psnr:.1f} dB"
        lines.append(
            f"--compress {jpeg.form} takes {size_text(int(best.pixel_bytes * jpeg.share))}, {jpeg.share:.2f} of raw, with {loss}:"
            f" a core reads {jpeg.images_per_second:,.0f} images/s of it"
        )
    return lines


def _shown_time(time: PackTime) -> str:
    """Write how long packing takes, and what that is in epochs."""
    took = f"{max(1, round(time.pack_seconds))} s" if time.pack_seconds < 120 else f"{time.pack_seconds / 60:,.0f} min"
    return (
        f"packing takes about {took} with {counted(time.workers, 'worker', 'workers')}: as long as decoding and cropping the"
        f" images for {time.epochs:.1f} epochs ({counted(time.sampled, 'image', 'images')} measured)"
    )
