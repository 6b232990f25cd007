"""What a command shows of its progress: tqdm's bar of each stage on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Feed

from packer.cli.app import run
from packer.cli.output import ProgressBar
from packer.report import Progress


class Terminal(io.StringIO):
    """A standard error that says to be a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def stages(self) -> list[str]:
        """The stages whose bars were drawn, in order."""
        return [*dict.fromkeys(re.findall(r"\r([a-z ]+): +\d", self.getvalue()))]


def test_a_bar_shows_what_is_done_rejected_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with ProgressBar(hidden=False) as bar:
        bar.update(Progress("list", 10, 10, found="10 images, 2 classes"))
        bar.update(Progress("pack", 4, 10, split="train"))
        bar.update(Progress("pack", 10, 10, 1, split="train"))
        bar.update(Progress("sizes", 0, 10, waits_for="images/a.jpg"))
        bar.update(Progress("wait", 0, 0, waits_for="out is being packed by process 7"))
    assert terminal.getvalue().startswith("found 10 images, 2 classes\n")
    assert terminal.stages == ["train pack", "sizes", "wait"]


@pytest.mark.parametrize("is_hidden", [True, False])
def test_what_is_closed_silenced_or_no_terminal_gets_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_hidden: bool
) -> None:
    for stream in (Terminal() if is_hidden else None, io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setitem(sys.modules, "tqdm", None)
        with ProgressBar(hidden=is_hidden) as bar:
            bar.update(Progress("list", 10, 10, found="10 images"))
            bar.update(Progress("pack", 4, 10))
            bar.bytes_done(1, 2)
        assert stream is None or stream.getvalue() == ""


@pytest.mark.parametrize(
    ("arguments", "stages"),
    [
        (["-", "OUT", "--size", "8"], "list allocate pack seal"),
        (["plan", "-", "--size", "8"], "list sizes"),
        (["IMAGES", "OUT"], "list sizes"),
        (["IMAGES", "OUT", "--fit", "none"], "list sizes allocate pack seal"),
        (["IMAGES", "STORE", "--size", "16"], "list check"),
        (["update", "IMAGES", "STORE"], "digest list read allocate pack seal"),
        (["subset", "STORE", "OUT", "--fraction", "0.5"], "digest check allocate copy"),
        (["merge", "STORE", "STORE", "OUT"], "digest check allocate copy"),
        (["info", "STORE"], "read"),
        (["verify", "STORE"], "digest check verify"),
        (["push", "STORE", "URL"], "push"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_each_long_loop_reports_how_far_it_is_and_a_quiet_command_nothing(
    images: Path, tmp_path: Path, arguments: list[str], stages: str, monkeypatch: pytest.MonkeyPatch, feed: Feed
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    store = tmp_path / "store"
    assert run([str(images), str(store), "--size", "16", "--quiet"]) == 0
    assert terminal.getvalue() == ""
    feed("".join(f"{path}\n" for path in sorted(images.rglob("*.jpg"))).encode())
    paths = {"IMAGES": images, "STORE": store, "OUT": tmp_path / "out", "URL": f"file://{tmp_path / 'url'}"}
    run([str(paths.get(word, word)) for word in arguments])
    assert terminal.stages == stages.split()


_INTERRUPTED_IMPORT = """
import os, signal
from packer.cli.output import ProgressBar
from packer.cli.signals import signals_raise
from packer.report import Progress

imported = compile("os.kill(os.getpid(), signal.SIGINT)\\nwhile True: pass", "<frozen importlib._bootstrap>", "exec")
with ProgressBar(hidden=False) as bar, signals_raise("pack images out"):
    bar.update(Progress("allocate", 1, 2))
    exec(imported)
"""


@pytest.mark.usefixtures("delivered_signals")
def test_an_interrupt_that_comes_while_a_module_is_imported_clears_the_bar() -> None:
    terminal, line = os.openpty()
    child = subprocess.run([sys.executable, "-c", _INTERRUPTED_IMPORT], stderr=line, timeout=500)
    os.close(line)
    with os.fdopen(terminal, "rb", buffering=0) as file:
        shown = file.read(1 << 16).decode()
    assert child.returncode == 130
    bar, message = shown.rstrip().rsplit("\r", 2)[-2:]
    assert "allocate:  50%" in shown
    assert bar.strip() == ""
    assert message == "pack: interrupted. To continue: pack images out"
