"""A JPEG that libjpeg complains of is a row where enough of it was decoded from its own data, with the share recorded."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from conftest import photo
from PIL import Image

from packer.errors import DecodeError
from packer.pixels.decode import Decoder
from packer.pixels.formats import jpeg, turbojpeg
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row

pytestmark = pytest.mark.skipif(
    not turbojpeg.JpegDecoder().is_available, reason="libturbojpeg reports what libjpeg warns of"
)

SIZE = (320, 256)
PHOTO = photo(*SIZE, seed=3)


def encoded(image: Image.Image = PHOTO, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", **{"quality": 90} | options)
    return stream.getvalue()


def decoded(data: bytes, **options: Any) -> Row:
    return Decoder(Geometry(SIZE[1], SIZE[0], "squash"), exact=True, **options).row(data)


def content_at(data: bytes) -> int:
    """Return where the data of the first scan begins."""
    *_, (_, _, stop) = jpeg.segments(data)
    return stop


def without(data: bytes, marker: int, number: int = 0) -> bytes:
    """Turn a segment into a comment, which no decoder warns of."""
    at = [at for found, at, _ in jpeg.segments(data) if found == marker][number]
    return data[:at] + b"\xff\xfe" + data[at + 2 :]


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("marker", [b"\xff\xdb", b"\xff\xc0", b"\xff\xc4", b"\xff\xda"])
def test_what_is_cut_away_shows_behind_a_stuffed_byte_too(mode: str, marker: bytes) -> None:
    """FF 00 is no marker, so what it seems to announce must not hide the header from the check."""
    data = encoded(PHOTO.convert(mode))
    at = data.index(marker)
    odd = data[:at] + b"\xff\x00" + data[at:]
    assert jpeg.read_header(odd) == jpeg.read_header(data)
    if marker == b"\xff\xc0":  # the last bytes of a table, perhaps
        with pytest.raises(DecodeError, match="quantization table is damaged"):
            decoded(odd)
    else:
        row = decoded(odd)
        assert (
            row.pixels == Decoder(Geometry(SIZE[1], SIZE[0], "squash"), exact=True).row(data).pixels or mode == "CMYK"
        )
        assert "2 extraneous bytes" in row.done["warnings"][0]
        assert "decoded" not in row.done
        with pytest.raises(DecodeError, match="--strict"):
            decoded(odd, strict=True)
    cut = odd[: content_at(odd) + 200] + b"\xff\xd9"
    with pytest.raises(DecodeError, match="lacks part of its data|quantization table"):
        decoded(cut)


def test_a_header_that_pillow_alone_reads_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded()
    monkeypatch.setattr(jpeg, "read_header", lambda data: None)
    assert decoded(data).done == {"decoder": "Pillow", "format": "JPEG"}
    cut = data[: len(data) // 2] + b"\xff\xd9"
    Image.open(io.BytesIO(cut)).load()
    with pytest.raises(DecodeError, match="the JPEG's header is damaged .*premature end of data"):
        decoded(cut)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("marker", [0xDB, 0xC4])
def test_a_jpeg_that_lacks_its_tables_is_not_decoded_with_those_of_the_one_before(marker: int, native: bool) -> None:
    data, decoder = encoded(), Decoder(Geometry(64, 64), exact=True)
    if not native:
        decoder._one_pass = None
    lacking = without(data, marker, -1)

    def found() -> bytes | str:
        try:
            return decoder.row(lacking).pixels
        except DecodeError as e:
            return str(e)

    first = found()
    decoder.row(encoded(quality=20))
    second = found()
    decoder.row(data)
    assert first == second == found()
    assert marker != 0xDB or isinstance(first, str)


def test_damage_without_restart_markers_is_rejected_with_the_share_before_it() -> None:
    data = encoded()
    at = content_at(data)
    middle = at + (len(data) - at) // 2
    cut = data[:middle] + data[middle + 900 : -2] + b"\xff\xd9"
    with pytest.raises(DecodeError, match="the JPEG lacks part of its data"):
        decoded(cut)
    longer = data[:middle] + data[at + 500 : at + 900] + data[middle:]
    with pytest.raises(DecodeError, match=r"the JPEG's data is damaged"):
        decoded(longer)
    early = data[: at + (len(data) - at) * 3 // 4] + b"\xff\xd9"
    with pytest.raises(DecodeError, match=r"lacks part of its data after (6|7)\d %"):
        decoded(early)


@pytest.mark.parametrize(
    ("left_over", "is_row"), [(b"\0" * 500, True), (b"\x12\x34\x56\x78\x9a\xbc", True), (b"abcd" * 9, False)]
)
def test_padding_before_the_end_marker_is_no_damage(left_over: bytes, is_row: bool) -> None:
    data = encoded()
    padded = data[:-2] + left_over + data[-2:]
    if is_row:
        assert decoded(padded).pixels == decoded(data).pixels
        assert "decoded" not in decoded(padded).done
        assert "extraneous" in decoded(padded).done["warnings"][0]
    else:
        with pytest.raises(DecodeError, match=r"the JPEG's data is damaged: 3\d bytes of it are left over"):
            decoded(padded)


def test_three_bytes_left_over_are_padding_and_four_are_damage() -> None:
    data, found = encoded(), set()
    clean = decoded(data).pixels
    for count in range(1, 16):  # libjpeg has read some of them ahead, and counts the rest
        padded = data[:-2] + bytes(range(1, count + 1)) + data[-2:]
        try:
            row = decoded(padded)
        except DecodeError as e:
            left = re.search(r"the JPEG's data is damaged: (\d+) bytes of it are left over", str(e))
            assert left
            assert int(left[1]) > 3
        else:
            assert row.pixels == clean
            assert "decoded" not in row.done
            left = re.search(r"(\d+) extraneous bytes", str(row.done.get("warnings", "")))
            assert left is None or int(left[1]) <= 3
            if left:
                with pytest.raises(DecodeError, match="--strict"):
                    decoded(padded, strict=True)
        found.add(int(left[1]) if left else 0)
    assert {1, 2, 3, 4} <= found


def test_header_junk_does_not_hide_damage_behind_it() -> None:
    data = encoded()
    cut = data[: len(data) // 2] + b"\xff\xd9"
    odd = cut.replace(b"\xff\xc4", b"abc\xff\xc4", 1)
    with pytest.raises(DecodeError, match="lacks part of its data"):
        decoded(odd)
    assert "decoded" not in decoded(data.replace(b"\xff\xc4", b"abc\xff\xc4", 1)).done


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_the_share_of_intervals_between_restart_markers_decides(mode: str) -> None:
    data = encoded(PHOTO.convert(mode), restart_marker_blocks=2)
    at = content_at(data)
    segments = re.split(rb"(\xff[\xd0-\xd7])", data[at:-2])
    count = len(segments[::2])

    def lacking(intervals: int) -> bytes:
        parts = list(segments)
        for number in range(intervals):
            parts[number * 8] = parts[number * 8][:6].rstrip(b"\xff")
        return data[:at] + b"".join(parts) + b"\xff\xd9"

    row = decoded(lacking(1))
    assert row.done["decoded"] == int((count - 1) / count * 100) / 100 >= 0.95
    assert "premature end of data" in row.done["warnings"][0]
    pixels, sound = (np.frombuffer(r.pixels, np.uint8).reshape(SIZE[1], -1) for r in (row, decoded(data)))
    assert np.array_equal(pixels[32:], sound[32:])
    with pytest.raises(DecodeError, match="lacks part of its data"):
        decoded(lacking(count // 8))
    with pytest.raises(DecodeError, match="only with warnings"):
        decoded(lacking(1), strict=True)


def test_of_a_progressive_jpeg_95_percent_come_before_the_first_damaged_scan() -> None:
    data = encoded(progressive=True)
    stop = re.compile(rb"\xff[^\0]")
    begins = [found.start() for found in re.finditer(rb"\xff\xda", data)]
    scans = [(begin, found.start()) for begin in begins if (found := stop.search(data, begin + 2))]
    assert len(scans) == 10
    for number in (0, 1, 4, 5, 6):  # of DC and luma, from the first bits to the last but one
        begin, end = scans[number]
        with pytest.raises(DecodeError, match=rf"the JPEG lacks part of its data, in scan {number + 1} of 10"):
            decoded(data[: begin + 16] + data[end:])
    begin, end = scans[9]
    with pytest.raises(DecodeError, match="in scan 10 of 10"):
        decoded(data[: begin + 3000] + data[end:])
    for number in (2, 3, 7, 8):  # of colors alone
        begin, end = scans[number]
        assert 0.1 < decoded(data[: begin + 16] + data[end:]).done["decoded"] < 0.95
    # as good as complete, without the last bits of luma: blurred, and not displaced
    begin, end = scans[-1]
    row = decoded(data[: begin + 16] + data[end:])
    assert 0.95 <= row.done["decoded"] < 1
    difference = np.frombuffer(row.pixels, np.uint8).astype(int) - np.frombuffer(decoded(data).pixels, np.uint8)
    assert np.abs(difference).mean() < 6


def test_an_interval_with_bytes_left_over_is_damaged() -> None:
    """What is displaced in an interval may come to all of its units early; the rest of its bytes shows that."""
    data = encoded(restart_marker_blocks=8)
    at = content_at(data)
    segments = re.split(rb"(\xff[\xd0-\xd7])", data[at:-2])
    count = len(segments[::2])

    def longer(intervals: int, added: bytes) -> bytes:
        parts = list(segments)
        for number in range(intervals):
            parts[4 * number] += added
        return data[:at] + b"".join(parts) + b"\xff\xd9"

    assert count > 30
    # fewer may be in the decoder's hands already
    displaced = bytes(range(0x12, 0x26))
    row = decoded(longer(1, displaced))
    assert row.done["decoded"] == int((count - 1) / count * 100) / 100
    with pytest.raises(DecodeError, match="20 bytes of it are left over"):
        decoded(longer(count // 4, displaced))
    for padding in (b"\0" * 20, b"abc"):
        assert decoded(longer(count // 4, padding)).pixels == decoded(data).pixels


def test_a_hostile_number_of_scans_or_intervals_takes_no_long_time() -> None:
    import time

    data = encoded(photo(64, 64, 1), restart_marker_blocks=1)
    at = content_at(data)
    many = data[:at] + data[at:-2] * 2000 + b"\xff\xd9"
    scan = encoded(photo(16, 16, 1), progressive=True)
    last = scan[scan.rindex(b"\xff\xda") : -2]
    started = time.process_time()
    for hostile in (many, scan[:-20] + last * 3000 + b"\xff\xd9"):
        try:
            decoded(hostile)
        except DecodeError as e:
            assert str(e)  # noqa: PT017
    assert time.process_time() - started < 5
