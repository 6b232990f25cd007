"""What `pack` has cropped, resized and rounded of the images of a store, and whether a transform crops and resizes again.

Asks a transform itself, by the arguments that torchvision, and those who follow it, give such steps; knows no classes.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from reader.format.manifest import Manifest

_log = logging.getLogger("pixpack")


def stored_crop(manifest: Manifest) -> str:
    """Return what rows are of their images, for a log."""
    fit, fraction = manifest.options.get("fit", "?"), manifest.options.get("crop_fraction", 1)
    share = "" if fraction == 1 else f" --crop-fraction {fraction}"
    return f"rows of {manifest.kind.up_to}{manifest.height} x {manifest.width} by --fit {fit}{share}"


def warn_of_second_crop(path: Path, manifest: Manifest, transform: object) -> None:
    """Warn, once, where a transform crops rows of `--crop-fraction`, as one does that was written for whole images."""
    if crop := _second_crop(manifest, transform):
        _warn(path, *crop)


def repeated_steps(data: Any) -> tuple[str, str]:
    """Say what `pack` and a dataset's transform both crop, and what both resize; "" of what they do not."""
    manifest = getattr(data, "manifest", None)
    transform = getattr(data, "transform", None) or getattr(data, "transforms", None)
    if not isinstance(manifest, Manifest):
        return "", ""
    crop = _second_crop(manifest, transform)
    cropped = f"by pack with {crop[0]}, and by the transform's {crop[1]}" if crop else ""
    has_resized = not manifest.has_own_sizes or manifest.options.get("max_size") is not None
    for step in _steps(transform) if has_resized else ():
        size = _size_of(step)
        is_resizing = hasattr(step, "interpolation") or hasattr(step, "fraction")
        if size is not None and is_resizing and not hasattr(step, "scale") and {*size} != {*manifest.sides[:2]}:
            return cropped, f"by pack ({stored_crop(manifest)}), and by the transform's {_shown(step)}"
    return cropped, ""


def inexact_steps(data: Any, rows: Sequence[int]) -> list[str]:
    """Say by what `pack` gave these rows of a dataset other values than images have that are decoded whole and resized."""
    manifest = getattr(data, "manifest", None)
    if not isinstance(manifest, Manifest):
        return []
    steps, options = [], manifest.options
    if reduced := sum(data.source(row).get("dct_scale", 1) > 1 for row in rows):
        steps.append(f"without --exact: {reduced} of {len(rows)} rows are JPEGs that were decoded at a reduced size")
    quality = options.get("lossy", options.get("compress", ""))
    if quality.startswith("jpeg"):
        steps.append(f"with --compress {quality}")
    if "requantize" in options:
        steps.append(f"with --requantize {options['requantize']}")
    return steps


def _second_crop(manifest: Manifest, transform: object) -> tuple[str, str] | None:
    """Return what of `pack --crop-fraction`, and what of a transform, crop the same rows; None: they do not."""
    fraction = manifest.options.get("crop_fraction", 1)
    step = None if fraction == 1 else _cutting_step(transform, manifest.height, manifest.width)
    if step is None:
        return None
    covered = [math.floor(side / fraction) for side in (manifest.height, manifest.width)]
    size = " x ".join(map(str, covered if covered[0] != covered[1] else covered[:1]))
    return f"--crop-fraction {fraction}, which is Resize({size}) and a CenterCrop", _shown(step)


def _shown(step: object) -> str:
    return f"{step!r}".splitlines()[0]


@functools.cache
def _warn(path: Path, stored: str, step: str) -> None:
    _log.warning(
        "%s: its rows were cropped by pack with %s, and the transform's %s crops them a second time. Leave out the steps that"
        " resize and crop, or pack without --crop-fraction.",
        *(path, stored, step),
    )


def _cutting_step(transform: object, height: int, width: int) -> object | None:
    """Return the first step that leaves out a part of images of this size; None: there is none that says so."""
    for step in _steps(transform):
        size = _size_of(step)
        scale, fraction = getattr(step, "scale", None), getattr(step, "fraction", None)
        if size is None:
            continue
        if isinstance(scale, tuple | list) and scale[0] < 1:
            return step
        if fraction is not None:
            if fraction < 1:
                return step
        elif not hasattr(step, "interpolation") and (size[0] < height or size[-1] < width):
            return step
        if len(size) == 1:
            # the shorter side
            ratio = size[0] / min(height, width)
            size = int(height * ratio), int(width * ratio)
        height, width = size[0], size[-1]
    return None


def _steps(transform: Any) -> Iterator[object]:
    """Yield a transform, or in place of one that calls others those, in their order."""
    within = getattr(transform, "transforms", None)
    if within is None and not callable(getattr(type(transform), "transform", None)):
        # transforms of torchvision's v2 have a method of this name
        within = getattr(transform, "transform", None)
    if isinstance(transform, torch.nn.Sequential):
        within = list(transform)
    if within is None:
        yield transform
    for each in within if isinstance(within, list | tuple) else [] if within is None else [within]:
        yield from _steps(each)


def _size_of(step: object) -> tuple[int, ...] | None:
    """Return what size a step gives images: of a shorter side, or (height, width); None: none that it says."""
    size = getattr(step, "size", None)
    if size is None:
        size = getattr(step, "height", None), getattr(step, "width", None)
    sides = tuple(size) if isinstance(size, tuple | list) else (size,)
    return sides if len(sides) in (1, 2) and all(isinstance(side, int) for side in sides) else None
