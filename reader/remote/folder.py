"""The folder of one store in a cache, with the store's own files under their own names.

    CACHE/<16 hex digits of its digest>.store, where the cache has room for all of it:

    _tensordict/pixels.memmap   as large as the store's, sparse: a block that is not there is a hole
    .remote/marks               which blocks are there, a byte each, behind one for the store as a whole
    manifest.json               comes last, when all other files are whole: it is a store of its own then

    CACHE/<16 hex digits of its digest>.blocks of smaller caches, which never is a store:

    _tensordict/pixels.memmap   empty
    blocks/11/17                block 17, in one of 256 folders
    .remote/.17.PID.THREAD      the same before it has its name
    .remote/used                how many bytes of blocks there are, see `eviction.py`

    and in both:

    .remote/manifest.json       the store's
    .remote/lock                locks of bytes, see `Locks`
    .remote/source.json         the URL

So nobody takes it for a local store before it is one. Asks nothing of a network.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from reader import system
from reader.format.at_url import BlockObjects
from reader.format.blocks import read_blocks
from reader.format.errors import StoreError
from reader.format.filesystem import is_allowed, size_text
from reader.format.manifest import MANIFEST, PIXELS, Manifest, read_manifest
from reader.remote.block_files import BlockFiles, BlockPart, StoreFile

INSIDE = ".remote"
SOURCE = "source.json"
MARKS = "marks"
LOCK = "lock"
USED = "used"
BLOCKS = "blocks"
_OF_ALL, _SMALL = ".store", ".blocks"

# A cache of fewer would free what is still to be read.
FEWEST_BLOCKS = 8
# A block is fetched whole. Ours have 8 MB, or one row: of 128 million pixels in 4 channels with a mask, 640 MB.
_MOST_BLOCK_BYTES = 1 << 30


def folder_of(cache: Path, digest: str, *, is_small: bool = False) -> Path:
    """Return the folder of the store with this digest; is_small: that of caches that cannot hold all of it."""
    return cache / (digest.removeprefix("sha256:")[:16] + (_SMALL if is_small else _OF_ALL))


def is_small(root: Path) -> bool:
    """Say whether a store's folder is that of caches that cannot hold all of it."""
    return root.name.endswith(_SMALL)


class CacheFolder:
    """The folder of a store in a cache, with the files that opening reads.

    Raises:
        StoreError: they are not, or they do not fit together.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.inside = root, root / INSIDE
        self.manifest: Manifest = read_manifest(self.inside)
        blocks = read_blocks(self.inside)
        self.crcs = [block.crc32 for block in blocks]
        self.rows = [(block.start, block.stop) for block in blocks]
        # block b is bytes [starts[b], starts[b + 1]) of the pixels
        self.starts = [*itertools.accumulate((block.size_bytes for block in blocks), initial=0)]
        # the blocks add up to the file, and each has some bytes: read_blocks has seen to it
        if self.largest > _MOST_BLOCK_BYTES:
            raise StoreError(
                f"{self.inside / MANIFEST} lists a block of {size_text(self.largest)}, expected {size_text(_MOST_BLOCK_BYTES)} at"
                " most of a store that is read from a URL. Copy it: pack pull URL OUT"
            )
        self.objects = BlockObjects((block.size_bytes for block in blocks), self.manifest.files[PIXELS].size_bytes)
        self.is_small = is_small(root)
        self.table: StoreFile | BlockFiles
        if self.is_small:
            self.table = BlockFiles(root / BLOCKS, self.inside, self.starts)
            return
        try:
            self.table = StoreFile(root / PIXELS, self.inside / MARKS, self.starts)
        except FileNotFoundError as e:
            raise StoreError(f"{e.filename} is missing: the cache is damaged. Open it again.") from None
        # marks are removed first and written last: while they exist, they are those of these pixels
        if not self.table.is_at(self.inside / MARKS):
            raise StoreError(f"cache {root} was damaged, and is being rebuilt. Open it again.")

    @property
    def count(self) -> int:
        """Blocks of the store."""
        return len(self.crcs)

    def room(self, block: int) -> int:
        """Return the bytes of a block, which it takes of the cache."""
        return self.starts[block + 1] - self.starts[block]

    @functools.cached_property
    def largest(self) -> int:
        """The bytes of the largest block."""
        return max(map(self.room, range(self.count)))

    def blocks_of(self, start: int, stop: int) -> range:
        """Return the blocks that hold bytes [start, stop) of the pixels; what is behind the last block is filling."""
        first = bisect.bisect_right(self.starts, start) - 1
        return range(min(first, self.count), min(bisect.bisect_left(self.starts, stop), self.count))

    def parts(self, start: int, size: int, offset: int) -> Iterator[BlockPart]:
        """Cut bytes [start, start + size) of the pixels by blocks; what is behind the last one is left out.

        offset: where in memory the first of them belongs.
        """
        for block in self.blocks_of(start, start + size):
            first, stop = max(start, self.starts[block]), min(start + size, self.starts[block + 1])
            yield BlockPart(block, first, stop - first, offset + first - start)

    def present_bytes(self) -> int:
        """Return the bytes of all blocks that are there; looks at all of them."""
        return sum(self.room(block) for block in range(self.count) if self.table.has(block))


def check_cache_size(folder: CacheFolder, limit: int | None) -> None:
    """Raise StoreError where a cache of this size would free what is still to be read."""
    fewest = min(folder.starts[-1], FEWEST_BLOCKS * folder.largest)
    if limit is not None and limit < fewest:
        raise StoreError(
            f"cache_size is {size_text(limit)}, expected at least {size_text(fewest)}: {FEWEST_BLOCKS} blocks of this store."
        )


def check_cache_folder(cache: Path) -> None:
    """Make the cache folder, and refuse one where its locks and bits would not hold.

    Raises:
        StoreError: it cannot be created or written, or is on a network file system.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise StoreError(f"cache {cache} cannot be made: {e.strerror}. Choose a folder on a local disk.") from None
    if not is_allowed(cache, os.W_OK | os.X_OK):
        raise StoreError(f"cache {cache} cannot be written. Choose a folder on a local disk that this user may write.")
    if (cache / MANIFEST).exists():
        raise StoreError(f"cache {cache} is a store itself. Choose another folder for caches.")
    if (store := next(filter(_is_store, cache.absolute().parents), None)) is not None:
        raise StoreError(f"cache {cache} is in the store {store}. Choose another folder for caches.")
    kind = system.file_system(cache)
    if system.is_network(kind):
        raise StoreError(
            f"cache {cache} is on a network file system ({kind}). Choose a folder on a disk of this machine."
        )


