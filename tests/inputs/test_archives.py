"""Tars and zips: which members are inputs, their labels, and that their bytes are read at their place."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from conftest import photo
from redecoding import rows_of_other_sources

from packer import OptionsError, PackError, ScanError, pack
from packer.cli.app import run
from packer.inputs.samples import Inputs
from packer.inputs.scan import scan
from packer.operations.verify import verify
from packer.options import PackOptions
from packer.sample_lines import read_json_lines
from reader import MemmapDataset


def jpeg(seed: int, size: tuple[int, int] = (40, 36)) -> bytes:
    data = io.BytesIO()
    photo(*size, seed).save(data, "JPEG", quality=90)
    return data.getvalue()


def make_tar(
    path: Path, members: Mapping[str, bytes | str], kind: int = tarfile.USTAR_FORMAT, *, mode: Literal["w", "a"] = "w"
) -> Path:
    """Write members in the order given, or append them."""
    with tarfile.open(path, mode, format=kind, errors="surrogateescape") as tar:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else content.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def make_zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def listed(*paths: Path, classes: tuple[str, ...] | None = None, **options: Any) -> Inputs:
    return scan(paths, classes=classes, options=PackOptions(**options))[""]


def samples(start: int, stop: int) -> dict[str, bytes | str]:
    """WebDataset samples with integer labels."""
    members: dict[str, bytes | str] = {}
    for n in range(start, stop):
        members |= {
            f"{n:05}.cls": str(n % 3),
            f"{n:05}.jpg": jpeg(n),
            f"{n:05}.json": json.dumps({"age": n, "who": "x"}),
        }
    return members


# -- tars


def test_shards_are_packed_in_order_with_labels_and_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = [make_tar(tmp_path / f"shard-{s}.tar", samples(4 * s, 4 * s + 4)) for s in range(3)]
    assert run([*map(str, shards), str(tmp_path / "out"), "--size", "32"]) == 0
    captured = capsys.readouterr()
    assert "12 rows of 32 x 32 x 3, 3 classes" in captured.out
    assert captured.err == ""
    train = MemmapDataset(tmp_path / "out", as_tuple=False)
    assert train.samples == [(f"shard-{n // 4}.tar/{n:05}.jpg", n % 3) for n in range(12)]
    lines = read_json_lines(tmp_path / "out/samples.jsonl")
    assert [line["columns"] for line in lines] == [{"age": n, "who": "x"} for n in range(12)]
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", *shards) == []


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar_and_odd_names(kind: int, tmp_path: Path) -> None:
    names = ["d/ü.jpg", "d/a b.jpg", "two\nlines/1.jpg", "d" * 90 + "/" + "n" * 90 + ".jpg", os.fsdecode(b"d/\xff.jpg")]
    names = names if kind != tarfile.PAX_FORMAT else names[:4]
    path = make_tar(tmp_path / "t.tar", {name: jpeg(n) for n, name in enumerate(names)}, kind)
    pack(path, tmp_path / "out", size=32)
    assert [name for name, _ in MemmapDataset(tmp_path / "out").samples] == [f"t.tar/{name}" for name in names]


def test_what_a_tar_names_is_an_input_and_nothing_leads_out(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "t.tar", {"/abs/../../a.jpg": jpeg(1), "./b.png": jpeg(2), "c.npy": b"\x93NUMPY"})
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("d.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        folder = tarfile.TarInfo("folder.jpg")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    report = pack(path, tmp_path / "out", size=32, max_rejects=1)
    assert [name for name, _ in MemmapDataset(tmp_path / "out").samples] == ["t.tar/a.jpg", "t.tar/b.png"]
    assert (report.reasons, report.ignored) == ({"it is no plain file in its tar": 1}, 1)


def test_a_tar_that_is_cut_or_damaged_is_refused(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "t.tar", samples(0, 4))
    intact = path.read_bytes()
    with tarfile.open(path) as tar:
        member = tar.getmembers()[7]
    for cut in (member.offset + 100, member.offset_data + 10):
        path.write_bytes(intact[:cut])
        with pytest.raises(ScanError, match="t.tar is cut short or damaged at 00002"):
            listed(path)
    # tarfile itself takes this for the end of the archive, and would lose what follows
    path.write_bytes(intact[: member.offset] + b"\xaa" + intact[member.offset + 1 :])
    with pytest.raises(ScanError, match="t.tar is cut short or damaged at 00002.cls: a header after it is damaged"):
        listed(path)


@pytest.mark.parametrize("number", [0, 7])
@pytest.mark.parametrize("size", [-512, 1 << 80])
def test_a_member_of_an_impossible_size_ends_the_list(number: int, size: int, tmp_path: Path) -> None:
    """As GNU's base 256 writes it; behind 512 bytes less than none tarfile finds the same header, forever."""
    path = make_tar(tmp_path / "t.tar", samples(0, 4))
    with tarfile.open(path) as tar:
        begin = tar.getmembers()[number].offset
    intact = bytearray(path.read_bytes())
    header = memoryview(intact)[begin : begin + tarfile.BLOCKSIZE]
    header[124:136] = size.to_bytes(12, "big", signed=True)
    header[124] |= 0x80
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path.write_bytes(intact)
    with pytest.raises(ScanError, match="t.tar is cut short or damaged at .*: the member's data are not all there"):
        listed(path)


