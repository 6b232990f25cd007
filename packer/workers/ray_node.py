"""A worker on a node of a cluster: it connects back to the command, and brings the rows that it wrote to disk itself.

Knows connections and syncs. `packer.workers.ray` starts it; what it does with a block is `block_worker.py`'s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from pathlib import Path

from packer.clock import StageClock
from packer.errors import SourceError
from packer.store.lock import take_lock
from packer.system import BINARY
from packer.workers.block_worker import PackJob
from packer.workers.processes import serve
from reader.format.filesystem import error_path, refresh_names

# How often a worker reports that it runs; a fraction of what the engine waits before it takes it to be stopped.
_ALIVE_SECONDS = 1.0


class Host:
    """Runs on a node, as a Ray actor: one worker, until its connection ends."""

    def work(
        self,
        job: PackJob,
        number: str,
        address: str | tuple[str, int],
        key: bytes,
        witness: tuple[str, bytes],
        find_decoders: Callable[[], object],
    ) -> None:
        """Connect, say where this is and what is here, and serve."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        connection = Client(address, authkey=key)
        keep_alive(connection)
        connection.send((number, platform.node(), _sees(*witness), find_decoders()))
        work(job, connection)


def work(job: PackJob, connection: Connection) -> None:
    """Be a worker at the end of a connection; the sources are what they are here."""
    end = _SyncingEnd(connection, [path for path in (job.pixels_path, job.masks_path) if path])
    node = platform.node()
    try:
        if job.witness and not os.path.exists(job.witness):
            raise SourceError(f"{job.witness} is not there. Images must be where all nodes see them")
        job = dataclasses.replace(job, roots=job.roots.again())
    except SourceError as e:
        end.send(("failed", SourceError(f"on node {node}, {e}")))
        return
    threading.Thread(target=_send_alive, args=(end,), name="pixpack-alive", daemon=True).start()
    serve(job, end, _SentMarks(end), StageClock("start"))


class _SyncingEnd:
    """The worker's end of a connection: that a block is written is reported once it is on disk; the worker decodes on meanwhile.

    A sync by the command's process reaches what its own machine wrote, and no other. Blocks that are written while a sync runs
    are brought to disk together by the next one. The engine bounds how many wait: a block counts as held until it is reported.
    """

    def __init__(self, connection: Connection, paths: list[str]) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._written: queue.SimpleQueue[tuple[object, ...]] = queue.SimpleQueue()
        files: dict[str, int] = {}
        try:
            for path in paths:
                files[path] = open_shared(path)
        except OSError as e:  # the store's disk: the pack must stop
            self._send_now(("failed", e))
        threading.Thread(target=self._sync, args=(files,), name="pixpack-sync", daemon=True).start()

    def recv(self) -> tuple[object, ...]:
        """Return the next message."""
        return self._connection.recv()

    def send(self, message: tuple[object, ...]) -> None:
        """Send a message, at once or, of a block that was written, once that is on disk."""
        if message[0] == "written":
            self._written.put(message)
        else:
            self._send_now(message)

    def _send_now(self, *messages: tuple[object, ...]) -> None:
        with self._lock:
            for message in messages:
                self._connection.send(message)

    def _sync(self, files: dict[str, int]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody is left to hear it
            try:
                while True:
                    messages = [self._written.get()]
                    while not self._written.empty():
                        messages.append(self._written.get())
                    for path, descriptor in files.items():
                        with error_path(path):
                            getattr(os, "fdatasync", os.fsync)(descriptor)
                    self._send_now(*messages)
            except OSError as e:  # the store's disk: the pack must stop
                self._send_now(("failed", e))


def _send_alive(end: _SyncingEnd) -> None:
    """Report to the engine that this process runs, which it cannot see from elsewhere: one that is stopped is not slow."""
    with contextlib.suppress(OSError):  # nobody is left to hear it
        while True:
            time.sleep(_ALIVE_SECONDS)
            end.send(("alive",))


class _SentMarks:
    """The image in flight, reported to the engine as shared memory would be: [number, how many so far, reading, retrying]."""

    def __init__(self, connection: _SyncingEnd) -> None:
        self._connection, self._values = connection, [-1, 0, 0, 0]

    def __getitem__(self, index: int) -> int:
        return self._values[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._values[index] = int(value)
        if index == 0:
            self._connection.send(("mark", *self._values))


def _sees(path: str, content: bytes) -> bool:
    refresh_names(Path(path))
    try:
        with open(path, "rb") as file:
            return file.read() == content
    except OSError:
        return False


def open_shared(path: str) -> int:
    """Open a file that workers on several hosts write to, under a lock that they share.

    An NFS client that knows all of a page writes all of it back when some of it was written, and would undo what another host
    has written to the rest; of locked files it writes no more than it was given (Linux: nfs_can_extend_write).
    """
    with error_path(path):
        descriptor = os.open(path, os.O_RDWR | BINARY)
        take_lock(descriptor, is_shared=True)
        return descriptor


def keep_alive(connection: Connection) -> None:
    """Notice within a minute that a host is gone without a word."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                same.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
