"""`pack pull`: a store copied from a URL to a folder, every byte compared with the manifest's checksums.

Only what is missing or differs is copied, of the pixels block by block, so the same command continues after an interruption.
Whatever folder the store has at the URL, here it has plain names and the manifest that was pushed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path

from packer.errors import DiskFullError, OptionsError, PackError
from packer.operations.transfer.copy import CopyReport, OnBytes, Transfer, file_digest
from packer.options import OutputOptions
from packer.store import journal as journals
from packer.store.destination import Folder
from packer.store.disk_space import allocate, check_room
from packer.store.failures import as_pack_error
from packer.store.files import sync_folder, sync_names, write_at
from packer.store.journal import FOLDER
from packer.store.lock import checked
from packer.store.out_folder import check_destination, resolved_out
from packer.store.remote.at_url import name_in, read_store
from packer.store.remote.objects import LocalObjects
from packer.store.state import PULL, unfinished_message
from packer.system import BINARY
from reader.format.at_url import BlockObjects, Pointer
from reader.format.blocks import Block, parse_content
from reader.format.check import check_store
from reader.format.errors import interrupt_behind
from reader.format.filesystem import error_path
from reader.format.manifest import MANIFEST, PIXELS, FileEntry, Manifest
from reader.format.shown import redacted, shown
from reader.tuning import tuning

# Enough to fill a link while one answer is on its way; each holds a block, 8 MB.
_REQUESTS = 8
_AGAIN = "give the same command again"


def pull_store(url: str, out: str | os.PathLike[str], *, progress: OnBytes | None = None) -> CopyReport:
    """Copy the store at a URL to OUT; of an interrupted pull only what is missing or differs, of the pixels block by block.

    Raises:
        OptionsError: OUT holds something else, or is in a store.
        PackError: the URL holds no store or cannot be read; LockedError, DiskFullError.
        StoreError: the store at the URL needs a newer reader, or OUT holds it and is damaged.
    """
    root = resolved_out(out)
    copy = Transfer(url, progress)
    _check_outside(root, copy)
    with copy.explaining("read", root):
        head, found = read_store(copy.objects, copy.url)
    to = Folder(root)
    to.recover()
    state = to.state
    if root in state.finished and not state.is_in_progress:
        return _already_there(copy, root, head)
    _check_out(to, copy.url, head)
    with to.held():
        _check_out(to, copy.url, head)
        try:
            with checked(to.check_same):
                manifest = _pull(copy, to, head, found)
        except DiskFullError:
            if not (to.stage / PIXELS).exists():  # nothing has come: OUT stays free for another
                to.withdraw()
            raise
        _publish(to)
    return copy.report(root, len(manifest.files) + 1)


def _pull(copy: Transfer, to: Folder, head: bytes, found: Pointer) -> Manifest:
    """Bring all files of the store into the stage, the manifest last."""
    stage = to.stage
    # before anything else gets a name here: this says whose it is
    log, header = to.store("").log(), _header(copy.url, head)
    if to.state.header != header:
        log.begin(header)
        log.close()
    manifest, blocks = parse_content(head, Path(f"{copy.url}/{MANIFEST}"))
    sizes = {name: entry.size_bytes for name, entry in manifest.files.items()}
    copy.total_bytes = sum(sizes.values())
    check_room(stage, sizes, again=_AGAIN)
    with copy.explaining("read", stage), _replaced_meanwhile(copy, head):
        for name, entry in manifest.files.items():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            if name == PIXELS:
                to.check_same()
                _pull_pixels(copy, stage / name, found, manifest, blocks, to)
            else:
                _pull_file(copy, stage / name, name_in(found.folder, name), entry, to)
    _remove_others(to, manifest)
    for parent in {(stage / name).parent for name in manifest.files}:
        sync_folder(parent)
    sync_names(stage)
    to.check_same()
    log.finish(manifest, blocks, head)
    check_store(stage)
    return manifest


def _remove_others(to: Folder, manifest: Manifest) -> None:
    """Remove what a pull of another store has left in the stage, before the URL held this one."""
    for folder, _, files in os.walk(to.stage, topdown=False):
        below = Path(folder).relative_to(to.stage)
        if FOLDER not in below.parts:
            for name in files:
                if (below / name).as_posix() not in manifest.files:
                    to.remove(Path(folder, name))
            if below.parts and not os.listdir(folder):
                to.remove(Path(folder))


def _publish(to: Folder) -> None:
    try:
        to.publish()
    except OSError as e:
        raise as_pack_error(e, to.stage, {}, _AGAIN) from None


def _check_outside(root: Path, copy: Transfer) -> None:
    """Refuse an OUT that is in a store: the one that is pulled, or another."""
    check_destination([], root)
    if isinstance(copy.objects, LocalObjects) and os.path.realpath(copy.objects.root) in map(
        str, Path(os.path.realpath(root)).parents
    ):
        raise OptionsError(f"{root} is in {copy.url}, which is pulled. Choose a folder outside it.")


def _already_there(copy: Transfer, root: Path, head: bytes) -> CopyReport:
    """Report a finished pull, or refuse another store."""
    if (root / MANIFEST).read_bytes() != head:
        if isinstance(copy.objects, LocalObjects) and root.samefile(copy.objects.root):
            raise OptionsError(f"{root} is {copy.url} itself, which is pulled. Choose another OUT.")
        raise OptionsError(f"{root} holds another store than {copy.url}. Choose another OUT, or remove it.")
    manifest = check_store(root)
    copy.total_bytes = sum(entry.size_bytes for entry in manifest.files.values())
    copy.count(copy.total_bytes, is_copied=False)
    return copy.report(root, len(manifest.files) + 1)


def _check_out(to: Folder, url: str, head: bytes) -> None:
    """Refuse an OUT that holds anything, or where something but a pull from this URL, or of this store, is in progress."""
    state = to.state
    if state.is_in_progress:
        header, expected = state.header, _header(url, head)
        if header is None or header.command != PULL:
            raise OptionsError(f"Choose another OUT: {unfinished_message(to.stage)}")
        if header.images != expected.images and header.options != expected.options:
            raise OptionsError(
                f"{to.out} holds an unfinished pull of another store (from {shown(redacted(header.images[0]))})."
                " Choose another OUT, or remove it."
            )
    to.check(OutputOptions(resume=True))
    to.replaces = False  # what has just come stays


def _header(url: str, head: bytes) -> journals.Header:
    """Return the header of the journal: a pull that began from one URL continues from another only if that has the same store."""
    digest = f"sha256:{hashlib.sha256(head).hexdigest()}"
    return journals.Header(images=(_public(url),), options={"store": digest}, command=PULL)


def _public(url: str) -> str:
    """Return a URL without the name and password that it may carry."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


