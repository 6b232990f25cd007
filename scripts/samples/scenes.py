"""Draws pictures that resemble photographs for a decoder and for a small network. Knows no files."""

from __future__ import annotations

import colorsys

import numpy as np
from PIL import Image

# Two kinds of scenes in three hues each: DISCS before a sky, and grainy textures.
CLASSES = ("apple", "lemon", "marble", "moss", "plum", "sand")
_HUES = {"apple": 0.0, "lemon": 0.14, "plum": 0.8, "moss": 0.3, "sand": 0.1, "marble": 0.58}
DISCS = ("apple", "lemon", "plum")

Pixels = np.ndarray


def draw(name: str, rng: np.random.Generator, height: int, width: int) -> Pixels:
    """Draw a picture of a class: uint8[height, width, 3]."""
    if name not in DISCS:
        return _developed(rng, _texture(name, rng, height, width))
    return draw_discs([name] * int(rng.integers(1, 5)), rng, height, width)[0]


def draw_discs(names: list[str], rng: np.random.Generator, height: int, width: int) -> tuple[Pixels, Pixels]:
    """Draw a disc for each name before a sky; returns it, and uint8[height, width] of 0, or 1 + the number of the disc there."""
    picture = _sky(rng, height, width)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    owners = np.zeros((height, width), np.uint8)
    for number, name in enumerate(names):
        radius = int(rng.uniform(0.1, 0.22) * min(height, width))
        left, top = int(rng.integers(0, width - 2 * radius)), int(rng.integers(0, height - 2 * radius))
        across, down = (x - left - radius + 0.5) / radius, (y - top - radius + 0.5) / radius
        away = np.hypot(across, down)
        light = np.clip(1.1 - 0.5 * (across + down), 0.3, 1.4) + 0.2 * _noise(rng, height, width, 40)
        cover = np.clip((1 - away) * radius + 0.5, 0, 1)[..., None]
        picture = picture * (1 - cover) + _color(name, rng) * light[..., None] * cover
        owners[away < 1] = number + 1
    return _developed(rng, picture), owners


def _texture(name: str, rng: np.random.Generator, height: int, width: int) -> Pixels:
    grain = sum(_noise(rng, height, width, cells) * share for cells, share in ((4, 0.5), (12, 0.3), (48, 0.2)))
    veins = 0.5 + 0.5 * np.sin(12 * grain + rng.uniform(0, 6))
    return _color(name, rng) * (0.35 + 0.5 * grain + 0.3 * veins)[..., None]


def _sky(rng: np.random.Generator, height: int, width: int) -> Pixels:
    """Return a gradient between two hues, with clouds: float32[height, width, 3] of about 0..1."""
    top, low = (np.float32(colorsys.hsv_to_rgb(rng.uniform(), 0.35, value)) for value in (0.55, 0.9))
    share = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    return top + (low - top) * share + 0.25 * (_noise(rng, height, width, 3)[..., None] - 0.5)


def _noise(rng: np.random.Generator, height: int, width: int, cells: int) -> Pixels:
    """Return smooth noise of this many cells: float32[height, width] in about 0..1."""
    small = Image.fromarray(rng.random((cells, max(2, cells * width // height)), np.float32))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


def _color(name: str, rng: np.random.Generator) -> Pixels:
    hue = (_HUES[name] + rng.uniform(-0.03, 0.03)) % 1
    return np.float32(colorsys.hsv_to_rgb(hue, rng.uniform(0.5, 0.9), rng.uniform(0.6, 0.95)))


def _developed(rng: np.random.Generator, picture: Pixels) -> Pixels:
    """Add the grain of a sensor, so that no two pictures compress alike: uint8[H, W, 3]."""
    grain = rng.standard_normal(picture.shape[:2], np.float32)[..., None] * np.float32(0.014)
    return (np.clip(picture + grain, 0, 1) * 255 + 0.5).astype(np.uint8)
