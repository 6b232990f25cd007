"""Six kinds of picture, drawn from a random generator with numpy alone: what scripts/samples/make_sample.py writes to files.

A scene is float32[H, W, 3], about 0..1; `draw` develops it to uint8 as a camera would. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

Array = np.ndarray
Rng = np.random.Generator

# Colors of the scenes, in the order in which each takes them; a picture has one line.
PALETTES = {
    # sky, sky at the horizon, house walls
    "city": [
        "1b2a55 ff9e6b 1a1f33",
        "27336b f2b8a0 20243c",
        "0e1838 6b5f9a 12162a",
        "5a86b8 f1e4cf 4a5568",
        "3a4a7a ffcf8f 2a2638",
    ],
    # sky, sky at the horizon, sand in the sun, sand in shadow
    "dunes": [
        "3d6fa8 e9d3ae e8a860 7a4426",
        "5d7fb0 f4c894 f0bd78 8a5636",
        "6d5f94 f7a76c d98a4a 5a2c22",
        "2f78b8 cfe0e4 f2cf9a 9a6c48",
    ],
    # sky, mist, firs
    "forest": [
        "9fb9c8 dfe8e6 12301f",
        "e8b98a f3d9b8 24301a",
        "7f9fbb c9d7e2 0f2a33",
        "b8c9c0 e6e3cf 3d4a1c",
        "c9b79a efd2a8 6b3a12",
    ],
    # the room's dark and bright side, the table
    "table": ["3b4a3f a9b89a 9a6a3f", "2d3440 8fa3b5 c9a77c", "5a3f35 d8b08c 6b4228", "4a4a52 d9d2c4 e0d6c6"],
    # skin and blush: orange, apple, another, lemon, plum, peach, cherry, pear
    "fruit": [
        *("f08a1c f5a83a", "c2202a e8b04a", "8fb03a c9d45a", "f2d03a e9c02a"),
        *("4c2346 7a3a5a", "f0a070 d8503a", "a81c24 7a1420", "b8b84a a87a3a"),
    ],
    # sky, sky at the horizon
    "night": ["050a1e 1d3a5c", "0a0c24 33406e", "03101c 155059", "070b24 4a4068", "040814 20324a"],
    # sky, sky at the horizon, water
    "sea": ["2d6cb0 cfe3ee 0c4a6e", "3b4f8a ffb37a 27405e", "5f89a8 dde6e6 2f6b70", "1f5aa8 9fd0ea 0a7c8c"],
    "hull": ["7a2a24", "22364f", "e8e4da"],
}


def draw(name: str, rng: Rng, height: int, width: int) -> Array:
    """Return a picture of the class `name` as uint8[height, width, 3]."""
    return develop(rng, SCENES[name](rng, height, width))


def with_noise(picture: Image.Image, rng: Rng) -> Image.Image:
    """Return a picture with the noise of a sensor: two of one scene differ."""
    pixels = np.asarray(picture)
    noise = rng.integers(-6, 7, (*pixels.shape[:2], 1), np.int16)
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def develop(rng: Rng, picture: Array) -> Array:
    """What a camera does: exposure, a darker rim, grain: float32[H, W, 3] -> uint8[H, W, 3]."""
    y, x = grid(*picture.shape[:2])
    rim = 1 - 0.5 * ((x - 0.5) ** 2 + (y - 0.5) ** 2)
    exposed = picture * rim[..., None] * np.float32(rng.uniform(0.92, 1.1))
    # A film's shoulder: highlights are compressed, not cut.
    toned = np.where(exposed > 0.8, 0.8 + 0.2 * np.tanh((exposed - 0.8) / 0.25), exposed)
    grain = rng.standard_normal(picture.shape[:2], np.float32)[..., None] * np.float32(0.014)
    return (np.clip(toned + grain, 0, 1) * 255 + 0.5).astype(np.uint8)


def dunes(rng: Rng, height: int, width: int) -> Array:
    """Dune behind dune: a sharp ridge winds down from each peak, one face in the sun and one in shadow."""
    y, x = grid(height, width)
    zenith, low, lit, shade = pick(rng, "dunes")
    picture = sky(rng, height, width, zenith, low, clouds=0.35)
    for layer in (0.0, 0.2, 0.45, 0.7, 1.0):
        # Dunes are counted along x: an integer is a valley, a half is a peak.
        along = x[0] * rng.uniform(1.3, 2.2) * (1.5 - 0.7 * layer) + rng.uniform(0, 9)
        along += 0.16 * curve(rng, width, points=3, octaves=2)
        tall = rng.uniform(0.35, 1.0, 16).astype(np.float32)[along.astype(int)]
        rise = 1 - np.abs(2 * (along % 1) - 1)
        crest = 0.44 + 0.34 * layer - (0.1 + 0.12 * layer) * tall * (0.3 * rise + 0.7 * smooth(rise))
        below = y - crest
        bend = below * rng.uniform(-1.5, 1.5) + 0.1 * np.sin(below * rng.uniform(14, 22))
        face = (along + bend * (1 - 0.4 * layer)) % 1
        shadow = smooth((face - 0.5) * 60) * (2 - 2 * face) ** 0.6
        warp = noise(rng, height, width, cells=3, octaves=4)
        ripples = np.sin(2 * np.pi * (below * 30 / (0.35 + layer) + 2.5 * warp + 3 * x)) * 0.035 * layer * (1 - shadow)
        light = 0.82 + 0.4 * warp - 0.3 * np.clip(below, 0, 1) + ripples
        sand = mix(lit, shade, shadow * 0.8) * light[..., None]
        picture = mix(picture, mix(low, sand, 0.35 + 0.65 * layer), edge(below, height))
    return picture


def sea(rng: Rng, height: int, width: int) -> Array:
    """Water to the horizon under clouds, with the sun's glitter on it, now and then an island or a sail."""
    y, x = grid(height, width)
    zenith, low, water = pick(rng, "sea")
    horizon = rng.uniform(0.34, 0.52)
    sun = rng.uniform(0.2, 0.8)
    picture = sky(rng, height, width, zenith, low, clouds=rng.uniform(0.5, 0.95))
    picture += glow(x - sun, y - horizon + rng.uniform(0.08, 0.25), 0.16)[..., None] * np.float32([0.5, 0.4, 0.25])
    if rng.random() < 0.6:
        island = horizon - 0.09 * np.maximum(curve(rng, width, points=3, octaves=5), 0)
        picture = mix(picture, mix(low, water * 0.6, 0.6), edge(y - island, height))
    depth = np.clip((y - horizon) / (1 - horizon), 1e-3, 1)
    waves = sum(seen_flat(rng, x, depth, fine) * share for fine, share in ((1, 0.5), (3, 0.3), (9, 0.2)))
    tone = mix(low * 0.85, water, smooth(depth * 1.8 + 0.25))
    surface = tone * (0.6 + 0.8 * waves[..., None])
    glitter = smooth((waves - 0.58) * 8) * np.exp(-(((x - sun) / (0.05 + 0.22 * depth)) ** 2))
    surface += glitter[..., None] * np.float32([1.0, 0.9, 0.7]) * 0.8
    picture = mix(picture, surface, edge(y - horizon, height))
    return sail(rng, picture, x, y, horizon) if rng.random() < 0.45 else picture


