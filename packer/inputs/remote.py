"""Folders of images in object storage, listed by the rules of a local folder."""

from __future__ import annotations

from pathlib import Path

from packer.errors import DecodeError, RemoteError, SourceError, UnreadableError
from packer.inputs.names import NameFilter, divided
from packer.inputs.samples import Column, Inputs
from packer.sources.base import State, check_size
from packer.sources.object_storage import is_refused, object_version, open_url, reason
from reader.format.shown import redacted

# Errors of a file system for a missing or invalid URL.
_WRONG = (FileNotFoundError, ValueError, TypeError, NotImplementedError, ImportError)


def list_url(url: str) -> dict[str, Inputs]:
    """List a folder of class folders, of images, or of splits of those, by the rules of a local folder.

    Raises:
        RemoteError: it cannot be listed, or is not a folder.
        ScanError: it holds no image.
    """
    url = url.rstrip("/")
    inputs, name_filter, states = Inputs(Path()), NameFilter(), list[State]()
    for name, (size_bytes, version) in list_objects(url).items():
        name_filter.count()
        if name_filter.takes(name):
            inputs.add(name, _refusal(size_bytes))
            states.append((size_bytes, version, 0))
    inputs.states = Column.from_rows("int64", states, 3)
    name_filter.report(inputs, redacted(url))
    found, _ = divided(inputs, is_wrapped=False, is_sorted=True)
    for split, one in found.items():
        one.url = f"{url}/{split}" if split else url
    return found


def _refusal(size_bytes: int) -> str | None:
    try:
        check_size(size_bytes)
    except DecodeError as e:
        return str(e)
    return None


def list_objects(url: str) -> dict[str, tuple[int, int]]:
    """Return the objects below a URL: relative path -> (bytes, a number that changes with its version).

    Raises:
        RemoteError: the bucket or folder is missing, or the URL is invalid.
        SourceError: storage refuses the credentials; UnreadableError if it does not answer, or fails.
    """
    files, root = open_url(url)
    try:
        listed = files.find(root, detail=True)
        if not listed and url.startswith("http"):
            files.ls(root, detail=False)  # `find` treats a web server that does not answer as an empty folder
    except _WRONG as e:
        raise RemoteError(f"{redacted(url)} cannot be listed: {reason(e)}.") from None
    except Exception as e:  # each file system raises its own errors
        kind = SourceError if is_refused(e) else UnreadableError
        raise kind(f"{redacted(url)} cannot be listed: {reason(e)}") from None
    if root in listed:
        raise RemoteError(
            f"{redacted(url)} is one object. Expected a folder of images: archives and lists are read from local disks."
        )
    return {
        path[len(root) :].removeprefix("/"): (int(about["size"] or 0), object_version(about))
        for path, about in listed.items()
        if about["type"] == "file" and not path.endswith("/")
    }
