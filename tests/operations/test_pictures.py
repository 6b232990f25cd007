"""Where pictures and traces may go: over one of ours, never over another file or into a store; whole or not at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import PACK, photo, store_bytes
from PIL import Image

from packer import OptionsError
from packer.cli.app import run
from packer.operations.pictures import check_picture_path, marked, save
from packer.operations.show import png
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.store.files import write_atomically

QUICK = ["--seconds", "0.1", "--order", "full"]


def _foreign(path: Path) -> None:
    """Lay down a file that another program or the user made: a picture, or JSON."""
    if path.suffix == ".json":
        path.write_text('{"images": [], "annotations": []}')
    else:
        photo(40, 30, 1).save(path)


def test_a_sheet_is_drawn_again_over_itself(store: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    assert run(["show", str(store), "-o", str(sheet)]) == 0
    first = sheet.read_bytes()
    assert run(["show", str(store), "-o", str(sheet), "--count", "3"]) == 0
    assert sheet.read_bytes() != first
    with Image.open(sheet) as image:
        assert image.info["Software"] == "pixpack"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sheet.png", "store"]


@pytest.mark.parametrize("name", ["photo.jpg", "photo.png", "notes.json"])
def test_a_file_that_pixpack_did_not_draw_is_not_overwritten(
    store: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _foreign(tmp_path / name)
    before = (tmp_path / name).read_bytes()
    assert run(["show", str(store), "-o", str(tmp_path / name)]) == 2
    assert run(["bench", str(store), "--trace", str(tmp_path / name)]) == 2
    assert (tmp_path / name).read_bytes() == before
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(f"{tmp_path / name} is there, and was not drawn by pixpack: it is not overwritten." in s for s in lines)


@pytest.mark.parametrize("name", ["samples.jsonl", "_tensordict/pixels.memmap", "sheet.png", "_tensordict/sheet.png"])
def test_nothing_is_drawn_into_a_store(store: Path, tmp_path: Path, name: str) -> None:
    before = store_bytes(store)
    (tmp_path / "link").symlink_to(store / name)
    for path in (store / name, tmp_path / "link"):
        assert run(["show", str(store), "-o", str(path)]) == 2
        assert run(["bench", str(store), "--trace", str(path)]) == 2
    assert store_bytes(store) == before


def test_a_picture_appears_at_once_or_not_at_all(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet = tmp_path / "sheet.png"
    assert run(["show", str(store), "-o", str(sheet)]) == 0
    before = sheet.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    assert run(["show", str(store), "-o", str(sheet), "--count", "3"]) == 28
    assert sheet.read_bytes() == before


@pytest.mark.slow
@pytest.mark.usefixtures("quick_bench")
def test_the_trace_of_bench_is_written_again_over_itself(store: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert run(["bench", str(store), "--trace", str(tmp_path / "trace.x"), *QUICK]) == 0
    assert (tmp_path / "trace.x").read_bytes().startswith(b'{"software": "pixpack", ')


def test_an_empty_file_and_a_pipe_are_written_to(store: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert run(["show", str(store), "-o", str(tmp_path / "empty")]) == 0
    command = [*PACK, "show", str(store), "-o", "/dev/stderr"]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0
    assert done.stderr == (tmp_path / "empty").read_bytes()


def test_a_picture_is_the_same_bytes_after_a_large_image_was_decoded() -> None:
    noise = Image.effect_noise((640, 480), 90).convert("RGB")
    expected = png(noise)
    for geometry in (Geometry(1000, 1000), Geometry(1000, 1000, fit="none")):
        Decoder(geometry).row(expected)
        assert png(noise) == expected


def test_a_link_to_a_picture_of_ours_is_followed(tmp_path: Path) -> None:
    content = marked({"traceEvents": []})
    assert content == b'{"software": "pixpack", "traceEvents": []}'
    (tmp_path / "link").symlink_to("real")
    save(tmp_path / "link", content)
    save(tmp_path / "link", content)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == content


def test_a_name_as_long_as_names_may_be_is_written_at_once_too(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    write_atomically(path, b"first")
    write_atomically(path, b"second")
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"second"


@pytest.mark.parametrize("path", [".", "no/where.png"])
def test_a_path_where_no_file_can_be_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(OptionsError, match="cannot be written: expected a file name in a folder that exists"):
        check_picture_path("-o", tmp_path / path)
