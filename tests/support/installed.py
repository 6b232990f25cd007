"""Pack, verify and read drawn images with the installed pixpack, whose compiled part must decode: the test of each wheel."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import pixpack
from packer.pixels.compiled import native


def main() -> None:
    """Exit with an error if one of the three fails."""
    assert native().row, native().reason
    with tempfile.TemporaryDirectory() as folder:
        images, out = Path(folder, "images"), Path(folder, "out")
        for number in range(24):
            path = images / f"class{number % 3}" / f"{number:02d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((80, 90, 3), number * 10, np.uint8)).save(path, quality=95)
        for words in ((images, out, "--size", "64", "--max-rejects", "0"), ("verify", out)):
            subprocess.run([Path(sys.executable).with_name("pack"), *map(str, words)], check=True)
        dataset = pixpack.MemmapDataset(out)
        for pixels, targets in pixpack.MemmapLoader(dataset, 8):
            assert pixels.shape == (8, 3, 64, 64)
            assert len(set(targets.tolist())) == 1
        assert [int(dataset[row][0].float().mean()) // 10 for row in (0, 23)] == [0, 23], "other pixels than were drawn"
    print(f"pixpack {pixpack.__version__} packs, verifies and reads; decoded by libjpeg-turbo {native().version}")


if __name__ == "__main__":
    main()
