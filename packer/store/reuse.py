"""Rows that an update reuses from the store that it replaces: those of inputs with unchanged bytes.

A row is reused if the input of its path has the sha256 in samples.jsonl. The old store is checked before use. Small files are
checked by their digests at the start, a block of rows by its checksum before its first row is reused. Inputs of damaged rows
are decoded like any other.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

from packer.errors import PackError
from packer.option_names import OVERWRITE
from packer.pixels.row import Row
from packer.progress import tracked
from packer.sample_lines import Sample, read_samples_with_offsets
from packer.store.sealed_rows import SealedRows, damage
from packer.text import difference, options_difference
from reader.format.manifest import PIXELS, Manifest


class ReusedLines:
    """The lines of a store's samples.jsonl by path, as byte offsets that the command sends to its workers."""

    def __init__(self, out: Path, rows: int) -> None:
        self._begins, self._rows = array("q"), dict[str, int]()
        for row, (begin, sample) in enumerate(tracked("read", read_samples_with_offsets(out), rows)):
            self._begins.append(begin)
            self._rows[sample.path] = row

    def find(self, paths: Sequence[str], start: int) -> dict[int, tuple[int, int]]:
        """Return the row and line offset of each of these inputs that the store has, by input number from start on."""
        numbered = enumerate(paths, start=start)
        found = {index: self._rows[path] for index, path in numbered if path in self._rows}
        return {index: (row, self._begins[row]) for index, row in found.items()}

    def gone(self, paths: Sequence[str]) -> int:
        """Count the rows whose inputs are not among these paths."""
        return len(self._rows.keys() - set(paths))


class ReusedRows(SealedRows):
    """The rows themselves, for a worker."""

    @classmethod
    def open(cls, out: str, digest: str) -> ReusedRows | None:
        """Open the store with this digest; None if it can no longer be read, and all inputs are decoded."""
        try:
            return cls(Path(out), digest)
        except (OSError, ValueError):
            return None

    def reused(self, number: int, line_begin: int, sha256: str) -> Row | None:
        """Return the row of an input with this digest; None if the digests differ, or the row is damaged.

        Args:
            line_begin: the byte of samples.jsonl where the line of the row begins.
        """
        # after a disk error or a damaged line the image is decoded again
        with contextlib.suppress(OSError, ValueError):
            sample = Sample.decode(self.line(line_begin))
            if sample.sha256 == sha256 and not self.damaged_block(number):
                # encoding a JPEG again would lose quality again
                pixels, _, frame = self.row(number)
                return Row(pixels, self.content(number), sample.width, sample.height, {**sample.decoding}, frame)
        return None


def check_reusable(
    out: Path, manifest: Manifest, options: Mapping[str, object], decoders: Mapping[str, object]
) -> None:
    """Refuse to reuse rows of other decoders, or of a store with damaged small files.

    Args:
        options: of the rows to be made.
        decoders: of this machine.

    Raises:
        PackError: says what differs.
    """
    again = f"Pack again with {OVERWRITE}, which decodes all."
    recorded, wanted = dict(manifest.options), dict(options)
    if recorded != wanted:
        raise PackError(f"{out} was packed with other options{options_difference(recorded, wanted)}. {again}")
    # a Pillow plugin that was missing then has decoded none of its rows
    live = {name: decoders.get(name) for name in manifest.decoders}
    if manifest.decoders != live:
        raise PackError(
            f"{out} was packed by other decoders{difference(manifest.decoders, live)}: old and new rows would not be"
            f" alike. Use the same versions. {again}"
        )
    if what := damage(out, manifest, manifest.files.keys() - {PIXELS}):
        raise PackError(f"{what} {again}")
