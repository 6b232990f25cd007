"""Parts of one pack: each is packed into its own store, in the stage of OUT, and `pack seal` joins them.

Sealing renames the first part's file of rows to its destination. It appends the rows of each other part, and removes that
part's file once they are synced. After an interruption, missing files show the finished parts. The small files follow, and
the manifest makes the store.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packer.checksums import crc32_combine, sha256_file
from packer.errors import JournalError, PackError
from packer.inputs.samples import Inputs
from packer.inputs.splits import split_of, stores_in, stores_of
from packer.option_names import OVERWRITE, Option
from packer.options import PackOptions, WorkerOptions
from packer.packing.request import INPUTS, header_difference, recorded_labels
from packer.pixels.decoder_choice import pixel_versions
from packer.progress import CountedBytes, notify, reports
from packer.report import PackReport, Progress
from packer.sources.base import NO_STATE
from packer.store import journal as journals
from packer.store.destination import Folder, StagedStore
from packer.store.disk_space import allocate, as_pack_error
from packer.store.files import sync_folder, sync_names, write_at
from packer.store.lock import checked
from packer.store.parts import DIVISION, PARTS, SOURCES, TOTALS, Part, named_parts, started_parts, wanted_parts
from packer.store.reports import empty_report, store_report, summed_report
from packer.store.row_files import (
    FRAMES,
    MASK_OFFSETS,
    MASKS,
    OFFSETS,
    DigestedFile,
    add_sources,
    channel_statistics,
    joint_mask_values,
)
from packer.store.seal import commit_manifest, set_size
from packer.store.sealed_rows import damage
from packer.store.state import (
    check_finished,
    command_to_resume,
    out_of,
    published,
    resolved_out,
    seal_command,
    two_divisions,
)
from reader.format.blocks import Block, read_blocks
from reader.format.errors import StoreError
from reader.format.filesystem import error_path, refresh_names
from reader.format.manifest import MANIFEST, PIXELS, REJECTED, SAMPLES, FileEntry, Manifest, read_manifest
from reader.format.splits import staging_path

# Bytes of a part's rows that are copied at a time.
PART_COPY_BYTES = 16 << 20

# Bytes of a small file that are copied at a time: a multiple of its numbers.
_PIECE_BYTES = 1 << 20

PackStores = Callable[[dict[str, Inputs], Folder, PackOptions, float], PackReport]


class PartFolder(Folder):
    """The folder of one part of a store: under its own lock, while other parts share OUT's stage."""

    def __init__(self, whole: Folder, split: str, part: Part) -> None:
        self._whole, self._split, self.part = whole, split, part
        super().__init__(part.folder(whole.stage / split), overwrite=whole.overwrite)

    def check(self, splits: Collection[str] = ("",)) -> None:
        """Refuse a part if something is in its way; says how to resume.

        Raises:
            OptionsError: other files are in OUT.
            PackError: OUT is a store, it is packed without parts, in another number of parts, or being sealed.
        """
        self.check_whole()
        super().check(splits)

    def check_whole(self) -> None:
        """Check the stores and parts beside this part, as `check` does."""
        out, store = self._whole.out / self._split, self._whole.stage / self._split
        if published(out):
            raise PackError(
                f"{out} already holds a store, which parts cannot replace. Choose another OUT, or remove it."
            )
        # existing parts are in no part's way
        Folder(self._whole.out, overwrite=True).check([self._split])
        if header := journals.header_of(store):
            command = command_to_resume(store, header)
            raise PackError(f"{out} is being packed as a whole, without {Option('part')}. Resume with: {command}")
        parts = named_parts(store)
        if (store / PIXELS).exists():
            raise PackError(
                f"the parts of {out} are being sealed. Resume with: {seal_command(store)}"
                if parts
                else f"{out} is being packed as a whole, without {Option('part')}, or such a pack was ended early: if none"
                f" runs, remove {store}."
            )
        if other := next((other for other in parts if other.count != self.part.count), None):
            raise PackError(
                f"{out} is packed in {other.count} parts, this is part {self.part}. Give them all the same number."
            )

    @contextlib.contextmanager
    def begin(self, splits: Collection[str] = ("",)) -> Iterator[None]:
        """Lock the stage of OUT, shared with other parts, and that of this part exclusively."""
        with self._whole.held(is_shared=True), super().begin(splits):
            self.locks += self._whole.locks
            yield

    def check_same(self) -> None:
        """Check OUT's stage, then this folder, as any store's."""
        self._whole.check_same()
        super().check_same()

    def publish(self) -> None:
        """Finish the part; a part without rows is no store, and stays in its stage."""
        if (self.stage / MANIFEST).is_file():
            super().publish()


