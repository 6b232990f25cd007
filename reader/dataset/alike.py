"""What stores must have in common to be read as one, and what the one is then: its classes and its manifest.

Reads manifests alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from reader.format.errors import StoreError
from reader.format.head import LEVELS
from reader.format.manifest import PIXELS, FileEntry, Manifest
from reader.format.row_values import has_boxes
from reader.format.shown import shown
from reader.format.tensors import JPEG, TEXTS_FILE, ZSTD, is_of_level
from reader.rows import Rows


def check_alike(stores: Sequence[tuple[str, Manifest]]) -> None:
    """Check that rows of these stores, each with its path, can share a batch.

    Raises:
        StoreError: says which two differ, and in what.
    """
    path, first = stores[0]
    for other_path, other in stores[1:]:
        kinds = [_kind(manifest) for manifest in (other, first)]
        if kinds[0] != kinds[1]:
            raise StoreError(
                f"{other_path} has {kinds[0]} rows, {path} has {kinds[1]} ones, and concat takes one kind. Make them alike: pack"
                " subset OUT NEW --compress, or --no-compress."
            )
        for what, of_first, of_other in _compared(first, other):
            if of_first != of_other:
                raise StoreError(
                    f"{other_path} has {what} {of_other}, {path} has {of_first}: rows of one batch must be alike. Pack one of"
                    " them again as the other was, or make a loader for each."
                )


def joined_classes(
    stores: Sequence[tuple[str, Sequence[str]]], classes: Sequence[str] | None
) -> tuple[tuple[str, ...], list[Rows]]:
    """Join class lists by name: those of the first store, then the further ones of the others.

    Args:
        stores: each path with its classes.
        classes: the list to take instead.

    Returns: the list, and for each store the places of its classes in it.

    Raises:
        StoreError: two names differ in case alone, or a store has a class that the given list has not.
    """
    names: dict[str, int] = {name: n for n, name in enumerate(classes or ())}
    spelled: dict[str, tuple[str, str]] = {}
    for path, own in stores:
        for name in own:
            if classes is not None and name not in names:
                raise StoreError(f"{path} has the class {shown(name)!r}, which is not in classes=.")
            before, where = spelled.setdefault(name.casefold(), (name, path))
            if classes is None and before != name and name not in dict(stores)[where]:
                raise StoreError(
                    f"{where} has a class {shown(before)!r}, {path} a class {shown(name)!r}: are they one? Pack one of them again"
                    " with --classes of the other, or give concat classes=, a list with both."
                )
            names.setdefault(name, len(names))
    return tuple(names), [np.array([names[name] for name in own], np.int64) for _, own in stores]


def joined_manifest(manifests: Sequence[Manifest], classes: tuple[str, ...]) -> Manifest:
    """Return one manifest for several stores: mean and std over all rows, total sizes of files.

    Options and decoders are those of the first.
    """
    first, rows = manifests[0], np.array([m.rows for m in manifests], np.float64)
    share = rows / rows.sum()
    means, stds = np.array([m.mean for m in manifests]), np.array([m.std for m in manifests])
    mean = share @ means
    std = np.sqrt(np.maximum(share @ (stds**2 + means**2) - mean**2, 0))
    size_bytes = sum(m.files[PIXELS].size_bytes for m in manifests)
    frames = [m.compression for m in manifests if m.compression]
    has_content = any(m.has_content for m in manifests)
    holder = next((m for m in manifests if m.has_content), first)
    digest = hashlib.sha256(" ".join([*(m.digest for m in manifests), *classes]).encode(errors="surrogatepass"))
    return dataclasses.replace(
        first,
        rows=int(rows.sum()),
        height=max(m.height for m in manifests),
        width=max(m.width for m in manifests),
        target_count=len(classes) if first.target_kind == "multi-hot" and classes else first.target_count,
        has_content=has_content,
        classes=classes,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        inputs=sum(m.inputs for m in manifests),
        rejected=sum(m.rejected for m in manifests),
        # those of its stores are read by their own names
        levels=(),
        compression=None if not frames else frames[0].joined(frames[1:]),
        reader_features=tuple(name for name in first.reader_features if name != LEVELS),
        files={
            **{name: entry for name, entry in holder.files.items() if not is_of_level(name)},
            PIXELS: FileEntry(size_bytes, ""),
            **_texts_entry(manifests),
        },
        digest=f"sha256:{digest.hexdigest()}",
    )


def _texts_entry(manifests: Sequence[Manifest]) -> dict[str, FileEntry]:
    """Return the entry of the texts, if rows have any."""
    if not manifests[0].texts:
        return {}
    return {TEXTS_FILE: FileEntry(sum(m.files[TEXTS_FILE].size_bytes for m in manifests), "")}


def _kind(manifest: Manifest) -> str:
    """Name how rows are kept; JPEGs of any quality are read alike."""
    return {"": "raw", ZSTD: "compressed", JPEG: "JPEG"}[manifest.coding.codec]


def names_columns(manifest: Manifest) -> bool:
    """Say whether the classes are names of columns of numbers, not of what rows or boxes show."""
    return manifest.target_kind == "regression" and not has_boxes(manifest)


def _compared(first: Manifest, other: Manifest) -> list[tuple[str, str, str]]:
    """List what must be the same, in words: what, of the first, of the other."""

    def described(manifest: Manifest) -> list[str]:
        m = manifest
        count = "" if m.target_count is None or (m.target_kind == "multi-hot" and m.classes) else f" x {m.target_count}"
        extras = ", ".join(f"{name} {spec.dtype}{list(spec.row_shape)}" for name, spec in sorted(m.extras.items()))
        further = {name: (t.kind, t.classes) for name, t in m.further_targets.items()}
        masks = "masks behind its pixels" if m.has_own_masks else "no masks behind its pixels"
        # no class that a row has or not, but a place in each row
        columns = str(list(m.classes)) if names_columns(m) else ""
        texts = ", ".join(m.texts) or "none"
        return [
            m.kind.alike_text(m.sides),
            f"of kind {m.target_kind}{count}",
            extras or "none",
            str(further),
            masks,
            columns,
            texts,
        ]

    names = ("rows", "targets", "extras", "further targets", "rows with", "target columns", "text columns")
    return list(zip(names, described(first), described(other), strict=True))
