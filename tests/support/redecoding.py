"""Decode the sources of a store again, and compare the results with its rows."""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

from packer.errors import DecodeError
from packer.inputs.scan import scan
from packer.inputs.splits import stores_of
from packer.options import RowOptions
from packer.pixels.decoder_choice import row_decoder
from packer.pixels.geometry import Geometry
from packer.sample_lines import read_samples
from packer.sources.local import locate
from packer.store.sealed_rows import StoredRows
from reader.format.manifest import PIXELS, read_manifest


def rows_of_other_sources(out: Path, *images: str | os.PathLike[str]) -> list[int]:
    """Decode the current IMAGES; returns the rows of OUT, over all splits, whose pixels come from no source."""
    listed, wrong = scan(list(map(os.fspath, images))), list[int]()
    for split, store in stores_of(out).items():
        manifest, inputs = read_manifest(store), listed[split]
        options: dict[str, Any] = dict(manifest.options)
        decoder = row_decoder(Geometry.recorded(manifest), RowOptions.pick_from(options))
        rows, pixels = StoredRows(store, manifest), (store / PIXELS).read_bytes()
        sources: dict[str, list[bytes]] = {}
        for index, path in enumerate(inputs.paths):
            member = inputs.members[index] if inputs.archives else None
            source = locate(inputs.url or str(inputs.root), path, inputs.archives, member)
            with contextlib.suppress(DecodeError):
                sources.setdefault(path, []).append(source.read()[0])
        for row, sample in enumerate(read_samples(store)):
            begin, size_bytes = rows.extent(row)
            stored = rows.pixels(row, pixels[begin : begin + size_bytes]).tobytes()
            found = sources.get(sample.path, [])
            # a row may be from any member of its name
            exact = [data for data in found if hashlib.sha256(data).hexdigest() == sample.sha256]
            with warnings.catch_warnings(action="ignore"):
                if not any(decoder.row(data).pixels == stored for data in exact or found):
                    wrong.append(row)
    return wrong
