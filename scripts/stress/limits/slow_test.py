"""How near does a pack of slow sources come to the ideal, images x delay / workers, and is each image decoded once?

    python -m scripts.stress.limits.slow_test --delay 0.1 --images 128 --workers 4

Every read of an image waits for the delay, as an overloaded file server does, or with --spread for a random time of that mean.
Whole packs are timed, from listing to the sealed store. The last line is one JSON object. Exits with 1 where an image was decoded
twice or rejected.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from PIL import Image

from packer import pack
from packer.pixels import decode
from packer.pixels.compiled import Native
from packer.sources.local import LocalSource
from scripts.common.timing import timed


def slow_pack(images: Path, out: Path, delays: dict[str, float], **options: Any) -> dict[str, Any]:
    """Pack, each read as slow as delays says by the image's name; returns seconds, the ideal, and how often images were read."""
    log = out.with_suffix(".log")
    original = LocalSource.read

    def read(source: LocalSource, **limits: Any) -> Any:
        name = os.path.basename(source.path)
        if "most_bytes" in limits:  # headers, before the pack begins
            return original(source, **limits)
        with open(log, "a") as file:
            file.write(f"{name}\n")
        time.sleep(delays[name])
        return original(source, **limits)

    LocalSource.read = read  # type: ignore[method-assign]
    native = decode.native
    decode.native = Native  # which reads files without it
    try:
        report, seconds = timed(lambda: pack(images, out, **options))
    finally:
        LocalSource.read, decode.native = original, native  # type: ignore[method-assign]
    counts = Counter(log.read_text().split())
    # no schedule is faster than its longest image
    ideal = max(sum(delays.values()) / options["workers"], max(delays.values()))
    return {
        "images": len(delays),
        "workers": options["workers"],
        "seconds": round(seconds, 2),
        "ideal": round(ideal, 2),
        "of_ideal": round(seconds / ideal, 3),
        "reads": sum(counts.values()),
        "read_twice": sum(count > 1 for count in counts.values()),
        "rejected": report.rejected,
    }


def main() -> int:
    """Run one trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds a read")
    parser.add_argument("--spread", action="store_true", help="draw delays, from 0 to twice as long")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--fit", default="crop")
    arguments = parser.parse_args()
    # workers inherit the slow reader
    os.environ["PIXPACK_START_METHOD"] = "fork"
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder, "images")
        images.mkdir()
        draw = random.Random(0)
        delays = {}
        for n in range(arguments.images):
            name = f"{n:04}.jpg"
            Image.effect_noise((64, 48), n + 1).save(images / name)
            delays[name] = draw.uniform(0, 2 * arguments.delay) if arguments.spread else arguments.delay
        size = None if arguments.fit == "none" else 32
        out = Path(folder, "out")
        found = slow_pack(images, out, delays, size=size, fit=arguments.fit, workers=arguments.workers)
    print(json.dumps({"delay": arguments.delay, "spread": arguments.spread} | found))
    return int(found["read_twice"] > 0 or found["rejected"] > 0)


if __name__ == "__main__":
    sys.exit(main())
