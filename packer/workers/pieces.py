"""A piece of a block in progress, and a worker as the engine knows it: what it was given, and for how long it has stood still.

Decides nothing: who gets which piece, and who is replaced, is `engine.py`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection

from packer.store.blocks import Result, Task
from packer.workers.contracts import Shared, WorkerProcess
from packer.workers.processes import process_state

# A killed process that hangs in the kernel (a dead NFS server) is left behind rather than waited for.
_JOIN_SECONDS = 5.0


@dataclass(eq=False)
class Piece:
    """Inputs of a block that follow each other, in progress.

    task: as it is given out next.
    result: of its last decoding, even where that worker is gone: what it takes is counted.
    offset: the byte of the file of rows where its rows go, and size_bytes: how much they have there; None until all pieces
        before it are counted, or guessed.
    is_guessed: what it takes was guessed once; known also after a change of rows.
    is_suspect: its only image cost a worker.
    is_held: its rows are in the memory of the worker that has it.
    is_in_place: it is written, and so is all before it.
    """

    task: Task
    result: Result | None = None
    offset: int | None = None
    size_bytes: int | None = None
    is_held: bool = False
    is_written: bool = False
    is_guessed: bool = False
    is_suspect: bool = False
    is_in_place: bool = False

    @property
    def start(self) -> int:
        """Its first input, by which all pieces are in order."""
        return self.task.start

    def cut(self, stop: int, guessed_bytes: Callable[[Task], int | None]) -> Piece:
        """Let this piece end before the input `stop`, and return the rest; guessed bytes are cut in two."""
        task, self.result = self.task, None
        rest = replace(self, task=task.cut(stop, task.stop))
        self.task = task.cut(task.start, stop)
        if self.offset is not None and self.size_bytes is not None:
            own = guessed_bytes(self.task) or 0
            rest.offset, rest.size_bytes = self.offset + own, self.size_bytes - own
            self.size_bytes = own
        return rest


@dataclass(eq=False)
class WorkerHandle:
    """A process and what it was given. One that stands alone is given nothing more, and ends with what it has.

    started, heard: when it was started, and when it last finished anything, each by its own clock.
    stages: its seconds of each, as of the piece that it wrote last.
    pieces: by first input, in the order in which they were given to it; until they are written.
    later: rests of its pieces, which it is sent to decode once it holds less.
    still: seconds since the image in flight, or what is owed between two, is the same; halted: those of them in which its
        process was stopped; silent: seconds since its last message.
    is_asked: whether it was asked to give back what it has not begun.
    """

    process: WorkerProcess
    pipe: Connection
    in_flight: Shared
    name: str
    started: float
    heard: float
    stages: dict[str, float] = field(default_factory=dict)
    is_alone: bool = False
    pieces: dict[int, Piece] = field(default_factory=dict)
    later: list[Piece] = field(default_factory=list)
    last_count: int = -1
    still: float = 0.0
    halted: float = 0.0
    silent: float = 0.0
    is_asked: bool = False

    def give(self, piece: Piece) -> None:
        """Have it decode a piece; one that another worker had may have its offset already."""
        self.pieces[piece.start] = piece
        self.send("decode", piece.task)
        if piece.offset is not None:
            self.write(piece)

    def write(self, piece: Piece) -> None:
        """Have it write a piece at its offset, once it is decoded."""
        self.send("write", piece.start, piece.offset)

    def send(self, *message: object) -> None:
        """Send it a message."""
        # a worker that died in between is noticed by its pipe, where its pieces are given out again
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    @property
    def undecoded(self) -> list[Piece]:
        """What it was sent to decode and has not, in that order."""
        return [piece for piece in self.pieces.values() if piece.result is None]

    def has_room(self, undecoded: int, most_inputs: int, most_bytes: int) -> bool:
        """Whether it may be given one more piece, where it is to have so many that are not decoded, and to hold so much."""
        if self.is_alone or len(self.undecoded) >= undecoded:
            return False
        held = [piece.result for piece in self.pieces.values() if piece.result is not None]
        if held and sum(result.size_bytes for result in held) >= most_bytes:
            return False
        return sum(len(piece.task.paths) for piece in self.pieces.values()) <= most_inputs

    def suspect(self) -> Piece | None:
        """Return the piece of the image in flight, readable even after a crash; None between pieces."""
        index = self.in_flight[0]
        return next((p for p in self.pieces.values() if p.start <= index < p.task.stop), None)

    def waits_for(self) -> str:
        """Return the path of the image in flight where its source cannot be read now and is retried; else ""."""
        index, _, _, is_retried = self.in_flight
        piece = self.suspect() if is_retried else None
        # the image may be another one by now
        is_its = piece is not None and piece.start <= index < piece.task.stop
        return piece.task.paths[index - piece.start] if piece is not None and is_its else ""

    def behind(self) -> int:
        """Return how many inputs it was given and has not begun, as far as can be seen from here."""
        suspect, count = self.suspect(), sum(len(piece.task.paths) for piece in [*self.undecoded, *self.later])
        return (
            count if suspect is None or suspect.result is not None else count - (self.in_flight[0] - suspect.start + 1)
        )

    def look(self, seconds: float, silence: float | None) -> None:
        """Take in that so many seconds passed since the last look; silence: on another machine, after how long it is stopped."""
        index, count, *_ = self.in_flight
        self.silent += seconds
        if count != self.last_count or (index < 0 and not self.is_owing()):
            self.last_count, self.still, self.halted = count, 0.0, 0.0
            return
        self.still += seconds
        if silence is None:
            self.halted += seconds * (process_state(self.process) in ("T", "t"))
        elif self.silent > silence:
            self.halted = max(self.halted, min(self.still, self.silent))

    def hear(self, now: float) -> None:
        """Take in that it has finished something."""
        self.still = self.halted = self.silent = 0.0
        self.heard = now

    def is_owing(self) -> bool:
        """Whether it has something to do: a piece to decode, or one to write whose offset is known."""
        return any(piece.result is None or piece.offset is not None for piece in self.pieces.values())

    def end(self) -> None:
        """End its process; what it wrote stays written."""
        self.process.kill()
        self.process.join(_JOIN_SECONDS)
        self.pipe.close()

    def seconds(self, now: float) -> dict[str, float]:
        """Return its seconds of each stage, once it has ended."""
        # what it did since the piece that it wrote last is lost, and is nothing where it had done all
        known = sum(self.stages.values())
        waited = self.stages.get("wait", 0.0) + max(0.0, now - self.started - known)
        return self.stages | {"wait": waited}


def first_input(piece: Piece) -> int:
    """Order pieces."""
    return piece.start
