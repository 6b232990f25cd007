"""A machine that packs and does not train: without torch every command works but `pack bench`, which says what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from conftest import content_bytes, photo, unparted_bytes

from packer import pack

ROOT = Path(__file__).resolve().parents[2]
_NOT_THERE = ("torch", "tensordict")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with links to all that is installed here, but for torch and what comes with it."""
    folder = tmp_path_factory.mktemp("host")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for installed in map(Path, filter(lambda path: path.endswith("site-packages"), sys.path)):
        for entry in installed.iterdir():
            link = packages / entry.name
            if not (entry.name.startswith(_NOT_THERE) or entry.suffix == ".pth" or link.exists()):
                link.symlink_to(entry)
    return folder / "bin" / "python"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number in range(12):
        path = tmp_path / "images" / ("bee" if number % 2 else "ant") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(40 + number, 50, number).save(path)
    return tmp_path / "images"


def run_on_host(host: Path, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run `pack` in the environment of the packing host; returns its exit code and what it says."""
    command = [str(host), "-m", "packer", *arguments]
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


def test_every_command_but_bench_works_without_torch(host: Path, images: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/url"
    size = ("--size", "32")
    for command in (
        ["plan", "images", *size],
        ["build", "images", "out", *size],
        ["build", "images", "out", *size],
        ["verify", "out"],
        ["info", "out"],
        ["show", "out", "-o", "sheet.png"],
        ["subset", "out", "first", "--rows", "0-4"],
        ["subset", "out", "second", "--rows", "5-11"],
        ["merge", "first", "second", "merged"],
        ["update", "images", "out"],
        ["push", "out", url],
        ["pull", url, "pulled"],
        ["build", "images", "frames", *size, "--compress", "90"],
        ["verify", "frames"],
        ["build", "images", "parts", *size, "--part", "1/2"],
        ["build", "images", "parts", *size, "--part", "2/2"],
        ["seal", "parts"],
    ):
        code, output = run_on_host(host, tmp_path, *command)
        assert (code, "torch" in output) == (0, False), f"pack {' '.join(command)}: {output}"
    for name in ("pulled", "parts"):
        assert unparted_bytes(tmp_path / name) == unparted_bytes(tmp_path / "out"), name
    assert content_bytes(tmp_path / "merged") == content_bytes(tmp_path / "out")
    # the manifest names the decoders, and another Pillow is used there
    pack(images, tmp_path / "here", size=32)
    pixels = "_tensordict/pixels.memmap"
    assert (tmp_path / "out" / pixels).read_bytes() == (tmp_path / "here" / pixels).read_bytes()


def test_bench_says_what_is_missing(host: Path, images: Path, tmp_path: Path) -> None:
    assert run_on_host(host, tmp_path, "build", "images", "out", "--size", "32")[0] == 0
    code, output = run_on_host(host, tmp_path, "bench", "out")
    assert code == 1
    assert output.splitlines() == [
        "pack: pack bench needs torch. Run it where you train, or: pip install torch tensordict"
    ]
    code, output = run_on_host(host, tmp_path, "doctor")
    assert code == 0
    assert "torch         missing: " in output
