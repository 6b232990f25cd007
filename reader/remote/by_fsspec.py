"""Objects below a URL by fsspec, where obstore is not installed: the only module of the reader that imports fsspec.

Its file systems have errors of their own. Where one says a status, it is worded as obstore words its own, by which `objects.py`
decides what may pass. For a process that is not forked after its first request: fsspec's thread would be gone there.
"""

from __future__ import annotations

import http
import os
from collections.abc import Iterator
from typing import Any

from reader.format.errors import NotSupportedError, RequestError

# As many as a fetcher has requests in progress, and some for what opening needs.
_CONNECTIONS = 64
# Of errors that no other try would change, where they have no status.
_FINAL = ("ParamValidationError", "ProfileNotFound", "NoRegionError", "InvalidRegionError", "UnknownServiceError")


class WebFolder:
    """A folder that a web server shows.

    Args:
        stall_seconds: a connection over which nothing comes for so long is given up.
        budget_seconds: of one request.
    """

    library = "fsspec"

    def __init__(self, url: str, stall_seconds: float, budget_seconds: float) -> None:
        import aiohttp
        import fsspec
        from fsspec.asyn import sync

        timeout = aiohttp.ClientTimeout(total=budget_seconds, sock_connect=stall_seconds, sock_read=stall_seconds)
        self._url, self._sync = url, sync
        self._files = fsspec.filesystem(
            url.partition(":")[0], client_kwargs={"timeout": timeout}, skip_instance_cache=True
        )

    def get(self, name: str, start: int, stop: int | None, most_bytes: int) -> memoryview:
        """Return an object's bytes [start, stop), or all; of more than most_bytes one too many.
        """
        return memoryview(self._call(self._read, name, start, stop, most_bytes))

    def size(self, name: str) -> int:
        """Return the bytes of an object, as the server says it to HEAD, or to GET where it knows no HEAD."""
        return int(self._call(self._size, name))

    def _call(self, *request: object) -> Any:
        try:
            return self._sync(self._files.loop, *request)
        except (FileNotFoundError, RequestError):
            raise
        except Exception as e:
            raise _worded(e) from None

    async def _read(self, name: str, start: int, stop: int | None, most_bytes: int) -> bytearray:
        # bytes as they are stored: of packed ones a range would be another one
        headers = {"Accept-Encoding": "identity"}
        if stop is not None:
            headers["Range"] = f"bytes={start}-{stop - 1}"
        session, data = await self._files.set_session(), bytearray()
        async with session.get(self._files.encode_url(f"{self._url}/{name}"), headers=headers) as answer:
            _check(answer.status)
            if stop is not None and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                answer.close()
                raise NotSupportedError("it answers with all of the object")
            async for piece in answer.content.iter_any():
                data += piece[: most_bytes + 1 - len(data)]
                if len(data) > most_bytes:
                    # a stranger's server sends what it likes, and without an end
                    answer.close()
                    break
        return data

    async def _size(self, name: str) -> int:
        session, url = await self._files.set_session(), self._files.encode_url(f"{self._url}/{name}")
        async with session.head(url, allow_redirects=True) as answer:
            if answer.status not in (http.HTTPStatus.METHOD_NOT_ALLOWED, http.HTTPStatus.NOT_IMPLEMENTED):
                _check(answer.status)
                return int(answer.headers["Content-Length"])
        async with session.get(url, headers={"Accept-Encoding": "identity", "Range": "bytes=0-0"}) as answer:
            if answer.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # an empty object has no first byte
                return 0
            _check(answer.status)
            if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                answer.close()
                raise NotSupportedError("it answers with all of the object")
            return int(answer.headers["Content-Range"].rpartition("/")[2])


