"""URLs of object storage: the only module that imports fsspec. Credentials come from the environment and are never stored."""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Any

from packer.errors import RemoteError
from reader.format.shown import redacted

_BUCKET = re.compile(r'(bucket name ")[^"]*@')


@functools.lru_cache(maxsize=8)
def open_url(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it, without a slash at its end; asks nothing of the network.

    Raises:
        RemoteError: nothing here knows URLs of this kind, or what knows them is not installed.
    """
    try:
        import fsspec

        # a local disk, unlike object storage, wants its folders made
        settings = {"auto_mkdir": True} if url.startswith("file:") else {}
        files, path = fsspec.core.url_to_fs(url, **settings)
    except ImportError as e:
        raise RemoteError(
            f"{redacted(url)} cannot be opened: {redacted(str(e))}. For s3:// install 'pixpack[remote]'."
        ) from None
    except ValueError as e:
        raise RemoteError(
            f"{redacted(url)} cannot be opened: {redacted(str(e))}. Expected for example s3://bucket/folder."
        ) from None
    return files, path.rstrip("/")


def reason(error: BaseException) -> str:
    """Say in a few words, without a full stop, why a request failed."""
    kind = type(error).__name__
    if _lacks_credentials(error):
        return (
            "there are no credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what your storage asks for"
        )
    if isinstance(error, PermissionError):
        return f"access is denied ({redacted(str(error)).rstrip('.')}). Look at the credentials and the bucket's rights"
    # botocore takes what stands before the bucket for its name
    text = _BUCKET.sub(r"\1***@", redacted(" ".join(str(error).split()).rstrip(".")))
    return text if text and not isinstance(error, KeyError) else kind


def _lacks_credentials(error: BaseException) -> bool:
    return "Credentials" in type(error).__name__


def is_refused(error: BaseException) -> bool:
    """Whether storage denies access, or there are no credentials: trying again does not help."""
    return isinstance(error, PermissionError) or _lacks_credentials(error)


def object_version(about: dict[str, Any]) -> int:
    """Make a number of what differs between versions of an object: 0..2^56."""
    known = [about.get(key) for key in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "updated", "created")]
    return int.from_bytes(hashlib.sha256(repr([str(value) for value in known]).encode()).digest()[:7], "big")
