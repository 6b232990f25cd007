"""Decode rows of a store again from their sources, to see whether they still give the same bytes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import tarfile
import time
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packer.errors import DecodeError
from packer.inputs.archives import list_members
from packer.options import RowOptions
from packer.pixels.geometry import Geometry
from packer.pixels.requantize import pixel_versions, row_decoder
from packer.sources import roots
from packer.sources.base import Readable
from packer.sources.local import LocalSource
from packer.sources.members import Member
from packer.sources.remote import RemoteSource
from packer.sources.roots import NOWHERE, Roots
from packer.sources.tar_headers import SENSELESS
from packer.store.sealed.ragged_rows import stored_rows
from packer.text import difference
from reader.format.errors import StoreError
from reader.format.manifest import PIXELS, Manifest
from reader.format.samples import Sample, read_samples
from reader.format.tensors import pixel_decoders
from reader.format.urls import is_url
from reader.tuning import tuning

NO_MEMBER = "has no such member"


def redecode_rows(root: Path, manifest: Manifest, images: str, count: int) -> Iterator[tuple[int, str]]:
    """Decode count rows, evenly spread, again and compare them byte for byte; yields what is wrong, by row.

    Args:
        images: the folder or URL that the paths in samples.jsonl start from, or the tar or zip that was packed.

    Raises:
        StoreError: other decoders than those of the pack are installed, whose pixels may differ.
    """
    options: dict[str, Any] = dict(manifest.options)
    # what its rows were kept as before
    options |= {"compress": options["lossy"]} if "lossy" in options else {}
    here = pixel_versions(options)
    before, now = pixel_decoders(manifest.decoders), pixel_decoders(here)
    if before != now:
        raise StoreError(
            f"{root} was packed by other decoders{difference(before, now)}: pixels may differ. Use the same versions to decode"
            " rows again."
        )
    wanted = {i * manifest.rows // count for i in range(count)} if count < manifest.rows else set(range(manifest.rows))
    samples = {row: sample for row, sample in enumerate(read_samples(root)) if row in wanted}
    # an image accepted under a larger limit than the recorded one, before a resume or a merge, is not a bomb either
    max_pixels = max([options["max_pixels"], *(one.width * one.height for one in samples.values())])
    decoder = row_decoder(Geometry.recorded(manifest), RowOptions.among(options | {"max_pixels": max_pixels}))
    finder = Finder(images)
    rows = stored_rows(root, manifest)
    with open(root / PIXELS, "rb") as file:
        for row, sample in samples.items():
            try:
                begin, size_bytes = rows.extent(row)
                file.seek(begin)
                stored = rows.pixels(row, file.read(size_bytes))
                read = functools.partial(finder.source(sample).read, max_pixels=max_pixels)
                data, _ = roots.retried(read, tuning().source_pause_seconds, time.sleep)
                with warnings.catch_warnings():
                    # Pillow's, which the pack has recorded
                    warnings.simplefilter("ignore")
                    same = decoder.row(data).pixels == stored
            except DecodeError as e:
                yield row, f"{sample.path} cannot be decoded again: {e}"
                continue
            except StoreError:
                yield row, f"its pixels cannot be compared with {sample.path}: the row is damaged"
                continue
            if not same:
                yield row, f"decoding {sample.path} again gives other pixels"


class Finder:
    """Finds sources by the paths of samples.jsonl; lists each archive on their way once."""

    def __init__(self, images: str) -> None:
        self._url = images.rstrip("/") if is_url(images) else ""
        self._roots = NOWHERE if self._url else Roots.of([images])
        # the packed tar or zip may be named itself
        self._folder = Path(images).parent if os.path.isfile(images) else Path(images)
        self._members: dict[Path, dict[str, list[Member]]] = {}

    @property
    def is_remote(self) -> bool:
        """Whether sources are objects, not files."""
        return bool(self._url)

    def source(self, sample: Sample) -> Readable:
        """Return the source of a row; raises DecodeError where a path leads elsewhere or into nothing."""
        path = sample.path
        # a store made to harm may name any path
        if os.path.isabs(path) or ".." in path.split("/"):
            raise DecodeError("its path leads out of --images")
        if self._url:
            return RemoteSource(self._url, path)
        parts = path.split("/")
        for depth in range(1, len(parts)):
            archive = self._folder.joinpath(*parts[:depth])
            if archive.is_file():
                return self._packed(self._member_sources(archive, "/".join(parts[depth:])), sample)
        return LocalSource(os.path.join(self._folder, path), roots=self._roots)

    def _member_sources(self, archive: Path, name: str) -> list[LocalSource]:
        if archive not in self._members:
            try:
                self._members[archive] = list_members(archive)
            except (OSError, tarfile.TarError, zipfile.BadZipFile, *SENSELESS) as e:
                if isinstance(e, OSError):
                    self._roots.check(str(archive), e)
                raise DecodeError(f"{archive.name} cannot be read: {e}") from e
        if name not in self._members[archive]:
            raise DecodeError(f"{archive.name} {NO_MEMBER}")
        return [LocalSource(str(archive), member, roots=self._roots) for member in self._members[archive][name]]

    @staticmethod
    def _packed(same: list[LocalSource], sample: Sample) -> LocalSource:
        """Return which of the members of one name a row was made of, the last where none has its bytes."""
        for source in same[:-1]:
            if source.member is not None and source.member.size_bytes == sample.size_bytes:
                # a damaged member became no row
                with contextlib.suppress(DecodeError):
                    data, _ = source.read(max_pixels=sys.maxsize)
                    if hashlib.sha256(data).hexdigest() == sample.sha256:
                        return source
        return same[-1]
