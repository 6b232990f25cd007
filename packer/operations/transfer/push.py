"""`pack push`: a store copied to object storage or another folder, every file compared with its checksum before it is sent.

The URL is listed before anything is written, and only what differs is sent, so the same command is right in every
state. As on a disk, the manifest goes last and is the commit: until then a store that is replaced stays complete. Knows nothing
of how a store is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from packer.errors import OptionsError, PackError
from packer.operations.transfer.copy import CopyReport, OnBytes, Transfer, file_digest
from packer.option_names import OVERWRITE
from packer.store.lock import checked
from packer.store.remote.at_url import Publication, Pushed, PushRecord, name_in
from packer.store.remote.objects import LocalObjects
from packer.store.state import check_finished, enclosing_store
from reader.format.at_url import BlockObjects, encode_pointer, generation_of, object_name, read_pointer
from reader.format.blocks import read_blocks
from reader.format.errors import StoreError
from reader.format.filesystem import error_path
from reader.format.manifest import MANIFEST, PIXELS, FileEntry, Manifest
from reader.format.shown import shown


def push_store(
    out: str | os.PathLike[str], url: str, *, overwrite: bool = False, progress: OnBytes | None = None
) -> CopyReport:
    """Copy the store OUT to a URL, such as s3://bucket/store; of an interrupted push only what is missing there.

    Args:
        overwrite: replace another store that is there, or an unfinished push of one. It stays complete until the new one is.

    Raises:
        StoreError: OUT is not a store, or a file is not what its manifest says.
        OptionsError: the URL holds something else, or is OUT itself or in it.
        PackError: the URL cannot be written, or another push has come in between; DiskFullError.
    """
    root = Path(out)
    copy = Transfer(url, progress)
    with copy.explaining("written", root):
        found = _found(root, copy, overwrite)
        found.run()
    return copy.report(root, len(found.manifest.files) + 1)


def check_push(out: str | os.PathLike[str], url: str, overwrite: bool) -> None:
    """Raise what `push` would raise before it writes anything."""
    copy = Transfer(url, None)
    with copy.explaining("written", Path(out)):
        _found(Path(out), copy, overwrite)


def announce(out: str | os.PathLike[str], url: str, overwrite: bool) -> None:
    """Announce at a URL that the store OUT will be pushed there; raises as `push`, which continues from there."""
    copy = Transfer(url, None)
    with copy.explaining("written", Path(out)):
        found = _found(Path(out), copy, overwrite)
        if not found.is_there and not found.is_started:
            found.announce()


def _found(root: Path, copy: Transfer, overwrite: bool) -> _Push:
    """Look at a store and at the URL that it is to be pushed to; refuse what is in the way."""
    manifest, content = check_finished(root), (root / MANIFEST).read_bytes()
    if read_pointer(content, MANIFEST).digest != manifest.digest:
        raise _replaced(root, copy.url)
    copy.total_bytes = sum(entry.size_bytes for entry in manifest.files.values())
    _check_not_itself(root, copy)
    push = _Push(copy, root, manifest, content, overwrite)
    _check_url(copy.url, manifest, push.found, overwrite)
    return push


class _Push(Publication):
    """A push to a URL where it may be: nothing, this store, the beginning of it, or what --overwrite replaces.

    content: the bytes of the manifest, read once: they are what is committed.
    """

    def __init__(self, copy: Transfer, root: Path, manifest: Manifest, content: bytes, overwrite: bool) -> None:
        super().__init__(copy.objects, copy.url)
        self._copy, self._root, self.manifest, self._content, self._overwrite = copy, root, manifest, content, overwrite
        self.record = PushRecord(manifest.digest, self._folder())

    @property
    def is_there(self) -> bool:
        """Whether the URL holds this store already; a file may be missing all the same."""
        return self.found.store == self.manifest.digest

    @property
    def is_started(self) -> bool:
        """Whether the push that the URL's record is of is one of this store."""
        return self.found.record is not None and self.found.record.store == self.manifest.digest

    def _folder(self) -> str:
        """Return where the files go, below the URL; "": plain names, which belong to the first push alone."""
        if self.is_there:
            return self.found.folder
        record = self.found.record
        # plain names may be those of the store that is there, or be written by a push that does not know of this one
        is_plain = not self.found.has_store and (record is None or (self.is_started and not record.folder))
        return "" if is_plain else generation_of(self.manifest.digest)

    def run(self) -> None:
        """Send what is missing, commit, and remove what the store has replaced."""
        sent = self._sent_before()
        self.record = dataclasses.replace(self.record, files=sent)
        if not self.is_there or self._overwrite:
            self.announce()
        else:
            self.list_leftovers()
        with checked(self._check_same):
            self._send(sent)
        self._check_same()
        self._commit()
        self.clean()

    def _sent_before(self) -> dict[str, str]:
        """Return the digests of the files that are in the folder for certain, each complete when it was sent."""
        digests = {name: entry.digest for name, entry in self.manifest.files.items()}
        if self.is_there:
            return digests
        record = self.found.record
        sent = record.files if record and self.is_started and record.folder == self.record.folder else {}
        return {name: digest for name, digest in sent.items() if digests.get(name) == digest}

    def _send(self, sent: dict[str, str]) -> None:
        objects = self.objects
        for name, entry in self.manifest.files.items():
            target = name_in(self.record.folder, name)
            if name == PIXELS and self.is_there and self.found.has_block_objects:
                self._send_block_objects(entry)
                continue
            if sent.get(name) == entry.digest and objects.size(target) == entry.size_bytes:
                self._copy.count(entry.size_bytes, is_copied=False)
                continue
            self._check_file(name, entry)
            objects.send(self._root / name, target)
            self._check_same()  # before it is recorded: what was sent may be a file of the other store
            sent[name] = entry.digest
            if not self.is_there:
                self.check_record()
                self.record = dataclasses.replace(self.record, files=sent)
                self.put_record()
            self._copy.count(entry.size_bytes, is_copied=True)

    def _check_same(self) -> None:
        """See that OUT is the store that it was when the push began; raises PackError."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if (self._root / MANIFEST).read_bytes() == self._content:
                return
        raise _replaced(self._root, self.url)

    def _send_block_objects(self, entry: FileEntry) -> None:
        """Send the pixels that the URL lacks of a store that was packed straight to it: objects, one after the other."""
        objects = BlockObjects((block.size_bytes for block in read_blocks(self._root)), entry.size_bytes)
        folder = self.record.folder
        lacking = objects.lacking(self.objects.below(name_in(folder, PIXELS)), folder)
        if lacking:
            self._check_file(PIXELS, entry)
        self._copy.count(entry.size_bytes - sum(end - begin for begin, end in lacking), is_copied=False)
        path = self._root / PIXELS
        with error_path(path), open(path, "rb") as file:
            for begin, end in lacking:
                file.seek(begin)
                self.put(object_name(begin), file.read(end - begin))
                self._copy.count(end - begin, is_copied=True)

    def _check_file(self, name: str, entry: FileEntry) -> None:
        """See that a file is what the manifest says before something of it is sent; raises StoreError."""
        path = self._root / name
        if file_digest(path, entry) != entry.digest:
            raise StoreError(
                f"{path} is not what the manifest says: nothing of it was sent. Run: pack verify {self._root}"
            )

    def _commit(self) -> None:
        """Write the manifest, by which the URL holds this store, after a look that no other push was faster."""
        folder, content = self.record.folder, self._content
        if folder and not self._has_manifest(content):
            self.put(MANIFEST, content)
        if self.is_there:
            return
        self.put_manifest(encode_pointer(self.manifest.digest, folder) if folder else content)
        # one that committed at the same time may have removed what it found here; the same command sends it again
        if any(self.objects.size(name_in(folder, name)) < 0 for name in [*self.manifest.files, MANIFEST]):
            raise self.taken_over()

    def _has_manifest(self, content: bytes) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self.objects.read(name_in(self.record.folder, MANIFEST)) == content
        return False


def _check_not_itself(root: Path, copy: Transfer) -> None:
    """Refuse a URL that is the store's own folder, by whatever name, or a folder in it."""
    if not isinstance(copy.objects, LocalObjects):
        return
    target = copy.objects.root.absolute()
    if (store := enclosing_store(target)) is not None:
        raise OptionsError(f"{copy.url} is in the store {store}. Choose a folder outside it.")
    for path in (target, Path(os.path.realpath(target))):
        for folder in (path, *path.parents):  # by another way too: a bind mount, letters of another case
            if folder.exists() and folder.samefile(root):
                where = "is the store itself" if folder == path else f"is in the store {root}"
                raise OptionsError(f"{copy.url} {where}. Choose a folder outside it.")


