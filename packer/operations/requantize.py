"""`pack requantize`: a folder of images converted to smaller JPEGs, in the same folders under the same names.

DEST is made and published as the folder of a store is, and requantized.jsonl, which says what became of each input, makes it
finished. A finished DEST is added to: each new image is made in the stage, and renamed into DEST once it is synced; its record is
replaced last. The images in IMAGES are read, never touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packer.clock import StageClock
from packer.errors import DecodeError, EngineError, NotRequantized, OptionsError, PackError, SourceError
from packer.inputs.scan import scan
from packer.option_names import RESUME, Option
from packer.options import COMPARED, MAX_PIXELS, OutputOptions, WorkerOptions
from packer.pixels.ffmpeg import mean_psnr, open_ffmpeg, versions
from packer.pixels.requantize import Recoder
from packer.progress import notify, reports
from packer.report import Progress
from packer.sources.base import State
from packer.sources.local import LocalSource
from packer.sources.roots import NOWHERE, Roots
from packer.store import journal as journals
from packer.store.blocks import RejectedInput, Result, Task
from packer.store.destination import Folder
from packer.store.failures import as_pack_error
from packer.store.files import sync_folder, write_atomically, write_synced
from packer.store.journal import FOLDER
from packer.store.lock import LOCK, check_same_lock, checked
from packer.store.out_folder import check_destination, check_no_links, listed, names_in, resolved_out
from packer.store.state import REQUANTIZE, in_progress, moved_names, out_of, unfinished_message
from packer.store.state import State as FolderState
from packer.text import both_given
from packer.values import check_quality, lasting_path, parse_size
from packer.workers.engine import LocalEngine
from packer.workers.processes import InFlight, Marks
from reader.format.filesystem import plain_path
from reader.format.samples import encode_line, read_json_lines
from reader.format.shown import redacted
from reader.system import available_cpus
from reader.tuning import tuning

RECORD = "requantized.jsonl"
_BLOCK_INPUTS = 32
# So many results that all have other sources than IMAGES were made of another folder; of fewer, all sources may have changed.
_ENOUGH_RESULTS = 10


@dataclass(frozen=True)
class RequantizeReport:
    """What became of a folder of images.

    Attributes:
        out: DEST.
        quality: the -q:v of ffmpeg.
        size: to which images were scaled, as the option gives it; None: not at all.
        inputs: how many there are.
        requantized: inputs that are smaller JPEGs in DEST.
        kept: inputs that are in DEST unchanged.
        rejected: inputs that are not in DEST.
        ignored: files that are no inputs.
        bytes_before: of the sources of all images in DEST.
        bytes_after: of all images in DEST.
        compared: requantized images that psnr and ssim are of, spread evenly.
        psnr: dB, of all their errors together; None where none was compared, or nothing changed.
        ssim: their mean; None where none was compared.
        lowest_ssim: (SSIM, path) of the image that suffered most; None where none was compared.
        seconds: from the call to its return.
        resumed_from: inputs that were done before this run.
        too_many_rejects: more than `max_rejects` were rejected.
        reasons: reason of a reject -> how many.
        kept_reasons: why an input is unchanged -> how many.
    """

    out: str
    quality: int
    size: str | None
    inputs: int
    requantized: int
    kept: int
    rejected: int
    ignored: int
    bytes_before: int
    bytes_after: int
    compared: int
    psnr: float | None
    ssim: float | None
    lowest_ssim: tuple[float, str] | None
    seconds: float
    resumed_from: int
    too_many_rejects: bool
    reasons: dict[str, int] = field(default_factory=dict)
    kept_reasons: dict[str, int] = field(default_factory=dict)


@reports
def requantize(
    images: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    quality: int,
    size: str | int | None = None,
    workers: int | None = None,
    fidelity: int = COMPARED,
    max_rejects: int | str = WorkerOptions.max_rejects,
    max_pixels: int = MAX_PIXELS,
    timeout: float = WorkerOptions.timeout,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> RequantizeReport:
    """Convert a folder of images to JPEGs of ffmpeg's -q:v quality. The same as `pack requantize IMAGES DEST`.

    Args:
        images: what `pack` takes as a folder.
        dest: a folder that does not exist yet, or is empty, or (resume) holds an earlier run.
        resume: right in every state: begins, continues an earlier run, does what is new or changed, or finds nothing to do.
        quality: 2 (best) to 31 (smallest).
        size: 224: the short side becomes 224 where it is longer; "480x640": height x width, whatever the shape. None: as it is.
        workers: processes; None: the CPUs that this process may use.
        fidelity: images to compare with their sources.
        max_rejects: more rejects than this count or percentage set `too_many_rejects`.
        max_pixels: reject images whose header claims more.
        timeout: longest that one image may take, seconds.
        progress: called a few times a second from the calling thread.

    Raises:
        OptionsError: an option has a value it cannot have, DEST is in the way, is in IMAGES or in a store, or the reverse, or
            two images would get one name.
        ScanError: images cannot be read or holds no image.
        PackError: there is no FFmpeg, or DEST cannot be written or is held by another process. Of that kind: DiskFullError
            where its disk is full.
    """
    started = time.monotonic()
    source = Path(images)
    check_quality(Option("quality"), quality)
    options = WorkerOptions(workers=workers, max_rejects=max_rejects, timeout=timeout)
    open_ffmpeg()
    _check_apart(source, Path(plain_path(dest)))
    out = resolved_out(dest, "DEST")
    paths, refused, ignored = _listed(source)
    _check_names(paths)
    asked = None if size is None else str(size)
    head = {"quality": quality, "size": asked, "ffmpeg": versions()}
    job = RequantizeJob(str(source.absolute()), "", quality, _parsed(size), max_pixels, Roots.of([source]))
    to = _Images(out)
    if to.stage in (found := Path(os.path.realpath(source)), *found.parents):
        raise OptionsError(f"IMAGES {source} is in {to.stage}, where {out} is made. Choose another DEST.")
    run = _Run(job, paths, refused, to, head)
    lines = run.run(options, resume)
    compared = _compared(job, lines, out, fidelity)
    lowest = min(((ssim, path) for _, ssim, path in compared), default=None)
    rejects = [line["reason"] for line in lines if "reason" in line]
    kept = [line["kept"] for line in lines if line.get("kept")]
    return RequantizeReport(
        out=str(out),
        quality=quality,
        size=asked,
        inputs=len(lines),
        requantized=len(lines) - len(rejects) - len(kept),
        kept=len(kept),
        rejected=len(rejects),
        ignored=ignored,
        bytes_before=sum(line["bytes"] for line in lines if "to" in line),
        bytes_after=sum(line["bytes_after"] for line in lines if "to" in line),
        compared=len(compared),
        psnr=mean_psnr([psnr for psnr, _, _ in compared]) if compared else None,
        ssim=sum(ssim for _, ssim, _ in compared) / len(compared) if compared else None,
        lowest_ssim=lowest,
        seconds=time.monotonic() - started,
        resumed_from=run.resumed_from,
        too_many_rejects=len(rejects) > options.allowed_rejects(len(lines)),
        reasons=dict(Counter(rejects).most_common()),
        kept_reasons=dict(Counter(kept).most_common()),
    )


class _Images(Folder):
    """DEST: images, and the record of them. Once that is there, DEST stays the folder that it is, and is added to."""

    last = RECORD

    @property
    def state(self) -> FolderState:
        """What DEST is, now: finished where the record is there, and nothing is left to move into it."""
        is_moved = not any(os.path.lexists(self.stage / name) for name in moved_names(self.stage))
        is_finished = is_moved and (self.out / RECORD).is_file()
        return dataclasses.replace(super().state, finished=[self.out] if is_finished else [])

    @property
    def folder_of_images(self) -> Path:
        """Where images are put: into a DEST that is added to, else into its stage."""
        return self.out if self.replaces else self.stage

    def recover(self) -> None:
        """Finish what a crash has left of an earlier run; refuses a DEST that is the stage of another, which stays as it is."""
        if in_progress(self.out) and (target := out_of(self.out)) != self.out:
            raise OptionsError(f"{self.out} is where {target} is made. Give that as DEST, or choose another one.")
        super().recover()

    def check(self, options: OutputOptions, splits: Sequence[str] = ("",)) -> None:
        """Refuse a DEST that holds anything but an earlier run, or that run without --resume; raises OptionsError."""
        out, state = self.out, self.state
        is_started = state.is_in_progress or bool(state.finished)
        if state.is_in_progress and (state.header is None or state.header.command != REQUANTIZE):
            raise OptionsError(f"Choose another DEST: {unfinished_message(self.stage)}")
        # a run that ended before it had a journal has left the lock alone
        foreign = self._foreign(splits)
        if not is_started and (foreign or in_progress(out)):
            raise OptionsError(
                f"{out} is not empty (it holds {next(iter(foreign), FOLDER)}) and was not made by pack requantize. Choose"
                " another DEST."
            )
        self._check_nothing_else()
        if is_started and not options.resume:
            raise OptionsError(
                f"{out} holds an earlier run. Resume it with {RESUME}, which does what is new or changed,"
                " or choose another DEST."
            )
        self._check_stage()
        self.replaces = bool(state.finished)

    def _foreign(self, splits: Sequence[str]) -> list[str]:
        if self.state.finished or not self.out.exists():
            return []
        ours = {FOLDER, *(name for name in moved_names(self.stage) if not os.path.lexists(self.stage / name))}
        return [name for name in names_in(self.out) if name not in ours]

    def _foreign_in_stage(self) -> list[str]:
        if self.state.header is not None:
            return []
        # a run that ended before it had a journal has made no image
        working = self.stage / FOLDER
        inside = [f"{FOLDER}/{name}" for name in (listed(working) if working.is_dir() else [])]
        return [name for name in names_in(self.stage) + inside if name not in (FOLDER, LOCK, journals.JOURNAL)]

    def _own_paths(self, splits: Sequence[str] = ()) -> Iterator[Path]:
        yield from (self.stage, self._aside, self.out / FOLDER, self.out / RECORD)


class _Run:
    """What is done, what is to do, and the record of it."""

    def __init__(
        self, job: RequantizeJob, paths: list[str], refused: dict[int, str], to: _Images, head: dict[str, Any]
    ) -> None:
        self._job, self._paths, self._refused, self._to, self._head = job, paths, refused, to, head
        self.resumed_from = 0
        # names in DEST that are in no line: of others, or made by a run that was killed
        self._others = frozenset[str]()

    def run(self, options: WorkerOptions, resume: bool) -> list[dict[str, Any]]:
        """Convert the remaining inputs; returns a line for each input, in order."""
        to = self._to
        try:
            to.recover()
            # before anything is written: a refusal leaves DEST unchanged
            self._look(resume)
            to.replaces = True  # what another run may have finished since is no reason to stop
            with to.held():
                with checked(to.check_same):
                    lines = self._look(resume)
                    self.resumed_from = len(lines)
                    ordered = self._made(lines, options)
                # from here on the stage may have become DEST
                if to.replaces:
                    to.withdraw()
                else:
                    to.publish()
                return ordered
        except OSError as e:
            raise as_pack_error(e, to.stage, {}) from None
        except SourceError as e:
            raise SourceError(f"{e}. What is done is kept: continue with {RESUME} when it can be read.") from None
        except EngineError as e:
            raise PackError(f"requantizing stopped: {e}") from None

    def _made(self, lines: dict[str, Any], options: WorkerOptions) -> list[dict[str, Any]]:
        """Make what is to do, commit it block by block, and write the record."""
        to, folder = self._to, self._to.folder_of_images
        with contextlib.closing(to.store("").log()) as log:
            if to.state.header is None:
                log.begin(self._new_header())
            else:
                blocks = [(result.inputs, end) for result, end in journals.read_blocks(to.stage)]
                end = blocks[-1][1] if blocks else journals.header_end(to.stage)
                log.resume(end, sum(inputs for inputs, _ in blocks), 0, 0)
            for result in self._results(lines, options):
                new = [json.loads(line) for line in result.samples]
                # what is committed is there also after a power loss
                for above in {folder / above for line in new if "to" in line for above in Path(line["to"]).parents}:
                    sync_folder(above)
                log.commit([result])
                lines |= {line["path"]: line for line in new}
        ordered = [lines[path] for path in self._paths]
        to.check_same()
        write_atomically(folder / RECORD, "".join(map(encode_line, [self._head, *ordered])).encode("ascii"))
        return ordered

    def _new_header(self) -> journals.Header:
        size = self._head["size"]
        return journals.Header(
            inputs=len(self._paths),
            options=self._head,
            images=(redacted(lasting_path(self._job.images)),),
            words=("-q", str(self._head["quality"]), *(() if size is None else ("--size", size))),
            command=REQUANTIZE,
        )

    def _results(self, lines: dict[str, object], options: WorkerOptions) -> Iterator[Result]:
        todo = [index for index, path in enumerate(self._paths) if path not in lines]
        if not todo:
            return
        workers = options.workers or available_cpus()
        blocks = -(-len(todo) // _BLOCK_INPUTS)
        locks, dest = self._to.locks, str(self._to.folder_of_images.absolute())
        lock = str(locks[0].path.absolute()), locks[0].content
        job = dataclasses.replace(self._job, dest=dest, lock=lock, others=self._others)
        engine = LocalEngine(job, workers=min(workers, blocks), timeout=options.timeout, inherited=locks)
        done, rejected, source_bytes = self.resumed_from, 0, 0

        def tick() -> None:
            path = engine.waits_for()
            waits_for = os.path.join(self._job.images, path) if path else ""
            notify(Progress("pack", done, len(self._paths), rejected, source_bytes, waits_for=waits_for))

        try:
            for result in engine.run(self._tasks(todo), 0, ready=tick):
                done, rejected = done + result.inputs, rejected + len(result.rejects)
                source_bytes += result.source_bytes
                yield result
                tick()
        finally:
            engine.close()

    def _tasks(self, todo: list[int]) -> Iterator[Task]:
        """Cut the remaining inputs into blocks, numbered among themselves, not in the folder."""
        for start in range(0, len(todo), _BLOCK_INPUTS):
            part = todo[start : start + _BLOCK_INPUTS]
            refused = {start + i: self._refused[index] for i, index in enumerate(part) if index in self._refused}
            yield Task(start // _BLOCK_INPUTS, start, [self._paths[index] for index in part], [], [], refused)

    def _look(self, resume: bool) -> dict[str, Any]:
        """Return the line of each input that is done; refuses a DEST that is in the way."""
        self._to.check(OutputOptions(resume=resume))
        self._check_folders()
        lines = self._lines_before() if resume else {}
        done = self._done_among(lines)
        made = {line.get("to") for line in lines.values()}
        todo = itertools.filterfalse(done.__contains__, self._paths) if self._to.replaces else ()
        names = {name for path in todo for name in (path, jpg_name(path))} - made
        self._others = frozenset(name for name in names if os.path.lexists(self._to.out / name))
        return done

    def _check_folders(self) -> None:
        """Refuse folders of DEST that lead elsewhere: a result would be written there, to IMAGES perhaps."""
        into, folders = (
            self._to.folder_of_images,
            sorted({above for path in self._paths for above in Path(path).parents}),
        )
        links = (into / folder for folder in folders[1:] if (into / folder).is_symlink())
        check_no_links(into / RECORD, *itertools.islice(links, 1))
        sources = {_identity(Path(self._job.images, folder)) for folder in folders} - {None}
        if same := next((folder for folder in folders if _identity(into / folder) in sources), None):
            raise OptionsError(f"{into / same} is a folder of IMAGES, mounted there. Choose another DEST.")

    def _lines_before(self) -> dict[str, Any]:
        """Return the lines of earlier runs by their source; refuses a DEST that was made otherwise."""
        out, written = self._to.out, list[dict[str, Any]]()
        with contextlib.suppress(FileNotFoundError, ValueError):  # up to the first line that someone has damaged
            written.extend(read_json_lines(out / RECORD))
        heads, lines = written[:1], {line["path"]: line for line in written[1:]}
        if header := self._to.state.header:
            heads.append(dict(header.options))
            for result, _ in journals.read_blocks(self._to.stage):
                lines |= {line["path"]: line for line in map(json.loads, result.samples)}
        if head := next((head for head in heads if head != self._head), None):
            what = next(key for key in self._head if head.get(key) != self._head[key])
            values = head.get(what), self._head[what]
            before, now = both_given(what, *values) if what in ("quality", "size") else values
            raise OptionsError(
                f"{out} was started with another {what} ({before}, now {now})."
                " Resume with the same, or choose another DEST."
            )
        return lines

    def _done_among(self, lines: dict[str, Any]) -> dict[str, Any]:
        """Return the lines whose source and result still are as they say; rejects are tried again."""
        out, wanted = self._to.out, set(self._paths)
        done = [path for path, line in lines.items() if path in wanted and "to" in line]
        states = {path: LocalSource(os.path.join(self._job.images, path)).state() for path in done}
        made = [line for line in lines.values() if "to" in line]
        if len(made) >= _ENOUGH_RESULTS and not any(
            states.get(line["path"], (-1,))[0] == line["bytes"] for line in made
        ):
            raise OptionsError(
                f"{out} holds {len(made)} images made of others than those in {self._job.images}: none of their sources,"
                f" such as {made[0]['path']}, is there as it was. Choose another DEST."
            )
        return {path: lines[path] for path, state in states.items() if self._is_unchanged(lines[path], state)}

    def _is_unchanged(self, line: dict[str, Any], source: State) -> bool:
        result = LocalSource(os.path.join(self._to.folder_of_images, line["to"])).state()
        return source == (line["bytes"], line["mtime_ns"]) and result[0] == line["bytes_after"]


# -- in a worker


@dataclass(frozen=True)
class RequantizeJob:
    """What all images of a folder have in common; size is as `Recoder` takes it.

    dest: the folder that they are put into. lock: the path of that of the stage, and what it says.
    others: names in dest that no record says were made: what is there is neither replaced by other bytes, nor removed.
    """

    images: str
    dest: str
    quality: int
    size: tuple[int | None, int] | None
    max_pixels: int
    roots: Roots = NOWHERE
    lock: tuple[str, bytes] = ("", b"")
    others: frozenset[str] = frozenset()
    pauses: tuple[float, ...] = field(default_factory=lambda: tuning().source_pause_seconds)

    def recoder(self) -> Recoder:
        """Make what requantizes one image after the other."""
        return Recoder(self.quality, size=self.size, max_pixels=self.max_pixels)

    def worker(self, in_flight: Marks | None, clock: StageClock) -> RequantizeWorker:
        """Make what does this job in a process of its own."""
        return RequantizeWorker(self, in_flight)


class RequantizeWorker:
    """Requantizes images into a folder. A file there is complete or not there: it is made beside the lock, synced, then moved."""

    def __init__(self, job: RequantizeJob, in_flight: Marks | None) -> None:
        self._job, self._recoder, self._in_flight = job, job.recoder(), InFlight(in_flight, job.pauses)

    def expect(self, task: Task) -> None:
        """Do nothing: the sources are near."""

    def decode(self, task: Task) -> Result:
        """Do images of a block; their lines are the result's samples, in the block's order."""
        lines: list[dict[str, Any]] = []
        for index, path in enumerate(task.paths, start=task.start):
            lines.append(self._line(index, path, task.refused.get(index)))
        self._in_flight.mark(-1)
        result = Result(task.block, len(lines))
        result.samples = [encode_line(line) for line in lines]
        numbered = enumerate(lines, start=task.start)
        result.rejects = [RejectedInput(n, line["path"], line["reason"]) for n, line in numbered if "reason" in line]
        result.source_bytes = sum(line.get("bytes", 0) for line in lines)
        return result

    def write(self, block: int, offset: int) -> None:
        """Do nothing: there are no rows, and the files are written."""

    def _line(self, index: int, path: str, refusal: str | None) -> dict[str, object]:
        """Requantize one image, or keep it, or say why it is neither."""
        try:
            if refusal is not None:
                raise DecodeError(refusal)
            source = LocalSource(os.path.join(self._job.images, path), roots=self._job.roots)
            read = functools.partial(source.read, max_pixels=self._job.max_pixels)
            data, (_, mtime) = self._in_flight.patiently(index, read)
            recoded = self._recoder.recode(data)
            to = path if recoded.kept else jpg_name(path)
            self._check_other(to, recoded.data)
        except DecodeError as e:
            self._remove(path, "")
            return {"path": path, "reason": str(e)}
        self._put(index, to, recoded.data)
        self._remove(path, to)
        line = {"path": path, "to": to, "bytes": len(data), "bytes_after": len(recoded.data), "mtime_ns": mtime}
        return line | {"kept": recoded.kept} if recoded.kept else line

    def _check_other(self, to: str, data: bytes) -> None:
        """Refuse to replace a file that no run is known to have made by other bytes; raises DecodeError."""
        path = Path(self._job.dest, to)
        if to in self._job.others and not (path.is_file() and path.read_bytes() == data):
            raise DecodeError(f"{to} in DEST is in no record of pack requantize: move it away")

    def _put(self, index: int, to: str, data: bytes) -> None:
        """Put an image into the folder, if the stage still is what was locked."""
        path, new = Path(self._job.dest, to), Path(self._job.lock[0]).with_name(str(index))
        check_same_lock(*self._job.lock)
        write_synced(new, data)
        # the folder itself is not made again: it may have been moved since
        folder = Path(self._job.dest)
        for name in Path(to).parts[:-1]:
            folder /= name
            folder.mkdir(exist_ok=True)
        check_same_lock(*self._job.lock)
        try:
            os.replace(new, path)
        except OSError as e:
            e.filename = str(path)
            if e.errno != errno.EXDEV:
                raise
            write_atomically(path, data)  # a folder of DEST on another disk

    def _remove(self, path: str, to: str) -> None:
        """Take away what an earlier run made of a source that has changed since, if the stage still is what was locked."""
        for made in (os.path.join(self._job.dest, name) for name in {path, jpg_name(path)} - {to, *self._job.others}):
            if os.path.lexists(made):
                check_same_lock(*self._job.lock)
                with contextlib.suppress(OSError):
                    os.unlink(made)


def jpg_name(path: str) -> str:
    """Name what a requantized image is written to.

    Examples:
        >>> jpg_name("n01/hen.JPEG")
        'n01/hen.jpg'
    """
    return f"{os.path.splitext(path)[0]}.jpg"


# -- checks and records


def _parsed(size: str | int | None) -> tuple[int | None, int] | None:
    """Parse "480x640" to (480, 640), and "224" to (None, 224): of the short side."""
    if size is None:
        return None
    height, width = parse_size(str(size))
    if min(height, width) < 1 or max(height, width) > 65_500:  # libjpeg's limit
        raise OptionsError(f"{Option('size')} is {size}, expected 1 to 65500 pixels a side.")
    return (height, width) if "x" in str(size).lower() else (None, width)


def _check_apart(images: Path, out: Path) -> None:
    """Refuse folders that are in one another: the next listing of IMAGES would find its own results."""
    try:
        os.lstat(out)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise OptionsError(f"DEST {_shortened(str(out))} cannot be made: {e.strerror}. Choose another DEST.") from None
    source, target = Path(os.path.realpath(images)), Path(os.path.realpath(out))
    if source == target or source in target.parents:
        raise OptionsError(f"DEST {out} is in IMAGES {images}. Choose a folder outside it.")
    if target in source.parents:
        raise OptionsError(f"IMAGES {images} is in DEST {out}. Choose another DEST.")
    if out.is_symlink() and not out.exists():
        raise OptionsError(
            f"{out} is a symbolic link to {os.readlink(out)}, which does not exist. Choose another DEST."
        )
    check_destination([], out, "DEST")


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return device and inode of a folder, which a bind mount of it shares; None where there is none."""
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _shortened(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:40]}...{name[-40:]}"


