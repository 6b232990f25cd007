"""What a stranger wrote reaches no terminal as it is; credentials of URLs reach nothing that is shown or kept."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import fsspec
import pytest
from conftest import interrupted, make_tree, store_bytes
from hypothesis import given
from hypothesis import strategies as st
from kinds import MakeStore

from packer import pack, pull, push
from packer.cli.app import run
from packer.errors import RemoteError
from packer.sources.object_storage import open_url, reason
from packer.store.journal import Header
from packer.store.state import check_finished
from reader.format.errors import IncompleteStoreError
from reader.format.shown import brief, redacted, shown, shown_lines
from scripts import ROOT
from tests.hostile.drafts import EVIL

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
SECRET = "s3cr3t"
URLS = (
    f"s3://key:{SECRET}@bucket/a",
    f"s3:///KEY:{SECRET}@bucket/x",
    f"s3://{SECRET}@bucket/a",
    f"https://host/a?X-Amz-Signature={SECRET}&x=1",
    f"https://host/a?v=1&sig={SECRET}",
    f"https://host/a?token={SECRET}#top",
    f"abfs://box@host/a?access_token={SECRET}",
    f"https://u:p@{SECRET}@host/a",
)


@given(st.text())
def test_what_is_shown_has_no_control_characters_and_fits_on_a_line(text: str) -> None:
    assert not CONTROL.search(shown(text))
    assert not CONTROL.search(shown_lines(text).replace("\n", "").replace("\t", ""))
    assert not CONTROL.search(brief([text, {text: text}]))
    shown(text).encode()


def test_letters_of_any_language_are_shown_as_they_are() -> None:
    assert shown("näïve 猫 کتاب‌ها 👩‍🔬 a\u00a0b") == "näïve 猫 کتاب‌ها 👩‍🔬 a\u00a0b"


@pytest.mark.parametrize(
    "value", ["x" * 10**6, [[["x" * 100] * 100] * 100] * 100, 1 << 4000, {"a": [0] * 10**6}], ids=type
)
def test_a_value_is_named_briefly_however_large_it_is(value: object) -> None:
    assert len(brief(value)) < 1000


def test_what_is_no_credential_stays() -> None:
    kept = (
        "s3://bucket/a@b/c.jpg and https://host/a?v=1&monkey=2, user@host, abfs://box@host/a, C:/a@b, file:///me@home/x"
    )
    assert redacted(kept) == kept


@pytest.mark.parametrize("url", URLS)
def test_credentials_are_left_out_of_urls_and_their_errors(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], store_of: MakeStore
) -> None:
    found, store = redacted(f"{url} cannot be read, nor can {url}"), str(store_of("pad"))
    assert found.count("***") >= 2
    with pytest.raises(RemoteError) as refused:
        open_url(re.sub("^(s3|https|abfs):", "nothing:", url))
    found += redacted(json.dumps({"url": url})) + str(refused.value) + reason(OSError(f"Forbidden, url='{url}'"))
    for words in (["merge", url, store, str(tmp_path / "m")], ["build", store, url], ["info", url]):
        assert run(words) != 0
    assert SECRET not in "".join([found, *capsys.readouterr()])


def test_reports_and_records_of_a_copy_have_no_credentials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], store_of: MakeStore
) -> None:
    store, url = store_of("pad"), f"memory://key:{SECRET}@bucket/out"
    assert SECRET not in str(push(store, url))
    assert run(["push", str(store), url, "--json"]) == 0
    assert SECRET not in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):
        pull(url, tmp_path / "back", progress=lambda *_: signal.raise_signal(signal.SIGINT))
    kept = b"".join(store_bytes(tmp_path).values())
    assert b"memory://" in kept
    assert SECRET.encode() not in kept


def test_a_journal_has_no_credentials(tmp_path: Path) -> None:
    images, url = make_tree(tmp_path / "images", each=2), f"memory://key:{SECRET}@images"
    files, root = fsspec.core.url_to_fs(url)
    files.put(str(images), root, recursive=True)
    interrupted(pack, url, tmp_path / "out", inputs=1, size=32, workers=1)
    kept = b"".join(store_bytes(tmp_path / "out.packing").values())
    assert b"***@images" in kept
    assert SECRET.encode() not in kept


# -- journals that a stranger has planted


# the first line of a journal
USUAL = json.loads(Header(inputs=2, images=("images",)).encode().partition(b" ")[2])


def planted(folder: Path, *lines: object) -> Path:
    """Write a folder with a journal of these lines."""
    (folder / ".packing").mkdir(parents=True)
    with open(folder / ".packing/journal", "wb") as file:
        for text in (json.dumps(line).encode() for line in lines):
            file.write(b"%08x %b\n" % (zlib.crc32(text), text))
    return folder


@pytest.mark.parametrize(
    "header",
    [
        USUAL | {"images": ["images"], "words": ["--size", "224", EVIL]},
        USUAL | {"images": ["a\x1b[8m; rm -rf ~\x1b[0m"]},
        USUAL | {"images": ["--classes"], "words": ["x"]},
        USUAL | {"images": ["images"], "words": ["--overwrite"]},
        USUAL | {"images": ["images"], "words": ["x" * 10_000]},
        USUAL | {"images": 5},
        USUAL | {"images": ["a"], "words": [["b"]]},
        USUAL | {"images": ["a"], "words": "--size"},
        USUAL | {"inputs": EVIL},
        [1],
        "text",
    ],
)
def test_a_planted_journal_chooses_no_words_of_a_command(header: object, tmp_path: Path) -> None:
    with pytest.raises(IncompleteStoreError) as refused:
        check_finished(planted(tmp_path / "out", header))
    assert not CONTROL.search(str(refused.value))
    assert not re.search("rm -rf|--classes|--overwrite|cat|xxxx|--size|classes=|size=", str(refused.value))


@pytest.mark.parametrize(
    "lines",
    [
        [USUAL | {"inputs": "x"}],
        [USUAL | {"images": 5}],
        [[1]],
        *(
            [USUAL, block]
            for block in (
                {"inputs_stop": -1, "rows_stop": 0},
                {"inputs_stop": 1},
                {"inputs_stop": 1, "rows_stop": 1, "samples": [5]},
                "text",
            )
        ),
    ],
)
def test_a_planted_journal_is_refused_or_started_over(
    lines: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = make_tree(tmp_path / "images", classes=1, each=2)
    planted(tmp_path / "out.packing", *lines)
    assert run([str(images), str(tmp_path / "out"), "--size", "32", "--workers", "1"]) in (1, 2)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert not CONTROL.search(printed.rstrip("\n"))


def test_words_of_a_usual_journal_are_quoted(tmp_path: Path) -> None:
    out = planted(tmp_path / "out", USUAL | {"images": ["my images; ls"], "words": ["--size", "224"]})
    with pytest.raises(IncompleteStoreError, match=re.escape(f"Continue with: pack 'my images; ls' {out} --size 224")):
        check_finished(out)


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_names_that_are_no_utf_8_are_shown_on_a_strict_terminal(encoding: str, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/images/caf\xe9"
    os.makedirs(folder)
    shutil.copy(next(make_tree(tmp_path / "made", classes=1, each=1).rglob("*.jpg")), folder + b"/a\xff.jpg")
    (tmp_path / "images" / "broken.jpg").write_bytes(b"")
    variables = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
    for words in (["build", "images", "out", "--size", "32", "--max-rejects", "9"], ["verify", "out"], ["info", "out"]):
        command = [sys.executable, "-m", "packer", *words]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True)
        assert done.returncode == 0, done.stderr
    assert rb"caf\udce9" in done.stdout
