"""SPDL: has no packed form; its threads decode every photograph by FFmpeg in each epoch.

FFmpeg scales by its own arithmetic, so that pixels are a little off.
"""

from __future__ import annotations

from typing import Any

TITLE = "SPDL"
REQUIREMENTS = ("spdl==0.8.0",)
SYSTEM = ("ffmpeg",)
WAYS = {"decoding": "full"}
LEVELS = 3.0


def epochs(job: Any, way: str) -> Any:
    import numpy as np
    import spdl.io
    import torch
    from spdl.pipeline import PipelineBuilder

    size, generator = job.shape[1], np.random.default_rng(0)
    # cover, then crop, as everybody here; lanczos would be nicer, and slower
    scale = {"scale_width": size, "scale_height": size, "scale_algo": "bilinear", "scale_mode": "crop"}
    crop = spdl.io.get_video_filter_desc(**scale, crop_width=size, crop_height=size, pix_fmt="rgb24")

    def decode(row: int) -> tuple[Any, int]:
        packets = spdl.io.demux_image(job.photograph(row))
        return spdl.io.decode_packets(packets, filter_desc=crop), row

    def batch(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
        frames, rows = zip(*samples, strict=True)
        return spdl.io.to_torch(spdl.io.convert_frames(list(frames))), torch.tensor(rows)

    def epoch() -> Any:
        order = generator.permutation(job.shape[0]).tolist()
        builder = PipelineBuilder().add_source(order).pipe(decode, concurrency=job.threads)
        pipeline = (
            builder.aggregate(job.batch_size, drop_last=True).pipe(batch).add_sink().build(num_threads=job.threads)
        )
        with pipeline.auto_stop():
            yield from pipeline

    return epoch
