"""Run examples/notebook.ipynb on the sample images and save it with its outputs, small and without a path of this machine.

python -m scripts.samples.save_notebook      needs nbclient and ipykernel
"""

from __future__ import annotations

import base64
import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from scripts import ROOT
from scripts.samples import make_sample

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
_PNG = re.compile(r"data:image/png;base64,([\w+/=]+)")


def main() -> int:
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").mkdir()
        sys.argv[1:] = [f"{folder}/sample/images"]
        make_sample.main()
        run = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": f"{folder}/examples"}})
        run.execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
            for output in cell.get("outputs", []):
                _shorten(output, str(Path(folder).resolve()))
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, NOTEBOOK)
    print(f"{NOTEBOOK}: {NOTEBOOK.stat().st_size:,} bytes")
    return 0


def _shorten(output: Any, folder: str) -> None:
    """Replace the folder of this run by that of a checkout, and PNGs by JPEGs, of a tenth of the size."""
    texts = output.get("data", output)
    for kind, text in texts.items():
        if isinstance(text, str):
            texts[kind] = _PNG.sub(_as_jpeg, text.replace(folder, "pixpack"))


def _as_jpeg(found: re.Match[str]) -> str:
    written = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGB").save(written, "JPEG", quality=80, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}"


if __name__ == "__main__":
    sys.exit(main())
