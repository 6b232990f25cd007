"""The largest image that is packed is Pillow's."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from packer import pack
from packer.options import MAX_PIXELS


def test_a_camera_of_100_megapixels_passes(tmp_path: Path) -> None:
    assert Image.MAX_IMAGE_PIXELS is None or 2 * Image.MAX_IMAGE_PIXELS == MAX_PIXELS
    stream = io.BytesIO()
    Image.new("L", (12_000, 8_500), 90).save(stream, "JPEG", quality=50)
    (tmp_path / "i").mkdir()
    (tmp_path / "i/a.jpg").write_bytes(stream.getvalue())
    assert pack(tmp_path / "i", tmp_path / "out", size=32, workers=1).rows == 1
