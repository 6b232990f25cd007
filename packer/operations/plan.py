"""Computes disk use of each way to pack images, only from their headers. Decodes nothing."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable
from dataclasses import dataclass

from packer.errors import OptionsError, PackError
from packer.inputs.scan import scan
from packer.option_names import Option
from packer.options import PackOptions
from packer.packing.image_sizes import count_sizes, stored_bytes
from packer.pixels.geometry import Geometry
from packer.pixels.layout import RowLayout
from packer.progress import reports
from packer.report import Progress
from packer.text import counted
from reader.format.filesystem import size_text, user_path

# The way of the docs' table: the whole image, in as many pixels as random crops of 224 use.
_USUAL = "--fit none --max-size 512"
_WAYS = {
    "--size 224": Geometry(224, 224),
    "--size 256": Geometry(256, 256),
    "--size 320": Geometry(320, 320),
    "--size 320 --fit inside": Geometry(320, 320, "inside"),
    "--fit none --max-size 384": Geometry(384, 384, "none"),
    _USUAL: Geometry(512, 512, "none"),
    "--fit none": Geometry(0, 0, "none"),
}


@dataclass(frozen=True)
class SizePlan:
    """The images of a folder, by their headers.

    Attributes:
        images: inputs whose header was read.
        unreadable: inputs without a readable header.
        sizes: upright (width, height, images), most frequent first.
        choices: options of each way to pack -> bytes of its pixel files, uncompressed.
        chosen: the requested options, else "--fit none --max-size 512"; a key of choices.
    """

    images: int
    unreadable: int
    sizes: list[tuple[int, int, int]]
    choices: dict[str, int]
    chosen: str


@reports
def plan(
    images: str | os.PathLike[str],
    *,
    size: int | str | tuple[int, int] | None = None,
    fit: str = PackOptions.fit,
    max_size: int | str | None = None,
    channels: str = PackOptions.channels,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SizePlan:
    """Compare disk use of the ways to pack a folder, from the headers of its images.

    Args:
        images: IMAGES of `pack`.
        size, fit, max_size: as for `pack`; they add one way, except fit "crop" without size.
        channels: channels of a row: "rgb", "gray" or "rgba".
        workers: processes that read headers; None: the CPUs that this process may use.
        progress: called a few times a second from the calling thread.

    Raises:
        OptionsError: an option has a value it cannot have, or fit needs a size.
        ScanError: images cannot be read or holds no image.
        PackError: no header could be read.

    Examples:
        >>> plan(images_path, workers=1).images
        6
    """
    asked = _asked_for(PackOptions(size=size, fit=fit, max_size=max_size))
    splits = scan([user_path(images)])
    found = count_sizes(splits, PackOptions(size=1, channels=channels, workers=workers))
    counts = sum(found.values(), collections.Counter())
    total = sum(map(len, splits.values()))
    if not counts:
        raise PackError(f"nothing can be planned: no header of {counted(total, 'input', 'inputs')} could be read.")
    return SizePlan(
        images=counts.total(),
        unreadable=total - counts.total(),
        sizes=sorted(((w, h, n) for (h, w), n in counts.items()), key=lambda size: (-size[2], size)),
        choices={
            options: sum(stored_bytes(counts, RowLayout(geometry, channels)) for counts in found.values())
            for options, geometry in (_WAYS | asked).items()
        },
        chosen=next(iter(asked), _USUAL),
    )


def _asked_for(options: PackOptions) -> dict[str, Geometry]:
    """Return the requested way to pack, by its option words; {} if none is requested."""
    if not options.words():
        return {}
    if options.least_sides is None:
        raise OptionsError(f"{Option('fit', options.fit)} needs {Option('size')}: the side of a row in pixels.")
    return {" ".join(options.words()): Geometry.from_size(options.least_sides, options)}


def summary(found: SizePlan) -> str:
    """Format a plan as a table."""
    common = ", ".join(f"{width} x {height} ({count:,})" for width, height, count in found.sizes[:3])
    more = f" and {len(found.sizes) - 3:,} more sizes" if len(found.sizes) > 3 else ""
    unreadable = f"; {found.unreadable:,} without a readable header" if found.unreadable else ""
    width = max(map(len, found.choices))
    lines = [f"{found.images:,} images{unreadable}: {common}{more}", f"{'options':{width}}{'pixels':>10}"]
    lines += [f"{options:{width}}{size_text(size_bytes):>10}" for options, size_bytes in found.choices.items()]
    return "\n".join(lines)
