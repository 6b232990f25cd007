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

import pytest
from conftest import PACK, SHARED, make_tree
from rights import modes_hold

from packer import pack
from packer.inputs.names import is_image
from packer.sample_lines import read_json_lines
from reader import MemmapDataset

CORPUS = SHARED / "corpus"
REASONS = re.compile(r"(it|its|the|there|Pillow) (?!.*BytesIO)")

# libtiff's own doing: the one in Pillow's wheel reads it, Debian 12's libtiff 4.5, which Pillow-SIMD is built on, does not
LIBTIFF = "odd/tolerated/crash-0da013a13571cc8eb457a39fee8db18f8a3c7127.tif"
# a link to a file that the tar does not hold
DANGLING = "odd/names/symlink_inside.jpg"


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
    out, paths = tmp_path / "out", b"\0".join(map(os.fsencode, expected))
    options = ["--root", tmp_path / "root", "--fit", "none", "--exact", "--workers", "1", "--max-rejects", "100%"]
    done = subprocess.run([*PACK, "-0", out, *options], input=paths, capture_output=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert b"Warning" not in done.stderr
    kept, rejected = ([*read_json_lines(out / name)] for name in ("samples.jsonl", "rejected.jsonl"))
    decoded = {name for name in order if expected[name]["expected"].startswith("decoded")} - {DANGLING}
    assert decoded - {LIBTIFF} <= {line["path"] for line in kept} <= decoded
    assert {line["path"] for line in rejected} == {*order} - {line["path"] for line in kept}
    assert [line for line in rejected if not REASONS.match(line["reason"])] == []
    data = MemmapDataset(out, as_tuple=False)
    for number, line in enumerate(kept):
        row, content = expected[line["path"]], (tmp_path / "root" / line["path"]).read_bytes()
        assert (str(line["width"]), str(line["height"])) == (row["upright_w"], row["upright_h"])
        assert line["sha256"] == hashlib.sha256(content).hexdigest()
        assert hashlib.sha256(data[number].pixels.numpy().tobytes()).hexdigest()[:16] == row["rgb_sha256_16"]


def test_special_files_are_rejected_with_a_reason(tmp_path: Path) -> None:
    images = make_tree(tmp_path, classes=1) / "class0"
    (images / "device.jpg").symlink_to("/dev/zero")
    with open(images / "sparse.jpg", "wb") as file:
        file.truncate(20 << 30)
    (images / "secret.jpg").write_bytes(b"")
    (images / "secret.jpg").chmod(0)
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(images / "socket.jpg"))
        except OSError:
            pytest.skip("the path of a socket is too long here")
    with modes_hold():
        assert pack(images, tmp_path / "out", size=32, max_rejects="100%").rows == 8
    assert {line["path"]: line["reason"] for line in read_json_lines(tmp_path / "out/rejected.jsonl")} == {
        "device.jpg": "it is no regular file",
        "secret.jpg": "it cannot be read: Permission denied",
        "socket.jpg": "it is no regular file",
        "sparse.jpg": "it has 21474836480 bytes, more than the 715827880 that one image may have",
    }
