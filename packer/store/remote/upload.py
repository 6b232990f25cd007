"""A store that is packed straight to a URL: its blocks as objects, its journal in pieces, and last its manifest.

On the local disk there is a folder as of any pack, whose file of rows has holes where blocks were sent. What is at the URL is
enough to resume: the folder is made again of it. Knows nothing of how rows are made.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import os
import random
import secrets
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from packer.clock import StageClock
from packer.errors import DiskFullError, OptionsError, PackError
from packer.option_names import OVERWRITE, RESUME, Option
from packer.options import WorkerOptions
from packer.pixels.layout import RowLayout
from packer.sources.object_storage import cause, is_refused, reason
from packer.store import journal as journals
from packer.store.blocks import Result
from packer.store.destination import row_names
from packer.store.files import write_at, write_synced
from packer.store.remote.at_url import RECORD, ObjectsAtUrl, Publication, PushRecord, name_in, read_store
from packer.store.row_files import MASKS
from packer.system import BINARY, FULL
from packer.text import system_reason
from reader import system
from reader.format.at_url import BlockObjects, encode_pointer, object_name, read_pointer
from reader.format.blocks import Block
from reader.format.filesystem import error_path
from reader.format.head import GENERATIONS
from reader.format.manifest import MANIFEST, PIXELS, Manifest, read_manifest
from reader.format.tensors import is_of_level
from reader.tuning import tuning

# Below a store's folder at the URL, each named by the byte of the journal where it begins.
PIECES = f"{journals.FOLDER}/journal"
# Of masks that are in a file of their own, a piece a block, each named by its first byte of that file: until that is sent.
_MASK_PIECES = f"{journals.FOLDER}/masks"

_T = TypeVar("_T")


class Upload(journals.CommitLog, Publication):
    """One store on its way to a URL: what is committed is there, rows and journal.

    Args:
        url: as it is shown.
        store: the local folder, in which it is made.
        check: of its lock.
        options: say how many inputs may be rejected where a store is replaced.
    """

    keeps_rows = False
    saving = "upload"

    def __init__(
        self,
        url: str,
        objects: ObjectsAtUrl,
        store: Path,
        check: Callable[[], None],
        options: WorkerOptions,
    ) -> None:
        journals.CommitLog.__init__(self, store, check)
        Publication.__init__(self, objects, url)
        self._options, self._run = options, secrets.token_hex(8)
        self._take(self.found.record.folder if self.found.record else "")
        # of the pixels, and of the journal, what is at the URL
        self._sent_bytes = self._journal_bytes = 0
        # what was committed
        self._manifest = b""
        # where pieces of the journal begin, and last where it ends; and its first line
        self._journal_bounds = [0]
        self._header = b""
        # from bytes of the pixels to those of the masks; None: they have no file
        self._mask_bytes: Callable[[int], int] | None = None
        self._pool = concurrent.futures.ThreadPoolExecutor(tuning().uploads_at_once)

    @property
    def is_started(self) -> bool:
        """Whether a pack to the URL was interrupted, or is in progress: not one that has committed what it made."""
        record = self.found.record
        return record is not None and record.is_pack and record.folder != self.found.folder

    def fetch_journal(self, *, is_all: bool = True) -> None:
        """Bring the journal of the interrupted pack into the folder, and its masks; or the journal's header alone.

        Its file of rows is empty there.
        """
        pieces = self._pieces(PIECES)
        begins = sorted(pieces)[: None if is_all else 1]
        content, bounds = bytearray(), [0]
        reads = [self._pool.submit(self.objects.read, pieces[begin]) for begin in begins]
        for begin, piece in zip(begins, self._done(reads), strict=True):
            if begin == len(content):  # else it is left of a run that was cut off
                content += piece
                bounds.append(len(content))
        self._journal_bounds, self._header = bounds, bytes(content[: content.find(b"\n") + 1])
        for name, data in ((journals.JOURNAL, content), (PIXELS, b"")):
            (self.store / name).parent.mkdir(parents=True, exist_ok=True)
            write_synced(self.store / name, bytes(data))
        if is_all:
            self._fetch_masks()

    def _fetch_masks(self) -> None:
        pieces = self._pieces(_MASK_PIECES)
        if not pieces:
            return
        path = self.store / MASKS
        path.parent.mkdir(parents=True, exist_ok=True)
        begins = sorted(pieces)
        with error_path(path), open(path, "wb") as file:

            def fetch(begin: int, end: int | None) -> None:
                """Write what of a piece is before the next one, which may begin where rows of a changed source came again."""
                piece = memoryview(self.objects.read(pieces[begin]))
                write_at(file.fileno(), piece[: None if end is None else end - begin], begin)

            ends = [*begins[1:], None]
            self._done([self._pool.submit(fetch, *span) for span in zip(begins, ends, strict=True)])

    def fetch_store(self) -> None:
        """Bring all of the finished store into the folder, but its pixels, of which it has only holes.

        What an interrupted pack has left at the URL behind its commit is removed.
        """
        content, found = read_store(self.objects, self.url)
        self.store.mkdir(parents=True, exist_ok=True)
        write_synced(self.store / MANIFEST, content)
        for name, entry in read_manifest(self.store).files.items():
            (self.store / name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(PIXELS):  # those of levels too
                write_synced(self.store / name, b"")
                os.truncate(self.store / name, entry.size_bytes)
            else:
                self.objects.fetch(name_in(found.folder, name), self.store / name)
        if self.found.record is not None:
            self.record = self.found.record
            self.list_leftovers()
            self.clean(self._working())
            self.found = dataclasses.replace(self.found, record=None)

    def announce(self) -> None:
        """Say at the URL that this process packs a store to it, in a folder where nothing is, unless one is resumed."""
        self._take((self.is_started and self._generation) or f"{GENERATIONS}/{secrets.token_hex(8)}")
        super().announce()

    def forget(self) -> None:
        """Start over, not where the interrupted pack stopped."""
        self._take("")

    @property
    def _generation(self) -> str:
        return self.record.folder

    def _take(self, folder: str) -> None:
        self.record = PushRecord("", folder, run=self._run)

    def of_rows(self, layout: RowLayout | None) -> Upload:
        """Say what its rows are before it begins, or is resumed."""
        self._rows = [self.store / name for name in row_names(layout)]
        self._mask_bytes = layout.mask_bytes if layout is not None and layout.has_mask_file else None
        return self

    def begin(self, header: journals.Header, inputs_stop: int = 0) -> None:
        """Begin, and remove what the URL has of another journal."""
        super().begin(header, inputs_stop)
        self._start(0)

    def resume(self, keep_bytes: int, inputs_stop: int, rows_stop: int, size_bytes: int) -> None:
        """Continue; what the URL has behind these goes."""
        super().resume(keep_bytes, inputs_stop, rows_stop, size_bytes)
        self._start(size_bytes)

    def _start(self, size_bytes: int) -> None:
        self.check_record()
        mask_bytes = self._mask_bytes
        path = self.store / journals.JOURNAL
        with error_path(path), open(path, "rb") as file:
            is_same, journal_end = file.readline() == self._header, os.fstat(file.fileno()).st_size
        # of one that was started over, with other options, not even the header stays
        bounds = [bound for bound in self._journal_bounds if bound <= journal_end] if is_same else [0]
        self._sent_bytes, self._journal_bytes = size_bytes, bounds[-1]
        self.remove([name for begin, name in sorted(self._pieces(PIECES).items()) if begin not in bounds[:-1]])
        kept_bytes = 0
        if mask_bytes is not None:
            kept_bytes, masks = mask_bytes(size_bytes), self.store / MASKS
            # of a pack that was interrupted before its first block nothing has come
            masks.parent.mkdir(exist_ok=True)
            masks.touch()
        self.remove([name for begin, name in self._pieces(_MASK_PIECES).items() if begin >= kept_bytes])
        self._put_journal()

    def commit(self, results: list[Result], clock: StageClock | None = None) -> None:
        """Make blocks durable at the URL.

        Raises:
            PackError: they cannot be sent, or another process has started at the URL, or has resumed this pack.
        """
        super().commit(results, clock)
        self._put_journal()

    def _save(self, results: list[Result]) -> None:
        """Send the rows of blocks, each compared with its checksum, and free them in the file of rows."""
        self.check_record()
        path = self.store / PIXELS
        with error_path(path):
            descriptor = os.open(path, os.O_RDWR | BINARY)
        try:
            begin, spans = self._sent_bytes, list[tuple[int, int]]()
            for result in results:
                spans += self._checked_spans(descriptor, begin, result)
                begin += result.size_bytes
            self._done([self._pool.submit(self._put_span, descriptor, *span) for span in spans])
            self._put_masks(self._sent_bytes, begin)
            if begin > self._sent_bytes:  # else all inputs of these blocks were rejected
                with error_path(path):
                    system.punch_hole(descriptor, self._sent_bytes, begin - self._sent_bytes)
            self._sent_bytes = begin
        finally:
            os.close(descriptor)

    def _put_masks(self, begin: int, end: int) -> None:
        """Send the masks of rows, which stay here too; of bytes [begin, end) of the pixels."""
        if self._mask_bytes is None or begin == end:
            return
        path, start = self.store / MASKS, self._mask_bytes(begin)
        with error_path(path), open(path, "rb") as file:
            file.seek(start)
            self.put(f"{_MASK_PIECES}/{start:016d}", file.read(self._mask_bytes(end) - start))

    def _put_journal(self) -> None:
        """Send what the journal has that is not at the URL; what it names must be there."""
        path = self.store / journals.JOURNAL
        with error_path(path), open(path, "rb") as file:
            file.seek(self._journal_bytes)
            piece = file.read()
        if piece:
            self.put(f"{PIECES}/{self._journal_bytes:016d}", piece)
            self._journal_bytes += len(piece)

    def finish(self, manifest: Manifest, blocks: list[Block], content: bytes) -> None:
        """Send all files but the pixels, then the manifest, by which the URL holds the store, and remove what it replaces.

        Raises:
            PackError: something cannot be sent, an object is missing, another has started at the URL meanwhile, or too much was
                rejected where a store would be replaced.
        """
        if self.found.has_store and manifest.rejected > self._options.allowed_rejects(manifest.inputs):
            raise PackError(
                f"{manifest.rejected} of {manifest.inputs} inputs were rejected, more than"
                f" {Option('max_rejects', self._options.max_rejects)}: {self.url} still holds the store that was to be"
                f" replaced. Allow more and continue with {RESUME}."
            )
        self.check_record()
        for name in manifest.files:
            if is_of_level(name) or name == MASKS:
                self._send(name)
            elif name != PIXELS:
                self.put(name, (self.store / name).read_bytes())
        objects = BlockObjects((block.size_bytes for block in blocks), manifest.files[PIXELS].size_bytes)
        for begin, end in itertools.pairwise(objects.bounds):
            if begin >= self._sent_bytes:  # the filling
                self.put(object_name(begin), bytes(end - begin))
        there = self._below(PIXELS)
        if lacking := objects.lacking(there, self._generation):
            gone = f"{self.url}/{name_in(self._generation, object_name(lacking[0][0]))}"
            raise PackError(f"{gone} is gone or was changed: it was sent before. Start over with {OVERWRITE}.")
        # of blocks whose sources changed between two runs
        wanted = {name_in(self._generation, name) for name in objects.names()}
        self.remove([name for name in there if name not in wanted])
        self.put(MANIFEST, content)
        # the manifest that was encoded has none yet
        digest = read_pointer(content, MANIFEST).digest
        self.put_manifest(encode_pointer(digest, self._generation, has_block_objects=True))
        self._manifest = content
        self.clean(self._working())

    def withdraw(self) -> None:
        """Remove all that this pack has put at the URL: it has no row."""
        self.check_record()
        self.remove([*self.objects.below(self._generation), RECORD])

    def reveal(self) -> None:
        """Put the manifest into the folder too, for what compares stores that were just packed: it holds no pixels."""
        if self._manifest:
            write_synced(self.store / MANIFEST, self._manifest)

    def end(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    # -- requests

    def _checked_spans(self, descriptor: int, begin: int, result: Result) -> list[tuple[int, int]]:
        """Compare a block, of which the first byte is begin, with its checksum; returns its objects: first byte, bytes."""
        crc32, end = 0, begin + result.size_bytes
        step = tuning().object_bytes
        spans = [(start, min(step, end - start)) for start in range(begin, end, step)]
        for start, size_bytes in spans:
            crc32 = zlib.crc32(os.pread(descriptor, size_bytes, start), crc32)
        if crc32 != result.crc32:
            raise PackError(
                f"{self.store / PIXELS} does not hold what was written to it: its disk is damaged. Set TMPDIR to a folder on"
                f" another disk, and continue with {RESUME}."
            )
        return spans

    def _put_span(self, descriptor: int, start: int, size_bytes: int) -> None:
        self.put(object_name(start), os.pread(descriptor, size_bytes, start))

    def _working(self) -> list[str]:
        """List what is in the folder of the store until it is finished."""
        return [*self._below(PIECES), *self._below(_MASK_PIECES)]

    def _send(self, name: str) -> None:
        """Send a file of any size."""
        self.request(lambda: self.objects.send(self.store / name, name_in(self._generation, name)))

    def _pieces(self, folder: str) -> dict[int, str]:
        """Return the names of pieces at the URL, by the byte where each begins."""
        names = {name.rpartition("/")[2]: name for name in self._below(folder)}
        # a killed pack to a folder leaves the beginning of a piece, under another name
        return {int(begin): name for begin, name in names.items() if begin.isdigit()}

    def _below(self, folder: str) -> dict[str, int]:
        return self.objects.below(name_in(self._generation, folder))

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects, the last one when all others are gone."""
        self._done([self._pool.submit(self.objects.remove, name) for name in names[:-1]])
        for name in names[-1:]:
            self.objects.remove(name)

    def _done(self, futures: Sequence[Future[_T]]) -> list[_T]:
        """Return the results of requests; when one has failed, after those that are in progress."""
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
            concurrent.futures.wait(futures)

    def request(self, request: Callable[[], _T]) -> _T:
        """Make a request, again where it fails."""
        started = time.monotonic()
        for pause in (*tuning().upload_pause_seconds, None):
            try:
                return request()
            except (FileExistsError, OptionsError):
                raise
            except Exception as e:
                if isinstance(e, OSError) and e.errno in FULL:
                    raise DiskFullError(
                        f"{self.url} cannot be written: {system_reason(e)}. What was sent is kept: free some space and continue"
                        f" with {RESUME}."
                    ) from None
                if pause is None or is_refused(e):
                    seconds = time.monotonic() - started
                    raise PackError(
                        f"{self.url} cannot be written: {reason(e)}. It was tried for {seconds:.0f} s. What was sent is kept:"
                        f" continue with {RESUME}."
                    ) from cause(e)
            time.sleep(pause * random.uniform(0.5, 1))
        raise AssertionError
