"""From a complete journal to a store: write every small file, sync, and commit by the manifest, last.

Reads the journal as a stream, so memory does not grow with the number of rows. Targets and extras come from the listed
inputs, and the journal says which inputs became rows. Every step can be repeated after an interruption, and gives the same
bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packer.checksums import sha256_file
from packer.errors import JournalError
from packer.inputs.samples import Inputs
from packer.option_names import Option
from packer.pixels.layout import RowLayout
from packer.progress import CountedBytes, notify
from packer.report import Progress
from packer.store import journal as journals
from packer.store.destination import StagedStore
from packer.store.files import sync_folder, write_atomically, write_synced
from packer.store.manifest_file import encode_manifest
from packer.store.parts import SOURCES, TOTALS
from packer.store.row_files import EXTRAS, MASKS, TARGETS, TENSORS, RowFiles, channel_statistics, extra_specs
from packer.store.tasks import Result
from reader.format.blocks import Block, parse_content
from reader.format.check import metadata_files
from reader.format.filesystem import error_path
from reader.format.manifest import MANIFEST, PIXELS, SAMPLES, FileEntry, JpegRows, Manifest, TensorSpec

# Bytes of an input's lines without its path: as for thumbnails, and room for long numbers, EXIF and warnings.
_JOURNAL_BYTES, _SAMPLE_BYTES = 300, 200
# The manifest, each meta.json and the lock: a disk allocates full pages.
_FEW_FILES_BYTES = 32 << 10


def seal(
    staged: StagedStore,
    header: journals.Header,
    layout: RowLayout,
    inputs: Inputs,
    blocks: Iterable[Result] | None = None,
) -> Manifest | None:
    """Turn committed blocks, of its journal or given, into a finished store; returns None if they hold no row.

    The manifest is written after everything it names is synced; no journal is touched. Notes on masks are added to the notes
    of the inputs.
    """
    staged.to.check_same()
    out = staged.folder
    if extra_specs(inputs, layout):
        (out / EXTRAS).mkdir(exist_ok=True)
    written, files = _write_row_files(out, header, layout, inputs, blocks)
    if not written.rows:
        return None
    staged.to.check_same()
    set_size(out / PIXELS, written.pixel_bytes, files[PIXELS].size_bytes)
    if layout.has_mask_file:
        size_bytes = layout.mask_bytes(written.pixel_bytes)
        set_size(out / MASKS, size_bytes, size_bytes)
        files[MASKS] = FileEntry(size_bytes, sha256_file(out / MASKS, CountedBytes(size_bytes)))
    manifest = commit_manifest(staged, _fields(written, header, layout, inputs), files, written.blocks)
    if {*manifest.mask_values} in ({255}, {0, 255}) and "mask_values" not in manifest.options:
        inputs.notes.append(
            f"{header.split and f'{header.split}: '}the masks have no class but 0, as losses ignore 255. If 255 is a class, pack"
            f" with {Option('mask_values', '0,255')}, which makes it class 1."
        )
    return manifest


def _write_row_files(
    out: Path, header: journals.Header, layout: RowLayout, inputs: Inputs, blocks: Iterable[Result] | None
) -> tuple[RowFiles, dict[str, FileEntry]]:
    """Write and sync the per-row files; returns them and their entries, the pixels' among them.

    Raises:
        JournalError: a block is missing.
    """
    written = RowFiles(out, layout, inputs)
    try:
        for result in (result for result, _ in journals.read_blocks(out)) if blocks is None else blocks:
            written.add(result)
            if blocks is None:
                notify(Progress("seal", written.inputs, header.inputs, written.rejected, split=header.split))
        files = written.close()
    finally:
        written.release()
    if written.inputs != header.inputs:
        raise JournalError(
            f"{out / journals.JOURNAL} holds {written.inputs} of {header.inputs} inputs: it was damaged."
            " Give the same command again."
        )
    return written, files


def expected_sizes(layout: RowLayout, inputs: Inputs) -> dict[str, int]:
    """Return an upper bound for each file of a pack, by its name below OUT; text files are estimated."""
    count, rows = len(inputs), len(inputs) - len(inputs.refused)
    path_bytes = inputs.paths.escaped_bytes()
    class_bytes = sum(map(len, inputs.classes)) + 4 * len(inputs.classes)
    sizes = {
        PIXELS: 0 if layout.size is None else layout.expected_bytes(layout.size_bytes(rows)),
        journals.JOURNAL: count * _JOURNAL_BYTES + path_bytes + class_bytes,
        SAMPLES: count * _SAMPLE_BYTES + path_bytes,
        MANIFEST: class_bytes + _FEW_FILES_BYTES,
        TARGETS: rows * TensorSpec(inputs.targets.dtype, inputs.targets.row_shape).row_bytes,
    }
    sizes |= {f"{TENSORS}/{name}.memmap": row_bytes * rows for name, row_bytes in layout.tensor_bytes.items()}
    return sizes | {
        f"{EXTRAS}/{name}.memmap": rows * spec.row_bytes for name, spec in extra_specs(inputs, layout).items()
    }


def commit_manifest(
    staged: StagedStore, fields: dict[str, Any], files: dict[str, FileEntry], blocks: Iterable[Block]
) -> Manifest:
    """Write the metadata files, sync all names, then write the manifest, which makes the store.

    Args:
        files: the entries of all other files, which are synced.
    """
    # they depend on the shapes alone
    contents, out = metadata_files(Manifest(**fields, files=files)), staged.folder
    entries = {name: FileEntry(len(one), f"sha256:{hashlib.sha256(one).hexdigest()}") for name, one in contents.items()}
    manifest = Manifest(**fields, files=files | entries)
    staged.to.check_same()
    for name, one in contents.items():
        write_synced(out / name, one)
    for folder in [out / EXTRAS] * bool(manifest.extras) + [out / "_tensordict", out]:
        sync_folder(folder)
    blocks = list(blocks)
    content = encode_manifest(manifest, blocks)
    # as a reader does, before it makes a store that nobody can open
    parse_content(content, out / MANIFEST)
    staged.to.check_same()
    write_atomically(out / MANIFEST, content)
    return manifest


def _fields(written: RowFiles, header: journals.Header, layout: RowLayout, inputs: Inputs) -> dict[str, object]:
    # for a part: the sums that sealing adds up
    totals = {name: getattr(written, name) for name in ("pixel_count", "sums", "square_sums")}
    totals["max_rejects"] = header.max_rejects
    mean, std = channel_statistics(written.pixel_count, written.sums, written.square_sums)
    return {
        "rows": written.rows,
        "height": written.height,
        "width": written.width,
        "channels": layout.channel_count,
        "target_kind": inputs.target_kind,
        "target_count": inputs.targets.count,
        "has_content": layout.geometry.has_content,
        "extras": extra_specs(inputs, layout),
        "classes": inputs.classes or written.numbered_classes(),
        "mean": tuple(mean),
        "std": tuple(std),
        "inputs": written.inputs,
        "rejected": written.rejected,
        "options": header.options,
        "decoders": header.decoders,
        "labels": {
            **header.labels,
            **({SOURCES: f"{written.sources:064x}"} if len(inputs) else {}),
            **({TOTALS: totals} if header.max_rejects else {}),
        },
        "mask_values": written.mask_values,
        "has_own_sizes": layout.geometry.has_own_sizes,
        "has_own_masks": layout.has_masks and not layout.has_mask_file,
        "jpeg": JpegRows(layout.quality, written.unpacked_bytes, written.squared_error) if layout.quality else None,
    }


def set_size(path: Path, used_bytes: int, size_bytes: int) -> None:
    """Truncate a file to the bytes of its rows, extend it with zeros to its final size, and sync it."""
    with error_path(path), open(path, "r+b") as file:
        file.truncate(used_bytes)
        file.truncate(size_bytes)
        os.fsync(file.fileno())
