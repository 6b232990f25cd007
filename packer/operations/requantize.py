"""`pack requantize`: a folder of images converted to smaller JPEGs, in the same folders under the same names.

Each image is renamed into DEST when complete. requantized.jsonl records the outcome of each input, and makes DEST finished;
until then its lines are in requantized.jsonl.part. The images in IMAGES are only read.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from packer import values
from packer.errors import DecodeError, LockedError, OptionsError
from packer.inputs.scan import scan
from packer.option_names import Option
from packer.options import WorkerOptions
from packer.pixels.ffmpeg import Recoder, ffmpeg_versions
from packer.progress import notify, reports
from packer.report import Progress
from packer.sample_lines import encode_line, read_json_lines
from packer.sources.local import LocalSource
from packer.store.disk_space import as_pack_error
from packer.store.files import sync_folder, sync_names, write_atomically
from packer.store.state import check_destination, resolved_out
from packer.workers.processes import begin_worker, start_context
from reader.format.filesystem import error_path
from reader.system import available_cpus

RECORD = "requantized.jsonl"
# Images queued per worker: the pool receives results one by one, and a few queued images hide that.
_AHEAD = 4
_KILLED = "it ended the process that decoded it"


@dataclass(frozen=True)
class RequantizeReport:
    """The outcome of requantizing a folder.

    Attributes:
        out: DEST.
        quality: the -q:v of ffmpeg.
        size: the size that images were scaled to, as the option gives it; None: not scaled.
        inputs: number of inputs.
        requantized: inputs that are smaller JPEGs in DEST.
        kept: inputs that are in DEST unchanged.
        rejected: inputs that are not in DEST.
        bytes_before: size of the sources of all images in DEST.
        bytes_after: size of all images in DEST.
        seconds: from the call to its return.
        resumed_from: inputs that were done before this run.
        too_many_rejects: more than `max_rejects` were rejected.
        reasons: reason of a reject -> count.
        kept_reasons: why an input is unchanged -> count.
    """

    out: str
    quality: int
    size: str | None
    inputs: int
    requantized: int
    kept: int
    rejected: int
    bytes_before: int
    bytes_after: int
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
    max_rejects: int | str = WorkerOptions.max_rejects,
    progress: Callable[[Progress], None] | None = None,
) -> RequantizeReport:
    """Convert a folder of images to JPEGs of ffmpeg's -q:v quality. The same as `pack requantize IMAGES DEST`.

    The same call again continues an interrupted run, and converts new or changed images.

    Args:
        images: a folder, as `pack` takes it.
        dest: a folder that does not exist yet, is empty, or holds an earlier run with the same options.
        quality: 2 (best) to 31 (smallest).
        size: 224: a longer short side becomes 224; "480x640": height x width, whatever the shape. None: not scaled.
        workers: processes; None: the CPUs that this process may use.
        max_rejects: more rejects than this count or percentage set `too_many_rejects`.
        progress: called for each image from the calling thread.

    Raises:
        OptionsError: an option has an invalid value; DEST is in the way, or inside IMAGES or a store; or two images would get
            one name.
        ScanError: images cannot be read or holds no image.
        PackError: PyAV is missing, or DEST cannot be written. Its subclasses: DiskFullError (its disk is full), LockedError
            (another run writes it), SourceError (the disk or network of the images cannot be read now).
    """
    started = time.monotonic()
    quality = values.quality(Option("quality"), quality)
    options = WorkerOptions(workers=workers, max_rejects=max_rejects)
    source, out = Path(images), resolved_out(dest, "DEST")
    asked = None if size is None else str(size)
    head: dict[str, Any] = {"quality": quality, "size": asked, "ffmpeg": ffmpeg_versions()}
    job = _Job(source, out, quality, _parsed(size), (str(source),))
    check_destination([str(source)], out, "DEST")
    paths = _listed(source)
    _check_names(paths)
    try:
        with _Record.opened(out, head) as record:
            done = record.still_true(job, paths)
            for line in _made(job, [path for path in paths if path not in done], options.workers or available_cpus()):
                record.add(line)
                notify(Progress("pack", len(record.lines), len(paths), record.rejected))
            lines = record.finish(paths)
    except OSError as e:
        raise as_pack_error(e, out, {}) from None
    rejects = [line["reason"] for line in lines if "reason" in line]
    kept = [line["kept"] for line in lines if "kept" in line]
    return RequantizeReport(
        out=str(out),
        quality=quality,
        size=asked,
        inputs=len(lines),
        requantized=len(lines) - len(rejects) - len(kept),
        kept=len(kept),
        rejected=len(rejects),
        bytes_before=sum(line["bytes"] for line in lines if "to" in line),
        bytes_after=sum(line["bytes_after"] for line in lines if "to" in line),
        seconds=time.monotonic() - started,
        resumed_from=len(done),
        too_many_rejects=len(rejects) > options.allowed_rejects(len(lines)),
        reasons=dict(Counter(rejects).most_common()),
        kept_reasons=dict(Counter(kept).most_common()),
    )


class _Record:
    """The record in DEST: the outcome of each input so far."""

    def __init__(self, out: Path, head: dict[str, Any], lines: dict[str, dict[str, Any]], file: IO[str]) -> None:
        self._out, self._head, self._file, self._earlier = out, head, file, lines
        self.lines: dict[str, dict[str, Any]] = {}
        self.rejected = 0

    @classmethod
    @contextlib.contextmanager
    def opened(cls, out: Path, head: dict[str, Any]) -> Iterator[_Record]:
        """Open or create the record of DEST, and lock it; raises OptionsError, LockedError."""
        parts = [out / RECORD, out / f"{RECORD}.part"]
        if out.is_dir() and any(out.iterdir()) and not any(map(Path.exists, parts)):
            raise OptionsError(f"{out} is not empty and was not made by pack requantize. Choose another DEST.")
        out.mkdir(parents=True, exist_ok=True)
        lines: dict[str, dict[str, Any]] = {}
        for path in filter(Path.exists, parts):
            before, *found = _lines(path) or [head]
            for name in head:
                if before.get(name) != head[name]:
                    raise OptionsError(
                        f"{out} was made with another {name}: {before.get(name)}, now {head[name]}. Choose another DEST."
                    )
            lines |= {line["path"]: line for line in found}
        with open(parts[1], "a", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LockedError(
                    f"another pack requantize writes {out}. Wait for it, or choose another DEST."
                ) from None
            # after a power loss no image is in DEST without its record
            sync_folder(out)
            sync_names(out)
            yield cls(out, head, lines, file)

    def still_true(self, job: _Job, paths: list[str]) -> set[str]:
        """Return the paths with unchanged source and result; remove all other results."""
        listed = set(paths)
        for path, line in self._earlier.items():
            if path in listed and job.is_as_recorded(line):
                self.lines[path] = line
            elif "to" in line:
                (self._out / line["to"]).unlink(missing_ok=True)
        with error_path(self._file.name):
            self._file.truncate(0)
        self._write(self._head, *self.lines.values())
        return set(self.lines)

    def add(self, line: dict[str, Any]) -> None:
        """Record the outcome of an input."""
        self.lines[line["path"]] = line
        self.rejected += "reason" in line
        self._write(line)

    def _write(self, *lines: dict[str, Any]) -> None:
        """Write lines to the disk's cache; an error names the file."""
        with error_path(self._file.name):
            self._file.write("".join(map(encode_line, lines)))
            self._file.flush()

    def finish(self, paths: list[str]) -> list[dict[str, Any]]:
        """Write the complete record, in the order of the paths; returns its lines."""
        ordered = [self.lines[path] for path in paths]
        write_atomically(self._out / RECORD, "".join(map(encode_line, [self._head, *ordered])).encode("ascii"))
        os.unlink(self._file.name)
        sync_folder(self._out)
        return ordered


