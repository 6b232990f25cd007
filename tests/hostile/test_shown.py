"""What a stranger wrote reaches no terminal as it is; credentials of URLs reach nothing that is shown or kept."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from conftest import make_tree
from hypothesis import given
from hypothesis import strategies as st
from kinds import MakeStore

from packer import pack
from packer.cli.app import run
from packer.errors import PackError, RemoteError
from packer.operations.transfer import pull, push
from packer.sources.object_storage import open_url, reason
from packer.store.journal import Header
from packer.store.state import check_finished
from reader.format.errors import IncompleteStoreError
from reader.format.shown import brief, redacted, shown, shown_lines
from tests.hostile.drafts import Draft
from tests.hostile.faults import EVIL

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
SECRET = "s3cr3t"
URLS = (
    f"s3://key:{SECRET}@bucket/a",
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


def test_a_value_is_named_briefly_however_large_it_is() -> None:
    assert all(
        len(brief(value)) < 1000
        for value in ("x" * 10**6, [[["x" * 100] * 100] * 100] * 100, 1 << 4000, {"a": [0] * 10**6})
    )


@pytest.mark.parametrize("url", URLS)
def test_credentials_are_left_out_of_urls(url: str) -> None:
    found = redacted(f"{url} cannot be read, nor can {url}")
    assert SECRET not in found
    assert found.count("***") >= 2
    assert SECRET not in redacted(json.dumps({"url": url}))


def test_what_is_no_credential_stays() -> None:
    kept = "s3://bucket/a@b/c.jpg and https://host/a?v=1&monkey=2, user@host, abfs://box@host/a, C:/a@b"
    assert redacted(kept) == kept


@pytest.mark.parametrize("url", URLS)
def test_errors_of_urls_have_no_credentials(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], store_of: MakeStore
) -> None:
    store = store_of("pad")
    with pytest.raises(RemoteError) as refused:
        open_url(url.replace("s3:", "nothing:").replace("https:", "nothing:").replace("abfs:", "nothing:"))
    assert SECRET not in str(refused.value)
    assert SECRET not in reason(OSError(f"Forbidden, url='{url}'"))
    for words in (["merge", url, str(store), str(tmp_path / "m")], ["build", str(store), url], ["info", url]):
        assert run(words) != 0
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err


def test_reports_and_records_of_a_copy_have_no_credentials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, store_of: MakeStore
) -> None:
    store, url = store_of("pad"), f"memory://key:{SECRET}@bucket/out"
    assert SECRET not in str(push(store, url))
    assert run(["push", str(store), url, "--json"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(
            "packer.operations.transfer._Copy.bring_store", lambda *_: (_ for _ in ()).throw(PackError("stop"))
        )
        with pytest.raises(PackError):
            pull(url, tmp_path / "back")
    kept = b"".join(path.read_bytes() for path in (tmp_path / "back.packing").rglob("*") if path.is_file())
    assert b"memory://" in kept
    assert SECRET.encode() not in kept
    assert SECRET not in capsys.readouterr().out


def test_a_journal_has_no_credentials(tmp_path: Path) -> None:
    import fsspec

    images, url = make_tree(tmp_path / "images", each=2), f"memory://key:{SECRET}@images"
    files, root = fsspec.core.url_to_fs(url)
    files.put(str(images), root, recursive=True)
    seen: list[bytes] = []

    def stop(progress: object) -> None:
        journal = tmp_path / "out.packing/.packing/journal"
        seen.extend([journal.read_bytes()] if journal.exists() else [])

    pack(url, tmp_path / "out", size=32, workers=1, progress=stop)
    assert seen
    assert b"***@images" in seen[-1]
    assert all(SECRET.encode() not in content for content in seen)


# -- journals


def planted(out: Path, header: object) -> Path:
    """Write a folder with a journal of one line."""
    (out / ".packing").mkdir(parents=True)
    if isinstance(header, Header):
        line = header.encode()
    else:
        text = json.dumps(header).encode()
        line = b"%08x %b\n" % (zlib.crc32(text), text)
    (out / ".packing/journal").write_bytes(line)
    return out


@pytest.mark.parametrize(
    "header",
    [
        Header(images=("images",), words=("--size", "224", EVIL)),
        Header(images=("a\x1b[8m; rm -rf ~\x1b[0m",)),
        Header(images=("--classes",), words=("x",)),
        Header(images=("images",), words=("--overwrite",)),
        Header(images=("images",), words=("x" * 10_000,)),
        {"images": 5},
        {"images": ["a"], "words": [["b"]]},
        {"images": ["a"], "words": "--size"},
        {"inputs": EVIL},
        [1],
        "text",
    ],
)
def test_a_planted_journal_chooses_no_words_of_a_command(header: object, tmp_path: Path) -> None:
    with pytest.raises(IncompleteStoreError) as refused:
        check_finished(planted(tmp_path / "out", header))
    found = str(refused.value)
    assert not CONTROL.search(found)
    assert all(
        word not in found
        for word in ("rm -rf", "--classes", "--overwrite", "cat", "xxxx", "--size", "classes=", "size=")
    )


@pytest.mark.parametrize(
    "lines",
    [
        [{"inputs": "x"}],
        [{"images": 5}],
        [[1]],
        [{"inputs": 2, "images": ["images"]}, {"inputs_stop": -1, "rows_stop": 0}],
        [{"inputs": 2, "images": ["images"]}, {"inputs_stop": 1}],
        [{"inputs": 2, "images": ["images"]}, {"inputs_stop": 1, "rows_stop": 1, "samples": [5]}],
        [{"inputs": 2, "images": ["images"]}, "text"],
    ],
)
def test_a_planted_journal_is_refused_or_started_over(
    lines: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = make_tree(tmp_path / "images", classes=1, each=2), tmp_path / "out"
    stage = planted(tmp_path / "out.packing", lines[0])
    for line in lines[1:]:
        text = json.dumps(line).encode()
        with open(stage / ".packing/journal", "ab") as file:
            file.write(b"%08x %b\n" % (zlib.crc32(text), text))
    assert run([str(images), str(out), "--size", "32", "--workers", "1"]) in (1, 2)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert not CONTROL.search(printed.rstrip("\n"))


def test_words_of_a_usual_journal_are_quoted(tmp_path: Path) -> None:
    out = planted(tmp_path / "out", Header(images=("my images; ls",), words=("--size", "224")))
    with pytest.raises(IncompleteStoreError, match=re.escape(f"Continue with: pack 'my images; ls' {out} --size 224")):
        check_finished(out)


# -- streams


def test_names_that_are_no_utf_8_are_shown_on_a_strict_terminal(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/images/caf\xe9"
    os.makedirs(folder)
    shutil.copy(next(make_tree(tmp_path / "made", classes=1, each=1).rglob("*.jpg")), folder + b"/a\xff.jpg")
    (tmp_path / "images" / "broken.jpg").write_bytes(b"")
    for words in (["build", "images", "out", "--size", "32", "--max-rejects", "9"], ["info", "out"], ["verify", "out"]):
        for encoding in ("utf-8:strict", "ascii:strict"):
            shutil.rmtree(tmp_path / "out", ignore_errors=True) if words[0] == "build" else None
            done = subprocess.run(
                [sys.executable, "-m", "packer", *words],
                cwd=tmp_path,
                env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(Path(__file__).parents[2])},
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
    assert (
        rb"caf\udce9"
        in subprocess.run(
            [sys.executable, "-m", "packer", "info", "out"],
            cwd=tmp_path,
            capture_output=True,
            check=True,
            env=os.environ | {"PYTHONIOENCODING": "utf-8:strict", "PYTHONPATH": str(Path(__file__).parents[2])},
        ).stdout
    )


def test_info_shows_escapes_of_class_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_of: MakeStore
) -> None:
    draft = Draft(store_of("pad"), tmp_path / "store")
    draft.head["classes"] = [EVIL, "bee", "cat"]
    draft.seal()
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", "strict", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    assert run(["info", str(tmp_path / "store")]) == 0
    printed = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert r"cat\x1b[2J\x07\x9b31m\u202eexe\n pack: done" in printed
    assert not CONTROL.search(printed.replace("\n", ""))


def test_credentials_behind_three_slashes_are_not_shown_and_folders_are() -> None:
    assert redacted("s3:///KEY:SECRET@bucket/x is no URL") == "s3:///***@bucket/x is no URL"
    assert redacted("file:///me@home/x") == "file:///me@home/x"
