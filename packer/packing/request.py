"""What a pack is asked for: options, labels and inputs, as journal and manifest record them; and whether OUT is just that.

An input is known by its path and label, and its file by size, mtime and ctime. No clock is looked at, and no image is opened.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packer.errors import PackError
from packer.inputs.samples import Inputs
from packer.option_names import OVERWRITE
from packer.options import LabelOptions, PackOptions
from packer.progress import followed
from packer.report import PackReport
from packer.sources.base import NO_STATE, State
from packer.sources.local import LocalSource, locate
from packer.store.recorded import DIVISION, SOURCES, TOTALS
from packer.store.reports import store_report
from packer.store.row_files import sources_digest
from packer.store.state import check_finished
from packer.text import options_difference
from reader.format.errors import StoreError

# In the recorded labels: the digest of all that is known of the inputs before one is opened.
INPUTS = "inputs"


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
    """Yield of each input its path, and the states of its source and its mask now; of what is not looked at, NO_STATE.

    Args:
        masks: the folder of masks.

    Raises:
        SourceError: what they are on cannot be read now.
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
    """Report a finished store that is what is asked for: nothing was done.

    Args:
        target: OUT as the command has it, which holds out where there are splits.

    Raises:
        PackError: it is damaged, or was asked for otherwise: says in what, and what to do.
        SourceError: the sources cannot be looked at now.
    """
    try:
        manifest = check_finished(out)
    except StoreError as e:
        raise PackError(str(e)) from None
    asked = options.shaping() | recorded_labels(inputs)
    if options.least_sides is None:
        asked["size"] = manifest.options["size"]
    recorded = {**manifest.options, **manifest.labels}
    what = difference(recorded, asked | {SOURCES: recorded.get(SOURCES)})
    if not what:
        now = followed("check", states(inputs, os.fspath(options.masks or ""), range(len(inputs))), len(inputs))
        what = difference(recorded, asked | {SOURCES: sources_digest(now)})
    if what:
        replace = "remove it" if options.part and DIVISION not in manifest.labels else f"replace it with {OVERWRITE}"
        update = ""
        if what == "other inputs" and inputs.images:
            update = f" If it is of these images, bring it up to date: {update_command(inputs.images, target, options)}"
        raise PackError(f"{out} is finished, but with {what}. Choose another OUT, or {replace}.{update}")
    report = store_report(manifest, inputs, out, 0.0, manifest.inputs)
    too_many = manifest.rejected > options.allowed_rejects(manifest.inputs)
    return dataclasses.replace(report, too_many_rejects=too_many)


def update_command(images: Sequence[str], target: str | os.PathLike[str], options: PackOptions) -> str:
    """Return the command that brings a store up to date with IMAGES, whose labels are read as by these options."""
    return shlex.join(["pack", "update", *images, os.fspath(target), *label_words(options)])


def label_words(options: PackOptions) -> list[str]:
    """Return the words of an update with these options, which takes all but those of labels from the store."""
    return PackOptions(**vars(LabelOptions.among(options))).words()


def _inputs_digest(inputs: Inputs) -> str:
    """Return the sha256 of all that is known of the inputs before one is opened."""
    known = hashlib.sha256(repr((inputs.identity, inputs.classes, inputs.target_kind)).encode())
    known.update(inputs.paths.encoded)
    known.update(inputs.cells.encoded)
    for name, column in inputs.columns().items():
        known.update(f"{name}\0{column.dtype}{column.row_shape}\0".encode())
        known.update(column.values)
    if inputs.masks is not None:
        known.update("\0".join(inputs.masks).encode("utf-8", "surrogatepass"))
    return known.hexdigest()
