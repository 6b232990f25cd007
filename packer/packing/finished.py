"""Finished stores that are asked for again: compares list, labels, paths and sizes with the inputs, and names what updates them.

Decodes no image and changes nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import shlex
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from packer.errors import PackError
from packer.inputs.samples import Column, Inputs
from packer.option_names import OVERWRITE
from packer.options import PackOptions
from packer.packing.differences import store_difference
from packer.packing.recorded_labels import LABEL_OPTIONS, keeps_numbers, may_be_gone, other_labels_options
from packer.pixels.geometry import Geometry
from packer.progress import followed
from packer.report import PackReport
from packer.sources.local import MISSING
from packer.sources.locate import locate
from packer.sources.roots import NOWHERE
from packer.store.reports import store_report
from packer.store.row_files import EXTRAS
from packer.store.state import check_finished
from packer.text import names_difference, options_difference, some, without_limits
from reader.format.errors import StoreError
from reader.format.manifest import SAMPLES, Manifest
from reader.format.samples import Sample, read_paths, read_rejects, read_samples
from reader.format.tensors import TEXTS_FILE

_BOXES_ROWS = 4096


def finished_report(inputs: Inputs, out: Path, options: PackOptions, target: Path) -> PackReport:
    """Report a finished store that matches the inputs and options: nothing was done.

    Args:
        target: OUT as the command has it, which holds out where there are splits.

    Raises:
        PackError: it is damaged, or of other options or inputs: says in what they differ, and what to run.
    """
    try:
        manifest = check_finished(out)
    except StoreError as e:
        raise PackError(str(e)) from None
    if what := other_labels_options(manifest, inputs, options):
        raise PackError(f"{out} is finished, but was packed {what}, choose another OUT, or {_replace(options)}.")
    if what := _other_options(manifest, options):
        raise PackError(f"{out} is finished, but with other options{what}. Choose another OUT, or {_replace(options)}.")
    if what := inputs_difference(out, manifest, inputs):
        if options.classes is None and keeps_numbers(manifest.classes, inputs.classes):
            options = dataclasses.replace(options, classes=os.fspath(target))
        raise PackError(f"{out} is finished, but with {what}. {_advice(inputs, out, options, target)}.")
    report = store_report(manifest, inputs, out, 0.0, manifest.inputs)
    if found := _found_again(out, inputs):
        were = (
            f"1 input of {out} was rejected as missing and is"
            if len(found) == 1
            else f"{len(found)} inputs of {out} were rejected as missing and are"
        )
        what = f"{were} there now ({some(found)})"
        report = dataclasses.replace(report, notes=[*report.notes, f"{what}. {_update(inputs, options, target)}."])
    too_many = manifest.rejected > options.allowed_rejects(manifest.inputs)
    return dataclasses.replace(report, too_many_rejects=too_many)


def _other_options(manifest: Manifest, options: PackOptions) -> str:
    """Describe the first option that shapes rows in which a store differs from the request; "" if none does."""
    asked = options.shaping()
    if options.least_sides is None:
        asked["size"] = manifest.options["size"]
    recorded, asked = without_limits(manifest.options), without_limits(asked)
    return options_difference(recorded, asked) if recorded != asked else ""


def inputs_difference(out: Path, manifest: Manifest, inputs: Inputs) -> str:
    """Say in what the inputs of a store differ from these: classes, list, labels, sizes of sources; "" where they do not.

    Raises:
        SourceError: the sources cannot be looked at now.
    """
    if inputs.identity and not inputs.classes:
        inputs.classes = manifest.classes
    what = store_difference(out, manifest, inputs)
    if what or inputs.identity:  # items of a dataset are no files, and their targets are known once they are read
        return what
    accepted: list[int] = []
    labels: list[str] = []
    sizes: list[str] = []
    targets = inputs.targets
    for index, sample in _matched(out, inputs):
        if isinstance(sample, str):
            return sample
        accepted.append(index)
        new = targets[index]
        if sample.target != new and json.dumps(sample.target) != json.dumps(new):  # as text, in which NaN is NaN
            labels.append(f"{sample.path} (was {sample.target}, now {new})")
        if (size_bytes := _size(inputs, index)) != sample.size_bytes:
            now = "gone" if size_bytes < 0 else f"now {size_bytes}"
            sizes.append(f"{sample.path} (had {sample.size_bytes} bytes, {now})")
    if labels:
        return f"other labels: {some(labels)}"
    if columns := _other_columns(out, manifest, inputs, accepted):
        return f"other values of {some(columns)}"
    return f"other sources: {some(sizes)}" if sizes else ""


def _matched(out: Path, inputs: Inputs) -> Iterator[tuple[int, Sample | str]]:
    """Yield each input that is a row, with its line of samples.jsonl; at the first that is neither row nor reject, why."""
    rejected = deque(reject.path for reject in read_rejects(out))
    samples = read_samples(out)
    sample = next(samples, None)
    for index, path in enumerate(followed("check", inputs.paths, len(inputs))):
        if sample is not None and sample.path == path:
            yield index, sample
            sample = next(samples, None)
        elif rejected and rejected[0] == path:
            rejected.popleft()
        else:
            before = read_paths(out)
            named = names_difference(sorted(before), inputs.paths)
            stood = rejected[0] if sample is None else sample.path
            yield index, f"other inputs: {named}" if named else f"another order: {path} is where {stood} was"
            return


def _size(inputs: Inputs, index: int) -> int:
    """Return the current size of an input in bytes, -1 if it is gone."""
    if inputs.url:
        return int(inputs.states[index][0])
    if inputs.archives:
        return int(inputs.members[index][3])
    return _state(inputs, inputs.paths[index])[0]


def _state(inputs: Inputs, path: str) -> tuple[int, int]:
    return locate(str(inputs.root), path, roots=inputs.roots or NOWHERE).state()


def _other_columns(out: Path, manifest: Manifest, inputs: Inputs, accepted: Sequence[int]) -> list[str]:
    """Name the extras, boxes among them, that are not what the inputs say of these rows."""
    found = {name: hashlib.sha256(column.chosen(accepted).encoded()) for name, column in inputs.extras.items()}
    if inputs.boxes is not None:
        rows = inputs.boxes.in_rows(Geometry.recorded(manifest))
        found |= {name: hashlib.sha256() for name in inputs.boxes.specs()}
        with open(out / SAMPLES, encoding="ascii") as lines:
            for start in range(0, len(accepted), _BOXES_ROWS):
                some_rows = accepted[start : start + _BOXES_ROWS]
                for name, data in rows.encoded(some_rows, [*islice(lines, len(some_rows))]).items():
                    found[name].update(data)
    files = {name: manifest.files[f"{EXTRAS}/{name}.memmap"] for name in found}
    others = [name for name, digest in found.items() if files[name].digest != f"sha256:{digest.hexdigest()}"]
    return [*others, "texts"] if inputs.texts and _are_other_texts(manifest, inputs, accepted) else others


def _are_other_texts(manifest: Manifest, inputs: Inputs, accepted: Sequence[int]) -> bool:
    """Whether texts, or where each begins and ends, are not what the inputs say of these rows."""
    texts, count = list(inputs.texts_of(accepted)), len(inputs.texts)
    spans = list(itertools.pairwise(itertools.accumulate(map(len, texts), initial=0)))
    wanted = {TEXTS_FILE: b"".join(texts)}
    for number, name in enumerate(inputs.texts):
        wanted[f"{EXTRAS}/{name}.memmap"] = Column.of("int64", spans[number::count], 2).encoded()
    return any(manifest.files[n].digest != f"sha256:{hashlib.sha256(data).hexdigest()}" for n, data in wanted.items())


def _found_again(out: Path, inputs: Inputs) -> list[str]:
    """Name the inputs that were rejected as missing and now exist: `pack update` would add them as rows."""
    missing = [reject.path for reject in read_rejects(out) if reject.reason in MISSING]
    if inputs.url or not missing:
        return missing  # what storage lists is there
    return [path for path in missing if _state(inputs, path) != (-1, -1)]


def _replace(options: PackOptions) -> str:
    """Say how a finished store makes room for another; a part has no --overwrite for it."""
    return "remove it" if options.part else f"replace it with {OVERWRITE}"


def _advice(inputs: Inputs, out: Path, options: PackOptions, target: Path) -> str:
    """Say what to do with a finished store of other inputs: an update would remove the rows whose sources are not among these."""
    paths = [sample.path for sample in read_samples(out)] if inputs.images else []
    gone = len(paths) - sum(map(set(inputs.paths).__contains__, paths))
    if paths and gone == len(paths):
        return f"It was packed from other images: choose another OUT, or {_replace(options)}"
    update = _update(inputs, options, target, gone if gone > may_be_gone(len(paths)) else None)
    if not gone:
        return update
    return f"An update removes {gone} of its {len(paths)} rows; if these are other images, choose another OUT. {update}"


def _update(inputs: Inputs, options: PackOptions, target: Path, max_gone: int | None = None) -> str:
    """Say how a finished store is brought up to date with its inputs; max_gone: of its rows, where more than usual."""
    if not inputs.images:
        return "Pack the dataset again with overwrite=True"
    allowed = [] if max_gone is None else ["--max-gone", str(max_gone)]
    return f"Bring it up to date: {update_command(inputs.images, target, options, *allowed)}"


def update_command(images: Sequence[str], target: str | os.PathLike[str], options: PackOptions, *further: str) -> str:
    """Return the command that brings a store up to date with IMAGES, whose labels are read as by these options."""
    words = PackOptions(**{name: getattr(options, name) for name in (*LABEL_OPTIONS, "boxes", "masks")}).words()
    return shlex.join(["pack", "update", *images, os.fspath(target), *words, *further])
