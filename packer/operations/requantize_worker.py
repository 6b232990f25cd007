"""What runs inside a worker of `pack requantize`: images of one folder become smaller JPEGs in another, one after the other."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packer.clock import StageClock
from packer.errors import DecodeError
from packer.pixels.requantize import Recoder
from packer.sources.local import LocalSource
from packer.sources.roots import NOWHERE, Roots
from packer.store.blocks import Result, Task
from packer.store.files import temporary_of, write_synced
from packer.workers.contracts import Marks
from packer.workers.processes import InFlight
from reader.format.journal import RejectedInput
from reader.format.samples import encode_line
from reader.tuning import tuning


@dataclass(frozen=True)
class RequantizeJob:
    """What all images of a folder have in common; size is as `Recoder` takes it."""

    images: str
    dest: str
    quality: int
    size: tuple[int | None, int] | None
    max_pixels: int
    roots: Roots = NOWHERE
    pauses: tuple[float, ...] = field(default_factory=lambda: tuning().source_pause_seconds)

    def recoder(self) -> Recoder:
        """Make what requantizes one image after the other."""
        return Recoder(self.quality, size=self.size, max_pixels=self.max_pixels)

    def worker(self, in_flight: Marks | None, clock: StageClock) -> RequantizeWorker:
        """Make what does this job in a process of its own."""
        return RequantizeWorker(self, in_flight)

    def guessed_bytes(self, task: Task) -> int:
        """Say that there are no rows."""
        return 0


class RequantizeWorker:
    """Requantizes images into DEST. A file there is complete or not there: it is synced, then renamed."""

    def __init__(self, job: RequantizeJob, in_flight: Marks | None) -> None:
        self._job, self._recoder, self._in_flight = job, job.recoder(), InFlight(in_flight, job.pauses)

    def expect(self, task: Task) -> None:
        """Do nothing: the sources are near."""

    def forget(self, start: int, stop: int) -> None:
        """Do nothing: the sources are near."""

    def decode(self, task: Task, may_begin: Callable[[int], bool] = lambda _: True) -> Result:
        """Do images of a block; their lines are the result's samples, in the block's order."""
        lines: list[dict[str, Any]] = []
        for index, path in enumerate(task.paths, start=task.start):
            if index > task.start and not may_begin(index):
                break
            lines.append(self._line(index, path, task.refused.get(index)))
        self._in_flight.mark(-1)
        result = Result(task.block, len(lines))
        result.samples = [encode_line(line) for line in lines]
        numbered = enumerate(lines, start=task.start)
        result.rejects = [RejectedInput(n, line["path"], line["reason"]) for n, line in numbered if "reason" in line]
        result.source_bytes = sum(line.get("bytes", 0) for line in lines)
        return result

    def write(self, start: int, offset: int) -> None:
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
        except DecodeError as e:
            self._remove(path, "")
            return {"path": path, "reason": str(e)}
        to = path if recoded.kept else jpg_name(path)
        _write(Path(self._job.dest, to), recoded.data)
        self._remove(path, to)
        line = {"path": path, "to": to, "bytes": len(data), "bytes_after": len(recoded.data), "mtime_ns": mtime}
        return line | {"kept": recoded.kept} if recoded.kept else line

    def _remove(self, path: str, to: str) -> None:
        """Take away what an earlier run made of a source that has changed since."""
        for name in {path, jpg_name(path)} - {to}:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._job.dest, name))


def jpg_name(path: str) -> str:
    """Name what a requantized image is written to.

    Example:
        >>> jpg_name("n01/hen.JPEG")
        'n01/hen.jpg'
    """
    return f"{os.path.splitext(path)[0]}.jpg"


def _write(path: Path, data: bytes) -> None:
    """Write a file under another name, then rename it: at its name it is complete, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary_of(path)
    write_synced(part, data)
    os.replace(part, path)
