"""One store being made: lock, allocate, run blocks, commit them in order, seal; or go on where an earlier run had stopped.

A block is committed when its rows are synced and its line is in the journal; the store exists when the manifest does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer import journal as journals
from packer.changes import header_difference, inputs_difference
from packer.disk import (
    FULL,
    Committer,
    DiskFullError,
    allocate,
    check_room,
    disk_full,
    free_bytes,
    needed_bytes,
    open_files_limit,
)
from packer.durable import sync_folder
from packer.engine import LocalEngine
from packer.fit import Geometry
from packer.inputs import Inputs
from packer.options import PackOptions, available_cpus
from packer.parts import Part, check_no_parts, check_part, check_siblings, save_inputs
from packer.place import OWN_NAMES, check_out, finished_meanwhile, replacement, swap, sync_names
from packer.processes import EngineError
from packer.profile import Profile, StageClock
from packer.recode import pixel_versions
from packer.report import CHANGES_NAMED, PackError, PackReport, Progress, part_report, store_report
from packer.seal import MASKS, expected_sizes, remove_working_folder, seal
from packer.sizes import count_sizes, pixel_bytes
from packer.source import NO_DESCRIPTOR, Readable
from packer.tasks import Result, Task
from packer.worker import Job
from reader.files import naming
from reader.manifest import MANIFEST, PAGE_BYTES, PIXELS
from reader.unfinished import PARTS

if TYPE_CHECKING:
    from packer.ray_workers import RayWorkers

# A block: few enough bytes that a worker holds several, many enough that a journal line is nothing beside it, and small
# beside the whole pack, so that workers end together.
_BLOCK_BYTES = 8 << 20
_BLOCK_INPUTS = 4096
_BLOCKS_AT_LEAST = 128
_SMALLEST_BLOCK = 8
# What could not be written needs a page at least, even where the estimate of all files is used up.
_LEAST_BYTES = 4096


class Build:
    """One store being made, from listed inputs to a sealed folder; or a part of one, in a folder of its own."""

    def __init__(
        self,
        inputs: Inputs,
        out: Path,
        shape: tuple[int, int],
        options: PackOptions,
        tell: Callable[[Progress], None],
        split: str,
        clock: StageClock,
        make_job: Callable[..., Job],
        part: Part | None = None,
    ) -> None:
        self._part, self._whole = part, out
        if part is not None:
            out = part.folder(out)
        self._inputs, self._final, self._options, self._split = inputs, out, options, split
        self._tell, self._clock = tell, clock
        self._profile: Profile = {}
        # --overwrite of a finished store builds beside it and renames: open readers keep the old one
        beside = replacement(out)
        # where there is no OUT, a crash came between the two renames of a system that cannot exchange names
        goes_on = (beside / journals.JOURNAL).is_file() and ((out / MANIFEST).is_file() or not out.exists())
        self._replaces = (options.resume and goes_on) or (options.overwrite and (out / MANIFEST).is_file())
        self._out = beside if self._replaces else out
        geometry = Geometry.of(shape, options)
        pixels = str(self._out.absolute() / PIXELS)
        self._job = make_job(
            root=inputs.url or str(inputs.root.absolute()),
            pixels_path=pixels,
            geometry=geometry,
            channels=options.channels,
            exact=options.is_exact,
            strict=options.strict,
            max_pixels=options.max_pixels,
            archives=inputs.archives,
            requantize=options.requantize,
            masks_root=os.path.abspath(options.masks or ""),
            # masks of rows with sizes of their own stand behind the pixels
            masks_path="" if options.masks is None or options.has_own_sizes else str(self._out.absolute() / MASKS),
            upright_masks=options.upright_labels,
        )
        step = block_inputs(len(inputs), self._job.row_bytes)
        self._span = range(len(inputs)) if part is None else part.span(len(inputs), step)
        # the files that rows are written to as they are committed
        self._row_files = [PIXELS, MASKS] if self._job.masks_path else [PIXELS]
        self._sizes = expected_sizes(self._job, inputs)
        if part is not None:
            refused = sum(index in self._span for index in inputs.refused)
            self._sizes = {PIXELS: (len(self._span) - refused) * self._job.row_bytes}
        self._done = self._rejected = self._source_bytes = 0
        # what the blocks before take of the file, as `Result.places` counts it
        self._place = 0
        self._changed: list[str] = []

    def run(self) -> PackReport:
        if self._options.has_own_sizes:
            # before the lock is taken: processes that read headers would hold it too
            sizes = count_sizes({self._split: self._inputs}, self._options, self._tell)[self._split]
            has_masks = self._inputs.masks is not None
            room = pixel_bytes(sizes, self._job.geometry, self._options.channels, has_masks=has_masks)
            self._sizes[PIXELS] = -(-room // PAGE_BYTES) * PAGE_BYTES
        created = self._make_folder()
        try:
            locks = self._lock()
        except FileNotFoundError:
            raise finished_meanwhile(self._final) from None
        except OSError as e:
            raise self._write_error(e) from None
        try:
            if not self._replaces:
                self._look_again()
            report = self._run_locked(locks)
        except _NothingPacked as e:
            self._remove(created)
            raise PackError(str(e)) from None
        except OSError as e:
            raise self._write_error(e) from None
        except EngineError as e:
            raise PackError(f"packing stopped: {e}") from None
        finally:
            for lock in locks:
                lock.close()
        return report

    def _lock(self) -> list[journals.Lock]:
        """Hold OUT alone; or a part of it alone, and OUT together with the other parts."""
        if self._part is None:
            return [journals.Lock(self._out)]
        shared = journals.Lock(self._whole, is_shared=True)
        try:
            return [shared, journals.Lock(self._out)]
        except BaseException:
            shared.close()
            raise

    def _look_again(self) -> None:
        """Refuse OUT if another pack has finished it between the first look and the lock; leaves nothing of ours in it.

        Also under --resume and --overwrite: both would clear the finished store away to begin in its place.
        """
        if self._part is not None:
            check_part(self._whole, self._part, self._options, is_held=True)
            return
        check_no_parts(self._out, self._options)
        if (self._out / MANIFEST).exists():
            remove_working_folder(self._out)
            raise finished_meanwhile(self._out)
        check_out(self._out, self._options, is_held=True)

    def _run_locked(self, locks: list[journals.Lock]) -> PackReport:
        header = self._header()
        if self._part is not None:
            check_siblings(self._whole, self._part, header)
        done, row, journal = self._begin(header)
        resumed_from = done - self._span.start
        try:
            check_room(self._out, self._sizes)
            for name in self._row_files:
                self._allocate(name)
            self._clock.enter("serve")
            self._run_blocks(done, row, header["block_inputs"], journal, locks)
            if self._part is not None:
                return self._part_report(resumed_from)
            self._clock.enter("seal")
            self._tell(self._progress("seal", self._span.stop))
            sealed = seal(self._out, header, self._job, self._inputs)
        finally:
            journal.close()
        if sealed is None:
            raise _NothingPacked(self._nothing_packed())
        if os.name == "nt":
            locks[0].close()  # Windows moves and removes no open file
        if self._replaces:
            swap(self._out, self._final)
        # last, and under the lock: another pack may begin here as soon as it is gone
        remove_working_folder(self._final)
        stages = self._clock.seconds()
        report = store_report(sealed, self._inputs, self._final, sum(stages.values()), resumed_from)
        return dataclasses.replace(
            report,
            profile={"main": stages, **self._profile},
            source_bytes=self._source_bytes,
            **self._changes(),
            too_many_rejects=sealed.rejected > self._options.allowed_rejects(len(self._inputs)),
        )

    # -- begin

    def _make_folder(self) -> bool:
        """Make OUT and its working folder; returns whether OUT is new."""
        created = not self._out.exists()
        try:
            (self._out / journals.FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as e:
            if e.errno in FULL:
                raise self._write_error(e) from None
            name = errno.errorcode.get(e.errno or 0, "?")
            raise PackError(f"{e.filename or self._out} cannot be made: {e.strerror} ({name}).") from None
        return created

    def _header(self) -> dict[str, Any]:
        """Say what is packed and how; a resume must find the same."""
        listing = hashlib.sha256(self._inputs.identity.encode())
        for path in self._inputs.paths:
            listing.update(f"{path}\0".encode("utf-8", "surrogatepass"))
        for name, column in self._inputs.columns().items():
            listing.update(f"{name}\0{column.dtype}{column.row_shape}\0".encode())
            listing.update(column.values)
        if self._inputs.boxes is not None:
            listing.update(self._inputs.boxes.encoded())
            listing.update(repr(sorted(self._inputs.refused.items())).encode("utf-8", "surrogatepass"))
        if self._inputs.masks is not None:
            listing.update("\0".join(self._inputs.masks).encode("utf-8", "surrogatepass"))
        geometry = self._job.geometry
        names = [
            f"{column}: {name}" for column, target in self._inputs.further_targets.items() for name in target.classes
        ]
        # only where there are any
        further: dict[str, Any] = {"further_targets": names} if names else {}
        return (
            {
                "journal": 2,
                "inputs": len(self._inputs),
                "listing": listing.hexdigest(),
                "classes": list(self._inputs.classes),
                "options": self._options.shaping() | ({} if geometry.has_own_sizes else {"size": [*geometry.sides]}),
                "decoders": pixel_versions(self._options.requantize),
                "block_inputs": self._block_inputs(),
                # not compared: how the command reads that goes on
                "images": list(self._inputs.images),
                "words": dataclasses.replace(
                    self._options, size=None if geometry.has_own_sizes else geometry.sides
                ).words(),
                "split": self._split,
            }
            | further
            | ({} if self._part is None else {"span": [self._span.start, self._span.stop]})
        )

    def _begin(self, header: dict[str, Any]) -> tuple[int, int, journals.Journal]:
        """Return inputs done, rows done and the open journal: of the pack that is gone on with, or of a new one."""
        if self._goes_on():
            return self._resume(header)
        # the journal goes first and comes last: it must never outlive the rows that it names
        journals.discard(self._out)
        # and the working folder, which says that what lies here is a pack's
        sync_folder(self._out)
        self._clear()
        if self._part is not None:
            save_inputs(self._out, self._inputs, self._span)
        elif (self._out / PARTS).exists():
            _remove_tree(self._out / PARTS)
        paths = [self._out / name for name in self._row_files]
        for path in paths:
            path.parent.mkdir(exist_ok=True)
            with naming(path):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
        for path in reversed(paths):
            sync_folder(path.parent)
        sync_folder(self._out)
        sync_names(self._out)
        return self._span.start, 0, journals.Journal.create(self._out, header)

    def _resume(self, header: dict[str, Any]) -> tuple[int, int, journals.Journal]:
        found = journals.read_header(self._out)
        if what := header_difference(found, header, self._name_inputs):
            raise PackError(
                f"{self._final} was begun with {what}. Resume with the same, or start anew with --overwrite."
            )
        done, row, end = self._span.start, 0, journals.header_end(self._out)
        seen = done
        for result, line_end in journals.read_blocks(self._out):
            self._changed += self._changed_sources(seen, result)
            seen += result.inputs
            if self._changed:
                continue  # it is decoded anew, with all that follows; what else changed is told
            done, row, end = seen, row + result.rows, line_end
            self._place += result.places
            self._rejected += len(result.rejects)
            self._source_bytes += result.source_bytes
        return done, row, journals.Journal.reopen(self._out, end)

    def _name_inputs(self) -> str:
        is_shuffled = self._options.shuffle is not None
        return inputs_difference(self._out, self._span.start, self._inputs, is_shuffled=is_shuffled)

    def _changed_sources(self, start: int, result: Result) -> list[str]:
        """Return the sources of a committed block whose size or time is another now."""
        if self._inputs.identity:
            return []  # items of a dataset are no files
        changed = []
        for index, (size, mtime) in enumerate(result.sources, start=start):
            if index in self._inputs.refused:
                continue
            # what could not be read then, and cannot now, is unchanged
            now = self._source(index).state() if not self._inputs.url else tuple(self._inputs.states[index])
            if now != (size, mtime):
                changed.append(self._inputs.paths[index])
        for index, state in enumerate(result.mask_sources, start=start):
            mask = (self._inputs.masks or [])[index]
            if index not in self._inputs.refused and self._job.mask_source(mask).state() != tuple(state):
                changed.append(mask)
        return changed

    def _changes(self) -> dict[str, Any]:
        """Return what the report tells of sources that changed since the pack was interrupted."""
        paths = self._changed
        return {
            "changed": paths[0] if paths else "",
            "changed_count": len(paths),
            "changed_paths": paths[:CHANGES_NAMED],
        }

    def _listed_states(self, result: Result) -> list[tuple[int, int]]:
        return [(size, version) for size, version in self._inputs.states.tolist(self._done, self._done + result.inputs)]

    def _source(self, index: int) -> Readable:
        place = self._inputs.places[index] if self._inputs.archives else None
        return self._job.source(self._inputs.paths[index], place)

    def _allocate(self, name: str) -> None:
        room = self._sizes[name]
        allocate(self._out / name, room, lambda done: self._tell(self._progress("allocate", done, room)))

    # -- run

    def _block_inputs(self) -> int:
        """Return how many inputs make a block; a pack of rows with sizes of their own goes on with what it began with."""
        if not self._options.has_own_sizes:
            return block_inputs(len(self._inputs), self._job.row_bytes)
        begun = journals.read_header(self._out) if self._goes_on() else {}
        return begun.get("block_inputs") or block_inputs(
            len(self._inputs), max(1, self._sizes[PIXELS] // len(self._inputs))
        )

    def _goes_on(self) -> bool:
        return self._options.resume and journals.has_begun(self._out)

    def _run_blocks(
        self, done: int, row: int, step: int, journal: journals.Journal, locks: list[journals.Lock]
    ) -> None:
        self._done = done
        launcher = self._launcher()
        workers = self._options.workers or (available_cpus() if launcher is None else launcher.cpus)
        workers = max(1, min(workers, -(-(self._span.stop - done) // step)))
        if launcher is not None:
            launcher.prepare(self._job, workers)
        engine = LocalEngine(
            self._job,
            workers=workers,
            timeout=self._options.timeout,
            inherited=locks,
            clock=self._clock,
            launcher=launcher,
        )
        committer: Committer | None = None
        try:
            for result in engine.run(self._tasks(done, step), self._place, ready=self._tick):
                if self._inputs.url:  # as listed: what was replaced since then is seen by a resume
                    result.sources = self._listed_states(result)
                if committer is None:
                    rows = [self._out / name for name in self._row_files]
                    committer = Committer(rows, journal, done, row, workers=workers)
                self._done += result.inputs
                self._rejected += len(result.rejects)
                self._source_bytes += result.source_bytes
                self._stop_on_reject(result)
                committer.put(result)
                self._tick()
            self._clock.enter("wait")
            if committer is not None:
                committer.finish()
        finally:
            if launcher is not None:
                launcher.close()  # first: workers that end before Ray has been left are reported as failures on stderr
            engine.close()
            if committer is not None:
                committer.close()
                self._profile["commit"] = committer.stages()
            self._profile |= engine.profile

    def _launcher(self) -> RayWorkers | None:
        """Return what starts workers elsewhere; None where they are processes of this machine."""
        if self._options.engine == "local":
            return None
        from packer.ray_workers import RayWorkers

        tell_decoders = functools.partial(pixel_versions, self._options.requantize)
        # the lock names this process: no other folder of that name holds the same
        lock = self._out.absolute() / journals.LOCK
        return RayWorkers(self._options.address, (str(lock), lock.read_bytes()), tell_decoders(), tell_decoders)

    def _tasks(self, done: int, step: int) -> Iterator[Task]:
        inputs = self._inputs
        for start in range(done, self._span.stop, step):
            stop = min(start + step, self._span.stop)
            refused = (
                {i: inputs.refused[i] for i in range(start, stop) if i in inputs.refused} if inputs.refused else {}
            )
            paths, targets = inputs.paths[start:stop], inputs.targets.tolist(start, stop)
            places = inputs.places.tolist(start, stop) if inputs.archives else []
            masks = inputs.masks[start:stop] if inputs.masks is not None else []
            yield Task(start // step, start, paths, targets, places, refused, masks=masks)

    def _tick(self) -> None:
        self._tell(self._progress("pack", self._done))

    def _progress(self, stage: str, done: int, total: int | None = None) -> Progress:
        if total is None:
            done, total = done - self._span.start, len(self._span)
        return Progress(stage, done, total, self._rejected, self._source_bytes, self._split)

    def _stop_on_reject(self, result: Result) -> None:
        if self._options.on_error == "fail" and result.rejects:
            first = result.rejects[0]
            line = self._inputs.line(first["input"])
            where = first["path"] if line is None else f"line {line}, {first['path']}"
            raise PackError(
                f"{where}: {first['reason']} (--on-error fail). Mend or replace the file, then go on with --resume."
            )

    def _write_error(self, error: OSError) -> PackError:
        name = errno.errorcode.get(error.errno or 0, "?")
        if error.errno in NO_DESCRIPTOR:
            return PackError(
                f"{error.filename or 'a pipe to a worker'} cannot be opened: {error.strerror} ({name}), {open_files_limit()}."
                " Allow more or give fewer --workers, and go on with --resume."
            )
        if error.filename is None and error.errno not in FULL:  # whatever opens, reads or writes a file names it
            return PackError(
                f"a worker process cannot be started or reached: {error.strerror} ({name}). Go on with --resume."
            )
        path = Path(error.filename or self._out / PIXELS)
        what = f"{path} cannot be read or written: {error.strerror} ({name})"
        if error.errno not in FULL:
            return PackError(f"{what}. Go on with --resume once it can.")
        free = free_bytes(path)
        need = max(_LEAST_BYTES, needed_bytes(self._out, self._sizes))
        if need > free:
            return disk_full(path, need, free)
        # a quota is used up, or someone has made room meanwhile
        return DiskFullError(
            f"{what}; {need} more bytes are needed, its disk has {free} free."
            " Free some space or raise your quota, and go on with --resume."
        )

    # -- end

    def _part_report(self, resumed_from: int) -> PackReport:
        rejects = [reject for result, _ in journals.read_blocks(self._out) for reject in result.rejects]
        report = part_report(self._final, str(self._part), self._job, self._inputs, self._span, rejects)
        stages = self._clock.seconds()
        seconds = sum(stages.values())
        return dataclasses.replace(
            report,
            seconds=seconds,
            profile={"main": stages, **self._profile},
            images_per_second=(len(self._span) - resumed_from) / seconds,
            resumed_from=resumed_from,
            source_bytes=self._source_bytes,
            **self._changes(),
            too_many_rejects=len(rejects) > self._options.allowed_rejects(len(self._span)),
        )

    def _nothing_packed(self) -> str:
        results = journals.read_blocks(self._out)
        first = next((reject for result, _ in results for reject in result.rejects), None)
        example = f" For example {first['path']}: {first['reason']}." if first else ""
        return f"nothing of {self._inputs.base} could be packed: all {len(self._inputs)} inputs were rejected.{example}"

    def _remove(self, created: bool) -> None:
        """Leave nothing behind that looks like a store."""
        self._clear()
        sync_folder(self._out)
        _remove_tree(self._out / journals.FOLDER)
        if created or self._replaces:
            with contextlib.suppress(OSError):  # someone put a file of theirs there meanwhile
                self._out.rmdir()

    def _clear(self) -> None:
        """Remove what an earlier pack left, and nothing else, but for the working folder, which must go last."""
        for name in OWN_NAMES - {journals.FOLDER}:
            entry = self._out / name
            if entry.is_dir() and not entry.is_symlink():
                _remove_tree(entry)
            else:
                entry.unlink(missing_ok=True)


class _NothingPacked(Exception):
    pass


def _remove_tree(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as e:
        # what lies in a folder is named without it
        if e.filename and not os.path.dirname(e.filename):
            e.filename = str(folder / e.filename)
        raise


def block_inputs(inputs: int, row_bytes: int) -> int:
    """Return how many inputs make a block: a function of the pack alone, so that any run cuts it alike."""
    by_bytes = max(1, _BLOCK_BYTES // row_bytes)
    return min(by_bytes, _BLOCK_INPUTS, max(_SMALLEST_BLOCK, inputs // _BLOCKS_AT_LEAST))
