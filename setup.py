"""The compiled part of packer and reader, left out where there are no C compiler and libjpeg's headers; and README for PyPI."""

import glob
import re
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup

_PARTS = (
    "augment",
    "blur",
    "copies",
    "crops",
    "draws",
    "jpeg_file",
    "jpeg_pixels",
    "jpeg_row",
    "neon",
    "photographs",
    "picture",
    "pixel_steps",
    "plain_png",
    "predictor",
    "reads",
    "resample",
    "sums",
    "tar_headers",
    "threads",
    "unfilter",
    "warp",
)

# Instead of a list of links that lead nowhere.
_PAGES = "Documentation and examples come with the source distribution: `docs/index.md`, `CHANGELOG.md`."

# Sums are rounded where the sources say so; nothing looks at the flags that floating-point operations raise. A function begins a
# line of the cache, whatever is before it: 16 bytes more there cost a blur 10 % (Xeon, gcc 12, 2026-11-24).
_FLAGS = ["-O3", "-ffp-contract=off", "-fno-trapping-math", "-fvisibility=hidden", "-falign-functions=64"]


def described(readme: str, address: str | None, version: str) -> str:
    """Return README as PyPI shows it: with links and pictures at the repository's address.

    Without an address a figure is what its text says, and the pages are those of the source distribution.
    """
    readme = re.sub(r"(?m)^ *</?(picture|source)\b.*>\n", "", readme)
    if address is None:
        readme = re.sub(r'(?m)^ *<img alt="([^"]*)".*>\n', r"\1.\n", readme)
        readme = re.sub(r"(?m)^!\[.*\]\(.*\)\n", "", readme)
        readme = re.sub(r"(?s)(?<=\n## More\n\n).*?(?=\n\n[^-\s])", _PAGES, readme)
        # words in brackets that are a link alone
        readme = re.sub(r" \(\[[^\[\]]+\]\((?!https?://)[^)]+\)\)", "", readme)
        return re.sub(r"\[([^\[\]]+)\]\((?!https?://)[^)]+\)", r"\1", readme)
    readme = re.sub(r'(src="|!\[.*\]\()(?!https?://)', rf"\1{address}/raw/v{version}/", readme)
    return re.sub(r"(?<=\]\()(?!https?://)", f"{address}/blob/v{version}/", readme)


def description() -> dict[str, str]:
    """Return what PyPI shows; nothing where the compiled part alone is built, beside which neither file is."""
    here = Path(__file__).resolve().parent
    if not (here / "pyproject.toml").exists():
        return {}
    project = tomllib.loads((here / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (here / "README.md").read_text(encoding="utf-8")
    shown = described(readme, project.get("urls", {}).get("Homepage"), project["version"])
    return {"long_description": shown, "long_description_content_type": "text/markdown"}


setup(
    **description(),
    ext_modules=[
        Extension(
            "reader._native",
            [f"reader/native/{name}.c" for name in ("native", *_PARTS)],
            depends=sorted(glob.glob("reader/native/*.h")),
            libraries=["jpeg"] if sys.platform == "win32" else ["jpeg", "m"],
            # a libjpeg that is linked in, as in wheels, is for this alone: another one in the process must not take its place
            extra_link_args=["-Wl,--exclude-libs,ALL"] if sys.platform == "linux" else [],
            extra_compile_args=[] if sys.platform == "win32" else _FLAGS,
            optional=True,
        )
    ],
)
