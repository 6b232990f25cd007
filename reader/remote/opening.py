"""What opening needs, brought into a cache: the manifest, then all small files at once, each compared with its digest."""

from __future__ import annotations

import concurrent.futures
import errno
import hashlib
import io
import json
import logging
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from reader.format.at_url import BlockObjects, read_pointer
from reader.format.blocks import read_blocks
from reader.format.check import metadata_files
from reader.format.errors import MissingObjectError, StoreError, UnreachableError
from reader.format.filesystem import error_path, size_text
from reader.format.head import read_head
from reader.format.manifest import (
    MANIFEST,
    PIXELS,
    REJECTED,
    SAMPLES,
    FileEntry,
    Manifest,
    open_manifest,
    parse_manifest,
    read_manifest,
)
from reader.remote.block_files import StoreFile
from reader.remote.folder import (
    BLOCKS,
    INSIDE,
    LOCK,
    MARKS,
    SOURCE,
    Locks,
    check_cache_folder,
    check_rights,
    folder_of,
    is_small,
    known_digest,
)
from reader.remote.leftovers import remove_abandoned, remove_half_written, sync_names, write_beside
from reader.remote.objects import Objects
from reader.tuning import tuning

_log = logging.getLogger("pixpack")

# Not needed to open: fetched when they are asked for.
ON_DEMAND = (SAMPLES, REJECTED)

_REQUESTS = 8
# Bytes of one request of a file: so many that the time to the first byte does not count.
_PIECE_BYTES = 16 << 20
# Begins every manifest of a store.
_FORMAT, _HEAD_BYTES = b'"format": "pixpack"', 200
# Begins the name of a folder of `face.py`, inside of a cache.
FACE = "face."


class Source:
    """A store at a URL; folder: where below it the files are ("": there), digest: the store's."""

    def __init__(self, url: str) -> None:
        self.objects, self.folder, self.digest, self.head = Objects(url), "", "", b""
        self._has_block_objects = False

    @property
    def url(self) -> str:
        """The URL, as it may be shown."""
        return self.objects.url

    def name(self, file: str) -> str:
        """Return the name of an object, below the URL, that is a file of the store."""
        return f"{self.folder}/{file}" if self.folder else file

    def look(self, budget_seconds: float = math.inf) -> None:
        """Read the manifest, tried for so long; follows the one that names a store in a folder of its own.

        Raises:
            StoreError: there is no store.
        """
        try:
            head = bytes(self.objects.read(MANIFEST, budget_seconds=budget_seconds))
            if _FORMAT not in head[:_HEAD_BYTES]:
                raise StoreError(f"{self.url} is not a store: its {MANIFEST} is another program's. Look at the URL.")
            digest, folder, has_block_objects = read_pointer(head, f"{self.url}/{MANIFEST}")
            if folder:
                head = bytes(self.objects.read(f"{folder}/{MANIFEST}", budget_seconds=budget_seconds))
                if read_head(io.BytesIO(head), f"{self.url}/{folder}/{MANIFEST}").digest != digest:
                    raise StoreError(
                        f"{self.url}/{folder}/{MANIFEST} is another store's than {self.url}/{MANIFEST} says."
                    )
        except MissingObjectError as e:
            raise MissingObjectError(f"{self.url} is not a store that can be read: {e}") from None
        self.digest, self.folder, self.head, self._has_block_objects = digest, folder, head, has_block_objects

    def read_pixels(self, objects: BlockObjects, start: int, stop: int) -> memoryview:
        """Return bytes [start, stop) of the pixels; may be called by several threads.

        objects: where its objects begin, should it have some.

        Raises:
            StoreError: they cannot be had.
        """
        if not self._has_block_objects:
            return self.objects.read(self.name(PIXELS), start, stop)
        parts = [
            self.objects.read(self.name(name), first, behind) for name, first, behind in objects.pieces(start, stop)
        ]
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def prepared(
    url: str, cache: Path, digest: str | None, limit: int | None = None, *, in_small: bool | None = None
) -> tuple[Path, Source]:
    """Bring what opening needs into a cache; returns the store's folder there.

    A store that is whole in the cache is opened without a network, behind a few seconds in which it is asked for.

    Args:
        digest: of the store that is expected.
        limit: bytes of blocks that the cache may hold; None: all.
        in_small: which of the store's two folders it is, see `folder.py`; None: the one that such a cache needs.

    Raises:
        StoreError: there is no such store, it is another one by now, or the cache cannot be written.
    """
    check_cache_folder(cache)
    source, known = Source(url), known_digest(cache, url)
    try:
        source.look(tuning().cached_store_seconds if known else math.inf)
    except UnreachableError:
        if not known:
            raise
        source.digest = known
    if digest is not None and source.digest != digest:
        raise StoreError(f"{url} is another store than it was when this dataset was opened. Open it again.")
    root = folder_of(cache, source.digest)
    try:
        if in_small or (in_small is None and limit is not None and _leaves_no_room(root, source, limit)):
            root = folder_of(cache, source.digest, is_small=True)
        _prepare(root, source)
    except OSError as e:
        hint = "Free some space there" if e.errno in (errno.ENOSPC, errno.EDQUOT) else "Look at the disk"
        raise StoreError(f"cache {e.filename or root} cannot be written: {e.strerror}. {hint}.") from None
    return root, source


