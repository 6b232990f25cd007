"""Makes one store: lock, allocate, run blocks, commit them in order, seal; or resume an earlier run.

A block is committed when its rows are synced and its line is in the journal; the store exists when the manifest does.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from packer.errors import EngineError, PackError, SourceError, UnreadableError
from packer.inputs.samples import Inputs
from packer.option_names import OVERWRITE, Option
from packer.options import PackOptions, RowOptions
from packer.packing.image_sizes import count_sizes, stored_bytes
from packer.packing.request import Committed, header_difference, journal_header, read_committed
from packer.pixels.geometry import Geometry
from packer.progress import notify
from packer.report import PackReport, Progress
from packer.sources.local import NO_FILE
from packer.store import journal as journals
from packer.store.destination import StagedStore
from packer.store.disk_space import allocate, as_pack_error, check_room
from packer.store.lock import checked
from packer.store.reports import CHANGES_NAMED, empty_report, store_report
from packer.store.row_files import MASKS, row_names
from packer.store.seal import expected_sizes, seal
from packer.store.tasks import Result, Task, block_inputs
from packer.workers.block_worker import PackJob
from packer.workers.engine import LocalEngine
from packer.workers.processes import start_context
from reader.format.filesystem import absolute_path
from reader.format.manifest import PIXELS, Manifest, read_manifest
from reader.system import available_cpus

if TYPE_CHECKING:
    from multiprocessing.pool import AsyncResult, ThreadPool

    from packer.store.reuse import ReusedLines

# Written blocks that may wait, per worker; as many more are being committed. More would not keep workers busier, and a crash
# loses them.
_PENDING_BLOCKS = 2


class Build:
    """Makes one store, from listed inputs to a sealed folder.

    Args:
        staged: where it is made, in a destination that is locked when `run` is called.
        shape: (height, width) of the rows.
        split: its name, or "".
        make_job: takes the fields of a PackJob.
    """

    def __init__(
        self,
        inputs: Inputs,
        options: PackOptions,
        staged: StagedStore,
        *,
        shape: tuple[int, int],
        split: str,
        make_job: Callable[..., PackJob],
    ) -> None:
        self._staged, self._to, self._out = staged, staged.to, staged.folder
        self._inputs, self._options, self._split = inputs, options, split
        self._job = _pack_job(inputs, self._out.absolute(), Geometry.from_size(shape, options), options, make_job)
        self._sizes = expected_sizes(self._job.layout, inputs)
        # inputs done before this run, and inputs per block; `run` sets them
        self._resumed_from = self._block_inputs = 0
        self._reused: ReusedLines | None = None
        self._committed = Committed()

    @functools.cached_property
    def _log(self) -> journals.CommitLog:
        """The log that commits its blocks; the destination must be locked."""
        return journals.CommitLog(self._out, self._to.check_same, row_names(self._job.layout))

    def divide(self) -> None:
        """Divide the inputs into blocks; if rows have their own sizes, this reads the headers.

        Called before the stage is locked: processes that read headers would hold it too.

        Raises:
            PackError: a worker that read headers was killed; SourceError if the inputs cannot be read.
        """
        layout, count = self._job.layout, len(self._inputs)
        if layout.size is not None:
            self._block_inputs = block_inputs(count, layout.size_bytes(1))
            return
        sizes = count_sizes({self._split: self._inputs}, self._options)[self._split]
        unpacked_bytes = stored_bytes(sizes, layout)
        self._block_inputs = block_inputs(count, max(1, unpacked_bytes // count))
        self._sizes[PIXELS] = layout.expected_bytes(unpacked_bytes)

    def run(self, started: float) -> PackReport:
        """Make and seal the store, which the caller publishes; returns its report.

        Args:
            started: when work on it began, by time.perf_counter().

        Raises:
            PackError: nothing could be packed, or the pack failed; says how to resume.
        """
        self._started = started
        self._job = dataclasses.replace(self._job, lock=self._to.locks[0].identity)
        try:
            (self._out / journals.FOLDER).mkdir(parents=True, exist_ok=True)
            with checked(self._to.check_same):
                sealed = self._made()
            if sealed is None:
                return self._without_rows()
            report = store_report(sealed, self._inputs, self._out, 0.0, self._resumed_from)
            return self._completed(dataclasses.replace(report, out=str(self._staged.name)))
        except SourceError as e:
            one = " A single file that stays unreadable is rejected when an empty one takes its place."
            raise SourceError(
                f"{e}. Packed images are kept: give the same command again when it can be read."
                f"{one if isinstance(e, UnreadableError) else ''}"
            ) from None
        except OSError as e:
            raise as_pack_error(e, self._out, self._sizes) from None
        except EngineError as e:
            raise PackError(f"packing stopped: {e} Packed images are kept: give the same command again.") from None

    def _made(self) -> Manifest | None:
        """Begin or continue, run all blocks and seal; None: every input was rejected."""
        unfinished = journals.header_of(self._out)
        header = self._header(unfinished)
        what = header_difference(unfinished, header) if unfinished else ""
        if what and not (self._options.overwrite or self._options.update):
            raise PackError(
                f"{self._staged.name} was started with {what}. Continue with the same, or start over with {OVERWRITE}."
            )
        if unfinished and not what:
            self._resume()
        else:  # work of another request is replaced, as a store would be
            header = self._header(None)
            self._to.clear(self._out)
            self._log.begin(header)
        self._resumed_from = self._committed.inputs_stop
        try:
            if self._options.update:
                self._reuse(header)
            self._take_room()
            self._run_blocks(header.block_inputs)
            return seal(self._staged, header, self._job.layout, self._inputs)
        finally:
            self._log.close()

    # -- begin

    def _reuse(self, header: journals.Header) -> None:
        """Reuse rows of the store that this one will replace, if any."""
        old = self._staged.old
        if old is not None:
            from packer.store.reuse import ReusedLines, check_reusable

            check_reusable(old, manifest := read_manifest(old), header.options, header.decoders)
            self._reused = ReusedLines(old, manifest.rows)
            if self._reused.gone(self._inputs.paths) == manifest.rows:
                raise PackError(
                    f"none of the {manifest.rows} rows of {old} is of these images. Choose another OUT, or pack again with"
                    f" {OVERWRITE}."
                )
            self._job = dataclasses.replace(self._job, reused_store=(str(old.absolute()), manifest.digest))

    def _resume(self) -> None:
        """Resume after the committed blocks with unchanged sources."""
        masks = os.fspath(self._options.masks or "")
        self._committed, end = read_committed(self._out, self._inputs, masks)
        committed = self._committed
        self._log.resume(end, committed.inputs_stop, committed.rows_stop)

    def _header(self, unfinished: journals.Header | None) -> journals.Header:
        """Return the journal's first line; rows of their own sizes keep the inputs per block of an unfinished journal."""
        step = unfinished.block_inputs if unfinished and self._options.has_own_sizes else self._block_inputs
        return journal_header(self._inputs, self._job, self._options, block_inputs=step, split=self._split)

    def _take_room(self) -> None:
        """Allocate the files of rows."""
        check_room(self._out, self._sizes)
        for name in row_names(self._job.layout):
            self._to.check_same()
            room = self._sizes[name]
            allocate(self._out / name, room, lambda done, room=room: notify(self._progress("allocate", done, room)))  # type: ignore[misc]

    # -- run

    def _run_blocks(self, step: int) -> None:
        """Let workers make the rows that are not committed yet, and commit them block by block."""
        committed = self._committed
        asked = self._options.workers or available_cpus()
        workers = max(1, min(asked, -(-(len(self._inputs) - committed.inputs_stop) // step)))
        if start_context().get_start_method() == "fork":
            self._job.import_ahead(self._inputs.paths)
        engine = LocalEngine(self._job, workers=workers, inherited=self._to.locks)
        tasks = _block_tasks(self._inputs, committed.inputs_stop, step, self._reused)
        written: list[Result] = []
        # one thread commits, so that no worker waits for the disk; blocks written meanwhile are committed together
        pool: ThreadPool | None = None
        commit: AsyncResult[None] | None = None
        try:
            for result in engine.run(tasks, committed.size_bytes, ready=self._tick):
                self._take(result)
                written.append(result)
                if pool is None:
                    # workers are forked by now, and do not inherit this import
                    from multiprocessing.pool import ThreadPool

                    pool = ThreadPool(1)
                # a disk slower than the decoders slows them down: a crash loses the waiting blocks
                if commit is None or commit.ready() or len(written) >= _PENDING_BLOCKS * workers:
                    if commit is not None:
                        commit.get()
                    commit, written = pool.apply_async(self._log.commit, (written,)), []
                self._tick()
        finally:
            engine.close()
            # keep written blocks, even if the pack is interrupted
            if commit is not None:
                commit.wait()
            if pool is not None:
                pool.terminate()
            if written and (commit is None or commit.successful()):
                self._log.commit(written)
        if commit is not None:
            commit.get()

    def _take(self, result: Result) -> None:
        """Count a block that was written."""
        if self._inputs.url:  # as listed, so that a resume notices replaced objects
            start = self._committed.inputs_stop
            states = self._inputs.states.tolist(start, start + result.inputs)
            result.sources = [(*state,) for state in states]
        self._committed.add(result)

    def _tick(self) -> None:
        notify(self._progress("pack", self._committed.inputs_stop, len(self._inputs)))

    def _progress(self, stage: str, done: int, total: int) -> Progress:
        return Progress(stage, done, total, self._committed.rejected, self._committed.source_bytes, self._split)

    # -- end

    def _completed(self, report: PackReport) -> PackReport:
        """Complete a report by the facts that only this run knows."""
        seconds, changed = time.perf_counter() - self._started, self._committed.changed
        return dataclasses.replace(
            report,
            seconds=seconds,
            images_per_second=(report.inputs - self._resumed_from) / seconds,
            resumed_from=self._resumed_from,
            source_bytes=self._committed.source_bytes,
            kept=self._committed.reused,
            gone=0 if self._reused is None else self._reused.gone(self._inputs.paths),
            changed_count=len(changed),
            changed_paths=changed[:CHANGES_NAMED],
            too_many_rejects=report.rejected > self._options.allowed_rejects(report.inputs),
        )

    def _without_rows(self) -> PackReport:
        """Report a part whose inputs were all rejected; for a whole pack, leave nothing and raise PackError."""
        rejects = [reject for result, _ in journals.read_blocks(self._out) for reject in result.rejects]
        if self._options.part:
            reasons = collections.Counter(reject.reason for reject in rejects)
            return self._completed(empty_report(self._inputs, self._staged.name, dict(reasons.most_common())))
        self._to.withdraw(self._out)
        example = f"For example {rejects[0].path}: {rejects[0].reason}."
        if rejects[0].reason == NO_FILE:
            example += f" If its paths start in another folder, name that by {Option('root')}."
        every = "its only input was" if len(self._inputs) == 1 else f"all {len(self._inputs)} inputs were"
        raise PackError(f"nothing of {self._inputs.base} could be packed: {every} rejected. {example}")


def _pack_job(
    inputs: Inputs, out: Path, geometry: Geometry, options: PackOptions, make_job: Callable[..., PackJob]
) -> PackJob:
    """Return the settings of all blocks; out is absolute, since workers may run in another folder.

    Raises:
        StoreError: rows are to be compressed, and the library for that is not installed.
    """
    if options.compress:
        from reader import jpeg_frames

        jpeg_frames.check_library()
    has_masks = inputs.masks is not None
    return make_job(
        root=inputs.url or str(inputs.root.absolute()),
        pixels_path=str(out / PIXELS),
        geometry=geometry,
        rows=RowOptions.pick_from(options),
        archives=inputs.archives,
        has_masks=has_masks,
        masks_root=absolute_path(options.masks or ""),
        masks_path=str(out / MASKS) if has_masks and not geometry.has_own_sizes else "",
        mask_classes=tuple(options.mask_values or ()),
        roots=inputs.roots,
    )


def _block_tasks(inputs: Inputs, first: int, step: int, reused: ReusedLines | None) -> Iterator[Task]:
    """Cut the inputs from index `first` on into blocks of `step`.

    Args:
        reused: the lines of the store that an update replaces.
    """
    for start in range(first, len(inputs), step):
        stop = min(start + step, len(inputs))
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
            reused={} if reused is None else reused.find(paths, start),
        )
