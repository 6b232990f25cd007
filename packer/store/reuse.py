"""Rows that an update reuses of the store that it replaces: those of inputs whose bytes are still the same.

A row is taken where the input of that path has the sha256 that stands in samples.jsonl. Nothing of the old store is believed
before it is checked: its small files by their digests at the start, a block of rows by its checksum before the first row of it is
taken. What does not hold is decoded as any other input.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packer.errors import PackError
from packer.option_names import OVERWRITE
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row
from packer.progress import followed
from packer.sample_lines import Sample, read_samples_with_offsets
from packer.store.sealed_rows import SealedRows, damage
from packer.text import difference, options_difference
from reader.format.manifest import PIXELS, Manifest

# Of lines behind the sha256 of their source: photographs have some hundred sizes. Of very many, those before are forgotten.
_MOST_ENDS = 4096


class ReusedLines:
    """Where the lines of a store's samples.jsonl are, by path: what the command sends to its workers."""

    def __init__(self, out: Path, rows: int) -> None:
        self._begins, self._rows = array("q"), dict[str, int]()
        for row, (begin, sample) in enumerate(followed("read", read_samples_with_offsets(out), rows)):
            self._begins.append(begin)
            self._rows[sample.path] = row

    def find(self, paths: Sequence[str], start: int) -> dict[int, tuple[int, int]]:
        """Return the row of each of these inputs that the store has, and where its line begins; the start-th of all first."""
        rows = ((index, self._rows.get(path)) for index, path in enumerate(paths, start=start))
        return {index: (row, self._begins[row]) for index, row in rows if row is not None}

    def gone(self, paths: Sequence[str]) -> int:
        """Count the rows whose input is not among these any more."""
        return len(self._rows.keys() - set(paths))


class _Kept(NamedTuple):
    """What the line of a row says of how it was made; is_plain: it is as `Sample.encode` writes it."""

    width: int
    height: int
    content: tuple[int, int, int, int]
    decoding: Mapping[str, Any]
    is_plain: bool = False


class ReusedRows:
    """The rows themselves, for a worker."""

    def __init__(self, out: Path, digest: str) -> None:
        self._rows = SealedRows(out, digest)
        self._geometry = Geometry.recorded(self._rows.manifest)
        self._ends: dict[str, _Kept] = {}
        # a JPEG that is encoded again would lose again
        self._keeps_frames = self._rows.manifest.jpeg is not None

    @classmethod
    def open(cls, out: str, digest: str) -> ReusedRows | None:
        """Open the store whose manifest has this digest; None where it cannot be read any more: then all is decoded."""
        try:
            return cls(Path(out), digest)
        except (OSError, ValueError):
            return None

    def row(self, number: int, line_begin: int, start: str) -> tuple[Row, str] | None:
        """Return a row of an input that has the same bytes now, and its line; None where it had others, or the row is damaged.

        Args:
            start: what the line of the input begins with now (`line_start`). If the row's own line begins so, it stays as it is;
                else the line that is returned is "".
        """
        # after a disk error or a damaged line the image is decoded again
        with contextlib.suppress(OSError, ValueError):
            line = self._rows.line(line_begin)
            if line.startswith(start):
                known = self._known(line, len(start))
            else:
                sample = Sample.decode(line)
                # a dataset's items have none
                if sample.sha256 is None or f'"sha256":"{sample.sha256}",' not in start:
                    return None
                known, line = self._kept(sample), ""
            if self._rows.damaged_block(number):
                return None
            pixels, _, frame = self._rows.row(number)
            done, kept = {**known.decoding}, frame if self._keeps_frames else b""
            row = Row(pixels, known.content, known.width, known.height, done, kept)
            return row, line if known.is_plain else ""
        return None

    def _known(self, line: str, start: int) -> _Kept:
        """Return what a line says behind its start; images of one size, decoded alike, have the same there."""
        end = line[start:]
        if (known := self._ends.get(end)) is None:
            sample = Sample.decode(line)
            if len(self._ends) >= _MOST_ENDS:
                self._ends.clear()
            known = self._ends[end] = self._kept(sample)._replace(is_plain=sample.encode() == line)
        return known

    def _kept(self, sample: Sample) -> _Kept:
        content = self._geometry.content(self._geometry.resized(sample.width, sample.height))
        return _Kept(sample.width, sample.height, content, sample.decoding)


def check_reusable(
    out: Path, manifest: Manifest, options: Mapping[str, object], decoders: Mapping[str, object]
) -> None:
    """Refuse to take rows over from a store that others will not equal, or whose small files are not what was packed.

    Args:
        options: those that shape the rows to be.
        decoders: those that would decode them here.

    Raises:
        PackError: says what differs.
    """
    again = f"Pack again with {OVERWRITE}, which decodes all."
    recorded, wanted = dict(manifest.options), dict(options)
    if recorded != wanted:
        raise PackError(f"{out} was packed with other options{options_difference(recorded, wanted)}. {again}")
    # a plugin of Pillow that was not there has decoded none of its rows
    live = {name: decoders.get(name) for name in manifest.decoders}
    if manifest.decoders != live:
        raise PackError(
            f"{out} was packed by other decoders{difference(manifest.decoders, live)}: old and new rows would not be"
            f" alike. Use the same versions. {again}"
        )
    if what := damage(out, manifest, manifest.files.keys() - {PIXELS}):
        raise PackError(f"{what} {again}")
