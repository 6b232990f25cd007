"""Damaged images cost nothing but themselves: a few of the many of tests/fuzz/fuzz_images.py."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from packer.errors import DecodeError
from packer.pixels.formats import jpeg
from tests.fuzz._mutated_images import make_jpeg, make_other, mutate
from tests.fuzz.fuzz_images import check_paths, make_decoder

ROOT = Path(__file__).resolve().parents[2]


def test_damaged_images_between_untouched_ones() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.fuzz_images",
        "--seconds",
        "0",
        "--seed",
        "5",
        "--mutants",
        "150",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["rounds"], result["images"], result["untouched"]) == (1, 150, 40)
    assert result["rows"] > 20
    assert result["rejected"] > 50
    assert result["rows"] + result["rejected"] == 150


@pytest.mark.parametrize("seed", range(4))
def test_every_mutant_is_a_row_or_a_reason(seed: int) -> None:
    rng = random.Random(seed)
    decoder = make_decoder(())
    for number in range(150):
        original = (make_jpeg if number % 3 else make_other)(rng, 120)
        data = mutate(rng, original)
        try:
            decoder.row(data)
        except DecodeError as e:
            assert str(e).startswith(("it ", "its ", "the ", "Pillow "))  # noqa: PT017
            assert "\n" not in str(e)  # noqa: PT017
        if original.suffix == "jpg":
            check_paths(original.kind, data, ())


@pytest.mark.parametrize("length", range(9))
@pytest.mark.parametrize("marker", [b"\xff\xda", b"\xff\xc0", b"\xff\xdd", b"\xff\xdb", b"\xff\xc4"])
def test_a_segment_that_states_another_length_is_no_error_of_ours(marker: bytes, length: int) -> None:
    """Behind a restart interval and with a warning, so that damage is looked at."""
    if not jpeg.is_installed():
        pytest.skip("libturbojpeg is not here")
    for seed in range(3):
        data = make_jpeg(random.Random(seed), 90, ("RGB",)).data.replace(b"\xff\xdb", b"ab\xff\xdd\0\4\0\3\xff\xdb", 1)
        at = max(data.find(marker), data.find(b"\xff\xc2") if marker == b"\xff\xc0" else 0)
        odd = data[: at + 2] + length.to_bytes(2, "big") + data[at + 4 :]
        for broken in (odd, odd[: at + 6], odd[: at + 12]):
            try:
                make_decoder(()).row(broken)
            except DecodeError as e:
                assert str(e)  # noqa: PT017