@contextlib.contextmanager
def _replaced_meanwhile(copy: Transfer, head: bytes) -> Iterator[None]:
    """Where a file is missing or differs as the store at the URL was replaced, say that instead."""
    try:
        yield
    except (PackError, FileNotFoundError):
        with contextlib.suppress(Exception):  # what is wrong with the URL now is no more than what was wrong before
            if read_store(copy.objects, copy.url)[0] != head:
                head = b""
        if head:
            raise
        raise PackError(
            f"{copy.url} was replaced by another store while it was read. The same command pulls that one."
        ) from None


def _pull_file(copy: Transfer, path: Path, name: str, entry: FileEntry, to: Folder) -> None:
    if path.is_file() and path.stat().st_size == entry.size_bytes and file_digest(path, entry) == entry.digest:
        copy.count(entry.size_bytes, is_copied=False)
        return
    # first, as a file of another size need not end
    if copy.objects.size(name) != entry.size_bytes:
        raise _damaged(copy, name)
    to.check_same()
    copy.objects.fetch(name, path)
    if file_digest(path, entry) != entry.digest:
        raise _damaged(copy, name)
    with error_path(path), open(path, "rb") as file:
        os.fsync(file.fileno())
    copy.count(entry.size_bytes, is_copied=True)


def _pull_pixels(
    copy: Transfer, path: Path, found: Pointer, manifest: Manifest, blocks: list[Block], to: Folder
) -> None:
    """Bring each block whose checksum is not right yet, several at a time; all are on disk when it returns."""
    size_bytes, is_new = manifest.files[PIXELS].size_bytes, not path.exists()
    ends = [*itertools.accumulate((block.size_bytes for block in blocks), initial=0)]
    starts = {block.start: end for block, end in zip(blocks, ends, strict=False)}
    objects = BlockObjects((block.size_bytes for block in blocks), size_bytes) if found.has_block_objects else None

    def read(start: int, stop: int) -> bytes:
        pieces = [(PIXELS, start, stop)] if objects is None else objects.pieces(start, stop)
        return b"".join(copy.objects.read(name_in(found.folder, name), *span) for name, *span in pieces)

    def bring(block: Block) -> tuple[int, bool]:
        """Have a block's rows in the local file; returns how many bytes they are and whether they were copied."""
        spans = _spans(starts[block.start], block.size_bytes)
        if not is_new and _crc32(os.pread(descriptor, stop - start, start) for start, stop in spans) == block.crc32:
            return block.size_bytes, False
        crc32 = 0
        for start, stop in spans:
            data = read(start, stop)
            crc32 = zlib.crc32(data, crc32)
            if len(data) != stop - start or (stop == spans[-1][1] and crc32 != block.crc32):
                raise _damaged(copy, f"{PIXELS}, rows {block.start} to {block.stop - 1},")
            with error_path(path):
                write_at(descriptor, memoryview(data), start)
        return block.size_bytes, True

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o666)
    try:
        with error_path(path):
            # what another store has left behind the last block is in no checksum: it must be zeros
            os.ftruncate(descriptor, min(os.fstat(descriptor).st_size, ends[-1]))
        allocate(path, size_bytes, lambda done: None)
        pool = concurrent.futures.ThreadPoolExecutor(_REQUESTS)
        for count, is_copied in _as_they_end(pool, [pool.submit(bring, block) for block in blocks]):
            to.check_same()
            copy.count(count, is_copied=is_copied)
        with error_path(path):
            os.ftruncate(descriptor, size_bytes)
            os.fsync(descriptor)
    except Exception as e:
        # after an interrupt it stays open: a request that nobody waits for may write to it yet
        if interrupt_behind(e) is None:
            os.close(descriptor)
        raise
    with error_path(path):
        os.close(descriptor)


def _spans(start: int, size_bytes: int) -> list[tuple[int, int]]:
    """Cut a block into what is held at once: a block of ours is one piece, that of a stranger may have any size."""
    stop, step = start + size_bytes, tuning().pulled_piece_bytes
    return [(at, min(at + step, stop)) for at in range(start, stop, step)]


def _crc32(pieces: Iterable[bytes]) -> int:
    crc32 = 0
    for piece in pieces:
        crc32 = zlib.crc32(piece, crc32)
    return crc32


def _as_they_end(
    pool: concurrent.futures.Executor, waiting: list[Future[tuple[int, bool]]]
) -> Iterator[tuple[int, bool]]:
    """Yield results as they come; the first error ends the others, an interrupt without waiting for a server."""
    try:
        for future in concurrent.futures.as_completed(waiting):
            yield future.result()
    except BaseException as e:
        pool.shutdown(wait=interrupt_behind(e) is None, cancel_futures=True)
        raise
    pool.shutdown()


def _damaged(copy: Transfer, name: str) -> PackError:
    return PackError(
        f"{copy.url}/{name} is not what the manifest there says. Remove the file there, then push the store"
        " again, which sends what is missing."
    )
