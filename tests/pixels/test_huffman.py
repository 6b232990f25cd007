"""With its own Huffman decoder the compiled part makes the rows that it makes with libjpeg-turbo's."""

from __future__ import annotations

import ctypes
import io
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

import pixpack_native
from packer.pixels import compiled
from packer.pixels.formats import jpeg
from scripts.stress.fuzz._mutated_images import Original, mutate

NATIVE = Path(__file__).resolve().parents[2] / "pixpack_native"


@pytest.fixture(scope="module")
def built() -> Any:
    """The compiled part, with its own decoder."""
    if compiled.native().is_missing:
        pytest.skip("the compiled part is not built here")
    module = pixpack_native.functions()
    if not module.use_huffman(True):
        pytest.skip(f"there is no decoder of its own for libjpeg-turbo {module.HEADERS} on this processor")
    return module


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    if not compiled.native().is_missing:
        pixpack_native.functions().use_huffman(compiled.native().huffman == "pixpack")


def encoded(width: int, height: int, mode: str = "RGB", **options: Any) -> bytes:
    """A JPEG of a picture with smooth parts and noise, which needs codes of all lengths."""
    rng = random.Random(width * height)
    smooth = Image.frombytes(mode, (9, 7), rng.randbytes(63 * len(mode))).resize((width, height), 3)
    noise = Image.frombytes(mode, (width, height), rng.randbytes(width * height * len(mode)))
    smooth.paste(noise.crop((0, 0, width // 3, height)), (width // 2, 0))
    file = io.BytesIO()
    smooth.save(file, "JPEG", **{"quality": 90} | options)
    return file.getvalue()


def rows(built: Any, data: bytes, scale: int = 1, top: int = 0) -> tuple[bytes | None, bytes | None]:
    """Return the picture's lines from top on, at 1/scale, by our decoder and by libjpeg-turbo's."""
    header = jpeg.read_header(data)
    assert header is not None
    source = -(-header.width // scale), -(-header.height // scale)
    arguments = data, source, source, (0, top), (source[0], source[1] - top), 2
    found = []
    for is_ours in (True, False):
        assert built.use_huffman(is_ours) == is_ours
        found.append(built.row(*arguments))
    return found[0], found[1]


@pytest.mark.parametrize("scale", [1, 2, 8])
@pytest.mark.parametrize(
    "options",
    [
        {"subsampling": 0},
        {"subsampling": 2, "quality": 100},
        {"subsampling": "4:1:1", "quality": 20},
        {"mode": "L"},
        {"optimize": True},
        {"restart_marker_blocks": 1},
        {"restart_marker_blocks": 7, "subsampling": 2},
        {"restart_marker_rows": 1, "quality": 98},
        {"progressive": True},
    ],
    ids=str,
)
def test_rows_are_the_same(built: Any, options: dict[str, Any], scale: int) -> None:
    data = encoded(301, 223, **options)
    ours, theirs = rows(built, data, scale)
    assert theirs is not None
    assert ours == theirs
    # lines that are skipped
    ours, theirs = rows(built, data, scale, top=223 // scale - 9)
    assert theirs is not None
    assert ours == theirs


@pytest.mark.parametrize("sides", [(1, 1), (8, 8), (17, 3), (2, 300)], ids=str)
def test_small_pictures_are_the_same(built: Any, sides: tuple[int, int]) -> None:
    ours, theirs = rows(built, encoded(*sides))
    assert theirs is not None
    assert ours == theirs


@pytest.mark.parametrize("behind", [b"\0", bytes(9000), b"\xff\xd8\xff", b"\xff" * 9])
def test_what_follows_the_end_does_not_matter(built: Any, behind: bytes) -> None:
    ours, theirs = rows(built, encoded(60, 50) + behind)
    assert theirs is not None
    assert ours == theirs


def test_padding_before_a_marker_does_not_matter(built: Any) -> None:
    data = encoded(60, 50, restart_marker_rows=1).replace(b"\xff\xd1", b"\xff\xff\xff\xd1")
    ours, theirs = rows(built, data[:-2] + b"\xff\xff" + data[-2:])
    assert theirs is not None
    assert ours == theirs


@pytest.mark.parametrize("end", [b"\xff\xd9", b"\xff\xd1"])
def test_bytes_left_over_before_a_marker_leave_the_file_to_libjpeg(built: Any, end: bytes) -> None:
    """libjpeg-turbo warns of them by how many bytes it has read ahead."""
    data = encoded(60, 50, restart_marker_rows=1)
    for count in (1, 3, 9):
        at = data.rindex(end)
        assert rows(built, data[:at] + bytes(count) + data[at:])[0] is None


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_become_the_same_row_or_none(built: Any, seed: int) -> None:
    rng, made, left = random.Random(seed), 0, 0
    options = {}, {"restart_marker_blocks": 5}, {"subsampling": 2, "optimize": True}, {"quality": 99, "subsampling": 0}
    # of the last, most of the data is where libjpeg-turbo looks at no end
    originals = [Original("JPEG", "jpg", encoded(250, 90 + 40 * seed, **options[seed])) for _ in range(2)]
    for _ in range(150):
        data = mutate(rng, rng.choice(originals))
        if jpeg.read_header(data) is None:
            continue
        ours, theirs = rows(built, data)
        assert ours in (theirs, None)
        made += ours is not None
        left += ours is None
    assert made > 5
    assert left > 40


def test_what_is_built_by_default_decodes_huffman_codes_itself() -> None:
    if compiled.native().is_missing or os.environ.get("PIXPACK_FAST_HUFFMAN") == "0":
        pytest.skip("it is not built, or without this")
    module = pixpack_native.functions()
    is_known = module.HEADERS.startswith(("2.1.", "3.0.", "3.1.", "3.2."))
    assert module.use_huffman(True) == is_known & (sys.maxsize > 1 << 32) & (sys.byteorder == "little")
    if compiled.native().row is not None:
        assert compiled.native().huffman == "pixpack"


def test_another_libjpeg_than_it_was_built_for_decodes_itself() -> None:
    used = []
    part = SimpleNamespace(
        HEADERS="3.1.2", HAS_HUFFMAN=1, use_huffman=lambda is_wanted: used.append(is_wanted) or is_wanted
    )
    assert compiled._huffman(part, "3.1.1") == "libjpeg-turbo, as this was built for 3.1.2 and runs with 3.1.1"
    assert used == []
    assert compiled._huffman(part, "3.1.2") == "pixpack"
    assert used == [True]
    part.use_huffman = lambda is_wanted: False
    assert "its state in another way" in compiled._huffman(part, "3.1.2")
    assert compiled._huffman(SimpleNamespace(HAS_HUFFMAN=0), "3.1.1") == "libjpeg-turbo"


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("    boolean has_too_few_bits;", "    boolean has_too_few_bits;"),
        # as in libjpeg-turbo 3, and as before it
        ("    boolean has_too_few_bits;", "    void *more[2];\n    boolean has_too_few_bits;"),
        ("        size_t bits;\n        int count;", "        int count;\n        size_t bits;"),
        ("    int last_dc[MAX_COMPS_IN_SCAN];", "    int last_dc[MAX_COMPS_IN_SCAN + 1];"),
        ("    int last_dc[MAX_COMPS_IN_SCAN];", "    int more, last_dc[MAX_COMPS_IN_SCAN];"),
        ("    int last_dc[MAX_COMPS_IN_SCAN];", "    short last_dc[MAX_COMPS_IN_SCAN];"),
        ("    unsigned int mcus_to_restart;", "    unsigned int more, mcus_to_restart;"),
    ],
    ids=range(7),
)
def test_a_libjpeg_that_keeps_its_state_elsewhere_decodes_itself(expected: str, found: str, tmp_path: Path) -> None:
    """Another library under the same name and version: each time this expects another state than the one that is loaded has."""
    if shutil.which("cc") is None:
        pytest.skip("there is no compiler")
    for name in ("huffman.c", "huffman.h", "huffman_probe.c", "huffman_state.h"):
        text = (NATIVE / name).read_text()
        (tmp_path / name).write_text(text.replace(expected, found) if name == "huffman_state.h" else text)
    assert expected in (NATIVE / "huffman_state.h").read_text()
    library = tmp_path / "huffman.so"
    command = [
        "cc",
        "-O1",
        "-shared",
        "-fPIC",
        "-DPIXPACK_FAST_HUFFMAN",
        *sorted(tmp_path.glob("*.c")),
        "-o",
        library,
        "-ljpeg",
    ]
    subprocess.run(command, check=True, timeout=120)
    use = ctypes.CDLL(str(library)).huffman_use
    assert [use(1), use(0), use(1)] == [expected == found, 0, expected == found]
