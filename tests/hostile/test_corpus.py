"""The hostile corpus: every file comes out as its manifest expects, or is rejected with a reason that a person understands.

The corpus is not part of the repository; tests of it are skipped where it is not there. What is not a regular file is made here.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from conftest import PACK, SHARED, photo

from packer.errors import DecodeError
from packer.inputs.names import is_image
from packer.options import MAX_PIXELS
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.sample_lines import read_json_lines
from packer.sources.local import LocalSource
from reader import MemmapDataset

CORPUS = SHARED / "corpus"
ROOT = Path(__file__).resolve().parents[2]
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")

# libtiff's own doing: the one in Pillow's wheel reads it, Debian 12's libtiff 4.5, which Pillow-SIMD is built on, does not
LIBTIFF = {"odd/tolerated/crash-0da013a13571cc8eb457a39fee8db18f8a3c7127.tif"}


# a link to a file that the tar does not hold
DANGLING = {"odd/names/symlink_inside.jpg"}


def located(corpus: Path, name: str) -> str:
    return os.path.join(corpus, os.fsdecode(urllib.parse.unquote_to_bytes(name)))


def rows() -> list[Any]:
    if not CORPUS.is_dir():
        return []
    with open(CORPUS / "MANIFEST.csv", encoding="utf-8", newline="") as file:
        return [pytest.param(row, id=row["path"]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    with tarfile.open(CORPUS / "hostile.tar") as tar:
        # names and links stay as they are: they are what is tested
        tar.extractall(root, filter="fully_trusted" if hasattr(tarfile, "fully_trusted_filter") else None)
    return root


@needs_corpus
@pytest.mark.parametrize("row", rows())
def test_every_file_comes_out_as_expected(row: dict[str, str], corpus: Path) -> None:
    path = located(corpus, row["path"])
    assert os.path.lexists(path)
    if row["path"] in DANGLING:
        with pytest.raises(DecodeError, match="there is no such file"):
            LocalSource(path).read()
        return
    # this process's own time, and the least of three: what else the machine does, its page faults included, must not fail it
    limit, seconds = 2 if row["expected"].startswith("decoded") else 0.5, float("inf")
    for _ in range(3):
        started = time.process_time()
        try:
            found: Any = _decoded(path)
        except DecodeError as e:
            found = str(e)
        seconds = min(seconds, time.process_time() - started)
        if seconds < limit:
            break
    assert seconds < limit
    if row["expected"].startswith("decoded"):
        if row["path"] in LIBTIFF and isinstance(found, str):
            return
        assert not isinstance(found, str), found
        assert (str(found.width), str(found.height)) == (row["upright_w"], row["upright_h"])
        assert hashlib.sha256(found.pixels).hexdigest()[:16] == row["rgb_sha256_16"]
    else:
        assert isinstance(found, str), "it was decoded"
        assert "cannot identify image file" not in found
        assert "BytesIO" not in found
        assert found.startswith(("it ", "its ", "the ", "there ", "Pillow "))


def _decoded(path: str) -> Any:
    """Decode at full size; the header states the size, as `pack` without --size does it."""
    data, _ = LocalSource(path).read()
    try:
        height, width = Decoder(Geometry(1, 1)).upright_size(data)
    except DecodeError:
        height, width = 1, 1
    if height * width > MAX_PIXELS:
        height, width = 1, 1  # it will be rejected by its header
    return Decoder(Geometry(height, width, "squash"), exact=True).row(data)


@needs_corpus
@pytest.mark.parametrize("form", ["-0", "jsonl"])
def test_the_corpus_as_a_list_comes_out_as_expected(corpus: Path, tmp_path: Path, form: str) -> None:
    expected = {os.fsdecode(urllib.parse.unquote_to_bytes(row.values[0]["path"])): row.values[0] for row in rows()}
    arguments = ["--size", "32", "--fit", "squash", "--exact", "--json", "--max-rejects", "100%"]
    report = pack_list(form, corpus, list(expected), tmp_path / "out", *arguments)
    # of a list, as of a folder, only names with the suffix of an image are inputs, and not what macOS leaves beside files
    passed = {name for name in expected if not is_image(name) or "/._" in name}
    assert (report["inputs"], len(passed), len(expected)) == (200, 6, 206)
    kept = list(read_json_lines(tmp_path / "out/samples.jsonl"))
    rejected = list(read_json_lines(tmp_path / "out/rejected.jsonl"))
    order = list(expected)
    assert sorted([line["path"] for line in kept + rejected]) == sorted(set(order) - passed)
    assert [order[line["line"] - 1] for line in rejected] == [line["path"] for line in rejected]
    assert [order.index(line["path"]) for line in kept] == sorted(order.index(line["path"]) for line in kept)
    decoder, pixels = Decoder(Geometry(32, 32, "squash"), exact=True), MemmapDataset(tmp_path / "out").numpy()
    for number, line in enumerate(kept):
        row = expected[line["path"]]
        assert row["expected"].startswith("decoded"), line
        assert (str(line["width"]), str(line["height"])) == (row["upright_w"], row["upright_h"])
        data = Path(corpus, line["path"]).read_bytes()
        assert line["sha256"] == hashlib.sha256(data).hexdigest()
        assert pixels[number].tobytes() == decoder.row(data).pixels
    for line in rejected:
        row = expected[line["path"]]
        assert not row["expected"].startswith("decoded") or row["path"] in LIBTIFF | DANGLING, line
        assert line["reason"].startswith(("it ", "its ", "the ", "there ", "Pillow ")), line


def pack_list(form: str, corpus: Path, names: list[str], out: Path, *options: str) -> dict[str, Any]:
    """Pack names below corpus, as a list on standard input or as a manifest."""
    manifest, data = out.with_name("list.jsonl"), b""
    if form == "jsonl":
        manifest.write_text("".join(json.dumps({"path": name}) + "\n" for name in names))
    else:
        data = b"".join(os.fsencode(name) + b"\0" for name in names)
    source = [str(manifest)] if form == "jsonl" else ["-0"]
    command = [*PACK, *source, str(out), "--root", str(corpus), *options]
    done = subprocess.run(command, input=data, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"Warning" not in done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


# -- what is not a regular file


@pytest.mark.skipif(sys.platform != "linux", reason="root is kept from reading by a system call of Linux")
@pytest.mark.parametrize("form", ["folder", "-0"])
def test_special_files_are_rejected_with_a_reason_in_seconds(tmp_path: Path, form: str) -> None:
    import socket

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
    done = subprocess.run(
        [*PACK, source, str(tmp_path / "out"), "--size", "32", "--max-rejects", "100%"],
        input=b"" if form == "folder" else b"\0".join(os.fsencode(images / name) for name in names),
        capture_output=True,
        preexec_fn=_give_up_roots_reach,
        timeout=300,
    )
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


def _give_up_roots_reach() -> None:
    """Before exec: lose the two capabilities by which root reads what its permissions forbid; others have neither."""
    import ctypes

    drop_from_bounding_set, dac_override, dac_read_search = 24, 1, 2
    for capability in (dac_override, dac_read_search):
        ctypes.CDLL(None).prctl(drop_from_bounding_set, capability, 0, 0, 0)


@needs_corpus
def test_files_that_poison_the_decoder_cost_no_good_image(corpus: Path) -> None:
    """One decoder, bad files between good ones, in 20 orders: every good image comes out the same."""
    import random

    poisons = [p.values[0]["path"] for p in rows() if p.values[0]["poisons_jpeg4py"] == "True"]
    good = [
        p.values[0]["path"]
        for p in rows()
        if p.values[0]["path"].startswith("good/") and p.values[0]["format"] == "JPEG"
    ]
    assert poisons
    assert good
    data = {name: Path(located(corpus, name)).read_bytes() for name in poisons + good}
    geometry = Geometry(32, 32)
    expected = {name: Decoder(geometry).row(data[name]).pixels for name in good}
    for seed in range(20):
        decoder, order = Decoder(geometry), poisons * 3 + good * 2
        random.Random(seed).shuffle(order)
        for name in order:
            try:
                pixels = decoder.row(data[name]).pixels
            except DecodeError:
                assert name not in expected
                continue
            assert name not in expected or pixels == expected[name]
