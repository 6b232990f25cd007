"""Commands that read a store take its URL: they fetch what they need, and keep it only where a cache is named."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from conftest import make_tree
from range_server import RangeServer

from packer import pack
from packer.cli.app import run
from packer.operations.verify import verify
from reader.format.manifest import MANIFEST, PIXELS, read_manifest


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where what nobody keeps is."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def _fetched(server: RangeServer) -> int:
    return sum((stop - start) * count for (name, start, stop), count in server.asked.items() if name == PIXELS)


def test_info_fetches_no_pixel(
    range_server: RangeServer, many_blocks: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--brief"]):
        assert run(["info", range_server.url, "--json", *options]) == 0
        found = json.loads(capsys.readouterr().out)
        assert run(["info", str(many_blocks), "--json", *options]) == 0
        assert found == json.loads(capsys.readouterr().out)
    assert not _fetched(range_server)
    assert [*scratch.iterdir()] == []


def test_verify_reads_every_byte_once_and_keeps_none(
    range_server: RangeServer, many_blocks: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", range_server.url]) == 0
    size = (many_blocks / PIXELS).stat().st_size
    assert f"{range_server.url} is intact: 400 rows, " in capsys.readouterr().out
    assert _fetched(range_server) == size
    assert [*scratch.iterdir()] == []


def test_verify_reads_the_levels_of_a_store_at_a_url(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/url"
    pack(images, url, size=32, levels=2)
    assert run(["verify", url]) == 0
    assert "is intact: 24 rows" in capsys.readouterr().out
    (pixels,) = (tmp_path / "url").glob("generations/*/levels/2/_tensordict/pixels.memmap")
    flipped = bytearray(pixels.read_bytes())
    flipped[100] ^= 1
    pixels.write_bytes(flipped)
    assert run(["verify", url]) == 1
    assert "levels/2/_tensordict/pixels.memmap is not what its manifest says" in capsys.readouterr().err


def test_verify_names_the_rows_of_a_flipped_bit(
    many_blocks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    shutil.copytree(many_blocks, tmp_path / "url")
    with open(tmp_path / "url" / PIXELS, "r+b") as file:
        file.seek(20 * 768)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    assert run(["verify", f"file://{tmp_path}/url"]) == 1
    assert "rows 16 to 23: its pixels are not what was packed" in capsys.readouterr().err


def test_subset_fetches_the_blocks_of_its_rows(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, scratch: Path
) -> None:
    assert run(["subset", range_server.url, str(tmp_path / "some"), "--rows", "3,100-110", "--quiet"]) == 0
    assert run(["subset", str(many_blocks), str(tmp_path / "other"), "--rows", "3,100-110", "--quiet"]) == 0
    assert read_manifest(tmp_path / "some").digest == read_manifest(tmp_path / "other").digest
    assert _fetched(range_server) == 3 * 8 * 768
    assert verify(tmp_path / "some").problems == []
    assert [*scratch.iterdir()] == []


@pytest.mark.parametrize(
    "options", [["--rows", "0,399"], ["--per-class", "2"], ["--count", "5"], ["--rows", "7", "--single"]]
)
def test_show_draws_what_a_local_store_shows(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, options: list[str]
) -> None:
    assert run(["show", range_server.url, *options, "-o", str(tmp_path / "a.png")]) == 0
    assert run(["show", str(many_blocks), *options, "-o", str(tmp_path / "b.png")]) == 0
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert 0 < _fetched(range_server) <= 6 * 8 * 768


def test_a_cache_that_is_named_is_kept(range_server: RangeServer, tmp_path: Path) -> None:
    for _ in range(2):
        options = ["--rows", "0-15", "-o", str(tmp_path / "a.png"), "--cache", str(tmp_path / "cache")]
        assert run(["show", range_server.url, *options]) == 0
    assert _fetched(range_server) == 2 * 8 * 768
    (kept,) = (tmp_path / "cache").iterdir()
    assert sorted(path.name for path in (kept / ".remote").iterdir() if path.name.startswith("face")) == []
    assert not (kept / MANIFEST).exists()


def test_rows_with_sizes_of_their_own_are_shown(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", each=3)
    pack(tmp_path / "images", tmp_path / "out", fit="none")
    for url, name in ((f"file://{tmp_path}/out", "a.png"), (str(tmp_path / "out"), "b.png")):
        assert run(["show", url, "--rows", "1,8", "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["info", "{url}/nothing"], 1, "/nothing is not a store that can be read: "),
        (["info", "{out}", "--cache", "x"], 2, "--cache is for a store at a URL"),
        (["info", "ftp://host/out"], 2, "ftp://host/out cannot be read from. Expected a URL with s3"),
        (["show", "{url}"], 2, "is a URL, beside which no picture is written. Name one: -o sheet.png"),
        (["show", "{url}", "--rows", "400", "-o", "x.png"], 2, "--rows: row 400 is out of range"),
        (["verify", "{url}", "--redecode", "3", "--images", "."], 2, "copy it first, pack pull URL OUT"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    range_server: RangeServer,
    many_blocks: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    says: str,
) -> None:
    assert run([word.format(url=range_server.url, out=many_blocks) for word in words]) == code
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
