"""Sums of channels are exact, with the compiled part and without."""

from __future__ import annotations

import numpy as np
import pytest

from packer.pixels import compiled


@pytest.mark.parametrize("native", [compiled.native, compiled.Native])
@pytest.mark.parametrize("fill", [255, None], ids=["white", "noise"])
@pytest.mark.parametrize(
    ("height", "width", "channels"),
    [(1, 1, 1), (2, 30_000, 3), (224, 224, 3), (257, 5, 3), (300, 7, 4), (256, 8, 1)],
)
def test_channel_sums_are_exact(
    height: int, width: int, channels: int, fill: int | None, native: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "native", native)
    shape = height * width, channels
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8) if fill is None else np.full(shape, fill, "u1")
    values = pixels.astype(np.int64)
    expected = *values.sum(axis=0).tolist(), *np.square(values).sum(axis=0).tolist()
    assert compiled.channel_sums(pixels.tobytes(), channels, width * channels) == expected
