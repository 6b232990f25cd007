"""Tensors as the manifest has them: dtype, shape of a row, and the names of their meta.json files."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reader.format.errors import StoreError
from reader.format.shown import brief

ITEM_BYTES = {"uint8": 1, "int32": 4, "int64": 8, "float32": 4, "float64": 8, "bool": 1}


@dataclass(frozen=True)
class TensorSpec:
    """One per-row tensor: dtype name and the shape of one row."""

    dtype: str
    row_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise StoreError(
                f"the manifest names the dtype {brief(self.dtype)}, expected one of {', '.join(ITEM_BYTES)}."
            )
        if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in self.row_shape):
            raise StoreError(f"the manifest names the row shape {brief(list(self.row_shape))}, expected whole numbers.")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return ITEM_BYTES[self.dtype] * math.prod(self.row_shape)


_TOP, _TENSORS, _EXTRAS = "meta.json", "_tensordict/meta.json", "_tensordict/extras/meta.json"


def metadata_names(*, has_extras: bool) -> list[str]:
    """Return the paths of the meta.json files of a store."""
    return [_TOP, _TENSORS, _EXTRAS] if has_extras else [_TOP, _TENSORS]
