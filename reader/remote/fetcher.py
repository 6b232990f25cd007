"""The program that fetches for one training process, by `main`: a question a line, an answer a line.

A process of its own, since obstore's runtime does not survive a fork, and DataLoader's workers are forks. It ends with its
parent, whatever ends that one, and leaves nothing that others wait for.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from reader.format.errors import StoreError
from reader.format.fields import Json
from reader.remote.block_files import StoreFile
from reader.remote.blocks import BlockFetcher
from reader.remote.folder import CacheFolder, check_cache_size
from reader.remote.opening import Source, prepared
from reader.remote.presence import encode_error

# Nothing waits for what a fetcher without a parent does in that time.
_PARENT_LOOK_SECONDS = 1.0
_QUESTIONS = 4


class Session:
    """Answers the questions of one process about one store: each is a method's name with its arguments."""

    def __init__(self) -> None:
        self._opened: tuple[CacheFolder, Source] | None = None
        self._limit: int | None = None
        self._blocks: BlockFetcher | None = None
        self._making = threading.Lock()

    def open(self, url: str, cache: str, limit: int | None, digest: str | None, in_small: bool | None) -> Json:
        """Bring what opening needs into the cache; returns the folder, and which file of marks it has."""
        root, source = prepared(url, Path(cache), digest, limit, in_small=in_small)
        folder = CacheFolder(root)
        if folder.is_small:
            check_cache_size(folder, limit)
        self._opened, self._limit = (folder, source), limit
        if isinstance(folder.table, StoreFile) and folder.table.has_all:
            self.blocks.seal()
        return [str(root), folder.table.identity]

    @property
    def blocks(self) -> BlockFetcher:
        """Fetches blocks; created when the first is wanted."""
        assert self._opened is not None
        with self._making:
            if self._blocks is None:
                self._blocks = BlockFetcher(*self._opened, self._limit)
            return self._blocks

    def close(self) -> None:
        """Finish the blocks that were fetched last."""
        if self._blocks is not None:
            with contextlib.suppress(StoreError, OSError):
                self._blocks.seal()

    def answer(self, ask: str, reached: int = 0, **values: Any) -> Json:
        """Do what is asked; reached: where the reader is in the planned order."""
        if reached:
            self.blocks.reach(reached)
        asked = self if ask == "open" else self.blocks
        answer: Json = getattr(asked, ask)(**values)
        return answer


def main() -> None:
    """Answer questions until there are no more, or the parent is gone."""
    # Ctrl-C is for the training program, which ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    session, answering = Session(), threading.Lock()

    def reply(number: int, question: dict[str, Any]) -> None:
        try:
            answer = {"answer": session.answer(**question)}
        except BaseException as e:
            answer = {"error": encode_error(e)}
        with answering:
            try:
                print(json.dumps({"id": number} | answer), flush=True)
            except BrokenPipeError:
                # the process that asked was killed: exit, and write nothing to a terminal that others use
                os._exit(0)

    with concurrent.futures.ThreadPoolExecutor(_QUESTIONS) as pool:
        for line in sys.stdin:
            question = json.loads(line)
            number = question.pop("id")
            # a plan takes effect before the next question
            if question["ask"] in ("prefetch", "plan"):
                reply(number, question)
            else:
                pool.submit(reply, number, question)
        session.close()
        os._exit(0)


def _end_with(parent: int) -> None:
    """End this process when its parent has: a fork of that one may hold its end of the pipe."""
    while os.getppid() == parent:
        time.sleep(_PARENT_LOOK_SECONDS)
    os._exit(0)