def sail(rng: Rng, picture: Array, x: Array, y: Array, horizon: float) -> Array:
    size, middle, foot = rng.uniform(0.1, 0.24), rng.uniform(0.2, 0.8), horizon + rng.uniform(0.02, 0.12)
    across, up = (x - middle) / size, (foot - y) / size
    cloth = smooth((1.0 - up - np.abs(across * 2.6 - 0.35 * (1 - up))) * 40) * smooth((up - 0.12) * 60)
    hull = smooth((0.1 - np.abs(up)) * 60) * smooth((0.42 + up * 0.6 - np.abs(across)) * 60)
    picture = mix(picture, np.float32([0.96, 0.94, 0.9]) * (0.85 + 0.3 * across[..., None]), cloth)
    return mix(picture, pick(rng, "hull")[0], hull)


def forest(rng: Rng, height: int, width: int) -> Array:
    """Firs on hill behind hill, each nearer one darker and out of the mist."""
    y, _ = grid(height, width)
    top, mist, dark = pick(rng, "forest")
    picture = sky(rng, height, width, top, mist, clouds=0.4)
    for layer in (0.0, 0.15, 0.33, 0.54, 0.77, 1.0):
        ground = 0.3 + 0.62 * layer + 0.09 * curve(rng, width, points=2.5, octaves=3)
        crest = firs(rng, ground, width / height, size=0.05 + 0.3 * layer, count=int(70 - 50 * layer))
        below = y - crest
        texture = noise(rng, height, width, cells=18, octaves=3, stretch=0.6)
        needles = dark * (0.55 + 1.1 * texture[..., None] ** 1.5)
        needles += np.exp(-np.maximum(below, 0) * 16)[..., None] * mist * 0.1
        tone = mix(mist, needles, 0.12 + 0.88 * layer)
        tone = mix(tone, mist, np.clip(below / 0.3, 0, 1) * (1 - layer) * 0.8)
        picture = mix(picture, tone, edge(below, height))
    return picture


