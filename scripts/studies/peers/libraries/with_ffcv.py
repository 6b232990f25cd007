"""FFCV: a .beton of raw pixels, read with os_cache.

It writes batches into a ring of buffers that are used again whether the caller has kept a batch or not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

TITLE = "FFCV"
# its own list of what it needs lacks Pillow
REQUIREMENTS = ("ffcv==1.0.2", "pillow")
# it is built from source
SYSTEM = ("g++", "pkg-config", "libopencv-dev", "libturbojpeg0-dev")
WAYS = {"RANDOM": "full", "QUASI_RANDOM": "quasi-random"}


class FfcvRows:
    """What the writer's processes take samples from."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def __len__(self) -> int:
        return self._job.shape[0]

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return self._job.row(row), row


def pack(job: Any) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    fields = {"pixels": RGBImageField(write_mode="raw"), "row": IntField()}
    DatasetWriter(path(job), fields, num_workers=job.threads).from_indexed_dataset(FfcvRows(job))


def epochs(job: Any, way: str) -> Any:
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor

    pipelines = {"pixels": [SimpleRGBImageDecoder(), ToTensor()], "row": [IntDecoder(), ToTensor()]}
    order = {"order": OrderOption[way], "os_cache": True, "drop_last": True}
    loader = Loader(path(job), job.batch_size, num_workers=job.threads, pipelines=pipelines, seed=0, **order)
    return lambda: iter(loader)


def path(job: Any) -> str:
    return str(Path(job.packed, "rows.beton"))
