"""Files and members of any size: what is too large is refused unread, and what is not takes its size in memory once."""

from __future__ import annotations

import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from packer.errors import DecodeError
from packer.inputs.scan import scan
from packer.packing.image_sizes import upright_sizes
from packer.sources.base import MOST_FILE_BYTES, Member
from packer.sources.local import LocalSource

MEGABYTE = 1_000_000

# read one source; print the reason, or nothing, and by how many bytes the process has grown
READ = """
import resource, sys
from packer.errors import DecodeError
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.inputs.scan import scan
from packer.sources.base import Member
from packer.sources.local import LocalSource
path = sys.argv[1]
member = Member(*scan(path)[""].members[0]) if path.endswith(".zip") else None
source = LocalSource(path, member)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print(end=str(len(source.read()[0])))
except DecodeError as e:
    print(end=str(e))
print(" +", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def sparse(path: Path, size_bytes: int) -> Path:
    """Make a file that begins as a JPEG and takes no room on the disk."""
    with open(path, "wb") as file:
        file.write(b"\xff\xd8\xff\xe0")
        file.truncate(size_bytes)
    return path


def zip_of_zeros(path: Path, megabytes: int) -> Path:
    """Make a zip of some kB whose one member inflates to so many megabytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("a/zeros.jpg", "w") as member:
        for _ in range(megabytes):
            member.write(bytes(MEGABYTE))
    return path


def test_a_file_may_have_four_bytes_for_each_pixel_that_an_image_may_have(tmp_path: Path) -> None:
    path = sparse(tmp_path / "a.jpg", MOST_FILE_BYTES + 1)
    with pytest.raises(DecodeError, match="it has 715827881 bytes, more than the 715827880 that one image may have$"):
        LocalSource(str(path)).read()
    assert upright_sizes([LocalSource(str(path))]) == {}
    with open(path, "r+b") as file:
        file.truncate(MOST_FILE_BYTES)
    assert len(LocalSource(str(path)).read(most_bytes=5000)[0]) == 5000


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in kB there")
@pytest.mark.parametrize(
    ("kind", "megabytes", "most"), [("file", 60, 75), ("file", 900, 4), ("zip", 60, 75), ("zip", 720, 4)]
)
def test_a_bomb_takes_no_more_memory_than_its_bytes_and_none_above_the_limit(
    tmp_path: Path, kind: str, megabytes: int, most: int
) -> None:
    size_bytes = megabytes * MEGABYTE
    if kind == "file":
        source = sparse(tmp_path / "a.jpg", size_bytes)
    else:
        source = zip_of_zeros(tmp_path / "a.zip", megabytes)
    done = subprocess.run([sys.executable, "-c", READ, str(source)], capture_output=True, text=True, check=True)
    outcome, _, grown = done.stdout.rpartition(" +")
    refusal = f"it has {size_bytes} bytes, more than the {MOST_FILE_BYTES} that one image may have"
    assert outcome == (str(size_bytes) if megabytes == 60 else refusal)
    assert int(grown) < most * MEGABYTE


@pytest.mark.parametrize("size_bytes", [1, 65_536, MEGABYTE + 1, 3 * MEGABYTE])
@pytest.mark.parametrize("content", ["zeros", "noise"])
def test_members_are_inflated_completely_or_to_any_byte(tmp_path: Path, size_bytes: int, content: str) -> None:
    data = bytes(size_bytes) if content == "zeros" else random.Random(0).randbytes(size_bytes)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.jpg", data)
    source = LocalSource(str(path), Member(*scan(path)[""].members[0]))
    assert source.read()[0] == data
    for most_bytes in (1, size_bytes // 2 or 1, size_bytes - 1 or 1):
        assert source.read(most_bytes=most_bytes)[0] == data[:most_bytes]