def firs(rng: Rng, ground: Array, aspect: float, size: float, count: int) -> Array:
    """The outline of `count` firs on `ground` (y of each column): float32[W]."""
    x = np.linspace(0, aspect, len(ground), dtype=np.float32)
    outline = ground.copy()
    for middle, scale in zip(rng.uniform(0, aspect, count), rng.uniform(0.45, 1.0, count), strict=True):
        tall = size * scale
        foot = ground[int(middle / aspect * (len(ground) - 1))]
        away = np.abs(x - middle) / tall
        # Branches: the outline steps outwards in teeth on its way down.
        teeth = 0.09 * ((away * 14) % 1.0) * (away > 0.02)
        outline = np.where(away < 0.27, np.minimum(outline, foot - tall * (1.0 - away / 0.24 + teeth)), outline)
    return outline


def night(rng: Rng, height: int, width: int) -> Array:
    """Stars over mountains and a lake: the Milky Way, a moon, or northern lights."""
    y, x = grid(height, width)
    top, low = pick(rng, "night")
    picture = mix(top, low, (y**1.4))
    scene = rng.integers(3)
    if scene == 0:
        across = (y - 0.4 - (x - 0.5) * rng.uniform(-0.9, 0.9)) / 0.16
        cloud = noise(rng, height, width, cells=4, octaves=6)
        picture = picture + (np.exp(-(across**2)) * cloud**2)[..., None] * np.float32([0.85, 0.7, 0.8])
    elif scene == 1:
        picture = moon(rng, picture, x, y, width / height)
    else:
        picture = picture + northern_lights(rng, height, width)
    picture = picture + stars(rng, height, width)
    shore = rng.uniform(0.68, 0.8)
    for layer in (0.0, 0.5, 1.0):
        ridge = shore - 0.04 - (0.2 - 0.17 * layer) * (0.6 + curve(rng, width, points=3 + 3 * layer, octaves=6))
        picture = mix(picture, mix(low * 0.6, top * 0.4, layer), edge(y - np.minimum(ridge, shore), height))
    return mirrored(rng, picture, shore)


def moon(rng: Rng, picture: Array, x: Array, y: Array, aspect: float) -> Array:
    right, down = (x - rng.uniform(0.25, 0.75)) * aspect, y - rng.uniform(0.15, 0.35)
    seas = noise(rng, *y.shape, cells=14, octaves=3)
    halo = glow(right, down, 0.3) * 0.3 + glow(right, down, 0.1) * 0.5
    disc = np.float32([1.0, 0.97, 0.88]) * (0.72 + 0.3 * seas[..., None])
    picture = picture + halo[..., None] * np.float32([0.8, 0.85, 1.0])
    return mix(picture, disc, smooth((0.055 - np.hypot(right, down)) * 250))


