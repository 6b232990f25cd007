"""URLs of object storage: the only module that imports fsspec. Credentials come from the environment and are never stored."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from packer.errors import RemoteError
from reader.format.shown import redacted
from reader.format.urls import file_path


@functools.lru_cache(maxsize=8)
def open_url(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it, without a slash at its end; makes no request to object storage.

    Raises:
        RemoteError: this kind of URL is unknown, its library is not installed, or the server is missing.
    """
    try:
        import fsspec

        if url.lower().startswith("file:"):
            # a local disk, unlike object storage, needs its folders made
            return fsspec.filesystem("file", auto_mkdir=True), file_path(url).rstrip("/")
        files, path = fsspec.core.url_to_fs(url)
    except ImportError as e:
        raise RemoteError(
            f"{redacted(url)} cannot be opened: {redacted(str(e))}. For s3:// install 'pixpack[remote]'."
        ) from None
    except Exception as e:
        # from ftp:// and sftp://, which connect at once
        raise RemoteError(
            f"{redacted(url)} cannot be opened: {reason(e)}. Expected for example s3://bucket/folder."
        ) from None
    return files, path.rstrip("/")


def reason(error: BaseException) -> str:
    """Return why a request failed: the library's message, in one line without credentials and without a full stop."""
    text = " ".join(redacted(str(error)).split()).rstrip(".: ") or type(error).__name__
    if "Credentials" in type(error).__name__:
        return (
            f"there are no credentials ({text}). Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what it asks for"
        )
    if isinstance(error, PermissionError):
        return f"access is denied ({text}). Look at the credentials and the bucket's rights"
    return text


def is_refused(error: BaseException) -> bool:
    """Whether storage denies access, or there are no credentials: trying again does not help."""
    return isinstance(error, PermissionError) or "Credentials" in type(error).__name__


def object_version(about: dict[str, object]) -> int:
    """Return a number, 0..2^56, that differs between versions of an object."""
    known = [about.get(key) for key in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "updated", "created")]
    return int.from_bytes(hashlib.sha256(repr([str(value) for value in known]).encode()).digest()[:7], "big")
