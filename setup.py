"""The compiled part of packer: built where there are a C compiler and libjpeg's headers, left out elsewhere."""

import sys

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "packer.pixels.native._native",
            ["packer/pixels/native/native.c", "packer/pixels/native/resample.c", "packer/pixels/native/sums.c"],
            depends=["packer/pixels/native/resample.h", "packer/pixels/native/sums.h"],
            libraries=["jpeg"] if sys.platform == "win32" else ["jpeg", "m"],
            extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-ffp-contract=off", "-fvisibility=hidden"],
            optional=True,
        )
    ]
)
