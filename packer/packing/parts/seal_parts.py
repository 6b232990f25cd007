"""`pack seal`: the packed parts of OUT become one store, the same bytes as of a pack on one machine.

The rows of the first part are renamed to their destination, those of each other part are copied behind them, and the part's file
removed when they are synced: what an interrupted run has done is what is no longer there. Then the store is sealed as ever.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packer.errors import JournalError, LockedError, PackError
from packer.inputs.samples import Inputs
from packer.inputs.splits import split_of, stores_in, stores_of
from packer.option_names import OVERWRITE, Option
from packer.options import WorkerOptions
from packer.packing.parts.part_inputs import load_inputs
from packer.packing.resume import header_difference
from packer.pixels.geometry import Geometry
from packer.pixels.layout import RowLayout
from packer.progress import notify, reports
from packer.report import PackReport, Progress
from packer.store import journal as journals
from packer.store.blocks import Result
from packer.store.destination import Folder, Making
from packer.store.disk_space import allocate
from packer.store.files import sync_folder, sync_names, write_at
from packer.store.lock import Lock, checked
from packer.store.out_folder import resolved_out
from packer.store.parts import PARTS, Part, started_parts
from packer.store.reports import store_report, summed_report
from packer.store.seal import seal
from packer.store.state import check_finished, out_of, resume_command, two_divisions
from reader.format.filesystem import error_path, refresh_names
from reader.format.manifest import MANIFEST, PIXELS
from reader.tuning import tuning


@reports
def seal_parts(
    out: str | os.PathLike[str],
    *,
    max_rejects: int | str = WorkerOptions.max_rejects,
    progress: Callable[[Progress], None] | None = None,
) -> PackReport:
    """Make the store OUT of its parts, all packed by `pack(images, out, part="i/n")`. The same as the command `pack seal OUT`.

    Args:
        out: what the parts were packed to; where IMAGES had splits, each becomes a store.
        max_rejects: more rejects than this, over all parts, set `too_many_rejects`: a count or a percentage.
        progress: called with the stage "seal" and rows.

    Raises:
        PackError: a part is missing, unfinished, being packed, or was packed with other options; LockedError, DiskFullError.
    """
    target, options = resolved_out(out), WorkerOptions(max_rejects=max_rejects)
    to = Folder(target)
    to.recover()
    if to.finished:
        reports = {split: _finished_report(store) for split, store in stores_of(target).items()}
    else:
        reports = _sealed(to)
    for split, report in reports.items():
        too_many = report.rejected > options.allowed_rejects(report.inputs)
        reports[split] = dataclasses.replace(report, too_many_rejects=too_many)
    return reports[""] if "" in reports else summed_report(target, reports)


def _sealed(to: Folder) -> dict[str, PackReport]:
    """Seal the store, or those of the splits, and publish them."""
    if not _with_parts(to):
        raise PackError(f"{to.out} holds no part of a pack. Parts are made by: pack IMAGES {to.out} --part i/n")
    reports: dict[str, PackReport] = {}
    try:
        with to.held():
            stores = {split_of(store, to.stage): store for store in stores_in(to.stage) if store in _with_parts(to)}
            found = {
                split: _CompleteParts.open(to.store(split))
                for split, store in stores.items()
                if not (store / MANIFEST).is_file()
            }
            for split, store in stores.items():
                started = time.monotonic()
                if split in found:
                    with checked(to.check_same):
                        report = found[split].seal(functools.partial(_notified, split))
                else:
                    report = _finished_report(store)
                seconds = time.monotonic() - started
                reports[split] = dataclasses.replace(report, out=str(out_of(store)), seconds=seconds)
            to.publish()
    except LockedError:
        for store in _with_parts(to):
            for part in started_parts(store):
                Lock(part.folder(store)).close()
        raise
    return reports


def _with_parts(to: Folder) -> list[Path]:
    """The folders where parts of a pack are in progress."""
    return [store for store in to.unfinished if (store / PARTS).is_dir()]


def _notified(split: str, done: int, total: int) -> None:
    notify(Progress("seal", done, total, split=split))


def _finished_report(store: Path) -> PackReport:
    manifest = check_finished(store)
    return store_report(manifest, Inputs(store), store, 0.0, manifest.inputs)


@dataclass
class _CompleteParts:
    """The parts of one store, found complete. source_bytes adds up while the store is sealed."""

    making: Making
    folders: list[Path]
    rows: list[int]
    sizes_bytes: list[int]
    header: journals.Header
    source_bytes: int = 0

    @classmethod
    def open(cls, making: Making) -> _CompleteParts:
        """Check that the parts of a store together are one complete pack."""
        out = making.folder
        parts = started_parts(out)
        if not parts:
            raise PackError(
                f"{making.name} holds no part of a pack. Parts are made by: pack IMAGES {making.name} --part i/n"
            )
        _check_all_there(out, parts)
        folders = [part.folder(out) for part in parts]
        headers = [journals.read_header(folder) for folder in folders]
        for part, header in zip(parts, headers, strict=True):
            if what := header_difference(headers[0], header):
                raise _unlike(out, parts[0], what, part)
        layout = _layout(headers[0])
        for folder in (out, *folders):
            refresh_names(folder / PIXELS)  # what a sealing that was killed on another host did must be seen
        found = [_finished(out, part, header.span, layout) for part, header in zip(parts, headers, strict=True)]
        rows, sizes_bytes = ([*column] for column in zip(*found, strict=True))
        return cls(making, folders, rows, sizes_bytes, headers[0])

    def seal(self, progress: Callable[[int, int], None]) -> PackReport:
        """Gather the rows, write all other files, and commit by the manifest."""
        inputs = load_inputs(self.folders)
        if not any(self.rows):
            raise PackError(f"nothing of {inputs.base} could be packed: every input was rejected.")
        self._gather(progress)
        manifest = seal(
            self.making.log(),
            self.header,
            _layout(self.header),
            inputs,
            self._blocks(),
        )
        assert manifest is not None  # there are rows
        report = store_report(manifest, inputs, self.making.folder, 0.0, manifest.inputs)
        return dataclasses.replace(report, source_bytes=self.source_bytes)

    def _blocks(self) -> Iterator[Result]:
        for folder in self.folders:
            for result, _ in journals.read_blocks(folder):
                self.source_bytes += result.source_bytes
                yield result

    def _gather(self, progress: Callable[[int, int], None]) -> None:
        """Bring all rows to their offset in OUT."""
        out, check_same = self.making.folder, self.making.to.check_same
        pixels = out / PIXELS
        if not pixels.exists():
            check_same()
            pixels.parent.mkdir(exist_ok=True)
            # first: rows in a folder whose name is lost are lost
            sync_folder(out)
            os.rename(self.folders[0] / PIXELS, pixels)
            for folder in (pixels.parent, out, (self.folders[0] / PIXELS).parent):
                sync_folder(folder)
            sync_names(out)
        done = offset = 0
        for folder, rows, size_bytes in zip(self.folders, self.rows, self.sizes_bytes, strict=True):
            progress(done, sum(self.rows))
            source, stop = folder / PIXELS, offset + size_bytes
            if source.exists():
                check_same()
                allocate(pixels, stop, lambda done: None)
                if (copied := _copy(source, pixels, offset, size_bytes)) < size_bytes:
                    raise self._cut_short(source, copied, size_bytes)
                check_same()
                source.unlink()
                sync_folder(source.parent)
            elif (there := pixels.stat().st_size) < stop:
                raise self._cut_short(pixels, there, stop)
            done, offset = done + rows, stop

    def _cut_short(self, path: Path, found: int, expected: int) -> JournalError:
        """Say that rows are lost once parts were joined: no part can be packed again beside those."""
        return JournalError(
            f"{path} has {found} bytes, its journal says {expected}. Remove {self.making.to.stage}, and pack the parts again."
        )


def _layout(header: journals.Header) -> RowLayout:
    """Return the layout of the rows, as a journal records it."""
    size = header.options["size"]
    geometry = Geometry.of_options(header.options, None if size is None else (size[0], size[1]))
    return RowLayout.of(geometry, header.options["channels"], quality=header.options.get("compress", 0))


def _check_all_there(out: Path, parts: list[Part]) -> None:
    """Refuse parts of two divisions, and a division that lacks one."""
    if message := two_divisions(out, parts):
        raise PackError(message)
    count = parts[0].count
    missing = [Part(number, count) for number in range(1, count + 1) if Part(number, count) not in parts]
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise PackError(
            f"part {missing[0]} of {out_of(out)}{more} missing. Pack it, then seal:"
            f" {resume_command(out, missing[0], like=parts[0])}"
        )


def _unfinished(out: Path, part: Part, what: str) -> PackError:
    return PackError(f"part {part} of {out_of(out)} is unfinished: {what}. Resume with: {resume_command(out, part)}")


def _unlike(out: Path, part: Part, what: str, other: Part) -> PackError:
    return PackError(
        f"part {part} of {out_of(out)} was packed with {what} in part {other}."
        f" Pack one of them again, with {Option('part')} and {OVERWRITE}."
    )


def _finished(out: Path, part: Part, span: tuple[int, int] | None, layout: RowLayout) -> tuple[int, int]:
    """Return how many rows a part has, and their bytes.

    Raises:
        PackError: its journal does not reach the end of its inputs.
    """
    start, stop = span or (0, 0)
    inputs = rows = size_bytes = 0
    for result, _ in journals.read_blocks(part.folder(out)):
        inputs, rows = inputs + result.inputs, rows + result.rows
        size_bytes += layout.stored_bytes(result.rows, result.shapes, result.size_bytes)
    if inputs != stop - start:
        raise _unfinished(out, part, f"{inputs} of its {stop - start} images are packed")
    # once parts are joined, their files are gone
    if not (out / PIXELS).exists():
        pixels = part.folder(out) / PIXELS
        there = pixels.stat().st_size if pixels.exists() else 0
        if there < size_bytes:
            raise JournalError(
                f"{pixels} has {there} bytes, its journal says {size_bytes}. Pack that part again, with"
                f" {Option('part')} and {OVERWRITE}."
            )
    return rows, size_bytes


def _copy(source: Path, dest: Path, offset: int, size_bytes: int) -> int:
    """Copy the first size_bytes of a file to an offset of another; returns how many there were, which are on disk then."""
    with error_path(source), open(source, "rb") as read, open(dest, "r+b", buffering=0) as written:
        done, most = 0, tuning().part_copy_bytes
        while data := read.read(min(most, size_bytes - done)):
            with error_path(dest):
                write_at(written.fileno(), memoryview(data), offset + done)
            done += len(data)
        with error_path(dest):
            os.fsync(written.fileno())
    return done
