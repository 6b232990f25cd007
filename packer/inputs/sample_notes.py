"""Sums what JPEGs of rows have lost, for the manifest; and notes which values masks have."""

from __future__ import annotations

from packer.option_names import Option
from packer.sample_lines import Sample
from packer.text import spans
from reader.format.manifest import Manifest

_MARK = '"squared_error":'


def mask_notes(manifest: Manifest) -> list[str]:
    """Say which values the masks of a store have, and where class 1 is taken for what counts for nothing."""
    if not manifest.mask_values:
        return []
    note = f"the masks have the value{'s' * (len(manifest.mask_values) > 1)} {spans(manifest.mask_values)}"
    if manifest.mask_values[-1] != 255 or len(manifest.mask_values) > 2 or manifest.mask_values[0] not in (0, 255):
        return [f"{note}."]
    if "mask_values" in manifest.options:
        return [f"{note}."]
    return [
        f"{note}: 255 is what losses are told to ignore, so that nothing but class 0 is trained. If it is a class, pack with"
        f" {Option('mask_values', '0,255')}, which makes it class 1."
    ]


class SampleNotes:
    """Sums over the rows of a store, as its lines stream by."""

    def __init__(self) -> None:
        # squared error of all rows from lossy compression
        self.squared_error = 0

    def add(self, lines: str) -> None:
        """Add some lines; where a name holds the mark its quotes are escaped, so that it is none."""
        if _MARK in lines:
            for line in lines.splitlines():
                if _MARK in line:
                    self.squared_error += Sample.decode(line).decoding.get("squared_error", 0)
