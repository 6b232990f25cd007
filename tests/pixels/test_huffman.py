"""With its own Huffman decoder, a build option, the compiled part makes the rows that it makes with libjpeg-turbo's."""

from __future__ import annotations

import importlib.util
import io
import random
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from packer.pixels import compiled
from packer.pixels.formats import jpeg
from scripts.stress._mutated_images import Original, mutate

NATIVE = Path(__file__).resolve().parents[2] / "pixpack_native"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The compiled part, built with the option."""
    if shutil.which("cc") is None or compiled.native().is_missing:
        pytest.skip("the compiled part cannot be built here")
    library = tmp_path_factory.mktemp("built") / "_native.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-DPIXPACK_FAST_HUFFMAN", f"-I{sysconfig.get_path('include')}"]
    subprocess.run([*command, *sorted(NATIVE.glob("*.c")), "-o", library, "-ljpeg", "-lm"], check=True, timeout=120)
    spec = importlib.util.spec_from_file_location("_native", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not module.use_huffman(True):
        pytest.skip(f"there is no decoder of its own for libjpeg-turbo {module.HEADERS} on this processor")
    return module


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


def test_another_libjpeg_than_it_was_built_for_decodes_itself() -> None:
    used = []
    part = SimpleNamespace(HEADERS="3.1.2", use_huffman=lambda is_wanted: used.append(is_wanted) or is_wanted)
    assert compiled._huffman(part, "3.1.2") == "pixpack"
    assert used == [True]
    assert compiled._huffman(part, "3.1.1") == "libjpeg-turbo, as this was built for 3.1.2 and runs with 3.1.1"
    assert used == [True, True, False]
    assert compiled._huffman(SimpleNamespace(use_huffman=lambda is_wanted: False), "3.1.1") == "libjpeg-turbo"
