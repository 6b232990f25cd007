"""The levels of a store that is made: each a pack of the same images at half the size, or a quarter, in a folder within it.

Decoded from the images by the same filter, never from another level. Boxes, masks, extras and texts are those of the store.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packer.checksums import sha256_file
from packer.clock import StageClock
from packer.errors import PackError
from packer.option_names import RESUME
from packer.options import PackOptions
from packer.packing.build import Build
from packer.packing.tasks import Packing
from packer.progress import followed
from packer.store import journal as journals
from packer.store.destination import Making
from packer.values import LevelLimit, check_levels, recorded_limit
from reader.format.manifest import MANIFEST, REJECTED, FileEntry, read_manifest
from reader.format.samples import Sample, read_samples
from reader.format.splits import FOLDER
from reader.format.tensors import FACTORS, level_name, level_path

# An image that was replaced meanwhile is another in the level than in the store; then the level is made once more.
_TRIES = 2


class Levels:
    """What makes the levels of one store; raises OptionsError where its rows are too small, or not even.

    Args:
        packing: of the store.
        making: where that is made.
    """

    def __init__(self, packing: Packing, making: Making) -> None:
        self._packing, self._making, options = packing, making, packing.options
        self._factors = FACTORS[: options.levels - 1]
        check_levels(options.levels, options.row_kind.common_sides(packing.shape))

    def make(self) -> dict[str, FileEntry]:
        """Make the levels of the store that is sealed in its folder but for its manifest; returns their files.

        Of a part whose rows are all there, make its part of each level; these have no files yet.

        Raises:
            PackError: an image is no row of a level, or was replaced meanwhile, twice.
        """
        out = self._making.folder
        rejected = {reject.input: reject.reason for result, _ in journals.read_blocks(out) for reject in result.rejects}
        entries: dict[str, FileEntry] = {}
        for factor in self._factors:
            for tries_left in reversed(range(_TRIES)):
                self._make(factor, rejected)
                if not (what := self._difference(out, factor)):
                    break
                if not tries_left:
                    raise PackError(f"{what}. Do not change images while they are packed, and continue with {RESUME}.")
                self._making.to.remove(self._making.level(factor).folder)
            if self._making.part is None:
                entries |= files_of(out, factor)
        return entries

    def _make(self, factor: int, rejected: dict[int, str]) -> None:
        making, options = self._making.level(factor), self._options_of(factor)
        out = making.folder
        if (out / MANIFEST).exists():
            if dict(read_manifest(out).options) == options.shaping():
                return
            making.to.remove(out)
        # inputs that the store rejects have no row here either; they are not opened
        inputs = dataclasses.replace(
            self._packing.inputs,
            refused=rejected,
            boxes=None,
            masks=None,
            extras={},
            texts={},
            further_targets={},
            notes=[],
        )
        shape = self._sides(factor) or (1, 1)
        build = Build(dataclasses.replace(self._packing, inputs=inputs, shape=shape, options=options), making)
        build.divide(StageClock("begin"))
        build.run(StageClock("begin"))
        if making.part is None:
            making.to.remove(out / FOLDER)

    def _options_of(self, factor: int) -> PackOptions:
        """Return the options by which a level is packed alone."""
        changed: dict[str, Any] = {"levels": 1, "resume": True, "overwrite": False, "boxes": None, "masks": None}
        changed |= {"mask_values": None}
        if (sides := self._sides(factor)) is None:
            changed["max_size"] = LevelLimit(f"{recorded_limit(self._packing.options.max_size) or 0}/{factor}")
        return dataclasses.replace(self._packing.options, size=sides, **changed)

    def _sides(self, factor: int) -> tuple[int, int] | None:
        return self._packing.options.row_kind.level_sides(self._packing.shape, factor)

    def _difference(self, out: Path, factor: int) -> str:
        """Say in what a level, or a part of it, is of other images than the store; "" where it is of the same."""
        level = self._making.level(factor).folder
        if self._making.part is not None:
            return part_difference(out, level, factor)
        if what := other_image(read_samples(out), read_samples(level), factor):
            return what
        is_same = (out / REJECTED).read_bytes() == (level / REJECTED).read_bytes()
        return "" if is_same else f"{level_name(factor)} rejects other images than the store"


def part_difference(folder: Path, level: Path, factor: int) -> str:
    """Say which row of a part has other bytes in its part of a level than in that of the store; "" where there is none."""
    return other_image(_samples_of(folder), _samples_of(level), factor)


def other_image(store: Iterator[Sample], level: Iterator[Sample], factor: int) -> str:
    """Say which row of a level is of another image than that of the store; "" where there is none."""
    for row, (own, found) in enumerate(followed("check", itertools.zip_longest(store, level))):
        if own is None or found is None or (own.path, own.sha256) != (found.path, found.sha256):
            return f"row {row}, {(own or found).path}, is another image in {level_name(factor)} than in the store"
    return ""


def _samples_of(folder: Path) -> Iterator[Sample]:
    """Yield the rows that the journal in a folder names."""
    return (Sample.decode(line) for result, _ in journals.read_blocks(folder) for line in result.samples)


def files_of(out: Path, factor: int) -> dict[str, FileEntry]:
    """Return size and sha256 of each file of a level, by its path in the store."""
    level = level_path(out, factor)
    names = [*read_manifest(level).files, MANIFEST]
    return {
        f"{level_name(factor)}/{name}": FileEntry((level / name).stat().st_size, sha256_file(level / name))
        for name in names
    }
