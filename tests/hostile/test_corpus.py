"""The hostile corpus: every file comes out as its manifest expects, or is rejected with a reason that a person understands.

The corpus is not part of the repository; tests of it are skipped where it is not there. What is not a regular file is made here.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
import socket
import subprocess
import tarfile
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from conftest import PACK, SHARED, photo
from rights import modes_hold

from packer.inputs.names import is_image
from packer.sample_lines import read_json_lines
from reader import MemmapDataset

CORPUS = SHARED / "corpus"
# of the processor, for all of the corpus: what it takes, ten times over
MOST_SECONDS = 20
REASONS = re.compile(r"(it|its|the|there|Pillow) (?!.*(cannot identify image file|BytesIO))")

# libtiff's own doing: the one in Pillow's wheel reads it, Debian 12's libtiff 4.5, which Pillow-SIMD is built on, does not
LIBTIFF = "odd/tolerated/crash-0da013a13571cc8eb457a39fee8db18f8a3c7127.tif"
# a link to a file that the tar does not hold
DANGLING = "odd/names/symlink_inside.jpg"


def packed(
    images: str, out: Path, *options: str, stdin: bytes = b""
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Pack images; returns the lines of the rows, and of the rejects."""
    command = [*PACK, images, str(out), *options, "--max-rejects", "100%"]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert b"Warning" not in done.stderr
    kept, rejected = ([*read_json_lines(out / f"{name}.jsonl")] for name in ("samples", "rejected"))
    return kept, rejected


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")
def test_every_file_of_the_corpus_comes_out_as_expected_and_poisons_no_decoder(tmp_path: Path) -> None:
    """One worker decodes all, each after the one before it, as rows of their own sizes."""
    with open(CORPUS / "MANIFEST.csv", encoding="utf-8", newline="") as file:
        expected = {os.fsdecode(urllib.parse.unquote_to_bytes(line["path"])): line for line in csv.DictReader(file)}
    with tarfile.open(CORPUS / "hostile.tar") as tar:
        # names and links stay as they are: they are what is tested
        tar.extractall(tmp_path / "root", filter="fully_trusted" if hasattr(tarfile, "fully_trusted_filter") else None)
    # of a list, as of a folder, only names with the suffix of an image are inputs, and not what macOS leaves beside files
    order = [name for name in expected if is_image(name) and "/._" not in name]
    assert (len(expected), len(order)) == (206, 200)
    options = ["--root", str(tmp_path / "root"), "--fit", "none", "--exact", "--workers", "1"]
    before = os.times()
    kept, rejected = packed("-0", tmp_path / "out", *options, stdin=b"\0".join(map(os.fsencode, expected)))
    assert os.times().children_user - before.children_user < MOST_SECONDS
    for lines in (kept, rejected):
        assert [line["path"] for line in lines] == sorted([line["path"] for line in lines], key=order.index)
    decoded = {name for name in order if expected[name]["expected"].startswith("decoded")} - {DANGLING}
    assert decoded - {LIBTIFF} <= {line["path"] for line in kept} <= decoded
    assert {line["path"] for line in rejected} == {*order} - {line["path"] for line in kept}
    assert [line for line in rejected if not REASONS.match(line["reason"])] == []
    data = MemmapDataset(tmp_path / "out", as_tuple=False)
    for number, line in enumerate(kept):
        row, content = expected[line["path"]], (tmp_path / "root" / line["path"]).read_bytes()
        assert (str(line["width"]), str(line["height"])) == (row["upright_w"], row["upright_h"])
        assert line["sha256"] == hashlib.sha256(content).hexdigest()
        assert hashlib.sha256(data[number].pixels.numpy().tobytes()).hexdigest()[:16] == row["rgb_sha256_16"]


@pytest.mark.parametrize("form", ["folder", "-0"])
def test_special_files_are_rejected_with_a_reason_in_seconds(tmp_path: Path, form: str) -> None:
    images = tmp_path / "i"
    images.mkdir()
    photo(40, 40, 1).save(images / "good.jpg")
    os.mkfifo(images / "fifo.jpg")
    (images / "device.jpg").symlink_to("/dev/zero")
    with open(images / "sparse.jpg", "wb") as file:
        file.truncate(20 << 30)
    (images / "loop.jpg").symlink_to("loop.jpg")
    (images / "dangling.jpg").symlink_to("nowhere")
    (images / "secret.jpg").write_bytes((images / "good.jpg").read_bytes())
    (images / "secret.jpg").chmod(0)
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(images / "socket.jpg"))
        except OSError:
            pytest.skip("the path of a socket is too long here")
    names = b"\0".join(os.fsencode(path) for path in sorted(images.iterdir()))
    with modes_hold():
        kept, rejected = packed(
            str(images) if form == "folder" else form, tmp_path / "out", "--size", "32", stdin=names
        )
    assert [line["path"] for line in kept] == ["good.jpg"]
    assert {line["path"]: line["reason"] for line in rejected} == {
        "dangling.jpg": "there is no such file",
        "device.jpg": "it is no regular file",
        "fifo.jpg": "it is no regular file",
        "loop.jpg": "it cannot be read: Too many levels of symbolic links",
        "secret.jpg": "it cannot be read: Permission denied",
        "socket.jpg": "it is no regular file",
        "sparse.jpg": "it has 21474836480 bytes, more than the 715827880 that one image may have",
    }
