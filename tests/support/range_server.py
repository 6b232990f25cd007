"""An HTTP server on loopback that serves a folder by ranges of bytes, counts requests, and fails on demand."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

# Answers instead of the bytes: a status, "cut" or "stall" in the middle, "endless", or none: "silent".
Trouble = int | str | None

# Only for spans that are never ready: less than a client's wait of 20 s before a retry.
_LONGEST_SECONDS = 15.0
_PIECE = bytes(1 << 20)


class RangeServer(http.server.ThreadingHTTPServer):
    """Serves `root`.

    head_status: the answer to HEAD; None: the size.
    most_in_progress: the most concurrent requests.
    asked: requests by byte span of a file, (name, start, stop); a whole file is (name, 0, size).
    trouble: called with the name and the number of requests so far; returns the fault, or None.
    is_ready: called with each requested span; the answer waits until this returns True.
    was_late: a span was never ready; nothing waits from then on.
    endless_bytes: bytes sent by endless answers. is_silent: requests get no answer until `ends`.
    """

    daemon_threads = True
    # pending connections: a refused client tries again after a second
    request_queue_size = 64

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.asked = root, Counter[tuple[str, int, int]]()
        self.trouble: Callable[[str, int], Trouble] = lambda name, count: None
        self.is_ready: Callable[[str, int, int], bool] = lambda name, start, stop: True
        self.was_late = False
        self.head_status: int | None = None
        self.delay_seconds = 0.0
        self.in_progress = self.most_in_progress = self.endless_bytes = 0
        self.is_silent, self.ends = threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.lock = threading.Condition()

    def handle_error(self, *_: object) -> None:
        """Print nothing about clients that were killed."""

    def bytes_of(self, name: str) -> Counter[int]:
        """Return how often each run of 64 bytes of a file was sent."""
        found = Counter[int]()
        with self.lock:
            asked = list(self.asked.items())
        for (file, start, stop), count in asked:
            if file == name:
                found.update(dict.fromkeys(range(start // 64, stop // 64), count))
        return found


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # else a body waits 40 ms for the client to acknowledge the header
    disable_nagle_algorithm = True
    server: RangeServer

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        """Answer without the bytes, uncounted."""
        path = self.server.root / self.path.lstrip("/")
        self.send_response(self.server.head_status or (200 if path.is_file() else 404))
        self.send_header("Content-Length", str(path.stat().st_size if path.is_file() else 0))
        self.end_headers()

    def do_GET(self) -> None:
        """Answer."""
        with self.server.lock:
            self.server.in_progress += 1
            self.server.most_in_progress = max(self.server.in_progress, self.server.most_in_progress)
        try:
            self._answer()
        finally:
            with self.server.lock:
                self.server.in_progress -= 1

    def _answer(self) -> None:
        name, path = self.path.lstrip("/"), self.server.root / self.path.lstrip("/")
        time.sleep(self.server.delay_seconds)
        data = path.read_bytes() if path.is_file() else None
        start, stop = 0, len(data or b"")
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(stop, int(last) + 1)
        with self.server.lock:
            trouble = self.server.trouble(name, self.server.asked.total())
            self.server.asked[name, start, stop] += 1
            self.server.lock.notify_all()
            if not self.server.lock.wait_for(
                lambda: self.server.was_late or self.server.is_ready(name, start, stop), _LONGEST_SECONDS
            ):
                self.server.was_late = True
        if trouble == "silent":
            self.server.is_silent.set()
            self.server.ends.wait(240)
            return
        status = trouble if isinstance(trouble, int) else 404 if data is None else 206 if wanted else 200
        if status < 300 and wanted and start >= stop:
            status = 416
        body = (data or b"")[start:stop] if status < 300 else b"secret answer"
        self.send_response(status)
        self.send_header("Content-Length", str(1 << 50 if trouble == "endless" else len(body)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data or b'')}")
        self.end_headers()
        if trouble in ("cut", "stall"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if trouble == "stall":
                time.sleep(5)
            self.close_connection = True
            return
        while trouble == "endless":
            self.server.endless_bytes += len(_PIECE)
            self.wfile.write(_PIECE)
        self.wfile.write(body)


@contextlib.contextmanager
def serving(root: Path) -> Iterator[RangeServer]:
    """Serve a folder."""
    with RangeServer(root) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
