"""The blocks in progress, in order, and where in the file the rows of each piece go. Knows no workers and decodes nothing.

A piece gets its offset once all pieces before it are counted, or on a guess; after a wrong guess what follows it is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from packer.clock import StageClock
from packer.errors import RowsChanged
from packer.store.blocks import Result, Task
from packer.workers.pieces import Piece


class Offsets:
    """Gives out the bytes of the file of rows.

    Args:
        guessed_bytes: returns the bytes of a task's rows if none of its images is rejected; None: that depends on the images.
        write: has a piece written at its offset; called for each as soon as it has one.
        move: moves bytes of the file of rows, (from, to, how many); None: nothing can.
        clock: the caller's.
    """

    def __init__(
        self,
        guessed_bytes: Callable[[Task], int | None],
        write: Callable[[Piece], None],
        move: Callable[[int, int, int], None] | None,
        clock: StageClock,
    ) -> None:
        self._guessed_bytes, self._write, self._move, self._clock = guessed_bytes, write, move, clock
        # by number and in that order: the pieces of each, in theirs
        self._blocks: dict[int, list[Piece]] = {}
        self._is_shifted = False
        self._next = self._done = 0

    def begin(self, offset: int) -> None:
        """Give the first piece this offset."""
        self._next = self._done = offset

    def add(self, task: Task) -> Piece:
        """Put a block behind the others; returns it, in one piece."""
        self._blocks[task.block] = [Piece(task)]
        return self._blocks[task.block][0]

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def pieces(self) -> Iterator[Piece]:
        """Pass through all pieces in progress, in order."""
        return (piece for pieces in self._blocks.values() for piece in pieces)

    def cut(self, piece: Piece, stop: int) -> Piece:
        """Cut a piece in progress; returns the rest, which no worker has yet."""
        rest = piece.cut(stop, self._guessed_bytes)
        pieces = self._blocks[piece.task.block]
        pieces.insert(pieces.index(piece) + 1, rest)
        return rest

    def isolate(self, piece: Piece, index: int, reason: str) -> tuple[Piece, list[Piece]]:
        """Cut an image that cost a worker out of its piece; returns it and the others. One that cost two is refused."""
        others = [self.cut(piece, index + 1)] if index + 1 < piece.task.stop else []
        if index > piece.start:
            others.append(piece)
            piece = self.cut(piece, index)
        if piece.is_suspect:
            piece.task = replace(piece.task, refused=piece.task.refused | {index: reason})
        piece.is_suspect = True
        return piece, others

    def count(self, piece: Piece, result: Result) -> None:
        """Take what a piece was decoded to, and give offsets to all that can have them now.

        Raises:
            RowsChanged: it does not fit where it goes.
        """
        if piece.size_bytes not in (None, result.size_bytes):
            if self._move is None or result.size_bytes > (piece.size_bytes or 0):
                raise RowsChanged
            self._is_shifted = True
        piece.result, piece.is_held = result, True
        self._give()

    def guess(self, is_held_up: Callable[[Piece], bool]) -> None:
        """Give offsets also behind pieces that are held up, on the guess that all their images become rows."""
        while (piece := next(self._without(), None)) is not None and not piece.is_guessed:
            size_bytes = self._guessed_bytes(piece.task)
            if size_bytes is None or piece.result is not None or not is_held_up(piece):
                return
            piece.is_guessed = True
            self._put(piece, size_bytes)
            self._give()

    def finished(self) -> Iterator[Result]:
        """Yield results of blocks up to the first whose rows are not at their final offset; they are no longer in progress."""
        for piece in self.pieces():
            if piece.is_in_place:
                continue
            if piece.result is None or piece.offset is None or not piece.is_written:
                break
            if piece.offset != self._done and self._move is not None:
                self._clock.enter("write")
                self._move(piece.offset, self._done, piece.result.size_bytes)
                self._clock.enter("serve")
            self._done += piece.result.size_bytes
            piece.is_in_place = True
        if self._is_shifted:
            self._give()
        while self._blocks:
            number, pieces = next(iter(self._blocks.items()))
            results = [piece.result for piece in pieces if piece.is_in_place and piece.result is not None]
            if len(results) < len(pieces):
                return
            del self._blocks[number]
            yield Result.joined(results)

    def restart(self) -> list[Piece]:
        """Forget what all pieces whose rows are not at their final offset were decoded to; returns them, to be decoded again."""
        self._next, self._is_shifted = self._done, False
        pieces = [piece for piece in self.pieces() if not piece.is_in_place]
        for piece in pieces:
            piece.result = piece.offset = piece.size_bytes = None
            piece.is_held = piece.is_written = False
        return pieces

    def _give(self) -> None:
        """Give every decoded piece its offset as soon as all pieces before it are counted."""
        for piece in self._without():
            if piece.result is None or not self._is_open():
                return
            self._put(piece, piece.result.size_bytes)

    def _is_open(self) -> bool:
        """Whether the next offset is right, or no worse than those before it.

        Behind a piece that took less than its guess all is too far back, and is moved as it is finished: what gets an offset
        by then must not be in its way.
        """
        if self._is_shifted and all(piece.is_in_place or piece.offset is None for piece in self.pieces()):
            self._next, self._is_shifted = self._done, False
        return not self._is_shifted or any(p.offset is not None and p.result is None for p in self.pieces())

    def _without(self) -> Iterator[Piece]:
        """Pass through the pieces that have no offset; those that have one come before them all."""
        return (piece for piece in self.pieces() if piece.offset is None)

    def _put(self, piece: Piece, size_bytes: int) -> None:
        """Give a piece the next so many bytes, and have it written there."""
        piece.offset, piece.size_bytes = self._next, size_bytes
        self._next += size_bytes
        self._write(piece)
