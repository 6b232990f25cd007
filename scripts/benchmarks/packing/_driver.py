"""How many images a second can the process of a pack take in from workers on other machines, by their number?

Knows what a worker says over its connection, image by image and block by block; decodes and writes nothing. All connections
end in one other process of this machine, which answers as fast as it can.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Iterator
from multiprocessing.connection import Client, Listener
from typing import Any

from packer.store.blocks import Result, Task
from packer.workers.engine import LocalEngine

# As of a pack of millions of 224 x 224 x 3: blocks of 8 MiB.
BLOCK_IMAGES, ROW_BYTES = 55, 224 * 224 * 3
_SAMPLE = (
    '{"path":"n01440764/n01440764_10026.JPEG","target":0,"bytes":110000,"sha256":"' + "0" * 64 + '","width":500}\n'
)


def driver_seconds(connections: int, blocks: int) -> float:
    """Return the seconds of CPU that an image costs the process which hands out blocks and takes results."""
    images = ["n01440764/n01440764_10026.JPEG"] * BLOCK_IMAGES
    tasks = (Task(n, n * BLOCK_IMAGES, images, [0] * BLOCK_IMAGES) for n in range(blocks))
    with Listener(("127.0.0.1", 0), backlog=1024) as listener:
        hollow = multiprocessing.get_context("fork").Process(
            target=_answer, args=(listener.address, connections), daemon=True
        )
        hollow.start()
        engine = LocalEngine(_EqualRowsJob(), workers=connections, timeout=60, launcher=_Accepting(listener))
        try:
            started = time.thread_time()
            count = sum(1 for _ in engine.run(tasks, 0, ready=lambda: None))
            spent = time.thread_time() - started
        finally:
            hollow.kill()
            hollow.join()
            engine.close()
    assert count == blocks
    return spent / (blocks * BLOCK_IMAGES)


class _EqualRowsJob:
    """A job whose rows all have one size; no worker of it is made here."""

    def worker(self, in_flight: Any, clock: Any) -> Any:
        raise NotImplementedError

    def guessed_bytes(self, task: Task) -> int:
        return len(task.paths) * ROW_BYTES


class _Accepting:
    """Starts workers by taking connections as they come; there is no process to end."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def start(self, job: Any) -> tuple[Any, Any]:
        return self, self._listener.accept()

    def kill(self) -> None:
        pass

    def join(self, seconds: float) -> None:
        pass


def _answer(address: Any, connections: int) -> None:
    """Be all workers: report each image, the block, and that it is written; a message at a time from each in turn."""
    ends = [Client(address) for _ in range(connections)]
    talks: dict[Any, Iterator[tuple[Any, ...]]] = {}
    waiting: dict[Any, list[tuple[Any, ...]]] = {end: [] for end in ends}
    while True:
        is_busy = talks or any(waiting.values())
        for end in multiprocessing.connection.wait(ends, timeout=0 if is_busy else None):
            waiting[end].append(end.recv())
        for end in ends:
            if end not in talks and waiting[end]:
                talks[end] = _said(*waiting[end].pop(0))
            if end in talks:
                message = next(talks[end], None)
                if message is None:
                    del talks[end]
                else:
                    end.send(message)


def _said(kind: str, *content: Any) -> Iterator[tuple[Any, ...]]:
    if kind == "write":
        yield "written", content[0], {"decode": 1.0, "resize": 0.5, "checksum": 0.2, "write": 0.1, "wait": 0.1}
        return
    if kind == "release":
        yield "released", []
        return
    task = content[0]
    for number in range(len(task.paths)):
        yield "mark", task.start + number, number, 0
    yield "mark", -1, len(task.paths), 0
    result = Result(task.block, len(task.paths), rows=len(task.paths), sums=[1, 2, 3], square_sums=[1, 2, 3])
    result.size_bytes = len(task.paths) * ROW_BYTES
    result.samples, result.sources = [_SAMPLE] * len(task.paths), [(110_000, 1 << 60)] * len(task.paths)
    yield "decoded", result, task.start
