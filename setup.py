"""The compiled part of packer: built where there are a C compiler and libjpeg's headers, left out elsewhere."""

import sys

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "packer.pixels.native._native",
            [f"packer/pixels/native/{name}.c" for name in ("native", "resample", "sums", "unfilter")],
            depends=[f"packer/pixels/native/{name}.h" for name in ("resample", "sums", "unfilter")],
            libraries=["jpeg"] if sys.platform == "win32" else ["jpeg", "m"],
            extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-ffp-contract=off", "-fvisibility=hidden"],
            optional=True,
        )
    ]
)
