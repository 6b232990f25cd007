"""The command prints and returns what its transcripts say.

To show something new, write its `$ pack ...` line into a file of tests/golden/transcripts and let it be answered:

    PIXPACK_WRITE_GOLDEN=1 python -m pytest tests/cli/test_transcripts.py
"""

from __future__ import annotations

import difflib
import os
import shutil
import sys
from pathlib import Path

import pytest
from conftest import ffmpeg_or_skip
from transcript_inputs import make_inputs
from transcripts import ROOT, Session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the lines are of bash and its tools")
FILES = sorted((ROOT / "tests" / "golden" / "transcripts").glob("*.txt"))


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
    if path.stem == "requantize":
        ffmpeg_or_skip()
    folder = Path(shutil.copytree(inputs, tmp_path / "work"))
    kept = path.read_text(encoding="utf-8")
    found = Session(folder, monkeypatch, capfd).replay(kept)
    if os.environ.get("PIXPACK_WRITE_GOLDEN") == "1":
        path.write_text(found, encoding="utf-8")
    else:
        assert found == kept, "\n".join(difflib.unified_diff(kept.splitlines(), found.splitlines(), lineterm="", n=2))
