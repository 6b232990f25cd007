"""Read every byte of a store and compare it with the manifest: structure, digests, then each block's checksum.

Changes nothing. Imports numpy and the decoder only to decode rows again.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from reader.manifest import (
    MANIFEST,
    PIXELS,
    SAMPLES,
    Block,
    Manifest,
    StoreError,
    check_store,
    crc32_combine,
    read_blocks,
    read_json_lines,
    sha256_file,
)

_TARGETS = "_tensordict/targets.memmap"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: which file, which rows ([start, stop), None: not known), and what."""

    file: str
    rows: tuple[int, int] | None
    what: str

    def __str__(self) -> str:
        where = "" if self.rows is None else f", {_named_rows(self.rows)}"
        return f"{self.file}{where}: {self.what}"


@dataclass(frozen=True)
class VerifyReport:
    """What verify found; the store is whole where problems is empty."""

    out: str
    rows: int
    checked_bytes: int
    redecoded: int
    problems: list[Problem] = field(default_factory=list)


def verify(
    out: str | os.PathLike[str],
    *,
    redecode: int = 0,
    images: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Check a store to the last bit.

    Args:
        redecode: how many rows, evenly spread, to decode again from their sources.
        images: where those sources lie; needed with redecode.
        progress: called with bytes done and bytes in all.

    Raises:
        StoreError: OUT is no store, or its structure is already wrong (a file missing, too short, or too long).
    """
    root = Path(out)
    manifest = check_store(root)
    blocks = read_blocks(root)
    total = sum(entry.size_bytes for entry in manifest.files.values())
    problems = list(_small_files(root, manifest))
    done = total - manifest.files[PIXELS].size_bytes
    for problem, size_bytes in _blocks(root, manifest, blocks):
        done += size_bytes
        problems += [problem] if problem else []
        if progress is not None:
            progress(done, total)
    combined = 0
    for block in blocks:
        combined = crc32_combine(combined, block.crc32, (block.stop - block.start) * manifest.row_bytes)
    if manifest.files[PIXELS].digest != f"crc32:{combined:08x}":
        problems.append(Problem(MANIFEST, None, "the digest of the pixels is not that of their blocks"))
    if redecode:
        if images is None:
            raise ValueError("decoding rows again needs the folder they came from: give --images IMAGES.")
        problems += _redecode(root, manifest, Path(images), redecode)
    return VerifyReport(str(root), manifest.rows, done, min(redecode, manifest.rows), problems)


def _small_files(root: Path, manifest: Manifest) -> Iterator[Problem]:
    """Compare the sha256 of all files but the pixels; damaged targets are traced to rows by samples.jsonl."""
    damaged = [
        name for name, entry in manifest.files.items() if name != PIXELS and sha256_file(root / name) != entry.digest
    ]
    for name in damaged:
        if name == _TARGETS and manifest.target_kind == "class" and SAMPLES not in damaged:
            for row in _wrong_targets(root):
                yield Problem(name, (row, row + 1), "the target is not the one in samples.jsonl")
        else:
            yield Problem(name, None, "its content is not what was packed")


def _wrong_targets(root: Path) -> Iterator[int]:
    with open(root / _TARGETS, "rb") as file:
        for row, sample in enumerate(read_json_lines(root / SAMPLES)):
            if int.from_bytes(file.read(8), "little", signed=True) != sample["target"]:
                yield row


def _blocks(root: Path, manifest: Manifest, blocks: list[Block]) -> Iterator[tuple[Problem | None, int]]:
    """Yield for each block a problem or None, and its bytes."""
    with open(root / PIXELS, "rb") as file:
        for block in blocks:
            size_bytes = (block.stop - block.start) * manifest.row_bytes
            data = file.read(size_bytes)
            rows = (block.start, block.stop)
            if len(data) < size_bytes:
                yield Problem(PIXELS, rows, "the file became shorter while it was read"), len(data)
                return
            wrong = zlib.crc32(data) != block.crc32
            yield (Problem(PIXELS, rows, "its pixels are not what was packed") if wrong else None), size_bytes


def _redecode(root: Path, manifest: Manifest, images: Path, count: int) -> Iterator[Problem]:
    """Decode rows again and compare them byte for byte."""
    from packer.decode import DecodeError, Decoder, decoder_versions
    from packer.fit import Geometry
    from packer.worker import read_source

    if manifest.decoders != decoder_versions():
        raise StoreError(
            f"{root} was packed by {json.dumps(manifest.decoders)}, here is {json.dumps(decoder_versions())}:"
            " pixels may differ. Use the same versions to decode rows again."
        )
    options: dict[str, Any] = dict(manifest.options)
    shape = (manifest.height, manifest.width)
    geometry = Geometry(*shape, *(options[name] for name in ("fit", "crop_fraction", "resample")))
    decoder = Decoder(
        geometry,
        channels=options["channels"],
        exact=options["exact"],
        strict=options["strict"],
        max_pixels=options["max_pixels"],
    )
    wanted = {i * manifest.rows // count for i in range(count)} if count < manifest.rows else set(range(manifest.rows))
    with open(root / PIXELS, "rb") as file:
        for row, sample in islice(enumerate(read_json_lines(root / SAMPLES)), max(wanted) + 1):
            if row not in wanted:
                continue
            file.seek(row * manifest.row_bytes)
            stored = file.read(manifest.row_bytes)
            try:
                # a store made to harm may name any path
                if os.path.isabs(sample["path"]) or ".." in sample["path"].split("/"):
                    raise DecodeError("its path leads out of --images")
                data, _ = read_source(os.path.join(images, sample["path"]))
                same = decoder.row(data).pixels == stored
            except DecodeError as e:
                yield Problem(PIXELS, (row, row + 1), f"{sample['path']} cannot be decoded again: {e}")
                continue
            if not same:
                yield Problem(PIXELS, (row, row + 1), f"decoding {sample['path']} again gives other pixels")


def _named_rows(rows: tuple[int, int]) -> str:
    start, stop = rows
    return f"row {start}" if stop == start + 1 else f"rows {start} to {stop - 1}"
