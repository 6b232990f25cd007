"""Photographs in local files and tars that become rows by the compiled part, several a call, without Python between two.

Makes no decision about any other image: what the compiled part leaves, `block_worker.py` attempts by itself.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Callable

from packer.clock import StageClock
from packer.pixels.compiled import Input, Made, PhotographsOf
from packer.pixels.decode import Decoder, is_photograph
from packer.sources.members import RAW, Archive, Member
from packer.store.blocks import Result, Task
from packer.workers.row_buffers import MadeRows
from reader.format.fields import INT64_MOST
from reader.format.samples import Sample
from reader.tuning import tuning

# Of one call, whose inputs nobody can take back: no more, and as many as take photographs_call_seconds, going by the call before.
_AT_ONCE = 8
# A folder of photographs has some hundred sizes.
_PLANS = 4096


class Photographs:
    """Makes rows of photographs that stand side by side in a task.

    Args:
        root: the folder that paths start from.
        archives: those that tasks have members of.
        decoder: what makes the rows of all other images, by the same rules.
        rows: where they go.
        marks: int64[4] of the image in flight, or empty.
    """

    def __init__(
        self,
        made_by: PhotographsOf,
        root: str,
        archives: tuple[Archive, ...],
        decoder: Decoder,
        rows: MadeRows,
        marks: object,
        clock: StageClock,
    ) -> None:
        self._made_by, self._root, self._archives, self._decoder, self._rows = made_by, root, archives, decoder, rows
        self._marks, self._clock, self._at_once, self._spare_pngs = marks, clock, 1, tuning().unmade_pngs
        self._plan = functools.lru_cache(_PLANS)(decoder.plan)

    @classmethod
    def of(
        cls,
        root: str,
        archives: tuple[Archive, ...],
        decoder: Decoder,
        rows: MadeRows,
        marks: object,
        clock: StageClock,
    ) -> Photographs | None:
        """Return what makes photographs below root into rows; None where the compiled part makes no such rows."""
        if decoder.photographs is None or marks is None:
            return None
        return cls(decoder.photographs, root, archives, decoder, rows, marks, clock)

    def begin(self, task: Task, index: int, begun: int, may_begin: Callable[[int], bool]) -> int:
        """Begin as many inputs from index on as one call makes; begun is the first that has not, and so is what it returns."""
        stop = self._stop(task, index)
        while begun < stop and may_begin(begun):
            begun += 1
        return begun

    def make(self, task: Task, start: int, begun: int, result: Result) -> int:
        """Add the rows of inputs from start on, up to the first that has not begun or is not served; returns how many."""
        first, stop = start - task.start, min(begun, self._stop(task, start)) - task.start
        if stop <= first:
            return 0
        inputs = [self._input(task, n) for n in range(first, stop)]
        memory = self._rows.room(result, len(inputs))
        self._clock.enter("decode")
        begun_seconds = time.perf_counter()
        made, crc32, sums, seconds = self._made_by(
            inputs,
            start,
            self._plan,
            hashlib.sha256,
            self._decoder.inflate,
            memory,
            self._rows.row_bytes,
            self._marks,
            self._rows.crc32(result),
            tuning().file_clock_ns,
        )
        for stage, share in zip(("read", "resize", "checksum"), seconds, strict=True):
            self._clock.charge(stage, share)
        self._clock.enter("other")
        spent = time.perf_counter() - begun_seconds
        self._at_once = max(1, min(_AT_ONCE, int(tuning().photographs_call_seconds * len(inputs) / spent)))
        self._rows.add_made(result, len(made), crc32, sums)
        for n, known in enumerate(made, start=first):
            self._add(result, task, n, known)
        if len(made) < len(inputs) and task.paths[first + len(made)].lower().endswith(".png"):
            self._spare_pngs -= 1
        return len(made)

    def _stop(self, task: Task, start: int) -> int:
        """Return the input behind those from start on that one call may make: names of photographs, and not too many."""
        most = min(task.stop, start + self._at_once)
        others = (i for i in range(start, most) if i in task.refused or not self._may_serve(task, i - task.start))
        return next(others, most)

    def _may_serve(self, task: Task, n: int) -> bool:
        path = task.paths[n]
        is_named = is_photograph(path) or (self._spare_pngs > 0 and path.lower().endswith(".png"))
        if not (is_named and task.members):
            return is_named
        member = Member(*task.members[n])
        # a zip's members stand behind headers, and have checksums; C has no room for times after 2262
        return member.method == RAW and abs(self._archives[member.archive].mtime_ns) <= INT64_MOST

    def _input(self, task: Task, n: int) -> Input:
        """Return where the bytes of an input are."""
        if not task.members:
            return os.path.join(self._root, task.paths[n])
        member = Member(*task.members[n])
        archive = self._archives[member.archive]
        path = os.path.join(self._root, archive.path)
        return path, member.offset, member.size_bytes, archive.size_bytes, archive.mtime_ns

    def _add(self, result: Result, task: Task, n: int, known: Made) -> None:
        """Record one row."""
        path, target = task.paths[n], task.targets[n]
        size_bytes, mtime_ns, sha256, width, height, _, is_png = known
        done = self._decoder.done(width, height, is_png=is_png)
        self._spare_pngs += is_png
        y0, x0, y1, x1 = content = self._decoder.content(width, height)
        result.inputs += 1
        result.rows += 1
        # of a member, those of its archive
        file_bytes = self._archives[task.members[n][0]].size_bytes if task.members else size_bytes
        result.sources.append((file_bytes, mtime_ns))
        result.source_bytes += size_bytes
        result.samples.append(Sample(path, target, size_bytes, sha256, width, height, done).encode())
        result.pixel_count += (y1 - y0) * (x1 - x0)
        if self._rows.has_content:
            result.content.append(content)
