"""The hostile corpus: every file comes out as its manifest expects, or is rejected with a reason that a person understands.

The corpus is not part of the repository; tests of it are skipped where it is not there. What is not a regular file is made here.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import os
import re
import socket
import subprocess
import tarfile
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from conftest import PACK, SHARED, photo
from rights import modes_hold

from packer.errors import DecodeError
from packer.inputs.names import is_image
from packer.options import MAX_PIXELS
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.sample_lines import read_json_lines
from packer.sources.local import LocalSource
from reader import MemmapDataset

CORPUS = SHARED / "corpus"
REASONS = ("it ", "its ", "the ", "there ", "Pillow ")
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")

# libtiff's own doing: the one in Pillow's wheel reads it, Debian 12's libtiff 4.5, which Pillow-SIMD is built on, does not
LIBTIFF = {"odd/tolerated/crash-0da013a13571cc8eb457a39fee8db18f8a3c7127.tif"}
# a link to a file that the tar does not hold
DANGLING = {"odd/names/symlink_inside.jpg"}


def expected() -> dict[str, dict[str, str]]:
    """Return the lines of the corpus's manifest by the name of the file."""
    if not CORPUS.is_dir():
        return {}
    with open(CORPUS / "MANIFEST.csv", encoding="utf-8", newline="") as file:
        return {os.fsdecode(urllib.parse.unquote_to_bytes(row["path"])): row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    with tarfile.open(CORPUS / "hostile.tar") as tar:
        # names and links stay as they are: they are what is tested
        tar.extractall(root, filter="fully_trusted" if hasattr(tarfile, "fully_trusted_filter") else None)
    return root


@needs_corpus
@pytest.mark.parametrize("name", expected(), ids=ascii)
def test_every_file_comes_out_as_expected_and_poisons_no_decoder(name: str, corpus: Path, images: Path) -> None:
    row, path = expected()[name], os.path.join(corpus, name)
    assert os.path.lexists(path)
    if name in DANGLING:
        with pytest.raises(DecodeError, match="there is no such file"):
            LocalSource(path).read()
        return
    good = next(images.rglob("*.jpg")).read_bytes()
    # this process's own time, and the least of three: what else the machine does, its page faults included, must not fail it
    limit, seconds = 2 if row["expected"].startswith("decoded") else 0.5, float("inf")
    for _ in range(3):
        started = time.process_time()
        try:
            found: Any = Decoder(_full_size(path), exact=True).row(LocalSource(path).read()[0])
        except DecodeError as e:
            found = str(e)
        seconds = min(seconds, time.process_time() - started)
        if seconds < limit:
            break
    assert seconds < limit
    small = Decoder(Geometry(32, 32))
    with contextlib.suppress(DecodeError):
        small.row(LocalSource(path).read()[0])
    assert small.row(good) == Decoder(Geometry(32, 32)).row(good)
    if row["expected"].startswith("decoded"):
        if name in LIBTIFF and isinstance(found, str):
            return
        assert not isinstance(found, str), found
        assert (str(found.width), str(found.height)) == (row["upright_w"], row["upright_h"])
        assert hashlib.sha256(found.pixels).hexdigest()[:16] == row["rgb_sha256_16"]
    else:
        assert isinstance(found, str), "it was decoded"
        assert not re.search("cannot identify image file|BytesIO", found)
        assert found.startswith(REASONS)


def _full_size(path: str) -> Geometry:
    """Return the geometry of a row of the image's own size; one pixel where its header states none, or too many."""
    try:
        height, width = Decoder(Geometry(1, 1)).upright_size(LocalSource(path).read()[0])
    except DecodeError:
        height, width = 1, 1
    return Geometry(height, width, "squash") if height * width <= MAX_PIXELS else Geometry(1, 1, "squash")


@needs_corpus
def test_the_corpus_as_a_list_comes_out_as_expected(corpus: Path, tmp_path: Path) -> None:
    rows = expected()
    # of a list, as of a folder, only names with the suffix of an image are inputs, and not what macOS leaves beside files
    order = [name for name in rows if is_image(name) and "/._" not in name]
    assert (len(rows), len(order)) == (206, 200)
    command = [*PACK, "-0", str(tmp_path / "out"), "--root", str(corpus)]
    command += ["--size", "32", "--fit", "squash", "--exact", "--max-rejects", "100%"]
    done = subprocess.run(command, input=b"\0".join(map(os.fsencode, rows)), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"Warning" not in done.stderr
    kept, rejected = ([*read_json_lines(tmp_path / "out" / f"{name}.jsonl")] for name in ("samples", "rejected"))
    assert sorted([line["path"] for line in kept + rejected], key=order.index) == order
    for lines in (kept, rejected):
        assert [line["path"] for line in lines] == sorted([line["path"] for line in lines], key=order.index)
    decoder, pixels = Decoder(Geometry(32, 32, "squash"), exact=True), MemmapDataset(tmp_path / "out").numpy()
    for number, line in enumerate(kept):
        row, data = rows[line["path"]], Path(corpus, line["path"]).read_bytes()
        assert row["expected"].startswith("decoded"), line
        assert (str(line["width"]), str(line["height"])) == (row["upright_w"], row["upright_h"])
        assert line["sha256"] == hashlib.sha256(data).hexdigest()
        assert pixels[number].tobytes() == decoder.row(data).pixels
    for line in rejected:
        assert not rows[line["path"]]["expected"].startswith("decoded") or line["path"] in LIBTIFF | DANGLING, line
        assert line["reason"].startswith(REASONS), line


# -- what is not a regular file


@pytest.mark.parametrize("form", ["folder", "-0"])
def test_special_files_are_rejected_with_a_reason_in_seconds(tmp_path: Path, form: str) -> None:
    images = tmp_path / "i"
    images.mkdir()
    photo(40, 40, 1).save(images / "good.jpg")
    os.mkfifo(images / "fifo.jpg")
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(images / "socket.jpg"))
        except OSError:
            pytest.skip("the path of a socket is too long here")
    (images / "device.jpg").symlink_to("/dev/zero")
    with open(images / "sparse.jpg", "wb") as file:
        file.truncate(20 << 30)
    (images / "loop.jpg").symlink_to("loop.jpg")
    (images / "dangling.jpg").symlink_to("nowhere")
    (images / "secret.jpg").write_bytes((images / "good.jpg").read_bytes())
    (images / "secret.jpg").chmod(0)
    source = str(images) if form == "folder" else "-0"
    names = sorted(path.name for path in images.iterdir())
    command = [*PACK, source, str(tmp_path / "out"), "--size", "32", "--max-rejects", "100%"]
    given = b"" if form == "folder" else b"\0".join(os.fsencode(images / name) for name in names)
    with modes_hold():
        done = subprocess.run(command, input=given, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [path for path, _ in MemmapDataset(tmp_path / "out").samples] == ["good.jpg"]
    assert {line["path"]: line["reason"] for line in read_json_lines(tmp_path / "out/rejected.jsonl")} == {
        "dangling.jpg": "there is no such file",
        "device.jpg": "it is no regular file",
        "fifo.jpg": "it is no regular file",
        "loop.jpg": "it cannot be read: Too many levels of symbolic links",
        "secret.jpg": "it cannot be read: Permission denied",
        "socket.jpg": "it is no regular file",
        "sparse.jpg": "it has 21474836480 bytes, more than the 715827880 that one image may have",
    }
