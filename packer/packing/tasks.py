"""What workers are given for a pack: what all blocks have in common, and the inputs of each block. Opens no image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packer.inputs.samples import Inputs
from packer.options import PackOptions, RowOptions
from packer.pixels.geometry import Geometry
from packer.pixels.layout import RowLayout
from packer.store.blocks import Task
from packer.store.row_files import MASKS
from packer.workers.block_worker import PackJob
from reader.format.filesystem import absolute_path
from reader.format.manifest import PIXELS

if TYPE_CHECKING:
    from packer.store.sealed.reuse import ReusedLines


@dataclass(frozen=True)
class Packing:
    """What is packed into a store and how.

    shape: (height, width) of the rows. split: its name, "" where there are none. make_job: takes the fields of a PackJob.
    """

    inputs: Inputs
    shape: tuple[int, int]
    options: PackOptions
    split: str = ""
    make_job: Callable[..., PackJob] = PackJob


def pack_job(
    inputs: Inputs, out: Path, geometry: Geometry, options: PackOptions, make_job: Callable[..., PackJob]
) -> PackJob:
    """Return what all blocks have in common; out is absolute, since workers may run in another folder.

    Raises:
        StoreError: rows are to be compressed, and the library for that is not installed.
    """
    if options.compress:
        from reader import jpeg_frames

        jpeg_frames.check_library()
    layout = RowLayout.of(geometry, options.channels, has_masks=inputs.masks is not None, quality=options.compress or 0)
    return make_job(
        root=inputs.url or str(inputs.root.absolute()),
        pixels_path=str(out / PIXELS),
        geometry=geometry,
        rows=RowOptions.among(options),
        archives=inputs.archives,
        has_masks=layout.has_masks,
        masks_root=absolute_path(options.masks or ""),
        masks_path=str(out / MASKS) if layout.has_mask_file else "",
        mask_classes=tuple(options.mask_values or ()),
        roots=inputs.roots,
    )


def block_tasks(inputs: Inputs, span: range, step: int, reused: ReusedLines | None) -> Iterator[Task]:
    """Cut a span of the inputs into blocks of `step`.

    Args:
        reused: the lines of the store that an update replaces.
    """
    for start in range(span.start, span.stop, step):
        stop = min(start + step, span.stop)
        paths = inputs.paths[start:stop]
        yield Task(
            start // step,
            start,
            paths,
            inputs.targets.tolist(start, stop),
            inputs.members.tolist(start, stop) if inputs.archives else [],
            {i: inputs.refused[i] for i in range(start, stop) if i in inputs.refused} if inputs.refused else {},
            masks=inputs.masks[start:stop] if inputs.masks is not None else [],
            cells=inputs.cells[start:stop],
            reused={} if reused is None else reused.of(paths, start),
        )
