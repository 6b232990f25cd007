"""`pack push` and `pack pull`: copies the files of a store to a URL and back, unchanged, the manifest last.

A URL holds a store exactly when its manifest is there. The stores of splits change together. A push first removes the
manifests that it replaces, and writes the new ones after all other files of all splits. So two splits at a URL never have
different classes.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.checksums import sha256_file
from packer.errors import OptionsError, PackError
from packer.inputs.splits import is_split, stores_of
from packer.option_names import OVERWRITE
from packer.sources.object_storage import open_url, reason
from packer.store.destination import Folder
from packer.store.disk_space import as_pack_error, check_room
from packer.store.files import sync_folder, write_at, write_atomically
from packer.store.journal import CommitLog, Header, header_of
from packer.store.lock import checked
from packer.store.state import PULL, check_destination, check_finished, resolved_out, unfinished_message
from reader.format.blocks import Block, parse_content
from reader.format.check import check_store
from reader.format.filesystem import error_path
from reader.format.manifest import MANIFEST, MOST_MANIFEST_BYTES, PIXELS, FileEntry, Manifest
from reader.format.shown import redacted
from reader.format.urls import is_url

# Enough to fill a link while one answer is under way; each request holds a block, 8 MB.
_REQUESTS = 8
# The bytes of a request for a file without blocks.
_PIECE_BYTES = 8 << 20
_AGAIN = "give the same command again"

OnBytes = Callable[[int, int], None]


@dataclass
class CopyReport:
    """The report of a push or pull.

    Attributes:
        url: the URL of the store, or of the folder of splits.
        out: the same on this machine.
        store_bytes: size of all files but the manifests.
        copied_bytes: bytes that this run copied.
        kept_bytes: bytes that were there already.
        seconds: from the call to its return.
    """

    url: str
    out: str
    store_bytes: int = 0
    copied_bytes: int = 0
    kept_bytes: int = 0
    seconds: float = 0.0


def push(
    out: str | os.PathLike[str], url: str, *, overwrite: bool = False, progress: OnBytes | None = None
) -> CopyReport:
    """Copy the store OUT, or the stores of its splits, to a URL; each file is checked before it is sent.

    Args:
        out: the folder of a store, or of splits.
        url: s3://bucket/out, gs://, az:// or file://.
        overwrite: replace other stores at url, which are removed first.
        progress: called with the bytes done, and the total.

    Raises:
        OptionsError: url is not a URL, or holds another store.
        StoreError: out is not a finished store.
        PackError: a file of it is damaged, or the storage fails.
    """
    copy = _Copy(url, os.fspath(out), progress)
    stores = {copy.folder(split): store for split, store in stores_of(out).items()}
    for store in stores.values():
        check_finished(store)
    # commit the manifest that the files are checked by, even if the store is replaced meanwhile
    contents = {folder: (store / MANIFEST).read_bytes() for folder, store in stores.items()}
    manifests = {folder: parse_content(contents[folder], store / MANIFEST)[0] for folder, store in stores.items()}
    own = {name.split("/")[0] for manifest in manifests.values() for name in (MANIFEST, *manifest.files)}
    own = own if copy.folder("") in stores else {store.name for store in stores.values()}
    if foreign := [name for name in copy.names() if name not in own]:
        raise OptionsError(f"{copy.report.url} also holds {foreign[0]}. Choose another URL.")
    there = {folder: copy.manifest_at(folder) for folder in stores}
    new = [folder for folder in stores if there[folder] != contents[folder]]
    if any(there[folder] for folder in new) and not overwrite:
        raise OptionsError(
            f"{copy.report.url} holds another store. Replace it with {OVERWRITE}, or choose another URL."
        )
    copy.report.store_bytes = sum(map(_size, manifests.values()))
    copy.count(sum(_size(manifests[folder]) for folder in stores if folder not in new), is_copied=False)
    replaced = [folder for folder in new if there[folder]]
    # a damaged store must not replace another
    for folder in replaced:
        for name, entry in manifests[folder].files.items():
            copy.check(stores[folder] / name, entry)
    for folder in replaced:
        copy.ask(copy.files.rm_file, f"{folder}/{MANIFEST}")
    for folder in new:
        for name, entry in manifests[folder].files.items():
            copy.send(stores[folder] / name, f"{folder}/{name}", entry)
    for folder in new:
        copy.ask(copy.files.pipe_file, f"{folder}/{MANIFEST}", contents[folder])
    return copy.report


def pull(url: str, out: str | os.PathLike[str], *, progress: OnBytes | None = None) -> CopyReport:
    """Copy the store at a URL, or the stores of its splits, to OUT; every byte is compared with its checksum.

    The same call again continues an interrupted pull, for the pixels block by block.

    Args:
        url: the URL of a pushed store.
        out: a folder that does not exist yet, is empty, or holds an unfinished pull of this store.
        progress: called with the bytes done, and the total.

    Raises:
        OptionsError: url is not a URL, or out holds something else.
        PackError: url holds no store, the storage fails, bytes are not those of the manifest; or DiskFullError.
        StoreError: a manifest there is damaged.
    """
    copy = _Copy(url, os.fspath(out), progress)
    contents = copy.manifests()
    parsed = {split: parse_content(content, Path(copy.folder(split), MANIFEST)) for split, content in contents.items()}
    copy.report.store_bytes = sum(_size(manifest) for manifest, _ in parsed.values())
    root = resolved_out(out)
    check_destination([], root)
    to = Folder(root, PULL)
    to.recover()
    if to.finished:
        if any(not _holds(root / split / MANIFEST, content) for split, content in contents.items()):
            raise OptionsError(f"{root} holds another store than {copy.report.url}. Choose another OUT, or remove it.")
        copy.count(copy.report.store_bytes, is_copied=False)
        return copy.report
    digests = {split: manifest.digest for split, (manifest, _) in parsed.items()}
    header = Header(images=(copy.report.url,), options=digests, command=PULL)
    # None: the journal of a pull, or of another command, was interrupted before its first line
    if to.unfinished and header_of(to.stage) not in (None, header):
        raise OptionsError(f"Choose another OUT: {unfinished_message(to.stage)}")
    made = {"", *contents}  # splits share one journal
    to.check(made)
    sizes = {f"{split}/{name}": e.size_bytes for split, (m, _) in parsed.items() for name, e in m.files.items()}
    try:
        with to.begin(made):
            with checked(to.check_same):
                check_room(to.stage, sizes, _AGAIN)
                if header_of(to.stage) is None:  # an existing journal is not rewritten: a kill could damage it
                    log = CommitLog(to.stage, to.check_same)
                    log.begin(header)
                    log.close()
                for split, (manifest, blocks) in parsed.items():
                    copy.pull_store(copy.folder(split), to, split, manifest, blocks)
                    write_atomically(to.stage / split / MANIFEST, contents[split])
                    check_store(to.stage / split)
            to.publish()
    except OSError as e:
        raise as_pack_error(e, to.stage, sizes, _AGAIN) from None
    return copy.report


class _Copy:
    """A copy in progress, counted."""

    def __init__(self, url: str, out: str, progress: OnBytes | None) -> None:
        if not is_url(url):
            raise OptionsError(f"{url} is a path, expected a URL such as s3://bucket/out.")
        self.report, self._progress, self._started = CopyReport(redacted(url), out), progress, time.monotonic()
        self.files, self._root = open_url(url)

    def folder(self, split: str) -> str:
        """Name the folder of a split's store at the URL; "": the folder of all."""
        return f"{self._root}/{split}".rstrip("/")

    def ask(self, request: Callable[..., Any], *arguments: object, **named: object) -> Any:
        """Make a request; returns None if the file or folder does not exist."""
        try:
            return request(*arguments, **named)
        except FileNotFoundError:
            return None
        except Exception as e:  # each file system raises its own errors
            raise PackError(f"{self.report.url} cannot be reached: {reason(e)}. {_AGAIN.capitalize()}.") from None

    def names(self) -> list[str]:
        """List the names in the folder at the URL."""
        self.files.invalidate_cache()
        found = self.ask(self.files.ls, self._root, detail=False) or []
        return sorted(filter(None, (path.removeprefix(self._root).strip("/") for path in found)))

    def manifest_at(self, folder: str) -> bytes:
        """Return the manifest of the store in a folder at the URL, or b""."""
        self._check_file(f"{folder}/{MANIFEST}", MOST_MANIFEST_BYTES)
        return self.ask(self.files.cat_file, f"{folder}/{MANIFEST}") or b""

    def manifests(self) -> dict[str, bytes]:
        """Return the manifest at the URL, or that of each split; raises PackError if one is missing."""
        names = self.names()
        splits = [""] if MANIFEST in names else [*filter(is_split, names)] or [""]
        contents = {split: self.manifest_at(self.folder(split)) for split in splits}
        if lacking := [self.folder(split) for split, content in contents.items() if not content]:
            raise PackError(f"{lacking[0]} holds no complete store: there is no {MANIFEST}. Push it again, then pull.")
        return contents

    def _check_file(self, name: str, most_bytes: int) -> None:
        """Refuse a pipe, which would block, and a file larger than the limit."""
        found = self.ask(self.files.info, name) or {"type": "file"}
        if found["type"] != "file" or (found.get("size") or 0) > most_bytes:
            raise PackError(f"{redacted(name)} is no file of up to {most_bytes} bytes. Push the store again.")

    def check(self, path: Path, entry: FileEntry) -> None:
        """Refuse a file whose checksum differs from the manifest's."""
        if _digest(path, entry) != entry.digest:
            raise PackError(f"{path} is damaged. See what is: pack verify {self.report.out}")

    def send(self, path: Path, to: str, entry: FileEntry) -> None:
        """Send a file, once it is checked."""
        self.check(path, entry)
        self.ask(self.files.put_file, os.fspath(path), to)
        self.count(entry.size_bytes, is_copied=True)

    def pull_store(self, folder: str, to: Folder, split: str, manifest: Manifest, blocks: list[Block]) -> None:
        """Fetch the files of a store and sync them; keep complete files and intact blocks of an interrupted pull."""
        store = to.stage / split
        for name, entry in manifest.files.items():
            path = store / name
            to.check_same()
            path.parent.mkdir(parents=True, exist_ok=True)
            with error_path(path):
                path.touch()
            if name == PIXELS:
                ends = [*itertools.accumulate((block.size_bytes for block in blocks), initial=0)]
                self._pull_file(f"{folder}/{name}", path, entry, ends, [block.crc32 for block in blocks])
            elif _digest(path, entry) == entry.digest:
                self.count(entry.size_bytes, is_copied=False)
            else:
                ends = [*range(0, entry.size_bytes, _PIECE_BYTES), entry.size_bytes]
                self._pull_file(f"{folder}/{name}", path, entry, ends, [])
                if _digest(path, entry) != entry.digest:
                    raise self._damaged(name)
        for parent in {(store / name).parent for name in manifest.files}:
            sync_folder(parent)

    def _pull_file(self, name: str, path: Path, entry: FileEntry, ends: list[int], crcs: list[int]) -> None:
        """Fetch the pieces of a file between these ends, several at a time; crcs: the checksums of the pieces, if known."""
        self._check_file(name, entry.size_bytes)
        with error_path(path), open(path, "r+b", buffering=0) as file, ThreadPoolExecutor(_REQUESTS) as pool:
            # zeros follow the last block
            if path.stat().st_size > ends[-1]:
                file.truncate(ends[-1])

            def crc_of(start: int, stop: int, read: Callable[[int, int], bytes]) -> int:
                """Return the checksum of a range, read in small pieces: a manifest may claim a block of any size."""
                crc32 = 0
                for at in range(start, stop, _PIECE_BYTES):
                    crc32 = zlib.crc32(read(at, min(at + _PIECE_BYTES, stop)), crc32)
                return crc32

            def read_kept(start: int, stop: int) -> bytes:
                """Read bytes that an interrupted pull left."""
                return os.pread(file.fileno(), stop - start, start)

            def fetch(start: int, stop: int) -> bytes:
                """Fetch bytes and write them to the file; returns them."""
                data: bytes = self.ask(self.files.cat_file, name, start=start, end=stop) or b""
                if len(data) != stop - start:
                    raise self._damaged(name)
                write_at(file.fileno(), memoryview(data), start)
                return data

            def piece(start: int, stop: int, crc32: int | None) -> tuple[int, bool]:
                """Fetch one piece unless it is intact; returns its size, and whether it was fetched."""
                if crc32 is not None and crc_of(start, stop, read_kept) == crc32:
                    return stop - start, False
                if crc_of(start, stop, fetch) != crc32 and crc32 is not None:
                    raise self._damaged(name)
                return stop - start, True

            for size_bytes, is_copied in pool.map(piece, ends, ends[1:], crcs or itertools.repeat(None)):
                self.count(size_bytes, is_copied=is_copied)
            file.truncate(entry.size_bytes)
            os.fsync(file.fileno())

    def _damaged(self, name: str) -> PackError:
        return PackError(f"{self.report.url}: {name} does not match the manifest there. Push the store again.")

    def count(self, size_bytes: int, *, is_copied: bool) -> None:
        """Add bytes that are now at the destination, copied or found there, and report them."""
        report = self.report
        report.copied_bytes += size_bytes * is_copied
        report.kept_bytes += size_bytes * (not is_copied)
        report.seconds = time.monotonic() - self._started
        if self._progress is not None:
            self._progress(report.copied_bytes + report.kept_bytes, report.store_bytes)


def _size(manifest: Manifest) -> int:
    return sum(entry.size_bytes for entry in manifest.files.values())


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _digest(path: Path, entry: FileEntry) -> str:
    """Return the digest of a file, of the kind recorded in the manifest."""
    if entry.digest.startswith("sha256:"):
        return sha256_file(path)
    crc32 = 0
    with error_path(path), open(path, "rb") as file:
        while data := file.read(_PIECE_BYTES):
            crc32 = zlib.crc32(data, crc32)
    return f"crc32:{crc32:08x}"
