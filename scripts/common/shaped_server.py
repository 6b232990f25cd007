"""A server of a folder by ranges of bytes, on loopback, with a latency, and a bandwidth that all share.

Run as a program: it prints its address, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PIECE_BYTES = 128 << 10


@contextlib.contextmanager
def serving(folder: Path, latency_seconds: float, bytes_per_second: float) -> Iterator[str]:
    """Serve a folder in a process of its own; gives its URL."""
    with started(folder, latency_seconds, bytes_per_second) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def started(
    folder: Path, latency_seconds: float, bytes_per_second: float, port: int = 0, log: Path | None = None
) -> subprocess.Popen[str]:
    """Start a server, which prints its URL.

    log: a file to which it adds a line for each range: the name of the file, start and stop.
    """
    words = [sys.executable, "-m", "scripts.common.shaped_server", folder, latency_seconds, bytes_per_second]
    words += [port, log or os.devnull]
    return subprocess.Popen(list(map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class _Link:
    """When the next bytes have arrived, over one link after the other."""

    def __init__(self, latency_seconds: float, bytes_per_second: float) -> None:
        self.latency_seconds, self._rate, self._free = latency_seconds, bytes_per_second, 0.0

    async def carry(self, size_bytes: int) -> None:
        """Wait until so many bytes are through."""
        self._free = max(self._free, time.monotonic()) + size_bytes / self._rate
        await asyncio.sleep(self._free - time.monotonic())


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, folder: Path, link: _Link, log: int
) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            await asyncio.sleep(link.latency_seconds)
            path, headers = (
                folder / lines[0].split(" ")[1].partition("?")[0].lstrip("/"),
                dict(line.lower().split(": ") for line in lines[1:] if line),
            )
            if not path.is_file():
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            size, start = path.stat().st_size, 0
            stop, status = size, "200 OK"
            if wanted := headers.get("range"):
                first, last = wanted.removeprefix("bytes=").split("-")
                start, stop = int(first), min(size, int(last or size - 1) + 1)
                status = f"206 Partial Content\r\nContent-Range: bytes {start}-{stop - 1}/{size}"
            os.write(log, f"{path.relative_to(folder)} {start} {stop}\n".encode())
            # S3's clients ask for these too
            about = f'Content-Length: {stop - start}\r\nETag: "{size}"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT'
            writer.write(f"HTTP/1.1 {status}\r\n{about}\r\n\r\n".encode())
            if lines[0].startswith("HEAD "):
                continue
            with open(path, "rb") as file:
                file.seek(start)
                while start < stop:
                    piece = file.read(min(_PIECE_BYTES, stop - start))
                    await link.carry(len(piece))
                    writer.write(piece)
                    await writer.drain()
                    start += len(piece)


async def _serve(folder: Path, link: _Link, port: int, log: Path) -> None:
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    server = await asyncio.start_server(lambda r, w: _answer(r, w, folder, link, lines), "127.0.0.1", port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    # connections that are open still end with the process
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), _Link(*map(float, sys.argv[2:4])), int(sys.argv[4]), Path(sys.argv[5])))
