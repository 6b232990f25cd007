"""Members of a tar are listed as tarfile lists them, whatever wrote it, and damage is noticed as there."""

from __future__ import annotations

import io
import random
import tarfile

import pytest

from tests.fuzz._odd_tars import by_packer, by_tarfile, is_same, odd_tar

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def members() -> list[tarfile.TarInfo]:
    """Members with short, long and odd names, of every type that is written."""
    names = [
        "a.jpg",
        "n01/a.jpg",
        "f/" * 60 + "a.jpg",
        "x" * 100,
        "y/" + "x" * 99,
        "\u00e9/\u4e2d.jpg",
        "back\\slash.jpg",
    ]
    found = []
    for number, name in enumerate(names):
        found.append(tarfile.TarInfo(name))
        found[-1].size, found[-1].mtime = 700 * number, 1_600_000_000 + number / 4
    for name, kind in (
        ("folder", tarfile.DIRTYPE),
        ("link", tarfile.SYMTYPE),
        ("same", tarfile.LNKTYPE),
        ("pipe", tarfile.FIFOTYPE),
    ):
        found.append(tarfile.TarInfo(name))
        found[-1].type, found[-1].linkname = kind, "a.jpg" if "link" in name or name == "same" else ""
    return found


def written(form: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for member in members():
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return file.getvalue()


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_members_are_those_of_tarfile(form: int) -> None:
    data = written(form)
    assert by_packer(data) == by_tarfile(data)
    assert len(by_packer(data)) == len(members()) + 1


@pytest.mark.parametrize(
    "records",
    [
        b"28 mtime=1700000000.123456\n",
        b"9 uid=12\n12 comment=\n",
        b"11 path=b\n",
        b"10 size=3\n",
        b"15 hdrcharset=\n",
        b"9 uid=12",
        b"99 uid=12\n",
        b"0 uid=12\n",
        b"-9 uid=12\n",
        b"uid=12\n",
        b"9 uid=12\n\0\0\0",
        b"",
    ],
)
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_records_of_pax_are_those_of_tarfile(records: bytes, kind: bytes) -> None:
    head, member = tarfile.TarInfo("records"), tarfile.TarInfo("a.jpg")
    head.type, head.size, member.size = kind, len(records), 5
    blocks = head.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512) if records else b""
    data = member.tobuf(tarfile.USTAR_FORMAT) + bytes(512) + blocks
    data += member.tobuf(tarfile.USTAR_FORMAT) + bytes(512 + 1024)
    assert by_packer(data) == by_tarfile(data)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_damaged_headers_are_refused_where_tarfile_refuses_them(form: int) -> None:
    rng, intact = random.Random(form), written(form)
    kinds = set()
    for _ in range(300):
        data = bytearray(intact)
        # in the first headers mostly
        at = rng.randrange(rng.choice([512, 1024, len(data)]))
        data[at] ^= 1 << rng.randrange(8)
        ours, theirs = by_packer(bytes(data)), by_tarfile(bytes(data))
        assert ours == theirs
        kinds.add(type(theirs))
    assert kinds == {list, str}


@pytest.mark.parametrize("cut", [0, 100, 511, 512, 513, 5000])
def test_a_tar_that_is_cut_short_is_refused_as_by_tarfile(cut: int) -> None:
    data = written(tarfile.USTAR_FORMAT)[:cut]
    assert by_packer(data) == by_tarfile(data)


def test_odd_headers_are_listed_as_by_tarfile() -> None:
    rng, listings = random.Random(7), list[bool]()
    for _ in range(3000):
        data = odd_tar(rng)
        expected = by_tarfile(data)
        assert is_same(by_packer(data), expected)
        listings.append(isinstance(expected, list) and len(expected) > 2)
    assert 500 < sum(listings) < 2500
