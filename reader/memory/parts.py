"""A function of a batch called with some of its rows at a time, on several threads, and the results joined in order.

What such a function makes in between, float32 of some images, then stays in the cache of a core; of a whole batch it would go
through memory. Threads of OpenMP, which share each operator, do not help with that.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from reader.epoch import torch_thread_limit, transform_threads
from reader.memory.threads import on_threads
from reader.store import Batch, ImageBatch, RaggedBatch
from reader.tuning import tuning


def in_parts(call: Callable[[object], object], batch: Batch, threads: int) -> object:
    """Return call(batch), called with some rows at a time on so many threads.

    call makes of each row what it would make of it in the batch: an ImageBatch, a tensor with a row for each, or a list or tuple
    of these. In its threads an operator of torch uses one thread. Where that cannot be had, the whole batch is given to it here.

    Raises:
        Exception: what call has raised for one of the parts.
    """
    spans = _spans(batch, threads)
    one_thread = _one_torch_thread()
    if len(spans) < 2 or threads < 2 or one_thread is None:
        return call(batch)
    joined = _Joined(batch)
    results: list[object] = [None] * len(spans)

    def part(n: int, context: contextvars.Context) -> None:
        one_thread()
        context.run(transform_threads.set, 1)
        results[n] = joined.write_part(context.run(call, _rows(batch, *spans[n])), spans[n][0])

    # such as the epoch that is running
    each = [(n, contextvars.copy_context()) for n in range(len(spans))]
    on_threads("transform", threads, part, each).wait()
    return joined.result(results)


def _spans(batch: Batch, threads: int) -> list[tuple[int, int]]:
    """Cut a batch into runs of rows, as many for each thread if they are not too small: [(0, 6), (6, 12), ...]."""
    count, size_bytes, sizes = len(batch), batch.pixels.numel(), tuning()
    wanted = -(-size_bytes // (sizes.transform_part_bytes * threads)) * threads
    parts = max(1, min(count, wanted, size_bytes // sizes.least_transform_part_bytes))
    return [(count * n // parts, count * (n + 1) // parts) for n in range(parts)]


def _rows(batch: Batch, start: int, stop: int) -> Batch:
    """Return rows of a batch as views."""
    if isinstance(batch, ImageBatch):
        return batch[start:stop]
    names = ("targets", "offsets", "shapes", "extras", "rows", "mask_offsets", "origin")
    columns = {name: getattr(batch, name) for name in names}
    chosen: dict[str, Any] = {name: None if column is None else column[start:stop] for name, column in columns.items()}
    return RaggedBatch(pixels=batch.pixels, text_file=batch.text_file, batch_size=[], **chosen)


class _Joined:
    """Joins the results of parts of a batch; large tensors are written in place, by the thread that has them."""

    def __init__(self, batch: Batch) -> None:
        self._batch, self._lock = batch, threading.Lock()
        # one for each tensor of the result, as long as the batch, allocated by the first part that is done
        self._tensors: dict[tuple[int, ...], torch.Tensor] = {}

    def write_part(self, result: object, start: int, key: tuple[int, ...] = ()) -> object:
        """Write a part's tensors, and return what is left to join."""
        if isinstance(result, torch.Tensor):
            self._room(result, key)[start : start + len(result)] = result
            return None
        if isinstance(result, list | tuple):
            return type(result)(self.write_part(each, start, (*key, n)) for n, each in enumerate(result))
        if not isinstance(result, ImageBatch):
            raise TypeError(
                f"a transform of some rows gave a {type(result).__name__}, expected an ImageBatch or tensors."
            )
        self.write_part(result.pixels, start, key)
        return result

    def result(self, results: Sequence[Any], key: tuple[int, ...] = ()) -> object:
        """Return the joined result, given what `write_part` returned for each part."""
        first = results[0]
        if first is None:
            return self._tensors[key]
        if isinstance(first, list | tuple):
            each = zip(*results, strict=True)
            return type(first)(self.result(parts, (*key, n)) for n, parts in enumerate(each))
        pixels = self._tensors[key]
        content = None
        if any(part.content is not None for part in results):
            content = torch.cat([_content_of(part) for part in results])
        return ImageBatch(
            pixels=pixels,
            targets=torch.cat([part.targets for part in results]),
            content=content,
            extras=None if first.extras is None else TensorDict.cat([part.extras for part in results]),
            rows=self._batch.rows,
            origin=self._batch.origin,
            text_file=self._batch.text_file,
            batch_size=pixels.shape[:1],
            device=pixels.device,
        )

    def _room(self, result: torch.Tensor, key: tuple[int, ...]) -> torch.Tensor:
        """Return the tensor [B, ...] that a part of the result belongs in, with the same order of dimensions in memory."""
        with self._lock:
            if key not in self._tensors:
                order = sorted(range(1, result.ndim), key=result.stride, reverse=True)
                room = result.new_empty(len(self._batch), *(result.shape[n] for n in order))
                self._tensors[key] = room.permute(0, *(1 + order.index(n) for n in range(1, result.ndim)))
            return self._tensors[key]


def _content_of(batch: ImageBatch) -> torch.Tensor:
    """Return int32[B, 4] y0, x0, y1, x1, the whole row where a part has no content."""
    if batch.content is not None:
        return batch.content
    height, width = batch.pixels.shape[1:3]
    return torch.tensor([0, 0, height, width], dtype=torch.int32).repeat(len(batch), 1)


def _one_torch_thread() -> Callable[[], None] | None:
    """Return a function that lets operators of torch use one thread, the calling one; None where this build has no such thing."""
    limit = torch_thread_limit()
    return None if limit is None else lambda: limit(1)
