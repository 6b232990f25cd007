"""Benchmarks of packing: the command beside decoding alone, decoders, smaller JPEGs, forms of rows, a folder beside a store."""

from __future__ import annotations

import io
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, features
from torch.utils.data import DataLoader

import pixpack
from packer.errors import FfmpegError
from packer.pixels import jpeg
from reader import ImageBatch
from scripts import environment
from scripts.bench.data import drain, imported, in_processes, made_once, photographs
from scripts.bench.harness import Lab, Skip, Way, bench, require
from scripts.bench.reading import ResizedFolder

SIDE, WORKERS = 224, 2
LARGE = (4000, 3000)


def jpeg4py(data: bytes) -> np.ndarray:
    """Decode a JPEG by libjpeg-turbo."""
    if not jpeg.is_installed():
        raise Skip("apt-get install libturbojpeg0, pip install jpeg4py")
    return imported("jpeg4py", "jpeg4py").JPEG(np.frombuffer(data, np.uint8)).decode()


def decode_alone(path: Path) -> None:
    jpeg4py(path.read_bytes())


def cropped(path: Path) -> np.ndarray:
    """Decode a JPEG at full size, resize its short side and crop the center, as `pack` does."""
    image = Image.fromarray(jpeg4py(path.read_bytes()))
    width, height = (round(SIDE * side / min(image.size)) for side in image.size)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image.crop((left, top, left + SIDE, top + SIDE)))


def naive_loop(files: list[Path], out: Path) -> None:
    """Fill a mapped array with the rows that a pool of processes sends."""
    rows = np.memmap(out, np.uint8, "w+", shape=(len(files), SIDE, SIDE, 3))
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        for number, row in enumerate(pool.imap(cropped, files, chunksize=32)):
            rows[number] = row
    rows.flush()


def pillow(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def command(*words: object) -> None:
    """Run Python in a separate process, from the repository."""
    subprocess.run([sys.executable, *map(str, words)], check=True, env=environment(), stdout=subprocess.DEVNULL)


def digest(store: Path) -> str:
    return pixpack.MemmapDataset(store).manifest.digest


@bench("How near does `pack` come to merely decoding?", "images/s", rounds=3)
def pack(lab: Lab) -> Iterator[Way]:
    count = lab.pick(4000, 60)
    images, out, first = photographs(lab, count), lab.work / "out", lab.work / "first"
    files = sorted(images.rglob("*.jpg"))
    decode_alone(files[0])
    for stale in (out, first):
        shutil.rmtree(stale, ignore_errors=True)
    pixpack.pack(images, first, size=SIDE, workers=WORKERS, max_rejects=0)
    require(not pixpack.verify(first).problems, "the store does not pass `pack verify`.")

    def clear() -> None:
        """Check the output of the last turn, then remove it."""
        require(not out.exists() or digest(out) == digest(first), "this pack differs from the first.")
        shutil.rmtree(out, ignore_errors=True)

    packer = partial(command, "-m", "packer")
    options = ("--workers", WORKERS, "--quiet")
    yield Way("decoding alone", lambda: in_processes(WORKERS, decode_alone, files), count)
    yield Way("jpeg4py and Pillow in a pool", lambda: naive_loop(files, lab.work / "naive"), count)
    yield Way("pixpack.pack()", lambda: pixpack.pack(images, out, size=SIDE, workers=WORKERS), count, clear)
    yield Way("pack, the command", lambda: packer(images, out, "--size", SIDE, *options), count, clear)
    yield Way("pack update, nothing new", lambda: packer("update", images, first, *options), count)


@bench(
    "Which decodes a JPEG faster, Pillow or jpeg4py?",
    "images/s",
    rounds=15,
    claim="jpeg4py decodes JPEGs faster than Pillow, which has libjpeg-turbo too since 9.0 (its flag says so).",
    holds=lambda rate: rate.get("jpeg4py", 0) > 1.05 * rate["Pillow"],
)
def decoders(lab: Lab) -> Iterator[Way]:
    count = lab.pick(50, 6)
    files = [path.read_bytes() for path in sorted(photographs(lab, count).rglob("*.jpg"))]

    expected = pillow(files[-1]).astype(int)
    for name, decode in {"Pillow": pillow, "jpeg4py": jpeg4py}.items():
        levels = np.abs(decode(files[-1]) - expected).mean()
        require(levels < 2, f"{name} decodes to other pixels than Pillow: {levels:.1f} levels apart.")
        yield Way(name, lambda decode=decode: drain(map(decode, files)), count)
    flag = features.check("libjpeg_turbo")
    lab.notes.append(f"Pillow {Image.__version__}: libjpeg-turbo flag {flag}, {features.version('libjpeg_turbo')}.")


@bench(
    "What does `ffmpeg -q:v` save of a folder of JPEGs of 4000 x 3000, and how much faster is the smaller one decoded?",
    "images/s",
    rounds=5,
    claim="ffmpeg -q:v 3 makes JPEGs many times smaller (3.5 MB to 207 kB), and a folder of them is read faster.",
    holds=lambda rate: rate["-q 3"] > 1.5 * rate["original"],
)
def requantized(lab: Lab) -> Iterator[Way]:
    count = lab.pick(6, 2)
    source = photographs(lab, count, lab.pick(LARGE, (800, 600)))
    folders = {"original": source}
    for quality, size in lab.pick([(q, None) for q in (2, 3, 5, 10, 20)] + [(3, "480x640")], [(3, None)]):
        name, dest = f"-q {quality}" + (f" --size {size}" if size else ""), lab.work / f"requantized-{quality}-{size}"
        shutil.rmtree(dest, ignore_errors=True)
        try:
            pixpack.requantize(source, dest, quality=quality, size=size)
        except FfmpegError as e:
            raise Skip(str(e)) from None
        folders[name] = dest
    for name, folder in folders.items():
        files = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
        columns = {"kB": round(sum(map(len, files)) / len(files) / 1000)}
        yield Way(name, lambda files=files: drain(map(pillow, files)), count, columns=columns)


@bench("What do forms of rows take on the disk, and how fast are they read and packed?", "images/s", rounds=5)
def row_forms(lab: Lab) -> Iterator[Way]:
    count, side = lab.pick((2000, SIDE), (60, 64))
    images = photographs(lab, count)
    folder, out = "the images, decoded and resized by Pillow, 2 workers", lab.work / "form"
    kept: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True}
    theirs = DataLoader(ResizedFolder(images, side), 64, shuffle=True, **kept)
    source = sum(path.stat().st_size for path in images.rglob("*.jpg"))
    yield Way(folder, lambda: drain(theirs), count, columns={"kB a row": round(source / count / 1000, 1)})
    forms: dict[str, dict[str, Any]] = {
        "raw rows": {},
        "JPEG rows, quality 95": {"compress": 95},
        "JPEG rows, quality 90": {"compress": 90},
    }
    clear, raw = partial(shutil.rmtree, out, ignore_errors=True), None
    for name, form in forms.items():
        store = lab.work / f"form-{name.replace(' ', '-')}"
        pack = partial(pixpack.pack, images, size=side, workers=WORKERS, max_rejects=0, **form)
        data = pixpack.MemmapDataset(made_once(store, pack))
        size_bytes = sum(path.stat().st_size for path in store.rglob("*.memmap"))
        pixels = data[:][0].float()
        raw = pixels if raw is None else raw
        error = (pixels - raw).square().mean().item()
        columns = {"kB a row": round(size_bytes / count / 1000, 1)}
        columns |= {"PSNR, dB": round(10 * np.log10(255**2 / error), 1)} if error else {}
        loader = lab.stack.enter_context(pixpack.MemmapLoader(data, 64, shuffle="full"))
        yield Way(f"{name}, MemmapLoader", lambda loader=loader: drain(loader), count, columns=columns)
        yield Way(f"{name}, pack", partial(pack, out), count, clear, base="raw rows, pack")


