"""The loaders of seven_loaders.py, each a generator of batches that reports to a recorder what it does when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from reader import MemmapDataset

WORKERS, AHEAD = 2, 4
READ, COLLATE, COPY, STEP = "read", "collate", "copy to the GPU", "step"
CALLER, MODEL, DEVICE_COPY = "caller", "model", "copy"
NAIVE, FAST, COLLATED, PINNED = "1 naive", "2 mapped", "3 fast collate", "4 pinned"
PARALLEL, QUEUED, PREFETCHED = "5 workers", "6 workers, queue", "7 GPU prefetch"

# lane, stage, start and stop in seconds
Span = tuple[str, str, float, float]
Rows = Sequence[np.ndarray]


class Recorder:
    """Spans of the host by its clock, and of a CUDA device by events, which are read at the end."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.spans = device, list[Span]()
        self._events: list[tuple[str, str, torch.cuda.Event, torch.cuda.Event]] = []
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self._first = self._now()
        self._started = time.perf_counter()

    @contextmanager
    def on_host(self, lane: str, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.spans.append((lane, stage, start, time.perf_counter()))

    @contextmanager
    def on_device(self, lane: str, stage: str) -> Iterator[None]:
        """What is put on the current stream inside; without CUDA as on the host."""
        if self.device.type != "cuda":
            with self.on_host(lane, stage):
                yield
            return
        start = self._now()
        yield
        self._events.append((lane, stage, start, self._now()))

    def ended(self) -> list[Span]:
        """Return all spans by their start."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for lane, stage, *events in self._events:
            start, stop = (self._started + self._first.elapsed_time(event) / 1e3 for event in events)
            self.spans.append((lane, stage, start, stop))
        return sorted(self.spans, key=lambda span: span[2])

    def _now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event


class TimedReads(Dataset):
    """A batch of rows at once, with who read it when."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def __getitem__(self, rows: np.ndarray) -> tuple[torch.Tensor, Span]:
        start, worker = time.perf_counter(), get_worker_info()
        images = torch.from_numpy(self.pixels[rows])
        return images, (f"worker {worker.id + 1 if worker else 0}", READ, start, time.perf_counter())


class Loaders:
    """The seven, each a generator of batches on the device that reports to the recorder what it does."""

    def __init__(self, images: Path, data: MemmapDataset, order: Rows, device: torch.device) -> None:
        self._files, self._pixels = sorted(images.rglob("*.jpg")), data.numpy()
        self._order, self._device, self._cuda = order, device, device.type == "cuda"

    def all(self) -> dict[str, Callable[[Recorder], Iterator[torch.Tensor]]]:
        """Return those that this machine can run."""
        found: dict[str, Any] = {NAIVE: self.naive, FAST: self.fast, COLLATED: self.collated}
        if self._cuda:
            found[PINNED] = self.pinned
        found |= {
            PARALLEL: lambda recorder: self.workers(recorder, 1),
            QUEUED: lambda recorder: self.workers(recorder, AHEAD),
        }
        return found | ({PREFETCHED: self.prefetched} if self._cuda else {})

    def naive(self, recorder: Recorder) -> Iterator[torch.Tensor]:
        return self._item_by_item(recorder, lambda row: np.array(Image.open(self._files[row])))

    def fast(self, recorder: Recorder) -> Iterator[torch.Tensor]:
        return self._item_by_item(recorder, lambda row: np.array(self._pixels[row]))

    def _item_by_item(self, recorder: Recorder, read: Callable[[int], np.ndarray]) -> Iterator[torch.Tensor]:
        for rows in self._order:
            with recorder.on_host(CALLER, READ):
                items = [read(row) for row in rows]
            with recorder.on_host(CALLER, COLLATE):
                images = default_collate(items)
            yield self._sent(recorder, images)

    def collated(self, recorder: Recorder) -> Iterator[torch.Tensor]:
        for rows in self._order:
            with recorder.on_host(CALLER, READ):
                images = torch.from_numpy(self._pixels[rows])
            yield self._sent(recorder, images)

    def pinned(self, recorder: Recorder) -> Iterator[torch.Tensor]:
        buffer = torch.empty(len(self._order[0]), *self._pixels.shape[1:], dtype=torch.uint8, pin_memory=True)
        for rows in self._order:
            # the one buffer may not be refilled while it is still being copied
            torch.cuda.synchronize(self._device)
            with recorder.on_host(CALLER, READ):
                np.take(self._pixels, rows, axis=0, out=buffer.numpy(), mode="clip")
            yield self._sent(recorder, buffer)

    def workers(self, recorder: Recorder, ahead: int) -> Iterator[torch.Tensor]:
        for images in self._read_by_workers(recorder, ahead):
            yield self._sent(recorder, images)

    def prefetched(self, recorder: Recorder) -> Iterator[torch.Tensor]:
        """Send the next batch on a stream of its own before this one is handed out."""
        side, batches = torch.cuda.Stream(self._device), self._read_by_workers(recorder, AHEAD)

        def sent_ahead() -> torch.Tensor | None:
            images = next(batches, None)
            if images is None:
                return None
            with torch.cuda.stream(side):
                return self._sent(recorder, images)

        ready = sent_ahead()
        while ready is not None:
            torch.cuda.current_stream(self._device).wait_stream(side)
            ready.record_stream(torch.cuda.current_stream(self._device))
            images, ready = ready, sent_ahead()
            yield images

    def _read_by_workers(self, recorder: Recorder, ahead: int) -> Iterator[torch.Tensor]:
        options = {"num_workers": WORKERS, "prefetch_factor": ahead, "pin_memory": self._cuda}
        loader = iter(DataLoader(TimedReads(self._pixels), batch_size=None, sampler=self._order, **options))
        try:
            for images, span in loader:
                recorder.spans.append(tuple(span))
                yield images
        finally:
            # what was read ahead and never taken belongs in the picture
            recorder.spans += [tuple(span) for _, span in loader]

    def _sent(self, recorder: Recorder, images: torch.Tensor) -> torch.Tensor:
        if not self._cuda:
            return images
        with recorder.on_device(DEVICE_COPY, COPY):
            return images.to(self._device, non_blocking=True)
