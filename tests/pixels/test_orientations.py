"""Every format that can say how a picture is to be turned, by all eight orientations: pixels, boxes and masks turn alike."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ffmpeg_or_skip, photo
from PIL import Image, ImageDraw
from test_boxes import FITS, ORIENTATIONS, boxes_of, coco
from test_decode import turned

from packer import pack
from packer.pixels import plugins
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.pixels.mask import mask_row
from packer.sample_lines import read_json_lines
from reader import MemmapDataset

# whose decoders turn the picture themselves: labels are in the pixels of that
TURNED = ("tiff", "tiff lzw", "tiff jpeg", "tiff pages", "heic", "jxl")
SIZE = (300, 200)
BOX = (90, 50, 80, 80)
# name of the form -> suffix, and what Pillow is told to write it
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "jpeg": (".jpg", {"format": "JPEG", "quality": 95}),
    "progressive": (".jpg", {"format": "JPEG", "quality": 95, "progressive": True}),
    "cmyk": (".jpg", {"format": "JPEG", "quality": 95}),
    "mpo": (".mpo", {"format": "MPO", "save_all": True}),
    "png": (".png", {"format": "PNG"}),
    "webp": (".webp", {"format": "WEBP", "lossless": True}),
    "tiff": (".tif", {"format": "TIFF"}),
    "tiff lzw": (".tif", {"format": "TIFF", "compression": "tiff_lzw"}),
    "tiff jpeg": (".tif", {"format": "TIFF", "compression": "jpeg"}),
    "tiff pages": (".tiff", {"format": "TIFF", "save_all": True}),
    "avif": (".avif", {"format": "AVIF", "quality": 90}),
    "heic": (".heic", {"format": "HEIF", "quality": 90}),
    "jxl": (".jxl", {"format": "JXL"}),
    "jxl of a jpeg": (".jxl", {"format": "JXL", "lossless_jpeg": True}),
}
# the drawing of written(), as cjxl 0.7 encodes it with -d 0 -e 9; the turn is in bits 3 to 5 of the byte at 43
JXL = bytes.fromhex(
    "0000000c4a584c200d0a870a00000014667479706a786c20000000006a786c20000000496a786c63ff0a313d10505c120802"
    "010064000000c00314004b283634cf15b02000eadd8d31682f1002002f4d00c092833f4374744aa524ce0daf6ed9657f040d"
    "939285ee02"
)


def written(path: Path, form: str, orientation: int, scale: int = 1) -> None:
    """Draw a white rectangle at BOX, times scale, and store it in this form, to be turned."""
    suffix, options = FORMS[form]
    kind = options.get("format", "")
    if kind in plugins.PLUGINS and plugins.missing(kind):
        pytest.skip(f"{kind} needs {plugins.missing(kind)}")
    if form == "jxl" and scale == 1:
        path.with_suffix(suffix).write_bytes(JXL[:43] + bytes([5 + 8 * (orientation - 1)]) + JXL[44:])
        return
    image, exif = Image.new("RGB", (SIZE[0] * scale, SIZE[1] * scale)), Image.Exif()
    x, y, width, height = (side * scale for side in BOX)
    ImageDraw.Draw(image).rectangle((x, y, x + width - 1, y + height - 1), fill="white")
    image = image.convert("CMYK") if form == "cmyk" else image
    exif[0x0112] = orientation
    pages = {"append_images": [Image.new("RGB", (40, 30))]} if "save_all" in options else {}
    if form == "jxl of a jpeg":
        image.save(path.with_suffix(".jpeg"), exif=exif, quality=95)
        image = Image.open(path.with_suffix(".jpeg"))
    encoded = exif.tobytes() if suffix in (".webp", ".heic") else exif
    image.save(path.with_suffix(suffix), exif=encoded, **options, **pages)
    path.with_suffix(".jpeg").unlink(missing_ok=True)


def labelled(tmp_path: Path, form: str, scale: int = 1) -> dict[str, Any]:
    """Make eight images, boxes and masks drawn on them as they are stored; returns the options that name the labels."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    mask = Image.new("L", (SIZE[0] * scale, SIZE[1] * scale))
    box = [side * scale for side in BOX]
    ImageDraw.Draw(mask).rectangle((box[0], box[1], box[0] + box[2] - 1, box[1] + box[3] - 1), fill=200)
    for orientation in ORIENTATIONS:
        written(tmp_path / "images" / str(orientation), form, orientation, scale)
        mask.save(tmp_path / "masks" / f"{orientation}.png")
    names: dict[str, Any] = {f"{n}{FORMS[form][0]}": mask.size for n in ORIENTATIONS}
    return {
        "boxes": coco(tmp_path / "coco.json", names, [(name, box) for name in names]),
        "masks": tmp_path / "masks",
        "workers": 1,
    }


