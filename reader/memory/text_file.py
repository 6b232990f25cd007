"""The texts of a store's rows, read by where they are; of several stores, one after the other. Knows no row.

It pickles to a path. Text is decoded when a batch is asked for it, and so costs a loop nothing that never asks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST, Manifest, read_manifest
from reader.format.tensors import MOST_TEXT_BYTES, TEXTS_FILE
from reader.memory.raw_file import RawFile


class TextFile:
    """The texts of one store, from a file that stays open.

    Raises:
        StoreError: the file is not of the size that the manifest says.
    """

    def __init__(self, path: Path, columns: tuple[str, ...], size_bytes: int, digest: str) -> None:
        self.columns, self._path, self._digest, self.size_bytes = columns, path, digest, size_bytes
        self._file = RawFile(path / TEXTS_FILE, past_cache=False)
        self._file.check_size(self.size_bytes)

    @classmethod
    def of(cls, path: Path, manifest: Manifest) -> TextFile:
        """Open the texts of the store with this manifest."""
        return cls(path, manifest.texts, manifest.files[TEXTS_FILE].size_bytes, manifest.digest)

    def texts(self, extras: TensorDict | None) -> dict[str, Any]:
        """Return each column's texts of a batch, list[str], or str of a single row.

        Args:
            extras: of a batch; of each column int64[B, 2] or int64[2], where its texts are.

        Raises:
            StoreError: one is not in the file, or is not UTF-8.
        """
        spans = {} if extras is None else {name: extras.get(name, None) for name in self.columns}
        return {name: self._texts(name, own) for name, own in spans.items() if own is not None}

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes of the file; raises StoreError where it has none there."""
        if not (0 <= begin <= end <= self.size_bytes and end - begin <= MOST_TEXT_BYTES):
            raise StoreError(
                f"{self._path}: a text has the bytes {begin} to {end} of {TEXTS_FILE}, expected up to {MOST_TEXT_BYTES} of its"
                f" {self.size_bytes}. The store is damaged. Run: pack verify {self._path}"
            )
        data = bytearray(end - begin)
        if data:
            self._file.read(memoryview(data), [(begin, end - begin, 0)])
        return bytes(data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextFile) and (self._path, self._digest) == (other._path, other._digest)

    def __hash__(self) -> int:
        return hash(self._digest)

    def __reduce__(self) -> tuple[object, ...]:
        return _opened, (self._path, self._digest, self.columns, self.size_bytes)

    def __deepcopy__(self, memory: dict[int, object]) -> TextFile:
        # a copied batch reads the same texts
        return self

    def _texts(self, name: str, spans: torch.Tensor) -> list[str] | str:
        if spans.ndim == 1:
            return self._text(name, *spans.tolist())
        return [self._text(name, begin, end) for begin, end in spans.tolist()]

    def _text(self, name: str, begin: int, end: int) -> str:
        try:
            return self.read(begin, end).decode()
        except UnicodeDecodeError:
            raise StoreError(
                f"{self._path}: bytes {begin} to {end} of {TEXTS_FILE}, a {name}, are no UTF-8. Run: pack verify {self._path}"
            ) from None


def _opened(path: Path, digest: str, columns: tuple[str, ...], size_bytes: int) -> TextFile:
    # the folder of a cache, which has no manifest until all pixels are there, is one store's for good
    is_filling = (path / TEXTS_FILE).exists() and not (path / MANIFEST).exists()
    if not is_filling and read_manifest(path).digest != digest:
        raise StoreError(f"{path} was packed again since this batch was read. Open the dataset again.")
    return TextFile(path, columns, size_bytes, digest)
