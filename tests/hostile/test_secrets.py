"""Credentials of URLs reach nothing that is shown or kept; journals choose no words; any name is shown on any terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import zlib
from pathlib import Path

import fsspec
import pytest
from conftest import PACK, interrupted, store_bytes
from kinds import MakeStore

from packer import pack, pull, push
from packer.cli.app import run
from packer.errors import RemoteError
from packer.sources.object_storage import open_url, reason
from packer.store.journal import Header
from packer.store.state import check_finished
from reader.format.errors import IncompleteStoreError
from reader.format.shown import redacted
from tests.hostile.drafts import EVIL
from tests.hostile.watched import HIDDEN

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


@pytest.mark.parametrize("url", URLS)
def test_credentials_are_left_out_of_urls_and_their_errors(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], store_of: MakeStore
) -> None:
    found, store = redacted(f"{url} cannot be read, nor can {url}"), str(store_of("pad"))
    with pytest.raises(RemoteError) as refused:
        open_url(re.sub("^(s3|https|abfs):", "nothing:", url))
    found += redacted(json.dumps({"url": url})) + str(refused.value) + reason(OSError(f"Forbidden, url='{url}'"))
    for words in (["merge", url, store, str(tmp_path / "m")], ["build", store, url], ["info", url]):
        assert run(words) != 0
    assert SECRET not in "".join([found, *capsys.readouterr()])


def test_reports_and_records_have_no_credentials(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], store_of: MakeStore
) -> None:
    """Those of a push, of a pull that was interrupted, and of a pack that was."""
    store, url = store_of("pad"), f"memory://key:{SECRET}@bucket/out"
    assert SECRET not in str(push(store, url))
    assert run(["push", str(store), url, "--json"]) == 0
    with pytest.raises(KeyboardInterrupt):
        pull(url, tmp_path / "back", progress=lambda *_: signal.raise_signal(signal.SIGINT))
    files, root = fsspec.core.url_to_fs(url)
    files.put(str(images), f"{root}/images", recursive=True)
    interrupted(pack, f"{url}/images", tmp_path / "out", inputs=1, size=32, workers=1)
    kept = b"".join(store_bytes(tmp_path).values())
    assert b"***@bucket/out/images" in kept
    assert SECRET not in kept.decode("latin-1") + capsys.readouterr().out


# the first line of a journal
USUAL = json.loads(Header(inputs=2, images=("images",)).encode().partition(b" ")[2])


@pytest.mark.parametrize(
    "header",
    [
        USUAL | {"words": ["--size", "224", EVIL]},
        USUAL | {"images": ["a\x1b[8m; rm -rf ~\x1b[0m"]},
        USUAL | {"images": ["--classes"], "words": ["x"]},
        USUAL | {"words": ["--overwrite"]},
        USUAL | {"inputs": EVIL},
    ],
)
def test_a_planted_journal_chooses_no_words_of_a_command(header: object, tmp_path: Path) -> None:
    line = json.dumps(header).encode()
    (tmp_path / ".packing").mkdir()
    (tmp_path / ".packing/journal").write_bytes(b"%08x %b\n" % (zlib.crc32(line), line))
    with pytest.raises(IncompleteStoreError) as refused:
        check_finished(tmp_path)
    assert not HIDDEN.search(str(refused.value))
    assert not re.search("rm -rf|--classes|--overwrite|cat|--size|classes=|size=", str(refused.value))


def test_names_that_are_no_utf_8_are_shown_on_a_strict_terminal(images: Path, tmp_path: Path) -> None:
    os.rename(images / "class0", os.fsencode(images) + b"/caf\xe9")
    variables = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    for line in (f"build {images} out --size 32", "verify out", "info out"):
        done = subprocess.run([*PACK, *line.split()], cwd=tmp_path, env=variables, capture_output=True)
        assert done.returncode == 0, done.stderr
    assert rb"caf\udce9" in done.stdout
