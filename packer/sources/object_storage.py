"""URLs of object storage: the only module that imports fsspec. Credentials come from the environment and are never stored."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from packer.errors import RemoteError
from reader.format.errors import LibraryError, StoreError
from reader.format.shown import redacted
from reader.format.urls import file_path
from reader.remote.failures import Kind, failure_of
from reader.remote.urls import checked_url

if TYPE_CHECKING:
    from reader.remote.objects import Objects

# Names that every library writes into a request as they are.
_PLAIN_FOLDER = re.compile(r"s3://[a-z0-9][a-z0-9.-]*(/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*/?")
PLAIN_NAME = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*(/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*")
_OF_FSSPEC = re.compile("FSSPEC_")
_KEYS = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
# The first three change what s3fs asks, or where, and are nothing to obstore; the last is the address for obstore alone.
_OF_ONE = "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_ENDPOINT"
# What trying again does not change.
_REFUSED = Kind.NO_CREDENTIALS, Kind.DENIED, Kind.NO_RANGES, Kind.SETTINGS
# Both may name a server; where they are, unless the environment says it.
_AWS_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
# With the module search path of this process: Python puts the current folder first, where json.py may be anyone's.
_LISTING = (
    "import sys; sys.path[:] = filter(None, sys.path); from packer.sources.object_listing import main;"
    " sys.exit(main(sys.argv[1]))"
)


@functools.lru_cache(maxsize=8)
def open_url(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it, without a slash at its end; asks nothing of object storage.

    Raises:
        RemoteError: nothing here knows URLs of this kind, or what knows them is not installed, or the server is not there.
    """
    try:
        import fsspec

        if url.lower().startswith("file:"):
            # a local disk, unlike object storage, wants its folders made
            return fsspec.filesystem("file", auto_mkdir=True), file_path(checked_url(url))
        files, path = fsspec.core.url_to_fs(url)
    except ImportError as e:
        raise RemoteError(
            f"{redacted(url)} cannot be opened: {redacted(str(e))}. For s3:// install 'pixpack[remote]'."
        ) from None
    except ValueError as e:
        raise RemoteError(
            f"{redacted(url)} cannot be opened: {redacted(str(e))}. Expected for example s3://bucket/folder."
        ) from None
    except Exception as e:
        # of ftp:// and sftp://, which connect at once
        raise RemoteError(f"{redacted(url)} cannot be opened: {reason(e)}.") from cause(e)
    return files, path.rstrip("/")


def direct_objects(url: str) -> Objects | None:
    """Return what reads objects by obstore, with a tenth of s3fs's CPU time; None where s3fs may take other settings.

    For a process that does not fork.
    """
    # imported before this process was forked, its runtime would hang
    if "obstore" in sys.modules or not _is_direct(url):
        return None
    with contextlib.suppress(ImportError, ValueError, StoreError):
        from reader.remote.objects import Objects

        return Objects(url)
    return None


def direct_listing(url: str) -> dict[str, tuple[int, int]] | None:
    """Return what is below a URL, relative path -> (bytes, version), by obstore; None where s3fs is to list it.

    In a process of its own: this one may then fork workers, and imports neither obstore nor s3fs, which takes a second.
    """
    # Python within another program may have none of its own
    if not sys.executable or not _is_direct(url):
        return None
    words = [sys.executable, "-c", _LISTING, url]
    paths = os.pathsep.join(path or os.curdir for path in sys.path)
    done = subprocess.run(words, capture_output=True, env=os.environ | {"PYTHONPATH": paths})
    found = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        name, size_bytes, etag, changed = json.loads(line)
        # s3fs writes other names into requests in its way; an empty object may stand for a folder; and of two objects with one
        # name, the name of one ends with a slash, which obstore leaves out
        if not PLAIN_NAME.fullmatch(name) or not size_bytes or name in found:
            return None
        found[name] = size_bytes, object_version({"ETag": etag, "LastModified": changed})
    return found or None


def _is_direct(url: str) -> bool:
    """Whether obstore reads a URL with the settings that s3fs takes.

    Both take the keys and the address from the environment; what s3fs, botocore or fsspec read from files, such as a profile or
    an endpoint, obstore does not.
    """
    if not _PLAIN_FOLDER.fullmatch(url) or not all(map(os.environ.get, _KEYS)) or any(map(os.environ.get, _OF_ONE)):
        return False
    return not _has_fsspec_settings() and "endpoint" not in _aws_files() and find_spec("obstore") is not None


def _has_fsspec_settings() -> bool:
    """Whether fsspec may have settings for S3, of its variables, its files or this program."""
    if "fsspec" in sys.modules:
        import fsspec

        return bool(fsspec.config.conf.get("s3"))
    # importing it takes 0.1 s
    return os.path.isdir(os.path.expanduser("~/.config/fsspec")) or any(map(_OF_FSSPEC.match, os.environ))


def _aws_files() -> str:
    found = ""
    for variable, usual in _AWS_FILES.items():
        path = os.environ.get(variable) or os.path.expanduser(usual)
        with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            found += file.read()
    return found


def reason(error: BaseException) -> str:
    """Say in a few words, without a full stop, why a request failed."""
    failure = failure_of(error)
    if failure.kind == Kind.NO_CREDENTIALS:
        return f"there are no credentials. {failure.advice}"
    if failure.kind == Kind.DENIED and isinstance(error, PermissionError):
        return f"access is denied ({failure.text}). Look at the credentials and the bucket's rights"
    return failure.words


def cause(error: BaseException) -> LibraryError:
    """Return what a library said of a request, without credentials, as the cause of an error of ours."""
    return LibraryError(f"{type(error).__name__}: {failure_of(error).text}")


def is_refused(error: BaseException) -> bool:
    """Whether storage denies access, there are no credentials, or settings are wrong: trying again does not help."""
    return isinstance(error, PermissionError) or failure_of(error).kind in _REFUSED


def object_version(about: dict[str, object]) -> int:
    """Make a number of what differs between versions of an object: 0..2^56."""
    known = [about.get(key) for key in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "updated", "created")]
    return int.from_bytes(hashlib.sha256(repr([str(value) for value in known]).encode()).digest()[:7], "big")
