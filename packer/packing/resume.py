"""Resuming a pack: reads from its journal what was packed and how, and which blocks are still valid.

Reads the journal, and sizes and times of sources; opens no image and writes nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packer.errors import DecodeError
from packer.inputs.samples import Inputs
from packer.options import MAX_PIXELS, PackOptions
from packer.pixels.formats import plugins
from packer.pixels.requantize import pixel_versions
from packer.progress import notify
from packer.report import Progress
from packer.sources.base import Readable
from packer.sources.local import LocalSource
from packer.store import journal as journals
from packer.store.blocks import Result
from packer.text import difference
from packer.workers.block_worker import PackJob
from reader.format.samples import Sample
from reader.format.shown import redacted
from reader.tuning import tuning

# In the reason of each reject that another limit might accept.
_OF_LIMIT = "--max-pixels"
# Occurs in the line of each row that a plugin decoded; the others need no parsing.
_PLUGIN = '"decoder":"pillow-'


@dataclass
class Committed:
    """How far a pack has come, and what adds up over its blocks.

    size_bytes is what they take of the file of rows; changed names the sources that are no longer what was packed;
    other_plugin: a plugin of Pillow that decoded some of them, where another version would now.
    """

    inputs_stop: int
    rows_stop: int = 0
    size_bytes: int = 0
    rejected: int = 0
    reused: int = 0
    source_bytes: int = 0
    changed: list[str] = field(default_factory=list)
    other_plugin: str = ""

    def add(self, result: Result) -> None:
        """Count one more block."""
        self.inputs_stop += result.inputs
        self.rows_stop += result.rows
        self.size_bytes += result.size_bytes
        self.rejected += len(result.rejects)
        self.reused += result.kept
        self.source_bytes += result.source_bytes


def journal_header(
    inputs: Inputs, job: PackJob, options: PackOptions, *, block_inputs: int, split: str, span: range | None
) -> journals.Header:
    """Describe what is packed and how; a resume must match it.

    Args:
        span: which of the inputs are this part's; None where it is no part.
    """
    size = job.layout.size
    names = (f"{column}: {name}" for column, target in inputs.further_targets.items() for name in target.classes)
    return journals.Header(
        inputs=len(inputs),
        listing=_listing(inputs),
        classes=tuple(inputs.classes),
        options=options.shaping() | ({} if size is None else {"size": [*size]}),
        decoders=pixel_versions(options.shaping()),
        labels=dict(sorted(inputs.labels.items())),
        block_inputs=block_inputs,
        # anyone who can read OUT can read a journal
        images=tuple(map(redacted, inputs.images)),
        words=tuple(map(redacted, dataclasses.replace(options, size=size).words())),
        split=split,
        further_targets=tuple(names),
        update=options.update,
        span=None if span is None else (span.start, span.stop),
    )


def read_committed(out: Path, inputs: Inputs, job: PackJob, start: int) -> tuple[Committed, int]:
    """Return what OUT's journal has of the inputs from the start-th on, and the byte up to which that stands in it.

    Under a larger --max-pixels than before, what was rejected for its size is tried again, with all from its block on.
    """
    committed, seen, end = Committed(start), start, journals.header_end(out)
    is_larger, is_valid = job.rows.max_pixels > journals.read_header(out).options.get("max_pixels", MAX_PIXELS), True
    for result, line_end in _followed_blocks(out, len(inputs)):
        # the first journals do not say it
        result.size_bytes = job.layout.stored_bytes(result.rows, result.shapes, result.size_bytes)
        committed.changed += _changed_sources(inputs, job, seen, result)
        seen += result.inputs
        is_valid = is_valid and not (is_larger and any(_OF_LIMIT in reject.reason for reject in result.rejects))
        if is_valid and not committed.changed:  # else it is decoded again, with all that follows
            committed.add(result)
            committed.other_plugin = committed.other_plugin or _other_plugin(result)
            end = line_end
    return committed, end


def _followed_blocks(out: Path, total: int) -> Iterator[tuple[Result, int]]:
    """Yield the blocks of a journal, and report how many of so many inputs are checked."""
    done = 0
    for result, line_end in journals.read_blocks(out):
        yield result, line_end
        done += result.inputs
        notify(Progress("check", done, total))


def plugin_decoders(result: Result) -> list[tuple[str, str]]:
    """Return (format, decoder) of the rows of a block that a plugin of Pillow decoded, each pair once."""
    decodings = (Sample.decode(line).decoding for line in result.samples if _PLUGIN in line)
    return sorted({(decoding["format"], decoding["decoder"]) for decoding in decodings})


def _other_plugin(result: Result) -> str:
    """Say which plugin decoded a row of a block and what would decode it now; "" where they are the same."""
    for kind, before in plugin_decoders(result):
        now = plugins.decoder_of(kind)
        if before != now:
            return difference({kind: before}, {kind: "none" if now == "Pillow" else now})
    return ""


def _listing(inputs: Inputs) -> str:
    """Return the sha256 of all that is known of the inputs before one is opened."""
    listing = hashlib.sha256(inputs.identity.encode())
    listing.update(inputs.paths.encoded)
    for name, column in inputs.columns().items():
        listing.update(f"{name}\0{column.dtype}{column.row_shape}\0".encode())
        listing.update(column.values)
    for name, texts in inputs.texts.items():
        listing.update(f"{name}\0text\0".encode())
        for text in texts:
            listing.update(f"{text}\0".encode())
    if inputs.boxes is not None:
        listing.update(inputs.boxes.encoded())
        listing.update(repr(sorted(inputs.refused.items())).encode("utf-8", "surrogatepass"))
    if inputs.masks is not None:
        listing.update("\0".join(inputs.masks).encode("utf-8", "surrogatepass"))
    return listing.hexdigest()


def _changed_sources(inputs: Inputs, job: PackJob, start: int, result: Result) -> list[str]:
    """Return the sources of a committed block that are others now; the start-th input is its first.

    Their size or mtime differs; or their ctime alone, as where files were renamed, and with it the bytes.
    """
    if inputs.identity:
        return []  # items of a dataset are no files
    rejected, lines = {reject.input for reject in result.rejects}, iter(result.samples)
    changed = []
    for index, (size, mtime) in enumerate(result.sources, start=start):
        line = None if index in rejected else next(lines)
        if index in inputs.refused:
            continue
        # what could not be read then, and cannot now, is unchanged
        if inputs.url:
            is_changed = tuple(inputs.states[index]) != (size, mtime)
        else:
            source = job.source(inputs.paths[index], inputs.members[index] if inputs.archives else None)
            is_changed = source.state() != (size, mtime) or _was_exchanged(source, result.read_since_ns, line)
        if is_changed:
            changed.append(inputs.paths[index])
    for index, state in enumerate(result.mask_sources, start=start):
        mask = (inputs.masks or [])[index]
        if index not in inputs.refused:
            source = job.mask_source(mask)
            if source.state() != tuple(state) or _was_exchanged(source, result.read_since_ns, None):
                changed.append(mask)
    return changed


def _was_exchanged(source: Readable, since_ns: int, line: str | None) -> bool:
    """Whether a file of the same size and mtime has other bytes than its line of samples.jsonl says; None: it has none.

    Its ctime, which no program can set back, is looked at first: a file that has not been touched since is not read.
    """
    if not isinstance(source, LocalSource):
        return False
    if line is None:
        return source.ctime_ns() >= since_ns
    if source.ctime_ns() < since_ns - tuning().file_clock_ns:
        return False
    try:
        data, _ = source.read(max_pixels=sys.maxsize)
    except DecodeError:  # it cannot be read any more
        return True
    return hashlib.sha256(data).hexdigest() != Sample.decode(line).sha256
