#!/usr/bin/env python3
"""Read a store without torch and without pixpack: numpy and the JSON of manifest.json, as docs/FORMAT.md describes them.

    python examples/numpy_jax.py out/

Copy `open_store` into any program. If jax is installed, the batches go to its device as uint8 and become floats there.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

FILES = {"pixels": "_tensordict/pixels.memmap", "targets": "_tensordict/targets.memmap"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", type=Path, help="a store, as `pack` wrote it")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        manifest, pixels, targets = open_store(options.store)
    except (OSError, ValueError) as e:
        print(f"numpy_jax.py: {e}", file=sys.stderr)
        return 1
    has_jax = importlib.util.find_spec("jax") is not None
    normalize = (with_jax if has_jax else with_numpy)(manifest)
    total = squares = 0.0
    for images, _ in batches(pixels, targets, options.batch_size, options.seed):
        values = normalize(images)
        total, squares = total + float(values.sum()), squares + float((values * values).sum())
    # normalized by the store's mean and std: 0 and 1, unless rows hold padding, which these exclude
    mean, std = total / pixels.size, (squares / pixels.size - (total / pixels.size) ** 2) ** 0.5
    print(
        f"{len(pixels)} rows of uint8{list(pixels.shape[1:])}, normalized by {'jax' if has_jax else 'numpy'}:"
        f" mean {mean:.3f}, std {std:.3f}"
    )
    return 0


def open_store(out: Path) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Return the manifest, uint8[N, H, W, C] and the targets, both mapped read-only.

    Raises:
        OSError: there is no such file.
        ValueError: the manifest is damaged or newer than this, or a file has another size than it says.
    """
    text = (out / "manifest.json").read_bytes()
    # the last 90 bytes hold the digest of all bytes before them
    if hashlib.sha256(text[:-90]).hexdigest() != text[-68:-4].decode("ascii", "replace"):
        raise ValueError(f"{out / 'manifest.json'} is damaged: its digest is another. Copy the store again.")
    manifest = json.loads(text)
    if manifest["version"] != [1, 0] or manifest["own_sizes"] or manifest["jpeg"]:
        raise ValueError(f"{out} is of another format, or its rows are JPEGs or have sizes of their own.")
    for path, file in manifest["files"].items():
        if (out / path).stat().st_size != file["size_bytes"]:
            raise ValueError(f"{out / path} is not {file['size_bytes']} bytes. Copy the store again.")
    rows, kind = manifest["rows"], manifest["targets"]
    shape = (rows, manifest["height"], manifest["width"], manifest["channels"])
    dtype = {"class": "<i8", "regression": "<f4", "multi-hot": "<f4"}[kind["kind"]]
    target_shape = (rows,) if kind["count"] is None else (rows, kind["count"])
    pixels = np.memmap(out / FILES["pixels"], np.uint8, "r", shape=shape)
    return manifest, pixels, np.memmap(out / FILES["targets"], dtype, "r", shape=target_shape)


def batches(pixels: np.ndarray, targets: np.ndarray, batch_size: int, seed: int) -> Iterator[Any]:
    """Yield each row once, in random order, as pixels and targets: one gather per batch."""
    order = np.random.default_rng(seed).permutation(len(pixels))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        yield pixels[rows], targets[rows]


def with_numpy(manifest: dict[str, Any]) -> Callable[[np.ndarray], Any]:
    mean, std = np.float32(manifest["mean"]), np.float32(manifest["std"])
    return lambda images: (images / np.float32(255) - mean) / std


def with_jax(manifest: dict[str, Any]) -> Callable[[np.ndarray], Any]:
    import jax

    normalize = jax.jit(with_numpy(manifest))
    # device_put returns at once: the copy of a batch overlaps with the device's work on the previous one
    return lambda images: normalize(jax.device_put(images))


if __name__ == "__main__":
    sys.exit(main())
