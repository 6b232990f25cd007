"""S3 on loopback with a latency: a server that answers from a folder with little CPU time of its own.

Run as a program: it prints its address, and ends when its standard input does. The folder's bucket is named as the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

# What S3's clients send; the server takes any.
KEYS = {"AWS_ACCESS_KEY_ID": "some", "AWS_SECRET_ACCESS_KEY": "thing", "AWS_REGION": "us-east-1"}
_DATE = "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT"
_XML = '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'


class Server:
    """A server in a process of its own."""

    def __init__(self, folder: Path, latency_seconds: float) -> None:
        words = [sys.executable, "-m", "scripts.common.s3_server", str(folder), str(latency_seconds)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def cpu_seconds(self) -> float:
        """Return the CPU time that it has taken so far (proc(5), fields 14 and 15)."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def serving(folder: Path, latency_seconds: float) -> Iterator[Server]:
    """Serve a folder of files as a bucket of that name."""
    with contextlib.closing(Server(folder, latency_seconds)) as server:
        yield server


class _Answers(asyncio.Protocol):
    """Answers GET and HEAD of objects, and listings, of one connection."""

    def __init__(self, bucket: str, files: dict[str, Path], latency_seconds: float) -> None:
        self._bucket, self._files, self._latency_seconds = bucket, files, latency_seconds
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        """Keep where answers go."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each request after the latency."""
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            asyncio.get_running_loop().call_later(self._latency_seconds, self._answer, method, target)

    def _answer(self, method: str, target: str) -> None:
        url = urlsplit(target)
        bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        if bucket == self._bucket and not name:
            kind, body = "application/xml", self._listing(parse_qs(url.query).get("prefix", [""])[0])
        elif bucket == self._bucket and name in self._files:
            kind, body = "binary/octet-stream", self._files[name].read_bytes()
        else:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        about = f'Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nETag: "{len(body)}"\r\n{_DATE}'
        self._transport.write(f"HTTP/1.1 200 OK\r\n{about}\r\n\r\n".encode() + (body if method == "GET" else b""))

    def _listing(self, prefix: str) -> bytes:
        """Return all names with a prefix, on one page."""
        found = [(name, path) for name, path in self._files.items() if name.startswith(prefix)]
        entries = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{path.stat().st_size}&quot;</ETag><Size>{path.stat().st_size}</Size></Contents>"
            for name, path in found
        )
        head = f"<Name>{self._bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(found)}</KeyCount>"
        return f"{_XML}{head}<IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()


async def _serve(folder: Path, latency_seconds: float) -> None:
    files = _files(folder)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Answers(folder.name, files, latency_seconds), "127.0.0.1"
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    # connections that are open still end with the process
    os._exit(0)


def _files(folder: Path) -> dict[str, Path]:
    """Return the files below a folder by their names there, sorted."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), float(sys.argv[2])))