@dataclass(frozen=True)
class _Job:
    """The settings of all images."""

    images: Path
    out: Path
    quality: int
    size: tuple[int | None, int] | None
    roots: tuple[str, ...]

    def is_as_recorded(self, line: dict[str, Any]) -> bool:
        """Whether an image's source and result still equal their record line."""
        with contextlib.suppress(OSError):
            state = _state(os.stat(self.images / line["path"]))
            return "to" in line and line["source"] == state and _size(self.out / line["to"]) == line["bytes_after"]
        return False

    def make(self, path: str) -> dict[str, Any]:
        """Requantize an image and put it into DEST; returns its line.

        Raises:
            SourceError: the disk or network of IMAGES cannot be read now.
            OSError: DEST cannot be written.
        """
        source = self.images / path
        try:
            before = _state(os.stat(source)) if source.exists() else []
            data, _ = LocalSource(str(source), roots=self.roots).read()
            recoded = _recoder(self.quality, self.size).recode(data)
        except DecodeError as e:
            return {"path": path, "reason": str(e)}
        to = path if recoded.kept else jpg_name(path)
        (self.out / to).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.out / to, recoded.data)
        kept = {"kept": recoded.kept} if recoded.kept else {}
        return {"path": path, "to": to, "bytes": len(data), "bytes_after": len(recoded.data), "source": before} | kept


