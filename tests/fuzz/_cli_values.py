"""Values of options and arguments of pack, valid ones and others, and the inputs that they name."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import tarfile
from pathlib import Path
from typing import Any

import click

from packer import PackError, pack
from tests.fuzz._mutated_images import make_jpeg, make_other

# By the name of an option: what it takes. All others are given what click declares, and nonsense.
_VALID: dict[str, tuple[str, ...]] = {
    "size": ("16", "32", "24x40", "64"),
    "max_size": ("64", "100", "32x48"),
    "crop_fraction": ("0.875", "0.5", "1"),
    "requantize": ("2", "5", "31"),
    "bit_depth": ("8", "12", "16"),
    "path_column": ("path", "0"),
    "target_column": ("label", "weight", "label,weight", "none"),
    "extension": (".jpg", "jpg", "jpg,png"),
    "missing": ("", "NA", "-1"),
    "mask_values": ("0,1", "0,255", "0"),
    "shuffle": ("0", "1", "123456789"),
    "part": ("1/1", "1/2", "2/2", "3/3"),
    "workers": ("1", "2", "3"),
    "max_rejects": ("0", "100%", "5", "50%"),
    "engine": ("local",),
    "rows": ("0:4", "0,2", "::2", "-1", "1"),
    "names": ("a", "b", "nothing"),
    "per_class": ("1", "2"),
    "fraction": ("0.5", "1"),
    "seed": ("0", "7"),
    "crop": ("32", "64"),
    "scale": ("0.08,1", "0.5,0.5"),
    "ratio": ("0.75,1.3333", "1,1"),
    "quality": ("2", "5", "31"),
    "count": ("1", "5"),
    "columns": ("1", "3"),
    "batch_size": ("1", "4"),
    "device": ("cpu",),
    "seconds": ("0.1", "0.2"),
    "step_ms": ("0", "1"),
}
_NUMBERS = (
    "0",
    "1",
    "-1",
    "2",
    "7",
    "1.5",
    "1e3",
    "nan",
    "inf",
    "-inf",
    "9" * 30,
    "0x10",
    "1_000",
    "\N{ARABIC-INDIC DIGIT TWO}",
)
_NONSENSE = ("", " ", "x", "%", "-5%", "101%", "1/0", "0/1", "3x", "x3", "0x0", "65536x65536", "a\nb", "\x1b[31mred", "\u202ea",
             "\udcff", "..", "/", "a" * 5000, "1,2", "none", "--", "=")  # fmt: skip
# Never many: each is a process.
_WORKERS = ("0", "-1", "x", "1.5", "", "nan")


def make_inputs(root: Path) -> Path:
    """Make what commands are given: folders, lists, tables, archives, boxes, and stores of them, finished or not."""
    rng = random.Random(0)
    for name in "ab":
        folder = root / "images" / name
        folder.mkdir(parents=True)
        for number in range(5):
            image = (make_jpeg if number < 4 else make_other)(rng, 90)
            (folder / f"{number}.{image.suffix}").write_bytes(image.data)
    (root / "images/a/broken.jpg").write_bytes(b"broken")
    (root / "empty").mkdir()
    for split in ("train", "val"):
        shutil.copytree(root / "images", root / "splits" / split)
    files = sorted((root / "images").rglob("*.*"))
    lines = [f"{path},{path.parent.name},{number}.5" for number, path in enumerate(files)]
    (root / "table.csv").write_text("\n".join(["path,label,weight", *lines, ""]))
    (root / "bad.csv").write_text('path,label\n"unclosed,a\n')
    records = [json.dumps({"path": str(path), "target": number % 2}) for number, path in enumerate(files)]
    (root / "list.jsonl").write_text("\n".join([*records, ""]))
    (root / "classes.txt").write_text("a\nb\nc\n")
    with tarfile.open(root / "shard.tar", "w") as tar:
        for number, path in enumerate(files):
            tar.add(path, f"{number}{path.suffix}")
    _make_stores(root)
    return root


def _make_stores(root: Path) -> None:
    options: dict[str, Any] = {"workers": 1, "max_rejects": "100%"}
    pack(root / "images", root / "store", size=16, **options)
    pack(root / "table.csv", root / "store2", size=16, target_column="label", **options)
    pack(root / "splits", root / "split_stores", size=16, **options)
    pack(root / "images", root / "own_sizes", fit="none", max_size=64, **options)
    shutil.copytree(root / "store", root / "damaged")
    with open(root / "damaged/_tensordict/pixels.memmap", "r+b") as file:
        file.write(b"\xff\x00\xff")
    for part in ("1/2", "2/2"):
        pack(root / "images", root / "parts", size=16, part=part, **options)
    with contextlib.suppress(KeyboardInterrupt, PackError):
        pack(root / "images", root / "unfinished", size=16, progress=_stop, **options)


def _stop(progress: Any) -> None:
    if progress.stage == "pack":
        raise KeyboardInterrupt


class Values:
    """Chooses values for one command; stdin is what it may read there."""

    def __init__(self, rng: random.Random, inputs: Path, own: Path) -> None:
        self._rng, self._inputs, self._own = rng, inputs, own
        files = sorted(str(path) for path in (inputs / "images").rglob("*.*"))
        ends = rng.choice(["\n", "\0", "\r\n"])
        self.stdin = rng.choice([b"", b"\xff\xfe", ends.join([*files, ""]).encode()])

    def argument(self, command: str, argument: click.Argument) -> list[str]:
        """Return the words of an argument: as many as it takes, mostly."""
        if self._rng.random() < 0.02:
            return []
        name = str(argument.name)
        if command == "plan" or name in ("images", "path"):
            values = [self._images()]
        elif name == "url":
            values = [self._url(is_written=command == "push")]
        elif name == "dest" or (name == "out" and command in ("build", "subset", "merge", "pull")):
            values = [self._new_or_copied()]
        elif command in ("update", "seal", "show"):  # show leaves its sheet beside the store
            values = [self._copied()]
        else:
            values = [self._store()]
        if argument.nargs == -1 and self._rng.random() < (0.1 if name == "images" else 0.8):
            values.append(self._images() if name == "images" else self._store())
        return values

    def option(self, option: click.Option) -> list[str]:
        """Return the words of an option."""
        flag = self._rng.choice(option.opts)
        if option.is_flag:
            return [flag]
        value = self._value(option)
        return [f"{flag}={value}"] if flag.startswith("--") and self._rng.random() < 0.3 else [flag, value]

    def _value(self, option: click.Option) -> str:
        name, rng = str(option.name), self._rng
        if name == "workers":
            return rng.choice(_VALID[name] if rng.random() < 0.8 else _WORKERS)
        if rng.random() < 0.25 and name not in ("engine", "seconds", "address"):
            return self._argument(rng.choice([*_NUMBERS, *_NONSENSE]))
        if name in _VALID:
            return rng.choice(_VALID[name])
        if isinstance(option.type, click.Choice):
            return str(rng.choice(option.type.choices))
        if name in ("boxes", "masks", "classes", "root", "images"):
            return self._images() if rng.random() < 0.6 else self._store()
        return str(self._own / rng.choice(["a.png", "b.json", "cache"]))

    def _argument(self, value: str) -> str:
        """Return what can be an argument: a name may hold any byte but NUL."""
        return os.fsdecode(os.fsencode(value))

    def _images(self) -> str:
        names = ["images"] * 6 + [
            "splits",
            "table.csv",
            "list.jsonl",
            "shard.tar",
            "empty",
            "bad.csv",
            "classes.txt",
            "nothing",
        ]
        if self._rng.random() < 0.1:
            return self._rng.choice(["-", self._argument(self._rng.choice(_NONSENSE)), str(self._inputs / "store")])
        return str(self._inputs / self._rng.choice(names))

    def _store(self) -> str:
        names = ["store"] * 4 + [
            "store2",
            "split_stores",
            "own_sizes",
            "damaged",
            "parts",
            "unfinished",
            "images",
            "nothing",
        ]
        return str(self._inputs / self._rng.choice(names))

    def _copied(self) -> str:
        """Return a copy of a store, to be written to."""
        source = Path(self._store())
        target = self._own / "copy"
        if source.exists() and not target.exists():
            shutil.copytree(source, target)
        return str(target)

    def _new_or_copied(self) -> str:
        return str(self._own / "out") if self._rng.random() < 0.7 else self._copied()

    def _url(self, *, is_written: bool) -> str:
        path = self._new_or_copied() if is_written else self._store()
        return path if self._rng.random() < 0.3 else f"file://{path}"
