"""Distinguishes URLs from paths, for both packages. Knows no scheme by name, and opens nothing."""

from __future__ import annotations

import os
import re

# A letter before the colon is a drive, not a scheme.
_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.I)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether a name of IMAGES, OUT or a store is a URL of object storage, s3://bucket/folder, rather than a path."""
    text = os.fspath(path)
    return isinstance(text, str) and _URL.match(text) is not None


def file_path(url: str) -> str:
    """Return the path that a file: URL names: file:///x/run%201 is /x/run 1."""
    # slow to import, and not needed for object storage
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    return url2pathname(urlsplit(url).path)
