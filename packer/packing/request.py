"""The request of a pack, as journal and manifest record it. Compares it with a finished or unfinished OUT.

A request is options, labels and inputs. An input is known by its path and label, its file by size, mtime and ctime. Compares
no clocks, opens no image, and writes nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packer.errors import PackError
from packer.inputs.samples import Inputs
from packer.option_names import OVERWRITE
from packer.options import LabelOptions, PackOptions
from packer.pixels.decoder_choice import pixel_versions
from packer.progress import notify, tracked
from packer.report import PackReport, Progress
from packer.sources.base import NO_STATE, State
from packer.sources.local import LocalSource, locate
from packer.store import journal as journals
from packer.store.parts import DIVISION, SOURCES, TOTALS
from packer.store.reports import store_report
from packer.store.row_files import add_sources
from packer.store.state import UPDATE, check_finished
from packer.store.tasks import Result
from packer.text import difference as decoders_difference
from packer.text import options_difference
from packer.workers.block_worker import PackJob
from reader.format.errors import StoreError
from reader.format.manifest import Manifest
from reader.format.shown import redacted

# The key, in recorded labels, of the digest of the listed inputs, before any is opened.
INPUTS = "inputs"


@dataclass
class Committed:
    """The progress of a pack, and the sums over its blocks.

    size_bytes is their size in the file of rows; changed names the sources that have changed since.
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


def recorded_labels(inputs: Inputs) -> dict[str, object]:
    """Return how labels are read, and the digest of the inputs: their paths, classes, targets and further columns."""
    digest = inputs.labels.get(INPUTS) or _inputs_digest(inputs)  # a part has that of all inputs
    return dict(sorted({**inputs.labels, INPUTS: digest}.items()))


def difference(recorded: Mapping[str, object], asked: Mapping[str, object]) -> str:
    """Describe how a request, options and labels together, differs from a recorded one; "" if it does not.

    Example:
        >>> difference({"size": [16, 16], "inputs": "a"}, {"size": [32, 32], "inputs": "b"})
        'other options (size=16, now size=32)'
        >>> difference({"size": [16, 16], "inputs": "a"}, {"size": [16, 16], "inputs": "b"})
        'other inputs'
    """
    before, now = ({name: value for name, value in one.items() if name != TOTALS} for one in (recorded, asked))
    digests = [[one.pop(name, None) for name in (INPUTS, SOURCES, DIVISION)] for one in (before, now)]
    if what := options_difference(before, now):
        return f"other options{what}"
    return "" if digests[0] == digests[1] else "other inputs"


def states(inputs: Inputs, masks: str, indices: range) -> Iterator[tuple[str, State, State]]:
    """Yield each input's path and the current states of its source and mask; NO_STATE for one that is not checked.

    Args:
        masks: the folder of masks.

    Raises:
        SourceError: their disk or network cannot be read now.
    """
    for index, path in enumerate(inputs.paths[indices.start : indices.stop], start=indices.start):
        source = mask = NO_STATE
        if inputs.url:
            source = (*inputs.states[index],)
        elif not inputs.identity and index not in inputs.refused:
            member = inputs.members[index] if inputs.archives else None
            source = locate(inputs.base, path, inputs.archives, member, inputs.roots).state()
        if inputs.masks is not None and index not in inputs.refused:
            mask = LocalSource(os.path.join(masks, inputs.masks[index]), roots=inputs.roots).state()
        yield path, source, mask


def finished_report(inputs: Inputs, out: Path, options: PackOptions, target: Path) -> PackReport:
    """Report a finished store that equals the request; nothing is packed.

    Args:
        target: OUT of the command; with splits, the folder above out.

    Raises:
        PackError: it is damaged, or made by another request; names the difference, and what to do.
        SourceError: the sources cannot be read now.
    """
    manifest = intact(out)
    asked = options.shaping() | recorded_labels(inputs)
    if options.least_sides is None:
        asked["size"] = manifest.options["size"]
    recorded = {**manifest.options, **manifest.labels}
    what = difference(recorded, asked | {SOURCES: recorded.get(SOURCES)})
    if not what:
        now = tracked("check", states(inputs, os.fspath(options.masks or ""), range(len(inputs))), len(inputs))
        what = difference(recorded, asked | {SOURCES: f"{add_sources(0, now):064x}"})
    if what:
        replace = "remove it" if options.part and DIVISION not in manifest.labels else f"replace it with {OVERWRITE}"
        update = ""
        if what == "other inputs" and inputs.images:
            update = f" If it is of these images, bring it up to date: {update_command(inputs.images, target, options)}"
        raise PackError(f"{out} is finished, but with {what}. Choose another OUT, or {replace}.{update}")
    report = store_report(manifest, inputs, out, 0.0, manifest.inputs)
    too_many = manifest.rejected > options.allowed_rejects(manifest.inputs)
    return dataclasses.replace(report, too_many_rejects=too_many)


def intact(out: Path) -> Manifest:
    """Return the manifest of a finished store; raises PackError if it is damaged or missing."""
    try:
        return check_finished(out)
    except StoreError as e:
        raise PackError(str(e)) from None


def update_command(images: Sequence[str], target: str | os.PathLike[str], options: PackOptions) -> str:
    """Return the `pack update` command of a store, with these IMAGES and label options."""
    return shlex.join(["pack", "update", *images, os.fspath(target), *label_words(options)])


def label_words(options: PackOptions) -> list[str]:
    """Return the words of these label options; `update` takes all others from the store."""
    return PackOptions(**vars(LabelOptions.pick_from(options))).words()


def journal_header(
    inputs: Inputs, job: PackJob, options: PackOptions, *, block_inputs: int, split: str
) -> journals.Header:
    """Describe inputs and options; a resume must match them."""
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
    """Return the progress that OUT's journal records, and the byte at which its last block ends."""
    committed, seen, (_, end) = Committed(), 0, journals.find_header(out) or (None, 0)
    for result, line_end in _followed_blocks(out, len(inputs)):
        committed.changed += _changed_sources(inputs, masks, seen, result)
        seen += result.inputs
        if not committed.changed:  # else it is decoded again, with all that follows
            committed.add(result)
            end = line_end
    return committed, end


def _inputs_digest(inputs: Inputs) -> str:
    """Return the sha256 of the listed inputs, before any is opened."""
    known = hashlib.sha256(repr((inputs.identity, inputs.classes, inputs.target_kind)).encode())
    known.update(inputs.paths.encoded)
    known.update(inputs.cells.encoded)
    for name, column in inputs.columns().items():
        known.update(f"{name}\0{column.dtype}{column.row_shape}\0".encode())
        known.update(column.values)
    if inputs.masks is not None:
        known.update("\0".join(inputs.masks).encode("utf-8", "surrogatepass"))
    return known.hexdigest()


def _followed_blocks(out: Path, total: int) -> Iterator[tuple[Result, int]]:
    """Yield the blocks of a journal, and report the share of inputs that are checked."""
    done = 0
    for result, line_end in journals.read_blocks(out):
        yield result, line_end
        done += result.inputs
        notify(Progress("check", done, total))


def _changed_sources(inputs: Inputs, masks: str, start: int, result: Result) -> list[str]:
    """Return the changed sources and masks of a committed block; start: the index of its first input.

    A source that could not be read then, and cannot now, is unchanged.
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