class Bucket:
    """A folder in object storage that a file system of fsspec knows; arguments as of `WebFolder`."""

    library = "fsspec"

    def __init__(self, url: str, stall_seconds: float, budget_seconds: float) -> None:
        import fsspec
        from fsspec.asyn import sync

        settings = _s3_settings(stall_seconds) if url.startswith(("s3:", "s3a:")) else {}
        self._files, root = fsspec.core.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False, **settings)
        if hasattr(self._files, "retries"):
            # tries are counted by who asks
            self._files.retries = 1
        self._root, self._sync, self._budget_seconds = root.rstrip("/"), sync, budget_seconds

    def get(self, name: str, start: int, stop: int | None, most_bytes: int) -> memoryview:
        """Return an object's bytes [start, stop), or all; of more than most_bytes one too many.
        """
        end = start + most_bytes + 1 if stop is None else stop
        return memoryview(self._call("cat_file", name, start=start, end=end))

    def size(self, name: str) -> int:
        """Return the bytes of an object, as the storage says it."""
        return int(self._call("info", name)["size"])

    def _call(self, method: str, name: str, **given: int) -> Any:
        path = f"{self._root}/{name}"
        try:
            if getattr(self._files, "async_impl", False):
                request = getattr(self._files, f"_{method}")
                return self._sync(self._files.loop, request, path, timeout=self._budget_seconds, **given)
            return getattr(self._files, method)(path, **given)
        except FileNotFoundError:
            raise
        except Exception as e:
            raise _worded(e) from None


def connected(url: str, stall_seconds: float, budget_seconds: float) -> WebFolder | Bucket:
    """Return what reads objects below a URL; asks nothing of the network.

    Raises:
        ImportError: fsspec is not installed, or what it needs for such URLs.
        ValueError: it knows no such URLs.
    """
    kind = WebFolder if url.startswith(("http:", "https:")) else Bucket
    return kind(url, stall_seconds, budget_seconds)


def _s3_settings(stall_seconds: float) -> dict[str, object]:
    config = {"connect_timeout": stall_seconds, "read_timeout": stall_seconds, "max_pool_connections": _CONNECTIONS}
    settings: dict[str, object] = {"config_kwargs": config | {"retries": {"max_attempts": 0}}}
    # which obstore reads, and botocore does not
    if region := os.environ.get("AWS_REGION"):
        settings["client_kwargs"] = {"region_name": region}
    return settings


def _check(status: int) -> None:
    if status == http.HTTPStatus.NOT_FOUND:
        raise FileNotFoundError
    if status >= http.HTTPStatus.MULTIPLE_CHOICES:
        raise RequestError(_status_text(status))


def _worded(error: Exception) -> Exception:
    """Return an error as `objects.py` understands it; of an answer no body, which may repeat credentials."""
    found = next(filter(None, map(_status_of, _chain(error))), 403 if isinstance(error, PermissionError) else 0)
    if found:
        code = next(filter(None, map(_code_of, _chain(error))), "")
        return RequestError(_status_text(found) + (f", {code}" if code else ""))
    name = type(error).__name__
    if "Credentials" in name:
        return error
    is_final = name in _FINAL or isinstance(error, ValueError | TypeError | LookupError | NotImplementedError)
    # what else there is may be the body of an answer
    is_plain = isinstance(error, OSError) or type(error).__module__.startswith("aiohttp") or "Connect" in name
    text = str(error) if is_plain else ""
    return RequestError(text or ("timeout" if "Timeout" in name else name), is_passing=not is_final)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _status_of(error: BaseException) -> int:
    """Return the status of the answer behind an error of aiohttp, gcsfs, azure or botocore; 0: it names none."""
    # aiohttp's parser has a code of its own, 400 for an answer that was cut
    names = (
        ("status", "status_code") if type(error).__module__.startswith("aiohttp") else ("status", "status_code", "code")
    )
    values = [getattr(error, name, None) for name in names]
    values.append(_answer_of(error, "ResponseMetadata", "HTTPStatusCode"))
    return next((value for value in values if isinstance(value, int) and 300 <= value < 600), 0)


def _code_of(error: BaseException) -> str:
    """Return the code that S3 has for an error, such as SlowDown."""
    code = _answer_of(error, "Error", "Code")
    return code if isinstance(code, str) and code.isalpha() else ""


def _answer_of(error: BaseException, section: str, name: str) -> object:
    answer = getattr(error, "response", None)
    return answer.get(section, {}).get(name) if isinstance(answer, dict) else None


def _status_text(status: int) -> str:
    try:
        return f"status code: {status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        return f"status code: {status}"
