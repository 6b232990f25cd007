"""What samples.jsonl says of many sources, counted for the manifest and the report: ICC profiles, bits that are not used,
and what JPEGs of rows have lost; and which values masks have."""

from __future__ import annotations

import collections

from packer.option_names import Option
from packer.text import counted, some, spans
from reader.format.manifest import Manifest
from reader.format.samples import Sample

_MARKS = ('"icc":"', '"bits_used":', '"squared_error":')


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
    """Counts over the rows of a store, as its lines stream by."""

    def __init__(self) -> None:
        self._profiles: collections.Counter[str] = collections.Counter()
        self._converted = self._dark = self._bits = 0
        # squared error of all rows from lossy compression
        self.squared_error = 0

    def add(self, lines: str) -> None:
        """Count some lines; where a name holds a mark its quotes are escaped, so that it is none."""
        if not any(mark in lines for mark in _MARKS):
            return
        for line in lines.splitlines():
            if any(mark in line for mark in _MARKS):
                made = Sample.decode(line).decoding
                self._profiles.update([made["icc"]] if "icc" in made else [])
                self.squared_error += made.get("squared_error", 0)
                self._converted += "icc_converted" in made
                self._dark += "bits_used" in made
                self._bits = max(self._bits, made.get("bits_used", 0))

    @property
    def profiles(self) -> dict[str, int]:
        """How many rows are of images with an ICC profile other than sRGB, by its name, most first."""
        return dict(sorted(self._profiles.items(), key=lambda item: (-item[1], item[0])))

    def notes(self) -> list[str]:
        """Describe the counts, and what to do about them."""
        return [note for note in (self._of_profiles(), self._of_bits()) if note]

    def _of_profiles(self) -> str:
        count = self._profiles.total()
        if not count:
            return ""
        names = some([f"{name} {number:,}" for name, number in self.profiles.items()])
        what = f"{counted(count, 'image has', 'images have')} another ICC profile than sRGB ({names})"
        if self._converted == count:
            return f"{what} and {'was' if count == 1 else 'were'} converted to sRGB."
        if self._converted:
            return f"{what}; {self._converted:,} were converted to sRGB, the profiles of the others do not fit or are damaged."
        return f"{what}. Their values are stored as they are; {Option('icc', 'convert')} converts them to sRGB."

    def _of_bits(self) -> str:
        if not self._dark:
            return ""
        images = counted(self._dark, "image has", "images have")
        return (
            f"{images} 16 bits of which {self._bits} or fewer are used, so that the rows are dark."
            f" If that is what the camera records, pack with {Option('bit_depth', max(9, self._bits))}."
        )
