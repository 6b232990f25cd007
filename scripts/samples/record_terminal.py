"""Record `pack`, `pack info` and `pack bench` on the sample images as a picture of a terminal, an SVG.

    python -m scripts.samples.record_terminal docs/terminal.svg      needs rich: pip install 'pixpack[dev]'

The commands run in a folder of their own, one after the other, and what they print is drawn as they print it.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts import ROOT

COLUMNS = 110
# what a log has of progress; a terminal redraws one line, which is gone at the end
_PROGRESS = re.compile(r"(?m)^[\w ]+: .*\d%, .*\d+:\d\d:\d\d left\n")
COMMANDS = (
    "pack images/ out/ --fit none --max-size 512",
    "pack info out/",
    "pack bench out/ --seconds 3 --order full",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="the SVG")
    parser.add_argument("--images", type=Path, help="a folder of class folders; default: the sample, drawn for this")
    options = parser.parse_args()
    # not after minutes of work
    importlib.import_module("rich")
    with tempfile.TemporaryDirectory() as folder:
        images = options.images.resolve() if options.images else Path(folder, "drawn")
        if not options.images:
            make = [sys.executable, "-m", "scripts.samples.make_sample", str(images)]
            subprocess.run(make, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        Path(folder, "images").symlink_to(images)
        texts = [(command, output(command, Path(folder))) for command in COMMANDS]
    svg = drawn(texts)
    options.out.write_text(svg, encoding="utf-8")
    print(f"{options.out}: {len(svg):,} bytes")
    return 0


def output(command: str, folder: Path) -> str:
    """Run a command in a folder and return what it prints on both streams; raises CalledProcessError where it fails."""
    words = [sys.executable, "-m", "packer", *shlex.split(command)[1:]]
    environment = os.environ | {"COLUMNS": str(COLUMNS), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )
    done.check_returncode()
    return _PROGRESS.sub("", done.stdout).rstrip().replace(str(folder.resolve()), "~").replace(str(folder), "~")


def drawn(texts: list[tuple[str, str]]) -> str:
    """Draw commands and what each printed as a window of a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for command, printed in texts:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(printed), soft_wrap=False)
        console.print()
    svg = console.export_svg(title="pixpack", unique_id="pixpack")
    # rich names a font on a network; and a renderer may drop the spaces that a line begins with
    return re.sub(r" *@font-face \{.*?\n    \}\n", "", svg, flags=re.S).replace(
        "<svg ", '<svg xml:space="preserve" ', 1
    )


if __name__ == "__main__":
    sys.exit(main())
