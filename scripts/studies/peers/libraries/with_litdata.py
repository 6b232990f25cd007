"""LitData: its chunks of raw tensors, shuffled inside the chunks by StreamingDataset."""

from __future__ import annotations

from typing import Any

TITLE = "LitData"
REQUIREMENTS = ("litdata==0.2.76",)
# of scripts.studies.peers.remote
REMOTE = ("boto3",)
SYSTEM = ()
WAYS = {"StreamingDataset": "within chunks"}


class LitdataSample:
    """What makes a sample of a row, in the processes that optimize() starts."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def __call__(self, row: int) -> tuple[Any, int]:
        import torch

        return torch.from_numpy(self._job.row(row)), row


def pack(job: Any) -> None:
    import litdata

    rows = list(range(job.shape[0]))
    litdata.optimize(
        LitdataSample(job), rows, output_dir=job.packed, num_workers=job.threads, chunk_bytes="64MB", start_method="fork"
    )


def epochs(job: Any, way: str) -> Any:
    import litdata

    data = litdata.StreamingDataset(job.packed, shuffle=True, drop_last=True)
    # without workers: two of them read more slowly
    loader = litdata.StreamingDataLoader(data, batch_size=job.batch_size, num_workers=0, drop_last=True)
    return lambda: iter(loader)


def remote_epochs(job: Any, url: str, cache: str) -> Any:
    """Return what begins an epoch of the chunks at an s3:// URL, through a cache folder that keeps them."""
    import os

    import litdata
    from litdata.streaming import downloader

    # where obstore is installed, it refuses a server without TLS, and LitData has no option for one: boto3 then
    downloader._OBSTORE_AVAILABLE = False
    # on the same link, from the same server
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    data = litdata.StreamingDataset(url, cache_dir=cache, shuffle=True, drop_last=True, storage_options=options)
    loader = litdata.StreamingDataLoader(data, batch_size=job.batch_size, num_workers=job.threads, drop_last=True)
    return lambda: iter(loader)