def pack_part(
    splits: dict[str, Inputs], to: Folder, options: PackOptions, started: float, pack: PackStores
) -> PackReport:
    """Pack one part of the inputs of each split.

    Args:
        started: when the call began, by time.perf_counter().
        pack: makes a store.
    """
    part, found = Part.parse(options.part or ""), dict[str, PackReport]()
    for split, every in splits.items():
        folder, span = PartFolder(to, split, part), part.span(len(every))
        folder.check_whole()
        folder.recover()
        inputs = every.chosen(span)
        # the labels of all parts, which show that two parts are from one pack
        labels = recorded_labels(every)
        inputs.labels |= {INPUTS: labels[INPUTS], DIVISION: [part.count, len(every)]}
        _check_siblings(to.stage / split, part, inputs, options)
        report = pack({"": inputs}, folder, options, started) if span else empty_report(inputs, folder.out, {})
        found[split] = dataclasses.replace(report, part=str(part))
    return found[""] if "" in found else summed_report(to.out, found)


def _check_siblings(store: Path, part: Part, inputs: Inputs, options: PackOptions) -> None:
    """Refuse a part whose inputs, options or decoders differ from those of another part."""
    shaping = options.shaping()
    asked = journals.Header(options=shaping, decoders=pixel_versions(shaping), labels=recorded_labels(inputs))
    other = next((other for other in started_parts(store) if other != part), None)
    found = other and other.recorded(store)
    if found and (what := header_difference(found, asked)):
        raise PackError(f"part {other} of {out_of(store)} was started with {what}. Pack all parts with the same.")