@bench(
    "How much faster is a memory-mapped store read than a folder of JPEGs, over sizes and batches?",
    "images/s",
    rounds=3,
    claim="A memory-mapped tensorclass is read faster than a folder of images, to the CPU and to the GPU, at every size.",
    holds=lambda rate: all(
        r > rate[f"{way.partition(':')[0]}: JPEG folder"] for way, r in rate.items() if "tensorclass" in way
    ),
)
def folder_or_memmap(lab: Lab) -> Iterator[Way]:
    count, sizes = lab.pick((256, ((384, 384), (640, 480), (1280, 960))), (16, ((48, 32),)))
    for height, width in sizes:
        images = photographs(lab, count, (width, height))
        pack = partial(pixpack.pack, images, size=(height, width), exact=True, max_rejects=0)
        store = made_once(lab.work / f"whole-{count}-{height}x{width}", pack)
        folder, mapped = DecodedFolder(images), ImageBatch.load_memmap(store)
        require(np.array_equal(folder[0], mapped.pixels[0]), "a file and its row are not the same pixels.")
        for batch, device in [(b, d) for b in lab.pick((8, 64), (8,)) for d in _devices()]:
            kept: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True, "pin_memory": device == "cuda"}
            group = f"{height} x {width}, batches of {batch} to {device}"
            loaders = {
                "JPEG folder": DataLoader(folder, batch, shuffle=True, **kept),
                "tensorclass": DataLoader(mapped, batch, shuffle=True, collate_fn=lambda rows: rows.pixels, **kept),
            }
            for name, loader in loaders.items():
                send = partial(_send, loader, device)
                yield Way(f"{group}: {name}", send, count, base=f"{group}: JPEG folder")
            data = pixpack.MemmapDataset(store)
            ours = lab.stack.enter_context(
                pixpack.MemmapLoader(data, batch, shuffle="full", device=device, residency="cache")
            )
            yield Way(f"{group}: MemmapLoader", lambda loader=ours: drain(loader), count, base=f"{group}: JPEG folder")
    if _devices() == ["cpu"]:
        lab.notes.append("To a GPU: not run, no GPU")


class DecodedFolder(ResizedFolder):
    """uint8[H, W, 3] of each JPEG of a folder."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, 0)

    def __getitem__(self, index: int) -> np.ndarray:
        return pillow(self.files[index].read_bytes())


def _devices() -> list[str]:
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _send(loader: DataLoader, device: str) -> None:
    drain(batch.to(device, non_blocking=True) for batch in loader)
