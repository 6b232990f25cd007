"""Files below a URL, or in a local folder, as one kind of thing: read, put complete or not at all, listed, removed.

A local folder is written as OUT is: under a temporary name, synced, renamed: a kill leaves the old file or the new one, as object
storage does. Knows nothing of what is in them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path
from typing import IO, Any

from packer.errors import OptionsError, RemoteError
from packer.inputs.splits import SPLITS
from packer.sources.object_storage import open_url
from packer.store.files import sync_folder, sync_names, temporary_of, write_atomically, write_synced
from packer.system import BINARY
from reader.format.errors import MissingObjectError, StoreError
from reader.format.filesystem import error_path, open_regular, plain_path
from reader.format.manifest import MANIFEST
from reader.format.urls import is_url
from reader.remote.objects import Objects
from reader.remote.urls import check_key

_COPY_BYTES = 4 << 20
# What S3 says of a name that is there, or that another process puts just now, where s3fs has no error for it.
_TAKEN = ("ConditionalRequestConflict", "PreconditionFailed")
# What file systems that know no hard links say, FAT and some network ones.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
# A URL without a folder (s3://), with one slash (s3:/bucket), or a file URL that is relative to nothing (file://tmp/x): taken as
# paths, they would be folders below the working directory. A letter before the colon is a drive.
_MISTYPED = re.compile(r"[a-z][a-z0-9+.-]+:(?:/*|/[^/].*)|file://(?!/|[a-z]:).*", re.I | re.S)


def open_objects(url: str) -> LocalObjects | RemoteObjects | WebObjects:
    """Return the folder at a URL, or at a plain path; nothing is asked of a network, nothing made.

    Raises:
        OptionsError: it is a URL without a folder, or a file URL that is not absolute.
        RemoteError: nothing here knows URLs of this kind, or what knows them is not installed.
    """
    if _MISTYPED.fullmatch(url):
        raise OptionsError(
            f"{url} is not a URL of a folder. Expected for example s3://bucket/folder or file:///folder; a path of this name is"
            f" ./{url}"
        )
    if not is_url(url):
        return LocalObjects(Path(plain_path(url)))
    if url.lower().startswith(("http:", "https:")):
        return WebObjects(url)
    try:
        check_key(url)
    except ValueError as e:
        raise OptionsError(str(e)) from None
    files, root = open_url(url)
    protocols = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
    return LocalObjects(Path(root or "/")) if "file" in protocols else RemoteObjects(url, files, root)


class LocalObjects:
    """A folder on a disk of this machine, which need not be there yet. Names have / between folders."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def top(self) -> list[str]:
        """Return the names in the folder itself, sorted; none where there is no folder.

        Raises:
            RemoteError: it is a file.
        """
        try:
            return sorted(os.listdir(self.root))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise RemoteError(f"{self.root} is a file. Expected a folder.") from None

    def below(self, folder: str) -> dict[str, int]:
        """Return the size of each file below one of its folders, by name, sorted; -1 where it has just gone."""
        found = (Path(where, name) for where, _, names in os.walk(self.root / folder) for name in names)
        return {name: self.size(name) for name in sorted(path.relative_to(self.root).as_posix() for path in found)}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return a file's bytes [start, stop)."""
        path = self.root / name
        with error_path(path), _opened(path) as file:
            file.seek(start)
            return file.read() if stop is None else file.read(stop - start)

    def size(self, name: str) -> int:
        """Return the size of a file as it is now; -1 where there is none."""
        path = self.root / name
        try:
            return path.stat().st_size if path.is_file() else -1
        except (FileNotFoundError, NotADirectoryError):
            return -1

    def put(self, name: str, content: bytes) -> None:
        """Put content under a name, at once, whatever was there."""
        write_atomically(self._prepared(name), content)

    def create(self, name: str, content: bytes) -> None:
        """Put content under a name that is free.

        Raises:
            FileExistsError: another has just taken it.
        """
        path = self._prepared(name)
        temporary = temporary_of(path)
        write_synced(temporary, content)
        try:
            os.link(temporary, path)
        except OSError as e:
            if e.errno not in _NO_LINKS:
                raise
            os.replace(temporary, path)
        temporary.unlink(missing_ok=True)
        sync_folder(path.parent)

    def send(self, source: Path, name: str) -> None:
        """Copy a file to a name, at once, whatever was there."""
        path = self._prepared(name)
        temporary = temporary_of(path)
        written = _copy(source, temporary)
        # another push of this file has put a beginning of its own there: that must not get the name
        if not os.path.samestat(os.stat(temporary), written):
            raise FileExistsError(errno.EEXIST, "another process writes it just now", str(temporary))
        os.replace(temporary, path)
        sync_folder(path.parent)

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file from here to a path, over what was there."""
        _copy(self.root / name, path)

    def remove(self, name: str) -> None:
        """Remove a file, and folders that are empty then; one that is not there is as good as removed."""
        path = self.root / name
        path.unlink(missing_ok=True)
        while path.parent.is_dir():
            path = path.parent
            # another thread or process may have removed it, as it is empty
            with contextlib.suppress(FileNotFoundError):
                sync_folder(path)
            if path == self.root:
                return
            try:
                path.rmdir()
            except OSError:  # it is not empty
                return

    def _prepared(self, name: str) -> Path:
        """Return a file's path; its folder is there, and stays through a power loss, and nothing has the temporary name."""
        path = self.root / name
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            sync_names(path.parent)
        # killed within `create` it is a second name of the file: it must not be written through, and no rename would take it away
        temporary_of(path).unlink(missing_ok=True)
        return path