def _is_store(folder: Path) -> bool:
    """Say whether a folder is a store; other programs have files named manifest.json too."""
    with contextlib.suppress(StoreError):
        return (folder / MANIFEST).is_file() and bool(read_manifest(folder))
    return False


def check_rights(root: Path) -> None:
    """Refuse a store's folder that this user may not use, as where it is another user's.

    Not asked for: what others write just now, the folders of `face.py`, which are their user's alone, and files of blocks.

    Raises:
        StoreError: names what may not be used, and its owner.
    """
    inside = root / INSIDE
    changed = root / PIXELS, *(inside / name for name in (MARKS, LOCK, USED))
    modes = dict.fromkeys((root, inside), os.R_OK | os.W_OK | os.X_OK)
    files = [inside / name for name in (MANIFEST, SOURCE, MARKS, LOCK, USED)]
    for folder, folders, names in os.walk(root):
        # INSIDE, and files that have no name yet
        folders[:] = [name for name in folders if not name.startswith(".")]
        modes |= {Path(folder, name): os.R_OK | os.W_OK | os.X_OK for name in folders}
        files += [Path(folder, name) for name in names if not name.startswith(".")]
        if Path(folder) == root / BLOCKS:
            folders.clear()
    modes |= {path: os.R_OK | os.W_OK * (path in changed) for path in files}
    for path, mode in modes.items():
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            if not is_allowed(path, mode):
                raise StoreError(
                    f"cache {path} may not be read and written by this user: user {path.stat().st_uid} owns it. Choose another"
                    f" folder, or have its owner remove {root}"
                )


def known_digest(cache: Path, url: str) -> str | None:
    """Return the digest of the store that was opened from a URL last, where all of it is in the cache; None: there is none."""
    found: list[tuple[int, str]] = []
    for source in cache.glob(f"*/{INSIDE}/{SOURCE}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, StoreError):
            if json.loads(source.read_bytes())["url"] == url:
                found.append((source.stat().st_mtime_ns, read_manifest(source.parent).digest))
    # an older one may be complete where the URL has held another store since
    with contextlib.suppress(StoreError):
        return read_manifest(folder_of(cache, max(found)[1])).digest if found else None
    return None


class Locks:
    """Locks between the processes of a node, which the kernel frees with their process: of changes, and of each block.

    POSIX locks of bytes: they belong to a process, are not inherited by a fork, and go when the process closes the file
    anywhere. So one object for a file and process, and threads of it agree among themselves.
    """

    def __init__(self, path: Path) -> None:
        # not available on Windows
        import fcntl

        self._fcntl = fcntl
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._changes = threading.Lock()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock of what changes the folder as a whole; waits for it."""
        with self._changes:
            self._fcntl.lockf(self._descriptor, self._fcntl.LOCK_EX, 1, 0)
            try:
                yield
            finally:
                self._fcntl.lockf(self._descriptor, self._fcntl.LOCK_UN, 1, 0)

    def take(self, block: int) -> bool:
        """Take a block's lock, unless another process has it."""
        try:
            self._fcntl.lockf(self._descriptor, self._fcntl.LOCK_EX | self._fcntl.LOCK_NB, 1, 1 + block)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def give(self, block: int) -> None:
        """Give a block's lock back."""
        self._fcntl.lockf(self._descriptor, self._fcntl.LOCK_UN, 1, 1 + block)

    def close(self) -> None:
        """Give all locks of this process back."""
        os.close(self._descriptor)