@reports
def seal_parts(
    out: str | os.PathLike[str],
    *,
    max_rejects: int | str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> PackReport:
    """Make the store OUT from its parts, all packed by `pack(images, out, part="i/n")`. The same as the command `pack seal OUT`.

    Args:
        out: OUT of the parts; if IMAGES had splits, each becomes a store.
        max_rejects: more rejects than this, over all parts, set `too_many_rejects`: a count or a percentage; None: as the
            parts were given.
        progress: called with the stage "seal" and rows.

    Raises:
        PackError: a part is missing, unfinished, being packed, or was packed with other options; LockedError, DiskFullError.
    """
    target = resolved_out(out)
    options = None if max_rejects is None else WorkerOptions(max_rejects=max_rejects)
    to = Folder(target)
    to.recover()
    if to.finished:
        found = {split: _finished_report(store) for split, store in stores_of(target).items()}
    else:
        try:
            found = _sealed(to)
        except OSError as e:
            raise as_pack_error(e, to.stage, {}, f"give {seal_command(to.stage)} again") from None
    if options is not None:
        for split, report in found.items():
            too_many = report.rejected > options.allowed_rejects(report.inputs)
            found[split] = dataclasses.replace(report, too_many_rejects=too_many)
    return found[""] if "" in found else summed_report(target, found)


def _sealed(to: Folder) -> dict[str, PackReport]:
    """Seal the store, or those of the splits, and publish them."""
    if not _with_parts(to):
        raise PackError(f"{to.out} holds no part of a pack. Parts are made by: pack IMAGES {to.out} --part i/n")
    found: dict[str, PackReport] = {}
    with to.held():
        stores = {split_of(store, to.stage): store for store in stores_in(to.stage) if store in _with_parts(to)}
        joined = {
            split: _Joined(to.store(split), _packed_parts(store))
            for split, store in stores.items()
            if not (store / MANIFEST).is_file()
        }
        for split, store in stores.items():
            started = time.monotonic()
            with checked(to.check_same):
                report = joined[split].seal(split) if split in joined else _finished_report(store)
            seconds = time.monotonic() - started
            found[split] = dataclasses.replace(report, out=str(out_of(store)), seconds=seconds)
        to.publish()
    return found


def _with_parts(to: Folder) -> list[Path]:
    """The folders where parts of a pack are in progress."""
    return [store for store in to.unfinished if (store / PARTS).is_dir()]


def _finished_report(store: Path) -> PackReport:
    manifest = check_finished(store)
    return store_report(manifest, Inputs(store), store, 0.0, manifest.inputs)


@dataclass(frozen=True)
class _Packed:
    """A packed part.

    folder: of its files. manifest, blocks: None and empty if all inputs were rejected. sources: the sum of their digests.
    """

    part: Part
    folder: Path
    header: journals.Header
    manifest: Manifest | None
    blocks: list[Block]
    sources: int

    @classmethod
    def from_store(cls, store: Path, part: Part, header: journals.Header) -> _Packed:
        """Read the records of a packed part."""
        folder = part.folder(store)
        if not journals.header_of(staging_path(folder)):
            refresh_names(folder / PIXELS)  # show the changes of a seal that was killed on another host
            manifest = read_manifest(folder)
            return cls(part, folder, header, manifest, read_blocks(folder), int(manifest.labels[SOURCES], 16))
        sources = 0
        for result, _ in journals.read_blocks(staging_path(folder)):
            paths = (one.path for one in sorted(result.rejects, key=lambda one: one.input))
            masks = result.mask_sources or [NO_STATE] * result.inputs
            sources = add_sources(sources, zip(paths, result.sources, masks, strict=True))
        return cls(part, staging_path(folder), header, None, [], sources)

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return self.manifest.rows if self.manifest else 0

    @property
    def size_bytes(self) -> int:
        """The bytes of its rows in their file, without the padding to complete pages."""
        return sum(block.size_bytes for block in self.blocks)

    def check_files(self, store: Path) -> None:
        """Refuse a damaged part: new digests are made, which would hide the damage for ever."""
        if not self.manifest:
            return
        is_joined, again = (store / PIXELS).exists(), f"part {self.part} again, with {Option('part')} and {OVERWRITE}."
        if not is_joined:  # then its rows may be gone
            try:
                check_finished(self.folder)
            except StoreError as e:
                raise PackError(f"{e} Or pack {again}") from None
        # rows have their own checksums
        large = [name for name in (PIXELS, MASKS) if name == PIXELS or not (self.folder / name).exists()]
        if wrong := damage(self.folder, self.manifest, [name for name in self.manifest.files if name not in large]):
            raise PackError(f"{wrong} {f'Remove {store}, and pack the parts again.' if is_joined else f'Pack {again}'}")


def _packed_parts(store: Path) -> list[_Packed]:
    """Check that the parts of a store together are one complete pack, and return those that have inputs, in order."""
    recorded = {part: header for part in named_parts(store) if (header := part.recorded(store))}
    there, out = [*recorded], out_of(store)
    if not there:
        raise PackError(f"{out} holds no part of a pack. Parts are made by: pack IMAGES {out} --part i/n")
    if message := two_divisions(store, there):
        raise PackError(message)
    parts = wanted_parts(store)
    for what, some in (
        ("missing", [part for part in parts if part not in there]),
        ("unfinished", [part for part in parts if not part.is_packed(store)]),
    ):
        if some:
            more = f" and {len(some) - 1} more are" if len(some) > 1 else " is"
            raise PackError(
                f"part {some[0]} of {out}{more} {what}. Give the command of each again, then: {seal_command(store)}"
            )
    found = [_Packed.from_store(store, part, recorded[part]) for part in parts]
    first = found[0]
    for one in found:
        if what := header_difference(first.header, one.header):
            raise PackError(
                f"part {first.part} of {out} was packed with {what} in part {one.part}."
                f" Pack one of them again, with {Option('part')} and {OVERWRITE}."
            )
        one.check_files(store)
    if not any(one.rows for one in found):
        raise PackError(f"nothing of {out} could be packed: every input was rejected.")
    return found


class _Joined:
    """Joins parts into one store."""

    def __init__(self, staged: StagedStore, parts: list[_Packed]) -> None:
        self._staged, self._out, self._parts = staged, staged.folder, parts
        self._stores = [part.manifest for part in parts if part.manifest]
        self._like = self._stores[0]
        self._size_bytes = sum(part.size_bytes for part in parts)

    def seal(self, split: str) -> PackReport:
        """Join the rows, write all other files, and commit by the manifest."""
        for name in (PIXELS, MASKS):
            if name in self._like.files:
                self._gather(name, split)
        files, like = self._small_files(), self._like
        files[PIXELS] = self._pixels()
        if MASKS in like.files:
            size_bytes = self._rows * math.prod(like.extras["masks"].row_shape)
            set_size(self._out / MASKS, size_bytes, size_bytes)
            files[MASKS] = FileEntry(size_bytes, sha256_file(self._out / MASKS, CountedBytes(size_bytes)))
        manifest = commit_manifest(self._staged, self._fields(), files, self._blocks())
        report = store_report(manifest, Inputs(self._out), self._out, 0.0, manifest.inputs)
        limit = WorkerOptions(max_rejects=self._parts[0].header.max_rejects).allowed_rejects(manifest.inputs)
        return dataclasses.replace(report, too_many_rejects=manifest.rejected > limit)

    @property
    def _rows(self) -> int:
        return sum(part.rows for part in self._parts)

    def _gather(self, name: str, split: str) -> None:
        """Bring the rows of all parts, or their masks, to their offset in one file."""
        out, check_same = self._out / name, self._staged.to.check_same
        done = offset = 0
        for part in (part for part in self._parts if part.manifest):
            source = part.folder / name
            offset, begin = offset + (part.size_bytes if name == PIXELS else _file_bytes(part, name)), offset
            if not out.exists():
                check_same()
                out.parent.mkdir(parents=True, exist_ok=True)
                # first: rows in a folder whose name is lost are lost
                for folder in (self._out, out.parent.parent):
                    sync_folder(folder)
                os.rename(source, out)
                for folder in (out.parent, self._out, source.parent):
                    sync_folder(folder)
                sync_names(self._out)
            elif source.exists():
                check_same()
                allocate(out, offset, lambda done: None)
                if (copied := _copy(source, out, begin, offset - begin)) < offset - begin:
                    raise self._cut_short(source, copied, offset - begin)
                check_same()
                source.unlink()
                sync_folder(source.parent)
            if (there := out.stat().st_size) < offset:
                raise self._cut_short(out, there, offset)
            done += part.rows
            notify(Progress("seal", done, self._rows, split=split))

    def _cut_short(self, path: Path, found: int, expected: int) -> JournalError:
        """Explain that rows are lost after parts were joined: no part can be packed again then."""
        return JournalError(
            f"{path} has {found} bytes, expected {expected}. Remove {self._staged.to.stage}, and pack the parts again."
        )

    def _small_files(self) -> dict[str, FileEntry]:
        """Write all files except those of rows, from the parts' files in order."""
        large = (PIXELS, MASKS, *self._like.metadata_names())
        files: dict[str, FileEntry] = {}
        for name in self._like.files:
            if name in large:
                continue
            (self._out / name).parent.mkdir(exist_ok=True)
            written, unpacked, stored = DigestedFile(self._out / name), 0, 0
            try:
                for part in self._parts:
                    if part.manifest or name == REJECTED:
                        shifts = {OFFSETS: unpacked, MASK_OFFSETS: unpacked, FRAMES: stored}
                        _append(written, part.folder / name, shifts.get(name, 0))
                    jpeg = part.manifest.jpeg if part.manifest else None
                    stored += part.size_bytes
                    unpacked += jpeg.pixel_bytes if jpeg else part.size_bytes
                files[name] = written.close()
            finally:
                written.release()
        return files

    def _pixels(self) -> FileEntry:
        """Set the final size of the pixel file; returns its entry."""
        crc32, size_bytes = 0, self._like.file_bytes(self._size_bytes)
        for block in self._blocks():
            crc32 = crc32_combine(crc32, block.crc32, block.size_bytes)
        filling = size_bytes - self._size_bytes
        crc32 = crc32_combine(crc32, zlib.crc32(bytes(filling)), filling)
        set_size(self._out / PIXELS, self._size_bytes, size_bytes)
        return FileEntry(size_bytes, f"crc32:{crc32:08x}")

    def _blocks(self) -> Iterator[Block]:
        rows = lines = 0
        for part in self._parts:
            for block in part.blocks:
                start, stop = block.start + rows, block.stop + rows
                yield dataclasses.replace(block, start=start, stop=stop, samples_offset=block.samples_offset + lines)
            rows += part.rows
            lines += _file_bytes(part, SAMPLES)

    def _fields(self) -> dict[str, Any]:
        """Return the manifest's fields for the rows of all parts."""
        stores, like = self._stores, self._like
        totals = [store.labels[TOTALS] for store in stores]
        sums, square_sums = (
            [sum(column) for column in zip(*(one[name] for one in totals), strict=True)]
            for name in ("sums", "square_sums")
        )
        mean, std = channel_statistics(sum(one["pixel_count"] for one in totals), sums, square_sums)
        sources = sum(part.sources for part in self._parts) % (1 << 256)
        jpegs = [store.jpeg for store in stores if store.jpeg]
        jpeg = like.jpeg and dataclasses.replace(
            like.jpeg,
            pixel_bytes=sum(one.pixel_bytes for one in jpegs),
            squared_error=sum(one.squared_error for one in jpegs),
        )
        joined = dataclasses.replace(
            like,
            rows=self._rows,
            height=max(store.height for store in stores),
            width=max(store.width for store in stores),
            jpeg=jpeg,
            mean=tuple(mean),
            std=tuple(std),
            inputs=sum(part.header.inputs for part in self._parts),
            rejected=sum(part.header.inputs - part.rows for part in self._parts),
            mask_values=joint_mask_values(store.mask_values for store in stores),
            labels={name: value for name, value in like.labels.items() if name not in (DIVISION, TOTALS)}
            | {SOURCES: f"{sources:064x}"},
        )
        names = {field.name for field in dataclasses.fields(joined)} - {"files", "digest"}
        return {name: getattr(joined, name) for name in names}


def _file_bytes(part: _Packed, name: str) -> int:
    return part.manifest.files[name].size_bytes if part.manifest else 0


def _append(written: DigestedFile, source: Path, shift: int) -> None:
    """Append a file of a part; shift is added to each of its numbers, int64."""
    with error_path(source), open(source, "rb") as file:
        while data := file.read(_PIECE_BYTES):
            written.write((np.frombuffer(data, "<i8") + shift).astype("<i8").tobytes() if shift else data)


def _copy(source: Path, dest: Path, offset: int, size_bytes: int) -> int:
    """Copy the first size_bytes of a file to an offset of another; returns how many there were, now synced."""
    with error_path(source), open(source, "rb") as read, error_path(dest), open(dest, "r+b", buffering=0) as written:
        done, data = 0, b"-"
        while data:
            with error_path(source):
                data = read.read(min(PART_COPY_BYTES, size_bytes - done))
            write_at(written.fileno(), memoryview(data), offset + done)
            done += len(data)
        os.fsync(written.fileno())
    return done
