"""What differs between an unfinished pack and the one that would resume it, in words that a person can act on.

Compares what a journal or a store says with what is asked for now. Decides nothing, and opens no image.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from packer.inputs.samples import Inputs
from packer.option_names import Option
from packer.store.journal import Header, read_blocks
from packer.text import difference, names_difference, options_difference, without_limits
from reader.format.manifest import Manifest
from reader.format.samples import Sample, read_paths

_CHECKED = {
    "options": "other options",
    "decoders": "other decoders",
    "classes": "other classes",
    "further_targets": "other target columns",
    "inputs": "another number of inputs",
    "listing": "other input files",
    "block_inputs": "another version of pixpack",
    "journal": "another version of pixpack",
    "labels": "other options for labels",
}


def header_difference(found: Header, expected: Header, name_inputs: Callable[[], str] | None = None) -> str:
    """Say in what the pack that wrote a journal's header differs from the one that expects another; "" where they agree.

    Args:
        name_inputs: called where the inputs differ, for which of them.
    """
    had, has = ("boxes" in (header.labels or {}) for header in (found, expected))
    if had != has:
        return f"other options ({'with' if had else 'without'} {Option('boxes')}, now {'with' if has else 'without'})"
    for key, what in _CHECKED.items():
        before, now = getattr(found, key), getattr(expected, key)
        if key == "labels" and before is None:
            continue  # started by pixpack 0.1; classes and listing are compared all the same
        if key == "options":
            before, now = without_limits(before or {}), without_limits(now or {})
        if before != now:
            named = name_inputs() if name_inputs and key in ("inputs", "listing") else ""
            is_options = key in ("options", "labels")
            where = options_difference(before or {}, now or {}) if is_options else difference(before, now)
            return what + where + (f": {named}" if named else "")
    return ""


def inputs_difference(folder: Path, start: int, inputs: Inputs, *, is_shuffled: bool) -> str:
    """Say how inputs differ from those that folder's journal has committed, which began with the start-th of all.

    A journal keeps paths and targets of what is committed alone. The rest it knows as one checksum.
    """
    committed = _committed(folder, start)
    before, now = [path for path, _ in committed], inputs.paths[start:]
    if not before:
        return ""
    if is_shuffled:
        # one more input changes the order: a new input looks like one that was still to come
        now = [*set(before).intersection(now)]
    else:
        index_of = {path: index for index, path in enumerate(now)}
        now = now[: 1 + max((index_of[path] for path in before if path in index_of), default=-1)]
    if named := names_difference(before, now):
        return named
    if is_shuffled or inputs.identity:
        return ""
    for path, (old_path, old), new in zip(now, committed, inputs.targets.tolist(start), strict=False):
        if path != old_path:
            return f"{path} is where {old_path} was"
        if old is not None and json.dumps(old) != json.dumps(new):  # as text, in which NaN is NaN
            return f"{path} had the target {old}, now {new}"
    return f"the first {len(before)}, which are packed, have the same paths and targets"


def store_difference(out: Path, manifest: Manifest, inputs: Inputs) -> str:
    """Say in what the inputs of a finished store differ from these; "" where they are as many, of the same kind."""
    if manifest.classes != inputs.classes:
        return "other classes" + difference([*manifest.classes], [*inputs.classes])
    if manifest.inputs != len(inputs):
        before = read_paths(out)
        named = names_difference(sorted(before), inputs.paths)
        return f"another number of inputs ({manifest.inputs}, now {len(inputs)})" + (f": {named}" if named else "")
    if manifest.target_kind != inputs.target_kind:
        return f"other targets ({manifest.target_kind}, now {inputs.target_kind})"
    if [*manifest.texts] != [*inputs.texts]:
        return f"other text columns ({', '.join(manifest.texts) or 'none'}, now {', '.join(inputs.texts) or 'none'})"
    if manifest.further_targets != inputs.further_targets:
        return "other target columns"
    before = [*manifest.extras, *(["masks"] if manifest.has_own_masks else [])]
    extras = names_difference(sorted(before), sorted(inputs.extra_names()))
    if extras:
        return f"other extras: {extras}"
    if inputs.boxes is not None and (room := manifest.extras["boxes"].row_shape[0]) != inputs.boxes.most:
        return f"room for another number of boxes in a row ({room}, now {inputs.boxes.most})"
    if manifest.records_labels and manifest.labels != inputs.labels:
        return "other options for labels" + options_difference(manifest.labels, inputs.labels)
    return ""


def _committed(folder: Path, start: int) -> list[tuple[str, object]]:
    """Return path and target of each committed input, the start-th of all first; the target of a reject is None."""
    known: list[tuple[str, object]] = []
    for result, _ in read_blocks(folder):
        rejected = {reject.input: reject.path for reject in result.rejects}
        samples = map(Sample.decode, result.samples)
        for index in range(start, start + result.inputs):
            if index in rejected:
                known.append((rejected[index], None))
            else:
                sample = next(samples)
                known.append((sample.path, sample.target))
        start += result.inputs
    return known
