"""The command prints and returns what its transcripts say, and each option, choice, exit code and row of the reference is in one.

To show something new, write its `$ pack ...` line into a file of tests/golden/transcripts and let it be answered:

    PIXPACK_WRITE_GOLDEN=1 python -m pytest tests/cli/test_transcripts.py
"""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import sys
from pathlib import Path

import click
import pytest
from conftest import ffmpeg_or_skip
from golden_text import ROOT, check_text
from transcript_inputs import make_inputs
from transcripts import Session

from packer.cli.app import cli

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the lines are of bash and its tools")
REFERENCE = ROOT / "docs" / "reference"
FILES = sorted((ROOT / "tests" / "golden" / "transcripts").glob("*.txt"))
# Libraries that the commands of a transcript need, beside those that pixpack requires.
NEEDS = {
    "build-compressed": ["zstandard"],
    "subset-compressed": ["zstandard"],
    "plan": ["zstandard"],
    "image-formats": ["pillow_heif"],
}
# Options that only a cluster accepts.
ON_A_CLUSTER = {("build", "--address"), ("update", "--address")}
# Pages of the reference with rows that commands show.
PAGES = ["exit-codes", "environment", "image-formats", "limitations", "compatibility"]
PAGES += ["cli/index", "cli/info", "cli/push", "cli/pull"]
# Rows that no command shows here, and why.
NOT_SHOWN = {
    "compatibility": {
        "Stores": "the golden stores of tests/format",
        "Orders and random numbers": "digests of the reader",
        "The pixels of a new pack": "needs two versions of a decoder",
        "Public names": "tests/test_signatures.py",
        "The first release": "the golden stores of tests/format",
        "Versions": "a rule for releases",
        "A name that goes": "a rule for releases",
        "Python, torch and libraries": "pyproject.toml",
    },
    "environment": {
        "PIXPACK_REMOTE_SECONDS": "needs a server that fails: tests/remote",
        "RANK, WORLD_SIZE": "of the reader",
        "LOCAL_WORLD_SIZE, MASTER_ADDR": "of the reader",
        "OMP_NUM_THREADS": "of torch",
        "RAY_ADDRESS, RAY_AUTH_TOKEN, RAY_AUTH_MODE": "needs a cluster: tests/workers/test_ray.py",
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL": (
            "needs a server: tests/inputs/test_remote.py"
        ),
        "PIXPACK_TORCHVISION, PIXPACK_ONNX, PIXPACK_NOTEBOOK, PIXPACK_TRITON": "of the tests",
        "PIXPACK_APT": "of the scripts",
    },
    "image-formats": {
        "AVIF": "whether Pillow decodes it differs from machine to machine: tests/pixels/test_plugins.py",
        "JPEG XL": "the plugin may be missing: tests/pixels/test_plugins.py",
        "JPEG 2000": "whether Pillow decodes it differs from machine to machine: tests/pixels/test_bit_depth.py",
    },
    "limitations": {
        'device="cuda" with a dataset transform that takes one image at a time': "of the reader",
        "Masks of variable-size images in transforms that keep the sizes; masks of single objects": "of the reader",
        "RandomRotation with expand; PerSample with a function of your own, outside a v2.Compose,"
        " for rows that have boxes or masks": "of the reader",
    },
}


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("transcripts"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_transcript_is_what_the_command_says(
    path: Path,
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    delivered_signals: None,
) -> None:
    for library in NEEDS.get(path.stem, []):
        pytest.importorskip(library)
    if path.stem == "requantize":
        ffmpeg_or_skip()
    folder = Path(shutil.copytree(inputs, tmp_path / "work"))
    check_text(path, Session(folder, monkeypatch, capfd).replay(path.read_text(encoding="utf-8")))


@functools.cache
def answered() -> list[tuple[str, list[str], int]]:
    """Return each command of the transcripts: its name, its words and its exit code."""
    found = []
    for path in FILES:
        for line, code in re.findall(r"(?ms)^\$ ([^\n]*)\n.*?^exit (\d+)$", path.read_text(encoding="utf-8")):
            match = re.search(r"(?:^|[ |])pack( [^|;<>]*?)?(?= *(?:[|;<>]|  # |$))", line)
            words = (match[1] or "").split() if match else []
            found.append((words[0] if words and words[0] in cli.commands else "build", words, int(code)))
    return found


OPTIONS = [
    pytest.param(name, option, id=f"{name} {option.opts[-1]}")
    for name, command in cli.commands.items()
    for option in command.params
    if isinstance(option, click.Option)
]


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_each_option_is_accepted_in_a_transcript(name: str, option: click.Option) -> None:
    is_refused_here = (name, option.opts[-1]) in ON_A_CLUSTER
    given = [words for command, words, code in answered() if command == name and (code in (0, 3) or is_refused_here)]
    assert {word for words in given for word in words} & {*option.opts}


def test_each_choice_of_an_option_is_in_a_transcript() -> None:
    given = {(name, *pair) for name, words, _ in answered() for pair in itertools.pairwise(words)}
    wanted = {
        (name, option.opts[-1], choice)
        for name, command in cli.commands.items()
        for option in command.params
        if isinstance(option.type, click.Choice)
        for choice in option.type.choices
    }
    assert wanted - given == set()
    assert len(wanted) > 30


@pytest.mark.parametrize("name", cli.commands)
def test_each_command_has_its_help_and_a_refusal_in_a_transcript(name: str) -> None:
    codes = {code for command, words, code in answered() if command == name and "-h" not in words}
    assert ([name, "-h"], 0) in [(words, code) for _, words, code in answered()]
    assert 0 in codes
    assert codes & {1, 2}


def test_exit_codes_of_transcripts_are_those_of_the_reference() -> None:
    assert {code for _, _, code in answered()} == {int(row) for row in rows("exit-codes")}


@pytest.mark.parametrize("page", PAGES)
def test_each_row_of_the_reference_is_in_a_transcript_or_says_why_not(page: str) -> None:
    shown = re.findall(rf"(?m)^# {page}\.md: (.*)$", "\n".join(path.read_text(encoding="utf-8") for path in FILES))
    excused = NOT_SHOWN.get(page, {})
    assert sorted({*shown, *excused}) == sorted({*rows(page)})
    assert {*shown} & excused.keys() == set()


def rows(page: str) -> list[str]:
    """Return the first cells of the tables of a page; of a page without tables, what each item of its list is about."""
    text = (REFERENCE / f"{page}.md").read_text(encoding="utf-8")
    lines = re.sub(r"(?s)<!-- written by .*?<!-- end of .*? -->", "", text).splitlines()
    heads = [line for line, below in itertools.pairwise(lines) if below.startswith("|---")]
    cells = [line.split("|")[1] for line in lines if re.match(r"\|[^-]", line) and line not in heads]
    section = re.search(r"(?ms)^## Not supported\n(.*?)^## ", text)
    items = re.findall(r"(?m)^- (.*(?:\n  .*)*)", section[1] if section else text)
    subjects = [re.split(r"(?<=\*\*) |: |\.$", " ".join(item.split()))[0] for item in items]
    return [re.sub(r"[`*]", "", cell).strip() for cell in cells or subjects]
