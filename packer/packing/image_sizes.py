"""Sizes of a pack's images, from their headers alone: the size of all rows, or the space for rows of their own sizes.

Decodes nothing. Images without a readable header will be rejected when they are decoded, with a reason.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence

from packer.errors import OptionsError, PackError, SourceError
from packer.inputs.samples import Inputs
from packer.option_names import Option
from packer.options import MAX_PIXELS, PackOptions
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.pixels.layout import RowLayout
from packer.progress import notify
from packer.report import Progress
from packer.sources.base import Readable
from packer.sources.local import locate
from packer.text import counted
from packer.workers.processes import begin_worker, signals_held, start_context, without_main
from reader.system import available_cpus

_SIZES_CHUNK = 256
# Chunks that wait for each worker.
_CHUNKS_AHEAD = 4
# Headers are nearly always within this; else all of the file is read.
_HEADER_BYTES = 64 << 10

# upright (height, width) -> images
SizeCounts = collections.Counter[tuple[int, int]]


def count_sizes(parts: dict[str, Inputs], options: PackOptions) -> dict[str, SizeCounts]:
    """Count the sizes of the images of each split, on worker processes.

    Raises:
        PackError: a worker was killed; SourceError if the disk or network of the inputs cannot be read.
    """
    import concurrent.futures

    counts: dict[str, SizeCounts] = {split: collections.Counter() for split in parts}
    total, done = sum(map(len, parts.values())), 0
    workers = max(1, min(options.workers or available_cpus(), -(-total // _SIZES_CHUNK)))
    pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=start_context(), initializer=begin_worker)
    chunks = ((split, start) for split, inputs in parts.items() for start in range(0, len(inputs), _SIZES_CHUNK))
    waiting: collections.deque[tuple[str, int, concurrent.futures.Future[SizeCounts]]] = collections.deque()
    notify(Progress("sizes", 0, total))
    try:
        while True:
            # queue more only as chunks are done: all chunks of millions of inputs would take gigabytes
            for split, start in itertools.islice(chunks, _CHUNKS_AHEAD * workers - len(waiting)):
                sources = sources_of(parts[split], start, start + _SIZES_CHUNK)
                with without_main(), signals_held():  # it may start a process
                    waiting.append((split, len(sources), pool.submit(upright_sizes, sources)))
            if not waiting:
                break
            split, count, future = waiting.popleft()
            counts[split] += future.result()
            done += count
            notify(Progress("sizes", done, total))
    except concurrent.futures.BrokenExecutor:
        raise PackError(
            f"a worker was killed while it read headers. Give {Option('size')}, then no header is read before."
        ) from None
    finally:
        # If the join of the pool's thread is interrupted, it counts as ended. It may then print an error while Python exits.
        # So wait for it here, until the processes are killed.
        with signals_held():
            for process in pool._processes.values():
                process.kill()
            pool.shutdown(cancel_futures=True)
    return counts


def common_size(parts: dict[str, Inputs], options: PackOptions) -> tuple[int, int]:
    """Return the one size that all images have, by their headers.

    Raises:
        OptionsError: they have several; shows the most frequent ones and proposes options. PackError: no header could be read.
    """
    counts = sum(count_sizes(parts, options).values(), collections.Counter())
    if not counts:
        first = next((path for inputs in parts.values() for path in inputs.paths), "")
        total = sum(len(inputs) for inputs in parts.values())
        raise PackError(
            f"nothing can be packed: no header of {counted(total, 'input', 'inputs')} could be read, {first} among them."
        )
    if len(counts) > 1:
        common = ", ".join(f"{w} x {h} ({n})" for (h, w), n in sorted(counts.items(), key=lambda c: (-c[1], c[0]))[:3])
        raise OptionsError(
            f"the images have {len(counts)} sizes, width x height: {common}{' and others' if len(counts) > 3 else ''}."
            f" Leave each its own, up to 512 pixels: {Option('fit', 'none')} {Option('max_size', 512)}."
            f" Or cut all to one: {Option('size', 224)}."
        )
    height, width = next(iter(counts))
    return PackOptions(size=(height, width)).sides or (height, width)


def stored_bytes(sizes: SizeCounts, layout: RowLayout) -> int:
    """Return the size of the file of rows of images of these sizes, uncompressed, including masks that follow them."""
    geometry, area = layout.geometry, 0
    for (height, width), count in sizes.items():
        new_width, new_height = geometry.row_size(geometry.resized(width, height))
        area += count * new_width * new_height
    return layout.file_bytes(area * layout.pixel_bytes)


def sources_of(inputs: Inputs, start: int, stop: int) -> list[Readable]:
    """Locate inputs [start, stop)."""
    root, paths = inputs.base, inputs.paths[start:stop]
    members = inputs.members.tolist(start, start + len(paths)) if inputs.archives else [None] * len(paths)
    return [
        locate(root, path, inputs.archives, member, inputs.roots) for path, member in zip(paths, members, strict=True)
    ]


def upright_sizes(sources: Sequence[Readable]) -> SizeCounts:
    """Count (height, width) over the images with a readable header; the others will be rejected."""
    decoder, counts = Decoder(Geometry(1, 1)), SizeCounts()
    for source in sources:
        for most_bytes in (_HEADER_BYTES, None):
            try:
                height, width = decoder.upright_size(source.read(most_bytes=most_bytes)[0])
            except SourceError:
                raise
            except Exception:  # decoding will reject it with a reason
                continue
            counts[height, width] += height * width <= MAX_PIXELS
            break
    return +counts