def northern_lights(rng: Rng, height: int, width: int) -> Array:
    y, _ = grid(height, width)
    light = np.zeros((height, width, 3), np.float32)
    for color in ("2cff9a", "35e0c0", "9a5cff"):
        foot = 0.5 + 0.14 * curve(rng, width, points=2, octaves=3) + rng.uniform(-0.12, 0.08)
        rays = 0.55 + 0.45 * curve(rng, width, points=24, octaves=3)
        above = foot - y
        curtain = np.where(above > 0, np.exp(-above / (0.08 + 0.16 * rays)), np.exp(above / 0.012)) * rays
        light += curtain[..., None] * rgb(color) * 0.5
    return light


def stars(rng: Rng, height: int, width: int) -> Array:
    field = np.zeros((height, width, 3), np.float32)
    count = height * width // 260
    rows, columns = rng.integers(0, height - 1, count), rng.integers(0, width - 1, count)
    bright = (rng.pareto(1.6, count) * 0.09).clip(0.03, 1.4)[:, None] * rng.uniform(0.75, 1.0, (count, 3))
    for down, right, share in ((0, 0, 1.0), (0, 1, 0.45), (1, 0, 0.45), (1, 1, 0.2)):
        field[rows + down, columns + right] += bright * share
    return field


def mirrored(rng: Rng, picture: Array, shore: float) -> Array:
    """What is below `shore` becomes water that shows what is above it, darker and shaken by ripples."""
    height, width = picture.shape[:2]
    start = int(shore * height)
    depth = np.arange(height - start)
    shake = noise(rng, height - start, width, cells=24, octaves=3, stretch=7) - 0.5
    source = start - 1 - depth[:, None] * 1.15 + shake * (4 + 0.16 * depth[:, None])
    source = np.clip(source, 0, start - 1).astype(int)
    picture[start:] = picture[source, np.arange(width)] * (0.72 + 0.25 * shake[..., None])
    return picture


def city(rng: Rng, height: int, width: int) -> Array:
    """Towers with lit windows in the dusk, row before row, above a river."""
    y, x = grid(height, width)
    top, low, wall = pick(rng, "city")
    picture = sky(rng, height, width, top, low, clouds=0.7)
    picture += glow(x - rng.uniform(0.1, 0.9), (y - 0.6) * 0.8, 0.2)[..., None] * low * 0.3
    for layer in (0.0, 0.35, 0.7, 1.0):
        picture = towers(rng, picture, y, layer, mix(low * 0.85, wall, 0.25 + 0.7 * layer))
    return mirrored(rng, picture, rng.uniform(0.74, 0.82))


