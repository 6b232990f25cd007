"""URLs of stores and sizes of caches, as they are given."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from reader.format.shown import redacted

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "https", "http", "file")

# Names in the others are paths, with escapes.
_OF_KEYS = tuple(scheme for scheme in SCHEMES if scheme not in ("file", "http", "https"))

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", re.I)


def checked_url(url: str) -> str:
    """Return the URL of a folder, without a slash at its end.

    Raises:
        ValueError: it names no folder, or carries a name, password or token: it is kept, pickled and shown.
    """
    scheme, parts = url.partition("://")[0].lower(), urlsplit(url)
    if scheme not in SCHEMES:
        raise ValueError(
            f"{redacted(url)} cannot be read from. Expected a URL with {', '.join(SCHEMES)}. Copy a store that is elsewhere with"
            " pack pull URL OUT, or mount it."
        )
    # container@account of Azure is no secret
    if redacted(url) != url or parts.query or parts.fragment:
        raise ValueError(
            f"{redacted(url)} carries credentials or a query. Leave them out: credentials come from the environment, such as"
            " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    if not (parts.netloc if scheme != "file" else parts.path.strip("/")):
        raise ValueError(f"{url} is not a URL of a folder. Expected for example s3://bucket/folder or file:///folder.")
    check_key(url)
    return f"{scheme}://{url.partition('://')[2].rstrip('/')}"


def check_key(url: str) -> None:
    """Refuse a URL of object storage that one library takes as it is and another one decodes: they would name two objects.

    Raises:
        ValueError: it has a %, or a folder without a name, or one named . or ..
    """
    scheme, _, path = url.partition("://")
    folders = path.rstrip("/").split("/")[1:]
    if scheme.lower() in _OF_KEYS and ("%" in path or not {"", ".", ".."}.isdisjoint(folders)):
        raise ValueError(
            f"{redacted(url)} has a %, or a folder without a name or named . or .., which libraries of object storage take for"
            " different objects. Choose another name."
        )


def size_of(value: int | str) -> int:
    """Return the bytes of a size: 200_000_000, "200GB", "1.5 TiB".

    Raises:
        ValueError: it is no size.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None or (found[3] and not found[2]) or not float(found[1]):
        raise ValueError(f"cache_size is {value!r}, expected bytes or a size such as '200GB'.")
    return int(float(found[1]) * (_BINARY_UNITS if found[3] else _UNITS)[found[2].lower()])