def _check_url(url: str, manifest: Manifest, found: Pushed, overwrite: bool) -> None:
    """Refuse a URL that holds anything but this store, or the beginning of it; other stores only with --overwrite."""
    if found.foreign:
        raise OptionsError(
            f"{url} is not empty (it holds {shown(found.foreign)}) and holds no store. Choose another URL, or an empty folder."
        )
    is_started = found.record is not None and found.record.store == manifest.digest
    if overwrite or found.store == manifest.digest or (is_started and not found.has_store):
        return
    if found.has_store:
        what = f"another store ({_short(found.store)}; to be pushed is {_short(manifest.digest)})"
    elif found.record is not None and found.record.is_pack:
        what = "an unfinished pack"
    elif found.record is not None:
        what = f"an unfinished push of another store ({_short(found.record.store)})"
    else:
        return
    unfinished = ", and an unfinished push of this one" if found.has_store and is_started else ""
    raise OptionsError(f"{url} holds {what}{unfinished}. Replace it with {OVERWRITE}, or choose another URL.")


def _short(digest: str) -> str:
    """Name a store by as much of its digest as its folder at a URL is named by."""
    return shown(digest[:23]) if digest else "damaged"


def _replaced(root: Path, url: str) -> PackError:
    return PackError(
        f"{root} was replaced, renamed or removed while it was pushed: nothing was committed at {url}. Push again, with"
        f" {OVERWRITE}."
    )
