"""Where the rows of a store, or of several, come from: the lines of its samples.jsonl, read when first asked for."""

from __future__ import annotations

import bisect
import functools
from pathlib import Path
from typing import Any

from reader.format.blocks import Block, read_blocks
from reader.format.errors import StoreError
from reader.format.filesystem import identity
from reader.format.manifest import MANIFEST, SAMPLES, Manifest, read_manifest
from reader.format.samples import read_line, read_source_paths
from reader.memory.places import Remote


class Sources:
    """The sources of a store's rows.

    Each use raises StoreError if the store at its path is another one by now: its pixels stay open, this file does not.
    """

    def __init__(self, path: Path, manifest: Manifest, remote: Remote | None = None) -> None:
        self._path, self._manifest, self._remote = path, manifest, remote
        # the file of the manifest that was compared last; of a store at a URL None: its folder in the cache stays
        self._checked: tuple[int, int, int] | None = None

    @functools.cached_property
    def paths(self) -> list[str]:
        """The path of each row's source, relative to the packed folder."""
        self._check()
        return read_source_paths(self._path, self._manifest)

    @functools.cached_property
    def rows_by_path(self) -> dict[str, int]:
        """The first row of each source."""
        return {path: row for row, path in reversed(list(enumerate(self.paths))) if path}

    def line(self, row: int) -> dict[str, Any]:
        """Return the line of one row without reading the full file."""
        starts, blocks = self._blocks
        if self._remote is None and identity(self._path / MANIFEST) != self._checked:
            self._check()
        block = blocks[bisect.bisect_right(starts, row) - 1]
        return read_line(self._path, block.samples_offset, row - block.start, row)

    @functools.cached_property
    def _blocks(self) -> tuple[list[int], list[Block]]:
        self._check()
        blocks = read_blocks(self._path)
        return [block.start for block in blocks], blocks

    def _check(self) -> None:
        if self._remote is not None:
            self._remote.file(SAMPLES)
            return
        checked = identity(self._path / MANIFEST)
        if read_manifest(self._path).digest != self._manifest.digest:
            raise StoreError(
                f"{self._path} was packed again since this dataset was opened. Open it again to see its sources."
            )
        self._checked = checked
