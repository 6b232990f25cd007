"""HF datasets: Arrow files of a fixed Array3D, read a shuffled batch at a time in its numpy format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

TITLE = "HF datasets"
REQUIREMENTS = ("datasets==5.2.0",)
SYSTEM = ()
WAYS = {"ds[rows]": "full"}


def pack(job: Any) -> None:
    import datasets

    features = datasets.Features(
        {"pixels": datasets.Array3D(tuple(job.shape[1:]), "uint8"), "row": datasets.Value("int64")}
    )
    datasets.disable_progress_bars()
    datasets.Dataset.from_generator(
        samples,
        features=features,
        # a list is what it divides between its processes
        gen_kwargs={"rows": list(range(job.shape[0])), "job": job},
        num_proc=job.threads,
        cache_dir=job.packed,
    )


def samples(rows: list[int], job: Any) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {"pixels": job.row(row), "row": row}


def epochs(job: Any, way: str) -> Any:
    import datasets
    import numpy as np
    import torch

    files = sorted(Path(job.packed).rglob("*.arrow"))
    data = datasets.concatenate_datasets([datasets.Dataset.from_file(str(path)) for path in files])
    numbers = np.array(data.with_format("arrow")[:]["row"])
    # without dtype, its numpy format makes int64 of uint8, which is five times slower
    pixels = data.select_columns("pixels").with_format("numpy", dtype=np.uint8)
    generator = np.random.default_rng(0)

    def epoch() -> Any:
        order = generator.permutation(len(data))
        for start in range(0, len(data) - job.batch_size + 1, job.batch_size):
            rows = order[start : start + job.batch_size]
            yield torch.from_numpy(pixels[rows]["pixels"]), torch.from_numpy(numbers[rows])

    return epoch