def _listed(images: Path) -> tuple[list[str], dict[int, str], int]:
    """List a folder as a pack does: paths below it, refusals by position, and the number of other files."""
    if images.is_file():
        raise OptionsError(f"{images} is a file. Expected a folder of images.")
    paths: list[str] = []
    refused: dict[int, str] = {}
    ignored = 0
    for split, inputs in scan(images).items():
        refused |= {len(paths) + index: reason for index, reason in inputs.refused.items()}
        paths += [f"{split}/{path}" if split else path for path in inputs.paths]
        ignored += inputs.ignored
    return paths, refused, ignored


def _check_names(paths: list[str]) -> None:
    """Refuse two images that would get one name; names both."""
    known: dict[str, str] = {}
    for path in paths:
        other = known.setdefault(jpg_name(path), path)
        if other is not path:
            raise OptionsError(f"{other} and {path} would both become {jpg_name(path)}. Rename one of them.")


def _compared(job: RequantizeJob, lines: list[dict[str, Any]], out: Path, count: int) -> list[tuple[float, float, str]]:
    """Compare some requantized images with their sources: PSNR, SSIM, path."""
    done = [line for line in lines if "to" in line and "kept" not in line]
    count = min(count, len(done))
    recoder, found = job.recoder(), []
    for line in (done[(2 * i + 1) * len(done) // (2 * count)] for i in range(count)):
        before, after = Path(job.images, line["path"]), Path(out, line["to"])
        with contextlib.suppress(OSError, NotRequantized, DecodeError):  # changed or gone since
            found.append((*recoder.compare(before.read_bytes(), after.read_bytes()), line["path"]))
    return found
