"""Resuming a pack: reads from its journal what was packed and how, and which blocks are still valid.

Reads the journal, and sizes and times of sources; opens no image and writes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packer.inputs.samples import Inputs
from packer.options import PackOptions
from packer.packing.request import difference, label_words, recorded_labels, states
from packer.pixels.decoders import pixel_versions
from packer.progress import notify
from packer.report import Progress
from packer.sources.base import NO_STATE
from packer.store import journal as journals
from packer.store.blocks import Result
from packer.store.state import UPDATE
from packer.text import difference as decoders_difference
from packer.workers.block_worker import PackJob
from reader.format.shown import redacted


@dataclass
class Committed:
    """How far a pack has come, and what adds up over its blocks.

    size_bytes is what they take of the file of rows; changed names the sources that are no longer what was packed.
    """

    inputs_stop: int = 0
    rows_stop: int = 0
    size_bytes: int = 0
    rejected: int = 0
    reused: int = 0
    source_bytes: int = 0
    changed: list[str] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """Count one more block."""
        self.inputs_stop += result.inputs
        self.rows_stop += result.rows
        self.size_bytes += result.size_bytes
        self.rejected += len(result.rejects)
        self.reused += result.kept
        self.source_bytes += result.source_bytes


def journal_header(
    inputs: Inputs, job: PackJob, options: PackOptions, *, block_inputs: int, split: str
) -> journals.Header:
    """Describe what is packed and how; a resume must match it."""
    size = job.layout.size
    words = label_words(options) if options.update else dataclasses.replace(options, size=size).words()
    return journals.Header(
        inputs=len(inputs),
        options=options.shaping() | ({} if size is None else {"size": [*size]}),
        decoders=pixel_versions(options.shaping()),
        labels=recorded_labels(inputs),
        block_inputs=block_inputs,
        # anyone who can read OUT can read a journal
        images=tuple(map(redacted, inputs.images)),
        words=tuple(map(redacted, words)),
        split=split,
        command=UPDATE if options.update else "",
        max_rejects=str(options.max_rejects) if options.part else "",
    )


def header_difference(found: journals.Header, asked: journals.Header) -> str:
    """Describe how the pack that wrote a journal's header differs from the one that is asked for; "" if it does not."""
    requests = [{**header.options, **header.labels} for header in (found, asked)]
    if what := difference(*requests):
        return what
    if found.decoders != asked.decoders:
        return f"other decoders{decoders_difference(found.decoders, asked.decoders)}"
    return ""


def read_committed(out: Path, inputs: Inputs, masks: str) -> tuple[Committed, int]:
    """Return what OUT's journal has of the inputs, and the byte up to which that stands in it."""
    committed, seen, end = Committed(), 0, journals.header_end(out)
    for result, line_end in _followed_blocks(out, len(inputs)):
        committed.changed += _changed_sources(inputs, masks, seen, result)
        seen += result.inputs
        if not committed.changed:  # else it is decoded again, with all that follows
            committed.add(result)
            end = line_end
    return committed, end


def _followed_blocks(out: Path, total: int) -> Iterator[tuple[Result, int]]:
    """Yield the blocks of a journal, and report how many of so many inputs are checked."""
    done = 0
    for result, line_end in journals.read_blocks(out):
        yield result, line_end
        done += result.inputs
        notify(Progress("check", done, total))


def _changed_sources(inputs: Inputs, masks: str, start: int, result: Result) -> list[str]:
    """Return the sources of a committed block, and their masks, that are others now; the start-th input is its first.

    What could not be read then, and cannot now, is unchanged.
    """
    found = states(inputs, masks, range(start, start + result.inputs))
    before = zip(result.sources, result.mask_sources or [NO_STATE] * result.inputs, strict=False)
    changed = []
    for index, ((path, *now), then) in enumerate(zip(found, before, strict=False), start=start):
        was_there = [tuple(state) for state in then]
        if now[0] != was_there[0]:
            changed.append(path)
        if now[1] != was_there[1]:
            changed.append((inputs.masks or [])[index])
    return changed
