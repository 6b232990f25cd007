"""The program that fetches for one training process: python -m reader.remote.fetcher, a question a line, an answer a line.

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

from reader.format.errors import StoreError
from reader.format.fields import Json
from reader.remote.blocks import BlockFetcher
from reader.remote.folder import CacheFolder, check_cache_size
from reader.remote.opening import Source, prepared
from reader.remote.presence import KINDS

# Nothing waits for what a fetcher without a parent does in that time.
_PARENT_LOOK_SECONDS = 1.0
_QUESTIONS = 4


class Session:
    """Answers the questions of one process about one store."""

    def __init__(self) -> None:
        self._opened: tuple[CacheFolder, Source] | None = None
        self._limit: int | None = None
        self._blocks: BlockFetcher | None = None
        self._making = threading.Lock()

    def open(self, url: str, cache: str, limit: int | None, digest: str | None, in_slots: bool | None) -> Json:
        """Bring what opening needs into the cache; returns the folder, and which table it has."""
        root, source = prepared(url, Path(cache), digest, limit, in_slots=in_slots)
        folder = CacheFolder(root)
        if not folder.table.is_complete:
            check_cache_size(folder, limit)
        self._opened, self._limit = (folder, source), limit
        if not folder.table.is_complete and all(map(folder.table.has, range(folder.count))):
            self.blocks.seal()
        return [str(root), folder.table.identity]

    @property
    def blocks(self) -> BlockFetcher:
        """What fetches blocks, made when the first is wanted."""
        assert self._opened is not None
        with self._making:
            if self._blocks is None:
                self._blocks = BlockFetcher(*self._opened, self._limit)
            return self._blocks

    def folder(self) -> str:
        """Return in which folder below the URL the store is; "": there."""
        assert self._opened is not None
        source = self._opened[1]
        if not source.head:
            source.look()
        return source.folder

    def close(self) -> None:
        """Finish what was brought here last."""
        if self._blocks is not None:
            with contextlib.suppress(StoreError, OSError):
                self._blocks.seal()

    def answer(self, question: dict[str, Json]) -> Json:
        """Do what is asked."""
        if index := question.get("reached"):
            self.blocks.reach(index)
        match question["ask"]:
            case "open":
                return self.open(*(question[name] for name in ("url", "cache", "limit", "digest", "in_slots")))
            case "folder":
                return self.folder()
            case "ensure":
                return self.blocks.ensure(question["blocks"])
            case "ahead":
                return self.blocks.ahead(question["blocks"], question.get("soon", 0))
            case "plan":
                return self.blocks.plan(question["orders"])
            case "complete":
                return self.blocks.complete()
            case "fetched":
                return self.blocks.fetched_bytes()
            case "requests":
                return self.blocks.requests()
            case "file":
                return self.blocks.file(question["name"])
        raise AssertionError(question)


def main() -> None:
    """Answer questions until there are no more, or the parent is gone."""
    # Ctrl-C is for the training program, which ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    session, answering = Session(), threading.Lock()

    def reply(question: dict[str, object]) -> None:
        try:
            answer = {"answer": session.answer(question)}
        except (StoreError, ValueError) as e:
            answer = {"error": str(e), "kind": next(kind.__name__ for kind in KINDS if isinstance(e, kind))}
        except BaseException as e:
            answer = {"error": f"{type(e).__name__}: {e}", "kind": "RuntimeError"}
        with answering:
            try:
                print(json.dumps({"id": question["id"]} | answer), flush=True)
            except BrokenPipeError:
                # who asked was killed: nothing is to be done, and nothing to be said on a terminal that others use
                os._exit(0)

    with concurrent.futures.ThreadPoolExecutor(_QUESTIONS) as pool:
        for line in sys.stdin:
            question = json.loads(line)
            # what is planned is planned before what is asked for next
            if question["ask"] in ("ahead", "plan"):
                reply(question)
            else:
                pool.submit(reply, question)
        session.close()
        os._exit(0)


def _end_with(parent: int) -> None:
    """End this process when its parent has: a fork of that one may hold its end of the pipe."""
    while os.getppid() == parent:
        time.sleep(_PARENT_LOOK_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    main()