def _leaves_no_room(root: Path, source: Source, limit: int) -> bool:
    """Say whether blocks must leave a cache of this size: it cannot hold all, and no other one of the store does."""
    if not source.head or ((root / MANIFEST).exists() and not _damage(root)):
        return False
    manifest, _ = parse_manifest(io.BytesIO(source.head), root / INSIDE / MANIFEST)
    return limit < manifest.files[PIXELS].size_bytes


def fetch_file(root: Path, source: Source, name: str, manifest: Manifest) -> None:
    """Bring a file of the store into its folder, compared with its digest, unless it is there."""
    path, entry = root / name, manifest.files[name]
    if path.exists() and path.stat().st_size == entry.size_bytes:
        return
    write_beside(path, _pieces(source, name, entry))


def _pieces(source: Source, name: str, entry: FileEntry) -> Iterator[memoryview]:
    """Yield a file of the store piece by piece; raises StoreError behind the last one where it is not what the manifest says."""
    digest, remote = hashlib.sha256(), source.name(name)
    for start in range(0, entry.size_bytes, _PIECE_BYTES):
        piece = source.objects.read(remote, start, min(start + _PIECE_BYTES, entry.size_bytes))
        digest.update(piece)
        yield piece
    if f"sha256:{digest.hexdigest()}" != entry.digest:
        raise StoreError(
            f"{source.url}/{remote} is not what its manifest says. It was cut short or replaced: push it again."
        )


def _prepare(root: Path, source: Source) -> None:
    inside = root / INSIDE
    check_rights(root)
    remove_abandoned(inside.glob(f"{FACE}*"))
    remove_half_written(root, without=[BLOCKS])
    if not (inside / MANIFEST).exists() or _damage(root):
        inside.mkdir(parents=True, exist_ok=True)
        locks = Locks(inside / LOCK)
        try:
            with locks.changing():
                if (inside / MANIFEST).exists() and (what := _damage(root)):
                    _drop(root, source, what)
                if not (inside / MANIFEST).exists():
                    _fill(root, source)
        finally:
            # the file is opened again for the locks of blocks: this process may have none of them then
            locks.close()
    found = read_manifest(inside)
    if found.digest != source.digest:
        raise StoreError(
            f"cache {root} is that of another store ({found.digest}). Remove it, or choose another folder."
        )
    write_beside(inside / SOURCE, [json.dumps({"url": source.url}).encode()])