class RemoteObjects:
    """A folder in object storage, where a file appears complete or not at all."""

    def __init__(self, url: str, files: Any, root: str) -> None:
        self._url, self._files, self._root = url, files, root

    def top(self) -> list[str]:
        """Return the names in the folder itself, sorted; none where there is no folder.

        Raises:
            RemoteError: it is a file.
        """
        self._files.invalidate_cache()
        try:
            listed = self._files.ls(self._root, detail=True)
        except FileNotFoundError:
            return []
        # an empty object named as the folder, with a slash, is what consoles of S3 make of a new folder
        names = {self._name(about["name"]): about for about in listed}
        about = names.pop("", None)
        if about is not None and about["type"] == "file" and not str(about["name"]).endswith("/"):
            raise RemoteError(f"{self._url} is one object. Expected a folder.")
        return sorted(names)

    def below(self, folder: str) -> dict[str, int]:
        """Return the size of each file below one of its folders, by name, sorted."""
        self._files.invalidate_cache()
        found = self._files.find(f"{self._root}/{folder}", detail=True)
        return {self._name(path): int(found[path]["size"]) for path in sorted(found) if not path.endswith("/")}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return an object's bytes [start, stop)."""
        bounds = {} if not start and stop is None else {"start": start, "end": stop}
        data: bytes = self._files.cat_file(f"{self._root}/{name}", **bounds)
        return data

    def size(self, name: str) -> int:
        """Return the size of an object as it is now; -1 where there is none."""
        self._files.invalidate_cache()
        try:
            return int(self._files.info(f"{self._root}/{name}")["size"])
        except FileNotFoundError:
            return -1

    def put(self, name: str, content: bytes) -> None:
        """Put content under a name, at once, whatever was there."""
        self._files.pipe_file(f"{self._root}/{name}", content)

    def create(self, name: str, content: bytes) -> None:
        """Put content under a name that is free, where the storage knows; else whatever was there.

        Raises:
            FileExistsError: another has just taken it.
        """
        try:
            self._files.pipe_file(f"{self._root}/{name}", content, mode="create")
        except FileExistsError:
            raise
        except Exception as e:
            if any(code in str(e.__cause__) for code in _TAKEN) or self.size(name) >= 0:
                # it may have been put, and the answer was lost
                with contextlib.suppress(FileNotFoundError):
                    if self.read(name) == content:
                        return
                raise FileExistsError(errno.EEXIST, "another process has just made it", name) from e
            # fsspec before 2024.10, or storage that knows no If-None-Match; what else is wrong shows here
            self.put(name, content)

    def send(self, source: Path, name: str) -> None:
        """Copy a file to a name, at once, whatever was there."""
        self._files.put_file(str(source), f"{self._root}/{name}")

    def fetch(self, name: str, path: Path) -> None:
        """Copy an object to a path, over what was there."""
        self._files.get_file(f"{self._root}/{name}", str(path))

    def remove(self, name: str) -> None:
        """Remove an object; one that is not there is as good as removed."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    def _name(self, path: str) -> str:
        return path[len(self._root) :].strip("/")


class WebObjects(RemoteObjects):
    """A folder that a web server shows, which is only read: what a stranger's server sends is bounded by what is expected."""

    def __init__(self, url: str) -> None:
        try:
            self._objects = Objects(url)
        except StoreError:
            raise
        except ValueError as e:
            raise OptionsError(str(e)) from None

    def top(self) -> list[str]:
        """Return the folders of splits that hold a store: a web server lists no names."""
        return [name for name in SPLITS if self.size(f"{name}/{MANIFEST}") >= 0]

    def below(self, folder: str) -> dict[str, int]:
        """Return no names."""
        return {}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return a file's bytes [start, stop); all of it is no more than a manifest."""
        try:
            return bytes(self._objects.read(name, start, stop))
        except MissingObjectError as e:
            raise FileNotFoundError(errno.ENOENT, str(e)) from None

    def size(self, name: str) -> int:
        """Return the size of a file as the server says it; -1 where there is none."""
        try:
            return self._objects.size(name)
        except MissingObjectError:
            return -1

    def put(self, name: str, content: bytes) -> None:
        """Refuse: raises OptionsError."""
        raise OptionsError(
            f"{self._objects.url} is a web server's, which is only read. Expected for example s3://bucket/folder."
        )

    def create(self, name: str, content: bytes) -> None:
        """Refuse: raises OptionsError."""
        self.put(name, content)

    def send(self, source: Path, name: str) -> None:
        """Refuse: raises OptionsError."""
        self.put(name, b"")

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file to a path, over what was there: as many bytes as its size is said to be."""
        size_bytes = self.size(name)
        with error_path(path), open(path, "wb") as file:
            for start in range(0, size_bytes, _COPY_BYTES):
                file.write(self.read(name, start, min(start + _COPY_BYTES, size_bytes)))


def _opened(path: Path) -> IO[bytes]:
    """Open a regular file, or what a link to one names, to read it; nothing waits for a pipe."""
    return open_regular(Path(os.path.realpath(path)))


def _copy(source: Path, path: Path) -> os.stat_result:
    """Copy a file's bytes, and return when they are on disk, which file that is; an error names the file that it is about."""
    with error_path(source), _opened(source) as old:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY, 0o666)
        try:
            while data := memoryview(old.read(_COPY_BYTES)):
                with error_path(path):
                    while data:
                        data = data[os.write(descriptor, data) :]
            with error_path(path):
                os.fsync(descriptor)
                return os.fstat(descriptor)
        finally:
            with error_path(path):
                os.close(descriptor)
