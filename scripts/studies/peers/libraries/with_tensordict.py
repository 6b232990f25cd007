"""tensordict's tutorial: a tensorclass of MemoryMappedTensors, filled by a DataLoader and read by one, a batch at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TITLE = "tensordict"
REQUIREMENTS = ("tensordict==0.15.3",)
SYSTEM = ()
WAYS = {"DataLoader": "full"}
# the tutorial's
PACKED_AT_ONCE = 64


class TensordictRows:
    """What the DataLoader's workers take samples from."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def __len__(self) -> int:
        return self._job.shape[0]

    def __getitem__(self, row: int) -> tuple[Any, int]:
        import torch

        return torch.from_numpy(self._job.row(row)), row


def pack(job: Any) -> None:
    from torch.utils.data import DataLoader

    data, start = pictures(job, "empty"), 0
    for pixels, rows in DataLoader(TensordictRows(job), batch_size=PACKED_AT_ONCE, num_workers=job.threads):
        data[start : start + len(rows)] = type(data)(pixels=pixels, rows=rows, batch_size=[len(rows)])
        start += len(rows)


def epochs(job: Any, way: str) -> Any:
    from torch.utils.data import DataLoader

    # without workers: two of them read more slowly
    loader = DataLoader(
        pictures(job, "from_filename"), batch_size=job.batch_size, shuffle=True, drop_last=True, collate_fn=as_it_is
    )
    return lambda: ((batch.pixels, batch.rows) for batch in loader)


def pictures(job: Any, how: str) -> Any:
    """Return the tensorclass over its two files, made again ("empty") or as they are ("from_filename")."""
    import torch
    from tensordict import MemoryMappedTensor, tensorclass

    @tensorclass
    class PackedRows:
        pixels: torch.Tensor
        rows: torch.Tensor

    folder, mapped = Path(job.packed), getattr(MemoryMappedTensor, how)
    pixels = mapped(shape=tuple(job.shape), dtype=torch.uint8, filename=folder / "pixels")
    rows = mapped(shape=(job.shape[0],), dtype=torch.int64, filename=folder / "rows")
    return PackedRows(pixels=pixels, rows=rows, batch_size=[job.shape[0]])


def as_it_is(batch: Any) -> Any:
    return batch