def towers(rng: Rng, picture: Array, y: Array, layer: float, wall: Array) -> Array:
    height, width = y.shape
    widths = rng.integers(16 + int(16 * layer), 44 + int(26 * layer), 60)
    house = np.repeat(np.arange(60), widths)[:width]
    roofs = (0.4 + 0.26 * layer + rng.uniform(-0.26, 0.1, 60) * (1.05 - 0.6 * layer)).astype(np.float32)[house]
    masts = np.where(rng.random(60) < 0.2, 0.07, 0.0).astype(np.float32)[house]
    from_middle = np.arange(width) - (np.cumsum(widths) - widths / 2)[house]
    crest = roofs - masts * (np.abs(from_middle) < 1.2)
    tint = rng.uniform(0.7, 1.25, (60, 3)).astype(np.float32).mean(axis=1, keepdims=True) * np.float32([1.0, 1.0, 1.04])
    # The side away from the light is darker: a tower is a box.
    face = wall * tint[house] * np.where(from_middle < widths[house] * 0.16, 1.0, 0.72)[:, None].astype(np.float32)
    across, down = int(4 + 3 * layer), int(6 + 3 * layer)
    shape = (height // down + 1, width // across + 1)
    lamps = rng.random(shape, np.float32) * (rng.random(shape) < 0.55)
    lamps = lamps.repeat(down, 0).repeat(across, 1)[:height, :width]
    lit = smooth((lamps - rng.uniform(0.6, 1.0, 60).astype(np.float32)[house]) * 6)
    row, column = np.arange(height)[:, None] % down, np.arange(width) % across
    pane = (row > 1) & (row < down - 1) & (column > 0) & (y > roofs + 0.02)
    picture = mix(picture, face[None] * (1.15 - 0.35 * y[..., None]), edge(y - crest, height))
    picture = mix(picture, picture * 0.82, pane * 1.0)
    return mix(picture, np.float32([1.0, 0.8, 0.48]), lit * pane * (0.45 + 0.4 * layer))


def fruit(rng: Rng, height: int, width: int) -> Array:
    """Fruit on a table by a window, soft shadows, the room behind out of focus."""
    y, x = grid(height, width)
    aspect = width / height
    back, far, wood = pick(rng, "table")
    picture = mix(back, far, noise(rng, height, width, cells=2, octaves=2) * 0.8 + 0.2 * x)
    for _ in range(14):
        away = np.hypot((x - rng.uniform(0, 1)) * aspect, y - rng.uniform(0, 0.5))
        spot = smooth((rng.uniform(0.03, 0.08) - away) * 90) * rng.uniform(0.2, 0.8)
        picture = mix(picture, picture + 0.22 * far, spot)
    grain = noise(rng, height, width, cells=40, octaves=3, stretch=22)
    table = wood * (0.72 + 0.35 * grain[..., None]) * (0.8 + 0.35 * y[..., None])
    picture = mix(picture, table, smooth((y - rng.uniform(0.5, 0.6)) * 60))
    sun = int(rng.choice([-1, 1])) * rng.uniform(0.4, 0.75)
    count = int(rng.integers(3, 7))
    # From back to front, side by side: later ones cover earlier ones.
    feet, order = rng.uniform(0.62, 0.84, count).tolist(), rng.permutation(count).tolist()
    for foot, rank in sorted(zip(feet, order, strict=True)):
        middle = (0.16 + 0.68 * (rank + 0.5 + rng.uniform(-0.25, 0.25)) / count) * aspect
        radius = rng.uniform(0.12, 0.17) * (0.55 + 0.6 * foot) * min(1.25, 0.55 + 0.5 * aspect)
        right, down = x * aspect - middle, y - foot + radius * 0.8
        near = np.ix_(np.abs(down[:, 0]) < 1.8 * radius, np.abs(right[0]) < 3 * radius)
        picture[near] = one_fruit(rng, picture[near], right[near] / radius, down[near] / radius, sun)
    return picture


def one_fruit(rng: Rng, picture: Array, nx: Array, ny: Array, sun: float) -> Array:
    """A lit ball with skin, a stem and a soft shadow; nx and ny: every pixel's distances from its middle, in radii."""
    base, blush = pick(rng, "fruit")
    from_shadow = ((nx + sun * 0.9) / 1.5) ** 2 + ((ny - 0.86) / 0.42) ** 2
    picture = picture * (1 - 0.62 * np.exp(-(from_shadow**1.2)))[..., None]
    nz = np.sqrt(np.clip(1 - nx**2 - ny**2, 0, 1))
    lambert = np.clip(nx * sun - ny * 0.62 + nz * 0.55, 0, 1)
    skin = noise(rng, *nx.shape, cells=40, octaves=2) - 0.5
    color = mix(base, blush, smooth(noise(rng, *nx.shape, cells=4, octaves=3, stretch=0.6) * 2 - 0.5))
    bounce = np.clip(ny, 0, 1)[..., None] * picture.mean(axis=(0, 1)) * 0.3
    ball = color * (0.2 + 0.95 * lambert + 0.1 * skin)[..., None] + bounce
    shine = np.exp(-((nx - sun * 0.55) ** 2 + (ny + 0.5) ** 2) / 0.03)
    stem = smooth((0.05 - np.abs(nx - 0.25 * (ny + 0.8))) * 60) * smooth((0.14 - np.abs(ny + 0.88)) * 40)
    picture = mix(picture, ball + 0.5 * shine[..., None], smooth((1 - np.hypot(nx, ny)) * nx.shape[0] / 5 + 0.5))
    return mix(picture, rgb("3a2a18"), stem)


def grid(height: int, width: int) -> tuple[Array, Array]:
    """y downwards and x rightwards of every pixel, 0..1: two float32[H, W]."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    return y / height, x / width


def noise(rng: Rng, height: int, width: int, *, cells: int, octaves: int, stretch: float = 1.0) -> Array:
    """Clouds: random grids of `cells`, 2 * cells, ... rows, smoothly enlarged and added: float32[H, W] in 0..1."""
    total = np.zeros((height, width), np.float32)
    for octave in range(octaves):
        rows = cells << octave
        columns = max(2, round(rows * width / height / stretch))
        if rows > height or columns > width:
            break
        small = Image.fromarray(rng.random((rows, columns), np.float32))
        total += np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)) * 0.5**octave
    total -= total.min()
    return total / total.max()


def curve(rng: Rng, width: int, *, points: float, octaves: int) -> Array:
    """A line that wanders about 0 with about `points` turns, within -1..1: float32[W]."""
    x = np.linspace(0, 1, width, dtype=np.float32)
    total = np.zeros(width, np.float32)
    for octave in range(octaves):
        frequency = points * 2**octave
        total += np.sin(x * frequency * np.pi + rng.uniform(0, 2 * np.pi)) * rng.uniform(0.5, 1.0) * 0.5**octave
    return total / 2


def seen_flat(rng: Rng, x: Array, depth: Array, fine: float) -> Array:
    """Waves on a plane that runs to the horizon (depth 0), `fine` times as many: float32[H, W] in 0..1."""
    tile = noise(rng, 512, 512, cells=16, octaves=5, stretch=3)
    tile = np.block([[tile, tile[:, ::-1]], [tile[::-1], tile[::-1, ::-1]]])
    far = fine / (depth + 0.07)
    rows = (far * 130).astype(int) % 1024
    columns = ((x - 0.5) * far * 90 + 256).astype(int) % 1024
    return tile[rows, columns]


def sky(rng: Rng, height: int, width: int, zenith: Array, low: Array, clouds: float) -> Array:
    y, _ = grid(height, width)
    blue = mix(zenith, low, smooth(y * 1.7))
    shape = noise(rng, height, width, cells=3, octaves=6, stretch=2.6)
    cover = smooth((shape - 0.62 + 0.2 * clouds) * 4) * clouds
    white = mix(low, np.ones(3, np.float32), 0.55) * (0.75 + 0.35 * shape[..., None])
    return mix(blue, white, cover)


def glow(right: Array, down: Array, radius: float) -> Array:
    return np.exp(-np.hypot(right, down) / radius)


def mix(a: Array, b: Array, share: Array | float) -> Array:
    """a where share is 0, b where it is 1; colors are float32[3], shares of pixels float32[H, W]."""
    if isinstance(share, np.ndarray):
        share = share[..., None]
    return a + (b - a) * np.float32(share)


def smooth(t: Array) -> Array:
    t = np.clip(t, 0, 1)
    return t * t * (3 - 2 * t)


def edge(below: Array, height: int) -> Array:
    """1 below an outline, 0 above it, one pixel of transition."""
    return np.clip(below * height + 0.5, 0, 1)


def rgb(text: str) -> Array:
    """'ff8000' -> float32[3]: 1.0, 0.5, 0.0."""
    return np.frombuffer(bytes.fromhex(text), np.uint8).astype(np.float32) / 255


def pick(rng: Rng, name: str) -> list[Array]:
    """One line of PALETTES[name], each color a little off, so that no two pictures share it."""
    palettes = PALETTES[name]
    words = palettes[int(rng.integers(len(palettes)))].split()
    shades = rng.uniform(0.9, 1.1, (len(words), 1)) * rng.uniform(0.97, 1.03, (len(words), 3))
    return [np.clip(rgb(word) * shade.astype(np.float32), 0, 1) for word, shade in zip(words, shades, strict=True)]


SCENES: dict[str, Callable[[Rng, int, int], Array]] = {
    "city": city,
    "dunes": dunes,
    "forest": forest,
    "fruit": fruit,
    "night": night,
    "sea": sea,
}
