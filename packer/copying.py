"""Stores made of rows of other stores: what `subset` and `merge` have in common. Decodes nothing.

Rows are cut into the blocks that a pack of as many would have. Threads write the pixels of several blocks at once, each to its
place, which is known before; what a store says of each row follows in order. There is no journal: nothing that took long would
be lost, so what is interrupted is taken away and done again.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import itertools
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer import journal as journals
from packer.build import block_inputs
from packer.checksums import crc32_combine
from packer.disk import allocate, check_room, guard_standard_streams, write_at
from packer.durable import sync_folder
from packer.failures import as_pack_error
from packer.inputs import Inputs
from packer.options import OptionsError, PackOptions, available_cpus
from packer.parts import check_no_parts
from packer.place import check_out, sync_names
from packer.ragged import RaggedBlock
from packer.report import PackError, PackReport, Progress, store_report
from packer.rowfiles import Digested, channel_statistics
from packer.rowreader import Ints
from packer.seal import commit_manifest, settle
from packer.shares import Share, Source
from packer.site import Site, remove_tree
from packer.source import BINARY
from packer.sums import ChannelSums
from reader.manifest import (
    PAGE_BYTES,
    PARTS,
    PIXELS,
    REJECTED,
    SAMPLES,
    Block,
    FileEntry,
    FurtherTarget,
    Manifest,
    StoreError,
    TensorSpec,
    naming,
)

_MOST_THREADS = 4
# Blocks that are read beside the one whose lines are written.
_AHEAD = 2
_AGAIN = "do it again"
# Tensors that are not copied: pixels are written to their place, the others follow from it.
_PLACES = ("pixels", "offsets", "mask_offsets")

Tell = Callable[[Progress], None]


@dataclass(frozen=True)
class Plan:
    """A store to be: rows of others, one share behind the other, which are alike in all that is not said here."""

    shares: list[Share]
    classes: tuple[str, ...]
    target_count: int | None
    extras: Mapping[str, TensorSpec]
    further_targets: Mapping[str, FurtherTarget]
    options: Mapping[str, Any]
    # whether what the stores rejected is said of this one too
    has_rejects: bool = False
    notes: list[str] = field(default_factory=list)


def copy_rows(plan: Plan, out: Path, *, overwrite: bool, progress: Callable[[Progress], None] | None) -> PackReport:
    """Make the store OUT of a plan's rows; it may take the place of one of their stores.

    Raises:
        OptionsError: OUT lies inside one of the stores.
        PackError: OUT is in the way, a store is damaged or was replaced meanwhile; DiskFullError, LockedError.
    """
    begun, tell = time.monotonic(), progress or (lambda _: None)
    guard_standard_streams()
    options = PackOptions(overwrite=overwrite)
    for share in plan.shares:
        if Path(os.path.realpath(share.path)) in Path(os.path.realpath(out)).parents:
            raise OptionsError(f"OUT {out} lies inside the store {share.path}. Choose a folder outside it.")
    check_out(out, options)
    check_no_parts(out, options)
    site, sizes = Site(out, options, None), {}
    try:
        with contextlib.ExitStack() as held:
            sources = [held.enter_context(contextlib.closing(Source(share))) for share in plan.shares]
            copy = _Copy(plan, sources, site.out, tell)
            sizes = copy.sizes
            created = site.make()
            lock = site.lock()[0]
            held.callback(lock.close)
            site.look_again()
            try:
                _clear(site)
                manifest = copy.run()
            except BaseException:
                site.remove(created)
                raise
            site.finish(lock)
    except OSError as e:
        raise as_pack_error(e, site.out, sizes, _AGAIN) from None
    except StoreError as e:
        raise PackError(str(e)) from None
    return store_report(manifest, Inputs(out, notes=plan.notes), out, time.monotonic() - begun, 0)


def _clear(site: Site) -> None:
    """Remove what an unfinished pack has left in the folder, its journal first: it must never outlive its rows."""
    journals.discard(site.out)
    sync_folder(site.out)
    site.clear()
    if (site.out / PARTS).exists():
        remove_tree(site.out / PARTS)


@dataclass(frozen=True)
class _Pixels:
    """What is known of the pixels of a block that was written."""

    crc32: int
    sums: list[int]
    square_sums: list[int]


class _Copy:
    """One store being made; where each row of it comes from and goes to is settled at the start."""

    def __init__(self, plan: Plan, sources: list[Source], out: Path, tell: Tell) -> None:
        self._plan, self._out, self._tell = plan, out, tell
        self._like = plan.shares[0].manifest
        self._sources, self._mine = sources, threading.local()
        self._bounds = [0, *itertools.accumulate(len(share.rows) for share in plan.shares)]
        self._rows = self._bounds[-1]
        self._ends = np.cumsum(np.concatenate([source.sizes for source in self._sources]))
        used = int(self._ends[-1])
        self._pixel_bytes = used + (-used % PAGE_BYTES if self._like.has_own_sizes else 0)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The bytes that each file will have, by its name below OUT; of text an estimate."""
        sizes = {path: self._rows * spec.row_bytes for path, spec in self._tensors.values()}
        lines = (share.manifest.files[SAMPLES].size_bytes * len(share.rows) for share in self._plan.shares)
        rows = (share.manifest.rows for share in self._plan.shares)
        sizes[SAMPLES] = sum(of_chosen // count for of_chosen, count in zip(lines, rows, strict=True))
        return sizes | {PIXELS: self._pixel_bytes}

    def run(self) -> Manifest:
        """Write all files, then the manifest."""
        for source in self._sources:
            source.check()
        for path, _ in self._tensors.values():
            (self._out / path).parent.mkdir(parents=True, exist_ok=True)
        pixels = self._out / PIXELS
        with naming(pixels):
            os.close(os.open(pixels, os.O_WRONLY | os.O_CREAT, 0o644))
        sync_names(self._out)
        check_room(self._out, self.sizes, _AGAIN)
        allocate(pixels, self._pixel_bytes, lambda done: self._tell(Progress("allocate", done, self._pixel_bytes)))
        with contextlib.ExitStack() as held:
            names = [path for path, _ in self._tensors.values()] + [SAMPLES, REJECTED]
            files = {name: Digested(self._out / name) for name in names}
            for file in files.values():
                held.callback(file.release)
            return self._written(pixels, files)

    def _written(self, pixels: Path, files: dict[str, Digested]) -> Manifest:
        blocks: list[Block] = []
        crc32 = pixel_count = 0
        sums = np.zeros((2, self._like.channels), object)
        for start, stop, found in self._in_order(pixels):
            blocks.append(Block(start, stop, found.crc32, files[SAMPLES].size_bytes, self._span_bytes(start, stop)))
            crc32 = crc32_combine(crc32, found.crc32, blocks[-1].size_bytes)
            sums += np.array([found.sums, found.square_sums], object)
            values = self._values(start, stop)
            pixel_count += self._pixel_count(values, stop - start)
            for name, (path, _) in self._tensors.items():
                files[path].write(_little_endian(values[name]))
            files[SAMPLES].write(self._lines(start, stop))
            self._tell(Progress("copy", stop, self._rows))
        for source in self._sources if self._plan.has_rejects else ():
            with naming(source.path / REJECTED):
                files[REJECTED].write((source.path / REJECTED).read_bytes())
        for source in self._sources:
            source.check_same()
        used = self._begin(self._rows)
        settle(pixels, used, self._pixel_bytes)
        filling = bytes(self._pixel_bytes - used)
        crc32 = crc32_combine(crc32, zlib.crc32(filling), len(filling))
        entries = {name: file.close() for name, file in files.items()}
        entries[PIXELS] = FileEntry(self._pixel_bytes, f"crc32:{crc32:08x}")
        mean, std = channel_statistics(pixel_count, *sums.tolist())
        return commit_manifest(self._out, self._fields(mean, std), entries, blocks)

    def _fields(self, mean: list[float], std: list[float]) -> dict[str, Any]:
        like, plan = self._like, self._plan
        rejected = sum(share.manifest.rejected for share in plan.shares) if plan.has_rejects else 0
        height, width = np.max([source.largest for source in self._sources], axis=0).tolist()
        return {
            "rows": self._rows,
            "height": height,
            "width": width,
            "channels": like.channels,
            "target_kind": like.target_kind,
            "target_count": plan.target_count,
            "has_content": like.has_content,
            "extras": plan.extras,
            "classes": plan.classes,
            "mean": tuple(mean),
            "std": tuple(std),
            "inputs": self._rows + rejected,
            "rejected": rejected,
            "options": plan.options,
            "decoders": like.decoders,
            "further_targets": plan.further_targets,
            "reader_features": like.reader_features,
        }

    # -- pixels

    def _in_order(self, pixels: Path) -> Iterator[tuple[int, int, _Pixels]]:
        """Write blocks of pixels, several at once; yields rows [start, stop) and what is known of them, in order."""
        cut = block_inputs(self._rows, max(1, self._pixel_bytes // self._rows))
        spans = ((start, min(start + cut, self._rows)) for start in range(0, self._rows, cut))
        waiting: collections.deque[tuple[int, int, Future[_Pixels]]] = collections.deque()
        # without pwrite, the place in the file is all threads' own
        threads = min(_MOST_THREADS, available_cpus()) if hasattr(os, "pwrite") else 1
        descriptor = os.open(pixels, os.O_WRONLY | BINARY)
        pool = concurrent.futures.ThreadPoolExecutor(threads)
        try:
            for start, stop in spans:
                waiting.append((start, stop, pool.submit(self._write, descriptor, start, stop)))
                if len(waiting) >= threads + _AHEAD:
                    start, stop, found = waiting.popleft()
                    yield start, stop, found.result()
            for start, stop, found in waiting:
                yield start, stop, found.result()
        finally:
            pool.shutdown(cancel_futures=True)
            with naming(pixels):
                os.close(descriptor)

    def _write(self, descriptor: int, start: int, stop: int) -> _Pixels:
        """Copy the pixels of rows [start, stop)."""
        own, channels = self._like.has_own_sizes, self._like.channels
        crc32, place, buffer = 0, self._begin(start), self._buffer(self._span_bytes(start, stop))
        equal: ChannelSums | None = None if own else ChannelSums(self._like.width * channels, channels)
        ragged = RaggedBlock(channels)
        for source, rows in self._of(start, stop):
            data = source.pixels(rows, buffer)
            crc32 = zlib.crc32(data.data, crc32)
            if equal is not None:
                equal.add(data)
            else:
                source.add_to(ragged, rows, data)
            with naming(self._out / PIXELS):
                write_at(descriptor, data.data, place)
            place += len(data)
        return _Pixels(crc32, *(ragged if equal is None else equal).take())

    def _buffer(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return memory of this thread's own."""
        if len(getattr(self._mine, "buffer", b"")) < size_bytes:
            self._mine.buffer = np.empty(size_bytes, np.uint8)
        buffer: npt.NDArray[np.uint8] = self._mine.buffer
        return buffer

    # -- what a store says of each row

    @cached_property
    def _tensors(self) -> dict[str, tuple[str, TensorSpec]]:
        """Return path and spec of each tensor beside the pixels."""
        specs = {name: spec for name, spec in self._like.tensors.items() if name != "pixels"}
        if self._plan.target_count is not None:
            specs["targets"] = TensorSpec(specs["targets"].dtype, (self._plan.target_count,))
        specs |= {f"extras/{name}": spec for name, spec in self._plan.extras.items()}
        return {name: (f"_tensordict/{name}.memmap", spec) for name, spec in specs.items()}

    def _values(self, start: int, stop: int) -> dict[str, npt.NDArray[Any]]:
        """Return every tensor of rows [start, stop), as the file has it."""
        values = {}
        for name, (_, spec) in self._tensors.items():
            if name not in _PLACES:
                pieces = [source.values(name, rows, spec) for source, rows in self._of(start, stop)]
                values[name] = np.concatenate(pieces)
        if "offsets" in self._tensors:
            shapes = values["shapes"].astype(np.int64)
            values["offsets"] = self._ends[start:stop] - self._sizes(start, stop)
            values["mask_offsets"] = values["offsets"] + shapes.prod(axis=1)
        return values

    def _pixel_count(self, values: dict[str, npt.NDArray[Any]], rows: int) -> int:
        """Count the pixels that are image."""
        if "shapes" in values:
            return int(values["shapes"][:, :2].astype(np.int64).prod(axis=1).sum())
        if "content" in values:
            y0, x0, y1, x1 = values["content"].astype(np.int64).T
            return int(((y1 - y0) * (x1 - x0)).sum())
        return rows * self._like.height * self._like.width

    def _lines(self, start: int, stop: int) -> bytes:
        _, spec = self._tensors["targets"]
        return b"".join(source.lines(rows, spec) for source, rows in self._of(start, stop))

    # -- places

    def _of(self, start: int, stop: int) -> Iterator[tuple[Source, Ints]]:
        """Yield the sources of rows [start, stop) and which of their rows these are."""
        for source, first, last in zip(self._sources, self._bounds, self._bounds[1:], strict=False):
            if first < stop and start < last:
                yield source, source.rows[max(start, first) - first : min(stop, last) - first]

    def _begin(self, row: int) -> int:
        return int(self._ends[row - 1]) if row else 0

    def _span_bytes(self, start: int, stop: int) -> int:
        return self._begin(stop) - self._begin(start)

    def _sizes(self, start: int, stop: int) -> Ints:
        return np.diff(self._ends[start:stop], prepend=self._begin(start))


def _little_endian(values: npt.NDArray[Any]) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
