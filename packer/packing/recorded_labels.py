"""What a store records of how its labels were read, and what an update may do to them: nothing without a message.

Compares classes, targets and paths of a store's rows with those of the inputs that are listed now; opens no image and writes
nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packer.errors import PackError
from packer.inputs.samples import Column, Inputs
from packer.inputs.scan import STDIN_NAMES, belongs
from packer.option_names import OVERWRITE, Option
from packer.options import PackOptions
from packer.progress import followed
from packer.store.row_files import EXTRAS
from packer.text import names_difference, some
from packer.values import allowed_share
from reader.format.fields import Json
from reader.format.manifest import Manifest
from reader.format.samples import read_samples, read_targets

# Options that an update takes from the store where they are not given.
_REUSED = ("target_column", "text_column", "path_column", "extension", "missing")
# Options by which labels are read.
LABEL_OPTIONS = ("classes", "root", *_REUSED)
# Without --max-gone: so large a share of the rows may vanish; of few rows so many, but not all.
_GONE_SHARE, _GONE_LEAST = "10%", 10


def resolved_labels(out: Path, before: Manifest, given: dict[str, object], images: Sequence[str]) -> dict[str, object]:
    """Return the options by which labels are read: as they are given, else as the store records them.

    Args:
        given: classes, root, path_column, target_column, text_column, extension and missing; None: not given.

    Raises:
        PackError: one is needed that is a path, and so recorded nowhere.
    """
    reused: dict[str, Any] = {name: before.labels.get(name) for name in _REUSED if belongs(name, images)}
    if before.labels.get("classes"):
        reused["classes"] = str(out)
    if before.labels.get("root") and given["root"] is None and belongs("root", images):
        raise PackError(
            f"{out} was packed with {Option('root')}. Give {Option('root')} again: the folder that the paths of the list"
            " start from."
        )
    if reused.get("missing") is not None:
        reused["missing"] = tuple(reused["missing"])
    resolved = given | {name: value for name, value in reused.items() if value is not None and given[name] is None}
    return resolved | {"missing": resolved["missing"] or ()}


def may_be_gone(rows: int) -> int:
    """Return how many of so many rows an update may remove that was not given --max-gone."""
    return min(max(allowed_share(Option("max_gone"), _GONE_SHARE, rows), _GONE_LEAST), rows - 1)


def label_files(manifest: Manifest) -> dict[str, bool]:
    """Return whether a store was packed with --boxes, and with --masks."""
    return {
        "boxes": "box_count" in manifest.extras,
        "masks": manifest.has_masks,
    }


def other_labels_options(manifest: Manifest, inputs: Inputs, options: PackOptions) -> str:
    """Say by which options of labels a store was packed that are not given now, or the reverse, and what to do; else "".

    Only options that an update would take from the store, or refuse: what else differs, it brings up to date.
    """
    if not inputs.images:
        return ""
    recorded = label_files(manifest)
    had = {str(Option(name)) for name, is_there in recorded.items() if is_there}
    given = {str(Option(name)) for name in recorded if getattr(options, name) is not None}
    was = manifest.labels if manifest.records_labels else {}
    if was.get("classes") and options.classes is None:
        had.add(str(Option("classes")))
    for name in ("root", *_REUSED):
        before, now = was.get(name), inputs.labels.get(name)
        if not before or not belongs(name, inputs.images):
            continue
        if name == "missing":
            had |= {str(Option(name, cell)) for cell in before if cell not in options.missing}
        elif before != now:
            had.add(str(Option(name, before)))
    if manifest.records_labels and options.target_column is not None and not was.get("target_column"):
        given.add(str(Option("target_column")))
    if forgotten := sorted(had - given):
        again = "them" if len(forgotten) > 1 else "it"
        return f"with {' and '.join(forgotten)}. Give {again} again"
    if added := sorted(given - had):
        out = "them" if len(added) > 1 else "it"
        return f"without {' and '.join(added)}. Leave {out} out"
    return ""


@dataclass
class LabelCheck:
    """Compares the stores of an update with the inputs that are listed now; notes is what the user should know.

    Args:
        given: the options that the user gave, as for `resolved_labels`.
        max_gone: how many rows of a store may vanish, "10" or "5%"; None: 10 %, at least 10, but not all.
    """

    stores: dict[str, tuple[Path, Manifest]]
    images: Sequence[str]
    given: dict[str, object]
    max_gone: str | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        allowed_share(Option("max_gone"), self._max_gone, 0)

    @property
    def _max_gone(self) -> str:
        return _GONE_SHARE if self.max_gone is None else self.max_gone

    def __call__(self, parts: dict[str, Inputs]) -> None:
        """Refuse what would change labels of rows that stay, or lose more rows than allowed.

        Raises:
            PackError: says what, and what to do.
        """
        for split, (out, before) in self.stores.items():
            if (now := parts.get(split)) is not None:
                self._check_kind(out, before, now)
                self._check_numbers(out, before, now)
                self._check_rows(out, before, now)
                self._check_columns(out, before, now)
                self._add_notes(out, before, now)

    def _check_kind(self, out: Path, before: Manifest, now: Inputs) -> None:
        kinds = [_kind(before.target_kind, before.target_count), _kind(now.target_kind, now.targets.count)]
        if kinds[0] != kinds[1]:
            hint = (
                f"{Option('classes', out)} keeps lists of classes; else " if before.target_kind == "multi-hot" else ""
            )
            raise PackError(
                f"{out} has {kinds[0]} targets, {self._source} has {kinds[1]} ones. {hint}pack again with {OVERWRITE}."
            )
        lost = [name for name in before.further_targets if name not in now.further_targets]
        if lost:
            raise PackError(
                f"{out} has the further target {lost[0]}, which {self._source} does not have."
                f" Give {Option('target_column')} as it was packed, or pack again with {OVERWRITE}."
            )

    def _check_numbers(self, out: Path, before: Manifest, now: Inputs) -> None:
        """Refuse other numbers for the classes of rows that stay, unless a class list was given."""
        lists = [("", before.classes, now.classes)]
        for name, target in before.further_targets.items():
            lists.append((f" of {name}", target.classes, now.further_targets[name].classes))
        for of_column, old, new in lists:
            moved = _moved(old, new)
            what = names_difference(old, new) or "in another order"
            if moved and self.given["classes"] is None:
                new_names = sorted(set(new) - set(old))
                how = (
                    f"give {Option('classes')} a file with its names in their order and {some(new_names)} behind them"
                    if new_names
                    else f"give {Option('classes', out)}"
                )
                raise PackError(
                    f"classes{of_column} would have other numbers than in {out}: {some(moved)} ({what})."
                    f" To keep them, {how}; for those of a fresh pack, pack again with {OVERWRITE}."
                )
            if old != new:
                numbers = f"numbers moved: {some(moved)}" if moved else "all others keep their numbers"
                self.notes.append(f"{out} has other classes{of_column} than before ({what}); {numbers}.")

    def _check_rows(self, out: Path, before: Manifest, now: Inputs) -> None:
        index_of = {path: index for index, path in enumerate(followed("check", now.paths, len(now)))}
        targets = now.targets.tolist()
        again = _listed_again(now.paths) if len(index_of) < len(now.paths) else {}
        # most targets are the same number, of the same class: a million of them would take longer by their names
        numbers = {name: number for number, name in enumerate(now.classes)}
        same = {number: numbers.get(name) for number, name in enumerate(before.classes)} | {-1: -1}
        is_class = before.target_kind == "class"
        gone, changed = _Named(), _Named()
        for _, path, target in followed("check", read_targets(out), before.rows):
            index = index_of.get(path)
            if index is None:
                gone.add(path)
            elif not is_class or same.get(target) != targets[index]:
                old = _meaning(target, before.target_kind, before.classes)
                new = [_meaning(targets[i], now.target_kind, now.classes) for i in again.get(path, (index,))]
                if old not in new:
                    changed.add(f"{path} {_shown(old)}, now {_shown(new[0])}")
        self._check_gone(out, before, gone)
        if changed.count:
            self._check_changed(out, before, now, changed)
        for name in before.further_targets:
            self._note_further(out, before, now, name, {path: again.get(path, (at,)) for path, at in index_of.items()})

    def _note_further(
        self, out: Path, before: Manifest, now: Inputs, name: str, index_of: dict[str, Sequence[int]]
    ) -> None:
        """Name rows that stay and get another value of a further target: it is of the column of that name as before."""
        was, has = before.further_targets[name], now.further_targets[name]
        old_values, new_values, changed = _stored(out, before, name), now.extras[name], _Named()
        for row, sample in enumerate(followed("check", read_samples(out), before.rows)):
            if indices := index_of.get(sample.path):
                old = _meaning(old_values[row], was.kind, was.classes)
                new = [_meaning(new_values[index], has.kind, has.classes) for index in indices]
                if old not in new:
                    changed.add(f"{sample.path} {_shown(old)}, now {_shown(new[0])}")
        if changed.count:
            rows = "1 row" if changed.count == 1 else f"{changed.count} rows"
            self.notes.append(f"{rows} of {out} had another {name} before: {changed}.")

    def _check_gone(self, out: Path, before: Manifest, gone: _Named) -> None:
        given = self.max_gone
        allowed = may_be_gone(before.rows) if given is None else allowed_share(Option("max_gone"), given, before.rows)
        if gone.count > allowed:
            raise PackError(
                f"{gone.count} of {before.rows} rows of {out} would be gone, as {self._source} does not have their images:"
                f" {gone}. That is more than {Option('max_gone')} allows, {allowed}. Give all that {out} was packed from, or"
                f" {Option('max_gone', gone.count)}."
            )

    def _check_changed(self, out: Path, before: Manifest, now: Inputs, changed: _Named) -> None:
        """Refuse other targets for rows that stay, unless they are of the same column as before, or of one that is named now."""
        was, column = before.labels.get("target_column"), now.labels.get("target_column")
        is_named = not before.records_labels and self.given["target_column"] is not None
        rows = "1 row" if changed.count == 1 else f"{changed.count} rows"
        if column is not None and (column == was or is_named):
            self.notes.append(f"{rows} of {out} had another target before: {changed}.")
            return
        changes = f"{rows} of {out} would have another target than before: {changed}."
        if not before.records_labels:
            raise PackError(
                f"{changes} {out} does not record how its targets were read (format 1.0). If they are of the column"
                f" {column or 'NAME'}, give {Option('target_column', column or 'NAME')}; else pack again with {OVERWRITE}."
            )
        sources = [f"the column {name}" if name else "folders" for name in (was, column)]
        raise PackError(
            f"{changes} Its targets are of {sources[0]}, those of {self._source} of {sources[1]}. Give the same, or pack"
            f" again with {OVERWRITE}."
        )

    def _check_columns(self, out: Path, before: Manifest, now: Inputs) -> None:
        if columns := sorted(before.extras.keys() - now.extra_names()):
            raise PackError(
                f"{out} has the column {some(columns)}, which {self._source} does not have."
                f" Give the list that it was packed from, or pack again with {OVERWRITE}."
            )

    def _add_notes(self, out: Path, before: Manifest, now: Inputs) -> None:
        had, has = before.labels.get("boxes"), now.labels.get("boxes")
        if had is not None and had != has:
            self.notes.append(
                f"{Option('boxes')} holds other labels than those that {out} was packed with: all boxes are read again."
            )

    @property
    def _source(self) -> str:
        first = "standard input" if self.images[0] in STDIN_NAMES else self.images[0]
        return first + (" and the others" if len(self.images) > 1 else "")


@dataclass
class _Named:
    """Counts things, and keeps the first few of their names."""

    count: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        """Count one."""
        self.count += 1
        if len(self.names) < 3:
            self.names.append(name)

    def __str__(self) -> str:
        more = self.count - len(self.names)
        return "; ".join(self.names) + (f" and {more} more" if more else "")


def _kind(kind: str, count: int | None) -> str:
    return f"{kind} x {count}" if kind == "regression" else kind


def keeps_numbers(old: Sequence[str], new: Sequence[str]) -> bool:
    """Say whether classes would have other numbers, and all have a place in the old list: given as one, it keeps them."""
    return bool(_moved(old, new)) and set(new) <= set(old)


def _moved(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Say which classes that are in both lists have another number."""
    numbers = {name: number for number, name in enumerate(new)}
    return [
        f"{name} was {number}, now {numbers[name]}"
        for number, name in enumerate(old)
        if numbers.get(name, number) != number
    ]


