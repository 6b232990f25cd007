"""DALI on the CPU: a .npy file an image, shuffled after each epoch; JPEGs are decoded, resized and cropped by DALI itself.

Its crop is rounded in another way and its IDCT is another one, so that what it packs of photographs is some levels off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

TITLE = "DALI, CPU"
REQUIREMENTS = ("nvidia-dali-cuda130==2.4.0",)
SYSTEM = ()
WAYS = {"readers.numpy": "full"}
LEVELS = 8.0


def pack(job: Any) -> None:
    import numpy as np

    for row, pixels in enumerate(decoded(job) if job.photographs else job.stream()):
        np.save(Path(job.packed, f"{row:08}.npy"), pixels)


def decoded(job: Any) -> Any:
    from nvidia.dali import fn, pipeline_def

    count, size = job.shape[0], job.shape[1]

    @pipeline_def(batch_size=64, num_threads=job.threads, device_id=None)
    def rows() -> Any:
        files = [job.photograph(row) for row in range(count)]
        jpegs, _ = fn.readers.file(files=files, labels=list(range(count)), name="reader")
        pixels = fn.decoders.image(jpegs, adjust_orientation=False)
        pixels = fn.resize(pixels, resize_shorter=size, antialias=True)
        return fn.crop(pixels, crop=(size, size))

    pipe, made = rows(), 0
    pipe.build()
    while made < count:
        for pixels in pipe.run()[0].as_array()[: count - made]:
            yield pixels
            made += 1


def epochs(job: Any, way: str) -> Any:
    import torch
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=job.batch_size, num_threads=job.threads, device_id=None)
    def batches() -> Any:
        files = [f"{row:08}.npy" for row in range(job.shape[0])]
        # padded, an epoch is full batches, of which the last is dropped: otherwise rows of the next would come
        pixels = fn.readers.numpy(
            file_root=job.packed, files=files, shuffle_after_epoch=True, pad_last_batch=True, name="reader"
        )
        return pixels, fn.get_property(pixels, key="source_info")

    loader = DALIGenericIterator(
        [batches()], ["pixels", "file"], reader_name="reader", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )
    # the digits at the end of "/.../00000123.npy" as ASCII codes -> 123
    powers = 10 ** torch.arange(7, -1, -1)
    return lambda: (
        (batch["pixels"], ((batch["file"][:, -12:-4].long() - ord("0")) * powers).sum(1)) for (batch,) in loader
    )