def _damage(root: Path) -> str:
    """Say what is wrong with the files of a store's folder, by the manifest and their sizes; "" where nothing is.

    Raises:
        StoreError: the manifest is whole, and cannot be read here: the folder is of another version of pixpack.
    """
    inside = root / INSIDE
    try:
        with open_manifest(inside) as file:
            read_head(file, inside / MANIFEST)
    except StoreError as e:
        return str(e).rstrip(".")
    manifest, blocks = read_manifest(inside), len(read_blocks(inside))
    later = ON_DEMAND
    sizes = {root / name: entry.size_bytes for name, entry in manifest.files.items() if name not in later}
    sizes |= {root / PIXELS: 0} if is_small(root) else {inside / MARKS: len(StoreFile.no_marks(blocks))}
    for path, expected in sizes.items():
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            return f"{path} is missing"
        if found != expected:
            return f"{path} has {found} bytes, expected {expected}"
    return ""


def _drop(root: Path, source: Source, what: str) -> None:
    """Remove a damaged store's folder, but for its lock, files of blocks, and what others still use of it.

    Raises:
        StoreError: it cannot be rebuilt now.
    """
    if not source.head:
        raise StoreError(f"cache {root} is damaged: {what}; and {source.url} cannot be reached to make it again.")
    _log.warning("cache %s is damaged: %s. It is removed, and rebuilt.", root, what)
    inside = root / INSIDE
    # first: without these it is neither a store nor an unfinished one
    for name in (root / MANIFEST, inside / MANIFEST, inside / MARKS):
        name.unlink(missing_ok=True)
    for name in root.iterdir():
        if name.is_dir() and name not in (inside, root / BLOCKS):
            shutil.rmtree(name)
        elif not name.is_dir():
            name.unlink()


def _fill(root: Path, source: Source) -> None:
    inside = root / INSIDE
    if not source.head:
        raise StoreError(f"cache {root} is not complete, and {source.url} cannot be reached to complete it.")
    # of a copy of the folder without INSIDE: nothing says which of its pixels are there
    (root / MANIFEST).unlink(missing_ok=True)
    # read from a file of its own name, as every manifest is
    beside = inside / "new"
    write_beside(beside / MANIFEST, [source.head])
    manifest, blocks = read_manifest(beside), len(read_blocks(beside))
    _check_sizes(manifest, source)
    for name, content in metadata_files(manifest).items():
        entry = manifest.files[name]
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != entry.digest:
            raise StoreError(f"{source.url}/{name} is not what the manifest implies. Push the store again.")
        write_beside(root / name, [content])
    later = (PIXELS, *ON_DEMAND, *metadata_files(manifest))
    left = [name for name in manifest.files if name not in later]
    _check_room(root, sum(manifest.files[name].size_bytes for name in left))
    with concurrent.futures.ThreadPoolExecutor(_REQUESTS) as pool:
        for done in [pool.submit(fetch_file, root, source, name, manifest) for name in left]:
            done.result()
    pixels = root / PIXELS
    # one that was dropped halfway may still be read by others
    pixels.unlink(missing_ok=True)
    with error_path(pixels), open(pixels, "wb") as file:
        # a file system need not have holes
        file.truncate(0 if is_small(root) else manifest.files[PIXELS].size_bytes)
        os.fsync(file.fileno())
    if not is_small(root):
        # under another name first: an older file of this name may be mapped by others
        write_beside(inside / MARKS, [StoreFile.no_marks(blocks)])
    for folder in (pixels.parent, root, inside, root.parent):
        sync_names(folder)
    # last: it is the commit, and all before it is on the disk
    os.replace(beside / MANIFEST, inside / MANIFEST)


def _check_room(root: Path, need: int) -> None:
    """Refuse files that the disk has no room for before it is full of them."""
    total, _, free = shutil.disk_usage(root)
    # some file systems say nothing of their size, as ramfs
    if total and need > free:
        raise StoreError(
            f"cache {root} needs {size_text(need)} to open the store, {size_text(free)} are free. Free some space there."
        )


def _check_sizes(manifest: Manifest, source: Source) -> None:
    for name, path in manifest.tensor_paths().items():
        need = manifest.count(name) * manifest.tensors[name].row_bytes
        if manifest.files[path].size_bytes != need:
            raise StoreError(
                f"{source.url}/{MANIFEST} lists {path} with {manifest.files[path].size_bytes} bytes, {manifest.rows} rows"
                f" need {need}."
            )