@functools.cache
def _recoder(quality: int, size: tuple[int | None, int] | None) -> Recoder:
    return Recoder(quality, size=size)


def _made(job: _Job, paths: list[str], workers: int) -> Iterator[dict[str, Any]]:
    """Yield the record lines of images as they are done. An image that kills its process is rejected; the others go on."""
    waiting = paths[::-1]
    while waiting:
        with ProcessPoolExecutor(min(workers, len(waiting)), start_context(), begin_worker) as pool:
            pending: dict[Any, str] = {}
            try:
                while waiting or pending:
                    while waiting and len(pending) < workers * _AHEAD:
                        path = waiting.pop()
                        pending[pool.submit(job.make, path)] = path
                    first = next(iter(pending))
                    line = first.result()
                    del pending[first]
                    yield line
            except BrokenProcessPool:
                pass
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        # run each pending image in a separate process, to find the one that kills it
        for path in pending.values():
            yield _made_alone(job, path)


def _made_alone(job: _Job, path: str) -> dict[str, Any]:
    with ProcessPoolExecutor(1, start_context(), begin_worker) as pool:
        try:
            return pool.submit(job.make, path).result()
        except BrokenProcessPool:
            return {"path": path, "reason": _KILLED}


def jpg_name(path: str) -> str:
    """Return the path to which a requantized image is written.

    Example:
        >>> jpg_name("n01/hen.JPEG")
        'n01/hen.jpg'
    """
    return f"{os.path.splitext(path)[0]}.jpg"


def _parsed(size: str | int | None) -> tuple[int | None, int] | None:
    """Parse "480x640" to (480, 640), and "224" to (None, 224), the short side."""
    if size is None:
        return None
    height, width = values.size(Option("size"), size)
    return (height, width) if "x" in str(size).lower() else (None, width)


def _listed(images: Path) -> list[str]:
    """List a folder as a pack does: paths below it."""
    if images.is_file():
        raise OptionsError(f"{images} is a file. Expected a folder of images.")
    return [f"{split}/{path}" if split else path for split, inputs in scan(images).items() for path in inputs.paths]


def _check_names(paths: list[str]) -> None:
    """Refuse two images with the same result path; names both."""
    known: dict[str, str] = {}
    for path in paths:
        other = known.setdefault(jpg_name(path), path)
        if other is not path:
            raise OptionsError(f"{other} and {path} would both become {jpg_name(path)}. Rename one of them.")


def _state(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _size(path: Path) -> int:
    return path.stat().st_size


def _lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a record, up to one that was cut off."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(ValueError):
        found.extend(read_json_lines(path))
    return found
