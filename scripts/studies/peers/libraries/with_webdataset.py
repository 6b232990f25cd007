"""WebDataset: tars of .npy files, shuffled in a buffer of 5,000 rows in each worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TITLE = "WebDataset"
REQUIREMENTS = ("webdataset==1.0.2",)
SYSTEM = ()
WAYS = {"npy": "buffer of 5,000"}
BUFFER_ROWS = 5000
# as many as workers would share evenly
SHARDS = 20


def pack(job: Any) -> None:
    import webdataset

    with webdataset.ShardWriter(f"{job.packed}/%06d.tar", maxcount=-(-job.shape[0] // SHARDS), verbose=0) as writer:
        for row, pixels in enumerate(job.stream()):
            writer.write({"__key__": f"{row:08}", "npy": pixels, "cls": row})


def epochs(job: Any, way: str) -> Any:
    import torch
    import webdataset

    shards = [str(path) for path in sorted(Path(job.packed).glob("*.tar"))]
    samples = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(BUFFER_ROWS).decode()
    batches = samples.to_tuple("npy", "cls").batched(job.batch_size, partial=False)
    loader = webdataset.WebLoader(batches, batch_size=None, num_workers=job.threads)
    return lambda: ((torch.as_tensor(pixels), torch.as_tensor(rows)) for pixels, rows in loader)