def assert_labels_cover_the_picture(out: Path) -> None:
    data = MemmapDataset(out, as_tuple=False)
    found = boxes_of(out)
    assert len(data) == len(found) == 8
    for row, boxes in enumerate(found):
        sample = data[row]
        for lit in (sample.pixels[..., 0] > 127, sample.extras["masks"] == 200):
            ys, xs = np.nonzero(np.asarray(lit))
            assert np.abs(np.subtract(boxes[0], [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])).max() <= 1
    assert len({tuple(boxes[0]) for boxes in found}) > 3
    lines = list(read_json_lines(out / "samples.jsonl"))
    assert [line.get("exif_orientation", 1) for line in lines] == list(ORIENTATIONS)
    assert all((line["width"] < line["height"]) == (n >= 5) for n, line in enumerate(lines, start=1))


@pytest.mark.parametrize("form", [form for form in FORMS if form not in TURNED])
def test_boxes_and_masks_turn_with_the_picture(form: str, tmp_path: Path) -> None:
    labels = labelled(tmp_path, form)
    for fit in (*FITS, "none"):
        shape: dict[str, Any] = {"max_size": 150} if fit == "none" else {"size": 100}
        pack(tmp_path / "images", tmp_path / fit, fit=fit, **shape, **labels)
        assert_labels_cover_the_picture(tmp_path / fit)


@pytest.mark.parametrize("form", ["jpeg", "progressive", "cmyk", "mpo"])
def test_they_turn_when_the_picture_is_decoded_at_a_reduced_size(form: str, tmp_path: Path) -> None:
    pack(tmp_path / "images", tmp_path / "out", size=100, fit="pad", **labelled(tmp_path, form, scale=6))
    assert {line["dct_scale"] for line in read_json_lines(tmp_path / "out/samples.jsonl")} == {8}
    assert_labels_cover_the_picture(tmp_path / "out")


def test_they_turn_when_the_picture_is_requantized(tmp_path: Path) -> None:
    ffmpeg_or_skip()
    pack(tmp_path / "images", tmp_path / "out", size=100, fit="inside", requantize=3, **labelled(tmp_path, "jpeg"))
    assert_labels_cover_the_picture(tmp_path / "out")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_the_header_gives_the_upright_size(form: str, orientation: int, tmp_path: Path) -> None:
    written(tmp_path / "a", form, orientation)
    data = next(tmp_path.glob("a.*")).read_bytes()
    assert Decoder(Geometry(1, 1)).upright_size(data[: 64 << 10]) == (SIZE if orientation >= 5 else SIZE[::-1])
    upright = SIZE if orientation >= 5 else SIZE[::-1]
    row = Decoder(Geometry(*upright, "squash")).row(data)
    assert Decoder(Geometry(1, 1)).upright_size(data) == (row.height, row.width) == upright
    assert row.done.get("exif_orientation", 1) == (1 if form in TURNED else orientation)


def test_an_orientation_that_a_tiff_says_in_xmp_alone_counts_too(tmp_path: Path) -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    image = photo(60, 40, 1)
    image.save(tmp_path / "a.tif", tiffinfo={700: xmp})
    data = (tmp_path / "a.tif").read_bytes()
    row = Decoder(Geometry(60, 40, "squash")).row(data)
    assert (row.height, row.width) == (60, 40)
    assert row.pixels == image.transpose(Image.Transpose.ROTATE_270).tobytes()


# -- masks with an orientation of their own


@pytest.mark.parametrize("of_image", [1, 3, 6])
@pytest.mark.parametrize("orientation", range(2, 9))
def test_a_mask_with_an_orientation_of_its_own_is_turned_by_that_alone(orientation: int, of_image: int) -> None:
    upright = np.random.default_rng(1).integers(0, 200, (40, 60), dtype=np.uint8)
    exif, stream = Image.Exif(), io.BytesIO()
    stored = turned(Image.fromarray(upright), orientation)
    exif[0x0112] = orientation
    stored.save(stream, "PNG", exif=exif)
    geometry = Geometry(40, 60, "squash")
    picture = Decoder(geometry).row(_picture(of_image))
    assert mask_row(stream.getvalue(), picture, geometry).pixels == upright.tobytes()


def _picture(orientation: int) -> bytes:
    """Encode a picture of 60 x 40 once it is upright."""
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    photo(*((40, 60) if orientation >= 5 else (60, 40)), 1).save(stream, "PNG", exif=exif)
    return stream.getvalue()
