"""Mosaic Streaming: MDS shards of raw arrays, shuffled over all of them ("naive"), read by a DataLoader's workers."""

from __future__ import annotations

from typing import Any

import torch

TITLE = "Mosaic Streaming"
# it imports torchvision, of the version that belongs to torch 2.13
REQUIREMENTS = ("mosaicml-streaming==0.13.0", "torchvision==0.28.0")
# of scripts.studies.peers.remote
REMOTE = ()
SYSTEM = ()
WAYS = {"MDS": "full"}

if torch.version.cuda is None:
    # torchvision's wheel is for CUDA and cannot be imported beside the CPU torch unless somebody has declared these two
    _OPERATORS = torch.library.Library("torchvision", "DEF")
    for _name in "nms", "qnms":
        _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def pack(job: Any) -> None:
    from streaming import MDSWriter

    shape = ",".join(map(str, job.shape[1:]))
    with MDSWriter(out=job.packed, columns={"pixels": f"ndarray:uint8:{shape}", "row": "int"}) as writer:
        for row, pixels in enumerate(job.stream()):
            writer.write({"pixels": pixels, "row": row})


def epochs(job: Any, way: str) -> Any:
    from streaming import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(
        local=job.packed, shuffle=True, shuffle_algo="naive", batch_size=job.batch_size, num_canonical_nodes=1
    )
    loader = StreamingDataLoader(data, batch_size=job.batch_size, num_workers=job.threads, drop_last=True)
    return lambda: ((batch["pixels"], batch["row"]) for batch in loader)


def remote_epochs(job: Any, url: str, cache: str) -> Any:
    """Return what begins an epoch of the shards at an s3:// URL, through a cache folder that keeps them."""
    from streaming import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(
        remote=url, local=cache, shuffle=True, batch_size=job.batch_size, num_canonical_nodes=1, predownload=4096
    )
    loader = StreamingDataLoader(data, batch_size=job.batch_size, num_workers=job.threads, drop_last=True)
    return lambda: ((batch["pixels"], batch["row"]) for batch in loader)
