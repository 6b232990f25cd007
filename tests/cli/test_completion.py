"""Completion as each shell does it: a line is typed in a terminal, Tab completes it, and `pack` receives the words."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="there are no pseudo-terminals")

# a prompt that no line that is typed has
_PROMPT = "ready>"
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-C", "function fish_prompt; echo -n ready'>'; end; function fish_greeting; end"],
}
SETUP = {
    "bash": "PS1=ready'>'; eval \"$(_PACK_COMPLETE=bash_source pack)\"",
    "zsh": "PROMPT=ready'>'; autoload -U compinit; compinit -D -u; eval \"$(_PACK_COMPLETE=zsh_source pack)\"",
    "fish": "_PACK_COMPLETE=fish_source pack | source",
}
SECONDS = 60.0
# `pack` that completes as ours does, and else only writes down its words
PROGRAM = """#!/bin/sh
[ -n "$_PACK_COMPLETE" ] && exec {python} -m packer "$@"
exec {python} -c 'import json, sys; open("words.json", "a").write(json.dumps(sys.argv[1:]) + "\\n")' "$@"
"""


def typed(shell: str, lines: list[str], folder: Path) -> list[list[str]]:
    """Type lines in a shell, Tab behind each; returns the words that `pack` received."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "pack").write_text(PROGRAM.format(python=shlex.quote(sys.executable)))
    (programs / "pack").chmod(0o755)
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHONPATH": str(root),
        "TERM": "xterm",
    }
    process, terminal = pty.fork()
    shown = ""
    if process == 0:  # pragma: no cover
        os.chdir(folder)
        os.execvpe(shell, SHELLS[shell], environment)
    try:
        written = folder / "words.json"
        if shell == "fish":
            _read_until(terminal, "", _PROMPT)
        os.write(terminal, f"{SETUP[shell]}\n".encode())
        for count, line in enumerate(lines, 1):
            # that of the setup has quotes in it, and is no prompt
            _read_until(terminal, shown, _PROMPT)
            os.write(terminal, f"{line}\t\n".encode())
            until, shown = time.monotonic() + SECONDS, ""
            while not written.exists() or len(written.read_text().splitlines()) < count:
                assert time.monotonic() < until, f"{shell} did not run {line!r}: {shown}"
                shown += _shown(terminal, 0.05)
        return [json.loads(line) for line in written.read_text().splitlines()]
    finally:
        os.kill(process, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(process, 0)


def _read_until(terminal: int, shown: str, text: str) -> None:
    until = time.monotonic() + SECONDS
    while text not in shown:
        assert time.monotonic() < until, shown
        shown += _shown(terminal, 1.0)


def _shown(terminal: int, seconds: float) -> str:
    ready, _, _ = select.select([terminal], [], [], seconds)
    return os.read(terminal, 65536).decode(errors="replace") if ready else ""


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_commands_options_choices_and_paths(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    for name in ("photos", "store"):
        (tmp_path / name).mkdir()
    lines = ["pack verif", "pack photos/ out --max-s", "pack photos/ out --fit squ", "pack pho", "pack info sto"]
    words = typed(shell, lines, tmp_path)
    assert [[word.rstrip("/") for word in line] for line in words] == [
        ["verify"],
        ["photos", "out", "--max-size"],
        ["photos", "out", "--fit", "squash"],
        ["photos"],
        ["info", "store"],
    ]
