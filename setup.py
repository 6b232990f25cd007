"""The compiled part of packer and reader, left out where there are no C compiler and libjpeg's headers."""

import glob
import sys

from setuptools import Extension, setup

_PARTS = (
    "augment",
    "blur",
    "copies",
    "crops",
    "jpeg_row",
    "pixel_steps",
    "reads",
    "resample",
    "threads",
    "warp",
)

# Sums are rounded where the sources say so; nothing looks at the flags that floating-point operations raise. Floats are finite:
# augment.c checks it by their bits. Their least and largest are an instruction each then, by which saturation and sharpness take
# 0.7 of the time (AMD EPYC, gcc 12, 2026-11-29). A function begins a line of the cache, whatever is before it.
_FLAGS = ["-O3", "-ffp-contract=off", "-fno-trapping-math", "-ffinite-math-only", "-fno-signed-zeros"]
_FLAGS += ["-fvisibility=hidden", "-falign-functions=64"]

setup(
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
