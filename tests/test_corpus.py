"""The hostile corpus: every file comes out as its manifest expects, or is rejected with a reason that a person understands.

The corpus is not part of the repository; these tests are skipped where it is not there.
"""

from __future__ import annotations

import csv
import hashlib
import os
import tarfile
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from conftest import SHARED

from packer.decode import DecodeError, Decoder
from packer.fit import Geometry
from packer.worker import read_source

CORPUS = SHARED / "corpus"
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")

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


@pytest.mark.parametrize("row", rows())
def test_every_file_comes_out_as_expected(row: dict[str, str], corpus: Path) -> None:
    path = located(corpus, row["path"])
    assert os.path.lexists(path)
    if row["path"] in DANGLING:
        with pytest.raises(DecodeError, match="it is a symbolic link to a file that does not exist"):
            read_source(path)
        return
    # this process's own time: a machine that does other work as well must not fail it
    begun = time.process_time()
    try:
        found: Any = _decoded(path)
    except DecodeError as e:
        found = str(e)
    seconds = time.process_time() - begun
    assert seconds < (2 if row["expected"].startswith("decoded") else 0.5)
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
        assert found.startswith(("it ", "its ", "the "))


def _decoded(path: str) -> Any:
    """Decode at full size; the header tells the size, as `pack` without --size does it."""
    data, _ = read_source(path)
    try:
        height, width = Decoder(None).upright_size(data)
    except DecodeError:
        height, width = 1, 1
    if height * width > 50_000_000:
        height, width = 1, 1  # it will be rejected by its header
    return Decoder(Geometry(height, width, "squash"), exact=True).row(data)


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