def record_header(size: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """Make the header in front of records of pax, or of a long name, that says so many bytes."""
    info = tarfile.TarInfo("odd")
    info.type = kind
    header = info.tobuf(tarfile.USTAR_FORMAT)
    header = header[:124] + size + header[136:148] + b" " * 8 + header[156:]
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


ODD_RECORDS = {
    "a number that is none": record_header(b"00000000025\0") + b"21 GNU.sparse.size=x".ljust(512, b"\n"),
    "more bytes than an int has": record_header(b"\x80" + b"\x7f" * 11),
    "more bytes than memory has": record_header(b"\x80\0\0\0\0\x3f" + b"\xff" * 6),
    "thousands of names": 3000 * (record_header(b"00000000002\0", tarfile.GNUTYPE_LONGNAME) + b"a".ljust(512, b"\0")),
}


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("odd", ODD_RECORDS.values(), ids=ODD_RECORDS)
def test_a_header_that_makes_no_sense_is_one_sentence(odd: bytes, is_first: bool, tmp_path: Path) -> None:
    path = make_tar(tmp_path / "t.tar", {"a.jpg": "", "b.jpg": ""})
    intact = path.read_bytes()
    begin = 0 if is_first else tarfile.BLOCKSIZE
    path.write_bytes(intact[:begin] + odd + intact[begin:])
    last = "its beginning" if is_first else "a.jpg"
    with pytest.raises(ScanError, match=f"t.tar is cut short or damaged at {last}: .* Copy it again."):
        listed(path)


@pytest.mark.parametrize("names", [["x/a.jpg"], ["train/x/a.jpg", "val/x/a.jpg"]])
def test_members_of_one_name_are_each_a_row_and_are_verified(names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    for number in range(3):
        make_tar(path, {name: jpeg(9 * number + len(name)) for name in names}, mode="a")
    assert pack(path, tmp_path / "out", size=32).rows == 3 * len(names)
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", path) == []


@pytest.mark.parametrize("more", [b"junk" * 200, None])
def test_a_tar_that_goes_on_behind_its_end_is_refused(more: bytes | None, tmp_path: Path) -> None:
    path = make_tar(tmp_path / "t.tar", {"a.jpg": jpeg(0)})
    path.write_bytes(path.read_bytes() + (path.read_bytes() if more is None else more))
    with pytest.raises(ScanError, match="damaged at a.jpg: a header after it is damaged, or another tar follows"):
        listed(path)


def test_several_images_must_be_tars(images: Path, tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "t.tar", samples(0, 1))
    with pytest.raises(
        ScanError, match=r"images is no tar. Several IMAGES can be packed into one store only if all are tars"
    ):
        listed(tar, images)
    with tarfile.open(tmp_path / "t.tar.gz", "w:gz") as packed:
        packed.add(tar, "t")
    with pytest.raises(
        ScanError, match="is compressed, so its members cannot be read without unpacking it. Decompress it first"
    ):
        listed(tmp_path / "t.tar.gz")
    with pytest.raises(OptionsError, match="root does not belong to .*t.tar, which is a tar"):
        listed(tar, root=str(images))


def test_a_tar_that_is_changed_once_it_was_listed_stops_the_pack(tmp_path: Path) -> None:
    shards = [make_tar(tmp_path / f"s{s}.tar", samples(8 * s, 8 * s + 8)) for s in range(2)]

    def change(progress: Any) -> None:
        if progress.stage == "allocate":
            os.utime(shards[1], ns=(1, 1))

    with pytest.raises(PackError, match=r"s1\.tar was changed since it was listed\. Packed images are kept"):
        pack(shards, tmp_path / "changed", size=32, progress=change, max_rejects=8)
    assert not (tmp_path / "changed/manifest.json").exists()


# -- zips


def test_damaged_members_of_a_zip_are_rejected_alone(tmp_path: Path) -> None:
    members = {f"{n}.jpg": jpeg(n) for n in range(6)}
    path = make_zip(tmp_path / "z.zip", members, zipfile.ZIP_STORED)
    with zipfile.ZipFile(path) as file:
        offsets = [info.header_offset for info in file.infolist()]
    data = bytearray(path.read_bytes())
    data[offsets[1] + 200] ^= 1
    data[offsets[2]] = 0
    path.write_bytes(data)
    report = pack(path, tmp_path / "out", size=32, max_rejects=2)
    assert [line["path"] for line in read_json_lines(tmp_path / "out/rejected.jsonl")] == ["z.zip/1.jpg", "z.zip/2.jpg"]
    assert report.reasons == {
        "the zip archive is damaged: the member's checksum is wrong": 1,
        "the zip archive is damaged: the member is not where its directory says": 1,
    }


def test_a_zip_that_promises_less_than_it_inflates_to_is_bounded(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "z.zip", {"a.jpg": b"\xff\xd8" + bytes(50_000_000), "b.jpg": jpeg(1)})
    data = path.read_bytes()
    # the size in the central directory: 100 bytes instead of 50 MB
    data = data[:-1000] + data[-1000:].replace((50_000_002).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    path.write_bytes(data)
    report = pack(path, tmp_path / "out", size=32, max_rejects=1)
    assert report.reasons == {"the zip archive is damaged: the member's checksum is wrong": 1}


def test_a_zip_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "z.zip", {"a.jpg": jpeg(1)})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ScanError, match=r"z.zip cannot be read: .* Copy it again"):
        scan(path)