def _listed_again(paths: Sequence[str]) -> dict[str, list[int]]:
    """Return the positions of each path that occurs more than once."""
    first: dict[str, int] = {}
    again: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        if (before := first.setdefault(path, index)) != index:
            again.setdefault(path, [before]).append(index)
    return again


def _meaning(target: Json, kind: str, classes: Sequence[str]) -> object:
    """Return a target by the names of its classes, independent of their numbers."""
    if kind == "class":
        return classes[target] if 0 <= target < len(classes) else None
    if kind == "multi-hot":
        return {classes[number] for number, flag in enumerate(target) if flag}
    return ["nan" if math.isnan(value) else value for value in (target if isinstance(target, list) else [target])]


def _stored(out: Path, manifest: Manifest, name: str) -> Column:
    """Return a further target as a store holds it, a value a row."""
    spec = manifest.extras[name]
    column = Column.of(spec.dtype, [], spec.row_shape[0] if spec.row_shape else None)
    column.values.frombytes((out / EXTRAS / f"{name}.memmap").read_bytes())
    if sys.byteorder == "big":
        column.values.byteswap()
    return column


def _shown(meaning: object) -> str:
    if meaning is None:
        return "without one"
    return ", ".join(sorted(meaning)) or "none" if isinstance(meaning, set) else str(meaning)
